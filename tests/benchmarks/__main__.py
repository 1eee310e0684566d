"""Run every work in a process of its own, ours and what it is held against in turn, and write docs/benchmarks.md.

`python -m tests.benchmarks [WORD …]`: words choose comparisons by name, which are printed, and the page stays.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import __version__ as transformers_version

PAGE, RECORD = Path("docs/benchmarks.md"), Path("runs/benchmarks/results.json")


@dataclass(frozen=True)
class Side:
    """One work with its arguments; `scale` is what its time is multiplied by."""

    work: str
    arguments: dict[str, Any]
    times: int = 3
    scale: float = 1.0

    def run(self) -> dict[str, Any]:
        arguments = json.dumps(self.arguments)
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.works",
            self.work,
            arguments,
            str(self.times),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ
        )
        if done.returncode:
            return {
                "failed": done.stderr.strip().splitlines()[-1]
                if done.stderr.strip()
                else "killed"
            }
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return found | {"median": self.scale * statistics.median(found["seconds"])}


@dataclass(frozen=True)
class Comparison:
    """Ours against what one would do without: what is aimed at, in words, and what is reported."""

    name: str
    ours: Side
    theirs: Side
    against: str
    target: str


BOUND = Side("bound", {"n": 4096})
SKETCH: dict[str, Any] = {"method": "sketch", "rtol": 0.05}
EXACT = Side("frobenius", {"n": 256, "method": "exact"}, 1)
LARGE: dict[str, Any] = {"blocks": 18, "vocabulary": 256_000, "large": True}
LARGE_PASS = Side("plain_pass", {"n": 128} | LARGE)
ONE_FORWARD = "one plain forward pass (fused attention)"
# Its name; ours and theirs; what theirs is; what is aimed at.
COMPARISONS = [
    Comparison(
        "path bound, n = 4096",
        BOUND,
        Side("cached_patterns", {"n": 4096}, 1),
        "cached patterns and matrix products",
        "≥ 4 × faster, ≤ 1/10 of the memory",
    ),
    Comparison(
        "path bound, n = 4096, beside a pass",
        BOUND,
        Side("plain_pass", {"n": 4096}),
        ONE_FORWARD,
        "≤ 2 × its time",
    ),
    Comparison(
        "memory, n = 8192 and 2048",
        Side("bound", {"n": 8192}, 1),
        Side("bound", {"n": 2048}),
        "the same at n = 2048",
        "≤ 4.5 × the memory",
    ),
    Comparison(
        "collapse at all n ≤ 512",
        Side("collapse", {"n": 512}),
        Side("two_passes_a_length", {"n": 512}, 1, 16.0),
        "two forward passes a length (every sixteenth, times 16)",
        "≥ 200 × faster",
    ),
    Comparison(
        "exact Frobenius norms, n = 256",
        EXACT,
        Side("jacrev", {"n": 256}, 1),
        "`torch.func.jacrev`, chunk 32",
        "no slower, ≤ 1/4 of the memory",
    ),
    Comparison(
        "sketch to 5 %, n = 256",
        Side("frobenius", {"n": 256} | SKETCH),
        EXACT,
        "exact",
        "≥ 8 × faster",
    ),
    Comparison(
        "load and verify, shape of Gemma-2B, bfloat16",
        Side("load", LARGE, 1),
        Side("read", LARGE, 1),
        "`from_pretrained`, which verifies nothing",
        "≤ 20 s and 5.9 GB",
    ),
    Comparison(
        "path bound, shape of Gemma-2B, bfloat16, n = 128",
        Side("bound", {"n": 128} | LARGE),
        LARGE_PASS,
        ONE_FORWARD,
        "≤ 1.5 × its time",
    ),
    Comparison(
        "collapse at all n ≤ 32, shape of Gemma-2B, bfloat16",
        Side("collapse", {"n": 32} | LARGE),
        LARGE_PASS,
        "one plain forward pass of 128 tokens",
        "≤ 4 s",
    ),
    Comparison(
        "import and load, bundled model",
        Side("open_bundled", {}, 1),
        Side("open_by_libraries", {}, 1),
        "import of the libraries, and `from_pretrained`",
        "≤ 6 s",
    ),
    Comparison(
        "report, bundled model",
        Side("report", {}, 1),
        Side("open_bundled", {}, 1),
        "import and load",
        "≤ 15 s",
    ),
    Comparison(
        "vocabulary 256,000, n = 4096",
        Side("bound", {"n": 4096, "vocabulary": 256_000}),
        BOUND,
        "a vocabulary of 512",
        "no extra memory",
    ),
]


def main() -> None:
    words = sys.argv[1:]
    held: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    done: dict[Side, Any] = {}

    def run(side: Side) -> Any:
        key = json.dumps([side.work, side.arguments, side.times])
        if key not in done:
            done[key] = side.run()
        return done[key]

    for comparison in COMPARISONS:
        if not words or any(word in comparison.name for word in words):
            found = {"ours": run(comparison.ours), "theirs": run(comparison.theirs)}
            held[comparison.name] = found
            print(comparison.name, "|", row(comparison, found), flush=True)
            RECORD.parent.mkdir(parents=True, exist_ok=True)
            RECORD.write_text(json.dumps(held, indent=1))
    if not words:
        PAGE.write_text(page(held), encoding="utf-8")


def row(comparison: Comparison, found: dict[str, Any]) -> str:
    ours, theirs = found["ours"], found["theirs"]
    cells = [comparison.name, comparison.against, shown(ours), shown(theirs)]
    if "failed" in ours or "failed" in theirs:
        return " | ".join([*cells, "–", comparison.target])
    ratio = f"time {ours['median'] / theirs['median']:.3g}, memory {ours['peak'] / max(theirs['peak'], 1):.2g}"
    if "probes" in ours["sketch"]:
        ratio += (
            f"; {ours['sketch']['probes']} probes, ± {ours['sketch']['reached']:.1%}"
        )
    return " | ".join([*cells, ratio, comparison.target])


def shown(side: dict[str, Any]) -> str:
    if "failed" in side:
        return f"failed: {side['failed'][:80]}"
    return f"{side['median']:.3g} s, {side['peak']:.0f} MB"


def page(held: dict[str, Any]) -> str:
    """The page of all comparisons."""
    rows = [f"| {row(c, held[c.name])} |" for c in COMPARISONS]
    said = Path("/proc/cpuinfo").read_text().splitlines()
    names = [
        line.split(":")[1].strip() for line in said if line.startswith("model name")
    ]
    cpu = names[0] if names else platform.machine()
    return f"""# Benchmarks

This page compares the time and memory of squashlens with the obvious script. `make bench` writes it; do not edit. The
model is a random Gemma of 8 blocks, d = 512, 8 heads, MLP 2048, float32, unless another is named, on 2 threads of
a CPU ({cpu}); Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers_version}.
Each task runs in its own process. The table has the median time of up to three runs, and the largest memory the process
used beyond what it had before the task (resident, as Linux counts it; a task that starts a process of its own has its
time only). A ratio is ours ÷ theirs.

| what | against | ours | theirs | ratio | aimed at |
|---|---|---|---|---|---|
{chr(10).join(rows)}

The memory of a run is estimated before it starts. The tests check that estimates are within 25 % of the allocator's own
peak on four shapes of model.
"""


if __name__ == "__main__":
    main()
