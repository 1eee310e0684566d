"""The same pair in runs of several precisions: another dtype, or weights in eight bits, is another model.

Rounding a vector that was computed in float32 says what is lost by *storing* it; a run in fewer bits rounds every step
on the way. Each run is a load of its own, proved against the plain model in the same precision.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal, get_args

import torch
import xarray as xr

from squashlens._typing import Distance, Scale, full_name, one_of
from squashlens.arguments import validated
from squashlens.bars import bar
from squashlens.errors import InputError, SquashlensError
from squashlens.measure.collapse import collapse
from squashlens.measure.precision import from_then_on
from squashlens.model.load import load
from squashlens.remarks import remark
from squashlens.results import attributes, joined, provenance
from squashlens.sequences import Sequence

Run = Literal["float32", "bfloat16", "float16", "int8"]
Short = Literal["fp32", "bf16", "fp16"]


@validated
def precision_by_run(
    name: str | Path,
    sequence: Sequence,
    *,
    runs: Collection[Run | Short] = get_args(Run),
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    replay: int = 6,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """`collapse` of one sequence in every run, each loaded, measured and let go in turn.

    Args:
        name: what `load` opens.
        sequence: from `squashlens.prompts`, of any load of that model: its ids are the same in all.
        runs: dtypes of the run, by their names or as ``"bf16"``, ``"fp16"``, ``"fp32"``; ``"int8"`` is float32 with
            weights in eight bits, and needs the extra ``squashlens[quant]``.
        lengths, norm, scale: as in `collapse`.
        replay: at how many lengths every prompt is run by itself too. Passes of another shape round otherwise, which
            gives the noise floor; a D below it may be rounding alone.
        device: as in `load`.

    Returns:
        The Dataset of `collapse` with a leading `run`; also over (run, layer), with `_y`: `collapsed_from`, the first
        measured length from which v and v* are bit-identical in the run's own dtype at every longer measured one, NaN
        if never. A run that is refused is left out with a warning that says why; the coordinate `refused` keeps the
        reasons.

    >>> import squashlens as sl
    >>> ones = sl.prompts.repeated(sl.load("tiny-gemma", progress=False), "1", 24)
    >>> ds = sl.precision_by_run("tiny-gemma", ones, runs=["float32", "bfloat16"], replay=2, progress=False)
    >>> ds["run"].values.tolist()
    ['float32', 'bfloat16']
    """
    if not runs:
        raise InputError("There is no run to make.", f"Name some of {', '.join(get_args(Run))}.")
    named = list(dict.fromkeys(full_name(run) for run in runs))
    for run in named:
        one_of(run, Run, "runs")
    chosen = None if lengths is None else list(lengths)
    found: dict[str, xr.Dataset] = {}
    refused: dict[str, SquashlensError] = {}
    for run in bar(named, desc="runs", progress=progress):
        try:
            dtype = "float32" if run == "int8" else run
            model = load(name, dtype=dtype, quantise="int8" if run == "int8" else None, device=device, progress=False)
            found[run] = collapse(
                model, sequence, lengths=chosen, norm=norm, scale=scale, replay=replay, progress=False
            ).pipe(_with_ends)
        except SquashlensError as error:
            remark(f"The run in {run} is left out. {error}")
            refused[run] = error
    if not found:
        raise next(iter(refused.values()))
    result = joined(found, "run")
    return result.assign_coords(refused=" ".join(f"{run}: {error}" for run, error in refused.items()))


def _with_ends(measured: xr.Dataset) -> xr.Dataset:
    """From which length on v and v* are the same."""
    lengths = tuple(int(n) for n in measured["length"].values)
    text = "first measured length from which v and v* are bit-identical at every longer measured one"
    about = attributes(text, "token", provenance(measured))
    for name, dims in (("", ("layer",)), ("_y", ())):
        same = torch.tensor(measured[f"bit_identical{name}"].values == 1)
        measured[f"collapsed_from{name}"] = (dims, from_then_on(same, lengths).numpy(), about)
    return measured
