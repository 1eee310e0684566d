"""Why representations collapse: the steps of the proof of Theorem 4.2 (B.3), measured on the model's heads.

The proof shows that the last attention rows of v and v* become more and more similar, and that the weight of the new
token goes to 0; the theorem follows from both. Let α be the last attention row of v, α* that of v*, and
x_i = W_O W_V norm(v_i) the contribution of token i to a head. The attention outputs differ by

    o − o* = Σ_h [ Σ_{i≤n} (α_i − α*_i) x_i  −  α*_{n+1} x_{n+1} ]

because the first n tokens are the same in both. Therefore

    ‖o − o*‖₁  ≤  Σ_h max_i ‖x_i‖₁ (δ(α, α*_{:n}) + α*_{n+1,n+1})

which is the last line of the proof with the value norms, which the proof sets to 1, included.
"""

from collections.abc import Iterable, Mapping

import torch
import xarray as xr
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Distance, Passes
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.collapse.metric import (
    REPLAYED,
    Metric,
    activations_at,
    coords,
    n_tokens,
    take_pairs,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.model.agreement import agree, difference
from squashlens.model.anatomy import pattern_site, quantization
from squashlens.model.premises import require_attention_alone
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.run.captures import pairs as captures
from squashlens.run.captures.pairs import OUTPUT, VALUE, PairCapture, head_site
from squashlens.run.run import Run
from squashlens.theory.distances import distance, shares, total_variation
from squashlens.theory.statistics.trends import Association, association

PARTS = ("residual", "attention", "mlp")
OF_ROW = "total variation of the last attention row"
OF_ROW_MEAN = "total variation of the row, mean over heads"
OF_SELF = "attention of the repeated token to itself"
OF_SELF_MEAN = "attention of the token to itself, mean over heads"
OF_OUTPUT = "L1 distance of the attention outputs of block 0"
OF_BOUND = "Theorem B.3's bound on it, value norms measured"
OF_SHARE = "share of the {norm} distance after the block"
TABLE = {
    "attention_tv": ("block head length", OF_ROW, "1"),
    "self_weight": ("block head length", OF_SELF, "1"),
    "attention_tv_mean": ("block length", OF_ROW_MEAN, "1"),
    "self_weight_mean": ("block length", OF_SELF_MEAN, "1"),
    "observed": ("length", OF_OUTPUT, MODEL_UNITS),
    "bound": ("length", OF_BOUND, MODEL_UNITS),
    "share": ("part block length", OF_SHARE, "1"),
}
REMEDY = (
    "Remove hooks that change it, if there are any; otherwise use `collapse`, which does "
    "not need this."
)


@measurement("collapse_mechanism", captured=True, cheaper="Fewer lengths= takes less.")
def collapse_mechanism(
    model: Bridge,
    sequence: captures.SequenceOrCapture,
    *,
    norm: Distance = "linf",
    lengths: Iterable[int] | None = None,
    noise_lengths: int = REPLAYED,
    passes: Passes = "auto",
) -> xr.Dataset:
    """The steps of the collapse proof on the model: attention differences, their bound, and each part's share of D.

    Args:
        model, norm: as in `collapse`.
        sequence: a growing sequence without suffix, because the proof compares the repeated token itself; or a
            `capture` of one with patterns, which is not run again.
        lengths, noise_lengths, passes: as in `capture`; for a sequence only.

    Returns:
        Dataset. Over (block, head, length), dimensionless: `attention_tv`, δ(α_n, α*_{n+1}) = Σ_{i≤n} |α_ni −
        α*_{n+1,i}| (0 to 2), and `self_weight`, α*_{n+1,n+1}. Over (block, length): their means over heads,
        `attention_tv_mean` and `self_weight_mean`. Scalars: `attention_tv_trend` and `self_weight_trend`, Spearman's ρ
        of the means over blocks and heads with the length, with the ends of 95 % intervals, `…_trend_low` and
        `…_trend_high`, and p-values of no trend, `…_trend_p`, Holm-corrected for the two.

        Over (length), for block 0 and in the model's units: `observed`, ‖o_n − o*_{n+1}‖₁ of the attention output, and
        `bound`, the right-hand side of B.3 with measured value norms. `observed` is taken before any norm that follows
        attention (Gemma 2 and 3), because the proof has no such norm.

        Over (part, block, length), dimensionless: `share`, the share of D_{ℓ+1} that comes from the residual stream,
        the attention and the MLP of block ℓ: ⟨g, Δ_part⟩ / D, where g is the gradient of the norm at Δ. Shares sum to
        1; a negative share works against the others. It is NaN where D_{ℓ+1} is at most three noise floors, or if no
        length was replayed, because a difference that may be rounding cannot be attributed.

    Raises:
        InputError: a sequence with a suffix, or a capture without patterns.
        UnsoundModelError: something besides attention passes between tokens; a block's attention output is not W_O
            applied to the outputs of its heads; or it adds more to the residual stream than attention and MLP.

    Source: Barbero et al. 2024, Theorem B.3, lines 2 to 5 of its proof.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ds = sl.collapse_mechanism(model, sl.prompts.repeated(model, "1", 16))
    >>> bool((ds["observed"] <= ds["bound"]).all()), ds["share"].sum("part").round(6).values.min().item()
    (True, 1.0)
    """
    if captures.sequence_of(sequence).suffix:
        raise InputError(
            "The sequence has a suffix, and the mechanism compares the repeated token itself.",
            "Build the sequence without suffix=, or use `collapse`, which allows suffixes.",
        )
    run = Run.open(model, **this_call())
    require_attention_alone(run.model)
    wanted = captures.Pairs(lengths=lengths, noise_lengths=noise_lengths, passes=passes)
    run, pairs = take_pairs(run, sequence, wanted, patterns=True)
    blocks = pairs.layers[:-1]
    is_clear = Metric(norm).clear(pairs)
    variation, self_weight = _attention(pairs)
    observed, bound = _first_block(run, pairs, variation[0], self_weight[0])
    of_blocks = [_shares(run, pairs, block, norm) for block in blocks]
    # The shares of block ℓ are those of D at layer ℓ + 1; the last entry of `is_clear` is that of y.
    is_clear_after = is_clear[1 : len(blocks) + 1]
    share = torch.stack(of_blocks, dim=1).where(is_clear_after, torch.nan)

    over = coords(pairs) | {"block": blocks, "part": list(PARTS)}
    del over["layer"]  # these results are by block
    found = {
        "attention_tv": variation,
        "self_weight": self_weight,
        "attention_tv_mean": variation.mean(dim=1),
        "self_weight_mean": self_weight.mean(dim=1),
        "observed": observed,
        "bound": bound,
        "share": share,
    }
    variables = variables_of(TABLE, found, norm=norm)
    variables |= _trends(attention_tv_trend=variation, self_weight_trend=self_weight)
    return run.dataset("mechanism of representational collapse", over, variables)


def _trends(**series: Float[Tensor, "block head length"]) -> dict[str, Variable]:
    """How the mean of each series over blocks and heads changes with the length; p-values are corrected together."""
    means = torch.stack([values.mean(dim=(0, 1)) for values in series.values()])
    # Of the lengths only the order matters for Spearman's ρ.
    order = torch.arange(means.shape[-1], dtype=torch.float64)
    trends = association(means, order).corrected()
    text = "Spearman correlation with the length of the mean over blocks and heads"
    variables: dict[str, Variable] = {}
    # `trends` has tensors over the series; one number of each makes the trend of a series.
    for name, *trend in zip(series, *trends, strict=True):
        variables |= Association(*trend).variables(name, text, among="both trends")
    return variables


def _attention(
    pairs: PairCapture,
) -> tuple[Float[Tensor, "block head length"], Float[Tensor, "block head length"]]:
    """The total variation δ of the last rows of v and v* over the first n positions, and α*_{n+1,n+1} of v*."""
    sites = [pattern_site(block) for block in pairs.layers[:-1]]
    # The last attention rows, (block, length, head, key).
    alpha = activations_at(pairs.v, sites)
    alpha_star = activations_at(pairs.star, sites)
    variation: list[Tensor] = []
    self_weight: list[Tensor] = []
    for place, n in enumerate(n_tokens(pairs.sequence, pairs.lengths)):
        of_v = alpha[:, place, :, :n]
        of_star = alpha_star[:, place, :, :n]
        variation.append(total_variation(of_v, of_star))
        self_weight.append(alpha_star[:, place, :, n].double())
    return torch.stack(variation, dim=-1), torch.stack(self_weight, dim=-1)


def _first_block(
    run: Run,
    pairs: PairCapture,
    variation: Float[Tensor, "head length"],
    self_weight: Float[Tensor, "head length"],
) -> tuple[Float[Tensor, " length"], Float[Tensor, " length"]]:
    """The distance ‖o − o*‖₁ of block 0's attention outputs, and its bound Σ_h max_i ‖x_i‖₁ (δ + α*) by B.3.

    `variation` and `self_weight` are δ and α* of block 0.
    """
    weights = output_weights(run, 0)
    v = pairs.v.others
    star = pairs.star.others
    _require_known_output(run, weights, v, star)
    # max_i ‖x_i‖₁ is over all tokens: the last ones of v and v*, and those before, which both share.
    norm_of_v = _contribution(v[VALUE], weights)
    norm_of_star = _contribution(star[VALUE], weights)
    largest = torch.maximum(norm_of_v, norm_of_star)  # (length, head)
    if pairs.values is not None:
        # Entry k is the largest among the first k tokens of the trunk; 0 for none.
        before = _contribution(pairs.values, weights).cummax(dim=0).values
        before = torch.cat([torch.zeros_like(before[:1]), before])
        n_shared = n_tokens(pairs.sequence, pairs.lengths) - 1
        largest = torch.maximum(largest, before[torch.from_numpy(n_shared)])
    bound = (largest.T * (variation + self_weight)).sum(dim=0)
    return distance(v[OUTPUT], star[OUTPUT], "l1"), bound


def output_weights(run: Run, block: int) -> Float[Tensor, "head value d"]:
    """The output weights W_O of a block for each query head, dequantized if they are quantized."""
    attention = run.model.blocks[block].attn
    if quantization(run.model) is None:
        return attention.W_O.detach().cpu().double()
    weight = attention.o.original_component.weight.dequantize().detach().cpu().double()
    return rearrange(
        weight, "d (head value) -> head value d", head=int(run.model.cfg.n_heads)
    )


def _contribution(
    values: Float[Tensor, "branch group value"], weights: Float[Tensor, "head value d"]
) -> Float[Tensor, "branch head"]:
    """The norm ‖x^h‖₁ = ‖W_O^h value‖₁ for each query head h, which reads key/value head h // (heads per group)."""
    heads_per_group = len(weights) // values.shape[1]
    by_head = values.double().repeat_interleave(heads_per_group, dim=1)
    norms: list[Tensor] = []
    for head, weight in enumerate(weights):
        norms.append((by_head[:, head] @ weight).abs().sum(dim=-1))
    return torch.stack(norms, dim=-1)


def _require_known_output(
    run: Run, weights: Tensor, v: Mapping[str, Tensor], star: Mapping[str, Tensor]
) -> None:
    """Raise unless the output of block 0's attention is W_O applied to the outputs of its heads.

    Differences of v and v* are compared, so that a bias does not count; `v` and `star` are activations by hook point.
    """
    of_heads = v[head_site(0)].double() - star[head_site(0)].double()
    expected = torch.einsum("nhe,hed->nd", of_heads, weights)
    output = v[OUTPUT].double() - star[OUTPUT].double()
    if not agree(expected, output, run.dtype, size=v[OUTPUT]):
        raise UnsoundModelError(
            "The attention output of block 0 is not W_O applied to the outputs of its heads, in this model or under "
            "its hooks.",
            REMEDY,
        )


def _shares(
    run: Run, pairs: PairCapture, block: int, norm: Distance
) -> Float[Tensor, "part length"]:
    """The shares of `PARTS` in the distance after a block: Δv⁽ℓ⁺¹⁾ = Δv⁽ℓ⁾ + Δattention + ΔMLP.

    Raises if these three do not add up to the difference of the streams after the block.
    """
    v = pairs.v
    star = pairs.star
    parts = [v.values[block].double() - star.values[block].double()]
    for site in captures.branch_sites(run, block):
        parts.append(v.others[site].double() - star.others[site].double())
    if len(parts) < len(PARTS):  # a block without an MLP
        parts.append(torch.zeros_like(parts[0]))
    after = v.values[block + 1]
    whole = after.double() - star.values[block + 1].double()
    sum_of_parts = torch.stack(parts).sum(dim=0)
    error, allowed = difference(sum_of_parts, whole, after.dtype, size=after)
    if not error <= allowed:  # true for NaN too
        raise UnsoundModelError(
            f"Block {block} adds more to the residual stream than attention and MLP (the difference is {error:.2g}).",
            REMEDY,
        )
    shares_of_parts, _ = shares(torch.stack(parts), norm)
    return shares_of_parts
