"""Representational collapse (Theorem 4.2, figure 5): how far a sequence and the same with its last token repeated
stay apart, layer by layer and length by length, and what *close* means beside it."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from random import Random

import torch
import xarray as xr
from einops import rearrange
from torch import Tensor

from squashlens._typing import Beside, Bridge, Distance, Heads, Passes, Scale, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._pairs import NOISE, Ruler, Runs, Streams, check_choices, next_token_is_known, with_y
from squashlens.model.anatomy import dtype_of
from squashlens.model.registry import measured
from squashlens.model.unembed import log_probabilities
from squashlens.results import Variable
from squashlens.sequences import Sequence
from squashlens.theory.distances import divergence, identical, total_variation, ulps
from squashlens.theory.trends import association


@measured
def collapse(
    model: Bridge,
    sequence: Sequence,
    *,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    heads: Heads | None = None,
    scale: Scale = "absolute",
    beside: Collection[Beside] = (),
    draws: int = 3,
    seed: int = 0,
    replay: int = 0,
    round_to: torch.dtype | None = None,
    passes: Passes = "auto",
    chunk: int | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """``D_ℓ(n) = ‖v_n⁽ℓ⁾ − v*⁽ℓ⁾_{n+1}‖`` for every layer ℓ = 0…L, for y, and every length n.

    v is the sequence with n content tokens, v* the same with its last content token repeated; a suffix stands
    behind both, and both are read at their last token. A constant tail takes one forward pass for all
    lengths; any other sequence takes one more over the branches, which run on the cache of what they share.

    Args:
        sequence: from `squashlens.prompts`.
        lengths: numbers of content tokens; all from 1 if not given.
        norm: ``"linf"`` as in figure 5, ``"l1"`` as in the theorem, ``"l2"``.
        heads: also by head: ``"value"``, the outputs of each attention head (`hook_z`, by block), or
            ``"slice"``, the residual stream cut into as many equal slices as there are heads (by layer); with
            mean, minimum and maximum over heads. The paper's "averaged over each head" may mean either.
        scale: ``"relative"`` divides by the root mean square of v's coordinates, since streams grow with depth.
        beside: what *close* is measured against: ``"contrast"``, the same D for a pair whose last token
            differs, and ``"unrelated"``, for `draws` sequences with other content (from `seed`).
        replay: at how many lengths, evenly spaced, v and v* are measured again, with a forward pass for each prompt
            (two copies of it side by side where that is how they were run before). The noise floor is
            ‖v − ṽ‖ + ‖v* − ṽ*‖ with ṽ and ṽ* the replay, each term at least half a unit in the last place: rounding
            can move D so far.
        round_to: round the representations to this dtype first (a run in another dtype is another `load`).
        passes: ``"auto"`` shares passes where shared and separate ones agree; ``"separate"`` runs every prompt by
            itself, as ``"auto"`` does under hooks that edit and where the position encoding depends on the length of
            the pass ("longrope", "dynamic"); ``"shared"`` refuses there. The provenance says which, and why.
        chunk: branch tokens in one pass; chosen to fit in about a gigabyte if not given.

    Returns:
        Dataset over `layer` and `length`: `distance` (the model's units, or 1 if relative); `ulps` (|Δ| in units
        in the last place at the coordinate that attains L∞), `ulps_median`, `bit_identical` (share of
        coordinates equal after rounding); over `layer`, `length_trend` (Spearman's ρ of D with the length), the ends
        of its 95 % interval `length_trend_low`, `length_trend_high`, which allow for dependence between neighbouring
        lengths, and `length_trend_p`, the p-value of no trend, not corrected for the number of layers. Each
        also with `_y`, for y. Over `length`, of the next token: `total_variation` (0 to 2), `kl` (nats, v to v*),
        `same_argmax`. As asked: `contrast`, `unrelated`, `noise_floor` (over the lengths `replayed`),
        `head_distance` with `head_mean`, `head_min`, `head_max`. Coordinates of a length: `tokens` in the
        prompt, `before_separator`.

    Source: Barbero et al. 2024, Theorem 4.2, figure 5.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 32, prompt="How many ones are in the following sequences?")
    >>> ds = sl.collapse(model, ones, beside=["contrast"], progress=False)
    >>> last = ds.sel(layer=6, length=32)
    >>> bool(last["distance"] < last["contrast"])
    True
    """
    check_choices(norm=norm, scale=scale, passes=passes)
    _check(heads, beside, draws, round_to)
    ruler = Ruler(norm, scale, round_to)
    runs = Runs.start(
        model, sequence, lengths, "collapse", passes=passes, chunk=chunk, progress=progress,
        norm=norm, heads=heads, scale=scale, beside=sorted(beside), draws=draws, seed=seed, replay=replay,
        round_to=None if round_to is None else str(round_to).removeprefix("torch."),
    )  # fmt: skip
    per_head = [f"blocks.{b}.attn.hook_z" for b in runs.layers[:-1]] if heads == "value" else []
    v, star = runs.pairs(per_head)
    gaps = ruler.gap(v.values, star.values)
    found = with_y("distance", gaps, f"{norm} distance of v and v*", ruler.units)
    trend = association(gaps, torch.arange(len(runs.lengths), dtype=torch.float64))
    for name, (values, text) in trend.named("length_trend", "Spearman correlation of D with the length").items():
        found |= with_y(name, values, text, "1", ("layer",))
    found |= _precision(ruler, runs, v, star)
    found |= _next_token(runs, ruler.rounded(v.values[-1]), ruler.rounded(star.values[-1]))
    if heads:
        found |= _by_head(ruler, runs, heads, v, star)
    if "contrast" in beside:
        other = runs.streams([sequence.contrast(n) for n in runs.lengths])
        gaps = ruler.gap(v.values, other.values)
        found |= with_y("contrast", gaps, "distance from the same with another last token", ruler.units)
    if "unrelated" in beside:
        gaps = torch.stack([ruler.gap(v.values, other) for other in _unrelated(runs, draws, seed)])
        dims = ("draw", "layer", "length")
        found |= with_y("unrelated", gaps, "distance from a sequence with other content", ruler.units, dims)
    coords = runs.coords()
    if replay:
        noise = runs.noise((v, star), replay, ruler)
        coords["replayed"] = list(noise.lengths)
        found |= with_y("noise_floor", noise.values, NOISE, ruler.units, ("layer", "replayed"))
    return runs.took(v).dataset("representational collapse", coords, found)


def _check(heads: object, beside: Collection[object], draws: object, round_to: torch.dtype | None) -> None:
    if heads is not None:
        one_of(heads, Heads, "heads")
    for kind in [beside] if isinstance(beside, str) else beside:
        one_of(kind, Beside, "beside")
    positive(draws, "draws", "a number of sequences")
    if round_to is not None and not round_to.is_floating_point:
        raise InputError(f"round_to={round_to!r} is not a floating-point type.", "Use torch.bfloat16 or another.")


def _precision(ruler: Ruler, runs: Runs, v: Streams, star: Streams) -> dict[str, Variable]:
    """How many units in the last place lie between v and v*, and how many coordinates none."""
    dtype = ruler.round_to or dtype_of(runs.session.model)
    pairs = [(ruler.rounded(a), ruler.rounded(b)) for a, b in zip(v.values, star.values, strict=True)]
    widest, median = map(torch.stack, zip(*(ulps(a, b, dtype) for a, b in pairs), strict=True))
    same = torch.stack([identical(a, b, dtype) for a, b in pairs])
    unit = f"ulp ({str(dtype).removeprefix('torch.')})"
    return {
        **with_y("ulps", widest, "|Δ| at the coordinate that attains L∞", unit),
        **with_y("ulps_median", median, "median of |Δ| over coordinates", unit),
        **with_y("bit_identical", same, "share of coordinates that are bit-identical", "1"),
    }


def _next_token(runs: Runs, y: Tensor, y_star: Tensor) -> dict[str, Variable]:
    """Whether the answer still differs, from the logits of y and y*; left out with a warning where it cannot be had."""
    model = runs.session.model
    if not next_token_is_known(model):
        return {}
    variation, kl, same = [], [], []
    for p, q in zip(log_probabilities(model, y), log_probabilities(model, y_star), strict=True):
        variation.append(total_variation(p.exp(), q.exp()).cpu())
        kl.append(divergence(p, q).cpu())
        same.append((p.argmax(dim=-1) == q.argmax(dim=-1)).cpu())
    return {
        "total_variation": (("length",), torch.cat(variation), "total variation of the next token", "1"),
        "kl": (("length",), torch.cat(kl), "Kullback–Leibler divergence of the next token, v from v*", "nat"),
        "same_argmax": (("length",), torch.cat(same), "whether the most likely next token is the same", "1"),
    }


def _by_head(ruler: Ruler, runs: Runs, heads: Heads, v: Streams, star: Streams) -> dict[str, Variable]:
    """D of each head, with mean, minimum and maximum over heads."""
    n_heads = int(runs.session.model.cfg.n_heads)
    if heads == "slice":
        if v.values.shape[-1] % n_heads:
            raise InputError(
                f"{v.values.shape[-1]} coordinates do not cut into {n_heads} equal slices.", "Use heads='value'."
            )
        axis, text = "layer", "distance of v and v* in one slice of the stream"
        sides = [rearrange(s.values[:-1], "layer n (h e) -> layer h n e", h=n_heads) for s in (v, star)]
    else:
        axis, text = "block", "distance of one head's output on v and on v*"
        sides = [rearrange(torch.stack(list(s.beside.values())), "block n h e -> block h n e") for s in (v, star)]
    gaps = torch.stack([ruler.gap(a, b) for a, b in zip(*sides, strict=True)])
    spread = {"mean": gaps.mean(dim=1), "min": gaps.amin(dim=1), "max": gaps.amax(dim=1)}
    return {
        "head_distance": ((axis, "head", "length"), gaps, text, ruler.units),
        **{
            f"head_{name}": ((axis, "length"), values, f"{text}: {name} over heads", ruler.units)
            for name, values in spread.items()
        },
    }


def _unrelated(runs: Runs, draws: int, seed: int) -> Iterator[Tensor]:
    """Representations of sequences of the same form with other content, at the same lengths."""
    rng = Random(f"unrelated {seed}")  # apart from the stream that a sequence with this seed was drawn from
    for _ in range(draws):
        other = replace(runs, sequence=runs.sequence.unrelated(rng))
        yield other.streams([other.sequence.plain(n) for n in runs.lengths]).values
