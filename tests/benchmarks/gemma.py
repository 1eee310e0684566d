"""`python -m tests.benchmarks.gemma` times calls on the real Gemma in one process, into docs/gemma.md.

Each time is also given as a multiple of the forward pass of plain transformers in the same run, so that it can be
compared between machines.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.engine.loading.sources import source_of

PAGE = Path("docs/gemma.md")
HEAD = "| call | seconds | forward passes |"
NAME = "gemma-3-270m"
PROMPT = "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is"
LONG = f"{PROMPT} Rome. The capital of Spain is Madrid. The capital of Portugal is Lisbon. The capital of Poland is"
FORWARD = "forward pass of 20 tokens, plain transformers"
SHORT = 5.0  # seconds up to which a call is timed three times


def main() -> None:
    """Time the calls, and write their rows."""
    torch.set_num_threads(2)
    rows = []
    opened = {
        "`import squashlens` and `load`": f"import squashlens as sl; sl.load({NAME!r})",
        "`squashlens report`, 16 lengths": f"import squashlens as sl; sl.report({NAME!r}, prompt={PROMPT!r}, n=16, "
        f"out={str(Path(tempfile.mkdtemp()) / 'gemma.html')!r})",
    }
    works: dict[str, Callable[[], Any]] = {}
    for name, program in opened.items():
        works[name] = lambda program=program: subprocess.run([sys.executable, "-c", program], check=True)
    works |= in_this_process()
    works[FORWARD]()  # the first pass is slower
    unit = timed(works[FORWARD])
    for name, work in works.items():
        seconds = timed(work)
        rows.append(f"| {name} | {two_digits(seconds)} | {two_digits(seconds / unit)} |")
        print(rows[-1], flush=True)
    table = [HEAD, "|---|---:|---:|", *rows]
    before, after = halves(PAGE.read_text(encoding="utf-8"), HEAD)
    PAGE.write_text("\n".join([*before, *table, *after]) + "\n", encoding="utf-8")


def in_this_process() -> dict[str, Callable[[], Any]]:
    """The calls by name, on one model that has been measured before."""
    model = sl.load(NAME, device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(source_of(NAME).path, dtype=torch.float32).eval()
    ids = model.to_tokens(PROMPT)
    ones = sl.prompts.repeated(model, "1", 32)
    sl.path_bound(model, ids)
    sl.collapse(model, sl.prompts.repeated(model, "1", 4))

    @torch.no_grad()
    def forward() -> None:
        plain(ids)

    return {
        FORWARD: forward,
        "`top_tokens`": lambda: sl.top_tokens(model, PROMPT),
        "`path_bound`": lambda: sl.path_bound(model, PROMPT),
        "`collapse` of 1 to 32 repeated ones": lambda: sl.collapse(model, ones),
        "`influence` without norms": lambda: sl.influence(model, PROMPT, method="none"),
        "`sensitivity`": lambda: sl.sensitivity(model, PROMPT),
        "`jacobian_norms`, a sketch": lambda: sl.jacobian_norms(model, PROMPT),
        '`jacobian_norms(method="exact")`': lambda: sl.jacobian_norms(model, PROMPT, method="exact"),
        "`substitution_effect`": lambda: sl.substitution_effect(model, PROMPT),
        "`squash_map` of 41 tokens": lambda: sl.squash_map(model, LONG),
    }


def timed(work: Callable[[], Any]) -> float:
    """The median time of three runs, or that of one run if it is long."""
    found: list[float] = []
    while len(found) < 3 and (not found or found[0] < SHORT):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def two_digits(value: float) -> str:
    """A number to two digits, without a power of ten."""
    return f"{float(f'{value:.2g}'):g}"


def halves(page: str, head: str) -> tuple[list[str], list[str]]:
    """The lines before the table with this head and after it."""
    lines = page.splitlines()
    start = lines.index(head)
    stop = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return lines[:start], lines[stop:]


if __name__ == "__main__":
    main()
