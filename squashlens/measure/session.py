"""What all measurements share: their registration, the session that checks and labels, prompts of unequal lengths.

Padding the token ids of a forward pass would shift positions and change sums. Therefore each of several prompts of
unequal lengths is measured by itself, and its numbers are bit-identical to those of a separate call. Only the result is
padded.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bridge, Target, dtype_name, short_repr
from squashlens.bars import bar
from squashlens.engine.anatomy import check_layer, device_of, dtype_of, n_blocks
from squashlens.engine.capturing.capture import Capture, PromptOrCapture
from squashlens.engine.capturing.pairs import refusing_capture_keywords
from squashlens.engine.digests import sha256, source_of
from squashlens.engine.hooking.standing import ambient, standing
from squashlens.engine.loading.gguf import ORIGIN
from squashlens.engine.loading.quantized import stored_as
from squashlens.engine.reader import precision
from squashlens.engine.running.forward import forward
from squashlens.engine.running.streamed import implementation
from squashlens.engine.state import fingerprint_of, measured, proved
from squashlens.engine.text import tokens
from squashlens.engine.text.start import start_of
from squashlens.engine.verify import require_sound, status
from squashlens.errors import InputError, SquashlensError
from squashlens.records.joining import joined, padded, restated
from squashlens.records.results import Variable, attributes, position_coords, provenance, sealed, signed, versions
from squashlens.saving.journal import Journal

T = TypeVar("T")
P = ParamSpec("P")


def measurement(*figures: str, captured: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator for a public function that runs a model.

    `figures` are the names of functions of `squashlens.figures` that draw its result, the usual one first; `captured`
    says whether it measures a capture of a sequence, beside which it then refuses the keywords of `capture`. The
    function has both as `__measures__`.
    """

    def register(function: Callable[P, T]) -> Callable[P, T]:
        measure = measured(refusing_capture_keywords(function) if captured else function)
        setattr(measure, "__measures__", (figures, captured))  # noqa: B010
        return measure

    return register


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
    def start(cls, model: object, prompts: PromptOrCapture, function: str, **arguments: Any) -> "Session":
        """The session of a measurement of prompts, which are recorded as they were given: text or token ids."""
        given = tokens.each_of(prompts.ids if isinstance(prompts, Capture) else prompts)
        recorded = given[0] if len(given) == 1 else given
        if not isinstance(prompts, Capture):  # whose prompts were checked before they were run
            prompts = tokens.tokenize(require_sound(model), prompts)
        session = cls.without_prompt(model, prompts, function, prompt=recorded, **arguments)
        ids = session.ids.tolist()
        return session.knowing(token_ids=ids[0] if len(ids) == 1 else ids)

    @classmethod
    def without_prompt(cls, model: object, ids: Tensor | Capture, function: str, **arguments: Any) -> "Session":
        """Check the model, and collect the facts for the provenance of the result.

        For ids that were checked as prompts, or made of a sequence or a task, which a measurement records instead.
        """
        sound = require_sound(model)
        held = ids if isinstance(ids, Capture) else None
        ids = ids.ids if isinstance(ids, Capture) else ids
        ids = tokens.checked_ids(sound, ids if ids.ndim == 2 else ids[None])
        config = getattr(sound.original_model, "config", None)
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
            "quantized": proved(sound, "stored as", lambda: stored_as(sound)),
            "weights_origin": getattr(config, ORIGIN, None),
            "device": str(device_of(sound)),
            "attention_implementation": implementation(sound),
            "bos_count": tokens.count_bos(sound, ids),
            "bos_rule": start_of(sound).rule,
            "ambient_hooks": ambient(sound),
            "versions": versions(),
        }
        if held is not None:
            held.require_current(sound)
        return cls(sound, ids, facts, held)

    def journal(self, path: str | Path | None, facts: Mapping[str, Any]) -> Journal:
        """The file from which an interrupted measurement resumes: only under hooks of the same names and source."""
        hooks = {"hook_functions": sources_of_hooks(self.model), "tokenizer": tokens.tokenizer_digest(self.model)}
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
        """Different positions in ascending order, of which negative ones count from the end. Raises as `query` does."""
        found = sorted(self.query(one, argument) for one in given)
        if not found or len({*found}) < len(found):
            raise InputError(
                f"{argument}={short_repr(given)} has no position, or one twice.", "Give different positions."
            )
        return found

    def require_one(self, tokens: int = 1) -> None:
        """Raise unless there is a single prompt, of at least this number of tokens."""
        name, count = self.facts["call"]["function"], len(self.ids)
        if count != 1:
            raise InputError(f"{name} takes a single prompt, and there are {count}.", f"Call {name} for each prompt.")
        if self.positions < tokens:
            raise InputError(
                f"{name} needs a prompt of at least {tokens} tokens, and this one has {self.positions}.",
                "Give a longer prompt.",
            )

    def knowing(self, **facts: Any) -> "Session":
        """The session with further facts for the provenance."""
        return replace(self, facts={**self.facts, **facts})

    def spans(self, from_layer: int, to_layer: Target | Sequence[Target]) -> dict[Target, int]:
        """The layer number of each `to_layer`, with L for y. Raises unless `from_layer` is below each of them."""
        bottom = check_layer(from_layer, self.model, "from_layer")
        targets = to_layer if isinstance(to_layer, Sequence) and not isinstance(to_layer, str) else [to_layer]
        if not targets or len({*targets}) < len(targets):
            what = "has a layer twice" if targets else "is an empty list"
            raise InputError(f"to_layer {what}.", "Give at least one layer or 'y', each once.")
        spans: dict[Target, int] = {}
        for to in targets:
            top = n_blocks(self.model) if to == "y" else check_layer(to, self.model, "to_layer")
            if bottom > top or (bottom == top and to != "y"):
                raise InputError(
                    f"from_layer={bottom} is not below to_layer={to!r}.", "Choose a from_layer below to_layer."
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
        return self.array(name, coords, (dims, values[0] if len(self.ids) == 1 else values, long_name, units), **extra)

    def array(self, name: str, coords: Mapping[str, Any], variable: Variable, **extra: Any) -> xr.DataArray:
        """A DataArray of one variable, given as (dimensions, values, long name, units), with its provenance."""
        dims, values, text, units = variable
        found = xr.DataArray(_numpy(values), coords, dims, name, attributes(text, units))
        return sealed(found, {**self.facts, **extra})

    def dataset(self, long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable]) -> xr.Dataset:
        """A Dataset of named variables, each given as (dimensions, values, long name, units), with its provenance."""
        plain = {name: (dims, _numpy(values), text, unit) for name, (dims, values, text, unit) in variables.items()}
        return signed(long_name, coords, plain, self.facts)

    def coords(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The dimensions of values per token, and the coordinates that label the tokens; or those of spans."""
        if self.labels is not None:
            return ("position",), dict(self.labels)
        ids = self.ids.cpu().numpy().astype(np.int64)
        return position_coords(ids, tokens.display_tokens(self.model, self.ids))


def require_places(positions: Sequence[int], first: int, last: int, *, different: bool = False) -> None:
    """Raise unless there is at least one position, all of them from `first` to `last`, and `different` if asked for."""
    if not positions or not first <= min(positions) <= max(positions) <= last:
        raise InputError(
            f"positions={short_repr(positions)} are not positions from {first} to {last}.",
            f"Give at least one position from {first} to {last}.",
        )
    if different and len({*positions}) < len(positions):
        raise InputError(f"positions={short_repr(positions)} has a position twice.", "Give different positions.")


def streams_at(
    model: Bridge, ids: Int[Tensor, "prompt position"], sites: Iterable[str], context: Mapping[str, Any] | None = None,
    at: Any = slice(None),
) -> dict[str, Tensor]:  # fmt: skip
    """The activations at some hook points, and positions, in one forward pass, detached."""
    seen: dict[str, Tensor] = {}

    def keep(site: str) -> Callable[[Tensor], None]:
        return lambda tensor: seen.update({site: tensor[:, at].detach().clone()})

    with torch.inference_mode(False), torch.no_grad():
        forward(model, ids, [(site, keep(site)) for site in sites], context)
    return seen


def sources_of_hooks(model: Bridge) -> str:
    """A digest of the source of the users' functions on the model, with what they close over; empty without any."""
    sources = [source_of(hook.edit) for hook in standing(model) if hook.is_a_users]
    return sha256("\n".join(sources))[:16] if sources else ""


def _numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def model_name(model: Bridge) -> str:
    """The model's name: the name of the folder for a local model, however its path was written, else the full name."""
    name = str(model.cfg.model_name)
    folder = Path(name).expanduser()
    return folder.resolve().name if folder.is_dir() or name.startswith(("/", ".", "~")) else name


R = TypeVar("R", xr.DataArray, xr.Dataset)
ALONE = "each prompt was measured by itself"
NOTE = f"{ALONE}; after its own tokens, values are NaN, token is '' and token_id is -1"


def one_by_one(*, always: bool = False, independent: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that lets a measurement, whose second parameter is the prompts, take prompts of unequal lengths.

    Prompts of equal length are passed to the measurement together, unless `always` is true. So does a scan of a study,
    if the numbers of each prompt are `independent` of the others in the call.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        second = list(signature.parameters)[1]

        @functools.wraps(function)
        def measure(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # raises Python's own error about the arguments
            bound.apply_defaults()
            given, arguments = bound.arguments[second], bound.arguments
            if isinstance(given, Capture | str) or _single(given):
                return function(*args, **kwargs)
            model = require_sound(arguments["model"])
            if arguments.get("spans") is not None:
                raise InputError(
                    "spans= is for a single prompt, and this call has several.",
                    "Measure prompts one by one: each has spans of its own.",
                )
            lengths = [len(row) for row in tokens.rows_of(model, given)]
            if len(set(lengths)) == 1 and not (always and len(lengths) > 1):
                return function(*args, **kwargs)
            rest = {name: value for name, value in arguments.items() if name not in ("model", second)}
            measured: list[R] = []
            prompts = bar(tokens.each_of(given), desc="prompts")
            for number, prompt in enumerate(prompts):
                try:
                    measured.append(cast(Any, function)(model, prompt, **rest))
                except SquashlensError as error:
                    error.args = (f"Prompt {number}: {error}",)
                    raise
                call = provenance(measured[0])["call"]  # all prompts have the seed that the first one drew
                rest |= {name: call[name] for name in ("seed", "method") if name in rest and name in call}
            return side_by_side(measured, lengths)

        measure.takes_several = independent and not always  # pyright: ignore[reportAttributeAccessIssue]; read by scans
        return measure

    return decorate


def _single(given: Any) -> bool:
    """Whether `given` is a single prompt, or something that `each_of` does not accept. The measurement handles both."""
    try:
        return len(tokens.each_of(given)) <= 1
    except SquashlensError:
        return True


def side_by_side(measured: list[R], lengths: list[int]) -> R:
    """The results of single prompts along a new dimension `prompt`, padded to the longest, and their `n_tokens`."""
    sizes = [one.sizes["position"] for one in measured if "position" in one.dims]
    longest = {"position": np.arange(max(sizes))} if sizes else {}
    found: Any = joined({number: padded(one, longest) for number, one in enumerate(measured)}, "prompt")
    order = [name for name in ("to_layer", "prompt") if name in found.dims]
    found = found.transpose(*order, ...).assign_coords(n_tokens=("prompt", lengths))
    return restated(found, {"unequal_lengths": NOTE if sizes else ALONE} if len(set(lengths)) > 1 else {})
