"""Faults put into the library, each of which must turn a test red: `python -m tests.mutate [WORD ...]`.

A mutation replaces text that occurs once in a module. `mutations.py` in each folder of tests lists those that a test of
that folder must find, with the test that does. With words, only mutations run whose name, module or test has one.

Importing PyTorch, transformers and TransformerLens takes longer than most tests, so one process imports them and forks
a child for each mutation. The child sees a copy of the tree with the mutation in it, as do the programs it starts. A
mutation that no test notices is listed, and the exit code is 1.

`found_by.json` keeps the test that found each mutation. It runs first the next time, so that most mutations take one
test, and only one that it no longer finds takes the whole file. At the end all tests that found something run without a
mutation, since red for another reason proves nothing.
"""

import argparse
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parent.parent
WARM = (
    "pytest", "hypothesis", "jaxtyping", "torch", "transformers", "transformer_lens", "safetensors.torch", "xarray",
    "h5netcdf", "plotly.graph_objects", "scipy.stats", "tyro", "tests.cases",
)  # fmt: skip
SECONDS = 600  # for the tests of one mutation
FOUND_BY = Path(__file__).with_name("found_by.json")
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in a module of squashlens; `test` is a file beside the table, or a test in it."""

    what: str
    module: str
    old: str
    new: str
    test: str


Said = Literal["red", "green", "error"]


@dataclass(frozen=True)
class Work:
    """Tests, what stands in the tree while they run, the test that runs first, and those that run at all."""

    tests: Sequence[str]
    mutation: Mutation | None = None
    first: str = ""
    only: frozenset[str] = frozenset()  # names of tests or of whole files; without any, all run


@dataclass(frozen=True)
class Verdict:
    """How the tests of a mutation ended, the first that failed, and what they printed."""

    said: Said
    test: str
    seconds: float
    printed: str


def tables() -> dict[str, tuple[Mutation, ...]]:
    """The mutations of each folder of tests."""
    found = {}
    for table in sorted((ROOT / "tests").rglob("mutations.py")):
        folder = table.parent.relative_to(ROOT)
        found[folder.as_posix()] = importlib.import_module(".".join((*folder.parts, "mutations"))).MUTATIONS
    return found


def mutated(mutation: Mutation, root: Path = ROOT) -> str:
    """The module with the mutation in it."""
    text = (root / "squashlens" / mutation.module).read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.what}: its text stands {text.count(mutation.old)} times in {mutation.module}.")
    if mutation.new == mutation.old:
        raise ValueError(f"{mutation.what}: it changes nothing.")
    return text.replace(mutation.old, mutation.new)


@contextmanager
def trees(number: int) -> Iterator[list[Path]]:
    """Copies of what the tests need; scripts and documents are linked."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        made = [Path(scratch, str(i)) for i in range(number)]
        for tree in made:
            for part in ("squashlens", "tests", "training"):
                shutil.copytree(ROOT / part, tree / part)  # with the bytecode that is there
            for part in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt", "docs", "hooks",
                         "analyses"):  # fmt: skip
                (tree / part).symlink_to(ROOT / part)
        os.environ["SQUASHLENS_TEST_FAMILIES"] = str(Path(scratch, "families"))
        yield made


def warm() -> None:
    """Import once what every child needs, except squashlens itself, which each child imports with its mutation."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SQUASHLENS_MUTATED": "1"}
    for name in WARM:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    if "squashlens" in sys.modules:
        raise RuntimeError("squashlens is imported already, so no mutation would be seen.")
    gc.collect()
    gc.freeze()  # so that the children's collector leaves these pages shared


@dataclass
class _Run:
    """Tests that run in a fork of this process, in a tree that may have a mutation in it."""

    tree: Path
    child: int
    until: float
    began: float
    mutation: Mutation | None
    crashed: bool = False

    def ended(self) -> bool:
        child, status = os.waitpid(self.child, os.WNOHANG)
        if child == 0:
            if time.monotonic() < self.until:
                return False
            self.stop()
        self.crashed = os.WIFSIGNALED(status)
        with suppress(ProcessLookupError):  # what its tests left running
            os.killpg(self.child, signal.SIGKILL)
        return True

    def stop(self) -> None:
        """End the child, which has a session of its own, and what its tests started."""
        for end in (os.kill, os.killpg):  # the child alone, as long as it has no group of its own
            with suppress(ProcessLookupError):
                end(self.child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.child, 0)

    def verdict(self) -> Verdict:
        if self.mutation:
            shutil.copy2(ROOT / "squashlens" / self.mutation.module, self.tree / "squashlens" / self.mutation.module)
        end = self.tree / "end"
        # A test that ends the interpreter, as a library in C can, has failed; one that takes too long is stopped here.
        code, failed = json.loads(end.read_text()) if end.exists() else (int(self.crashed) or None, "")
        said: Said = "green" if code == 0 else "red" if code == 1 else "error"
        printed = (self.tree / "printed").read_text(errors="replace")
        return Verdict(said, failed, time.monotonic() - self.began, printed)


def started(tree: Path, work: Work) -> _Run:
    (tree / "end").unlink(missing_ok=True)
    if work.mutation:
        (tree / "squashlens" / work.mutation.module).write_text(mutated(work.mutation), encoding="utf-8")
    child = os.fork()  # of the only thread, so that no lock is left taken
    if child == 0:
        _child(tree, work)
    now = time.monotonic()
    return _Run(tree, child, now + SECONDS * (1 if work.mutation else 6), now, work.mutation)


def stop_in_order() -> None:
    """Have a signal to stop raise an exception, so that children are ended and trees removed on the way out."""

    def stop(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    for number in STOPS:
        signal.signal(number, stop)


def verdicts(made: Sequence[Path], work: Sequence[Work]) -> Iterator[tuple[int, Verdict]]:
    """Run the tests of each piece of work, one in each tree at a time; the number of a piece and how it ended."""
    free, running, waiting = list(made), dict[int, _Run](), list(enumerate(work))[::-1]
    try:
        while waiting or running:
            while waiting and free:
                number, piece = waiting.pop()
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # so that no child is started and not noted
                running[number] = started(free.pop(), piece)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            time.sleep(0.02)
            for number, run in [*running.items()]:
                if run.ended():
                    del running[number]
                    yield number, run.verdict()
                    free.append(run.tree)
    finally:
        for run in running.values():
            run.stop()


class Chosen:
    """A plugin that runs one test before the others, leaves out what is not wanted, and keeps the first that fails."""

    test = ""

    def __init__(self, work: Work) -> None:
        self.work = work

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if only := self.work.only:
            items[:] = [item for item in items if item.nodeid in only or item.nodeid.partition("::")[0] in only]
        items.sort(key=lambda item: item.nodeid != self.work.first)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


def _child(tree: Path, work: Work) -> None:
    try:
        os.setsid()
        for number in STOPS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        output = os.open(tree / "printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)  # for the programs that tests start
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.path.insert(0, str(tree))
        sys.dont_write_bytecode = True  # a mutated module may have the size and the second of another
        import pytest

        chosen = Chosen(work)
        options = ["-x", "-q", "--tb=short", "-p", "no:xdist", "-m", "not slow and not cuda", "--rootdir", str(tree)]
        code = int(pytest.main([*options, *work.tests], plugins=[chosen]))
        (tree / "end").write_text(json.dumps((code, chosen.test)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def key_of(folder: str, mutation: Mutation) -> str:
    return f"{folder}: {mutation.module}: {mutation.what}"


def _keep(found_by: dict[str, str]) -> None:
    """Write which test found each mutation that is still in a table."""
    there = {key_of(folder, mutation) for folder, table in tables().items() for mutation in table}
    kept = {key: test for key, test in sorted(found_by.items()) if key in there}
    partial = FOUND_BY.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(FOUND_BY)


def _red_without(made: Sequence[Path], tests: set[str]) -> str:
    """What the tests print if one of them fails without a mutation, else nothing."""
    files = sorted({test.partition("::")[0] for test in tests})
    parts = min(len(files), 4 * len(made))  # several for each worker, so that all end at about the same time
    for _, verdict in verdicts(made, [Work(files[i::parts], only=frozenset(tests)) for i in range(parts)]):
        if verdict.said != "green":
            return verdict.printed[-3000:]
        print(f"green without a mutation: {verdict.seconds:.0f} s", flush=True)
    return ""


def main() -> None:
    """Try the mutations, print each with the test that found it, and exit with 1 if one was not found."""
    parser = argparse.ArgumentParser(description="See that each mutation turns a test red.")
    parser.add_argument("words", nargs="*", help="only mutations whose name, module or test has one of these")
    parser.add_argument("--workers", type=int, default=2, help="mutations tried side by side (2)")
    given = parser.parse_args()
    wanted = [
        (mutation, f"{folder}/{mutation.test}", key_of(folder, mutation))
        for folder, table in tables().items()
        for mutation in table
        if not given.words
        or any(w in f"{mutation.what} {mutation.module} {folder}/{mutation.test}" for w in given.words)
    ]
    found_by: dict[str, str] = json.loads(FOUND_BY.read_text(encoding="utf-8")) if FOUND_BY.exists() else {}
    stop_in_order()
    warm()
    count, found = 0, set[str]()
    with trees(given.workers) as made:
        work = [Work([test], mutation, found_by.get(key, "")) for mutation, test, key in wanted]
        for number, verdict in verdicts(made, work):
            mutation, test, key = wanted[number]
            if verdict.said == "red":
                count += 1
                found_by[key] = verdict.test or test
                found.add(found_by[key])
                _keep(found_by)
            line = (verdict.said, f"{verdict.seconds:.1f} s", mutation.module, mutation.what, verdict.test or test)
            print(*line, sep="\t", flush=True)
            if verdict.said == "error":
                print(verdict.printed[-2000:], flush=True)
        wrong = _red_without(made, found) if found else ""
    if wrong:
        raise SystemExit(f"Tests that found a mutation fail without one too.\n{wrong}")
    print(f"{count} of {len(wanted)} mutations turned a test red")
    raise SystemExit(count != len(wanted))


if __name__ == "__main__":
    from tests.mutate import main  # the tables import this module under its name

    main()
