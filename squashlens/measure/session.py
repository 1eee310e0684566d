"""What all measurements share: the session that checks a model and its prompts, and labels the result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bridge, Target, distinct, dtype_name, short_repr
from squashlens.errors import InputError
from squashlens.model.anatomy import (
    check_layer,
    device_of,
    dtype_of,
    n_blocks,
    residual_site,
    stored_as,
)
from squashlens.model.digests import sha256, source_of
from squashlens.model.hooking.standing import ambient, standing
from squashlens.model.loading.gguf import ORIGIN
from squashlens.model.memory import awaited
from squashlens.model.proof import fingerprint_of, proof_of
from squashlens.model.snapshot import precision
from squashlens.model.text import tokens
from squashlens.model.text.context import display_tokens
from squashlens.model.text.start import start_of
from squashlens.model.verify import require_sound, status
from squashlens.records.joining import restated
from squashlens.records.results import (
    Variable,
    attributes,
    is_measured,
    position_coords,
    sealed,
    signed,
    versions,
)
from squashlens.run.captures.capture import Capture, PromptOrCapture
from squashlens.run.forward import forward
from squashlens.run.streamed import implementation
from squashlens.saving.journal import Journal


@dataclass(frozen=True)
class Session:
    """A verified model, the checked token ids of its prompts, and the facts that the result's provenance states.

    `labels` are coordinates by position for results that have a value for each span of a prompt, and not each token.
    """

    model: Bridge
    ids: Int[Tensor, "prompt position"]
    facts: Mapping[str, Any]
    capture: Capture | None = None
    labels: Mapping[str, Any] | None = None

    @classmethod
    def start(
        cls, model: object, prompts: PromptOrCapture, function: str, **arguments: Any
    ) -> "Session":
        """The session of a measurement of prompts, which are recorded as they were given: text or token ids."""
        given = (
            prompts.prompts if isinstance(prompts, Capture) else tokens.each_of(prompts)
        )
        recorded = given[0] if len(given) == 1 else given
        if not isinstance(
            prompts, Capture
        ):  # whose prompts were checked before they were run
            prompts = tokens.tokenize(require_sound(model), prompts)
        session = cls.without_prompt(
            model, prompts, function, prompt=recorded, **arguments
        )
        ids = session.ids.tolist()
        return session.knowing(token_ids=ids[0] if len(ids) == 1 else ids)

    @classmethod
    def without_prompt(
        cls, model: object, ids: Tensor | Capture, function: str, **arguments: Any
    ) -> "Session":
        """Check the model, and collect the facts for the provenance of the result.

        For ids that were checked as prompts, or made of a sequence or a task, which a measurement records instead.
        """
        sound = require_sound(model)
        held = ids if isinstance(ids, Capture) else None
        ids = ids.ids if isinstance(ids, Capture) else ids
        ids = tokens.checked_ids(sound, ids if ids.ndim == 2 else ids[None])
        config, start = getattr(sound.original_model, "config", None), start_of(sound)
        facts = {
            "model": model_name(sound),
            "call": {"function": function} | arguments,
            "revision": getattr(config, "_commit_hash", None),
            "architecture": type(sound.original_model).__name__,
            "fingerprint": fingerprint_of(sound),
            "proof": status(sound),
            "dtype": dtype_name(dtype_of(sound)),
            # Any setting below "highest" rounds the factors of float32 products.
            "matmul_precision": precision().partition(" ")[0],
            "quantized": proof_of(sound).once("stored as", lambda: stored_as(sound)),
            "weights_origin": getattr(config, ORIGIN, None),
            "device": str(device_of(sound)),
            "attention_implementation": implementation(sound, n=ids.shape[1]),
            # Leading tokens of the first prompt that the tokenizer adds, such as BOS.
            "bos_count": len(
                [*takewhile({*start.ids, start.bos}.__contains__, ids[0].tolist())]
            ),
            "bos_rule": start.rule,
            "ambient_hooks": ambient(sound),
            "versions": versions(),
        }
        if held is not None:
            held.require_current(sound)
        return cls(sound, ids, facts, held)

    def journal(self, path: str | Path | None, facts: Mapping[str, Any]) -> Journal:
        """The file from which an interrupted measurement resumes: only under hooks of the same names and source."""
        hooks = {
            "hook_functions": sources_of_hooks(self.model),
            "tokenizer": tokens.tokenizer_digest(self.model),
        }
        return Journal(path, {**facts, **hooks})

    @property
    def positions(self) -> int:
        """The number of positions of the prompts."""
        return self.ids.shape[1]

    def query(self, query: int, argument: str = "query") -> int:
        """A position as an index from the start. Raises, naming the argument, if it is outside the prompt."""
        n = self.positions
        if not -n <= query < n:
            raise InputError(
                f"{argument}={query!r} is not a position of the prompt.",
                f"Use 0 to {n - 1}, or -{n} to -1 to count from the end.",
            )
        return query % n

    def queries(self, given: Iterable[int], argument: str) -> list[int]:
        """The positions, each once and in ascending order; negative ones count from the end. Raises as `query` does."""
        given = [*given]
        return distinct(
            sorted(self.query(one, argument) for one in given), argument, given
        )

    def require_one(self, tokens: int = 1) -> None:
        """Raise unless there is a single prompt, of at least this number of tokens."""
        name, count = self.facts["call"]["function"], len(self.ids)
        if count != 1:
            raise InputError(
                f"{name} takes a single prompt, and there are {count}.",
                f"Call {name} for each prompt.",
            )
        if self.positions < tokens:
            raise InputError(
                f"{name} needs a prompt of at least {tokens} tokens, and this one has {self.positions}.",
                "Give a longer prompt.",
            )

    def knowing(self, **facts: Any) -> "Session":
        """The session with further facts for the provenance."""
        return replace(self, facts={**self.facts, **facts})

    def spans(
        self, from_layer: int, to_layer: Target | Sequence[Target]
    ) -> dict[Target, int]:
        """The layer number of each `to_layer`, with L for y. Raises unless `from_layer` is below each of them."""
        bottom = check_layer(from_layer, self.model, "from_layer")
        targets = (
            to_layer
            if isinstance(to_layer, Sequence) and not isinstance(to_layer, str)
            else [to_layer]
        )
        spans: dict[Target, int] = {}
        for to in distinct(targets, "to_layer"):
            top = (
                n_blocks(self.model)
                if to == "y"
                else check_layer(to, self.model, "to_layer")
            )
            if bottom > top or (bottom == top and to != "y"):
                raise InputError(
                    f"from_layer={bottom} is not below to_layer={to!r}.",
                    "Choose a from_layer below to_layer.",
                )
            spans[cast(Target, to)] = top
        return spans

    def by_layer(
        self, to_layer: Target | Sequence[Target], found: Mapping[Target, xr.DataArray]
    ) -> xr.DataArray:
        """The result for a single `to_layer`, or the results for a list along a leading dimension `to_layer`."""
        if isinstance(to_layer, int | str):
            result = found[cast(Target, to_layer)]
            return (
                result if is_measured(result) else restated(result, {})
            )  # it may have got coordinates
        names = xr.Variable("to_layer", [str(to) for to in found])
        together = cast(
            xr.DataArray,
            xr.concat(list(found.values()), dim=names, combine_attrs="override"),
        )
        return restated(together, {})

    def as_run(self) -> Mapping[str, Any]:
        """The facts, in which attention is as it ran: a fused kernel may have failed since the session began."""
        with awaited():  # no result is made of passes that ended in NaN
            way = self.facts["attention_implementation"]
        if not way.startswith("fused"):
            return self.facts
        return {
            **self.facts,
            "attention_implementation": implementation(
                self.model, n=self.positions, planned=way
            ),
        }

    def label(
        self, values: Tensor, name: str, long_name: str, units: str, **extra: Any
    ) -> xr.DataArray:
        """A DataArray of values of shape (prompt, position). A single prompt has no dimension `prompt`."""
        dims, coords = self.coords()
        return self.array(
            name,
            coords,
            (dims, values[0] if len(self.ids) == 1 else values, long_name, units),
            **extra,
        )

    def array(
        self, name: str, coords: Mapping[str, Any], variable: Variable, **extra: Any
    ) -> xr.DataArray:
        """A DataArray of one variable, given as (dimensions, values, long name, units), with its provenance."""
        dims, values, text, units = variable
        found = xr.DataArray(
            _numpy(values), coords, dims, name, attributes(text, units)
        )
        return sealed(found, {**self.as_run(), **extra})

    def dataset(
        self,
        long_name: str,
        coords: Mapping[str, Any],
        variables: Mapping[str, Variable],
    ) -> xr.Dataset:
        """A Dataset of named variables, each given as (dimensions, values, long name, units), with its provenance."""
        plain = {
            name: (dims, _numpy(values), text, unit)
            for name, (dims, values, text, unit) in variables.items()
        }
        return signed(long_name, coords, plain, self.as_run())

    def coords(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The dimensions of values per token, and the coordinates that label the tokens; or those of spans."""
        if self.labels is not None:
            return ("position",), dict(self.labels)
        ids = self.ids.cpu().numpy().astype(np.int64)
        return position_coords(ids, display_tokens(self.model, self.ids))


def streams_of(
    session: Session, layers: Sequence[Target], at: Any = slice(None)
) -> list[Tensor]:
    """The residual streams of a session's prompts at some layers: those of its capture, or from one forward pass."""
    held = session.capture
    if held is not None and held.y is not None and {*layers} <= {*held.residuals, "y"}:
        return [
            (held.y if layer == "y" else held.residuals[layer])[:, at]
            for layer in layers
        ]
    sites = [residual_site(layer, session.model) for layer in layers]
    seen = streams_at(session.model, session.ids, sites, at=at)
    return [seen[site] for site in sites]


def require_places(positions: Sequence[int], first: int, last: int) -> None:
    """Raise unless there is at least one position, all of them from `first` to `last`."""
    if not positions or not first <= min(positions) <= max(positions) <= last:
        raise InputError(
            f"positions={short_repr(positions)} are not positions from {first} to {last}.",
            f"Give at least one position from {first} to {last}.",
        )


def streams_at(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    sites: Iterable[str],
    context: Mapping[str, Any] | None = None,
    at: Any = slice(None),
) -> dict[str, Tensor]:
    """The activations at some hook points, and positions, in one forward pass, detached."""
    seen: dict[str, Tensor] = {}

    def keep(site: str) -> Callable[[Tensor], None]:
        return lambda tensor: seen.update({site: tensor[:, at].detach().clone()})

    forward(model, ids, [(site, keep(site)) for site in sites], context)
    return seen


def sources_of_hooks(model: Bridge) -> str:
    """A digest of the source of the users' functions on the model, with what they close over; empty without any."""
    sources = [source_of(hook.edit) for hook in standing(model) if hook.is_a_users]
    return sha256("\n".join(sources))[:16] if sources else ""


def _numpy(values: Any) -> np.ndarray:
    return (
        values.detach().cpu().numpy()
        if isinstance(values, Tensor)
        else np.asarray(values)
    )


def model_name(model: Bridge) -> str:
    """The model's name: the name of the folder for a local model, however its path was written, else the full name."""
    name = str(model.cfg.model_name)
    folder = Path(name).expanduser()
    return (
        folder.resolve().name
        if folder.is_dir() or name.startswith(("/", ".", "~"))
        else name
    )
