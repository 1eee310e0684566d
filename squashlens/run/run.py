"""The one owner of a model during a public call, which also labels the result."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bridge, Target, distinct, dtype_name
from squashlens.errors import InputError
from squashlens.model.anatomy import (
    check_layer,
    device_of,
    dtype_of,
    quantization,
    residual_site,
    residual_sites,
    width,
)
from squashlens.model.applied import applied
from squashlens.model.digests import sha256, source_of
from squashlens.model.hooking.hook import HookLike
from squashlens.model.hooking.standing import ambient, standing
from squashlens.model.loading.gguf import ORIGIN
from squashlens.model.memory import awaited
from squashlens.model.proof import Proof, fingerprint_of, proof_of
from squashlens.model.text import tokens
from squashlens.model.text.context import display_tokens
from squashlens.model.text.start import start_of
from squashlens.model.verify import require_sound
from squashlens.records.labels import Variable, array_of, dataset_of, position_coords
from squashlens.records.provenance import versions
from squashlens.run.captured import Capture, PromptOrCapture
from squashlens.run.streamed import implementation
from squashlens.saving.journal import Journal

NOT_YET = torch.empty(0, 0, dtype=torch.long)  # ids of a run without prompts


@dataclass(frozen=True)
class Run:
    """The owner of a model during a public call: what was verified, the prompts, and the facts of the provenance.

    A measurement opens one, and passes it on: below a measurement nothing takes a model. Passes, derivatives and
    captures are functions of a run.

    Attributes:
        model: the verified bridge, for the modules of `squashlens.run` and `squashlens.model`.
        facts: what the result's provenance states.
        ids: the checked token ids of the prompts, (prompt, position); empty for a run without prompts.
        capture: the capture that stands for the prompts, if one was given.
        labels: coordinates by position for results that have a value for each span of a prompt, not each token.
    """

    model: Bridge
    facts: Mapping[str, Any]
    ids: Int[Tensor, "prompt position"] = NOT_YET
    capture: Capture | None = None
    labels: Mapping[str, Any] | None = None

    @classmethod
    def open(cls, model: object, function: str, **arguments: Any) -> "Run":
        """The run of a function without prompts, or whose prompts come later (`with_prompts`)."""
        sound = require_sound(model)
        config = getattr(sound.original_model, "config", None)
        proof = proof_of(sound)
        facts = {
            "model": model_name(sound),
            "call": {"function": function} | arguments,
            "revision": getattr(config, "_commit_hash", None),
            "architecture": type(sound.original_model).__name__,
            "fingerprint": fingerprint_of(sound),
            "proof": proof.status,
            "dtype": dtype_name(dtype_of(sound)),
            # Any setting below "highest" rounds the factors of float32 products.
            "matmul_precision": proof.snapshot.precision,
            "quantized": proof.once("quantization", lambda: quantization(sound)),
            "weights_origin": getattr(config, ORIGIN, None),
            "device": str(device_of(sound)),
            "attention_implementation": None,
            "bos_count": 0,
            "bos_rule": start_of(sound).rule,
            "ambient_hooks": ambient(sound),
            "versions": versions(),
        }
        return cls(sound, facts)

    @classmethod
    def of(
        cls, model: object, prompts: PromptOrCapture, function: str, **arguments: Any
    ) -> "Run":
        """The run of a measurement of prompts, which are recorded as they were given: text or token ids."""
        return cls.open(model, function).given(prompts, **arguments)

    def given(self, prompts: PromptOrCapture, **arguments: Any) -> "Run":
        """The run with the prompts that a call was given, and its other arguments; see `of`."""
        capture = None
        if isinstance(prompts, Capture):  # whose prompts were checked before
            prompts.require_current(self.model)
            capture = prompts
            ids = prompts.ids
            texts = prompts.prompts
        else:
            ids = tokens.tokenize(self.model, prompts)
            texts = tokens.each_of(prompts)
        run = self.with_prompts(ids, prompt=_one_or_all(texts), **arguments)
        run = run.knowing(token_ids=_one_or_all(run.ids.tolist()))
        return replace(run, capture=capture)

    def with_prompts(
        self, ids: Int[Tensor, "*prompt position"], **arguments: Any
    ) -> "Run":
        """The run with other prompts, whose ids were checked, or made of a sequence or a task.

        `arguments` are further ones of the call, for the provenance.
        """
        ids = tokens.checked_ids(self.model, ids if ids.ndim == 2 else ids[None])
        # The number of leading tokens of the first prompt that the tokenizer adds, such as BOS.
        start = start_of(self.model)
        bos_count = 0
        for token in ids[0].tolist():
            if token not in start.ids and token != start.bos:
                break
            bos_count += 1
        stated = {
            "call": self.facts["call"] | arguments,
            "bos_count": bos_count,
        }
        return replace(self, ids=ids, facts={**self.facts, **stated}, capture=None)

    def of_model(self, other: Bridge) -> "Run":
        """A run of another model of this architecture, such as one with random weights, on the same prompts."""
        return Run(require_sound(other), self.facts, self.ids)

    @property
    def function(self) -> str:
        """The name of the function that was called."""
        return self.facts["call"]["function"]

    @property
    def proof(self) -> Proof:
        """What was found of the model."""
        return proof_of(self.model)

    @property
    def n_blocks(self) -> int:
        """L, the number of blocks."""
        return len(self.model.blocks)

    @property
    def width(self) -> int:
        """d, the number of coordinates of the residual stream."""
        return width(self.model)

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.model)

    @property
    def architecture(self) -> str:
        """The name of the model's class, for messages."""
        return type(self.model.original_model).__name__

    def site(self, layer: Target) -> str:
        """The hook point where v⁽ℓ⁾ or y is read or replaced."""
        return residual_site(layer, self.model)

    def sites(self) -> list[str]:
        """The hook points of v⁽⁰⁾ … v⁽ᴸ⁾ and y."""
        return residual_sites(self.model)

    def tokens_of(self, ids: Int[Tensor, "prompt position"]) -> list[list[str]]:
        """The texts of tokens, each in its prompt."""
        return display_tokens(self.model, ids)

    def hooks(self) -> list[str]:
        """The names of the hooks that are on the model now."""
        return ambient(self.model)

    def applied(self, *hooks: HookLike) -> AbstractContextManager[Bridge]:
        """`squashlens.applied` for this model."""
        return applied(self.model, *hooks)

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
        given = list(given)
        positions = sorted(self.query(position, argument) for position in given)
        return distinct(positions, argument, given)

    def require_one(self, tokens: int = 1) -> None:
        """Raise unless there is a single prompt, of at least this number of tokens."""
        name = self.function
        count = len(self.ids)
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

    def knowing(self, **facts: Any) -> "Run":
        """The run with further facts for the provenance."""
        return replace(self, facts={**self.facts, **facts})

    def spans(
        self, from_layer: int, to_layer: Target | Sequence[int]
    ) -> dict[Target, int]:
        """The layer number of each `to_layer`, with L for y. Raises unless `from_layer` is below each of them."""
        bottom = check_layer(from_layer, self.model, "from_layer")
        targets: Any = to_layer
        if isinstance(to_layer, int | str):
            targets = [to_layer]
        spans: dict[Target, int] = {}
        for to in distinct(targets, "to_layer"):
            top = self.n_blocks
            lowest = bottom  # from v⁽ᴸ⁾ to y there is the final norm
            if to != "y":
                top = check_layer(to, self.model, "to_layer")
                lowest = bottom + 1
            if top < lowest:
                raise InputError(
                    f"from_layer={bottom} is not below to_layer={to!r}.",
                    "Choose a from_layer below to_layer.",
                )
            spans[to] = top
        return spans

    def by_layer(
        self, to_layer: Target | Sequence[int], results: Mapping[Target, xr.DataArray]
    ) -> xr.DataArray:
        """The result for a single `to_layer`, or the results for a list along a leading dimension `to_layer`."""
        if isinstance(to_layer, int | str):
            return results[cast(Target, to_layer)]
        names = xr.Variable("to_layer", list(results))
        together = xr.concat(
            list(results.values()), dim=names, coords="different", compat="equals"
        )
        return cast(xr.DataArray, together)

    def as_run(self) -> Mapping[str, Any]:
        """The facts, and how attention ran; only now, since a fused kernel may fail when it is used."""
        with awaited():  # no result is made of passes that ended in NaN
            facts = dict(self.facts)
        if facts["attention_implementation"] is None and self.positions:
            facts["attention_implementation"] = implementation(
                self.model, n=self.positions
            )
        return facts

    def label(
        self, values: Tensor, name: str, long_name: str, units: str, **extra: Any
    ) -> xr.DataArray:
        """A DataArray of values of shape (prompt, position). A single prompt has no dimension `prompt`."""
        _, coords = self.coords()
        return self.array(
            name, coords, self.by_token(values, long_name, units), **extra
        )

    def by_token(self, values: Tensor, long_name: str, units: str) -> Variable:
        """Values of shape (prompt, position) as a variable, which may become a coordinate of a result."""
        dims, _ = self.coords()
        row = values[0] if len(self.ids) == 1 else values
        return dims, _numpy(row), long_name, units

    def array(
        self, name: str, coords: Mapping[str, Any], variable: Variable, **extra: Any
    ) -> xr.DataArray:
        """A DataArray of one variable, given as (dimensions, values, long name, units), with its provenance."""
        dims, values, text, units = variable
        in_numpy = (dims, _numpy(values), text, units)
        return array_of(name, coords, in_numpy, {**self.as_run(), **extra})

    def dataset(
        self,
        long_name: str,
        coords: Mapping[str, Any],
        variables: Mapping[str, Variable],
    ) -> xr.Dataset:
        """A Dataset of named variables, each given as (dimensions, values, long name, units), with its provenance."""
        in_numpy: dict[str, Variable] = {}
        for name, (dims, values, text, unit) in variables.items():
            in_numpy[name] = (dims, _numpy(values), text, unit)
        return dataset_of(long_name, coords, in_numpy, self.as_run())

    def coords(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The dimensions of a value for each token, and the coordinates that label the tokens.

        Of a run with `labels`, those of a value for each span.
        """
        if self.labels is not None:
            return ("position",), dict(self.labels)
        ids = self.ids.cpu().numpy().astype(np.int64)
        return position_coords(ids, display_tokens(self.model, self.ids))


def sources_of_hooks(model: Bridge) -> str:
    """A digest of the source of the users' functions on the model, with what they close over; empty without any."""
    sources: list[str] = []
    for hook in standing(model):
        if hook.is_a_users:
            sources.append(source_of(hook.edit))
    return sha256("\n".join(sources))[:16] if sources else ""


def _numpy(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def model_name(model: Bridge) -> str:
    """The model's name: the name of the folder for a local model, however its path was written, else the full name."""
    name = str(model.cfg.model_name)
    folder = Path(name).expanduser()
    is_local = folder.is_dir() or name.startswith(("/", ".", "~"))
    return folder.resolve().name if is_local else name


def _one_or_all(rows: list[Any]) -> Any:
    """A single prompt by itself, or all of them."""
    return rows[0] if len(rows) == 1 else rows
