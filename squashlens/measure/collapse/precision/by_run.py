"""Collapse of one sequence in models that are loaded in several precisions: other dtypes, or 8-bit weights.

Rounding a float32 representation shows what is lost when it is stored. A model that runs in low precision rounds at
every step. Each run loads the model anew and verifies it against the Hugging Face model in the same precision.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import torch
import xarray as xr

from squashlens._typing import Distance, Scale
from squashlens.bars import bar
from squashlens.engine.capturing.pairs import capture_pairs
from squashlens.engine.loading.load import load
from squashlens.errors import SquashlensError
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.collapse.pairs import from_then_on
from squashlens.records.joining import joined
from squashlens.records.results import attributes
from squashlens.remarks import remark
from squashlens.sequences import GrowingSequence

Run = Literal["float32", "bfloat16", "float16", "int8"]
Precision = Literal[Run, "fp32", "bf16", "fp16"] | torch.dtype  # as a user may give it


def precision_by_run(
    name: str | Path,
    sequence: GrowingSequence,
    runs: Iterable[Run],
    *,
    lengths: Iterable[int] | None,
    norm: Distance,
    scale: Scale,
    noise_lengths: int,
    device: str | torch.device | None,
    progress: bool,
) -> xr.Dataset:
    """The Datasets of `collapse` for one sequence, with the model loaded in each of several precisions in turn.

    They are joined along `run`, with the length from which v and v* are bit-identical.
    """
    chosen = None if lengths is None else list(lengths)
    found: dict[str, xr.Dataset] = {}
    refused: dict[str, SquashlensError] = {}
    for run in bar(runs, desc="runs", progress=progress):
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
