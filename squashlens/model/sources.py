"""Where activations that are put into another pass come from: a prompt, a capture, or a cache of `run_with_cache`.

A prompt is run on the plain model, whatever hooks stand. A pass that writes attention patterns and one that does not
differ by rounding, so a prompt is run in both ways and each pass is given what it would have computed itself: a prompt
patched with its own activations stays as it is, to the last bit.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bos, Bridge
from squashlens.arguments import fitted
from squashlens.errors import InputError, StaleCaptureError
from squashlens.model.anatomy import device_of, dtype_of
from squashlens.model.capture import Capture
from squashlens.model.fingerprint import digest
from squashlens.model.forward import forward
from squashlens.model.hooks import without_ambient
from squashlens.model.interventions import STREAMS
from squashlens.model.memory import available
from squashlens.model.registry import fingerprint_of
from squashlens.model.streamed import streaming, why_not, written
from squashlens.model.tokens import Prompts, tokens
from squashlens.model.words import tensor_digest

# A prompt, a capture of one, or what TransformerLens's `run_with_cache` returns: tensors by the names of hook points.
Source = Any
Rows = dict[int, Float[Tensor, "position ..."]]


@dataclass(frozen=True)
class Activations:
    """Activations at one hook point of several blocks, by position: as passes with and without patterns have them."""

    name: str  # of what they depend on
    written: Rows
    streamed: Rows

    def at(self, block: int) -> Float[Tensor, "position ..."]:
        """Those of one block, for the pass that is running now."""
        return (self.streamed if streaming() else self.written)[block]

    @property
    def positions(self) -> int:
        return min(len(rows) for rows in self.written.values())


def kept(source: Source) -> Source:
    """`source`, to be read each time its hooks are hung: a generator as a list. What can be no source is refused."""
    if isinstance(source, Capture) or isinstance(getattr(source, "cache_dict", source), Mapping):
        return source
    return fitted(source, Prompts, "source")


def activations(model: Bridge, source: Source, site: str, blocks: Sequence[int], bos: Bos, who: str) -> Activations:
    """The activations of one prompt at `site` of each of `blocks`; `who` is named where they are refused."""
    if isinstance(source, Capture):
        return _from_capture(model, source, site, blocks, who)
    cache = getattr(source, "cache_dict", source)  # an ActivationCache holds its tensors under this name
    if isinstance(cache, Mapping):
        return _from_cache(model, cache, site, blocks, who)
    ids = tokens(model, source, bos=bos)
    _require_one(len(ids), who)
    return mean_activations(model, ids, site, blocks)


def mean_activations(
    model: Bridge, ids: Int[Tensor, "prompt position"], site: str, blocks: Sequence[int]
) -> Activations:
    """The mean over prompts of the plain model's activations, position by position."""
    sites = [site.replace("{block}", str(b)) for b in blocks]
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model):
        ways = {False: True, True: why_not(model, sites) is None}
        if ways[True] and 4 * int(model.cfg.n_heads) * ids.shape[1] ** 2 * 4 > available(device_of(model)) / 2:
            ways[False] = False  # there is no room for patterns, so no pass will write them
        found = {way: _means(model, ids, sites, blocks, way) for way, possible in ways.items() if possible}
    either = next(iter(found.values()))
    return Activations(digest(ids.tolist()), found.get(False, either), found.get(True, either))


def _means(model: Bridge, ids: Tensor, sites: Sequence[str], blocks: Sequence[int], stream: bool) -> Rows:
    sums: Rows = {}

    def add(block: int) -> Callable[[Tensor], None]:
        def look(tensor: Tensor) -> None:
            row = tensor[0].detach().to(torch.promote_types(tensor.dtype, torch.float32))
            sums[block] = sums[block] + row if block in sums else row.clone()

        return look

    with nullcontext() if stream else written("activations are taken for passes that write patterns"):
        for prompt in ids.split(1):
            forward(model, prompt, [(site, add(block)) for site, block in zip(sites, blocks, strict=True)])
    return {block: (total / len(ids)).to(dtype_of(model)) for block, total in sums.items()}


def _from_capture(model: Bridge, source: Capture, site: str, blocks: Sequence[int], who: str) -> Activations:
    _require_one(len(source.ids), who)
    if (source.fingerprint, source.dtype) != (fingerprint_of(model), str(dtype_of(model))):
        raise StaleCaptureError(
            f"{who}: the capture was taken with other weights, configuration or dtype.", "Capture again on this model."
        )
    if site != STREAMS:
        if source.ambient_hooks:
            raise InputError(
                f"{who}: a capture holds no head outputs, and this one was taken under hooks that its prompt alone "
                "does not have.",
                f"Give the cache of `model.run_with_cache`, which holds {site!r}.",
            )
        return mean_activations(model, source.ids.to(device_of(model)), site, blocks)
    missing = [block for block in blocks if block not in source.residuals]
    if missing:
        raise InputError(
            f"{who}: the capture has no residual stream of layer {missing[0]}.",
            "Capture without layers=, or name in blocks= only layers that it has.",
        )
    rows = {block: source.residuals[block][0].clone() for block in blocks}
    name = digest(source.ids.tolist()) if not source.ambient_hooks else f"a capture {_contents(rows)}"
    return Activations(name, rows, rows)


def _from_cache(model: Bridge, cache: Mapping[str, Any], site: str, blocks: Sequence[int], who: str) -> Activations:
    rows: Rows = {}
    for block in blocks:
        name = site.replace("{block}", str(block))
        tensor = cache.get(name, cache.get(getattr(model.hook_dict.get(name), "name", None) or name))
        shape = (int(model.cfg.d_model),) if site == STREAMS else (int(model.cfg.n_heads), int(model.cfg.d_head))
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"{who}: the cache holds no {name!r}.", "Run `model.run_with_cache` without names_filter=."
            )
        if tensor.ndim == len(shape) + 2:
            _require_one(len(tensor), who)
            tensor = tensor[0]
        if tensor.ndim != len(shape) + 1 or tuple(tensor.shape[1:]) != shape:
            raise InputError(
                f"{who}: {name!r} of the cache has shape {tuple(tensor.shape)}, not (position, "
                f"{', '.join(map(str, shape))}).",
                "Give a cache of this model.",
            )
        rows[block] = tensor.detach().clone()  # the cache is its owner's, who may write into it while the hooks stand
    return Activations(f"a cache {_contents(rows)}", rows, rows)


def _contents(rows: Rows) -> str:
    """A digest of the numbers themselves, where no prompt says what they are."""
    return digest([(block, tensor_digest(row)) for block, row in sorted(rows.items())])


def _require_one(count: int, who: str) -> None:
    if count != 1:
        raise InputError(f"{who}: the source has {count} prompts.", "Give one.")
