"""Collapse when the input of one block is rounded: the residual streams of all tokens, for one block at a time."""

from collections.abc import Collection
from itertools import product
from typing import get_args

import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale
from squashlens.bars import bar
from squashlens.engine.anatomy import residual_site
from squashlens.engine.capturing.pairs import SequenceOrCapture
from squashlens.engine.proving.effective import require_effective
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.unembed import most_likely
from squashlens.errors import RangeError
from squashlens.hooks.rounding import Stored, rounding
from squashlens.measure.collapse.metric import Metric, next_token_is_known
from squashlens.measure.collapse.pairs import REPLAYED, captured, coords
from squashlens.measure.collapse.precision.stored import check_formats
from squashlens.results import Variable


@measured
def precision_by_block(
    model: Bridge,
    sequence: SequenceOrCapture,
    *,
    formats: Collection[Stored] = get_args(Stored),
    norm: Distance = "linf",
    scale: Scale = "relative",
    progress: bool = True,
) -> xr.Dataset:
    """The effect on a pair of rounding the residual streams of all tokens at the input of a single block.

    Args:
        model: as in `collapse`.
        sequence: a growing sequence from `squashlens.prompts`; or a `capture` of one, which is the unrounded run to
            compare with. The rounded runs are made here, with the same kind of passes.
        formats: as in `precision`.
        norm: as in `collapse`.
        scale: unit of the distance: ``"relative"`` (the default), the root mean square of v's coordinates, or
            ``"absolute"``, the model's units.
        progress: whether to show a progress bar; yes by default.

    Returns:
        Dataset. Over (format, block, length), NaN where a coordinate exceeds the range of the format: `distance`, D at
        the last layer; `enters_as_one`, whether the last token's residual stream at the input of the block is the same
        in v and v*; `same_answer`, whether v's most likely next token is the same as without rounding. Over (format,
        length): `first_block`, the first block whose rounding makes v and v* the same at its input although they
        differ there by more than three noise floors without it; NaN if there is none, or if no length was replayed.

    Raises:
        InputError: unknown formats, or something that is not a sequence or its capture.
        UnsoundModelError: residual-stream hooks that have no effect in this model.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> pairs = sl.capture(model, sl.prompts.repeated(model, "1", 24), lengths=[8, 24], progress=False)
    >>> ds = sl.precision_by_block(model, pairs, formats=["bfloat16"], progress=False)
    >>> ds["distance"].dims, bool(ds["same_answer"].all())
    (('format', 'block', 'length'), True)
    """
    metric = Metric(norm, scale)
    check_formats(formats)
    session, pairs = captured(
        model, sequence, "precision_by_block", noise_lengths=REPLAYED, formats=list(formats), norm=norm, scale=scale
    )
    model = session.model
    run = pairs.run(model)
    blocks = run.layers[:-1]
    shape = (len(formats), len(blocks), len(pairs.lengths))
    distance, enters, same = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3))
    answers = most_likely(model, pairs.v.values[-1]) if next_token_is_known(model) else None
    require_effective(model, [residual_site(block, model) for block in blocks], "residual-stream")
    each = list(product(enumerate(formats), blocks))
    for (number, form), block in bar(each, desc="rounding", progress=progress):
        hook = rounding(form, "residual", (block,))
        try:
            v, star = run.pairs(hooks=lambda _tokens, hook=hook: [hook], branch_hooks=(hook,))
        except RangeError:  # the residual stream of some token exceeds the range of the format
            continue
        distance[number, block] = metric.gap(v.values[-2:-1], star.values[-2:-1])[0]
        enters[number, block] = (v.values[block] == star.values[block]).all(dim=-1).double()
        if answers is not None:
            same[number, block] = (most_likely(model, v.values[-1]) == answers).double()
    # At block 0 most families have equal embeddings for v and v*, which are not above the noise floor.
    reached = (enters == 1) & metric.clear(pairs)[: len(blocks)]
    first = torch.where(reached.any(dim=1), reached.double().argmax(dim=1).double(), torch.nan)
    over = ("format", "block", "length")
    text = f"{norm} distance at the last layer, with the input of one block rounded"
    found: dict[str, Variable] = {
        "distance": (over, distance, text, metric.units),
        "enters_as_one": (over, enters, "whether v and v* are the same at the input of the block", "1"),
        "first_block": (("format", "length"), first, "first block whose rounding makes v and v* the same", "block"),
    }
    if answers is not None:
        text = "whether v's most likely next token is the same as without rounding"
        found["same_answer"] = (over, same, text, "1")
    axes = {name: values for name, values in coords(pairs).items() if name != "layer"}
    return session.dataset("precision by block", axes | {"format": list(formats), "block": blocks}, found)
