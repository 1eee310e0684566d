"""Every public measurement, called on a small subject: the bundled model or a random model of one family.

Each function is one measurement. It gives named calls, which the runner makes one by one: a call that the library
refuses is recorded as refused. Nothing here says how passes are run, so that it can stay as it is when that moves.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch

import squashlens as sl
from squashlens.checks.arguments import converted
from tests import cases as families

FAMILIES = ("gemma2", "gpt2", "qwen3", "neox", "bloom", "mixtral")
MODELS = ("tiny-gemma", *FAMILIES)
CONFIGS = families.CONFIGS | families.MORE | families.OTHERS
COUNT = "How many ones are in the following sequence?"
LENGTHS = [2, 4, 6]
TASK = sl.tasks.find("taught_count_bernoulli")

Calls = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True)
class Subject:
    """A model, and what is asked of it: ids of prompts, sequences with and without suffix or separators."""

    name: str
    model: Any
    opened: str | Path

    @property
    def speaks(self) -> bool:
        """Whether it has a tokenizer."""
        return self.name == "tiny-gemma"

    @cached_property
    def prompt(self) -> list[int]:
        if self.speaks:
            return sl.prompts.tokenize(self.model, f"{COUNT} 110 =")[0].tolist()
        return [2, 7, 9, 7, 13, 8, 21, 30, 7]

    @property
    def short(self) -> list[int]:
        """Of the prompt only so much as a costly measurement takes."""
        return self.prompt[:6]

    @cached_property
    def pair(self) -> list[list[int]]:
        """The prompt, and another of its length."""
        return [self.prompt, [*self.prompt[:-3], self.prompt[-2], *self.prompt[-2:]]]

    @cached_property
    def one(self) -> int:
        return sl.prompts.one_token(self.model, "1" if self.speaks else 7)

    @cached_property
    def among(self) -> list[int]:
        return [sl.prompts.one_token(self.model, t) for t in ("0123" if self.speaks else (7, 8, 9, 11))]

    def sequence(self, n: int = 6, **form: Any) -> sl.prompts.GrowingSequence:
        """Content of two kinds of token."""
        if self.speaks:
            return sl.prompts.bernoulli(self.model, n, seed=1, prefix=COUNT, **form)
        content = ([7, 9, 7, 7, 9, 11] * n)[:n]
        return sl.prompts.build(self.model, content, prefix=[2, 5, 14], alphabet=self.among, **form)

    @property
    def separator(self) -> Any:
        return "," if self.speaks else 13

    @property
    def suffix(self) -> Any:
        return "=" if self.speaks else [20, 21]

    @cached_property
    def commas(self) -> sl.prompts.GrowingSequence:
        return self.sequence(separator=self.separator, every=2)


def subject(name: str, root: Path, device: str = "cpu") -> Subject:
    """A model by its name; a random one is written into a folder of `root`."""
    opened = name if name == "tiny-gemma" else families.save_random(CONFIGS[name], root / name)
    return Subject(name, sl.load(opened, device=device), opened)


MEASUREMENTS: dict[str, Callable[[Subject], Calls]] = {}


def others() -> dict[str, Callable[[Subject], Any]]:
    """The usual call of each public measurement, and of each hook, that has no case in this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    public = [getattr(module, name) for module in (sl, sl.paths) for name in module.__all__]
    measuring = {one.__name__: one for one in public if hasattr(one, "__measures__") and ".measure." in one.__module__}
    made = {name: getattr(sl.hooks, name) for name in sl.hooks.__all__}
    hooks = {name: one for name, one in made.items() if returns(one) in ("Hook", "Recipe")}
    return {
        name: lambda s, name=name, one=one: usual(s, one) if name in measuring else seen(s, usual(s, one))
        for name, one in (measuring | hooks).items()
        if f".{name}(" not in text
    }


def returns(function: Any) -> str:
    """The name of the class of what a function returns."""
    return getattr(inspect.signature(function, eval_str=True).return_annotation, "__name__", "")


def usual(s: Subject, function: Callable[..., Any], **more: Any) -> Any:
    """The result of a function for the arguments that it needs, which are found by name and type, and others."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return function(**{one.name: argument(s, one) for one in parameters if one.default is one.empty} | more)


def argument(s: Subject, parameter: inspect.Parameter) -> Any:
    """An argument: what is measured, or the first choice, number, list or text that the annotation allows."""
    named = {"model": s.model, "prompt": [s.prompt], "sequence": s.sequence(), "prompts": s.pair, "task": TASK}
    if parameter.name in named:
        return named[parameter.name]
    for value in (*get_args(parameter.annotation), 0.5, 2, [1, 2], "1"):
        with suppress(sl.errors.InputError):
            return converted(value, parameter.annotation, parameter.name)
    raise TypeError(f"Add a case of {parameter.name} to {__file__}: no usual value is of its type.")


def seen(s: Subject, hook: Any) -> Any:
    """What a model computes under a hook."""
    with sl.applied(s.model, hook):
        return sl.capture(s.model, [s.prompt], layers=[2, 3]).to_xarray()


def results(s: Subject, measurement: str) -> Iterator[tuple[str, Any]]:
    """Each call of a measurement with its result; one that is refused gives the refusal's name."""
    for call in MEASUREMENTS[measurement](s):
        yield call, one(s, measurement, call)


def one(s: Subject, measurement: str, call: str) -> Any:
    """The result of one call; a refusal's name, or the exception that is none."""
    try:
        return MEASUREMENTS[measurement](s)[call]()
    except sl.errors.SquashlensError as refused:
        return type(refused).__name__
    except ValueError as error:  # a crash: not recorded
        return error


def measurement(function: Callable[[Subject], Calls]) -> Callable[[Subject], Calls]:
    """Put a function on the list, under its name."""
    MEASUREMENTS[function.__name__] = function
    return function


@measurement
def capture(s: Subject) -> Calls:
    return {
        "one": lambda: sl.capture(s.model, [s.prompt]).to_xarray(),
        "two": lambda: sl.capture(s.model, s.pair, layers=[0, 2], keep="residuals").to_xarray(),
        "tokens": lambda: sl.prompts.tokenize(s.model, s.pair).cpu().numpy(),
    }


PRINTED: dict[str, Any] = {"beta1": 2, "beta2": 0.5, "beta3": 3, "sigma_psi": 0.7}


@measurement
def path_bound(s: Subject) -> Calls:
    m, ids = s.model, [s.prompt]
    return {
        "paper": lambda: sl.path_bound(m, ids),
        "constants": lambda: sl.path_bound(m, ids, **PRINTED, to_layer=[2, "y"]),
        "uniform": lambda: sl.path_bound(m, ids, attention="uniform", query=-2, from_layer=1),
        "topological": lambda: sl.path_bound(m, ids, attention="topological", sigma_psi=0),
        "two": lambda: sl.path_bound(m, s.pair),
        "unequal": lambda: sl.path_bound(m, [s.prompt, s.prompt[:-2]]),
        "captured": lambda: sl.path_bound(m, sl.capture(m, ids)),
    }


@measurement
def certified_bound(s: Subject) -> Calls:
    m, ids = s.model, [s.short]
    return {
        "exact": lambda: sl.certified_bound(m, ids),
        "grouped": lambda: sl.certified_bound(m, ids, n_composed=2, freeze="attention"),
    }


@measurement
def paths(s: Subject) -> Calls:
    m, ids = s.model, [s.prompt]
    return {
        "composition": lambda: sl.paths.composition(m, s.pair),
        "composition uniform": lambda: sl.paths.composition(m, ids, attention="uniform", query=-3),
        "hops": lambda: sl.paths.hops(m, ids),
        "hops topological": lambda: sl.paths.hops(m, ids, attention="topological", from_layer=1, to_layer=2),
        "strongest_paths": lambda: sl.paths.strongest_paths(m, ids, k=6),
        "depth_limit": lambda: sl.paths.depth_limit(m, ids, depth=12),
    }


@measurement
def jacobian_norms(s: Subject) -> Calls:
    m, ids = s.model, [s.prompt]
    return {
        "spectral": lambda: sl.jacobian_norms(m, ids, to_layer=[2, "y"]),
        "frobenius": lambda: sl.jacobian_norms(m, s.pair, norm="frobenius"),
        "frozen attention": lambda: sl.jacobian_norms(m, ids, freeze="attention"),
        "frozen": lambda: sl.jacobian_norms(m, ids, freeze=["attention", "norms", "gates"], from_layer=1, query=-2),
        "sketch": lambda: sl.jacobian_norms(m, ids, norm="frobenius", method="sketch", n_probes=8, seed=3),
        "sketch_upper": lambda: sl.jacobian_norms(m, ids, method="sketch_upper", n_probes=8, seed=3),
    }


@measurement
def sensitivity(s: Subject) -> Calls:
    return {"one": lambda: sl.sensitivity(s.model, [s.prompt])}


@measurement
def substitution_effect(s: Subject) -> Calls:
    return {
        "one": lambda: sl.substitution_effect(s.model, [s.prompt], n_replacements=2),
        "two": lambda: sl.substitution_effect(
            s.model, s.pair, candidates=s.among, positions=[1, 2], to_layer=2, seed=1
        ),
    }


@measurement
def needle(s: Subject) -> Calls:
    prompts = [ids[-6:] for ids in s.pair] + [s.prompt[-5:]]
    return {
        "one": lambda: sl.needle(
            s.model,
            prompts,
            [2, 3, 2],
            [("a", 1), ("a", 1), ("b", 2)],
            candidates=s.among,
            n_replacements=2,
            seed=0,
        ),
    }


@measurement
def top_tokens(s: Subject) -> Calls:
    return {"one": lambda: sl.top_tokens(s.model, [s.prompt], k=5)}


@measurement
def collapse(s: Subject) -> Calls:
    m, asked = s.model, s.sequence(suffix=s.suffix)
    return {
        "linf": lambda: sl.collapse(m, s.sequence(), noise_lengths=2),
        "l1 value": lambda: sl.collapse(m, asked, norm="l1", by_head="value", lengths=LENGTHS),
        "l2 slice": lambda: sl.collapse(m, s.commas, norm="l2", by_head="slice", scale="relative", lengths=LENGTHS),
        "beside": lambda: sl.collapse(m, asked, baselines=["contrast", "unrelated"], n_samples=2, seed=3),
        "rounded": lambda: sl.collapse(m, s.sequence(), round_to=torch.bfloat16, lengths=LENGTHS),
    }


@measurement
def mechanism(s: Subject) -> Calls:
    return {
        "linf": lambda: sl.mechanism(s.model, s.sequence()),
        "l1": lambda: sl.mechanism(s.model, s.commas, norm="l1", lengths=LENGTHS, noise_lengths=2),
    }


@measurement
def separator_ablation(s: Subject) -> Calls:
    return {
        "all": lambda: sl.separator_ablation(
            s.model, s.commas, lengths=[4, 6], from_blocks=[0, 2], seed=2, noise_lengths=2
        )
    }


@measurement
def compare(s: Subject) -> Calls:
    changes = {
        "masked": sl.hooks.mask_tokens([1]),
        "cold": [sl.hooks.attention_temperature(0.5), sl.hooks.zero_values([2])],
        "commas": s.commas,
    }
    windows = {f"window of 4, {sink} sinks": sl.hooks.sliding_window(4, sink=sink) for sink in (0, 1)}
    return {
        "compare": lambda: sl.compare(s.model, s.sequence(), changes, lengths=LENGTHS),
        "windows": lambda: sl.compare(s.model, s.sequence(), windows, lengths=LENGTHS),
    }


@measurement
def shares_and_counts(s: Subject) -> Calls:
    return {"two": lambda: sl.statements.shares_and_counts(s.model, content=s.among[:2])}


def hooks_with(pair: Any) -> dict[str, Any]:
    """One or two of each kind of hook, by name; what they put in comes from two prompts of one length."""
    other = pair[1:]
    return {
        "freeze_attention": sl.hooks.freeze_attention(),
        "freeze_norms": sl.hooks.freeze_norms(),
        "freeze_gates": sl.hooks.freeze_gates((0, 1)),
        "mask_tokens": sl.hooks.mask_tokens([1, 2], (1, 2), heads=[0, 1]),
        "mask_attention": sl.hooks.mask_attention([4, 5], [1, 2]),
        "sliding_window": sl.hooks.sliding_window(3, sink=1),
        "attention_temperature": sl.hooks.attention_temperature(0.5),
        "scale_attention": sl.hooks.scale_attention(3.0, [1, 3]),
        "uniform_attention": sl.hooks.uniform_attention((0,)),
        "zero_pattern": sl.hooks.zero_pattern([1]),
        "zero_values": sl.hooks.zero_values([2], (0, 2)),
        "zero_heads": sl.hooks.zero_heads([1], positions=[3, 4]),
        "zero_residual": sl.hooks.zero_residual([2], (1,)),
        "mean_heads": sl.hooks.mean_heads([0], pair, (1,)),
        "mean_heads over positions": sl.hooks.mean_heads([0, 1], pair, over="positions"),
        "mean_residual": sl.hooks.mean_residual([2, 5], pair, (1,)),
        "resample_residual": sl.hooks.resample_residual([5, 6], pair, seed=1),
        "patch_heads": sl.hooks.patch_heads([0, 2], other, (1,), positions=[5, 6], from_positions=[6, 5]),
        "patch_residual": sl.hooks.patch_residual([5, 6], other, (1,)),
        "rounding bits": sl.hooks.rounding(3),
        "a function": ("blocks.1.hook_resid_pre", lambda stream, hook: 0.5 * stream),
    }


@measurement
def interventions(s: Subject) -> Calls:
    """The path bound, y and v at the last layer under each; a measurement of collapse under some."""
    return {name: lambda hook=hook: seen(s, hook) for name, hook in hooks_with(s.pair).items()}


@measurement
def under_hooks(s: Subject) -> Calls:
    m, ids = s.model, [s.prompt]
    calls: Calls = {
        "path_bound": lambda: sl.path_bound(m, ids),
        "jacobian_norms": lambda: sl.jacobian_norms(m, ids),
        "substitution_effect": lambda: sl.substitution_effect(m, ids, n_replacements=1),
        "collapse": lambda: sl.collapse(m, s.sequence(), lengths=LENGTHS),
        "top_tokens": lambda: sl.top_tokens(m, ids),
    }

    def hooked(call: Callable[[], Any]) -> Any:
        with sl.applied(m, sl.hooks.sliding_window(4, sink=1), sl.hooks.zero_values([2])):
            return call()

    return {name: lambda call=call: hooked(call) for name, call in calls.items()}


@measurement
def separation(s: Subject) -> Calls:
    """Only distances in float32 of one run, since what rounding does is no number to keep."""

    def steps() -> Any:
        found = sl.separation(s.model, s.sequence(), lengths=[2, 4, 6], n_random_models=0)
        return (found["step_y"] * found["noise_y"]).isel(length=slice(2))

    return {"steps": steps}


@measurement
def verdict(s: Subject) -> Calls:
    if not s.speaks:
        return {}
    asked = [f"{COUNT} {text} =" for text in ("110", "1101", "11011")]

    def odds() -> Any:
        return sl.verdict(s.model, asked, ["2", "3", "4"], n_random_models=0)[["log_odds", "log_odds_after"]]

    return {"odds": odds}


@measurement
def tokenization(s: Subject) -> Calls:
    if not s.speaks:
        return {}
    return {
        "splits": lambda: sl.tokenization(s.model.tokenizer, n=4, prefix=COUNT),
        "tokenization": lambda: sl.tokenization(s.model, n=4, prefix=COUNT),
        "absolute": lambda: sl.tokenization(s.model, n=3, repeat="7", norm="l2", scale="absolute"),
    }


@measurement
def answers(s: Subject) -> Calls:
    if not s.speaks:
        return {}

    def count(digits: tuple[str, ...]) -> str:
        return str(digits.count("1"))

    asked, m = s.sequence(suffix="="), s.model
    masked = {"masked": sl.hooks.mask_tokens([9])}
    drawn = [sl.prompts.bernoulli(m, 8, seed=k, prefix=COUNT, suffix="=") for k in range(3)]
    return {
        "evaluate": lambda: sl.evaluate(m, TASK, lengths=[4, 9], seeds=3),
        "drawn": lambda: sl.evaluate(m, TASK, lengths=[5], seeds=2, temperature=0.7, prefill=True),
        "answer_frequencies": lambda: sl.results.answer_frequencies(sl.evaluate(m, TASK, lengths=[4, 9], seeds=3)),
        "accuracy": lambda: sl.accuracy(m, drawn, count, lengths=[4, 8]),
        "compare": lambda: sl.compare(m, asked, masked, answer=count, n_samples=3, lengths=[4, 6]),
    }


@measurement
def represented(s: Subject) -> Calls:
    if not s.speaks:
        return {}
    return {
        "probe": lambda: sl.probe(
            s.model,
            TASK,
            lengths=[8],
            seeds=48,
            n_train=16,
            n_random_models=0,
            direction="shared",
        ),
        "collapse_vs_readout": lambda: sl.collapse_vs_readout(
            s.model, TASK, lengths=[4, 8], seeds=40, n_train=16, n_random_models=1
        ),
    }


@measurement
def synthetic(s: Subject) -> Calls:
    """Stacks of random attention, which are no model's; recorded with the bundled one."""
    if not s.speaks:
        return {}
    stack = sl.synthetic.Stack(depth=2, heads=2, width=16, encoding="rope", mlp=2)
    lengths = [8, 12, 16, 24, 32, 48, 64]
    return {
        "convergence": lambda: sl.synthetic.convergence(stack, lengths, seeds=2),
        "softmax_total_variation": lambda: sl.synthetic.softmax_total_variation([16, 32, 64, 128, 256], k=4, seeds=2),
    }


@measurement
def profile(s: Subject) -> Calls:
    m, short = s.model, [s.short]
    plain: dict[str, Any] = {"n_random_models": 0}
    return {
        "bounds": lambda: sl.profile(m, [s.prompt], method="none", **plain),
        "norms": lambda: sl.profile(m, short, queries=[2, -1], layers=[0, 2], norm="frobenius", **plain),
    }
