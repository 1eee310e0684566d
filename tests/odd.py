"""Every public function and argument, and about forty bad values: one case is one call with one argument replaced.

What is public is read from the package, so that a new function is walked over too. Each call must be refused by name
or be right: `outcome` runs one case and says what happened. A value that beartype does not find in the argument's
annotation must not be accepted.
"""

import contextlib
import inspect
import io
import itertools
import math
import os
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
import xarray as xr

import squashlens as sl
from squashlens._typing import Extended
from squashlens.engine.hooking.hook import Recipe
from squashlens.errors import SquashlensError

C = TypeVar("C")
T = TypeVar("T")
SECONDS = 60  # of processor time for one case, whatever else the machine does
SILENT = 600  # seconds after which a case that uses no processor time, or cannot be interrupted, is given up


class Unprintable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "-10**30": lambda: -(10**30),
    "10**9": lambda: 10**9,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1e-320": lambda: 1e-320,
    "1e308": lambda: 1e308,
    "1j": lambda: 1j,
    "''": lambda: "",
    "'nonsense'": lambda: "nonsense",
    "lone surrogate": lambda: "\ud800",
    "null character": lambda: "a\x00b",
    "long text": lambda: "1" * 5000,
    "bytes": lambda: b"bytes",
    "[]": lambda: [],
    "{}": dict,
    "set()": set,
    "{1}": lambda: {1},
    "{1: 2}": lambda: {1: 2},
    "{'a': 1}": lambda: {"a": 1},
    "[None]": lambda: [None],
    "[nan]": lambda: [math.nan],
    "[1, 1]": lambda: [1, 1],
    "[-1]": lambda: [-1],
    "[10**30]": lambda: [10**30],
    "[True]": lambda: [True],
    "['nonsense']": lambda: ["nonsense"],
    "['\\ud800']": lambda: ["\ud800"],
    "[[1]]": lambda: [[1]],
    "generator": lambda: (n for n in (1, 2)),
    "endless generator": lambda: itertools.count(1),
    "np.int64(1)": lambda: np.int64(1),
    "np.float32(nan)": lambda: np.float32("nan"),
    "np.bool_": lambda: np.bool_(True),
    "array": lambda: np.array([1, 2]),
    "array of objects": lambda: np.array([None, "a"], dtype=object),
    "tensor(1)": lambda: torch.tensor(1),
    "tensor([1, 2])": lambda: torch.tensor([1, 2]),
    "tensor([nan])": lambda: torch.tensor([math.nan]),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.ones(3, 3, device="meta"),
    "meta ids": lambda: torch.ones(3, dtype=torch.long, device="meta"),
    "requires grad": lambda: torch.ones(3, 3, requires_grad=True),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "int8": lambda: torch.int8,
    "device meta": lambda: torch.device("meta"),
    "Path": lambda: Path("/nonexistent/below/it"),
    "folder": lambda: Path("/"),
    "lambda": lambda: lambda *_: None,
    "unprintable": Unprintable,
    "[unprintable]": lambda: [Unprintable()],
    "a class": lambda: int,
    "Decimal nan": lambda: Decimal("nan"),
    "Fraction": lambda: Fraction(1, 3),
    "Dataset": xr.Dataset,
}

WINGS = ("figures", "hooks", "paths", "prompts", "results", "synthetic", "tasks", "statements", "zoo", "hosted")


@cache
def public() -> dict[str, Callable[..., Any]]:
    """Functions and classes of the package and its wings, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for wing in (sl, *(import_module(f"squashlens.{name}") for name in WINGS)):
        if wing is sl:
            prefix, names = "", sl.__all__
        else:
            prefix = wing.__name__.split(".")[-1] + "."
            names = getattr(wing, "__all__", None) or own(wing)
        for name in names:
            value = getattr(wing, name)
            if callable(value) and not (isinstance(value, type) and issubclass(value, Exception)):
                found[prefix + name] = value
    return found | {"Capture.open": sl.Capture.open}


def own(wing: ModuleType) -> list[str]:
    """What a module without `__all__` defines itself."""
    return [n for n, v in vars(wing).items() if n[0] != "_" and getattr(v, "__module__", None) == wing.__name__]


@cache
def model() -> Any:
    return sl.load("tiny-gemma", device="cpu", progress=False)


PROMPT = "How many ones are in the following sequence? 11 ="


@cache
def sequence() -> Any:
    return sl.prompts.bernoulli(model(), 4, seed=0, separator=",", every=2)


@cache
def pairs() -> Any:
    return sl.capture(model(), sequence(), lengths=[2, 3], noise_lengths=2, progress=False)


@cache
def result(name: str) -> Any:
    """One result of every measurement that a figure draws, small; no name gives all names."""
    return together(name, lambda: _measured(name)) if name else _measured(name)


def together(name: str, make: Callable[[], T]) -> T:
    """What `make` gives. Processes that are told of a folder make what has this name once together."""
    shared = os.environ.get("SQUASHLENS_TEST_RESULTS")
    if not shared:
        return make()
    path = Path(shared, f"{name}.pickle")
    if not path.exists():
        draft = Path(shared, f"{name}.{os.getpid()}")
        draft.write_bytes(pickle.dumps(make()))
        draft.rename(path)
    return pickle.loads(path.read_bytes())  # noqa: S301


def _measured(name: str) -> Any:
    m, quiet = model() if name else None, {"progress": False}
    task = sl.tasks.find("taught_count_bernoulli")
    makers: dict[str, Callable[[], Any]] = {
        "sensitivity": lambda: sl.sensitivity(m, PROMPT, **quiet),
        "composition": lambda: sl.paths.composition(m, PROMPT),
        "hops": lambda: sl.paths.hops(m, PROMPT),
        "strongest_paths": lambda: sl.paths.strongest_paths(m, PROMPT, k=2),
        "depth_limit": lambda: sl.paths.depth_limit(m, PROMPT, depth=8),
        "jacobian_norms": lambda: sl.jacobian_norms(m, PROMPT, **quiet),
        "jacobian": lambda: sl.jacobian(m, PROMPT, positions=[3], **quiet),
        "path_bound": lambda: sl.path_bound(m, PROMPT, **quiet),
        "substitution_effect": lambda: sl.substitution_effect(m, PROMPT, n_replacements=1, positions=[3], **quiet),
        "top_tokens": lambda: sl.top_tokens(m, PROMPT),
        "audit": lambda: sl.audit(
            m, PROMPT, estimates=["Jacobian", "bound"][:1], n_probes=1, n_replacements=5, **quiet
        ),
        "profile": lambda: sl.profile(m, PROMPT, method="none", n_random_models=0, **quiet),
        "needle": lambda: sl.needle(m, [ids().tolist()], [2], [("a", 1)], n_replacements=5, **quiet),
        "collapse": lambda: sl.collapse(m, pairs()),
        "collapse relative": lambda: sl.collapse(m, pairs(), scale="relative"),
        "mechanism": lambda: sl.mechanism(m, pairs()),
        "precision": lambda: sl.precision(m, pairs(), round_to=["bfloat16"]),
        "runs": lambda: sl.precision(
            "tiny-gemma", sequence(), runs=["float32"], lengths=[2, 3], noise_lengths=2, **quiet
        ),
        "separator_ablation": lambda: sl.separator_ablation(
            m, sequence(), kinds=["mask"], lengths=[3], noise_lengths=2, **quiet
        ),
        "search_separators": lambda: sl.search_separators(
            m, sequence(), separator=[","], every=[2], n_samples=1, lengths=[3], n_placements=5, **quiet
        ),
        "tokenization": lambda: sl.tokenization(m, 3, **quiet),
        "splits": lambda: sl.tokenization(m.tokenizer, 3),
        "compare": lambda: sl.compare(
            m, sequence(), {"a": sl.hooks.mask_tokens([1])}, n_samples=1, lengths=[3], **quiet
        ),
        "families": lambda: sl.compare(
            m,
            {"ones": sequence(), "<b>zeros</b>": sequence()},
            {"a": sl.hooks.mask_tokens([1])},
            n_samples=2,
            lengths=[2, 3],
            answer=counted,
            **quiet,
        ),
        "evaluate": lambda: sl.evaluate(m, task, lengths=[2, 3], seeds=2, max_new_tokens=2, **quiet),
        "accuracy": lambda: sl.accuracy(m, [sequence()], counted, lengths=[2], **quiet),
        "probe": lambda: sl.probe(
            m, sl.tasks.find("taught_last_random"), lengths=[8], seeds=32, n_train=16, n_random_models=1, **quiet
        ),
        "collapse_vs_readout": lambda: sl.collapse_vs_readout(
            m, task, lengths=[2, 3], seeds=1, n_train=4, n_random_models=1, **quiet
        ),
        "shares_and_counts": lambda: sl.statements.shares_and_counts(m),
        "convergence": lambda: sl.synthetic.convergence(stack(), [4, 8, 16, 32], seeds=2, tail=0.9, **quiet),
        "survey": lambda: sl.synthetic.survey(stack(), {"depth": [1, 2]}, [4, 8, 16, 32], seeds=2, tail=0.9, **quiet),
        "softmax_total_variation": lambda: sl.synthetic.softmax_total_variation(
            [10, 40, 80, 160], k=2, seeds=2, tail=0.9
        ),
        "answer_frequencies": lambda: sl.results.answer_frequencies(result("evaluate")),
    }
    return makers[name]() if name else list(makers)


def stack() -> Any:
    return sl.synthetic.Stack(width=8)


def ids(n: int = 6) -> torch.Tensor:
    return sl.prompts.tokenize(model(), PROMPT)[0, :n]


def counted(items: tuple[str, ...]) -> str:
    return str(items.count("1"))


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def pattern() -> torch.Tensor:
    return torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def once(make: Callable[[], Any]) -> Any:
    return cache(make)()


def captured() -> Path:
    sl.capture(model(), PROMPT, layers=[0], out=FOLDER / "capture", progress=False)
    return FOLDER / "capture"


FOLDER = Path(tempfile.mkdtemp(prefix="odd-"))

# Small arguments by name, and by "function.name" where one function takes others.
USUAL: dict[str, Callable[[], Any]] = {
    "model": model,
    "name": lambda: "tiny-gemma",
    "prompt": lambda: PROMPT,
    "sequence": sequence,
    "task": lambda: sl.tasks.find("taught_count_bernoulli"),
    "lengths": lambda: [2, 3],
    "answer": lambda: counted,
    "positions": lambda: [1],
    "queries": lambda: [3],
    "heads": lambda: [0],
    "factor": lambda: 0.5,
    "rule": lambda: "log",
    "trained_length": lambda: 4,
    "keys": lambda: [1],
    "source": lambda: PROMPT,
    "seed": lambda: 0,
    "n": lambda: 4,
    "progress": lambda: False,
    "groups": lambda: [("a", 1)],
    "temperature": lambda: 1.0,
    "window": lambda: 2,
    "content": lambda: ["1", "0"],
    "alphabet": lambda: ["1", "0"],
    "token": lambda: "1",
    "stack": stack,
    "bound": lambda: 1.0,
    "b": lambda: 0.5,
    "c": lambda: 1.0,
    "a": lambda: row(0.1, 0.2, 0.3),
    "x": lambda: row(0.1, 0.2, 0.7),
    "star": lambda: row(0.2, 0.1, 0.7),
    "x_star": lambda: row(0.1, 0.2, 0.31),
    "y": lambda: row(0.1, 0.2),
    "y_star": lambda: row(0.1, 0.2),
    "pattern": pattern,
    "first": pattern,
    "second": pattern,
    "sigma": lambda: 1.0,
    "round_to": lambda: 7,
    "values": lambda: row(1.0, 2.0, 3.0)[:, None],
    "to_": lambda: 7,
    "sizes": lambda: [3],
    "separator": lambda: [","],
    "every": lambda: [2],
    "interventions": lambda: {"a": sl.hooks.mask_tokens([1])},
    "tokenization.separator": lambda: {"joined": ""},
    "precision.round_to": lambda: ["bfloat16"],
    "results.answer_frequencies.result": lambda: result("evaluate"),
    "audit": lambda: result("audit"),
    "results.table.result": lambda: result("audit"),
    "prescribed": lambda: result("search_separators"),
    "exhibits": lambda: once(sl.statements.gallery),
    "longest": lambda: 30,
    "over": lambda: {"depth": [1]},
    "title": lambda: "title",
    "xlabel": lambda: "x",
    "v": lambda: (5, 6),
    "v_star": lambda: (5, 6, 6),
    "template": lambda: "count {sequence} =",
    "path": lambda: FOLDER / "result.json",
    "out": lambda: FOLDER / "report.html",
    "result": lambda: result("composition"),
    "results.concat.result": lambda: {"a": result("composition")},
    "dim": lambda: "model",
    "shares": lambda: result("composition"),
    "limit": lambda: result("depth_limit"),
    "paths": lambda: result("strongest_paths"),
    "compared": lambda: result("compare"),
    "collapse": lambda: result("collapse relative"),
    "ablation": lambda: result("separator_ablation"),
    "sensitivity": lambda: result("sensitivity"),
    "mechanism": lambda: result("mechanism"),
    "splits": lambda: result("splits"),
    "log": lambda: "nothing.eval",
    # and others
    "capture.out": lambda: None,
    "capture.prompt": lambda: PROMPT,
    "needle.prompt": lambda: [ids().tolist()],
    "tasks.find.name": lambda: "sum",
    "hosted.ask.name": lambda: "sum",
    "prompts.build.separator": lambda: ",",
    "prompts.build.every": lambda: 2,
    "prompts.stacked.sequence": lambda: [sequence()],
    "figures.hops.shares": lambda: result("hops"),
    "figures.tokenization.measured": lambda: result("tokenization"),
    "figures.bits_needed.measured": lambda: result("precision"),
    "figures.runs.measured": lambda: result("runs"),
    "figures.survey.found": lambda: result("survey"),
    "figures.synthetic_convergence.found": lambda: result("convergence"),
    "figures.synthetic_total_variation.found": lambda: result("softmax_total_variation"),
    "figures.needle.found": lambda: result("needle"),
    "figures.profile.found": lambda: result("profile"),
    "figures.jacobian.found": lambda: result("jacobian"),
    "figures.accuracy_by_length.found": lambda: result("evaluate"),
    "figures.error_by_length.found": lambda: result("evaluate"),
    "figures.collapse_vs_readout.found": lambda: result("collapse_vs_readout"),
    "figures.probe.found": lambda: result("probe"),
    "synthetic.convergence.lengths": lambda: [4, 8, 16, 32],
    "synthetic.survey.lengths": lambda: [4, 8, 16, 32],
    "synthetic.softmax_total_variation.lengths": lambda: [10, 40, 80, 160],
    "probe.lengths": lambda: [8],
    "figures.answer_frequencies.found": lambda: result("answer_frequencies"),
    "precision.lengths": lambda: None,
    "statements.lemma_b1.lengths": lambda: None,
    "statements.lemma_b2.lengths": lambda: None,
    "statements.lemma_b1.a": lambda: torch.linspace(0, 1, 40, dtype=torch.float64),
    "statements.lemma_b2.x": lambda: torch.linspace(0, 1, 40, dtype=torch.float64),
    "statements.lemma_b2.x_star": lambda: torch.linspace(0, 1, 40, dtype=torch.float64),
    "statements.theorem_b3.rows": lambda: [(row(*[1 / n] * n), row(*[1 / (n + 1)] * (n + 1))) for n in (1, 3, 6, 12)],
    "statements.theorem_b3.values": lambda: torch.ones(14, 1, dtype=torch.float64),
    "Capture.open.folder": lambda: once(captured),
    "results.open.path": lambda: sl.results.save(result("composition"), FOLDER / "kept.json"),
    "probe.task": lambda: sl.tasks.find("taught_last_random"),
    "tasks.Task.name": lambda: "mine",
    "tasks.Task.draw": lambda: lambda n, rng: ["1"] * n,
    "prompts.GrowingSequence.name": lambda: "mine",
    "prompts.GrowingSequence.content": lambda: (5, 6),
    "prompts.GrowingSequence.alphabet": lambda: (5, 6),
    "statements.theorem_51.attention": lambda: [pattern().float(), pattern().float()],
    "statements.theorem_51.tokens": lambda: torch.eye(3),
    "statements.theorem_51.mlp": lambda: torch.tanh,
    "statements.proposition_b9.layers": lambda: [lambda x, causal: x],
    "statements.proposition_b9.symbols": lambda: torch.eye(2),
    "statements.proposition_b9.sequence": lambda: [0, 1],
    "statements.corollary_b10.count": lambda: lambda y: 3,
    "hooks.Hook.name": lambda: "mine",
    "hooks.Hook.site": lambda: "blocks.0.hook_resid_pre",
    "hooks.Hook.edit": lambda: lambda t: t,
    "report.prompt": lambda: PROMPT,
    "squash_map.prompt": lambda: PROMPT,
    "report.n": lambda: 8,
    "paper.out": lambda: FOLDER / "paper",
    "paper.figures": lambda: [9],
}
# Optional arguments that make a run small; given unless they are the one replaced.
SMALL: dict[str, dict[str, Any]] = {
    "audit": {"estimates": ["Jacobian"], "n_probes": 1, "n_replacements": 1},
    "evaluate": {"seeds": 1, "max_new_tokens": 2},
    "capture": {"layers": [0]},
    "collapse_vs_readout": {"seeds": 1, "n_train": 4, "n_random_models": 1},
    "compare": {"n_samples": 1},
    "paths.depth_limit": {"depth": 4},
    "needle": {"n_replacements": 1},
    "precision": {"round_to": ["bfloat16"]},
    "search_separators": {"n_samples": 1, "n_placements": 5},
    "jacobian": {"positions": [3]},
    "profile": {"queries": [3], "layers": [4], "method": "none", "n_random_models": 0},
    "probe": {"seeds": 32, "n_train": 16, "n_random_models": 1},
    "separator_ablation": {"kinds": ["mask"]},
    "paths.strongest_paths": {"k": 2},
    "squash_map": {"method": "none"},
    "substitution_effect": {"n_replacements": 1, "positions": [1]},
    "synthetic.convergence": {"seeds": 2, "tail": 0.9},
    "synthetic.survey": {"seeds": 2, "tail": 0.9},
    "synthetic.last_tokens": {"seeds": 2},
    "synthetic.softmax_total_variation": {"seeds": 2, "k": 2, "tail": 0.9},
    "hosted.ask": {"lengths": [2], "seeds": 1},
    "hosted.inspect_task": {"lengths": [2], "seeds": 1},
    "statements.proposition_b8": {"depth": 10},
}
HEAVY = {"report", "paper", "audit", "load"}  # a second or more each
MADE_BY_US = {"Capture", "PairCapture", "synthetic.LastTokens", "tasks.Question", "tasks.Reading"} | {
    f"statements.{name}" for name in ("Exhibit", "Statement", "Step")
}  # results, that nobody makes by hand


@dataclass(frozen=True)
class Case:
    function: str
    argument: str
    odd: str


@cache
def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function, eval_str=True).parameters)


def cases() -> list[Case]:
    return [
        Case(name, argument, odd)
        for name, function in public().items()
        if name not in MADE_BY_US
        for argument, parameter in parameters(function).items()
        if parameter.kind is not parameter.VAR_KEYWORD
        for odd in ODD
        if not (odd == "a class" and "Callable" in str(parameter.annotation))  # is called, and refuses in its own way
    ]


def arguments(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Small arguments, one of them odd."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in parameters(public()[case.function]).items():
        if name == case.argument:
            value = ODD[case.odd]()
        elif f"{case.function}.{name}" in USUAL:
            value = USUAL[f"{case.function}.{name}"]()
        elif name in SMALL.get(case.function, {}):
            value = SMALL[case.function][name]
        elif (parameter.default is not parameter.empty and name not in ("progress", "lengths")) or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        else:
            value = USUAL.get(name, lambda: None)()  # of a new function: something is refused
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.append(value)
        else:
            named[name] = value
    if positional:  # a model and hooks
        return [named.pop("model"), *positional], named
    return [], named


class TookTooLong(BaseException):
    pass


def late(*_: object) -> None:
    raise TookTooLong


@contextmanager
def limited(folder: Path | str) -> Iterator[None]:
    """Work in a folder, for as long as a case may take; `TookTooLong` after that."""
    there = os.getcwd()
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    os.chdir(folder)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.chdir(there)


def sampled(cases: Iterable[C], number: int, pair: Callable[[C], Any]) -> list[C]:
    """One case of each pair, such as a function and an argument of it, and then any; the same ones each time."""
    shuffled = list(cases)
    random.Random(0).shuffle(shuffled)
    first = {pair(case): case for case in shuffled}
    return [*first.values(), *shuffled][:number]


def outcome(case: Case) -> str:
    """ "refused", "accepted", or what is wrong."""
    function = public()[case.function]
    positional, named = arguments(case)
    hint = parameters(function)[case.argument].annotation
    try:
        with limited(FOLDER), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            made = function(*positional, **named)
            if isinstance(made, sl.hooks.Hook | Recipe):
                made = sl.applied(model(), made)
            if hasattr(made, "__enter__"):
                with made:
                    model()(ids()[None])
    except SquashlensError as refusal:
        said = str(refusal)
        if "\n" in said.strip() or len(said) > 2000:
            return f"RAW refusal of {len(said)} characters"
        return "refused"
    except TookTooLong:
        return "LATE"
    except Exception as error:
        return f"RAW {innermost(error)}"
    return "accepted" if allowed(ODD[case.odd](), hint, case) else "WRONGLY accepted"


def innermost(error: BaseException) -> str:
    """An exception and the line that raised it."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where else ""
    return f"{type(error).__name__}: {str(error)[:80]!r} at {place}"


def allowed(value: Any, hint: Any, case: Case) -> bool:
    """Whether the annotation has this value, by beartype and three rules: no bool for a number, no NaN, no infinity."""
    from beartype.door import is_bearable

    if hint is Extended:
        return isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if isinstance(value, float) and (not math.isfinite(value) or 0 < abs(value) < sys.float_info.min):
        return False
    if hint is inspect.Parameter.empty or hint is Any:
        return False
    text = str(hint)
    if isinstance(value, bool | np.bool_):
        return "bool" in text
    if isinstance(value, np.generic):
        value = value.item()
    if case.odd in ("generator", "array", "tensor([1, 2])", "{1}") and (
        "Iterable[" in text or "Sequence[" in text or "tuple[" in text or "Collection[" in text
    ):
        value = tuple(value.tolist() if hasattr(value, "tolist") else value)
    if isinstance(value, list) and "tuple[" in text:
        value = tuple(value)
    if isinstance(value, list | tuple) and any(
        isinstance(v, bool) or (isinstance(v, float) and not math.isfinite(v)) for v in value
    ):
        return False
    if isinstance(value, Fraction | int) and is_bearable(1.5, hint):
        return True
    return is_bearable(value, hint)


def run(chosen: list[C], outcome: Callable[[C], str]) -> Iterator[tuple[C, str]]:
    """The outcome of each case, also of one that ends the interpreter or never returns to it.

    A fork of this process works through the cases and writes one line for each. Where it dies or says nothing for
    longer than a case may take, that is the outcome of the case at hand, and another fork goes on with the next one.
    """
    done = 0
    said: str | None = ""
    while done < len(chosen):
        reading, writing = os.pipe()
        worker = os.fork()
        if worker == 0:
            os.close(reading)
            _work(chosen[done:], outcome, writing)
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as lines:
            while done < len(chosen):
                said = _line(lines)
                if not said:
                    break
                yield chosen[done], said
                done += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL if said is None else 0)
        status = os.waitpid(worker, 0)[1]
        if done < len(chosen):
            yield chosen[done], "STUCK" if said is None else f"DIED with status {os.waitstatus_to_exitcode(status)}"
            done += 1


def _work(chosen: list[Any], outcome: Callable[[Any], str], writing: int) -> None:
    code = 1
    try:
        for case in chosen:
            os.write(writing, f"{' '.join(outcome(case).split())}\n".encode("utf-8", "replace"))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of the parent is to be run again here


def _line(lines: Any) -> str | None:
    """One line of a worker; empty where it has died, None where it is silent for too long."""
    said = b""
    while not said.endswith(b"\n"):
        if not select.select([lines], [], [], SILENT)[0]:
            return None
        part = lines.read(1)
        if not part:
            return ""
        said += part
    return said.decode().strip()


def walked(module: str, *arguments: str, seconds: int) -> list[str]:
    """All that goes wrong in a walk, in a process of its own, where the type checker of the tests does not come first.

    What was found is also returned where the walk dies or is too slow, with a line that says so.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", module, *arguments]
        walk = subprocess.Popen(
            command, stdout=said, stderr=errors, env=os.environ | {"HF_HUB_OFFLINE": "1"}, start_new_session=True
        )
        try:
            end = f"exit code {walk.wait(seconds)}"
        except subprocess.TimeoutExpired:
            end = f"more than {seconds} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(walk.pid, signal.SIGKILL)
        said.seek(0)
        errors.seek(0)
        lines, complaints = said.read().splitlines(), errors.read()
    bad = [line for line in lines if not line.endswith(("|refused", "|accepted"))]
    return bad if lines and end == "exit code 0" else [*bad, f"{end} after {len(lines)} cases: {complaints[-2000:]}"]


def main(arguments: list[str]) -> None:
    """Run all cases, those whose names begin as given, or a fixed sample; one line a case, `name|argument|value|…`."""
    torch.set_num_threads(1)
    chosen = cases()
    if arguments[:1] == ["--sample"]:
        quick = (case for case in chosen if case.function not in HEAVY)
        chosen = sampled(quick, int(arguments[1]), lambda case: (case.function, case.argument))
    elif arguments[:1] == ["--from"]:  # a place in the list of cases, and where to stop
        chosen = chosen[slice(*map(int, arguments[1:]))]
    elif arguments:
        chosen = [case for case in chosen if f"{case.function}.{case.argument}".startswith(tuple(arguments))]
    model()  # once, for all forks
    for case, said in run(chosen, outcome):
        print(case.function, case.argument, case.odd, said, sep="|", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
