"""The command for a GPU, rehearsed on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cuda import works

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_rehearsal_runs(tmp_path: Path) -> None:
    """The whole command with the real worker, on one shape."""
    options = ["--rehearse", "--folder", str(tmp_path), "--models", "gemma-2b"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    held = json.loads((tmp_path / "results.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    timed = {part["kind"]: part for part in held["parts"] if "kind" in part}
    assert timed.keys() == {"forward", "bound", "collapse", "sketch", "exact", "profile"}
    assert all(part["seconds"] > 0 and part["peak"] > 0 and part["ratio"] > 0 for part in timed.values())
    for kind in ("forward", "bound", "exact"):  # the estimate is that of the run, and not of the real shape
        assert 0.6 < timed[kind]["factor"] < 1.6, timed[kind]
    assert "tests collected" in held["tests"]
    (begun,) = (part["estimates"] for part in held["parts"] if "estimates" in part)
    assert begun["weights"] == pytest.approx(5.01e9, rel=1e-3)


def test_the_cpu_counts_what_is_alive_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            torch.empty(1000, 1000)

    assert works.allocated(work) == pytest.approx(4_000_000, rel=0.1)
