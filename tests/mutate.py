"""Faults put into the mathematics and the measurements, to see whether a test turns red: `python -m tests.mutate`.

Each mutation changes one operator, comparison, number or reduction of a module of `squashlens/theory` or
`squashlens/measure`. A sample of them is tried, each in a copy of the tree, with the tests of the module's folder. Some
mutations change nothing that can be seen, such as the size of a batch, so the program asks for a share and not for all,
and prints those that no test noticed, to be read. `--seed` draws the same sample again.
"""

import ast
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import tyro

ROOT = Path(__file__).parent.parent
WHERE = ("theory", "measure")  # folders of squashlens
SECONDS = 600  # for the tests of one mutation
LOG = "mutated.log"
SETTINGS = ("SQUASHLENS_MUTATED", "OMP_NUM_THREADS")
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {
    "min": "max",
    "max": "min",
    "sum": "mean",
    "mean": "sum",
    "amax": "amin",
    "amin": "amax",
    "exp": "expm1",
    "log": "log1p",
    "abs": "neg",
    "argmax": "argmin",
    "argmin": "argmax",
    "tril": "triu",
    "sqrt": "square",
}


@dataclass(frozen=True)
class Mutation:
    """A change of one node in a module."""

    module: str  # its path in the repository
    place: int  # of the node, in the order of `ast.walk`
    line: int
    what: str

    def text(self) -> str:
        """The module with the change in it."""
        tree = ast.parse((ROOT / self.module).read_text(encoding="utf-8"))
        _change(list(ast.walk(tree))[self.place])
        return ast.unparse(tree)


def mutations(path: Path) -> Iterator[Mutation]:
    """All mutations of a module."""
    module = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    annotations = set(_in_annotations(tree))
    for place, node in enumerate(ast.walk(tree)):
        what = "" if node in annotations else _change(copy(node))
        if what:
            yield Mutation(module, place, getattr(node, "lineno", 0), what)


def _in_annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of annotations, which compute nothing."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            annotation = getattr(node, name, None)
            if annotation is not None:
                yield from ast.walk(annotation)


def _change(node: ast.AST) -> str:
    """Change a node; what was done, or an empty text."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if (
            type(op) in OPERATORS
        ):
            node.op = OPERATORS[type(op)]()
            return f"{type(op).__name__} is {type(node.op).__name__}"
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            node.ops = [OPERATORS[type(op)]()]
            return f"{type(op).__name__} is {type(node.ops[0]).__name__}"
        case ast.Constant(value=bool(value)):
            node.value = not value
            return f"{value} is {node.value}"
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
            return f"{value} is {node.value}"
        case ast.Attribute(attr=name) if name in NAMES:
            node.attr = NAMES[name]
            return f"{name} is {node.attr}"
        case ast.Call(func=ast.Name(id=name)) if name in ("min", "max"):
            node.func = ast.Name(NAMES[name], ast.Load())
            return f"{name} is {NAMES[name]}"
    return ""


def files_for(module: str) -> list[str]:
    """What is run for a module: its examples, and the tests of its folder, those that name the module first."""
    _, kind, *rest = Path(module).with_suffix("").parts
    folder = Path("tests", kind, *rest[: kind == "measure" and len(rest) > 1])
    files = sorted((ROOT / folder).rglob("test_*.py"))
    files.sort(key=lambda path: rest[-1] not in path.read_text(encoding="utf-8"))
    found = [path.relative_to(ROOT).as_posix() for path in files]
    return [module, *found, *(["tests/golden"] if kind == "measure" else [])]


def tried(mutation: Mutation, tree: Path) -> bool:
    """Whether a test fails under a mutation; also one that takes too long counts as failed."""
    target = tree / mutation.module
    target.write_text(mutation.text(), encoding="utf-8")
    child = os.fork()
    if child == 0:
        os._exit(tested(tree, files_for(mutation.module)))
    _, status = os.waitpid(child, 0)
    shutil.copy2(ROOT / mutation.module, target)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 2, -signal.SIGALRM):
        raise RuntimeError((tree / LOG).read_text(encoding="utf-8")[-4000:])
    return code != 0


def tested(tree: Path, files: list[str]) -> int:
    """The exit code of pytest on some files of a tree, in this process."""
    signal.alarm(SECONDS)
    os.chdir(tree)
    sys.modules.pop("tests")  # which is that of another folder
    sys.path.insert(0, str(tree))
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    default = ["-m", "not slow and not cuda"]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *default, *files]))


@dataclass
class Options:
    """Command-line options.

    Args:
        words: only modules whose path has one of these.
        n: mutations that are tried.
        seed: random seed of the sample, by default today's number.
        least: share that tests must notice.
    """

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    n: int = 40
    seed: int = int(time.time()) // 86400
    least: float = 0.8


def main() -> None:
    """Try a sample of mutations, print each, and exit with 1 if tests noticed too few."""
    given = tyro.cli(Options, description=__doc__)
    modules = sorted(
        path for part in WHERE for path in (ROOT / "squashlens" / part).rglob("*.py")
    )
    chosen = [
        path
        for path in modules
        if not given.words or any(word in str(path) for word in given.words)
    ]
    every = [mutation for path in chosen for mutation in mutations(path)]
    os.environ |= dict.fromkeys(SETTINGS, "1")
    # Every mutation is tried in a copy of this process, which has the libraries already.
    for library in ("hypothesis", "scipy.stats", "transformer_lens", "xarray"):
        import_module(library)
    sample = random.Random(given.seed).sample(every, min(given.n, len(every)))
    print(f"{len(sample)} of {len(every)} mutations, seed {given.seed}", flush=True)
    count = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        tree = Path(scratch, "tree")
        left_out = (".venv", ".git", "_build", "node_modules", "runs")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*left_out))
        for mutation in sample:
            noticed = tried(mutation, tree)
            count += noticed
            where = f"{mutation.module}:{mutation.line}"
            said = "noticed" if noticed else "MISSED"
            print(said, where, mutation.what, flush=True)
    print(f"{count} of {len(sample)} mutations turned a test red")
    raise SystemExit(count < given.least * len(sample))


if __name__ == "__main__":
    main()
