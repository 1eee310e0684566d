"""The tables of mutations name text and tests that exist, and cover the library; `python -m tests.mutate` runs them."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutate import FOUND_BY, ROOT, Chosen, Work, key_of, mutated, tables

BARE = ("__init__.py", "__main__.py", "_typing.py")  # names of modules that import, start, and name types
# Modules without a mutation, and why.
NONE = {
    "reporting/section.py": "a record without behaviour",
    "results.py": "names of functions that are defined and mutated elsewhere",
    "paths.py": "names of functions that are defined and mutated elsewhere",
    "statements.py": "names of functions that are defined and mutated elsewhere",
}


@cache
def functions_in(file: Path) -> set[str]:
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}


def test_every_mutation_changes_one_place_and_names_a_test() -> None:
    wrong, names = [], []
    for folder, table in tables().items():
        for mutation in table:
            names.append((mutation.module, mutation.what))
            file, _, test = mutation.test.partition("::")
            path = ROOT / folder / file
            if not path.exists() or (test and test.partition("[")[0] not in functions_in(path)):
                wrong.append(f"{mutation.what}: there is no test {folder}/{mutation.test}.")
            try:
                text = mutated(mutation)
                if mutation.module.endswith(".py"):
                    ast.parse(text)
            except (ValueError, SyntaxError, OSError) as error:
                wrong.append(f"{mutation.what}: {error}")
    wrong += sorted({f"{name} stands twice." for name in names if names.count(name) > 1})
    assert not wrong


def test_every_module_has_a_mutation() -> None:
    library = ROOT / "squashlens"
    every = {file.relative_to(library).as_posix() for file in library.rglob("*.py") if file.name not in BARE}
    mutated = {mutation.module for table in tables().values() for mutation in table}
    assert every - mutated == set(NONE)


def test_the_test_that_found_a_mutation_runs_first() -> None:
    """Its place in the file does not matter; others follow in their order, or do not run."""
    names = ["a.py::test_1", "a.py::test_2[x::y]", "b.py::test_3"]

    def order(work: Work) -> list[str]:
        items = [SimpleNamespace(nodeid=name) for name in names]
        Chosen(work).pytest_collection_modifyitems(items)
        return [item.nodeid for item in items]

    assert order(Work(["a.py", "b.py"], first=names[1])) == [names[1], names[0], names[2]]
    assert order(Work(["a.py", "b.py"], first="a.py::gone")) == names
    assert order(Work(["a.py", "b.py"], only=frozenset(names[1:2]))) == names[1:2]
    assert order(Work(["a.py", "b.py"], only=frozenset(["b.py"]))) == names[2:]


def test_what_found_a_mutation_is_a_test_of_its_table() -> None:
    listed = {
        key_of(folder, mutation): f"{folder}/{mutation.test}"
        for folder, table in tables().items()
        for mutation in table
    }
    found_by = json.loads(FOUND_BY.read_text(encoding="utf-8"))
    assert found_by, "nothing was recorded"
    for key, test in found_by.items():
        if key in listed:  # a mutation that is gone leaves the record when the mutations run again
            assert test.startswith(listed[key]), key


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_runner_that_is_stopped_leaves_nothing_running(stop: signal.Signals, tmp_path: Path) -> None:
    """Neither the child that runs tests nor a program that one of them started."""
    (tmp_path / "test_long.py").write_text(
        "import os, subprocess\nfrom pathlib import Path\n\n\n"
        "def test_long():\n"
        "    program = subprocess.Popen(['sleep', '600'])\n"
        "    Path('processes.partial').write_text(f'{os.getpid()} {program.pid}')\n"
        "    Path('processes.partial').rename('processes')\n"
        "    program.wait()\n"
    )
    runner = subprocess.Popen([
        sys.executable, "-c",
        "import sys; from pathlib import Path; from tests.mutate import Work, stop_in_order, verdicts; "
        "stop_in_order(); list(verdicts([Path(sys.argv[1])], [Work(['test_long.py'])]))", str(tmp_path),
    ], cwd=ROOT)  # fmt: skip
    processes: list[int] = []
    try:
        until((tmp_path / "processes").exists)
        processes = [int(number) for number in (tmp_path / "processes").read_text().split()]
        assert len(processes) == 2
        assert all(map(alive, processes))
        os.kill(runner.pid, stop)
        assert runner.wait(60) == 128 + stop
        until(lambda: not any(map(alive, processes)))
    finally:
        for process in (runner.pid, *filter(alive, processes)):
            if process != runner.pid or runner.poll() is None:
                os.kill(process, signal.SIGKILL)
