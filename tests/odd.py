"""What is public, one small result of every measurement, and values that no argument takes."""

import functools
import math
import os
import pickle
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
import xarray as xr

import squashlens as sl
from tests.golden import cases

T = TypeVar("T")


class Unprintable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD: tuple[Any, ...] = (
    None, True, 0, -(10**30), 2**63, 1.5, math.nan, math.inf, 1e-320, 1j, "", "nonsense", "\ud800", "a\x00b", b"bytes",
    [], {}, set(), {"a": 1}, [None], [math.nan], [10**30], [True], ["nonsense"], [[1]], np.int64(1), np.float32("nan"),
    np.array([1, 2]), np.array([None, "a"], dtype=object), torch.tensor([1, 2]), torch.eye(3).to_sparse(),
    torch.ones(3, 3, device="meta"), torch.ones(3, dtype=torch.complex64), torch.int8, Path("/nonexistent"),
    lambda *_: None, Unprintable(), [Unprintable()], xr.Dataset(),
)  # fmt: skip
MADE_BY_US = {"Capture", "PairCapture", "synthetic.LastTokens", "tasks.Question", "tasks.Reading"} | {
    f"statements.{name}" for name in ("Exhibit", "Statement", "Step")
}  # results, that nobody makes by hand


def modules() -> list[ModuleType]:
    """The package and its public modules."""
    listed = [getattr(sl, name) for name in sl.__all__]
    return [sl, *(one for one in listed if isinstance(one, ModuleType)), import_module("squashlens.hosted")]


def names(module: ModuleType) -> list[str]:
    """The names of `__all__`; where a module has none, those that it defines."""
    own = [n for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", own))


@cache
def public() -> dict[str, Callable[..., Any]]:
    """The public functions and classes by name, without errors."""
    found: dict[str, Callable[..., Any]] = {}
    for module in modules():
        prefix = "" if module is sl else module.__name__.split(".")[-1] + "."
        for name in names(module):
            value = getattr(module, name)
            if callable(value) and not (isinstance(value, type) and issubclass(value, Exception)):
                found[prefix + name] = value
    return found | {"Capture.open": sl.Capture.open}


def loading_once(load: Any) -> Any:
    """`sl.load`, which opens a bundled model in float32 once."""

    @functools.wraps(load)
    def loaded(name: str, **form: Any) -> Any:
        usual = {"dtype": "float32", "verify": True}
        plain = name == "tiny-gemma" and all(value == usual.get(key) for key, value in form.items())
        return _bundled(load) if plain else load(name, **form)

    return loaded


@cache
def _bundled(load: Any) -> Any:
    return load("tiny-gemma", device="cpu")


@cache
def model() -> Any:
    return sl.load("tiny-gemma", device="cpu")


PROMPT = "How many ones are in the following sequence? 11 ="


@cache
def sequence() -> Any:
    return sl.prompts.bernoulli(model(), 4, seed=0, separator=",", every=2)


@cache
def pairs() -> Any:
    return sl.capture(model(), sequence(), lengths=[2, 3], noise_lengths=2)


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
    m, quick = model() if name else None, {"n_train": 4, "n_random_models": 1}
    task, masked = sl.tasks.find("taught_count_bernoulli"), {"a": sl.hooks.mask_tokens([1])}
    few: dict[str, Any] = {"n_replacements": 5}
    randomly: dict[str, Any] = {"seeds": 2, "tail": 0.9}
    makers: dict[str, Callable[[], Any]] = {
        "sensitivity": lambda: sl.sensitivity(m, PROMPT),
        "composition": lambda: sl.paths.composition(m, PROMPT),
        "hops": lambda: sl.paths.hops(m, PROMPT),
        "strongest_paths": lambda: sl.paths.strongest_paths(m, PROMPT, k=2),
        "depth_limit": lambda: sl.paths.depth_limit(m, PROMPT, depth=8),
        "jacobian_norms": lambda: sl.jacobian_norms(m, PROMPT),
        "jacobian": lambda: sl.jacobian(m, PROMPT, positions=[3]),
        "path_bound": lambda: sl.path_bound(m, PROMPT),
        "certified_bound": lambda: sl.certified_bound(m, "1 ="),
        "substitution_effect": lambda: sl.substitution_effect(
            m, PROMPT, n_replacements=1, positions=[3]
        ),
        "knockout_effect": lambda: sl.knockout_effect(m, PROMPT, positions=[3]),
        "top_tokens": lambda: sl.top_tokens(m, PROMPT),
        "profile": lambda: sl.profile(m, PROMPT, method="none", n_random_models=0),
        "needle": lambda: sl.needle(m, [ids().tolist()], [2], [("a", 1)], **few),
        "collapse": lambda: sl.collapse(m, pairs()),
        "collapse relative": lambda: sl.collapse(m, pairs(), scale="relative"),
        "mechanism": lambda: sl.mechanism(m, pairs()),
        "separation": lambda: sl.separation(m, sequence(), lengths=[2, 3], n_random_models=0),
        "verdict": lambda: sl.verdict(m, [f"{PROMPT}", f"{PROMPT} {PROMPT}"], ["1", "2"], n_random_models=0),
        "separator_ablation": lambda: sl.separator_ablation(
            m, sequence(), kinds=["mask"], lengths=[3], noise_lengths=2
        ),
        "tokenization": lambda: sl.tokenization(m, 3),
        "splits": lambda: sl.tokenization(m.tokenizer, 3),
        "compare": lambda: sl.compare(m, sequence(), masked, n_samples=1, lengths=[3]),
        "evaluate": lambda: sl.evaluate(m, task, lengths=[2, 3], seeds=2, max_new_tokens=2),
        "accuracy": lambda: sl.accuracy(m, [sequence()], counted, lengths=[2]),
        "probe": lambda: sl.probe(
            m, sl.tasks.find("taught_last_random"), lengths=[8], seeds=32,
            n_train=16, n_random_models=1,
        ),
        "collapse_vs_readout": lambda: sl.collapse_vs_readout(m, task, lengths=[2, 3], seeds=1, **quick),
        "shares_and_counts": lambda: sl.statements.shares_and_counts(m),
        "convergence": lambda: sl.synthetic.convergence(stack(), [4, 8, 16, 32], **randomly),
        "softmax_total_variation": lambda: sl.synthetic.softmax_total_variation([10, 40, 80, 160], k=2, **randomly),
        "answer_frequencies": lambda: sl.results.answer_frequencies(result("evaluate")),
    }  # fmt: skip
    makers |= {
        other: lambda call=call: call(cases.Subject("tiny-gemma", m, "tiny-gemma"))
        for other, call in cases.others().items()
        if other not in makers and not hasattr(sl.hooks, other)
    }
    return makers[name]() if name else list(makers)


def stack() -> Any:
    return sl.synthetic.Stack(width=8)


def ids(n: int = 6) -> torch.Tensor:
    return sl.prompts.tokenize(model(), PROMPT)[0, :n]


def counted(items: tuple[str, ...]) -> str:
    return str(items.count("1"))
