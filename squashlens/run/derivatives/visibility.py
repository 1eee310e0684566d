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
    """One block: its largest ‖q_j‖ ‖k_i‖ · scale (`product`), the width of a query, and the keys that are seen.

    Each query sees itself and earlier keys: those within the `window`, or, if given, those marked in `keys`.
    """

    product: float
    width: int
    window: int | None = None
    keys: Bool[Tensor, "query key"] | None = None

    def logit_error(self, n: int) -> float:
        """An upper bound on the float64 rounding error of a logit, for a prompt of n tokens."""
        return (self.width + 2 + n) * EPS * self.product

    def back(self, rows: Bool[Tensor, "row token"]) -> Bool[Tensor, "row token"]:
        """Mark, in each row, the tokens from which this block leads to the marked ones, and these themselves."""
        if self.keys is not None:
            return rows | ((rows.double() @ self.keys.double()) > 0)
        n = rows.shape[1]
        places = torch.arange(n)
        # The next marked token from each place on; far beyond the end if there is none.
        marked = torch.where(rows, places, 2 * n)
        next_marked = marked.flip(1).cummin(dim=1).values.flip(1)
        reach = n if self.window is None else min(n, self.window)
        return next_marked - places < reach


def visibilities(
    run: Run,
    ids: Int[Tensor, "1 position"],
    hooks: Sequence[Hook | Recipe],
    blocks: range,
) -> dict[int, Visibility]:
    """What the attention of each of `blocks` sees on one prompt, under `hooks` and the hooks already on the model."""
    if not len(blocks):
        return {}
    by_block: dict[int, Visibility] = {}

    def see(block: int, attention: Attention) -> None:
        """Keep what a block sees; a plain causal mask or window needs no `keys`."""
        everything = slice(0, attention.queries.shape[2])
        keys = None
        if attention.mask is not None:
            keys = attention.visible(everything, everything).cpu()
        by_block[block] = Visibility(
            product=attention.largest_product(),
            width=attention.queries.shape[-1],
            window=attention.window,
            keys=keys,
        )

    _, others = split_frozen_attention(hooks)
    with run.applied(*others):
        forward(run, ids.clone(), [], on_attention=see)
    if not by_block.keys() >= set(blocks):  # patterns had to be computed
        by_block = _written(run, ids, hooks, blocks)
    # A user's hook outside attention may lead where attention does not see, and by less than any sketch resolves.
    for name in run.hooks():  # "blocks.3.attn.hook_z: function"
        point, _, _ = name.partition(":")
        if not point.endswith(("hook_attn_scores", "hook_pattern")):
            return {b: _seeing_all(sight) for b, sight in by_block.items()}
    return by_block


def _seeing_all(sight: Visibility) -> Visibility:
    """The block as if every query saw all earlier keys."""
    return replace(sight, window=None, keys=None)


def tokens_reaching(
    sights: Mapping[int, Visibility], blocks: range, rows: Bool[Tensor, "row token"]
) -> Bool[Tensor, "row token"]:
    """Mark, in each row, the tokens that can influence the marked ones through these blocks."""
    for block in reversed(blocks):
        rows = sights[block].back(rows)
    return rows


def derivative_rounding(
    run: Run, sights: Mapping[int, Visibility], blocks: range, n: int
) -> float:
    """What rounding in float64 can do to the derivative of a stretch, relative to the largest edge of a row.

    If logits have an error of δ, attention weights have a relative error of e^{2δ} − 1. The softmax's derivative is a
    product of two weights, so its error is e^{4δ} − 1. A sum of up to d products adds (d + n + 2) ε, and a block has
    `PRODUCTS` of them, one after the other. Raises an error where the total is more than `MOST`.
    """
    mlp_width = int(getattr(run.model.cfg, "d_mlp", None) or 4 * run.width)
    wide = max(run.width, mlp_width)
    of_logits = 0.0
    for block in blocks:
        delta = sights[block].logit_error(n)
        of_logits += math.expm1(min(1.0, 4 * delta))  # e¹ − 1 is beyond `MOST` already
    # Counted for one block more than there are, and so for the final norm too.
    of_products = PRODUCTS * (len(blocks) + 1) * (wide + n + 2) * EPS
    total = of_logits + of_products
    if not total <= MOST:  # NaN too
        longest = max(sights[block].product for block in blocks)
        raise UnsoundModelError(
            f"Products of queries and keys of size {longest:.1g} in blocks {blocks.start} to {blocks.stop - 1} leave "
            "logits without a digit that float64 could certify.",
            "Nothing can be certified here: use `jacobian_norms`.",
        )
    return total


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
    """What the attention of `blocks` sees, from logits as the model writes them, with the hooks that act on them."""
    attending: list[int] = []  # blocks with attention
    names: list[str] = []
    for block in blocks:
        if pattern_site(block) in run.model.hook_dict:
            attending.append(block)
            names.append(f"blocks.{block}.attn.{QUERIES}")
            names.append(f"blocks.{block}.attn.{SCORES}")
    activations: dict[str, Tensor] = {}  # with the graph from queries to scores
    if run.model.hook_dict.keys() >= set(names):
        watch = watchers(names, activations.__setitem__)
        open_spans(run, ids, hooks, [blocks[0]], blocks[-1] + 1, watch)
    for name in names:
        if name not in activations:
            raise UnsoundModelError(
                f"{run.architecture} has no {name}, from which its attention logits are computed, "
                "so rounding in them cannot be bounded.",
                "Its derivative cannot be certified: use `jacobian_norms`.",
            )
    batch = cotangents_on_graph(run, 1, ids.shape[1])
    # A block without attention has no logits.
    by_block = {block: Visibility(product=0.0, width=0) for block in blocks}
    for block in attending:
        queries = activations[f"blocks.{block}.attn.{QUERIES}"]
        scores = activations[f"blocks.{block}.attn.{SCORES}"]
        by_block[block] = _from(run, queries, scores, batch)
    return by_block


def _from(
    run: Run,
    queries: Tensor,
    scores: Float[Tensor, "1 head query key"],
    batch: int,
) -> Visibility:
    """What a block sees, from its logits and the projections x of its queries, by the formula of the module.

    x is (1, position, …) with the coordinates of all heads; `batch` keys are taken together.
    """
    heads = scores.shape[1]
    n = scores.shape[-1]
    by_head = queries.detach().flatten(2).unflatten(-1, (heads, -1))
    lengths = by_head.norm(dim=-1)  # ‖x_j‖, (1, query, head)
    logits = scores.detach()
    is_seen = unmasked(logits)[0]  # (head, query, key)
    largest = 0.0
    for first in range(0, n, batch):
        keys = torch.arange(first, min(n, first + batch))
        # A cotangent is 1 at one key in all rows: a row's logits depend on no other query than its own.
        cotangents = scores.new_zeros(len(keys), *scores.shape)
        cotangents[torch.arange(len(keys)), ..., keys] = 1
        for (rows,) in vjps(run, scores, [queries], cotangents, batch):
            # ‖∂s_ji/∂x_j‖, (key, query, head)
            slopes = rows.flatten(3).unflatten(-1, (heads, -1)).norm(dim=-1)[:, 0]
            across = slopes * lengths
            along = logits[0, :, :, keys].permute(2, 1, 0)
            sizes = (across.square() + along.square()).sqrt()
            visible = is_seen[:, :, keys].permute(2, 1, 0)
            largest = max(largest, sizes[visible].max().item())
    return Visibility(
        product=largest, width=by_head.shape[-1], keys=is_seen.any(dim=0).cpu()
    )
