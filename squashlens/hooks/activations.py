"""Sources of activations to insert into another forward pass: a prompt, or a cache of `run_with_cache`.

A prompt is run on the model without any hooks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.checks.arguments import converted, is_tokenized
from squashlens.errors import InputError
from squashlens.model.anatomy import dtype_of
from squashlens.model.digests import digest, tensor_digest
from squashlens.model.hooking.standing import without_ambient
from squashlens.model.text.tokens import Prompts, tokenize
from squashlens.run.captured import Capture
from squashlens.run.forward import forward
from squashlens.run.run import Run

# A prompt, or the cache of TransformerLens's `run_with_cache` (tensors by hook point names).
Source = Any
Rows = dict[int, Float[Tensor, "position ..."]]  # of each block


@dataclass(frozen=True)
class Activations:
    """Activations at one hook point of several blocks, by position."""

    name: str  # says what they depend on
    rows: Rows

    @property
    def positions(self) -> int:
        return min(map(len, self.rows.values()))


def rereadable(source: Source) -> Source:
    """`source` in a form that can be read repeatedly: a generator becomes a list. An error if it is no `Source`."""
    if isinstance(source, Capture):
        raise InputError(
            "source= is a capture.",
            "Give its prompt, or the cache of `model.run_with_cache`.",
        )
    if _cache_in(source) is not None:
        return source
    return converted(source, Prompts, "source")


def _cache_in(source: Source) -> Mapping[str, Any] | None:
    """The tensors of a cache by their hook points; None for any other source."""
    # An ActivationCache holds its tensors under this name.
    cache = getattr(source, "cache_dict", source)
    return cache if isinstance(cache, Mapping) and not is_tokenized(cache) else None


def activations(
    model: Bridge, source: Source, site: str, blocks: Sequence[int], name: str
) -> Activations:
    """The activations of one prompt at `site` of each of `blocks`; errors begin with the name of the hook."""
    cache = _cache_in(source)
    if cache is not None:
        is_batched = getattr(source, "has_batch_dim", True)
        rows: Rows = {}
        for block in blocks:
            point = site.replace("{block}", str(block))
            rows[block] = _cached(model, cache, point, name, is_batched)
        # No prompt identifies a cache, so its numbers do.
        digests = [(block, tensor_digest(row)) for block, row in sorted(rows.items())]
        return Activations(f"a cache {digest(digests)}", rows)
    ids = tokenize(model, source)
    _require_one_prompt(len(ids), name)
    return mean_activations(model, ids, site, blocks)


def mean_activations(
    model: Bridge, ids: Int[Tensor, "prompt position"], site: str, blocks: Sequence[int]
) -> Activations:
    """The mean over prompts of the activations without hooks, position by position."""
    sums: Rows = {}

    def adding(block: int) -> Callable[[Tensor], None]:
        """What adds the activations of one prompt to the sum of a block, at least in float32."""

        def add(tensor: Tensor) -> None:
            wide = torch.promote_types(tensor.dtype, torch.float32)
            row = tensor[0].detach().to(wide)
            # A copy: without another dtype the row is memory of the model.
            sums[block] = sums[block] + row if block in sums else row.clone()

        return add

    watch = [(site.replace("{block}", str(block)), adding(block)) for block in blocks]
    run = Run.open(model, "activations")
    with without_ambient(model):
        for prompt in ids.split(1):
            forward(run, prompt, watch)
    dtype = dtype_of(model)
    means = {block: (total / len(ids)).to(dtype) for block, total in sums.items()}
    return Activations(digest(ids.tolist()), means)


def _cached(
    model: Bridge, cache: Mapping[str, Any], point: str, name: str, is_batched: bool
) -> Float[Tensor, "position ..."]:
    """A copy of the activations of one prompt at a hook point, since the user may write to the cache later."""
    # `point` may be an alias, while the cache has the point's own name.
    canonical = getattr(model.hook_dict.get(point), "name", None) or point
    tensor = cache.get(point, cache.get(canonical))
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"{name}: the cache holds no {point!r}.",
            "Run `model.run_with_cache` without names_filter=.",
        )
    if is_batched:
        _require_one_prompt(len(tensor), name)
        tensor = tensor[0]
    return tensor.detach().clone()


def _require_one_prompt(count: int, name: str) -> None:
    if count != 1:
        raise InputError(f"{name}: the source has {count} prompts.", "Give one prompt.")
