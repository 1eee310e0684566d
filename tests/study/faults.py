"""Kill workers and drivers of a study at random, and see whether anything is lost or computed twice.

    python -m tests.study.faults --cells 10000 --kills 50 --drivers 2 --workers 2

At a small scale the tests do the same. The script prints what the cells cost beside their computation, too.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

import squashlens as sl

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys, squashlens as sl
store, notes, cells, workers, seconds = sys.argv[1:]
grid = {"measurement": "tests.study.fakes:noted", "arguments": {"notes": notes, "seconds": float(seconds)},
        "each": {"x": list(range(int(cells)))}}
sl.Study(grid, store=store).run(workers=int(workers), progress=False)
"""


def study(store: Path, notes: Path, cells: int, seconds: float) -> sl.Study:
    arguments = {"notes": str(notes), "seconds": seconds}
    grid = {"measurement": "tests.study.fakes:noted", "arguments": arguments, "each": {"x": list(range(cells))}}
    return sl.Study(grid, store=store)


def injected(
    folder: Path, *, cells: int, kills: int, drivers: int, workers: int, seconds: float, seed: int = 0
) -> tuple[sl.Study, Counter[int], Counter[str]]:
    """Run a study with several drivers, and kill. Returns the study, how often each cell was begun, and the kills."""
    draw, killed = random.Random(seed), Counter[str]()
    store, notes = folder / "store", folder / "notes"
    made = study(store, notes, cells, seconds)
    running = [_driver(store, notes, cells, workers, seconds) for _ in range(drivers)]
    try:
        for number in range(kills):
            _wait(running, lambda: _workers(running), "no worker started")
            before = made.store.count()
            _wait(running, lambda before=before: made.store.count() > before, "no cell was done")
            victims = _workers(running)
            if number % 5 == 4 or not victims:
                place = draw.randrange(len(running))
                running[place].kill()
                running[place].wait()
                running[place] = _driver(store, notes, cells, workers, seconds)
                killed["driver"] += 1
            else:
                draw.choice(victims).kill()
                killed["worker"] += 1
        for driver in running:
            if driver.wait(timeout=3000):
                raise RuntimeError("A driver failed.")
    finally:
        for driver in running:
            for worker in _workers([driver]):
                worker.kill()
            driver.kill()
            driver.wait()
    return made, Counter(map(int, notes.read_text().split())), killed


def _driver(store: Path, notes: Path, cells: int, workers: int, seconds: float) -> "subprocess.Popen[bytes]":
    words = [str(store), str(notes), str(cells), str(workers), str(seconds)]
    return subprocess.Popen([sys.executable, "-c", DRIVER, *words], cwd=ROOT)


def _workers(drivers: list["subprocess.Popen[bytes]"]) -> list[psutil.Process]:
    found = []
    for driver in drivers:
        try:
            found += [one for one in psutil.Process(driver.pid).children() if one.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            continue
    return found


def _wait(drivers: list["subprocess.Popen[bytes]"], there: object, why: str) -> None:
    end = time.monotonic() + 300
    while not there():  # pyright: ignore[reportCallIssue]
        if any(driver.poll() not in (None, 0) for driver in drivers) or time.monotonic() > end:
            raise RuntimeError(f"A driver failed, or {why}.")
        if all(driver.poll() == 0 for driver in drivers):
            return
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("cells", 10000), ("kills", 50), ("drivers", 2), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.0, help="length of a cell (%(default)s)")
    parser.add_argument("--folder", help="where the stores are; by default a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        folder = Path(scratch)
        (folder / "quiet").mkdir()
        quiet = study(folder / "quiet", folder / "quiet-notes", args.cells, args.seconds)
        for what, act in (
            ("run in this process", lambda: quiet.run(progress=False)),
            ("run again, with nothing to do", lambda: quiet.run(progress=False)),
            ("status", quiet.status), ("combine and load", lambda: quiet.combine()),
            ("sql", lambda: quiet.sql('select count(*), sum(value) from "tests_study_fakes_noted"')),
        ):  # fmt: skip
            began = time.monotonic()
            act()
            took = time.monotonic() - began
            print(f"{what}: {took:.2f} s, {1000 * (took / args.cells - args.seconds):.2f} ms per cell")
        began = time.monotonic()
        made, begun, killed = injected(
            folder, cells=args.cells, kills=args.kills, drivers=args.drivers, workers=args.workers, seconds=args.seconds
        )
        twice = sum(many - 1 for many in begun.values())
        print(f"{dict(killed)} killed in {time.monotonic() - began:.0f} s: {len(begun)} cells, {twice} begun again")
        print(made.status().to_string(index=False))
        same = all(made.store.read(c.key).content == quiet.store.read(d.key).content
                   for c, d in zip(made.cells, quiet.cells, strict=True))  # fmt: skip
        print(f"results equal those of a run without kills: {same}")


if __name__ == "__main__":
    main()
