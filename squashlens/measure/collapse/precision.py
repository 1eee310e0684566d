"""Collapse in low precision: from which lengths on a pair is bit-identical once its representations are rounded.

*Collapsed* in a format means that v and v* are bit-identical after both are rounded to it. This does not decide the
next token, which may be the same at much shorter lengths, or may still differ.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge, Distance, Passes, Scale, choices_of, full_name, one_of, several
from squashlens.bars import bar, quiet
from squashlens.engine.anatomy import dtype_of, n_blocks, residual_site
from squashlens.engine.applied import require_effective
from squashlens.engine.capturing.pairs import PairCapture, Pairs, SequenceOrCapture, capture_pairs
from squashlens.engine.loading.load import load
from squashlens.engine.locks import require_bridge
from squashlens.engine.running.forward import most_likely
from squashlens.errors import InputError, RangeError, SquashlensError
from squashlens.hooks.rounding import Format, Stored, rounded, rounding, within
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.collapse.metric import (
    NOISE,
    REPLAYED,
    Metric,
    coords,
    from_then_on,
    next_token_is_known,
    take_pairs,
    with_y,
)
from squashlens.measure.session import measurement
from squashlens.records.joining import joined
from squashlens.records.results import Variable, attributes
from squashlens.remarks import remark
from squashlens.sequences import GrowingSequence
from squashlens.theory.distances import NOISE_FLOORS, middle, ulp

Blocks = TypeAliasType("Blocks", Collection[int] | Literal["all"])
Run = Literal["float32", "bfloat16", "float16", "int8"]
Precision = Literal[Run, "fp32", "bf16", "fp16"] | torch.dtype  # as a user may give it
Runs = TypeAliasType("Runs", Precision | Collection[Precision] | None)
Formats = TypeAliasType("Formats", Format | Collection[Format] | None)
OF_RUNS = 6  # lengths that each run of `runs` replays by default
FROM = "smallest measured length such that v and v* are bit-identical at it and at all longer measured lengths"
MANTISSA = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}


@measurement("bits_needed", captured=True)
def precision(
    model: Bridge | str | Path,
    sequence: SequenceOrCapture,
    *,
    runs: Runs = None,
    device: str | torch.device | None = None,
    round_to: Formats = None,
    blocks: Blocks = (),
    norm: Distance = "linf",
    scale: Scale = "relative",
    lengths: Iterable[int] | None = None,
    noise_lengths: int | None = None,
    passes: Passes = "auto",
    tokens_per_pass: int | None = None,
) -> xr.Dataset:
    """Whether v and v* are bit-identical after rounding to number formats; or their distance in several precisions.

    Without `runs`, the model runs in its own dtype, and the resulting representations are rounded. With `blocks` it
    also runs with the input of one block rounded: the residual streams of all tokens, in one block at a time.

    With `runs`, the model is loaded in each of several precisions in turn, and the distance of v and v* is measured as
    by `collapse`. Rounding a representation shows what is lost when it is stored; a model that runs in low precision
    rounds at every step.

    Args:
        model: as in `collapse`; with `runs` its name or folder, as `load` takes it.
        sequence: a growing sequence from `squashlens.prompts`; or, without `runs`, a `capture` of one, which is not run
            again. If the capture replayed no lengths, `noise_floor` and `bits_needed` are NaN.
        runs: precisions in which the model itself is run: ``"float32"``, ``"bfloat16"``, ``"float16"`` (or ``"fp32"``,
            ``"bf16"``, ``"fp16"``, or their dtypes), and ``"int8"``, float32 with 8-bit weights, which needs
            ``squashlens[quant]``. By default the loaded model is measured.
        device: with `runs`, device of the model, such as ``"cpu"`` or ``"cuda"``; CUDA if available by default.
        round_to: without `runs`, formats to which representations are rounded, one or several: ``"bfloat16"``,
            ``"float16"``, short names or dtypes; both by default.
        blocks: without `runs`, numbers of the blocks whose input is rounded, each in a run of its own with the same
            kind of passes, or ``"all"``; none by default.
        norm: norm of `distance` and the noise floor, as in `collapse`.
        scale: as in `collapse`; ``"relative"`` by default.
        lengths, passes, tokens_per_pass: as in `capture`; for a sequence only.
        noise_lengths: as in `capture`, for a sequence only; 4 by default, and 6 in each of `runs`.

    Returns:
        Dataset. Over (format, layer, length): `collapsed`, whether v and v* are bit-identical in the format, NaN if
        a coordinate exceeds its range. Over (format, layer): `collapsed_from`, the smallest measured length such
        that they are bit-identical at it and at all longer measured lengths, NaN if there is none. Over (layer,
        length): `bits_needed`, the smallest number of mantissa bits such that v and v* differ with this and any larger
        number of bits; NaN if they are identical in the dtype of the run, or if D is at most three noise floors, so
        that the difference may be rounding; `bits_per_coordinate`, the median over coordinates of the same for each
        coordinate alone, which does not depend on their number, with a noise floor that is a median too. Over (layer):
        `noise_floor`, the largest that `collapse` would give over the replayed lengths. Each also has a variable with
        `_y`, for y. Over (length): `same_argmax`, whether the most likely next token is the same; and the scalar
        `same_argmax_from`.

        With `blocks`, also over (format, block, length), NaN where a coordinate exceeds the range of the format:
        `distance`, D at the last layer; `enters_as_one`, whether the last token's residual stream at the input of the
        block is the same in v and v*; `same_answer`, whether v's most likely next token is the same as without
        rounding. Over (format, length): `first_block`, the first of the blocks whose rounding makes v and v* the same
        at its input although they differ there by more than three noise floors without it; NaN if there is none, or
        if no length was replayed.

        With `runs`, that of `collapse` with a leading dimension `run`; and over (run, layer) `collapsed_from`, as above
        in the dtype of the run, with `collapsed_from_y`. A run that fails is left out with a warning; the coordinate
        `refused` has the reason.

    Raises:
        InputError: unknown formats, blocks or runs; something that is not a sequence or its capture; a name without
            `runs`, or a loaded model or a capture with it; an option that has no effect.
        SquashlensError: all runs failed; the error is that of the first.
        UnsoundModelError: residual-stream hooks that have no effect in this model, with `blocks`.

    Source: Barbero et al. 2024, section 4, on low-precision formats.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 48, prefix="How many ones are in the following sequence?")
    >>> pairs = sl.capture(model, ones, lengths=[8, 24, 48])
    >>> ds = sl.precision(model, pairs, round_to="bfloat16")
    >>> bool(ds["collapsed"].sel(format="bfloat16", layer=0).all())   # the same token, embedded
    True
    >>> ds = sl.precision(model, pairs, round_to="bfloat16", blocks=[1, 2])
    >>> ds["distance"].dims, ds["block"].values.tolist()
    (('format', 'block', 'length'), [1, 2])
    >>> ds = sl.precision("tiny-gemma", ones, runs=["float32", "bfloat16"], lengths=[8, 48])
    >>> ds["run"].values.tolist()
    ['float32', 'bfloat16']
    """
    metric = Metric(norm, scale)
    usual = REPLAYED if runs is None else OF_RUNS
    wanted = Pairs(
        lengths=lengths, noise_lengths=usual if noise_lengths is None else noise_lengths, passes=passes,
        tokens_per_pass=tokens_per_pass,
    )  # fmt: skip
    if runs is not None:
        named = _name(runs, Run, "runs")
        for name, value in {"round_to": round_to, "blocks": blocks or None}.items():
            if value is not None:
                raise InputError(f"{name}= has no effect with runs=.", "Leave it out, or give a loaded model.")
        if not isinstance(model, str | Path) or isinstance(sequence, PairCapture):
            raise InputError(
                "runs= loads the model anew in each precision, and a loaded model or a capture belongs to one.",
                "Give the name or folder of the model, and the growing sequence.",
            )
        return _by_run(model, sequence, named, device, wanted, metric)
    if device is not None:
        raise InputError("device= has no effect without runs=.", "`load` the model on the device.")
    formats = _name(choices_of(Stored) if round_to is None else round_to, Stored, "round_to")
    return _of_model(cast(Bridge, model), sequence, wanted, formats, blocks, metric)


def _of_model(
    model: Bridge, sequence: SequenceOrCapture, wanted: Pairs, formats: list[Stored], blocks: Blocks, metric: Metric
) -> xr.Dataset:
    """`precision` without runs: representations of a loaded model, rounded to number formats."""
    require_bridge(model)  # which a name is not
    every = range(n_blocks(model))
    rounded_at = list(every) if isinstance(blocks, str) else sorted(set(blocks))
    if not set(rounded_at) <= set(every):
        raise InputError(f"blocks={list(blocks)} are not blocks of this model.", f"Use blocks 0 to {every[-1]}.")
    session, pairs = take_pairs(
        model, sequence, "precision", wanted, round_to=formats, blocks=rounded_at, **metric.said
    )
    answers = None
    v, star = pairs.v.values, pairs.star.values
    floor = metric.floor(pairs.v, pairs.star, pairs.replay)
    identical = torch.stack([_identical(v, star, form) for form in formats])
    bits, each = _bits_needed(v, star, MANTISSA[dtype_of(session.model)])
    bits = torch.where(metric.clear(pairs), bits, torch.nan)
    each = torch.where(_typical_is_clear(pairs), each, torch.nan)
    over = ("format", "layer", "length")
    found = with_y("collapsed", identical, "whether v and v* are bit-identical after rounding", "1", over)
    found |= with_y("collapsed_from", from_then_on(identical == 1, pairs.lengths), FROM, "tokens", over[:2])
    found |= with_y("bits_needed", bits, "mantissa bits with which, and with any more, v and v* differ", "bits")
    text = "median over coordinates of the mantissa bits with which, and with any more, the two numbers differ"
    found |= with_y("bits_per_coordinate", each, text, "bits")
    found |= with_y("noise_floor", floor, metric.derived(NOISE), metric.units, ("layer",))
    if next_token_is_known(session.model):
        answers = most_likely(session.model, v[-1])
        same = answers == most_likely(session.model, star[-1])
        found["same_argmax"] = (("length",), same, "whether the most likely next token is the same", "1")
        text = "smallest measured length such that the next token is the same at it and at all longer measured lengths"
        found["same_argmax_from"] = ((), from_then_on(same, pairs.lengths), text, "tokens")
    axes = coords(pairs) | {"format": formats}
    if rounded_at:
        axes["block"] = rounded_at
        found |= _rounded_inputs(session.model, pairs, rounded_at, formats, metric, answers=answers)
    return session.dataset("precision", axes, found)


def _name(given: Any, choices: Any, argument: str) -> list[Any]:
    """The full names of formats or precisions, each once; an error for unknown ones, or none at all."""
    names = list(dict.fromkeys(map(full_name, several(given))))
    if not names:
        raise InputError(f"{argument}= is empty.", f"Give some of {', '.join(choices_of(choices))}.")
    for name in names:
        one_of(name, choices, argument)
    return names


def _identical(
    v: Float[Tensor, "layer branch d"], star: Float[Tensor, "layer branch d"], form: Stored
) -> Float[Tensor, "layer branch"]:
    """1 where all coordinates are equal after rounding to `form`, 0 where not, NaN where one exceeds its range."""
    found = torch.full(v.shape[:2], torch.nan, dtype=torch.float64)
    for place in product(*map(range, found.shape)):
        if within(v[place], getattr(torch, form)) and within(star[place], getattr(torch, form)):
            found[place] = float(torch.equal(rounded(v[place], form), rounded(star[place], form)))
    return found


def _typical_is_clear(pairs: PairCapture) -> Bool[Tensor, "layer branch"]:
    """Whether the median over coordinates of |Δ| is above three times what rounding does to it at any replayed length.

    Of a coordinate this is |v − ṽ| + |v* − ṽ*|, each at least half a unit in the last place.
    """
    v, star, replay = pairs.v.values, pairs.star.values, pairs.replay
    if replay is None:
        return torch.zeros(v.shape[:2], dtype=torch.bool)
    places, stored = list(replay.places), torch.float32 if replay.roundings else v.dtype
    moved = [
        torch.maximum((one - again).double().abs(), max(1, replay.roundings) * ulp(one, stored) / 2)
        for one, again in ((v[:, places], replay.v), (star[:, places], replay.star))
    ]
    floor = middle(moved[0] + moved[1]).amax(dim=-1)
    return middle((v - star).double().abs()) > NOISE_FLOORS * floor[:, None]


def _bits_needed(
    v: Float[Tensor, "layer branch d"], star: Float[Tensor, "layer branch d"], own: int
) -> tuple[Float[Tensor, "layer branch"], Float[Tensor, "layer branch"]]:
    """One more than the largest number of mantissa bits with which v and v* are equal; NaN if they are with all bits.

    The second tensor has the median over coordinates of the same for each coordinate alone. The first falls with the
    number of coordinates, since any of them may differ; the second does not. Fewer bits may distinguish what more do
    not: 1.2 and 1.3 are 1 and 1.5 with one bit, and both 1.25 with two.
    """
    needed = torch.zeros(v.shape[:2], dtype=torch.float64)
    each = torch.zeros(v.shape, dtype=torch.float32)
    for bits in range(own + 1):
        same = (rounded(v, bits) == rounded(star, bits)).cpu()
        needed[same.all(dim=-1)], each[same] = bits + 1, bits + 1
    return tuple(torch.where(bits > own, torch.nan, bits) for bits in (needed, middle(each).double()))  # pyright: ignore


def _rounded_inputs(
    model: Bridge, pairs: PairCapture, blocks: Sequence[int], formats: Collection[Stored], metric: Metric, *,
    answers: Tensor | None,
) -> dict[str, Variable]:  # fmt: skip
    """The variables of `precision` over (format, block, length), with the input of each block rounded in its own run.

    `answers` are v's most likely next tokens without rounding; without them there is no `same_answer`.
    """
    run = pairs.run(model)
    shape = (len(formats), len(blocks), len(pairs.lengths))
    distance, enters, same = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3))
    require_effective(model, [residual_site(block, model) for block in blocks])
    each = list(product(enumerate(formats), enumerate(blocks)))
    for (number, form), (place, block) in bar(each, desc="rounding"):
        hook = rounding(form, "residual", (block,))
        try:
            v, star = run.pairs(hooks=lambda _tokens, hook=hook: [hook], branch_hooks=(hook,))
        except RangeError:  # the residual stream of some token exceeds the range of the format
            continue
        distance[number, place] = metric.gap(v.values[-2:-1], star.values[-2:-1])[0]
        enters[number, place] = (v.values[block] == star.values[block]).all(dim=-1).double()
        if answers is not None:
            same[number, place] = (most_likely(model, v.values[-1]) == answers).double()
    # At block 0 most families have equal embeddings for v and v*, which are not above the noise floor.
    reached = (enters == 1) & metric.clear(pairs)[list(blocks)]
    numbers = torch.tensor(list(blocks), dtype=torch.float64)
    first = torch.where(reached.any(dim=1), numbers[reached.double().argmax(dim=1)], torch.nan)
    over = ("format", "block", "length")
    text = metric.distance("distance at the last layer, with the input of one block rounded")
    found: dict[str, Variable] = {
        "distance": (over, distance, text, metric.units),
        "enters_as_one": (over, enters, "whether v and v* are the same at the input of the block", "1"),
        "first_block": (("format", "length"), first, "first block whose rounding makes v and v* the same", "block"),
    }
    if answers is not None:
        text = "whether v's most likely next token is the same as without rounding"
        found["same_answer"] = (over, same, text, "1")
    return found


def _by_run(
    name: str | Path, sequence: GrowingSequence, runs: Iterable[Run], device: str | torch.device | None, wanted: Pairs,
    metric: Metric,
) -> xr.Dataset:  # fmt: skip
    """The Datasets of `collapse` along `run`, with the length from which v and v* are bit-identical."""
    found: dict[str, xr.Dataset] = {}
    refused: dict[str, SquashlensError] = {}
    for run in bar(runs, desc="runs"):
        try:
            dtype = "float32" if run == "int8" else run
            with quiet():
                model = load(name, dtype=dtype, quantize="int8" if run == "int8" else None, device=device)
            pairs = capture_pairs(model, sequence, wanted, patterns=False)
            found[run] = collapse(model, pairs, **metric.said).pipe(_with_ends)
        except SquashlensError as error:
            remark(f"The run in {run} failed and is left out. {error}")
            refused[run] = error
    if not found:
        raise next(iter(refused.values()))
    result = joined(found, "run")
    return result.assign_coords(refused=" ".join(f"{run}: {error}" for run, error in refused.items()))


def _with_ends(measured: xr.Dataset) -> xr.Dataset:
    """The Dataset of `collapse` with the length from which v and v* are bit-identical."""
    lengths = tuple(int(n) for n in measured["length"].values)
    labels = attributes(FROM, "tokens")
    for name, dims in (("", ("layer",)), ("_y", ())):
        same = torch.tensor(measured[f"bit_identical{name}"].values == 1)
        measured[f"collapsed_from{name}"] = (dims, from_then_on(same, lengths).numpy(), labels)
    return measured
