"""Which tokens can influence which through a block's attention, and the size of the products in its logits.

A logit is a sum of products, ``s_ji = scale · q_j · k_i``, and rounding in it goes with ``‖q_j‖ ‖k_i‖ · scale``,
not with |s_ji|: products that cancel leave their errors behind. Summed from d_head products, a logit is off by at most

    (d_head + 2 + n) ε ‖q_j‖ ‖k_i‖ scale,

two ε for its factors, and n ε for rotations: an angle of up to n radians is rounded at both of the tokens.

Queries q_j and keys k_i are the vectors that are multiplied, after norm and rotation. Some models have no hook points
for them, only for the projection x before the norm. The lengths of q_j and k_i then follow from the derivative of the
logit with respect to x. Rotations keep lengths. A norm removes the part of k_i along q_j, which is the logit, so that
``(‖q_j‖ ‖k_i‖ scale)² = s_ji² + (‖∂s_ji/∂x_j‖ ‖x_j‖)²``;
without a norm, the right side is an upper bound, at most twice as large.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import pattern_site
from squashlens.model.hooking.hook import (
    Hook,
    Recipe,
    split_frozen_attention,
    watchers,
)
from squashlens.run.budget import cotangents_on_graph
from squashlens.run.derivatives.spans import open_spans, vjps
from squashlens.run.forward import forward
from squashlens.run.run import Run
from squashlens.theory.attention import Attention, unmasked

EPS = torch.finfo(torch.float64).eps
PRODUCTS = 16  # products of matrices, norms and gates that follow each other in a block, at most
MOST = 0.1  # rounding beyond which nothing is certified
QUERIES = "hook_q"
SCORES = "hook_attn_scores"


@dataclass(frozen=True)
class Visibility:
    """One block: its largest ‖q_j‖ ‖k_i‖ · scale, the width of a query, and the keys that are seen."""

    product: float
    width: int
    window: int | None = None
    keys: Bool[Tensor, "query key"] | None = None

    def logit_error(self, n: int) -> float:
        """An upper bound on the float64 rounding error of a logit, for a prompt of n tokens."""
        return (self.width + 2 + n) * EPS * self.product

    def back(self, rows: Bool[Tensor, "row token"]) -> Bool[Tensor, "row token"]:
        """The tokens from which this block leads to those that are marked, which it leads to themselves."""
        if self.keys is not None:
            return rows | ((rows.double() @ self.keys.double()) > 0)
        n = rows.shape[1]
        places = torch.arange(n)
        # The next one that is marked; far beyond the end if there is none.
        marked = torch.where(rows, places, 2 * n)
        ahead = marked.flip(1).cummin(dim=1).values.flip(1)
        reach = n if self.window is None else min(n, self.window)
        return ahead - places < reach


def visibilities(
    run: Run,
    ids: Int[Tensor, "1 position"],
    hooks: Sequence[Hook | Recipe],
    blocks: range,
) -> dict[int, Visibility]:
    """What the attention of each of `blocks` sees on one prompt, under `hooks` and the hooks already on the model."""
    if not len(blocks):
        return {}
    found: dict[int, Visibility] = {}

    def see(block: int, attention: Attention) -> None:
        n = slice(0, attention.queries.shape[2])
        keys = None if attention.mask is None else attention.visible(n, n).cpu()
        product = attention.largest_product()
        width = attention.queries.shape[-1]
        found[block] = Visibility(product, width, attention.window, keys)

    with run.applied(*split_frozen_attention(hooks)[1]):
        forward(run, ids.clone(), [], on_attention=see)
    if not all(b in found for b in blocks):
        found = _written(run, ids, hooks, blocks)
    # A user's hook outside attention may lead where attention does not see, and by less than any sketch resolves.
    inside = ("hook_attn_scores", "hook_pattern")
    if all(name.partition(":")[0].endswith(inside) for name in run.hooks()):
        return found
    return {b: replace(sight, window=None, keys=None) for b, sight in found.items()}


def tokens_reaching(
    seen: Mapping[int, Visibility], blocks: range, rows: Bool[Tensor, "row token"]
) -> Bool[Tensor, "row token"]:
    """The tokens that can influence the marked tokens through these blocks."""
    for block in reversed(blocks):
        rows = seen[block].back(rows)
    return rows


def derivative_rounding(
    run: Run, seen: Mapping[int, Visibility], blocks: range, n: int
) -> float:
    """What rounding in float64 can do to the derivative of a stretch, relative to the largest edge of a row.

    If logits have an error of δ, attention weights have a relative error of e^{2δ} − 1. The softmax's derivative is a
    product of two weights, so its error is e^{4δ} − 1. A sum of up to d products adds (d + n + 2) ε, and a block has
    `PRODUCTS` of them, one after the other. Raises an error where the total is more than `MOST`.
    """
    wide = max(run.width, int(getattr(run.model.cfg, "d_mlp", None) or 4 * run.width))
    logits = sum(
        math.expm1(min(1.0, 4 * seen[block].logit_error(n))) for block in blocks
    )
    found = logits + PRODUCTS * (len(blocks) + 1) * (wide + n + 2) * EPS
    if not found <= MOST:  # NaN too
        longest = max(seen[block].product for block in blocks)
        raise UnsoundModelError(
            f"Products of queries and keys of size {longest:.1g} in blocks {blocks.start} to {blocks.stop - 1} leave "
            "logits without a digit that float64 could certify.",
            "Nothing can be certified here: use `jacobian_norms`.",
        )
    return found


def require_digits(lost: float) -> None:
    """Raise if rounding changes a derivative by more than `MOST` of its largest part, as `Jittered` results show."""
    if not lost <= MOST:  # NaN too
        raise UnsoundModelError(
            f"Terms of this derivative cancel: rounding may change it by {lost:.2g} of its largest part.",
            "Nothing can be certified here: use `jacobian_norms` with method='exact', in float64.",
        )


def _written(
    run: Run,
    ids: Int[Tensor, "1 position"],
    hooks: Sequence[Hook | Recipe],
    blocks: range,
) -> dict[int, Visibility]:
    """The same from the logits as the model writes them, hooks and all."""
    attending = [b for b in blocks if pattern_site(b) in run.model.hook_dict]
    names: list[str] = []
    for b in attending:
        names += [f"blocks.{b}.attn.{QUERIES}", f"blocks.{b}.attn.{SCORES}"]
    seen: dict[str, Tensor] = {}
    if all(name in run.model.hook_dict for name in names):
        watch = watchers(names, seen.__setitem__)
        open_spans(run, ids, hooks, [blocks[0]], blocks[-1] + 1, watch)
    missing = [name for name in names if name not in seen]
    if missing:
        raise UnsoundModelError(
            f"{run.architecture} has no {missing[0]}, from which its attention logits are computed, "
            "so rounding in them cannot be bounded.",
            "Its derivative cannot be certified: use `jacobian_norms`.",
        )
    batch = cotangents_on_graph(run, 1, ids.shape[1])
    # A block without attention has no logits.
    found = {b: Visibility(0.0, 0) for b in blocks}
    for b in attending:
        queries = seen[f"blocks.{b}.attn.{QUERIES}"]
        scores = seen[f"blocks.{b}.attn.{SCORES}"]
        found[b] = _from(run, queries, scores, batch)
    return found


def _from(
    run: Run,
    queries: Tensor,
    scores: Float[Tensor, "1 head query key"],
    batch: int,
) -> Visibility:
    heads = scores.shape[1]
    n = scores.shape[-1]
    # position, head, coordinate
    flat = queries.detach().flatten(2).unflatten(-1, (heads, -1))
    lengths = flat.norm(dim=-1)
    logits = scores.detach()
    seen = unmasked(logits)[0]
    largest = 0.0
    for first in range(0, n, batch):
        keys = torch.arange(first, min(n, first + batch))
        cotangents = scores.new_zeros(len(keys), *scores.shape)
        cotangents[torch.arange(len(keys)), ..., keys] = 1
        for (rows,) in vjps(run, scores, [queries], cotangents, batch):
            slopes = rows.flatten(3).unflatten(-1, (heads, -1)).norm(dim=-1)[:, 0]
            across = slopes * lengths  # key, query, head
            along = logits[0, :, :, keys].permute(2, 1, 0)
            sizes = (across.square() + along.square()).sqrt()
            visible = seen[:, :, keys].permute(2, 1, 0)
            largest = max(largest, sizes[visible].max().item())
    return Visibility(largest, flat.shape[-1], keys=seen.any(dim=0).cpu())
