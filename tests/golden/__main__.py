"""`python -m tests.golden record [models]` writes the record.

`python -m tests.golden add NAME` writes the record of a new measurement or hook alone, of its usual call on the bundled
model.
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from tests import measurements
from tests.golden import numbers


def main() -> None:
    """Record some models, all if none is named."""
    verb, *models = sys.argv[1:] or ["help"]
    if verb not in ("record", "add"):
        sys.exit(__doc__)
    models = models or measurements.MODELS
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in models:
        with tempfile.TemporaryDirectory() as root:
            if verb == "add":
                measurements.MEASUREMENTS = {
                    name: lambda s, name=name: {
                        "usual": lambda: measurements.others()[name](s)
                    }
                }
                record("tiny-gemma", Path(root), name)
            else:
                record(name, Path(root))


def record(name: str, root: Path, file: str | None = None) -> None:
    """The numbers of one model, and what they may move by, into its file."""
    subject = measurements.subject(name, root)
    copies = [
        moved(subject, root / f"{name} {seed}", seed) for seed in range(numbers.COPIES)
    ]
    run = sl.capture(subject.model, [subject.prompt], keep="residuals")
    assert run.y is not None
    streams = torch.stack(
        [*(run.residuals[layer][0] for layer in sorted(run.residuals)), run.y[0]]
    ).double()
    found, out, entries = {}, 0, 0
    for measurement in measurements.MEASUREMENTS:
        for call, result in measurements.calls(subject, measurement):
            if isinstance(result, Exception):
                print(
                    f"{name} {measurement} {call}: not recorded, {type(result).__name__}: {result}"
                )
                continue
            others = [measurements.one(copy, measurement, call) for copy in copies]
            again = [numbers.arrays(other) for other in others]
            for variable, array in numbers.arrays(result).items():
                one = numbers.Named(
                    array.values,
                    array.dims,
                    numbers.sized(variable, array, result, streams),
                )
                same = [
                    a[variable].values
                    for a in again
                    if variable in a and a[variable].values.shape == one.values.shape
                ]
                if len(same) < len(again):
                    print(
                        f"{name} {measurement} {call} {variable}: not recorded, other copies give other shapes"
                    )
                    continue
                free = numbers.allowed(variable, one, same)
                of_totals = numbers.allowed_totals(one, same, free)
                found[f"{measurement}/{call}/{variable}"] = (one, free, of_totals)
                out, entries = out + int(np.isinf(free).sum()), entries + free.size
                if missing := int(np.isinf(free).sum()):
                    print(
                        f"{name} {measurement}/{call}/{variable}: {missing} of {free.size} left out"
                    )
    path = numbers.write(file or name, found)
    print(
        f"{name}: {len(found)} arrays, {entries} entries, {out} left out, {path.stat().st_size} bytes",
        flush=True,
    )


def moved(
    subject: measurements.Subject, folder: Path, seed: int
) -> measurements.Subject:
    """The model with every weight moved a little."""
    source = subject.model.tokenizer.name_or_path if subject.speaks else subject.opened
    folder.mkdir()
    for file in Path(source).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    plain = AutoModelForCausalLM.from_pretrained(source)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(
                1 + numbers.MOVED * torch.randn(parameter.shape, generator=generator)
            )
    plain.save_pretrained(folder)
    return measurements.Subject(subject.name, sl.load(folder, device="cpu"), folder)


if __name__ == "__main__":
    main()
