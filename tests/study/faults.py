"""Kill workers and drivers of a study at random."""

import random
import subprocess
import sys
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
sl.Study(grid, store=store).run(workers=int(workers))
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
