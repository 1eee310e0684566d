"""The command for a GPU: rehearsed on the CPU, with parts that fail, die and hang on purpose."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from squashlens.theory import row_products
from tests.cuda import __main__ as command
from tests.cuda import cuda_tests, install, page, seam, shapes, wheels, works

ROOT = Path(__file__).parents[2]
# A stand-in for `tests.cuda.works`: it runs three works at once, and one of them as its arguments say.
WORKER = """
import json, os, sys, time
print("a warning of some library")
skip, cause = sys.argv[sys.argv.index("--skip") + 1 :], sys.argv[sys.argv.index("--break") + 1]
say = lambda **what: print("@squashlens " + json.dumps(what), flush=True)
say(begin="model", budget=9)
say(done="model", seconds=1, weights=10, estimates={"weights": 10, "works": {"bound": 5}},
    about={"device": "x", "memory": None, "cuda": None, "torch": "2"}, attention="streamed, in some way")
for name in ("one", "two", "three"):
    if name in skip:
        continue
    say(begin=name, budget=0.5)
    if name == "two" and cause == "exit":
        print("out of luck", flush=True)
        os._exit(9)
    if name == "two" and cause == "hang":
        time.sleep(60)
    if name == "two" and cause == "error":
        say(failed=name, n=3, kind="bound", reason="ValueError: no")
        continue
    say(done=name, n=3, kind="bound", seconds=2.0, runs=[2.0], peak=6, estimate=5, factor=1.2, plain=1.0, ratio=2.0)
"""


def measured(cause: str, folder: Path, seconds: float = 60) -> dict[str, Any]:
    run = command.Run(folder, True, seconds)
    script = folder / "worker.py"
    script.write_text(WORKER)
    command.measure(run, "gemma-2b", [sys.executable, str(script), "--break", cause], {})
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    ("cause", "reason"),
    [("none", ""), ("error", "ValueError: no"), ("exit", "died with code 9: a warning of some library / out of luck"),
     ("hang", "took longer than it may, and was stopped")],
)  # fmt: skip
def test_one_part_that_fails_keeps_the_others_going(cause: str, reason: str, tmp_path: Path) -> None:
    held = measured(cause, tmp_path)
    done = [part["done"] for part in held["parts"]]
    assert done == ["model", "one", "three"] if reason else ["model", "one", "two", "three"]
    told = [(failure["part"], reason in failure["reason"]) for failure in held["failures"]]
    assert told == ([("gemma-2b: two", True)] if reason else [])
    text = (tmp_path / "page.md").read_text()
    assert ("gemma-2b: two" in text) == bool(reason)
    assert "- gemma-2b: streamed, in some way" in text


def test_when_the_time_is_up_what_is_left_is_named(tmp_path: Path) -> None:
    held = measured("none", tmp_path, seconds=0)
    assert held["failures"] == [{"part": "gemma-2b", "reason": "not begun: the time is up"}]


@pytest.mark.slow
def test_the_rehearsal_runs_where_one_part_fails(tmp_path: Path) -> None:
    """The whole command with the real worker, on one shape; the exit code says that a part failed."""
    options = ["--rehearse", "--folder", str(tmp_path), "--models", "gemma-2b", "--break", "sketch=memory"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    held = json.loads((tmp_path / "results.json").read_text())
    assert done.returncode == 1, done.stderr
    assert held["failures"] == [
        {"part": "gemma-2b: sketch, 96 tokens", "reason": "OutOfMemoryError: out of memory, on purpose"}
    ]
    timed = {part["kind"]: part for part in held["parts"] if "kind" in part}
    assert timed.keys() == {"forward", "bound", "collapse", "exact", "profile"}
    assert all(part["seconds"] > 0 and part["peak"] > 0 and part["ratio"] > 0 for part in timed.values())
    for kind in ("forward", "bound", "exact"):  # the estimate is that of the run, and not of the real shape
        assert 0.6 < timed[kind]["factor"] < 1.6, timed[kind]
    assert len(held["tests"]["collected"]) >= 8
    text = (tmp_path / "page.md").read_text()
    assert "| gemma-2b | forward, 32768 tokens | 5.01 GB |" in text
    assert "OutOfMemoryError: out of memory, on purpose" in text


def test_the_real_worker_times_what_is_not_skipped(capfd: pytest.CaptureFixture[str]) -> None:
    """In this process, small on the CPU: a part that runs and one that fails; the whole command is a slow test."""
    names = {work.name: work.kind for work in shapes.works("gemma-2b", True)}
    kept = [next(name for name, kind in names.items() if kind == wanted) for wanted in ("forward", "sketch")]
    works.main(["gemma-2b", "--cpu", "--break", "sketch=memory", "--skip", *(names.keys() - {*kept})])
    lines = [line.removeprefix(command.MARK) for line in capfd.readouterr().out.splitlines() if command.MARK in line]
    said = [json.loads(line) for line in lines]
    assert [one["begin"] for one in said if "begin" in one] == ["model", *kept]
    timed = next(one for one in said if one.get("done") == kept[0])
    assert min(timed["seconds"], timed["peak"], timed["ratio"]) > 0
    assert [one["reason"] for one in said if "failed" in one] == ["OutOfMemoryError: out of memory, on purpose"]


def test_only_tests_that_are_marked_are_found() -> None:
    found = cuda_tests.files(ROOT)
    assert "tests/engine/test_generate.py" in found
    assert Path(__file__).relative_to(ROOT).as_posix() not in found
    assert "tests/theory/test_paths.py" not in found


def test_what_pytest_printed_is_read() -> None:
    lines = [
        "tests/a/test_b.py::test_one[x y] PASSED [ 33%]", "tests/a/test_b.py::test_two FAILED [ 66%]",
        "tests/a/test_b.py::test_three SKIPPED (no) [100%]",
        "FAILED tests/a/test_b.py::test_two - AssertionError: 3 - 4",
        "ERROR tests/c.py::test_four - ImportError: no x",
    ]  # fmt: skip
    found = cuda_tests.read(lines, False)
    assert found["passed"] == ["tests/a/test_b.py::test_one[x y]"]
    assert found["failed"] == {
        "tests/a/test_b.py::test_two": "AssertionError: 3 - 4", "tests/c.py::test_four": "ImportError: no x"
    }  # fmt: skip
    assert found["skipped"] == ["tests/a/test_b.py::test_three"]


class FakeCuda:
    """What `seam.Cuda` asks of `torch.cuda`, with kernels that end only when they are waited for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now, self.most = 100, 0

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            self.calls.append(name)
            if name == "reset_peak_memory_stats":
                self.most = self.now
            return {"memory_allocated": self.now, "max_memory_allocated": self.most, "get_device_name": "H100"}.get(
                name
            )

        return call

    def get_device_properties(self, number: int) -> Any:
        return SimpleNamespace(total_memory=80_000_000_000)


def test_a_device_is_timed_after_it_has_caught_up() -> None:
    api = FakeCuda()

    def work() -> None:
        api.calls.append("work")
        api.most = api.now + 40

    found = seam.Cuda(api).timed(work, 2)
    assert found.peak == 40
    assert len(found.seconds) == 2
    asked = [name for name in api.calls if name in ("synchronize", "work", "reset_peak_memory_stats")]
    assert asked == ["synchronize", "reset_peak_memory_stats", "work", "synchronize", "work", "synchronize"]
    assert seam.Cuda(api).about()["memory"] == 80_000_000_000


def test_the_cpu_counts_what_is_alive_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            torch.empty(1000, 1000)

    assert seam.Cpu().timed(work, 1).peak == pytest.approx(4_000_000, rel=0.1)


@pytest.mark.parametrize("cause", ["memory", "error"])
def test_failures_on_purpose(cause: str) -> None:
    with pytest.raises(torch.OutOfMemoryError if cause == "memory" else RuntimeError, match="on purpose"):
        works.fail(cause)


def test_every_kind_of_work_has_a_name_and_a_call() -> None:
    kinds = {work.kind for model in shapes.MODELS for small in (False, True) for work in shapes.works(model, small)}
    assert kinds == page.WORKS.keys()
    assert set(shapes.MODELS) == set(command.MODELS)
    for model in shapes.MODELS:
        total = sum(work.budget for work in shapes.works(model, False))
        assert total <= 8 * 60


def test_a_bound_without_the_kernel_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(shapes.sl, "path_bound", lambda *_: asked.append(row_products.DEVICES))
    subject = object.__new__(shapes.Subject)
    subject.model = None
    for kind in ("blocks", "bound"):
        subject.call(shapes.Work(kind, 4, 1))()
    assert asked == [(), ("cuda",)]


def test_a_torch_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    install.pip(tmp_path, None, has_torch=True)
    kept = (tmp_path / "constraints.txt").read_text()
    assert "torch==" not in kept
    assert "transformers==" in kept
    install.pip(tmp_path, None, has_torch=False)
    assert "torch==" in (tmp_path / "constraints.txt").read_text()
    assert "--no-index" in install.pip(tmp_path, tmp_path, has_torch=True)


def test_wheels_that_are_missing_are_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(install.InstallError, match="make wheels"):
        install.installed(tmp_path / "run", tmp_path, 60)
    assert not (tmp_path / "run").exists()


def test_wheels_are_all_that_is_needed_but_pytorchs() -> None:
    found = wheels.needed(["squashlens", *install.TESTING], "3.12")
    assert {"squashlens", "transformers", "transformer-lens", "pytest", "hypothesis", "h5py"} <= found.keys()
    assert not {name for name in found if name.startswith(wheels.OF_TORCH)}
    assert "tomli" not in wheels.needed(["pytest"], "3.12")
