"""The first minutes on a GPU: `make cuda`, or `python -m tests.cuda` in an environment with `squashlens[dev]`.

It runs every test marked `cuda`, and times the measurements on random weights with the shapes of Gemma-2B, Gemma-7B and
Gemma-3-4B. Every shape has its own process and its own number of seconds: one that dies or takes too long is named with
the work it was at, and the next one begins. `results.json` is written after each part. `--rehearse` does the same on
the CPU with small shapes.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.cuda.works import MARK, MODELS
from tests.programs import ROOT, printed

SECONDS = 520.0  # of at most nine minutes
TESTING = 150.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="small shapes on the CPU, with the present Python")
    parser.add_argument("--folder", type=Path, default=Path("runs/cuda"), help="folder for all that is written")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds for everything; default: 520")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS, help="shapes to time")
    options = parser.parse_args(arguments)
    began, held = time.monotonic(), {"rehearsal": options.rehearse, "parts": [], "failures": []}
    file = options.folder.resolve() / "results.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = [partial(test, held), *(partial(measure, held, model) for model in options.models)]
    for number, part in enumerate(parts):
        left = max(0.0, began + options.seconds - time.monotonic())
        part(left / (len(parts) - number) if number else min(TESTING, left))
        held["seconds"] = time.monotonic() - began
        file.write_text(json.dumps(held, indent=1), encoding="utf-8")
    print(f"{file}: {len(held['failures'])} failures, {held['seconds']:.0f} s")
    return int(bool(held["failures"]))


def failed(held: dict[str, Any], part: str, reason: str) -> None:
    print(f"FAILED {part}: {reason}", flush=True)
    held["failures"].append({"part": part, "reason": reason})


def test(held: dict[str, Any], seconds: float) -> None:
    """Run the tests marked `cuda`, or only collect them in a rehearsal."""
    told = ["--collect-only", "-q"] if held["rehearsal"] else ["-q", "-rfE", "--tb=line"]
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-p", "no:xdist", *told, *test_files()]
    lines, reason = printed(command, seconds)
    held["tests"] = lines[-1] if lines else "it printed nothing"
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            failed(held, "tests", line)
    if reason:
        failed(held, "tests", reason)


def test_files() -> list[str]:
    """The files with tests that are marked `cuda`: the others are not imported, which would take a minute."""
    mark = "pytest.mark." + "cuda"
    found = (ROOT / "tests").rglob("test_*.py")
    return sorted(str(path.relative_to(ROOT)) for path in found if mark in path.read_text(encoding="utf-8"))


def measure(held: dict[str, Any], model: str, seconds: float) -> None:
    """Time the works of one model, and keep what each said."""
    command = [sys.executable, "-m", "tests.cuda.works", model, *(["--cpu"] if held["rehearsal"] else [])]
    lines, reason = printed(command, seconds)
    current = "start"
    for said in (json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)):
        current = said.get("begin", current)
        if "failed" in said:
            failed(held, f"{model}: {said['failed']}", said["reason"])
        elif "done" in said:
            held["about"] = said.pop("about", held.get("about"))
            held["parts"].append({"model": model} | said)
            print(json.dumps(held["parts"][-1]), flush=True)
    if reason:
        failed(held, f"{model}: {current}", f"{reason}: {' / '.join(lines[-3:])[-400:]}")


if __name__ == "__main__":
    sys.exit(main())
