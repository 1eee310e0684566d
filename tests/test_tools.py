"""The tools that time squashlens and try versions: what they name exists, and the command for a GPU runs on the CPU."""

import inspect
import json
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import works as timed_works
from tests.benchmarks.__main__ import COMPARISONS
from tests.cuda import works
from tests.cuda.__main__ import HEAD
from tests.programs import printed


def test_every_side_of_a_benchmark_names_a_work_and_its_arguments() -> None:
    """A run in a process of its own that fails leaves a row, and no error."""
    for side in (side for one in COMPARISONS for side in (one.ours, one.theirs)):
        inspect.signature(getattr(timed_works, side.work)).bind(**side.arguments)


@pytest.mark.slow
def test_the_rehearsal_runs(tmp_path: Path) -> None:
    """The whole command with the real worker, on one shape."""
    options = ["--rehearse", "--folder", str(tmp_path), "--models", "gemma-2b"]
    lines, wrong = printed([sys.executable, "-m", "tests.cuda", *options], 600)
    held = json.loads((tmp_path / "results.json").read_text())
    assert not wrong, lines
    timed = {part["kind"]: part for part in held["parts"] if "kind" in part}
    kinds = {
        "forward",
        "bound",
        "obvious",
        "call",
        "bound_vs_jacobian",
        "collapse",
        "sketch",
        "exact",
        "token_influence",
    }
    assert timed.keys() == kinds
    assert all(
        part["seconds"] > 0 and part["peak"] > 0 and part["ratio"] > 0
        for part in timed.values()
    )
    for kind in (
        "forward",
        "bound",
        "exact",
    ):  # the estimate is that of the run, and not of the real shape
        assert 0.6 < timed[kind]["factor"] < 1.6, timed[kind]
    assert "tests collected" in held["tests"]
    aimed = [
        line
        for line in lines[lines.index(HEAD) :]
        if line.startswith("|") and "gemma-2b" in line
    ][-10:]
    assert len({*aimed}) == 10
    assert not any("not run" in line or "nan" in line for line in aimed)
    (begun,) = (part["estimates"] for part in held["parts"] if "estimates" in part)
    assert begun["weights"] == pytest.approx(5.01e9, rel=1e-3)


def test_the_cpu_counts_what_is_alive_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            torch.empty(1000, 1000)

    assert works.allocated(work) == pytest.approx(4_000_000, rel=0.1)
