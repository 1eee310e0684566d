"""Kill what runs a study, at random: its driver, its workers, their nodes."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import squashlens as sl

ROOT = Path(__file__).parents[2]
WAIT = 300  # seconds until something must have happened
DRIVER = """
import json, sys, squashlens as sl
from squashlens.study import engines
engines.ASK = 0.5
grids, store, options = map(json.loads, sys.argv[1:])
sl.Study(grids, store=store).run(**options)
"""
Kill = Callable[[random.Random], bool]  # whether there was something to kill


@dataclass
class Killed:
    """A study that runs in a process of its own, what was killed of it, and how."""

    grids: list[dict[str, Any]]
    store: Path
    options: Mapping[str, Any]
    kills: Mapping[str, Kill] = field(default_factory=dict)  # beside workers and drivers
    workers_are: str = ""  # what their command lines have; otherwise they are the driver's children
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int, seed: int = 0) -> sl.Study:
        """The study after all of its cells are closed: every fourth kill is of the driver, or of another kind."""
        draw, made = random.Random(seed), sl.Study(self.grids, store=self.store)
        keys = {cell.key for cell in made.cells}
        self._start()
        try:
            while self.killed.total() < kills and len(made.store.named(keys)) < len(keys):
                before = len(made.store.named(keys))
                self._wait(lambda before=before: len(made.store.named(keys)) > before or self.driver.poll() == 0)
                number, kinds = self.killed.total(), ["driver", *self.kills]
                kind = kinds[number // 4 % len(kinds)] if number % 4 == 3 else "worker"
                if {"driver": self._kill_driver, "worker": self._kill_worker, **self.kills}[kind](draw):
                    self.killed[kind] += 1
            self._wait(lambda: self.driver.poll() is not None, 10 * WAIT)
            if self.driver.returncode:
                raise RuntimeError("The driver failed.")
        finally:
            for one in [*self._workers(), self.driver]:
                one.kill()
            self.driver.wait()
        return made

    def _start(self) -> None:
        words = [json.dumps(one) for one in (self.grids, str(self.store), self.options)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.driver = subprocess.Popen([sys.executable, "-c", DRIVER, *words], cwd=ROOT, env=environment)

    def _kill_driver(self, _: random.Random) -> bool:
        self.driver.kill()
        self.driver.wait()
        self._start()
        return True

    def _kill_worker(self, draw: random.Random) -> bool:
        workers = self._workers()
        if workers:
            draw.choice(workers).kill()
        return bool(workers)

    def _workers(self) -> list[psutil.Process]:
        if self.workers_are:
            every = psutil.process_iter(["cmdline"])
            return [one for one in every if self.workers_are in " ".join(one.info["cmdline"] or [])]
        try:
            children = psutil.Process(self.driver.pid).children()
            return [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def _wait(self, there: Callable[[], object], seconds: float = WAIT) -> None:
        end = time.monotonic() + seconds
        while not there():
            if self.driver.poll() not in (None, 0) or time.monotonic() > end:
                raise RuntimeError("The driver failed, or nothing gets done.")
            time.sleep(0.02)
