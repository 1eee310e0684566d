"""How many cells per second do two local workers compute, compared with one? The same cells, in turns.

    python -m tests.study.throughput --cells 60 --turns 3

A cell draws and runs a random stack on one thread. Each run is timed from its first stored cell to its last, without
the start of the workers, which imports PyTorch. The ratio says something only if the cores are free, so the script also
prints how much of them other programs used before each run. The target is a ratio of at least 1.8.
"""

import argparse
import tempfile
from pathlib import Path

import psutil

import squashlens as sl
from squashlens.study.engines.drive import drive
from squashlens.study.engines.local import Local
from squashlens.study.engines.worker import task_of


def rate(store: Path, cells: int, longest: int, workers: int) -> float:
    """Cells per second between the first cell that is stored and the last."""
    arguments = {"stack": {"depth": 2, "heads": 4}, "lengths": [longest // 8, longest // 4, longest // 2, longest],
                 "tail": 1.0}  # fmt: skip
    grid = {"measurement": "synthetic.convergence", "arguments": arguments, "each": {
        "seeds": [[seed] for seed in range(cells)]}}  # fmt: skip
    made = sl.Study(grid, store=store)
    made.store.place.require_writable()
    task = task_of([grid], made.store.place.url, made.cells, workers, 1, "cpu")
    drive(Local(), task, workers, made.store, made.cells, progress=False)
    times = sorted(file.stat().st_mtime for file in (store / "cells").rglob("*.cell"))
    if len(times) != cells:
        raise RuntimeError(f"{len(times)} of {cells} cells are done.")
    return (len(times) - workers) / (times[-1] - times[workers - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=60, help="cells in each run (%(default)s)")
    parser.add_argument("--longest", type=int, default=1000, help="tokens of the longest sequence (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="runs with one worker and with two (%(default)s)")
    args = parser.parse_args()
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.turns):
            for workers in (1, 2) if turn % 2 == 0 else (2, 1):
                busy = psutil.cpu_percent(interval=2.0)
                found = rate(Path(folder) / f"{turn}-{workers}", args.cells, args.longest, workers)
                rates[workers].append(found)
                print(f"{workers} workers: {found:.2f} cells/s; {busy:.0f} % of the cores in use before", flush=True)
    one, two = (sorted(rates[workers])[args.turns // 2] for workers in (1, 2))
    print(f"two workers: {two / one:.2f} times one (medians of {args.turns}), {psutil.cpu_count()} cores")


if __name__ == "__main__":
    main()
