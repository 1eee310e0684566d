"""The first minutes on a GPU: `make cuda`, or `python -m tests.cuda` in an environment with `squashlens[dev]`.

It times the measurements on random weights with the shapes of Gemma models, first those with aims, then runs every test
marked `cuda`, then times the other shapes. Every shape has its own process and its own number of seconds: one that dies
or takes too long is named, and the next one begins. After each, `results.json` is written, and the table of aims is
printed. `--rehearse` does the same on the CPU with small shapes, and collects the tests.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from tests.cuda.works import MARK, SHAPES
from tests.programs import ROOT, printed

TESTING = 200.0  # seconds: 18 graphs are compiled, each in five seconds on one core
HEAD = "| what | before | now | aim | |"
# A model, a work and its tokens; what it is divided by, or "s"; what it was before attention was fused; what is aimed
# at, at most. "plain" is the forward pass of transformers in the same run: fused, and eager with soft caps.
AIMS: list[tuple[str, str, int, str, str, float]] = [
    ("gemma-2b", "bound", 2048, "plain", "13.6", 1.6),
    ("gemma-2b", "bound", 8192, "plain", "7.6", 1.35),
    ("gemma-2b", "bound", 32_768, "plain", "5.2", 1.45),
    ("gemma-3-4b", "bound", 8192, "plain", "4.9", 0.9),
    ("gemma-2-2b", "bound", 2048, "plain", "–", 1.0),
    ("gemma-2b", "bound", 2048, "obvious", "8.9", 1.1),
    ("gemma-2b", "bound", 8192, "obvious", "2.4", 0.45),
    ("gemma-2b", "call", 8, "s", "0.093 s", 0.006),
    ("gemma-2b", "sketch", 2048, "plain", "82", 45.0),
    ("gemma-2b", "bound_vs_jacobian", 256, "s", "5.0 s", 0.8),
    ("gemma-2b", "token_influence", 1024, "s", "4.8 s, with fits", 1.0),
    ("gemma-2b", "collapse", 1024, "s", "1.9 s", 0.5),
]


@dataclass
class Options:
    """Command-line options.

    Args:
        rehearse: small shapes on the CPU.
        folder: folder for all that is written.
        seconds: seconds for everything.
        models: shapes to time.
    """

    rehearse: bool = False
    folder: Path = Path("runs/cuda")
    seconds: float = 520.0
    models: tuple[str, ...] = tuple(SHAPES)


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    end = time.monotonic() + options.seconds
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "results.json"
    held: dict[str, Any] = {"rehearsal": options.rehearse, "parts": [], "failures": []}
    aimed = [model for model in options.models if any(model == aim[0] for aim in AIMS)]
    others = [model for model in options.models if model not in aimed]
    parts = [*aimed, "tests", *others]
    for number, part in enumerate(parts, start=1):
        left = max(0.0, end - time.monotonic())
        # What a part leaves is for the next ones.
        seconds = left if number == len(parts) else left / 2
        if part == "tests":
            test(held, min(TESTING, seconds))
        else:
            measure(held, part, seconds)
        file.write_text(json.dumps(held, indent=1), encoding="utf-8")
        print(*table_of(held), sep="\n", flush=True)
    print(f"{file}: {len(held['failures'])} failures")
    return int(bool(held["failures"]))


def test(held: dict[str, Any], seconds: float) -> None:
    """Run the tests marked `cuda`, or only collect them in a rehearsal. Files without the mark are not imported."""
    mark = "pytest.mark." + "cuda"
    files = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if mark in path.read_text(encoding="utf-8"):
            files.append(str(path.relative_to(ROOT)))
    how = ["--collect-only", "-q"] if held["rehearsal"] else ["-v", "-rfE", "--tb=line"]
    pytest = [sys.executable, "-m", "pytest", "-m", "cuda", "-p", "no:xdist"]
    lines, reason = printed([*pytest, *how, *files], seconds)
    held["tests"] = lines[-1:]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    held["failures"] += [*failed, *filter(None, [reason])]
    print(*held["tests"], *failed, reason, sep="\n", flush=True)


def measure(held: dict[str, Any], model: str, seconds: float) -> None:
    """Time the works of one model, and keep what each said."""
    works = [sys.executable, "-m", "tests.cuda.works", model]
    how = ["--cpu"] if held["rehearsal"] else []
    lines, reason = printed([*works, *how], seconds)
    for line in lines:
        if line.startswith(MARK):
            said = {"model": model} | json.loads(line.removeprefix(MARK))
            held["failures" if "failed" in said else "parts"].append(said)
            print(said, flush=True)
    if reason:
        failure = {"model": model, "failed": reason, "last": lines[-3:]}
        held["failures"].append(failure)
        print(failure, flush=True)


def table_of(held: dict[str, Any]) -> Iterator[str]:
    """The rows of what is aimed at; a rehearsal has other numbers of tokens, and its numbers say nothing of a GPU."""
    timed = {}
    for part in held["parts"]:
        timed[part["model"], part["kind"], part["n"]] = part
    yield HEAD
    yield "|---|---:|---:|---:|---|"
    for model, kind, n, over, before, aim in AIMS:
        size = 96 if held["rehearsal"] else n
        part = timed.get((model, kind, size))
        other = timed.get((model, over, size), {"seconds": float("nan")})
        now = verdict = ""
        unit = " s" if over == "s" else ""
        if part is not None:
            divisors = {"s": 1.0, "plain": part["plain"], "obvious": other["seconds"]}
            ratio = part["seconds"] / divisors[over]
            now = f"{ratio:.3g}{unit}"
            if not held["rehearsal"]:
                verdict = "met" if ratio <= aim else "missed"
        name = f"{kind}, {n:,} tokens, {model} ÷ {over}".removesuffix(" ÷ s")
        yield f"| {name} | {before} | {now} | {aim:g}{unit} | {verdict} |"


if __name__ == "__main__":
    sys.exit(main())
