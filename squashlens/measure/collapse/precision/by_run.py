"""Collapse of one sequence in models that are loaded in several precisions: other dtypes, or 8-bit weights.

Rounding a float32 representation shows what is lost when it is stored. A model that runs in low precision rounds at
every step. Each run loads the model anew and verifies it against the Hugging Face model in the same precision.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal, get_args

import torch
import xarray as xr

from squashlens._typing import Distance, Scale, full_name, one_of
from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.engine.capturing.pairs import capture_pairs
from squashlens.engine.loading.load import load
from squashlens.errors import InputError, SquashlensError
from squashlens.joining import joined
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.collapse.precision.stored import from_then_on
from squashlens.remarks import remark
from squashlens.results import attributes
from squashlens.sequences import GrowingSequence

Run = Literal["float32", "bfloat16", "float16", "int8"]
Short = Literal["fp32", "bf16", "fp16"]


@validated
def precision_by_run(
    name: str | Path,
    sequence: GrowingSequence,
    *,
    runs: Collection[Run | Short] = get_args(Run),
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    noise_lengths: int = 6,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """The distances of `collapse` for one sequence, with the model loaded in each of several precisions in turn.

    Args:
        name: name or folder of the model, as `load` takes it.
        sequence: a growing sequence from `squashlens.prompts`, built with any load of that model.
        runs: precisions in which the model is run: ``"float32"``, ``"bfloat16"``, ``"float16"`` (or ``"fp32"``,
            ``"bf16"``, ``"fp16"``), and ``"int8"``, float32 with 8-bit weights, which needs ``squashlens[quant]``; all
            by default.
        lengths: numbers of content tokens at which D is measured, in increasing order; all from 1 by default.
        norm: as in `collapse`.
        scale: unit of the distance: ``"relative"`` (the default), the root mean square of v's coordinates, or
            ``"absolute"``, the model's units.
        noise_lengths: number of lengths at which each prompt is also run by itself, for the noise floor: a D below it
            may be rounding. 6 by default.
        device: device of the model, such as ``"cpu"`` or ``"cuda"``; CUDA if available by default.
        progress: whether to show a progress bar; yes by default.

    Returns:
        Dataset: that of `collapse` with a leading dimension `run`; and over (run, layer) `collapsed_from`, the smallest
        measured length such that v and v* are bit-identical in the dtype of the run at it and at all longer measured
        lengths, NaN if there is none, with `collapsed_from_y` for y. A run that fails is left out with a warning; the
        coordinate `refused` has the reason.

    Raises:
        InputError: unknown or no runs.
        SquashlensError: all runs failed; the error is that of the first.

    >>> import squashlens as sl
    >>> ones = sl.prompts.repeated(sl.load("tiny-gemma", progress=False), "1", 24)
    >>> ds = sl.precision_by_run("tiny-gemma", ones, runs=["float32", "bfloat16"], noise_lengths=2, progress=False)
    >>> ds["run"].values.tolist()
    ['float32', 'bfloat16']
    """
    if not runs:
        raise InputError("runs= is empty.", f"Give some of {', '.join(get_args(Run))}.")
    named = list(dict.fromkeys(full_name(run) for run in runs))
    for run in named:
        one_of(run, Run, "runs")
    chosen = None if lengths is None else list(lengths)
    found: dict[str, xr.Dataset] = {}
    refused: dict[str, SquashlensError] = {}
    for run in bar(named, desc="runs", progress=progress):
        try:
            dtype = "float32" if run == "int8" else run
            model = load(name, dtype=dtype, quantize="int8" if run == "int8" else None, device=device, progress=False)
            pairs = capture_pairs(
                model, sequence, lengths=chosen, patterns=False, noise_lengths=noise_lengths, progress=False
            )
            found[run] = collapse(model, pairs, norm=norm, scale=scale).pipe(_with_ends)
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
    text = "smallest measured length such that v and v* are bit-identical at it and at all longer measured lengths"
    labels = attributes(text, "tokens")
    for name, dims in (("", ("layer",)), ("_y", ())):
        same = torch.tensor(measured[f"bit_identical{name}"].values == 1)
        measured[f"collapsed_from{name}"] = (dims, from_then_on(same, lengths).numpy(), labels)
    return measured
