"""One row for each public measurement, which all sweeps over measurements read.

A row has a small call on the bundled model, with other values of its options, and the calls whose numbers are on
record: of the bundled models, of real ones, and of a random model of some families. A call that the library refuses is
recorded as refused. Nothing here says how passes are run, so that it can stay as it is when that moves.
"""

import functools
import inspect
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch

import squashlens as sl
from squashlens.checks.arguments import converted
from tests import cases as families

FAMILIES = ("gemma2", "gpt2", "qwen3", "neox", "bloom", "mixtral")
REAL = ("gemma-3-270m", "smollm2-135m")
WITH_WORDS = ("tiny-gemma", "tiny-prose", *REAL)
MODELS = (*WITH_WORDS, *FAMILIES)
# What takes minutes with real weights, is of the bundled model's own tasks, or has no model.
TOYS_ALONE = (
    "certified_bound",
    "influence",
    "influence_by_distance",
    "needle",
    "answers",
    "represented",
    "synthetic",
    "shares_and_counts",
    "sensitivity",
)
SKETCHES = (
    "sketch",
    "sketch_upper",
)  # of the Jacobian norms, those that take a few products
CONFIGS = families.CONFIGS | families.MORE | families.OTHERS
COUNT = "How many ones are in the following sequence?"
LENGTHS = [2, 4, 6]
TASK, LAST = (
    sl.tasks.find(name) for name in ("taught_count_bernoulli", "taught_last_random")
)

PROMPT = f"{COUNT} 11 ="

T = TypeVar("T")
Calls = Mapping[str, Callable[[], Any]]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model, and what is asked of it: ids of prompts, sequences with and without suffix or separators."""

    name: str
    model: Any
    opened: str | Path

    @property
    def speaks(self) -> bool:
        """Whether it has a tokenizer."""
        return self.name in WITH_WORDS

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
    def among(self) -> list[int]:
        return [
            sl.prompts.one_token(self.model, t)
            for t in ("0123" if self.speaks else (7, 8, 9, 11))
        ]

    def sequence(self, n: int = 6, **form: Any) -> sl.prompts.GrowingSequence:
        """Content of two kinds of token."""
        if self.speaks:
            return sl.prompts.bernoulli(self.model, n, seed=1, prefix=COUNT, **form)
        content = ([7, 9, 7, 7, 9, 11] * n)[:n]
        return sl.prompts.build(
            self.model, content, prefix=[2, 5, 14], alphabet=self.among, **form
        )

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
    opened = (
        name if name in WITH_WORDS else families.save_random(CONFIGS[name], root / name)
    )
    return Subject(name, sl.load(opened, device=device), opened)


@dataclass(frozen=True)
class Row:
    """A measurement: its function, what is given to it beside the model, and what is asked of it."""

    function: Callable[..., Any]
    small: Options | Callable[[], Options] | None = (
        None  # what the small call is given, where there is one
    )
    varied: tuple[Options, ...] = ()  # other values of its options
    of: Callable[[Subject], Options] = lambda s: {
        "prompt": [s.prompt]
    }  # what each call on record is given
    recorded: Callable[[Subject], Mapping[str, Any]] | None = (
        None  # and its options, by its name
    )
    kept: Callable[[Any], Any] = lambda found: found  # of its result
    group: str = ""  # the name on record, where it is not the row's
    speaks: bool = False  # whether only a model with a tokenizer is on record

    def called(self, **options: Any) -> Any:
        """The small call, with other values of options."""
        return self.function(model(), **{**stated(self.small), **options})

    def calls(self, s: Subject) -> Calls:
        """Those on record."""
        if self.recorded is None or (self.speaks and not s.speaks):
            return {}
        return {
            name: lambda given=given: self.measured(s, given)
            for name, given in self.recorded(s).items()
        }

    def measured(self, s: Subject, options: Any) -> Any:
        return self.kept(self.function(s.model, **{**self.of(s), **stated(options)}))


def stated(options: Any) -> dict[str, Any]:
    """Options; some are made when they are needed."""
    chosen: Any = options() if callable(options) else options
    return {**chosen}


@cache
def model() -> Any:
    return sl.load("tiny-gemma", device="cpu")


@cache
def sequence() -> Any:
    return sl.prompts.bernoulli(model(), 4, seed=0, separator=",", every=2)


@cache
def pairs() -> Any:
    baselines: Any = {"baselines": ["contrast", "unrelated"], "n_samples": 2}
    return sl.capture(model(), sequence(), lengths=[2, 3], noise_lengths=2, **baselines)


def ids(n: int = 6) -> torch.Tensor:
    return sl.prompts.tokenize(model(), PROMPT)[0, :n]


def counted(items: tuple[str, ...]) -> str:
    return str(items.count("1"))


@cache
def result(name: str) -> Any:
    """The result of the small call of a row, or the usual one of a measurement without a row."""
    return together(
        name,
        ROWS[name].called if name in ROWS else lambda: others()[name](bundled(model())),
    )


def results() -> list[str]:
    """The names that have one: of each measurement that a figure draws."""
    return [name for name, row in ROWS.items() if row.small is not None] + [
        name for name in others() if name not in ROWS and not hasattr(sl.hooks, name)
    ]


def longer(result: Any) -> Any:
    """A result with one position more, with the numbers of the last."""
    whole = result
    for dim, index in result.indexes.items():
        if dim != "position":
            continue
        last = index.tolist()[-1]
        labels = [*index, f"{last} too" if isinstance(last, str) else last + 1]
        whole = whole.isel({dim: [*range(len(index)), -1]}).assign_coords({dim: labels})
    return whole


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


def bundled(model: Any) -> Subject:
    """The bundled model, as it was loaded."""
    return Subject("tiny-gemma", model, "tiny-gemma")


def others() -> dict[str, Callable[[Subject], Any]]:
    """The usual call of each public measurement, and of each hook, that has no record of its own in this file."""
    public = [
        getattr(module, name) for module in (sl, sl.paths) for name in module.__all__
    ]
    known = {row.function.__name__ for row in ROWS.values() if row.recorded}
    measuring = {
        one.__name__: one
        for one in public
        if hasattr(one, "__measures__") and ".measure." in one.__module__
    }
    text = Path(__file__).read_text(encoding="utf-8")
    made = {
        name: getattr(sl.hooks, name)
        for name in sl.hooks.__all__
        if f"hooks.{name}(" not in text
    }
    hooks = {
        name: one for name, one in made.items() if returns(one) in ("Hook", "Recipe")
    }
    return {
        name: lambda s, name=name, one=one: (
            usual(s, one) if name in measuring else seen(s, usual(s, one))
        )
        for name, one in (measuring | hooks).items()
        if name not in known
    }


def returns(function: Any) -> str:
    """The name of the class of what a function returns."""
    return getattr(
        inspect.signature(function, eval_str=True).return_annotation, "__name__", ""
    )


def usual(s: Subject, function: Callable[..., Any], **more: Any) -> Any:
    """The result of a function for the arguments that it needs, which are found by name and type, and others."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return function(
        **{one.name: argument(s, one) for one in parameters if one.default is one.empty}
        | more
    )


def argument(s: Subject, parameter: inspect.Parameter) -> Any:
    """An argument: what is measured, or the first choice, number, list or text that the annotation allows."""
    named = {
        "model": s.model,
        "prompt": [s.prompt],
        "sequence": s.sequence(),
        "prompts": s.pair,
        "task": TASK,
    }
    if parameter.name in named:
        return named[parameter.name]
    for value in (*get_args(parameter.annotation), 0.5, 2, [1, 2], "1"):
        with suppress(sl.errors.InputError):
            return converted(value, parameter.annotation, parameter.name)
    raise TypeError(
        f"Add a case of {parameter.name} to {__file__}: no usual value is of its type."
    )


def seen(s: Subject, hook: Any) -> Any:
    """What a model computes under a hook."""
    with sl.applied(s.model, hook):
        return sl.capture(s.model, [s.prompt], layers=[2, 3]).to_xarray()


def calls(s: Subject, measurement: str) -> Iterator[tuple[str, Any]]:
    """Each call of a measurement with its result; one that is refused gives the refusal's name."""
    for call in MEASUREMENTS[measurement](s):
        if is_recorded(s.name, measurement, call):
            yield call, one(s, measurement, call)


def is_recorded(name: str, measurement: str, call: str) -> bool:
    """Whether a call is on record for a model: of larger ones only what takes seconds."""
    if name not in WITH_WORDS[1:]:
        return True
    if measurement == "jacobian_norms":
        return call in SKETCHES
    return measurement not in TOYS_ALONE and not (
        measurement == "under_hooks" and call == "jacobian_norms"
    )


def one(s: Subject, measurement: str, call: str) -> Any:
    """The result of one call; a refusal's name, or the exception that is none."""
    try:
        return MEASUREMENTS[measurement](s)[call]()
    except sl.errors.SquashlensError as refused:
        return type(refused).__name__
    except ValueError as error:  # a crash: not recorded
        return error


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
        "mean_heads over positions": sl.hooks.mean_heads(
            [0, 1], pair, over="positions"
        ),
        "mean_residual": sl.hooks.mean_residual([2, 5], pair, (1,)),
        "resample_residual": sl.hooks.resample_residual([5, 6], pair, seed=1),
        "patch_heads": sl.hooks.patch_heads(
            [0, 2], other, (1,), positions=[5, 6], from_positions=[6, 5]
        ),
        "patch_residual": sl.hooks.patch_residual([5, 6], other, (1,)),
        "zero_mlp": sl.hooks.zero_mlp((1,), positions=[3, 4]),
        "mean_mlp": sl.hooks.mean_mlp(pair, (1,)),
        "patch_mlp": sl.hooks.patch_mlp(
            other, (2,), positions=[5, 6], from_positions=[6, 5]
        ),
        "rounding bits": sl.hooks.rounding(3),
        "a function": ("blocks.1.hook_resid_pre", lambda stream, hook: 0.5 * stream),
    }


def under_hooks(s: Subject) -> Calls:
    """Some measurements under two hooks."""

    def hooked(call: Callable[[], Any]) -> Any:
        with sl.applied(
            s.model, sl.hooks.sliding_window(4, sink=1), sl.hooks.zero_values([2])
        ):
            return call()

    options: dict[str, Options] = {
        "path_bound": {},
        "jacobian_norms": {},
        "substitution_effect": {"n_replacements": 1},
        "collapse": {"sequence": s.sequence(), "lengths": LENGTHS},
        "top_tokens": {},
    }
    return {
        name: lambda name=name, given=given: hooked(
            lambda: ROWS[name].measured(s, given)
        )
        for name, given in options.items()
    }


def without_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of random stacks, called like one of a model."""
    return functools.wraps(function)(lambda _, **options: function(**options))


def in_pairs(**options: Any) -> Callable[[], Options]:
    return lambda: {"sequence": pairs(), **options}


def in_sequence(**options: Any) -> Callable[[], Options]:
    return lambda: {"sequence": sequence(), **options}


def with_suffix(s: Subject) -> Options:
    return {"sequence": s.sequence(suffix=s.suffix)}


ASKED_TWICE = {
    "prompts": [f"{COUNT} {text} =" for text in ("1", "11", "10", "0110")],
    "answers": [*"1212"],
}
ASKED, TOLD = {"prompt": PROMPT}, {"task": TASK.name}
PRINTED: dict[str, Any] = {"beta1": 2, "beta2": 0.5, "beta3": 3, "sigma_psi": 0.7}
UNIFORM, TOPOLOGICAL = {"attention": "uniform"}, {"attention": "topological"}
QUERY, PLACES = {"query": 5}, ({"query": 5}, {"from_layer": 2}, {"to_layer": 3})
FROZEN, SKETCHED, BOUNDED = (
    {"freeze": ["attention"]},
    {"method": "sketch"},
    {"method": "sketch_upper"},
)
L1, L2, FROBENIUS, UNTRAINED = (
    {"norm": "l1"},
    {"norm": "l2"},
    {"norm": "frobenius"},
    {"n_random_models": 0},
)
RELATIVE, NORM_SCALE = {"scale": "relative"}, (L2, {"scale": "absolute"})
ROUNDED, FEW = {"round_to": torch.bfloat16}, {"n_train": 16, "n_random_models": 1}
MASKED = {"interventions": {"a": sl.hooks.mask_tokens([1])}}
STACK = sl.synthetic.Stack(depth=2, heads=2, width=16, encoding="rope", mlp=2)


def profiled(s: Subject) -> dict[str, Options]:
    few = {"prompt": [s.short], "queries": [2, -1], "layers": [0, 2]}
    norms = {**few, **FROBENIUS, "method": "auto"}
    return {"bounds": {"method": "none"}, "norms": norms}


ROWS: dict[str, Row] = {
    "sensitivity": Row(
        sl.sensitivity,
        ASKED,
        (FROBENIUS, QUERY, SKETCHED),
        recorded=lambda s: {"one": {}},
    ),
    "composition": Row(
        sl.paths.composition,
        ASKED,
        (UNIFORM, QUERY),
        group="paths",
        recorded=lambda s: {
            "composition": {"prompt": s.pair},
            "composition uniform": {"query": -3, **UNIFORM},
        },
    ),
    "hops": Row(
        sl.paths.hops,
        ASKED,
        (UNIFORM, TOPOLOGICAL, *PLACES),
        group="paths",
        recorded=lambda s: {
            "hops": {},
            "hops topological": {"from_layer": 1, "to_layer": 2, **TOPOLOGICAL},
        },
    ),
    "strongest_paths": Row(
        sl.paths.strongest_paths,
        {"k": 2, **ASKED},
        (UNIFORM, {"avoid": [0]}, *PLACES),
        group="paths",
        recorded=lambda s: {"strongest_paths": {"k": 6}},
    ),
    "depth_limit": Row(
        sl.paths.depth_limit,
        {"depth": 8, **ASKED},
        ({"depth": 6}, QUERY),
        group="paths",
        recorded=lambda s: {"depth_limit": {"depth": 12}},
    ),
    "jacobian_norms": Row(
        sl.jacobian_norms,
        ASKED,
        (FROBENIUS, FROZEN, SKETCHED, BOUNDED, *PLACES),
        recorded=lambda s: {
            "spectral": {"to_layer": [2, "y"]},
            "frobenius": {"prompt": s.pair, **FROBENIUS},
            "frozen attention": FROZEN,
            "frozen": {
                "freeze": ["attention", "norms", "gates"],
                "from_layer": 1,
                "query": -2,
            },
            "sketch": {"n_probes": 8, "seed": 3, **SKETCHED, **FROBENIUS},
            "sketch_upper": {"n_probes": 8, "seed": 3, **BOUNDED},
        },
    ),
    "jacobian": Row(
        sl.jacobian,
        {"positions": [3], **ASKED},
        (FROZEN, {"freeze": ["norms", "gates"]}, *PLACES[:2]),
    ),
    "path_bound": Row(
        sl.path_bound,
        ASKED,
        (
            {"beta1": 2.0},
            {"beta2": 2.0, "beta3": 0.5},
            {"sigma_psi": 0.0},
            UNIFORM,
            TOPOLOGICAL,
            *PLACES,
        ),
        recorded=lambda s: {
            "paper": {},
            "constants": {"to_layer": [2, "y"], **PRINTED},
            "uniform": {"query": -2, "from_layer": 1, **UNIFORM},
            "topological": {"sigma_psi": 0, **TOPOLOGICAL},
            "two": {"prompt": s.pair},
            "unequal": {"prompt": [s.prompt, s.prompt[:-2]]},
            "captured": lambda: {"prompt": sl.capture(s.model, [s.prompt])},
        },
    ),
    "certified_bound": Row(
        sl.certified_bound,
        {"prompt": "1 ="},
        (FROZEN, {"n_composed": 2}, {"query": 1}, *PLACES[1:]),
        of=lambda s: {"prompt": [s.short]},
        recorded=lambda s: {"exact": {}, "grouped": {"n_composed": 2, **FROZEN}},
    ),
    "substitution_effect": Row(
        sl.substitution_effect,
        {"n_replacements": 1, "positions": [3], **ASKED},
        ({"candidates": [5, 6, 7]}, *PLACES[::2]),
        recorded=lambda s: {
            "one": {"n_replacements": 2},
            "two": {
                "prompt": s.pair,
                "candidates": s.among,
                "positions": [1, 2],
                "to_layer": 2,
                "seed": 1,
            },
        },
    ),
    "knockout_effect": Row(
        sl.knockout_effect,
        {"positions": [3], **ASKED},
        ({"kind": "embedding"}, {"target": "1"}, QUERY),
    ),
    "top_tokens": Row(sl.top_tokens, ASKED, recorded=lambda s: {"one": {"k": 5}}),
    "influence": Row(
        sl.influence,
        {"prompt": "1 ="},
        (FROBENIUS, BOUNDED),
        recorded=profiled,
    ),
    "influence_by_distance": Row(
        sl.influence_by_distance,
        {"prompt": "1 =", **UNTRAINED},
        ({"method": "auto", **FROBENIUS}, BOUNDED),
        recorded=lambda s: {
            name: {**options, **UNTRAINED} for name, options in profiled(s).items()
        },
    ),
    "attention_heads": Row(
        sl.attention_heads,
        ASKED,
        recorded=lambda s: {"bounds": {}, "norms": {"prompt": [s.short]}},
    ),
    "needle": Row(
        sl.needle,
        lambda: {
            "prompt": [ids().tolist()],
            "positions": [2],
            "groups": [("a", 1)],
            "n_replacements": 5,
        },
        ({"norm": "spectral"}, {"candidates": [9, 10, 11]}),
        of=lambda s: {
            "prompt": [*(ids[-6:] for ids in s.pair), s.prompt[-5:]],
            "positions": [2, 3, 2],
            "groups": [("a", 1), ("a", 1), ("b", 2)],
        },
        recorded=lambda s: {
            "one": {"candidates": s.among, "n_replacements": 2, "seed": 0}
        },
    ),
    "collapse": Row(
        sl.collapse,
        in_pairs(by_head="value"),
        ({"by_head": "slice"}, L2, RELATIVE, ROUNDED),
        of=with_suffix,
        recorded=lambda s: {
            "linf": {"sequence": s.sequence(), "noise_lengths": 2},
            "l1 value": {"by_head": "value", "lengths": LENGTHS, **L1},
            "l2 slice": {
                "sequence": s.commas,
                "by_head": "slice",
                "lengths": LENGTHS,
                **L2,
                **RELATIVE,
            },
            "beside": {
                "baselines": ["contrast", "unrelated"],
                "n_samples": 2,
                "seed": 3,
            },
            "rounded": {"sequence": s.sequence(), "lengths": LENGTHS, **ROUNDED},
        },
    ),
    "collapse relative": Row(sl.collapse, in_pairs(**RELATIVE)),
    "collapse_mechanism": Row(
        sl.collapse_mechanism,
        in_pairs(),
        (L2,),
        of=lambda s: {"sequence": s.sequence()},
        recorded=lambda s: {
            "linf": {},
            "l1": {"sequence": s.commas, "lengths": LENGTHS, "noise_lengths": 2, **L1},
        },
    ),
    # Only distances in float32 of one run, since what rounding does is no number to keep.
    "separation": Row(
        sl.separation,
        in_sequence(lengths=[2, 3], **UNTRAINED),
        of=lambda s: {"sequence": s.sequence()},
        recorded=lambda s: {"steps": {"lengths": [2, 4, 6], **UNTRAINED}},
        kept=lambda found: (found["step_y"] * found["noise_y"]).isel(length=slice(2)),
    ),
    "verdict": Row(
        sl.verdict,
        {"prompts": [PROMPT, f"{PROMPT} {PROMPT}"], "answers": ["1", "2"], **UNTRAINED},
        of=lambda s: {
            "prompts": [f"{COUNT} {text} =" for text in ("110", "1101", "11011")]
        },
        recorded=lambda s: {"odds": {"answers": ["2", "3", "4"], **UNTRAINED}},
        kept=lambda found: found[["log_odds", "log_odds_after"]],
        speaks=True,
    ),
    "answer_by_layer": Row(
        sl.answer_by_layer,
        {**ASKED_TWICE, **UNTRAINED},
        of=lambda s: ASKED_TWICE,
        recorded=lambda s: {"four": UNTRAINED},
        speaks=True,
    ),
    "sublayer_effect": Row(
        sl.sublayer_effect,
        {**ASKED_TWICE, "texts": [PROMPT]},
        ({"missing": "mean"}, {"parts": "heads"}),
        of=lambda s: ASKED_TWICE,
        recorded=lambda s: {"zero": {}, "mean": {"missing": "mean", "texts": [PROMPT]}},
        speaks=True,
    ),
    "separator_ablation": Row(
        sl.separator_ablation,
        in_sequence(kinds=["substitute", "mask"], lengths=[3], noise_lengths=2),
        (L2, RELATIVE, {"substitute": "0"}),
        of=lambda s: {"sequence": s.commas},
        recorded=lambda s: {
            "all": {
                "lengths": [4, 6],
                "from_blocks": [0, 2],
                "seed": 2,
                "noise_lengths": 2,
            }
        },
    ),
    "repeat_tokenization": Row(
        sl.repeat_tokenization,
        {"n": 3},
        (*NORM_SCALE, {"repeat": "0"}, {"prefix": "How"}),
        speaks=True,
        of=lambda s: {"n": 4, "prefix": COUNT},
        recorded=lambda s: {
            "repeat_tokenization": {},
            "absolute": {
                "n": 3,
                "prefix": "",
                "repeat": "7",
                "norm": "l2",
                "scale": "absolute",
            },
        },
    ),
    "splits": Row(
        lambda m, **options: sl.repeat_tokenization(m.tokenizer, **options),
        {"n": 3},
        group="repeat_tokenization",
        speaks=True,
        of=lambda s: {"n": 4, "prefix": COUNT},
        recorded=lambda s: {"splits": {}},
    ),
    "compare": Row(
        sl.compare,
        in_sequence(**MASKED, answer=counted, n_samples=1, lengths=[3]),
        NORM_SCALE,
        of=lambda s: {"sequence": s.sequence(), "lengths": LENGTHS},
        recorded=lambda s: {
            "compare": {
                "interventions": {
                    "masked": sl.hooks.mask_tokens([1]),
                    "cold": [
                        sl.hooks.attention_temperature(0.5),
                        sl.hooks.zero_values([2]),
                    ],
                    "commas": s.commas,
                }
            },
            "windows": {
                "interventions": {
                    f"window of 4, {sink} sinks": sl.hooks.sliding_window(4, sink=sink)
                    for sink in (0, 1)
                }
            },
        },
    ),
    "compare with answers": Row(
        sl.compare,
        of=with_suffix,
        group="answers",
        speaks=True,
        recorded=lambda s: {
            "compare": {
                "interventions": {"masked": sl.hooks.mask_tokens([9])},
                "answer": counted,
                "n_samples": 3,
                "lengths": [4, 6],
            }
        },
    ),
    "evaluate": Row(
        sl.evaluate,
        {"lengths": [2, 3], "seeds": 2, "max_new_tokens": 2, **TOLD},
        of=lambda s: TOLD,
        group="answers",
        recorded=lambda s: {
            "evaluate": {"lengths": [4, 9], "seeds": 3},
            "drawn": {"lengths": [5], "seeds": 2, "temperature": 0.7, "prefill": True},
        },
        speaks=True,
    ),
    "accuracy": Row(
        sl.accuracy,
        lambda: {"sequence": [sequence()], "answer": counted, "lengths": [2]},
        of=lambda s: {
            "sequence": [
                sl.prompts.bernoulli(s.model, 8, seed=k, prefix=COUNT, suffix="=")
                for k in range(3)
            ]
        },
        recorded=lambda s: {"accuracy": {"answer": counted, "lengths": [4, 8]}},
        group="answers",
        speaks=True,
    ),
    "probe": Row(
        sl.probe,
        {"task": LAST, "lengths": [8], "seeds": 32, **FEW},
        of=lambda s: TOLD | FEW | UNTRAINED,
        group="represented",
        speaks=True,
        recorded=lambda s: {
            "probe": {"lengths": [8], "seeds": 48, "direction": "shared"}
        },
    ),
    "collapse_vs_readout": Row(
        sl.collapse_vs_readout,
        {"task": TASK, "lengths": [8], "seeds": 32, **FEW},
        (ROUNDED,),
        of=lambda s: TOLD | FEW,
        group="represented",
        speaks=True,
        recorded=lambda s: {"collapse_vs_readout": {"lengths": [4, 8], "seeds": 40}},
    ),
    "shares_and_counts": Row(
        sl.statements.shares_and_counts,
        {},
        recorded=lambda s: {"two": {"content": s.among[:2]}},
        of=lambda s: {},
    ),
    "convergence": Row(
        without_model(sl.synthetic.convergence),
        {
            "stack": sl.synthetic.Stack(width=8),
            "lengths": [4, 8, 16, 24, 32],
            "seeds": 2,
        },
        of=lambda s: {"stack": STACK, "seeds": 2},
        group="synthetic",
        speaks=True,
        recorded=lambda s: {"convergence": {"lengths": [8, 12, 16, 24, 32, 48, 64]}},
    ),
    "softmax_total_variation": Row(
        without_model(sl.synthetic.softmax_total_variation),
        {"lengths": [10, 40, 80, 160], "k": 2, "seeds": 2},
        of=lambda s: {"k": 4, "seeds": 2},
        group="synthetic",
        speaks=True,
        recorded=lambda s: {
            "softmax_total_variation": {"lengths": [16, 32, 64, 128, 256]}
        },
    ),
    "answer_frequencies": Row(
        lambda m, **options: sl.results.answer_frequencies(sl.evaluate(m, **options)),
        {"lengths": [2, 3], "seeds": 2, "max_new_tokens": 2, **TOLD},
        of=lambda s: TOLD,
        group="answers",
        speaks=True,
        recorded=lambda s: {"answer_frequencies": {"lengths": [4, 9], "seeds": 3}},
    ),
    "capture": Row(
        lambda m, **options: sl.capture(m, **options).to_xarray(),
        recorded=lambda s: {
            "one": {},
            "two": {"prompt": s.pair, "layers": [0, 2], "keep": "residuals"},
        },
    ),
    "tokens": Row(
        lambda m, **options: sl.prompts.tokenize(m, **options).cpu().numpy(),
        group="capture",
        recorded=lambda s: {"tokens": {"prompt": s.pair}},
    ),
}


def measurements() -> dict[str, Callable[[Subject], Calls]]:
    """The calls on record by their group; of hooks what a model computes under each."""
    groups: dict[str, list[Row]] = {}
    for name, row in ROWS.items():
        if row.recorded is not None:
            groups.setdefault(row.group or name, []).append(row)
    found: dict[str, Callable[[Subject], Calls]] = {
        group: lambda s, rows=rows: {
            name: call for row in rows for name, call in row.calls(s).items()
        }
        for group, rows in groups.items()
    }
    return found | {
        "interventions": lambda s: {
            name: lambda hook=hook: seen(s, hook)
            for name, hook in hooks_with(s.pair).items()
        },
        "under_hooks": under_hooks,
    }


MEASUREMENTS = measurements()
