"""Sliding windows, with and without sinks: what is left of collapse, of the bound and of the answers."""

from collections.abc import Iterable

import numpy as np
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure._pairs import required
from squashlens.measure.accuracy import Answer
from squashlens.measure.compare import Task
from squashlens.model import anatomy
from squashlens.model.interventions import sliding_window
from squashlens.model.registry import measured
from squashlens.results import joined
from squashlens.sequences import Sequence


@measured
def windows(
    model: Bridge,
    sequence: Sequence,
    sizes: Iterable[int],
    *,
    sinks: Iterable[int] = (0, 1),
    answer: Answer | None = None,
    draws: int = 16,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    seed: int = 0,
    replay: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """What `compare` measures, against the size of a window imposed on every block and the sinks left in sight.

    Beside the sizes asked for stands the length of the longest v*, where the model is as it is; longer ones would be
    the same and are left out. In a block with a native window the narrower one acts.

    Args:
        sizes: windows in tokens, the query included.
        sinks: numbers of first tokens that stay in sight; BOS is the first where there is one.
        answer, draws, lengths, norm, scale, seed, replay: as in `compare`.

    Returns:
        Dataset as of `compare`, over (sink, window) in place of `change`; and `native_window` over (block), in tokens,
        NaN where a block sees everything.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, prompt="How many ones are in the following sequence?", suffix="=")
    >>> ds = sl.windows(model, ones, [4, 8], lengths=[12], progress=False)
    >>> ds["distance"].dims, ds["window"].values.tolist()
    (('sink', 'window', 'layer', 'length'), [4, 8, 24])
    """
    task = Task(required(sequence), answer, draws, seed)
    chosen = list(range(1, len(sequence) + 1)) if lengths is None else list(lengths)
    if not chosen:
        raise InputError("lengths is empty.", "Give at least one number of content tokens.")
    whole = len(sequence.doubled(chosen[-1]))
    asked, first = list(sizes), list(sinks)
    if not asked or not first:
        raise InputError("There is no window to try.", "Give at least one size and one number of sinks.")
    tried = [*sorted({size for size in asked if size < whole}), whole]
    hooks = {(sink, size): sliding_window(size, sink=sink) for sink in first for size in tried}
    # Not even a hook at the longest: answers are said behind v*, where a window of its length would hide something.
    plain = task.measured(model, [], chosen, norm, scale, replay)
    shown = bar(hooks.items(), desc="windows", progress=progress)
    found = {
        (sink, size): plain if size == whole else task.measured(model, [hook], chosen, norm, scale, replay)
        for (sink, size), hook in shown
    }
    rows = {sink: joined({size: found[sink, size] for size in tried}, "window") for sink in first}
    native = np.array([np.nan if window is None else window for window in anatomy.windows(model)], dtype=float)
    about = {"long_name": "native attention window, the query included", "units": "token"}
    return joined(rows, "sink").assign(native_window=("block", native, about))
