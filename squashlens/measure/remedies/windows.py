"""Sliding attention windows with and without sinks, compared by collapse, path bound and accuracy."""

from collections.abc import Iterable

import numpy as np
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.bars import bar
from squashlens.engine import anatomy
from squashlens.engine.capturing.pairs import SequenceOrCapture, prepare_run, sequence_of
from squashlens.engine.proving.registry import measured
from squashlens.errors import InputError
from squashlens.hooks.interventions import sliding_window
from squashlens.joining import joined, restated
from squashlens.measure.answers.accuracy import Answer
from squashlens.measure.remedies.compare import Comparison


# More than ten parameters, since each is an independent option of the measurement; most have defaults.
@measured
def windows(
    model: Bridge,
    sequence: SequenceOrCapture,
    sizes: Iterable[int],
    *,
    sinks: Iterable[int] = (0, 1),
    answer: Answer | None = None,
    n_samples: int = 16,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    seed: int = 0,
    noise_lengths: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Collapse, path bound and accuracy for sliding windows of several sizes in all blocks, with and without sinks.

    In addition to the given sizes, the result has the length of the longest v*, at which the model is unchanged; larger
    sizes would give the same and are left out. In a block with a native window the narrower one applies.

    Args:
        model: as in `collapse`.
        sequence: as in `compare`.
        sizes: window sizes in tokens, including the query.
        sinks: numbers of first tokens that all tokens can attend to despite the window; 0 and 1 by default. BOS is
            the first token, if there is one.
        answer: as in `compare`.
        n_samples: as in `compare`.
        lengths: as in `compare`.
        norm: as in `collapse`.
        scale: unit of the distance: ``"relative"`` (the default), the root mean square of v's coordinates, or
            ``"absolute"``, the model's units.
        seed: as in `compare`.
        noise_lengths: as in `compare`.
        progress: as in `compare`.

    Returns:
        Dataset: that of `compare`, with the dimensions (sink, window) instead of `change`; and over (block)
        `native_window`, in tokens, NaN for a block without a window.

    Raises:
        InputError: no sizes or no sinks.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, prefix="How many ones are in the following sequence?", suffix="=")
    >>> ds = sl.windows(model, ones, [4, 8], lengths=[12], progress=False)
    >>> ds["distance"].dims, ds["window"].values.tolist()
    (('sink', 'window', 'layer', 'length'), [4, 8, 24])
    """
    requested, first = list(sizes), list(sinks)
    if not requested or not first:
        raise InputError("sizes= or sinks= is empty.", "Give at least one size and one number of sinks.")
    for size in requested:
        positive(size, "sizes", "a number of tokens")
    for sink in first:
        positive(sink, "sinks", "a number of tokens", or_zero=True)
    comparison = Comparison(sequence_of(sequence), answer, n_samples, seed)
    chosen = list(prepare_run(model, sequence, lengths, "auto", None, progress=False).lengths)
    whole = len(comparison.sequence.doubled(chosen[-1]))
    tried = [*sorted({size for size in requested if size < whole}), whole]
    hooks = {(sink, size): sliding_window(size, sink=sink) for sink in first for size in tried}
    # The largest size has no hook: the tokens of an answer follow v*, and a window of its length would hide tokens.
    plain = comparison.measured(model, [], chosen, norm, scale, noise_lengths)
    progress_bar = bar(hooks.items(), desc="windows", progress=progress)
    found = {
        (sink, size): plain if size == whole else comparison.measured(model, [hook], chosen, norm, scale, noise_lengths)
        for (sink, size), hook in progress_bar
    }
    rows = {sink: joined({size: found[sink, size] for size in tried}, "window") for sink in first}
    native = np.array([np.nan if window is None else window for window in anatomy.windows(model)], dtype=float)
    labels = {"long_name": "native attention window, including the query", "units": "tokens"}
    return restated(joined(rows, "sink").assign(native_window=("block", native, labels)), {})
