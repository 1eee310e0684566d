"""Cut one forward pass into spans of blocks that can be differentiated separately."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Target
from squashlens.errors import UnsoundModelError
from squashlens.model.agreement import is_finite
from squashlens.model.hooking.hook import Hook, Recipe, split_frozen_attention
from squashlens.model.hooking.standing import require_no_backward_hooks
from squashlens.model.memory import raise_later
from squashlens.run.forward import forward
from squashlens.run.run import Run

Watch = tuple[str, Callable[[Tensor], Tensor | None]]


@dataclass(frozen=True)
class Span:
    """A stretch of blocks: the stream that it starts from, and what it leads to, by layer.

    That is the stream at its upper end, and "y" too if that is v⁽ᴸ⁾.
    """

    leaf: Float[Tensor, "prompt position d"]
    outputs: dict[Target, Float[Tensor, "prompt position d"]]


def leaf_of(tensor: Tensor) -> Tensor:
    """A copy of a tensor as a new leaf, where the graph starts."""
    return tensor.detach().clone().requires_grad_()


def open_spans(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    hooks: Sequence[Hook | Recipe],
    bottoms: Sequence[int],
    top: int,
    also: Iterable[Watch] = (),
    within: AbstractContextManager[Any] | None = None,
) -> dict[int, Span]:
    """Run one forward pass with `hooks`, cut into spans that start at the layers `bottoms`, the last one up to `top`.

    It gives each span by its lowest layer. `also` has further hook points with functions, and `within` is a context for
    the pass.
    """
    require_no_backward_hooks(run.model)
    spans: dict[int, Span] = {}

    def plant(bottom: int, stream: Tensor) -> Tensor:
        spans[bottom] = Span(leaf_of(stream), {})
        return spans[bottom].leaf

    def read(bottom: int, to: Target, stream: Tensor) -> None:
        spans[bottom].outputs[to] = stream

    watch: list[Watch] = [(run.site(bottoms[0]), partial(plant, bottoms[0]))]
    for below, above in pairwise(bottoms):
        # What a span leads to is read before the next leaf takes its place.
        watch.append((run.site(above), partial(read, below, above)))
        watch.append((run.site(above), partial(plant, above)))
    watch.append((run.site(top), partial(read, bottoms[-1], top)))
    if top == run.n_blocks:
        watch.append((run.site("y"), partial(read, bottoms[-1], "y")))
    frozen, others = split_frozen_attention(hooks)
    with torch.enable_grad(), run.applied(*others), within or nullcontext():
        forward(run, ids.clone(), watch + list(also), frozen=frozen)
    return spans


def vjps(
    run: Run,
    output: Tensor,
    leaves: Sequence[Tensor],
    cotangents: Tensor,
    batch: int,
) -> Iterator[tuple[Float[Tensor, "cotangent ..."], ...]]:
    """Vector–Jacobian products of `output`, `batch` cotangents at a time: for each batch, one tensor for each leaf.

    `cotangents` are (cotangent, …) with the shape of the output. NaN and infinite products raise an error
    (`raise_later`).
    """
    for part in cotangents.split(batch):
        with torch.enable_grad():
            # Not `is_grads_batched`, which would not hand a whole batch to attention's own backward pass.
            rows = torch.func.vmap(partial(_pull, output, leaves))(part)
        for row in rows:
            raise_later(~is_finite(row), _infinite, "derivative")
        yield rows


def _infinite() -> UnsoundModelError:
    """The error for a derivative that is not finite."""
    return UnsoundModelError(
        "The model's derivative is NaN or infinite on this prompt.",
        "Look for a hook without a derivative where it acts, such as a square root at 0; load a model in float16 in "
        "float32.",
    )


def _pull(
    output: Tensor, leaves: Sequence[Tensor], cotangent: Tensor
) -> tuple[Tensor, ...]:
    """The products of one cotangent, for `vmap`; zeros for a leaf that the output does not depend on."""
    rows = torch.autograd.grad(
        output, leaves, cotangent, retain_graph=True, materialize_grads=True
    )
    return tuple(rows)
