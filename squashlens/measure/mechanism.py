"""Why representations collapse: the steps of the proof of Theorem 4.2 (B.3), each measured on the real heads.

The proof says that two attention rows differ ever less, that the new token's own weight goes to 0, and that
the rest follows. With α the last row of v, α* that of v*, and x_i = W_O W_V norm(v_i) what token i gives to
a head, the attention outputs differ by

    o − o* = Σ_h [ Σ_{i≤n} (α_i − α*_i) x_i  −  α*_{n+1} x_{n+1} ]

because the first n tokens are the same in both. Hence, head by head,

    ‖o − o*‖₁  ≤  Σ_h max_i ‖x_i‖₁ (δ(α, α*_{:n}) + α*_{n+1,n+1})

which is the proof's last line with the value norms it sets to 1 put back.
"""

from collections.abc import Iterable

import torch
import xarray as xr
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Distance, Passes
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure._pairs import NOISE_FLOORS, Ruler, Runs, Streams, check_choices
from squashlens.model.anatomy import dtype_of, pattern_site
from squashlens.model.branches import Branch
from squashlens.model.proof import TOLERANCE
from squashlens.model.quantised import stored_as
from squashlens.model.registry import measured
from squashlens.results import Variable
from squashlens.sequences import Sequence
from squashlens.theory.distances import distance, shares, total_variation
from squashlens.theory.trends import Association, association

VALUE, MIXED, OUTPUT = (f"blocks.0.attn.{name}" for name in ("hook_v", "hook_z", "hook_out"))
PARTS = ("residual", "attention", "mlp")


@measured
def mechanism(
    model: Bridge,
    sequence: Sequence,
    *,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    replay: int = 4,
    passes: Passes = "auto",
    chunk: int | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Attention, its bound, and the parts of D, for the pairs that `collapse` compares.

    Returns:
        Dataset with, over (block, head, length): `attention_tv`, δ(α_n, α*_{n+1}) = Σ_{i≤n} |α_ni − α*_{n+1,i}|
        (0 to 2), and `self_weight`, α*_{n+1,n+1}; their means over heads are `attention_tv_mean` and
        `self_weight_mean`, and `attention_tv_trend`, `self_weight_trend` say whether their means fall or grow
        with length (Spearman's ρ), with the ends of 95 % intervals `…_trend_low`, `…_trend_high` and p-values
        `…_trend_p` of no trend, corrected by Holm for the two. Over (length), at block 0, in the model's units:
        `observed`, ‖o_n − o*_{n+1}‖₁ of the attention output, and `bound`, B.3's right-hand side with
        measured value norms. Over (part, block, length): `share` of
        D_{ℓ+1} that comes from the residual stream, the attention and the MLP of block ℓ: ⟨g, Δ_part⟩ / D with
        g the gradient of the norm at Δ; shares sum to 1, a negative one works against the others. NaN where D_{ℓ+1} is
        no more than three noise floors, as `collapse` measures them with `replay`: rounding has no parts.

    `observed` is the output of the attention block itself, before any norm behind it (Gemma 2 and 3): the
    proof knows of none. Sequences without suffix only, since the proof compares the repeated token itself.

    Source: Barbero et al. 2024, Theorem B.3, lines 2 to 5 of its proof.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ds = sl.mechanism(model, sl.prompts.repeated(model, "1", 16), progress=False)
    >>> bool((ds["observed"] <= ds["bound"]).all()), ds["share"].sum("part").round(6).values.min().item()
    (True, 1.0)
    """
    check_choices(norm=norm, passes=passes)
    runs = Runs.start(model, sequence, lengths, "mechanism", passes=passes, chunk=chunk, progress=progress, norm=norm,
        replay=replay)  # fmt: skip
    if sequence.suffix:
        raise InputError(
            "The mechanism is that of the repeated token itself, and this sequence is read behind a suffix.",
            "Build the sequence without suffix=; `collapse` takes it as it is.",
        )
    blocks = runs.layers[:-1]
    sites = [pattern_site(b) for b in blocks]
    sites += [site for b in blocks for site in _branches(runs.session.model, b)]
    sites += [VALUE, MIXED, OUTPUT]
    v, star = runs.pairs(sites)
    rows = [torch.stack([s.beside[pattern_site(b)] for b in blocks]) for s in (v, star)]
    variation, own = _attention(runs, *rows)
    observed, bound = _first_block(runs, v, star, variation[0], own[0])
    ruler = Ruler(norm, "absolute")
    unknown = torch.full((len(runs.layers) + 1,), torch.nan, dtype=torch.float64)
    floor = runs.noise((v, star), replay, ruler).floor if replay else unknown
    clear = ruler.gap(v.values, star.values) > NOISE_FLOORS * floor[:, None]
    bridge = runs.session.model
    found = torch.stack(
        [torch.where(clear[b + 1], _shares(bridge, v, star, b, norm), torch.nan) for b in blocks], dim=1
    )
    heads, by_block = ("block", "head", "length"), ("block", "length")
    coords = runs.coords() | {"block": blocks, "part": list(PARTS)}
    return runs.took(v).dataset(
        "mechanism of representational collapse",
        {name: values for name, values in coords.items() if name != "layer"},
        {
            "attention_tv": (heads, variation, "total variation of the last attention row", "1"),
            "self_weight": (heads, own, "attention of the repeated token to itself", "1"),
            "attention_tv_mean": (by_block, variation.mean(dim=1), "the same, mean over heads", "1"),
            "self_weight_mean": (by_block, own.mean(dim=1), "the same, mean over heads", "1"),
            **_trends(attention_tv_trend=variation, self_weight_trend=own),
            "observed": (("length",), observed, "L1 distance of the attention outputs of block 0", "model"),
            "bound": (("length",), bound, "Theorem B.3's bound on it, value norms measured", "model"),
            "share": (("part", "block", "length"), found, f"share of the {norm} distance behind the block", "1"),
        },
    )


def _trends(**rows: Float[Tensor, "block head length"]) -> dict[str, Variable]:
    """Whether means over blocks and heads fall or grow with length, with the p-values of all corrected together."""
    means = torch.stack([values.mean(dim=(0, 1)) for values in rows.values()])
    found = association(means, torch.arange(means.shape[-1], dtype=torch.float64)).corrected()
    text = "Spearman correlation with the length of the mean over blocks and heads"
    parts: dict[str, Variable] = {}
    for place, name in enumerate(rows):
        one = Association(*(part[place] for part in found))
        parts |= {called: ((), value, told, "1") for called, (value, told) in one.named(name, text).items()}
    return parts


def _attention(
    runs: Runs, rows: Float[Tensor, "block length head position"], star: Float[Tensor, "block length head position"]
) -> tuple[Float[Tensor, "block head length"], Float[Tensor, "block head length"]]:
    """δ over the first n positions, and the weight of position n + 1 on itself."""
    variation, own = [], []
    for k, length in enumerate(runs.lengths):
        n = len(runs.sequence.plain(length))
        variation.append(total_variation(rows[:, k, :, :n], star[:, k, :, :n]))
        own.append(star[:, k, :, n].double())
    return torch.stack(variation, dim=-1), torch.stack(own, dim=-1)


def _first_block(
    runs: Runs, v: Streams, star: Streams, variation: Float[Tensor, "head length"], own: Float[Tensor, "head length"]
) -> tuple[Float[Tensor, " length"], Float[Tensor, " length"]]:
    """‖o − o*‖₁ of block 0 as observed, and as B.3 bounds it."""
    weights = _output_weights(runs.session.model)
    trunk = runs.trunk[: len(runs.sequence.plain(runs.lengths[-1])) - 1]
    along = runs.read([Branch(at) for at in range(1, len(trunk) + 1)], [VALUE]) if trunk else None
    _require_understood(runs, weights, v, star)
    new = torch.maximum(_given(v.beside[VALUE], weights), _given(star.beside[VALUE], weights))
    largest = new
    if along is not None:
        before = _given(along.values[VALUE], weights).cummax(dim=0).values
        shared = [len(runs.sequence.plain(n)) - 1 for n in runs.lengths]
        largest = torch.stack(
            [torch.maximum(before[k - 1], own) if k else own for k, own in zip(shared, new, strict=True)]
        )
    bound = (largest.T * (variation + own)).sum(dim=0)
    return distance(v.beside[OUTPUT], star.beside[OUTPUT], "l1"), bound


def _output_weights(model: Bridge) -> Float[Tensor, "head value d"]:
    """W_O of block 0 by query head; of weights in whole numbers what they stand for."""
    attention = model.blocks[0].attn
    if stored_as(model) is None:
        return attention.W_O.detach().cpu().double()
    weight = attention.o.original_component.weight.dequantize().detach().cpu().double()
    return rearrange(weight, "d (head value) -> head value d", head=int(model.cfg.n_heads))


def _given(
    values: Float[Tensor, "branch group value"], weights: Float[Tensor, "head value d"]
) -> Float[Tensor, "branch head"]:
    """‖x^h‖₁ = ‖W_O^h value‖₁ for every query head; h reads key/value head h // (heads ÷ key/value heads)."""
    group = len(weights) // values.shape[1]
    return torch.stack([(values[:, h // group].double() @ w).abs().sum(dim=-1) for h, w in enumerate(weights)], dim=-1)


def _require_understood(runs: Runs, weights: Tensor, v: Streams, star: Streams) -> None:
    """Refuse a block whose output is not W_O applied to its heads' outputs."""
    mixed = v.beside[MIXED].double() - star.beside[MIXED].double()
    expected = torch.einsum("nhe,hed->nd", mixed, weights)
    seen = v.beside[OUTPUT].double() - star.beside[OUTPUT].double()
    scale = v.beside[OUTPUT].abs().max().item()
    if not (expected - seen).abs().max().item() <= TOLERANCE[dtype_of(runs.session.model)] * scale:
        raise UnsoundModelError(
            "The output of block 0's attention is not W_O applied to its heads, here or under the hooks that stand.",
            "Leave the mechanism out; `collapse` measures distances without it.",
        )


def _branches(model: Bridge, block: int) -> list[str]:
    """The hook points of what a block adds to its stream: by attention, and by the MLP if it has one."""
    both = (f"blocks.{block}.{name}" for name in ("hook_attn_out", "hook_mlp_out"))
    return [site for site in both if site in model.hook_dict or site.endswith("attn_out")]


def _shares(model: Bridge, v: Streams, star: Streams, block: int, norm: Distance) -> Float[Tensor, "part length"]:
    """Where the distance behind a block comes from: Δv⁽ℓ⁺¹⁾ = Δv⁽ℓ⁾ + Δattention + ΔMLP."""
    branches = _branches(model, block)
    parts = [v.values[block].double() - star.values[block].double()]
    parts += [v.beside[site].double() - star.beside[site].double() for site in branches]
    parts += [torch.zeros_like(parts[0])] * (len(PARTS) - len(parts))  # a block without an MLP adds nothing there
    whole = v.values[block + 1].double() - star.values[block + 1].double()
    off = (torch.stack(parts).sum(dim=0) - whole).abs().max().item()
    if not off <= TOLERANCE[v.values.dtype] * v.values[block + 1].abs().max().item():
        raise UnsoundModelError(
            f"Block {block} adds more to its stream than attention and MLP (off by {off:.2g}).",
            "Leave the mechanism out; `collapse` measures distances without it.",
        )
    return shares(torch.stack(parts), norm)[0]
