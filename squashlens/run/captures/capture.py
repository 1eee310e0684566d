"""Run a model once and keep its activations, for one prompt or for a growing sequence with all its pairs.

Residual streams and attention patterns go to CPU memory during the pass, block by block. Their size is estimated first,
and an error is raised if they do not fit.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Baselines, Bridge, Passes, Target, Tensors, several
from squashlens.bars import write
from squashlens.errors import InputError
from squashlens.model.anatomy import (
    check_layer,
    device_of,
    dtype_of,
    n_blocks,
    pattern_site,
    residual_site,
    width,
)
from squashlens.model.memory import human, require_room
from squashlens.model.proof import public
from squashlens.model.text.context import display_tokens
from squashlens.model.text.tokens import Prompts, each_of, tokenize
from squashlens.model.verify import require_sound
from squashlens.records.results import MODEL_UNITS, signed
from squashlens.run.captures.base import CaptureBase, model_state
from squashlens.run.captures.pairs import PairCapture, Pairs, capture_pairs
from squashlens.run.forward import forward
from squashlens.sequences import GrowingSequence

Kept = TypeAliasType("Kept", Tensors | Collection[Tensors])
REPORT_ABOVE = 256e6  # bytes: the size of a larger capture is printed before it starts


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture(CaptureBase):
    """The activations of one forward pass, and the state of the model during it; `capture` makes one.

    The tensors are detached and not rounded.

    Attributes:
        ids: token ids (prompt, position).
        labels: the tokens as text, for each prompt.
        residuals: residual streams by layer: ``residuals[ℓ]`` is v⁽ℓ⁾ (prompt, position, d) for ℓ = 0…L, in the model's
            own units.
        patterns: attention patterns by block: ``patterns[b]`` is (prompt, head, query, key), with rows that sum to 1,
            or to less in a block with a learned sink.
        y: the last residual stream after the final norm, (prompt, position, d); None without residuals.
        prompts: the prompts as they were given, texts or token ids.
        norms: what was measured of the capture by vector–Jacobian products, so that another function can use it again.
        fingerprint, ambient_hooks, dtype: the state of the model during the pass.
    """

    labels: list[list[str]] = field(repr=False)
    residuals: Mapping[int, Float[Tensor, "prompt position d"]] = field(repr=False)
    patterns: Mapping[int, Float[Tensor, "prompt head query key"]] = field(repr=False)
    y: Float[Tensor, "prompt position d"] | None = field(repr=False)
    prompts: list[str] | list[list[int]] = field(repr=False)
    norms: dict[tuple[Any, ...], Tensor] = field(
        default_factory=dict, repr=False, init=False
    )

    def contents(self) -> tuple[str, Iterable[Tensor]]:
        words = f"{self.labels} {[*self.residuals]} {[*self.patterns]}"
        kept = [self.ids, *self.residuals.values(), *self.patterns.values()]
        return words, kept if self.y is None else [*kept, self.y]

    def is_given_by(self, model: Bridge) -> bool:
        same: list[bool] = []
        kept = {
            "residual": self.residuals,
            "pattern": self.patterns,
            "y": {} if self.y is None else {0: self.y},
        }
        streams: Sequence[Target] = (
            [*self.residuals] if self.y is None else [*self.residuals, "y"]
        )

        def look(kind: str, number: int) -> Callable[[Tensor], None]:
            return lambda tensor: same.append(
                torch.equal(tensor.cpu(), kept[kind][number])
            )

        _read(model, self.ids.to(device_of(model)), streams, [*self.patterns], look)
        return all(same)

    def to_xarray(self) -> xr.Dataset:
        """The capture as a Dataset with residual (layer, …), y and pattern (block, …), in float32 or float64."""
        data: dict[str, Any] = {}
        if self.residuals and self.y is not None:
            streams = torch.stack(
                [self.residuals[layer] for layer in sorted(self.residuals)]
            )
            dims = ("prompt", "position", "coordinate")
            data["residual"] = (
                ("layer", *dims),
                _numpy(streams),
                "residual stream",
                MODEL_UNITS,
            )
            data["y"] = (
                dims,
                _numpy(self.y),
                "last residual stream after the final norm",
                MODEL_UNITS,
            )
        if self.patterns:
            stacked = torch.stack(
                [self.patterns[block] for block in sorted(self.patterns)]
            )
            dims = ("block", "prompt", "head", "query", "key")
            data["pattern"] = (dims, _numpy(stacked), "attention pattern", "1")
        coords: dict[str, Any] = {
            "token": (("prompt", "position"), np.array(self.labels, dtype=object)),
            "token_id": (("prompt", "position"), self.ids.numpy()),
        }
        if self.residuals:
            coords["layer"] = ("layer", np.array(sorted(self.residuals)))
        if self.patterns:
            coords["block"] = ("block", np.array(sorted(self.patterns)))
        facts = {
            "fingerprint": self.fingerprint,
            "ambient_hooks": self.ambient_hooks,
            "dtype": self.dtype,
        }
        return signed("activations of one forward pass", coords, data, facts)


PromptOrCapture = TypeAliasType(
    "PromptOrCapture", Prompts | Capture
)  # what most measurements take


def _numpy(tensor: Tensor) -> np.ndarray:
    """The tensor as a NumPy array; half precision becomes float32, since NumPy has no bfloat16."""
    return (tensor.float() if tensor.dtype.itemsize < 4 else tensor).cpu().numpy()


@overload
def capture(
    model: Bridge,
    prompt: GrowingSequence,
    *,
    keep: Kept = ...,
    lengths: Iterable[int] | None = ...,
    baselines: Baselines = ...,
    n_samples: int = ...,
    noise_lengths: int = ...,
    passes: Passes = ...,
    seed: int = ...,
) -> PairCapture: ...
@overload
def capture(
    model: Bridge,
    prompt: Prompts,
    *,
    keep: Kept = ...,
    layers: Iterable[int] | None = ...,
) -> Capture: ...
@public
def capture(
    model: Bridge,
    prompt: Prompts | GrowingSequence,
    *,
    keep: Kept = ("residuals", "patterns"),
    layers: Iterable[int] | None = None,
    lengths: Iterable[int] | None = None,
    baselines: Baselines = (),
    n_samples: int = 3,
    noise_lengths: int = 4,
    passes: Passes = "auto",
    seed: int = 0,
) -> Capture | PairCapture:
    """Run the model once and keep activations, so that later measurements need no forward pass.

    For a **prompt** it keeps residual streams v⁽ℓ⁾, y and attention patterns at every position. For a growing
    **sequence** from `squashlens.prompts` it keeps the residual streams of v and v* at their last token, at every
    length, with as few passes as possible.

    Measurements accept a capture in place of the prompt or sequence: ``sl.path_bound(model, capture)``,
    ``sl.collapse(model, capture, norm="l2")``. They raise an error if the capture was edited or the model has changed.
    Under other hooks, or after the model was changed and changed back, they run the passes again to compare.
    Measurements that must run the sequence again, such as `compare`, use only its sequence and its lengths.

    Norms of the Jacobian are kept with the capture: a `sensitivity` after a `squash_map` with as many probes takes half
    of its products.

    Args:
        prompt: a prompt, several prompts of equal length, or a growing sequence.
        keep: what is kept, both by default: ``"residuals"``, the residual streams and y, and ``"patterns"``, for a
            prompt the attention patterns of each block. For a sequence, these are the last token's row of each pattern,
            the output of each head, and what attention and MLP add to the residual stream; `collapse_mechanism` and
            ``collapse(by_head="value")`` need them. Residual streams of a sequence are always kept.
        layers: layers to keep, from 0 to L; all by default. Layer ℓ is v⁽ℓ⁾ and, for ℓ < L, the pattern of block ℓ.
            Prompts only.
        lengths: numbers of content tokens; all by default. Sequences only, like all options that follow.
        baselines: also run the pairs that D is compared with: ``"contrast"`` has another last token; ``"unrelated"``
            has sequences with other content.
        n_samples: number of unrelated sequences, with ``baselines="unrelated"``; 3 by default.
        noise_lengths: number of lengths, evenly spaced, at which v and v* are run again by other passes; 4 by default.
            The noise floor follows from the differences. Each prompt has its own pass; if that is how it was run
            before, two copies of it are run side by side.
        passes: ``"auto"`` (the default) shares passes where shared and separate passes agree. ``"separate"`` runs every
            prompt by itself, as ``"auto"`` does under hooks that edit, and where the position encoding depends on the
            length of the pass ("longrope", "dynamic"). ``"shared"`` raises an error in these cases. The provenance says
            which way was used, and why.
        seed: random seed of the unrelated sequences; 0 by default.

    Returns:
        A `Capture` for a prompt, a `PairCapture` for a sequence.

    Raises:
        InputError: an unknown layer or length, or an option for the other kind of capture.
        CapacityError: the activations do not fit; the message has their size.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> run = sl.capture(model, "How many ones are in the following sequence? 110 =", layers=[0, 6])
    >>> run.residuals[6].shape, sorted(run.patterns)
    (torch.Size([1, 14, 128]), [0])
    >>> pairs = sl.capture(model, sl.prompts.repeated(model, "1", 12), lengths=[4, 12])
    >>> pairs.v.values.shape   # layers 0 to 6 and y, lengths, coordinates
    torch.Size([8, 2, 128])
    >>> sl.collapse(model, pairs)["distance"].dims
    ('layer', 'length')
    """
    pairs = Pairs(
        lengths=lengths,
        baselines=baselines,
        n_samples=n_samples,
        noise_lengths=noise_lengths,
        passes=passes,
        seed=seed,
    )
    kept: set[Tensors] = set(several(keep))
    if isinstance(prompt, GrowingSequence):
        _require_options_of({"layers": layers}, "a prompt", "a sequence")
        if "residuals" not in kept:
            raise InputError(
                f"keep={keep!r} leaves out the residual streams, which every capture of a sequence keeps.",
                "Add 'residuals'.",
            )
        return capture_pairs(model, prompt, pairs, patterns="patterns" in kept)
    _require_options_of(vars(pairs), "a sequence", "a prompt")
    if not kept:
        raise InputError("keep= is empty.", "Name 'residuals', 'patterns' or both.")
    layers = None if layers is None else list(layers)
    if layers == []:
        raise InputError(
            "layers= is empty.", "Give at least one layer, or leave it out for all."
        )
    return _of_prompt(model, prompt, kept, layers)


def _require_options_of(options: Mapping[str, Any], belongs: str, given: str) -> None:
    """Raise an error for an option that applies only to the other kind of capture."""
    usual = {
        name: parameter.default
        for name, parameter in inspect.signature(capture).parameters.items()
    }
    for name, value in options.items():
        if value is not usual[name] and value != usual[name]:
            raise InputError(
                f"{name}= applies only to the capture of {belongs}, and {given} was given.",
                "Leave it out.",
            )


def _of_prompt(
    model: Bridge,
    prompts: Prompts,
    kinds: Collection[Tensors],
    layers: Iterable[int] | None,
) -> Capture:
    model = require_sound(model)
    ids = tokenize(model, prompts)
    top = n_blocks(model)
    chosen = (
        range(top + 1)
        if layers is None
        else [check_layer(layer, model, "layers") for layer in layers]
    )
    blocks = [layer for layer in chosen if layer < top] if "patterns" in kinds else []
    streams: list[Target] = [*chosen, "y"] if "residuals" in kinds else []
    size = estimate(model, ids.shape, n_streams=len(streams), n_patterns=len(blocks))
    require_room(
        size,
        torch.device("cpu"),
        "This capture",
        "Use fewer layers=, or keep='residuals'.",
    )
    if size > REPORT_ABOVE:
        write(f"capture: storing {human(size)} in CPU memory")
    kept: dict[str, dict[int, Tensor]] = {"residual": {}, "pattern": {}, "y": {}}

    def keep(kind: str, number: int) -> Callable[[Tensor], None]:
        return lambda tensor: kept[kind].__setitem__(number, tensor.detach().cpu())

    _read(model, ids, streams, blocks, keep)
    return Capture(
        ids=ids.cpu(),
        labels=display_tokens(model, ids),
        residuals=kept["residual"],
        patterns=kept["pattern"],
        y=kept["y"].get(0),
        prompts=each_of(prompts),
        **model_state(model),
    ).signed(model)


def _read(
    model: Bridge,
    ids: Tensor,
    streams: Iterable[Target],
    blocks: Iterable[int],
    look: Callable[[str, int], Callable[[Tensor], None]],
) -> None:
    """One pass, in which `look(kind, number)` gets each tensor."""
    watch = [
        (
            residual_site(layer, model),
            look("y", 0) if layer == "y" else look("residual", layer),
        )
        for layer in streams
    ]
    watch += [(pattern_site(block), look("pattern", block)) for block in blocks]
    forward(model, ids, watch)


def estimate(
    model: Bridge, shape: tuple[int, ...], *, n_streams: int, n_patterns: int
) -> int:
    """The size in bytes of a capture of this shape."""
    prompts, positions = shape
    each_stream = prompts * positions * width(model)
    each_pattern = prompts * int(model.cfg.n_heads) * positions**2
    return (n_streams * each_stream + n_patterns * each_pattern) * dtype_of(
        model
    ).itemsize
