"""One table of the public measurements, which all sweeps over measurements read.

`ROWS` has a small call of each on the bundled model, with other values of its options. `on_record` has the calls whose
numbers are on record: of the bundled models, of real ones, and of a random model of some families. A call that the
library refuses is recorded as refused. Nothing here says how passes are run, so that it can stay as it is when that
moves.
"""

import inspect
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
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
    "token_influence",
    "influence_by_distance",
    "needle_sensitivity",
    "answers",
    "represented",
    "synthetic",
    "shares_and_counts",
    "bound_vs_jacobian",
)
# Of the Jacobian norms, those that take a few products.
SKETCHES = ("sketch", "sketch_upper")
CONFIGS = families.CONFIGS | families.MORE | families.OTHERS
COUNT = "How many ones are in the following sequence?"
PROMPT = f"{COUNT} 11 ="
LENGTHS = [2, 4, 6]
TASK = sl.tasks.find("taught_count_bernoulli")
LAST = sl.tasks.find("taught_last_random")

T = TypeVar("T")
Calls = Mapping[str, Callable[[], Any]]
Options = dict[str, Any]


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
    def other(self) -> list[int]:
        """Another prompt of the same length."""
        return [*self.prompt[:-3], self.prompt[-2], *self.prompt[-2:]]

    @cached_property
    def rounded(self) -> Any:
        """The same model with weights of four bits."""
        return sl.quantize_weights(self.model, "Q4_0")

    @property
    def pair(self) -> list[list[int]]:
        return [self.prompt, self.other]

    @cached_property
    def among(self) -> list[int]:
        """The ids of four tokens."""
        tokens = "0123" if self.speaks else (7, 8, 9, 11)
        return [sl.prompts.one_token(self.model, token) for token in tokens]

    def sequence(self, n: int = 6, **form: Any) -> sl.prompts.GrowingSequence:
        """Content of two kinds of token."""
        if self.speaks:
            return sl.prompts.bernoulli(self.model, n, seed=1, prefix=COUNT, **form)
        content = ([7, 9, 7, 7, 9, 11] * n)[:n]
        return sl.prompts.build(
            self.model, content, prefix=[2, 5, 14], alphabet=self.among, **form
        )

    @cached_property
    def with_suffix(self) -> sl.prompts.GrowingSequence:
        return self.sequence(suffix="=" if self.speaks else [20, 21])

    @cached_property
    def commas(self) -> sl.prompts.GrowingSequence:
        return self.sequence(separator="," if self.speaks else 13, every=2)


def subject(name: str, root: Path, device: str = "cpu") -> Subject:
    """A model by its name; a random one is written into a folder of `root`."""
    opened: Any = name
    if name not in WITH_WORDS:
        opened = families.save_random(CONFIGS[name], root / name)
    return Subject(name, sl.load(opened, device=device), opened)


def bundled(model: Any) -> Subject:
    """The bundled model, as it was loaded."""
    return Subject("tiny-gemma", model, "tiny-gemma")


# What small calls are given. Of these functions the result is given, which takes a model.


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


def ids() -> torch.Tensor:
    return sl.prompts.tokenize(model(), PROMPT)[0, :6]


def one_prompt() -> list[list[int]]:
    return [ids().tolist()]


@cache
def four_bits() -> Any:
    return sl.quantize_weights(model(), "Q4_0")


MADE = (pairs, sequence, one_prompt, four_bits)


def stated(options: Options) -> Options:
    """Options, of which some are made now."""
    made = {name: value() for name, value in options.items() if _is_made(value)}
    return options | made


def _is_made(value: Any) -> bool:
    return inspect.isfunction(inspect.unwrap(value)) and value in MADE


def counted(items: tuple[str, ...]) -> str:
    """The answer to how many items are 1."""
    return str(items.count("1"))


def unchanged(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Row:
    """A measurement, what its small call is given beside the model, and other values of its options."""

    function: Callable[..., Any]
    small: Options | None = None
    varied: tuple[Options, ...] = ()
    group: str = ""  # the name on record, where it is not the row's
    kept: Callable[[Any], Any] = unchanged  # what is recorded of a result
    is_on_record: bool = True

    def called(self, **options: Any) -> Any:
        """The small call, with other values of options."""
        return self.function(model(), **stated((self.small or {}) | options))

    def measured(self, s: Subject, options: Options) -> Any:
        """A call on record. What measures a prompt or a sequence gets the usual one, if the call has no other."""
        parameters = inspect.signature(self.function).parameters
        if "prompt" in parameters:
            options = {"prompt": [s.prompt]} | options
        if "sequence" in parameters and "sequence" not in options:
            options = {"sequence": s.sequence()} | options
        return self.kept(self.function(s.model, **options))


# Functions that are called with other things than a model, in the form of one that takes a model.


def splits(model: Any, **options: Any) -> Any:
    return sl.repeat_tokenization(model.tokenizer, **options)


def convergence(_: Any, **options: Any) -> Any:
    return sl.synthetic.convergence(**options)


def softmax_total_variation(_: Any, **options: Any) -> Any:
    return sl.synthetic.softmax_total_variation(**options)


def answer_frequencies(model: Any, **options: Any) -> Any:
    return sl.results.answer_frequencies(sl.evaluate_task(model, **options))


def path_bound_of_capture(model: Any, prompt: Any) -> Any:
    return sl.path_bound(model, sl.capture(model, prompt))


def capture(model: Any, prompt: Any, **options: Any) -> Any:
    return sl.capture(model, prompt, **options).to_xarray()


def tokens(model: Any, prompt: Any) -> Any:
    return sl.prompts.tokenize(model, prompt).cpu().numpy()


def step_of_first_lengths(separation: Any) -> Any:
    """Distances in float32 of one run, since what rounding does is no number to keep."""
    return (separation["step_y"] * separation["noise_y"]).isel(length=slice(2))


def log_odds(verdict: Any) -> Any:
    return verdict[["log_odds", "log_odds_after"]]


ASKED = {"prompt": PROMPT}
TOLD = {"task": TASK.name}
QUERY = {"query": 5}
FROM = {"from_layer": 2}
TO = {"to_layer": 3}
UNIFORM = {"attention": "uniform"}
TOPOLOGICAL = {"attention": "topological"}
FROZEN = {"freeze": ["attention"]}
SKETCHED = {"method": "sketch"}
BOUNDED = {"method": "sketch_upper"}
L1 = {"norm": "l1"}
L2 = {"norm": "l2"}
SPECTRAL = {"norm": "spectral"}
FROBENIUS = {"norm": "frobenius"}
RELATIVE = {"scale": "relative"}
ABSOLUTE = {"scale": "absolute"}
UNTRAINED = {"n_random_models": 0}
FEW = {"n_train": 16, "n_random_models": 1}
IN_PAIRS = {"sequence": pairs}
IN_SEQUENCE = {"sequence": sequence}
MASKED = {"interventions": {"a": sl.hooks.mask_tokens([1])}}
STACK = sl.synthetic.Stack(depth=2, heads=2, width=16, encoding="rope", mlp=2)
LONGER_STACK = {"lengths": [4, 8, 16, 24, 32], "seeds": 2}
EVALUATED = TOLD | {"lengths": [2, 3], "seeds": 2, "max_new_tokens": 2}
READ_OUT = {"lengths": [8], "seeds": 32, **FEW}
ASKED_TWICE = {
    "prompts": [f"{COUNT} {text} =" for text in ("1", "11", "10", "0110")],
    "answers": ["1", "2", "1", "2"],
}
TWO_MODELS = ASKED_TWICE | {"other": four_bits}
TWO_PROMPTS = {"prompts": [PROMPT, f"{PROMPT} {PROMPT}"], "answers": ["1", "2"]}
FOUND = {
    "prompt": one_prompt,
    "positions": [2],
    "groups": [("a", 1)],
    "n_replacements": 5,
}

ROWS: dict[str, Row] = {
    "bound_vs_jacobian": Row(sl.bound_vs_jacobian, ASKED, (FROBENIUS, QUERY, SKETCHED)),
    "composition": Row(
        sl.attention_paths.composition, ASKED, (UNIFORM, QUERY), "paths"
    ),
    "hops": Row(
        sl.attention_paths.hops, ASKED, (UNIFORM, TOPOLOGICAL, QUERY, FROM, TO), "paths"
    ),
    "strongest_paths": Row(
        sl.attention_paths.strongest_paths,
        ASKED | {"k": 2},
        (UNIFORM, {"avoid": [0]}, QUERY, FROM, TO),
        "paths",
    ),
    "depth_limit": Row(
        sl.attention_paths.depth_limit,
        ASKED | {"depth": 8},
        ({"depth": 6}, QUERY),
        "paths",
    ),
    "jacobian_norms": Row(
        sl.jacobian_norms,
        ASKED,
        (FROBENIUS, FROZEN, SKETCHED, BOUNDED, QUERY, FROM, TO),
    ),
    "jacobian": Row(
        sl.jacobian,
        ASKED | {"positions": [3]},
        (FROZEN, {"freeze": ["norms", "gates"]}, QUERY, FROM),
        is_on_record=False,
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
            QUERY,
            FROM,
            TO,
        ),
    ),
    "path_bound of a capture": Row(path_bound_of_capture, group="path_bound"),
    "certified_bound": Row(
        sl.certified_bound,
        {"prompt": "1 ="},
        (FROZEN, {"query": 1}, FROM, TO),
    ),
    "substitution_effect": Row(
        sl.substitution_effect,
        ASKED | {"n_replacements": 1, "positions": [3]},
        ({"candidates": [5, 6, 7]}, QUERY, TO),
    ),
    "knockout_effect": Row(
        sl.knockout_effect,
        ASKED | {"positions": [3]},
        ({"kind": "embedding"}, {"target": "1"}, QUERY),
        is_on_record=False,
    ),
    "top_tokens": Row(sl.top_tokens, ASKED),
    "token_influence": Row(
        sl.token_influence,
        {"prompt": "1 =", "method": "auto"},
        (FROBENIUS, SKETCHED, {"method": "none"}),
    ),
    "influence_by_distance": Row(
        sl.influence_by_distance,
        {"prompt": "1 ="} | UNTRAINED,
        (FROBENIUS | {"method": "auto"}, SKETCHED),
    ),
    "head_statistics": Row(sl.head_statistics, ASKED),
    "needle_sensitivity": Row(
        sl.needle_sensitivity, FOUND, (SPECTRAL, {"candidates": [9, 10, 11]})
    ),
    "collapse": Row(
        sl.collapse,
        IN_PAIRS | {"by_head": "value"},
        ({"by_head": "slice"}, L2, RELATIVE),
    ),
    "collapse relative": Row(sl.collapse, IN_PAIRS | RELATIVE, is_on_record=False),
    "collapse_mechanism": Row(sl.collapse_mechanism, IN_PAIRS, (L2,)),
    "distinguishable_lengths": Row(
        sl.distinguishable_lengths,
        IN_SEQUENCE | UNTRAINED | {"lengths": [2, 3]},
        kept=step_of_first_lengths,
    ),
    "diagnose": Row(sl.diagnose, TWO_PROMPTS | UNTRAINED, kept=log_odds),
    "answer_by_layer": Row(sl.answer_by_layer, ASKED_TWICE | UNTRAINED),
    "sublayer_effects": Row(
        sl.sublayer_effects,
        ASKED_TWICE,
        ({"missing": "mean"}, {"parts": "heads"}),
    ),
    "compare_models": Row(sl.compare_models, TWO_MODELS, is_on_record=False),
    "damage_by_block": Row(
        sl.damage_by_block, TWO_MODELS, ({"streams": "both"},), is_on_record=False
    ),
    "blocks_to_keep": Row(
        sl.blocks_to_keep,
        TWO_MODELS | {"n_random": 2},
        ({"units": "sublayers"},),
        is_on_record=False,
    ),
    "separator_ablation": Row(
        sl.separator_ablation,
        IN_SEQUENCE
        | {"kinds": ["substitute", "mask"], "lengths": [3], "noise_lengths": 2},
        (L2, RELATIVE, {"substitute": "0"}),
    ),
    "repeat_tokenization": Row(
        sl.repeat_tokenization,
        {"n": 3},
        (L2, RELATIVE, {"repeat": "0"}, {"prefix": "How"}),
    ),
    "splits": Row(splits, {"n": 3}, group="repeat_tokenization"),
    "compare_interventions": Row(
        sl.compare_interventions,
        IN_SEQUENCE | MASKED | {"answer": counted, "n_samples": 1, "lengths": [3]},
        (L2, ABSOLUTE),
    ),
    "compare with answers": Row(sl.compare_interventions, group="answers"),
    "evaluate_task": Row(sl.evaluate_task, EVALUATED, group="answers"),
    "probe": Row(sl.probe, {"task": LAST} | READ_OUT, group="represented"),
    "collapse_vs_readout": Row(
        sl.collapse_vs_readout, {"task": TASK} | READ_OUT, (), "represented"
    ),
    "shares_and_counts": Row(sl.theorems.shares_and_counts, {}),
    "convergence": Row(
        convergence,
        LONGER_STACK | {"stack": sl.synthetic.Stack(width=8)},
        group="synthetic",
    ),
    "softmax_total_variation": Row(
        softmax_total_variation,
        {"lengths": [10, 40, 80, 160], "k": 2, "seeds": 2},
        group="synthetic",
    ),
    "answer_frequencies": Row(answer_frequencies, EVALUATED, group="answers"),
    "capture": Row(capture),
    "tokens": Row(tokens, group="capture"),
}


def on_record(s: Subject) -> dict[str, dict[str, Options]]:
    """The options of the calls on record, by row and by the call's name; of models without words."""
    all_constants = {"beta1": 2, "beta2": 0.5, "beta3": 3, "sigma_psi": 0.7}
    all_frozen = {"freeze": ["attention", "norms", "gates"]}
    short = {"prompt": [s.short]}
    pair = {"prompt": s.pair}
    profile = {
        "bounds": {"method": "none"},
        "norms": short
        | FROBENIUS
        | {"queries": [2, -1], "layers": [0, 2], "method": "auto"},
    }
    windows = {
        f"window of 4, {sink} sinks": sl.hooks.sliding_window(4, sink=sink)
        for sink in (0, 1)
    }
    changes = {
        "masked": sl.hooks.mask_tokens([1]),
        "cold": [sl.hooks.attention_temperature(0.5), sl.hooks.zero_values([2])],
        "commas": s.commas,
    }
    needles = {
        "prompt": [s.prompt[-6:], s.other[-6:], s.prompt[-5:]],
        "positions": [2, 3, 2],
        "groups": [("a", 1), ("a", 1), ("b", 2)],
    }
    return {
        "bound_vs_jacobian": {"one": {}},
        "composition": {
            "composition": pair,
            "composition uniform": UNIFORM | {"query": -3},
        },
        "hops": {
            "hops": {},
            "hops topological": TOPOLOGICAL | {"from_layer": 1, "to_layer": 2},
        },
        "strongest_paths": {"strongest_paths": {"k": 6}},
        "depth_limit": {"depth_limit": {"depth": 12}},
        "jacobian_norms": {
            "spectral": {"to_layer": 2},
            "spectral to y": {},
            "frobenius": pair | FROBENIUS,
            "frozen attention": FROZEN,
            "frozen": all_frozen | {"from_layer": 1, "query": -2},
            "sketch": SKETCHED | FROBENIUS | {"n_probes": 8, "seed": 3},
            "sketch_upper": BOUNDED | {"n_probes": 8, "seed": 3},
        },
        "path_bound": {
            "paper": {},
            "constants": all_constants | {"to_layer": 2},
            "constants to y": all_constants,
            "uniform": UNIFORM | {"query": -2, "from_layer": 1},
            "topological": TOPOLOGICAL | {"sigma_psi": 0},
            "two": pair,
            "unequal": {"prompt": [s.prompt, s.prompt[:-2]]},
        },
        "path_bound of a capture": {"captured": {}},
        "certified_bound": {
            "exact": short,
        },
        "substitution_effect": {
            "one": {"n_replacements": 2},
            "two": pair
            | {"candidates": s.among, "positions": [1, 2], "to_layer": 2, "seed": 1},
        },
        "top_tokens": {"one": {"k": 5}},
        "token_influence": profile,
        "influence_by_distance": {
            "bounds": profile["bounds"] | UNTRAINED,
            "norms": profile["norms"] | UNTRAINED,
        },
        "head_statistics": {"bounds": {}, "norms": short},
        "needle_sensitivity": {
            "one": needles | {"candidates": s.among, "n_replacements": 2, "seed": 0}
        },
        "collapse": {
            "linf": {"noise_lengths": 2},
            "l1 value": L1
            | {"sequence": s.with_suffix, "by_head": "value", "lengths": LENGTHS},
            "l2 slice": L2
            | RELATIVE
            | {"sequence": s.commas, "by_head": "slice", "lengths": LENGTHS},
            "beside": {
                "sequence": s.with_suffix,
                "baselines": ["contrast", "unrelated"],
                "n_samples": 2,
                "seed": 3,
            },
        },
        "collapse_mechanism": {
            "linf": {},
            "l1": L1 | {"sequence": s.commas, "lengths": LENGTHS, "noise_lengths": 2},
        },
        "distinguishable_lengths": {"steps": UNTRAINED | {"lengths": LENGTHS}},
        "separator_ablation": {
            "all": {
                "sequence": s.commas,
                "lengths": [4, 6],
                "from_blocks": [0, 2],
                "seed": 2,
                "noise_lengths": 2,
            }
        },
        "compare_interventions": {
            "compare_interventions": {"interventions": changes, "lengths": LENGTHS},
            "windows": {"interventions": windows, "lengths": LENGTHS},
        },
        "shares_and_counts": {"two": {"content": s.among[:2]}},
        "capture": {"one": {}, "two": pair | {"layers": [0, 2], "keep": "residuals"}},
        "tokens": {"tokens": pair},
    }


def with_words(s: Subject) -> dict[str, dict[str, Options]]:
    """The same of models with words."""
    asked = [f"{COUNT} {text} =" for text in ("110", "1101", "11011")]
    frequencies = TOLD | {"lengths": [4, 9], "seeds": 3}
    sevens = {"n": 3, "prefix": "", "repeat": "7"}
    return {
        "diagnose": {
            "odds": UNTRAINED | {"prompts": asked, "answers": ["2", "3", "4"]}
        },
        "answer_by_layer": {"four": ASKED_TWICE | UNTRAINED},
        "sublayer_effects": {
            "zero": ASKED_TWICE,
            "mean": ASKED_TWICE | {"missing": "mean"},
        },
        "repeat_tokenization": {
            "repeat_tokenization": RELATIVE | {"n": 4, "prefix": COUNT},
            "absolute": sevens | L2,
        },
        "splits": {"splits": {"n": 4, "prefix": COUNT}},
        "compare with answers": {
            "compare_interventions": {
                "sequence": s.with_suffix,
                "interventions": {"masked": sl.hooks.mask_tokens([9])},
                "answer": counted,
                "n_samples": 3,
                "lengths": [4, 6],
            }
        },
        "evaluate_task": {
            "evaluate_task": frequencies,
            "drawn": TOLD
            | {"lengths": [5], "seeds": 2, "temperature": 0.7, "prefill": True},
        },
        "probe": {"probe": TOLD | FEW | UNTRAINED | {"lengths": [8], "seeds": 48}},
        "collapse_vs_readout": {
            "collapse_vs_readout": TOLD | FEW | {"lengths": [4, 8], "seeds": 40}
        },
        "convergence": {
            "convergence": {
                "stack": STACK,
                "lengths": [8, 12, 16, 24, 32, 48, 64],
                "seeds": 2,
            }
        },
        "softmax_total_variation": {
            "softmax_total_variation": {
                "lengths": [16, 32, 64, 128, 256],
                "k": 4,
                "seeds": 2,
            }
        },
        "answer_frequencies": {"answer_frequencies": frequencies},
    }


def calls_of_rows(s: Subject, group: str) -> Calls:
    """The calls on record of all rows of a group."""
    tables = on_record(s)
    if s.speaks:
        tables |= with_words(s)
    calls = {}
    for name, row in ROWS.items():
        if group == (row.group or name):
            for call, options in tables.get(name, {}).items():
                calls[call] = partial(row.measured, s, options)
    return calls


def hooks_with(pair: Any) -> dict[str, Any]:
    """One or two of each kind of hook, by name; what they put in comes from two prompts of one length."""
    other = pair[1:]
    moved = {"positions": [5, 6], "from_positions": [6, 5]}
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
        "zero_attention": sl.hooks.zero_attention([1]),
        "zero_values": sl.hooks.zero_values([2], (0, 2)),
        "zero_heads": sl.hooks.zero_heads([1], positions=[3, 4]),
        "zero_residual": sl.hooks.zero_residual([2], (1,)),
        "mean_heads": sl.hooks.mean_heads([0], pair, (1,)),
        "mean_heads over positions": sl.hooks.mean_heads(
            [0, 1], pair, over="positions"
        ),
        "mean_residual": sl.hooks.mean_residual([2, 5], pair, (1,)),
        "resample_residual": sl.hooks.resample_residual([5, 6], pair, seed=1),
        "patch_heads": sl.hooks.patch_heads([0, 2], other, (1,), **moved),
        "patch_residual": sl.hooks.patch_residual([5, 6], other, (1,)),
        "zero_mlp": sl.hooks.zero_mlp((1,), positions=[3, 4]),
        "mean_mlp": sl.hooks.mean_mlp(pair, (1,)),
        "patch_mlp": sl.hooks.patch_mlp(other, (2,), **moved),
        "rounding bits": sl.hooks.round_activations(3),
        "a function": ("blocks.1.hook_resid_pre", halved),
    }


def halved(stream: Any, hook: Any) -> Any:
    return 0.5 * stream


def seen(s: Subject, hook: Any) -> Any:
    """What a model computes under a hook."""
    with sl.applied(s.model, hook):
        return sl.capture(s.model, [s.prompt], layers=[2, 3]).to_xarray()


def interventions(s: Subject) -> Calls:
    """What a model computes under each hook."""
    return {name: partial(seen, s, hook) for name, hook in hooks_with(s.pair).items()}


def measured_under_hooks(s: Subject, name: str, options: Options) -> Any:
    window = sl.hooks.sliding_window(4, sink=1)
    with sl.applied(s.model, window, sl.hooks.zero_values([2])):
        return ROWS[name].measured(s, options)


def under_hooks(s: Subject) -> Calls:
    """Some measurements under two hooks."""
    options: dict[str, Options] = {
        "path_bound": {},
        "jacobian_norms": {},
        "substitution_effect": {"n_replacements": 1},
        "collapse": {"lengths": LENGTHS},
        "top_tokens": {},
    }
    return {
        name: partial(measured_under_hooks, s, name, options[name]) for name in options
    }


GROUPS = {row.group or name: True for name, row in ROWS.items() if row.is_on_record}
# The calls on record of a model, by what they measure.
MEASUREMENTS: dict[str, Callable[[Subject], Calls]] = {
    **{group: partial(calls_of_rows, group=group) for group in GROUPS},
    "interventions": interventions,
    "under_hooks": under_hooks,
}


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
    if measurement == "under_hooks":
        return call != "jacobian_norms"
    return measurement not in TOYS_ALONE


def one(s: Subject, measurement: str, call: str) -> Any:
    """The result of one call; a refusal's name, or the exception that is none."""
    try:
        return MEASUREMENTS[measurement](s)[call]()
    except sl.errors.SquashlensError as refused:
        return type(refused).__name__
    except ValueError as error:  # a crash: not recorded
        return error


def others() -> dict[str, Callable[[Subject], Any]]:
    """The usual call of each public measurement, and of each hook, that has no record of its own in this file."""
    known = {row.function for row in ROWS.values() if row.is_on_record}
    text = Path(__file__).read_text(encoding="utf-8")
    found: dict[str, Callable[[Subject], Any]] = {}
    for module in (sl, sl.attention_paths):
        for name in module.__all__:
            function = getattr(module, name)
            if function not in known and is_measurement(function):
                found[name] = partial(usual, function=function)
    for name in sl.hooks.__all__:
        make = getattr(sl.hooks, name)
        if f"hooks.{name}(" not in text and returns(make) in ("Hook", "Recipe"):
            found[name] = partial(seen_usually, make=make)
    return found


def is_measurement(function: Any) -> bool:
    return hasattr(function, "__measures__") and ".measure." in function.__module__


def returns(function: Any) -> str:
    """The name of the class of what a function returns."""
    annotation = inspect.signature(function, eval_str=True).return_annotation
    return getattr(annotation, "__name__", "")


def usual(s: Subject, function: Callable[..., Any], **options: Any) -> Any:
    """The result of a function for the arguments that it needs, which are found by name and type, and others."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    # Right answers may stand in dictionaries with their prompts, and are given apart here.
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty or parameter.name == "answers"
    ]
    arguments = {parameter.name: argument(s, parameter) for parameter in needed}
    return function(**arguments | options)


def seen_usually(s: Subject, make: Callable[..., Any]) -> Any:
    """What a model computes under a hook with the arguments that it needs."""
    return seen(s, usual(s, make))


def argument(s: Subject, parameter: inspect.Parameter) -> Any:
    """An argument: what is measured, or the first choice, number, list or text that the annotation allows."""
    named = {
        "model": s.model,
        "prompt": [s.prompt],
        "sequence": s.sequence(),
        "reference": s.model,
        "prompts": ASKED_TWICE["prompts"],
        "answers": ASKED_TWICE["answers"],
        "task": TASK,
    }
    if parameter.name in named:
        return named[parameter.name]
    if parameter.name == "other":
        return s.rounded
    for value in (*get_args(parameter.annotation), 0.5, 2, [1, 2], "1"):
        with suppress(sl.errors.InputError):
            return converted(value, parameter.annotation, parameter.name)
    raise TypeError(
        f"Add a case of {parameter.name} to {__file__}: no usual value is of its type."
    )


@cache
def result(name: str) -> Any:
    """The result of the small call of a row, or the usual one of a measurement without a row."""
    if name in ROWS:
        return together(name, ROWS[name].called)
    return together(name, partial(others()[name], bundled(model())))


def results() -> list[str]:
    """The names that have one: of each measurement that a figure draws."""
    names = [name for name, row in ROWS.items() if row.small is not None]
    return names + [name for name in others() if not hasattr(sl.hooks, name)]


def longer(result: Any) -> Any:
    """A result with one position more, with the numbers of the last."""
    if "position" not in result.indexes:
        return result
    positions = result["position"].values.tolist()
    whole = result.isel(position=[*range(len(positions)), -1])
    return whole.assign_coords(position=[*positions, positions[-1] + 1])


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
