"""`python -m tests.benchmarks.gemma` times calls on the real Gemma in one process, into docs/gemma.md.

Each time is also given as a multiple of the forward pass of plain transformers in the same run, so that it can be
compared between machines; what is aimed at, as a ratio to the obvious script.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.model.loading.sources import source_of
from tests.cuda.works import obvious

PAGE = Path("docs/gemma.md")
HEAD, AIMS = "| call | seconds | forward passes |", "| what | ratio, or seconds | aim |"
NAME = "gemma-3-270m"
PROMPT = "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is"
LONG = f"{PROMPT} Rome. The capital of Spain is Madrid. The capital of Portugal is Lisbon. The capital of Poland is"
FORWARD = "forward pass of 20 tokens, plain transformers"
SHORT = 5.0  # seconds up to which a work is timed three times
Work = Callable[[], Any]


def main() -> None:
    """Time the calls, and write their rows."""
    torch.set_num_threads(2)
    model = sl.load(NAME, device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(
        source_of(NAME).path, dtype=torch.float32, attn_implementation="eager"
    )
    works = calls(model, plain.eval().requires_grad_(False))
    works[FORWARD]()  # the first pass is slower
    unit, rows = timed(works[FORWARD]), []
    for name, work in works.items():
        seconds = timed(work)
        rows.append(
            f"| {name} | {two_digits(seconds)} | {two_digits(seconds / unit)} |"
        )
        print(rows[-1], flush=True)
    page, rows = with_rows(PAGE.read_text(encoding="utf-8"), HEAD, rows), []
    for name, (ours, theirs, aim) in compared(model, plain).items():
        rows.append(
            f"| {name} | {two_digits(timed(ours) / (timed(theirs) if theirs else 1))} | {aim:g} |"
        )
        print(rows[-1], flush=True)
    PAGE.write_text(with_rows(page, AIMS, rows), encoding="utf-8")


def with_rows(page: str, head: str, rows: list[str]) -> str:
    before, after = halves(page, head)
    return "\n".join([*before, head, "|---|---:|---:|", *rows, *after]) + "\n"


def calls(model: Any, plain: Any) -> dict[str, Work]:
    """The calls by name, on a model that has been measured before."""
    ids, load = model.to_tokens(PROMPT), f"import squashlens as sl; sl.load({NAME!r})"
    sl.path_bound(model, ids)
    return {
        "`import squashlens` and `load`": lambda: subprocess.run(
            [sys.executable, "-c", load], check=True
        ),
        FORWARD: lambda: passed(plain, ids),
        "`top_tokens`": lambda: sl.top_tokens(model, PROMPT),
        "`token_influence` without norms": lambda: sl.token_influence(
            model, PROMPT, method="none"
        ),
        "`bound_vs_jacobian`": lambda: sl.bound_vs_jacobian(model, PROMPT),
        "`jacobian_norms`, a sketch": lambda: sl.jacobian_norms(model, PROMPT),
        '`jacobian_norms(method="exact")`': lambda: sl.jacobian_norms(
            model, PROMPT, method="exact"
        ),
        "`knockout_effect`": lambda: sl.knockout_effect(model, PROMPT),
        "`substitution_effect`": lambda: sl.substitution_effect(model, PROMPT),
    }


def compared(model: Any, plain: Any) -> dict[str, tuple[Work, Work | None, float]]:
    """By name: ours, the obvious script, or None if the seconds count, and what is aimed at."""
    ids, tiny = model.to_tokens(PROMPT), sl.load("tiny-gemma")
    few, many, ones = (
        model.to_tokens(LONG),
        ids.repeat(1, 10),
        sl.prompts.repeated(model, "1", 64),
    )
    trunk, short = (
        torch.tensor([[*ones.trunk]]),
        tiny.to_tokens("How many ones are in the sequence? 110 ="),
    )
    page = str(Path(tempfile.mkdtemp()) / "gemma.html")
    whole = {"baselines": ["contrast"]}
    return {
        "`path_bound` ÷ product of plain patterns, 20 tokens": (
            partial(sl.path_bound, model, ids),
            partial(obvious, plain, ids),
            1.3,
        ),
        "… 200 tokens": (
            partial(sl.path_bound, model, many),
            partial(obvious, plain, many),
            1.3,
        ),
        "… tiny-gemma, ÷ a pass": (
            partial(sl.path_bound, tiny, short),
            partial(passed, tiny, short),
            1.7,
        ),
        "`collapse` of 64 lengths without noise ÷ a pass": (
            partial(sl.collapse, model, ones, noise_lengths=0),
            partial(passed, plain, trunk),
            2,
        ),
        "… with noise and a baseline": (
            partial(sl.collapse, model, ones, **whole),
            partial(passed, plain, trunk),
            6,
        ),
        "`bound_vs_jacobian` ÷ 64 plain products": (
            partial(sl.bound_vs_jacobian, model, ids),
            partial(pulled, plain, ids),
            1.3,
        ),
        "`squash_map` of 41 tokens": (partial(sl.squash_map, model, few), None, 6),
        "`report` of them": (
            partial(sl.report, model, prompt=LONG, out=page),
            None,
            15,
        ),
    }


@torch.no_grad()
def passed(model: Any, ids: torch.Tensor) -> None:
    model(ids, use_cache=False)


def pulled(plain: Any, ids: torch.Tensor, n: int = 64) -> None:
    leaf = plain.get_input_embeddings()(ids).requires_grad_()
    y = plain.model(inputs_embeds=leaf, use_cache=False).last_hidden_state[0, -1]
    for direction in torch.randn(n, len(y)):
        torch.autograd.grad(y, leaf, direction, retain_graph=True)


def timed(work: Work) -> float:
    """The median time of three runs after a first, or that of one run if it is long."""
    found: list[float] = []
    while len(found) < 4 and (not found or found[0] < SHORT):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:] or found)


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
