"""The first minutes on a GPU: `make cuda`, or `python -m tests.cuda` in an environment with `squashlens[dev]`.

It times the measurements on random weights with the shapes of Gemma models, first those with aims, then runs every test
marked `cuda`, then times the other shapes. Every shape has its own process and its own number of seconds: one that dies
or takes too long is named with the work it was at, and the next one begins. After each, `results.json` is written, and
the table of aims is printed; `said.jsonl` has each work at once, should the run be cut off. `--rehearse` does the same
on the CPU with small shapes.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.cuda.works import MARK, MODELS, SAID
from tests.programs import ROOT, printed

SECONDS = 520.0  # of at most nine minutes
TESTING = 200.0  # of them: 18 graphs are compiled, each in five seconds on one core

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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="small shapes on the CPU, with the present Python",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/cuda"),
        help="folder for all that is written",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="seconds for everything; default: 520",
    )
    parser.add_argument(
        "--models",
        nargs="*",
        default=list(MODELS),
        choices=MODELS,
        help="shapes to time",
    )
    options = parser.parse_args(arguments)
    began, held = (
        time.monotonic(),
        {"rehearsal": options.rehearse, "parts": [], "failures": []},
    )
    file = options.folder.resolve() / "results.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    os.environ[SAID] = str(file.with_name("said.jsonl"))
    Path(os.environ[SAID]).unlink(missing_ok=True)
    aimed = {model for model, *_ in AIMS}
    models = sorted(options.models, key=lambda model: model not in aimed)
    parts = [partial(measure, held, model) for model in models]
    parts.insert(len(aimed.intersection(models)), partial(test, held))
    for number, part in enumerate(parts):
        left = max(0.0, began + options.seconds - time.monotonic())
        share = (
            left if number == len(parts) - 1 else left / 2
        )  # what a part leaves is for the next ones
        part(min(TESTING, share) if part.func is test else share)
        held["seconds"] = time.monotonic() - began
        file.write_text(json.dumps(held, indent=1), encoding="utf-8")
        print(*table_of(held), sep="\n", flush=True)
    print(f"{file}: {len(held['failures'])} failures, {held['seconds']:.0f} s")
    return int(bool(held["failures"]))


def failed(held: dict[str, Any], part: str, reason: str) -> None:
    print(f"FAILED {part}: {reason}", flush=True)
    held["failures"].append({"part": part, "reason": reason})


def test(held: dict[str, Any], seconds: float) -> None:
    """Run the tests marked `cuda`, or only collect them in a rehearsal."""
    told = (
        ["--collect-only", "-q"] if held["rehearsal"] else ["-v", "-rfE", "--tb=line"]
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "cuda",
        "-p",
        "no:xdist",
        *told,
        *test_files(),
    ]
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
    return sorted(
        str(path.relative_to(ROOT))
        for path in found
        if mark in path.read_text(encoding="utf-8")
    )


def measure(held: dict[str, Any], model: str, seconds: float) -> None:
    """Time the works of one model, and keep what each said."""
    command = [
        sys.executable,
        "-m",
        "tests.cuda.works",
        model,
        *(["--cpu"] if held["rehearsal"] else []),
    ]
    lines, reason = printed(command, seconds)
    current = "start"
    for said in (
        json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)
    ):
        current = said.get("begin", current)
        if "failed" in said:
            failed(held, f"{model}: {said['failed']}", said["reason"])
        elif "done" in said:
            held["about"] = said.pop("about", held.get("about"))
            held["parts"].append({"model": model} | said)
            print(json.dumps(held["parts"][-1]), flush=True)
    if reason:
        failed(
            held, f"{model}: {current}", f"{reason}: {' / '.join(lines[-3:])[-400:]}"
        )


def table_of(held: dict[str, Any]) -> list[str]:
    """The rows of what is aimed at; a rehearsal has other numbers of tokens, and its numbers say nothing of a GPU."""
    timed = {
        (part["model"], part["kind"], part["n"]): part
        for part in held["parts"]
        if "kind" in part
    }
    rows = [HEAD, "|---|---:|---:|---:|---|"]
    for model, kind, n, over, before, aim in AIMS:
        part, other = (
            timed.get((model, name, 96 if held["rehearsal"] else n))
            for name in (kind, over)
        )
        now, verdict, unit = "not run", "", " s" if over == "s" else ""
        if part is not None:
            divisor = {"s": 1.0, "plain": part["plain"]}.get(over) or (other or {}).get(
                "seconds", float("nan")
            )
            ratio = part["seconds"] / divisor
            now = f"{ratio:.3g}{unit}"
            verdict = "" if held["rehearsal"] else "met" if ratio <= aim else "missed"
        name = f"{kind}, {n:,} tokens, {model}" + ("" if unit else f" ÷ {over}")
        rows.append(f"| {name} | {before} | {now} | {aim:g}{unit} | {verdict} |")
    return rows


if __name__ == "__main__":
    sys.exit(main())
