"""The session of a measurement: it checks the model and the prompt, and labels the result with its provenance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, Target, dtype_name, short_repr
from squashlens.engine.anatomy import check_layer, device_of, dtype_of, n_blocks
from squashlens.engine.capturing.capture import Capture, PromptOrCapture
from squashlens.engine.loading.converting.gguf import ORIGIN
from squashlens.engine.loading.quantized import stored_as
from squashlens.engine.proving import proof, registry
from squashlens.engine.running.streamed import implementation
from squashlens.engine.text.start import start_of
from squashlens.engine.text.tokens import count_bos, display_tokens, each_of, tokenize, tokenizer_digest
from squashlens.errors import InputError
from squashlens.records.joining import restated
from squashlens.records.results import Variable, attributes, position_coords, sealed, signed, versions
from squashlens.saving.journal import Journal


@dataclass(frozen=True)
class Session:
    """A verified model, the checked token ids of its prompts, and the facts that the result's provenance states."""

    model: Bridge
    ids: Int[Tensor, "prompt position"]
    facts: Mapping[str, Any]
    capture: Capture | None = None

    @classmethod
    def start(cls, model: object, prompts: PromptOrCapture, bos: Bos, function: str, **arguments: Any) -> "Session":
        """The session of a measurement of prompts, which are recorded as they were given: text or token ids."""
        given = each_of(prompts.ids if isinstance(prompts, Capture) else prompts)
        recorded = given[0] if len(given) == 1 else given
        session = cls.without_prompt(model, prompts, bos, function, prompt=recorded, **arguments)
        ids = session.ids.tolist()
        return replace(session, facts={**session.facts, "token_ids": ids[0] if len(ids) == 1 else ids})

    @classmethod
    def without_prompt(
        cls, model: object, prompts: PromptOrCapture, bos: Bos, function: str, **arguments: Any
    ) -> "Session":
        """Check the model and the prompts, and collect the facts for the provenance of the result.

        For prompts that a measurement made itself, from a sequence or a task, which it records instead of them.
        """
        sound = proof.require_sound(model)
        held = prompts if isinstance(prompts, Capture) else None
        if held is not None and bos not in ("family", "as-given"):
            raise InputError(f"bos={bos!r} applies to a prompt, and a capture was given.", "Capture with this bos=.")
        ids = tokenize(sound, prompts.ids if isinstance(prompts, Capture) else prompts, bos="as-given" if held else bos)
        config, run = getattr(sound.original_model, "config", None), registry.run_state(sound)
        facts = {
            "model": model_name(sound),
            "call": {"function": function, "bos": bos} | arguments,
            "revision": getattr(config, "_commit_hash", None),
            "architecture": type(sound.original_model).__name__,
            "fingerprint": registry.fingerprint_of(sound),
            "code_and_hooks": run.digest,
            "proof": proof.status(sound),
            "dtype": dtype_name(dtype_of(sound)),
            # Any setting below "highest" rounds the factors of float32 products.
            "matmul_precision": torch.get_float32_matmul_precision(),
            "quantized": stored_as(sound),
            "weights_origin": getattr(config, ORIGIN, None),
            "device": str(device_of(sound)),
            "attention_implementation": implementation(sound),
            "bos_count": count_bos(sound, ids),
            "bos_rule": start_of(sound).rule,
            "ambient_hooks": list(run.hooks),
            "replaced_functions": list(registry.code_in(sound).replaced),
            "versions": versions(),
        }
        if held is not None:
            held.require_current(sound)
        return cls(sound, ids, facts, held)

    def journal(self, path: str | Path | None, facts: Mapping[str, Any]) -> Journal:
        """The file from which an interrupted measurement resumes. Raises for hooks whose digest does not show all."""
        if path is not None:
            require_seen(self.model, "resume=")
        return Journal(path, {**facts, "tokenizer": tokenizer_digest(self.model)})

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
        """Different positions in ascending order, of which negative ones count from the end. Raises as `query` does."""
        found = sorted(self.query(one, argument) for one in given)
        if not found or len({*found}) < len(found):
            raise InputError(
                f"{argument}={short_repr(given)} has no position, or one twice.", "Give different positions."
            )
        return found

    def require_one(self, tokens: int = 1) -> None:
        """Raise unless there is a single prompt, of at least this number of tokens."""
        if len(self.ids) != 1 or self.positions < tokens:
            name, least = self.facts["call"]["function"], f" of at least {tokens} tokens" if tokens > 1 else ""
            raise InputError(
                f"{name} takes a single prompt{least}, and not {len(self.ids)} × {self.positions} tokens.",
                f"Call {name} for each prompt.",
            )

    def knowing(self, **facts: Any) -> "Session":
        """The session with further facts for the provenance."""
        return replace(self, facts={**self.facts, **facts})

    def spans(self, from_layer: int, to_layer: Any) -> dict[Target, int]:
        """The layer number of each `to_layer`, with L for y. Raises unless `from_layer` is below each of them."""
        bottom = check_layer(from_layer, self.model, "from_layer")
        targets = to_layer if isinstance(to_layer, Sequence) and not isinstance(to_layer, str) else [to_layer]
        if not targets:
            raise InputError("to_layer is an empty list.", "Give at least one layer, or 'y'.")
        spans: dict[Target, int] = {}
        for to in targets:
            top = n_blocks(self.model) if to == "y" else check_layer(to, self.model, "to_layer")
            if bottom > top or (bottom == top and to != "y"):
                raise InputError(
                    f"from_layer={from_layer} is not below to_layer={to!r}.", "Choose a from_layer below to_layer."
                )
            spans[cast(Target, to)] = top
        return spans

    def by_layer(self, to_layer: Target | Sequence[Target], found: Mapping[Target, xr.DataArray]) -> xr.DataArray:
        """The result for a single `to_layer`, or the results for a list along a leading dimension `to_layer`."""
        if isinstance(to_layer, int | str):
            return restated(found[cast(Target, to_layer)], {})  # it may have got coordinates
        names = xr.Variable("to_layer", [str(to) for to in found])
        together = cast(xr.DataArray, xr.concat(list(found.values()), dim=names, combine_attrs="override"))
        return restated(together, {})

    def label(self, values: Tensor, name: str, long_name: str, units: str, **extra: Any) -> xr.DataArray:
        """A DataArray of values of shape (prompt, position). A single prompt has no dimension `prompt`."""
        dims, coords = self.coords()
        array = values.detach().cpu().numpy()
        values_of = array[0] if len(self.ids) == 1 else array
        found = xr.DataArray(values_of, coords, dims, name, attributes(long_name, units))
        return sealed(found, {**self.facts, **extra})

    def dataset(self, long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable]) -> xr.Dataset:
        """A Dataset of named variables, each given as (dimensions, values, long name, units), with its provenance."""
        plain = {name: (dims, _numpy(values), text, unit) for name, (dims, values, text, unit) in variables.items()}
        return signed(long_name, coords, plain, self.facts)

    def coords(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The dimensions of values per token, and the coordinates that label the tokens."""
        ids = self.ids.cpu().numpy().astype(np.int64)
        return position_coords(ids, display_tokens(self.model, self.ids))


def require_places(positions: Sequence[int], first: int, last: int) -> None:
    """Raise unless there is at least one position, all of them from `first` to `last`."""
    if not positions or not first <= min(positions) <= max(positions) <= last:
        raise InputError(
            f"positions={short_repr(positions)} are not positions from {first} to {last}.",
            f"Give at least one position from {first} to {last}.",
        )


def different(positions: Sequence[int], last: int) -> list[int]:
    """The positions. Raises if there are none, for one that is given twice, and for one that is beyond `last`."""
    require_places(positions, 0, last)
    if len({*positions}) < len(positions):
        raise InputError(f"positions={short_repr(positions)} has a position twice.", "Give different positions.")
    return [*positions]


def require_seen(model: Bridge, what: str) -> None:
    """Raise an error if hooks on the model use objects of which a digest shows only a part, or that may change."""
    run = registry.run_state(model)
    opaque = [
        *(f"a {one}, which is opaque" for one in run.unseen),
        *(f"a {one}, which may change" for one in run.mutable),
    ]
    if opaque:
        raise InputError(
            f"{what} must know all that the hooks on the model do, and they use {opaque[0]}.",
            "Let the function close over numbers, texts, tuples and tensors, or measure without this option.",
        )


def _numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def model_name(model: Bridge) -> str:
    """The model's name: the name of the folder for a local model, however its path was written, else the full name."""
    name = str(model.cfg.model_name)
    folder = Path(name).expanduser()
    return folder.resolve().name if folder.is_dir() or name.startswith(("/", ".", "~")) else name
