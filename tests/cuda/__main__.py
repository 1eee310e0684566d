"""The first minutes on a GPU: `python3 -m tests.cuda`, or `make cuda`. It needs Python 3.11 and nothing else.

It installs squashlens into a folder, runs every test marked `cuda`, and times the measurements on random weights with
the shapes of Gemma-2B, Gemma-7B and Gemma-3-4B. Every part has its own process and its own number of seconds: a part
that fails, dies or takes too long is named with the reason, and the next one begins. `results.json` and `page.md` are
written after each part. `--rehearse` does the same on the CPU with small shapes.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.cuda import cuda_tests, install, page

ROOT = Path(__file__).parents[2]
MARK = "@squashlens "
MODELS = ("gemma-2b", "gemma-7b", "gemma-3-4b")
SECONDS = 520.0  # of at most nine minutes
INSTALLING, TESTING, STARTING = 240.0, 150.0, 90.0


class Run:
    """What is known so far; kept in the folder after every part."""

    def __init__(self, folder: Path, rehearsal: bool, seconds: float) -> None:
        self.folder, self.until = folder, time.monotonic() + seconds
        self.held: dict[str, Any] = {"rehearsal": rehearsal, "parts": [], "failures": []}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()

    def left(self, most: float) -> float:
        """The seconds that a part may take: its own, or what is left of all."""
        return max(0.0, min(most, self.until - time.monotonic()))

    def failed(self, part: str, reason: str) -> None:
        print(f"FAILED {part}: {reason}", flush=True)
        self.held["failures"].append({"part": part, "reason": reason})
        self.keep()

    def keep(self) -> None:
        """Write both files, each under another name first, so that a run that is killed leaves whole ones."""
        self.held["seconds"] = time.monotonic() - self.began
        for name, text in (("results.json", json.dumps(self.held, indent=1)), ("page.md", page.page(self.held))):
            partial = self.folder / f".{name}"
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.folder / name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="small shapes on the CPU, with the present Python")
    parser.add_argument("--folder", type=Path, default=Path("runs/cuda"), help="folder for all that is written")
    parser.add_argument("--wheels", type=Path, help="install from the wheels in this folder, without a network")
    parser.add_argument("--python", help="a Python that has squashlens; by default one is installed into the folder")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds for everything; default: 520")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS, help="shapes to time")
    parser.add_argument("--break", dest="broken", default="", help=argparse.SUPPRESS)  # KIND=CAUSE, to rehearse it
    options = parser.parse_args(arguments)
    run = Run(options.folder.resolve(), options.rehearse, options.seconds)
    python = options.python or (sys.executable if options.rehearse else None)
    if python is None:
        try:
            python = install.installed(run.folder, options.wheels, run.left(INSTALLING))
        except install.InstallError as error:
            run.failed("installation", str(error))
            return 1
        run.held["installation"] = time.monotonic() - run.began
    run.keep()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    test(run, python, environment)
    for model in options.models:
        command = [python, "-m", "tests.cuda.works", model, "--break", options.broken]
        measure(run, model, [*command, *(["--cpu"] if options.rehearse else [])], environment)
    run.keep()
    print(f"{run.folder / 'page.md'}: {len(run.held['failures'])} failures, {run.held['seconds']:.0f} s")
    return int(bool(run.held["failures"]))


def test(run: Run, python: str, environment: dict[str, str]) -> None:
    """Run the tests marked `cuda`, or only collect them in a rehearsal."""
    command = cuda_tests.command(python, ROOT, run.held["rehearsal"])
    lines: list[str] = []
    end = "ended"
    for line in output(command, environment, run.left(TESTING)):
        if line is None:
            end = "took too long and was stopped"
        else:
            lines.append(line)
    found = cuda_tests.read(lines, run.held["rehearsal"])
    run.held["tests"] = found | {"end": end}
    for name, reason in found["failed"].items():
        run.failed(name, reason)
    if end != "ended" or not (found["passed"] or found["failed"] or found["collected"]):
        run.failed("tests", f"pytest {end}: {' / '.join(lines[-3:])[:400] or 'it printed nothing'}")
    run.keep()


def measure(run: Run, model: str, command: list[str], environment: dict[str, str]) -> None:
    """Time the works of one model, in another process after each one that dies or hangs."""
    tried: list[str] = []
    while True:
        if not run.left(STARTING):
            run.failed(model, "not begun: the time is up")
            return
        current, reason, tail = "model", "", list[str]()
        lines = output([*command, "--skip", *tried], environment, run.left(STARTING))
        for line in lines:
            if line is None:
                reason = "took longer than it may, and was stopped"
            elif not line.startswith(MARK):
                tail = [*tail, line][-3:]
            else:
                said = json.loads(line[len(MARK) :])
                if "begin" in said:
                    current = said["begin"]
                    lines.allow(run.left(said["budget"]))
                    continue
                tried.append(current)
                take(run, model, said)
                current = ""
        if not current and not reason:
            return
        if current in ("model", ""):
            run.failed(f"{model}: start", reason or f"the process died: {' / '.join(tail)[-400:]}")
            return
        tried.append(current)
        reason = reason or f"the process died with code {lines.code}: {' / '.join(tail)[-300:]}"
        run.failed(f"{model}: {current}", reason)


def take(run: Run, model: str, said: dict[str, Any]) -> None:
    """Keep what a work said of itself."""
    if "failed" in said:
        run.failed(f"{model}: {said['failed']}", said["reason"])
        return
    about = said.pop("about", None)
    if about:
        run.held["about"] = about
    known = [part for part in run.held["parts"] if (part["model"], part["done"]) == (model, said["done"])]
    if not known:
        run.held["parts"].append({"model": model} | said)
    print(f"{model}: {said['done']}: {said['seconds']:.3g} s", flush=True)
    run.keep()


class output:  # noqa: N801 (used like a function)
    """The lines that a program prints, as they come; `None` once, if it was stopped since its time was up."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], seconds: float) -> None:
        self.until, self.code = time.monotonic() + seconds, 0
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Begin to count again."""
        self.until = time.monotonic() + seconds

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def __iter__(self) -> Iterator[str | None]:
        try:
            while True:
                try:
                    line = self.lines.get(timeout=max(0.01, self.until - time.monotonic()))
                except queue.Empty:
                    yield None
                    return
                if line is None:
                    self.code = self.process.wait()
                    return
                yield line
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


if __name__ == "__main__":
    sys.exit(main())
