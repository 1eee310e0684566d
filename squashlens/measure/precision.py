"""Fewer bits: at which length a pair can no longer be told apart, in which format, from which block on.

*Collapsed* in a format means bit-identical once both representations are stored in it. Whether that matters is another
question: the next token may have been the same long before, or still be another.
"""

from collections.abc import Collection, Iterable
from itertools import product
from typing import get_args

import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, Distance, Passes, Scale, choices_of
from squashlens.bars import bar
from squashlens.errors import InputError, RangeError
from squashlens.measure._pairs import NOISE, NOISE_FLOORS, Ruler, Runs, check_choices, next_token_is_known, with_y
from squashlens.model.anatomy import dtype_of, residual_site
from squashlens.model.live import require_live
from squashlens.model.registry import measured
from squashlens.model.rounding import Stored, rounded, rounding, within
from squashlens.model.unembed import likeliest
from squashlens.results import Variable
from squashlens.sequences import Sequence

MANTISSA = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}


@measured
def precision(
    model: Bridge,
    sequence: Sequence,
    *,
    formats: Collection[Stored] = get_args(Stored),
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    replay: int = 4,
    passes: Passes = "auto",
    chunk: int | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """What fewer bits leave of a pair: stored after the run, and rounded in the run, one block at a time.

    Args:
        formats: ``"bfloat16"``, ``"float16"``, ``"float8_e4m3fn"``, ``"float8_e5m2"``; all if not given.
        lengths: numbers of content tokens; all if not given.
        replay: at how many lengths v and v* are measured again, for the noise floor. With 0 there is none, and nothing
            tells a difference from rounding: `noise_floor`, `bits_needed` and `first_block` are NaN.
        norm, scale, passes, chunk: as in `collapse`.

    Returns:
        Dataset. After the run, over (format, layer, length), with `_y`: `collapsed`, whether v and v* are the same bit
        for bit in that format, NaN where a coordinate of either is beyond its range. Over (format, layer), with `_y`:
        `collapsed_from`, the first measured length from which they are at every longer measured one; NaN if never. Over
        (layer, length), with `_y`: `bits_needed`, the smallest number of mantissa bits such that with so many and with
        any more v and v* differ; NaN if they are the same in the run's own, or if D is no more than three noise floors,
        so that the difference may be rounding. Over (layer), with `_y`: `noise_floor`, the largest that `collapse`
        would give over the lengths replayed. Over (length): `same_argmax`, and the scalar `same_argmax_from`.

        In the run, over (format, block, length), with the residual stream of all tokens rounded where it enters that
        block and nowhere else: `distance`, D at the last layer; `enters_as_one`, whether the last token's stream
        enters the block as the same numbers in v and in v*; `same_answer`, whether v's next token is that of the model
        as it is. Over (format, length): `first_block`, the first whose rounding makes the pair enter as one where
        without it they differ by more than three noise floors; NaN if none does.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 48, prompt="How many ones are in the following sequence?")
    >>> ds = sl.precision(model, ones, formats=["bfloat16"], lengths=[8, 24, 48], progress=False)
    >>> bool(ds["collapsed"].sel(format="bfloat16", layer=0).all())   # the same token, embedded
    True
    """
    check_choices(norm=norm, scale=scale, passes=passes)
    if not formats or not set(formats) <= set(choices_of(Stored)):
        raise InputError(f"formats={list(formats)!r} are not formats.", f"Use some of {', '.join(choices_of(Stored))}.")
    runs = Runs.start(
        model, sequence, lengths, "precision", passes=passes, chunk=chunk, progress=False,
        formats=list(formats), norm=norm, scale=scale, replay=replay,
    )  # fmt: skip
    ruler = Ruler(norm, scale)
    v, star = runs.pairs()
    unknown = torch.full((len(runs.layers) + 1,), torch.nan, dtype=torch.float64)
    floor = runs.noise((v, star), replay, ruler).floor if replay else unknown
    clear = ruler.gap(v.values, star.values) > NOISE_FLOORS * floor[:, None]
    identical = torch.stack([_identical(v.values, star.values, form) for form in formats])
    bits = _bits_needed(v.values, star.values, MANTISSA[dtype_of(runs.session.model)])
    bits = torch.where(clear, bits, torch.nan)
    over = ("format", "layer", "length")
    found = with_y("collapsed", identical, "whether v and v* are bit-identical once stored", "1", over)
    text = "first measured length from which v and v* are bit-identical at every longer measured one"
    found |= with_y("collapsed_from", from_then_on(identical == 1, runs.lengths), text, "token", over[:2])
    found |= with_y("bits_needed", bits, "mantissa bits with which, and with any more, v and v* differ", "bit")
    found |= with_y("noise_floor", floor, NOISE, ruler.units, ("layer",))
    answers = None
    if next_token_is_known(runs.session.model):
        answers, others = (likeliest(runs.session.model, side.values[-1]) for side in (v, star))
        same = answers == others
        found["same_argmax"] = (("length",), same, "whether the most likely next token is the same", "1")
        first = from_then_on(same, runs.lengths)
        text = "first measured length from which it is at every longer measured one"
        found["same_argmax_from"] = ((), first, text, "token")
    apart = ~bits[:-2].isnan()  # at block 0 most families have one token's embedding twice: nothing to be lost
    found |= _in_the_run(runs, ruler, list(formats), apart, answers, progress)
    coords = runs.coords() | {"format": list(formats), "block": runs.layers[:-1]}
    return runs.took(v).dataset("precision", coords, found)


def _in_the_run(
    runs: Runs, ruler: Ruler, formats: list[Stored], apart: Bool[Tensor, "layer branch"], answers: Tensor | None,
    progress: bool,
) -> dict[str, Variable]:  # fmt: skip
    """Everything with one block's incoming stream rounded, for each format and block."""
    blocks = runs.layers[:-1]
    shape = (len(formats), len(blocks), len(runs.lengths))
    distance, enters, same = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3))
    require_live(runs.session.model, [residual_site(block, runs.session.model) for block in blocks], "residual-stream")
    each = list(product(range(len(formats)), blocks))
    for number, block in bar(each, desc="rounding", progress=progress):
        hook = rounding(formats[number], "residual", (block,))
        try:
            v, star = runs.pairs(hooks=lambda _tokens, hook=hook: [hook], branch_hooks=(hook,))
        except RangeError:  # some token's stream is beyond the format's range: there is no such run
            continue
        distance[number, block] = ruler.gap(v.values[-2:-1], star.values[-2:-1])[0]
        enters[number, block] = (v.values[block] == star.values[block]).all(dim=-1).double()
        if answers is not None:
            same[number, block] = (likeliest(runs.session.model, v.values[-1]) == answers).double()
    over = ("format", "block", "length")
    text = f"{ruler.norm} distance at the last layer, one block's stream rounded"
    reached = (enters == 1) & apart
    first = torch.where(reached.any(dim=1), reached.double().argmax(dim=1).double(), torch.nan)
    found: dict[str, Variable] = {
        "distance": (over, distance, text, ruler.units),
        "enters_as_one": (over, enters, "whether v and v* enter the block as the same numbers", "1"),
        "first_block": (("format", "length"), first, "first block whose rounding makes the pair enter as one", "block"),
    }
    if answers is not None:
        text = "whether v's most likely next token is that of the model as it is"
        found["same_answer"] = (over, same, text, "1")
    return found


def _identical(
    v: Float[Tensor, "layer branch d"], star: Float[Tensor, "layer branch d"], form: Stored
) -> Float[Tensor, "layer branch"]:
    """1 where all coordinates are the same number in `form`, 0 where not, NaN where one is beyond its range."""
    found = torch.full(v.shape[:2], torch.nan, dtype=torch.float64)
    dtype = getattr(torch, form)
    for layer in range(len(v)):
        for branch in range(v.shape[1]):
            one, other = v[layer, branch], star[layer, branch]
            if within(one, dtype) and within(other, dtype):
                found[layer, branch] = float(torch.equal(rounded(one, form), rounded(other, form)))
    return found


def _bits_needed(
    v: Float[Tensor, "layer branch d"], star: Float[Tensor, "layer branch d"], own: int
) -> Float[Tensor, "layer branch"]:
    """One more than the largest number of bits with which they are the same; NaN if they are with all they have.

    Fewer bits may tell two numbers apart that more do not: 1.2 and 1.3 are 1 and 1.5 with one bit, 1.25 with two.
    """
    needed = torch.zeros(v.shape[:2], dtype=torch.float64)
    for bits in range(own + 1):
        needed[(rounded(v, bits) == rounded(star, bits)).all(dim=-1)] = bits + 1
    return torch.where(needed > own, torch.nan, needed)


def from_then_on(holds: Bool[Tensor, "*many length"], lengths: tuple[int, ...]) -> Float[Tensor, "*many"]:
    """The first of `lengths` from which something holds at every longer one of them; NaN if not at the longest."""
    tail = holds.flip(-1).long().cumprod(dim=-1).sum(dim=-1)  # how many of the last lengths in a row
    known = torch.tensor([torch.nan, *reversed(lengths)], dtype=torch.float64)
    return known[tail]
