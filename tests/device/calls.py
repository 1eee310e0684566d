"""Every public function that runs a model, called small; and every other, with the reason why it is not called.

The names of both tables together are those of the public interface: a function that is added to it and stands in
neither turns a test red. A subject is a model with prompts (see `tests.golden.cases`). Calls of `SPEAKING` need a
tokenizer.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import squashlens as sl
from tests import captured
from tests.golden.cases import Subject

Call = Callable[[Subject, Path], Any]
QUIET: dict[str, Any] = {"progress": False}
# Those of the audit that no other measurement has, beside those that each of them is compared with.
ESTIMATES = ["sketch", "substitution", "rollout", "all-ones", "top"]
TASK = "taught_count_bernoulli"


def of_prompt(name: str, **options: Any) -> Call:
    """A measurement of the first tokens of the subject's prompt."""
    home = sl.paths if name in sl.paths.__all__ else sl
    return lambda s, folder: getattr(home, name)(s.model, [s.short], **options)


def of_last_blocks(blocks: int, **options: Any) -> Call:
    """A certified bound through the last blocks, of few tokens."""
    said = {"constants": "measured", "progress": False, "seed": 0} | options
    return lambda s, f: sl.path_bound(s.model, [s.short[:3]], from_layer=s.model.cfg.n_layers - blocks, **said)


def captured_pairs(s: Subject, **options: Any) -> Any:
    return sl.capture(s.model, s.sequence(3), **{"lengths": [2, 3], "noise_lengths": 1, **QUIET} | options)


def kept(s: Subject, folder: Path) -> Any:
    """What a study stores of one cell, read back; the model is loaded by the study's own worker."""
    device = str(next(s.model.parameters()).device)
    grid = {"measurement": "path_bound", "arguments": {"model": str(s.opened)}, "each": {"prompt": {"ids": [s.short]}}}
    study = sl.Study(grid, store=folder / "store")
    table = study.run(device=device, progress=False)
    assert int(table["done"].sum()) == 1, study.failures()["reason"].tolist()
    return study.combine().load()


def page(s: Subject, folder: Path) -> Any:
    """The report's numbers are those of the measurements that it makes: only that it is written is compared."""
    out = sl.report(s.model, prompt="110 =", out=folder / "report.html", progress=False)
    return [str(type(out)), (folder / "report.html").stat().st_size > 0]


CALLS: dict[str, dict[str, Call]] = {
    "capture": {
        "memory": lambda s, f: sl.capture(s.model, [s.short]).to_xarray(),
        "disk": lambda s, f: sl.capture(s.model, [s.short], out=f / "capture").to_xarray(),
        "pairs": lambda s, f: captured_pairs(s, keep=("residuals", "patterns")).contents()[1],
    },
    "path_bound": {
        "paper": of_prompt("path_bound", to_layer=[2, "y"]),
        "uniform": of_prompt("path_bound", attention="uniform"),
        "attention": of_last_blocks(2, edges="attention"),
        "analytic": of_last_blocks(2),
        "local": of_last_blocks(1, edges="local"),
        "exact": of_last_blocks(1, edges="exact"),
        "grouped": of_last_blocks(2, edges="exact", n_composed=2, freeze="norms"),
        "captured": lambda s, f: sl.path_bound(s.model, sl.capture(s.model, [s.short])),
    },
    "jacobian": {"one": of_prompt("jacobian", positions=[1], k=2, **QUIET)},
    "jacobian_norms": {
        "exact": of_prompt("jacobian_norms", **QUIET),
        "two": lambda s, f: sl.jacobian_norms(s.model, s.pair, norm="frobenius", progress=False),
        "frozen": of_prompt("jacobian_norms", freeze=["attention", "norms", "gates"], **QUIET),
        "sketch": of_prompt("jacobian_norms", norm="frobenius", method="sketch", n_probes=4, seed=0, **QUIET),
        "sketch_upper": of_prompt("jacobian_norms", method="sketch_upper", n_probes=4, seed=0, **QUIET),
        "lanczos": of_prompt("jacobian_norms", method="lanczos", positions=[1], rtol=0.3, seed=0, **QUIET),
    },
    "sensitivity": {"one": of_prompt("sensitivity", **QUIET)},
    "substitution_effect": {
        "one": lambda s, f: sl.substitution_effect(
            s.model, [s.short], n_replacements=2, candidates=s.among, progress=False
        )
    },
    "profile": {
        "exact": of_prompt("profile", queries=[2, -1], layers=[0, 2], n_random_models=0, **QUIET),
        "sketch_upper": of_prompt(
            "profile", method="sketch_upper", n_probes=4, layers=[0], n_random_models=0, seed=0, **QUIET
        ),
    },
    "squash_map": {"one": lambda s, f: sl.squash_map(s.model, [s.short], progress=False).result},
    "audit": {
        "all": lambda s, f: sl.audit(
            s.model,
            [s.short[:3]],
            estimates=ESTIMATES,
            n_probes=2,
            n_replacements=1,
            candidates=s.among,
            bos="as-given",
            seed=0,
            progress=False,
        ).drop_vars("cost")
    },
    "needle": {
        "one": lambda s, f: sl.needle(
            s.model, [s.short, s.pair[1][:6]], [2, 3], [("a", 1), ("b", 2)], bos="as-given", seed=0, progress=False
        )
    },
    "top_tokens": {"one": of_prompt("top_tokens", k=3)},
    "paths.composition": {"one": of_prompt("composition")},
    "paths.hops": {"one": of_prompt("hops")},
    "paths.strongest_paths": {"one": of_prompt("strongest_paths", k=3)},
    "paths.depth_limit": {"one": of_prompt("depth_limit", depth=5)},
    "collapse": {
        "linf": lambda s, f: sl.collapse(s.model, captured_pairs(s)),
        "heads": lambda s, f: captured.collapse(
            s.model, s.commas, norm="l2", by_head="value", baselines=["contrast"], n_samples=2, lengths=[2, 4], **QUIET
        ),
    },
    "mechanism": {"one": lambda s, f: sl.mechanism(s.model, captured_pairs(s, keep=("residuals", "patterns")))},
    "precision": {"all": lambda s, f: sl.precision(s.model, captured_pairs(s), blocks=[0], progress=False)},
    "separator_ablation": {
        "all": lambda s, f: sl.separator_ablation(
            s.model, s.commas, lengths=[4], from_blocks=[1], noise_lengths=1, progress=False
        )
    },
    "compare": {
        "one": lambda s, f: sl.compare(
            s.model,
            s.sequence(4),
            {"masked": sl.hooks.mask_tokens([1]), "window": sl.hooks.sliding_window(3, sink=1)},
            lengths=[2, 4],
            progress=False,
        )
    },
    "search_separators": {
        "one": lambda s, f: sl.search_separators(
            s.model, s.sequence(4), separator=[s.separator], every=[2], n_placements=5, lengths=[4], progress=False
        )
    },
    "statements.shares_and_counts": {
        "two": lambda s, f: sl.statements.shares_and_counts(s.model, content=s.among[:2]),
    },
    "applied": {
        "two": lambda s, f: under(s, sl.hooks.zero_values([2]), sl.hooks.sliding_window(3, sink=1)),
        "own": lambda s, f: under(s, ("blocks.1.hook_resid_pre", lambda stream, hook: 0.5 * stream)),
    },
    "load": {"proof": lambda s, f: sl.capture(again(s), [s.short], keep="residuals").to_xarray()},
    "Study": {"cell": kept},
    "synthetic.last_tokens": {"one": lambda s, f: stacked("last_tokens", s, [4, 8])},
    "synthetic.convergence": {"one": lambda s, f: stacked("convergence", s, [8, 12, 16, 24, 32, 48, 64])},
    "synthetic.survey": {"one": lambda s, f: stacked("survey", s, [8, 12, 16, 24, 32, 48, 64])},
}

SPEAKING: dict[str, dict[str, Call]] = {
    "tokenization": {"one": lambda s, f: sl.tokenization(s.model, n=3, progress=False)},
    "precision": {
        "runs": lambda s, f: sl.precision(
            s.opened, s.sequence(4), runs=["bfloat16"], lengths=[2, 4], noise_lengths=1, device=device_of(s), **QUIET
        )[["distance"]]  # in half precision a flag or a first length may fall either way
    },
    "evaluate": {
        "greedy": lambda s, f: sl.evaluate(s.model, sl.tasks.find(TASK), lengths=[4], seeds=2, progress=False),
        "drawn": lambda s, f: sl.evaluate(
            s.model, sl.tasks.find(TASK), lengths=[4], seeds=2, temperature=0.7, prefill=True, progress=False
        ),
    },
    "accuracy": {
        "one": lambda s, f: sl.accuracy(
            s.model, [sl.prompts.bernoulli(s.model, 4, seed=0, suffix="=")], lambda d: str(d.count("1")), lengths=[4],
            progress=False,
        )
    },
    "probe": {
        "one": lambda s, f: sl.probe(
            s.model, sl.tasks.find(TASK), lengths=[8], seeds=48, n_train=16, n_random_models=0, progress=False
        ).drop_isel(layer=1)  # where prompts hardly differ, so that a fit shows rounding
    },
    "collapse_vs_readout": {
        "one": lambda s, f: sl.collapse_vs_readout(
            s.model, sl.tasks.find(TASK), lengths=[4, 8], seeds=24, n_train=8, n_random_models=0, progress=False
        )
    },
    "report": {"one": page},
}  # fmt: skip

DRAWS = "works on a result, whose numbers are numpy's"
WITHOUT = "works without a model"
NOT_CALLED = {
    "Capture": "what `capture` returns",
    "errors.*": "exceptions",
    "export.*": DRAWS,
    "figures.*": DRAWS,
    "hooks.*": "every hook has a test of its own below",
    "paper": "calls the measurements above, once for each figure, for a minute",
    "prompts.*": "tokens are chosen on the CPU; every call above takes prompts made by them",
    "statements.*": "mathematics on the user's own tensors",
    "synthetic.*": WITHOUT,
    "results.*": DRAWS,
    "tasks.*": WITHOUT,
    "zoo.*": "says what is bundled",
}

HOOKS: dict[str, Callable[[Subject], Any]] = {
    "adaptive_temperature": lambda s: sl.hooks.adaptive_temperature(),
    "attention_temperature": lambda s: sl.hooks.attention_temperature(0.5),
    "constant_gate": lambda s: sl.hooks.constant_gate(0.7, (0, 1)),
    "freeze_attention": lambda s: sl.hooks.freeze_attention(),
    "freeze_gates": lambda s: sl.hooks.freeze_gates((0, 1)),
    "freeze_norms": lambda s: sl.hooks.freeze_norms(),
    "log_scaling": lambda s: sl.hooks.log_scaling("log", 16),
    "mask_attention": lambda s: sl.hooks.mask_attention([4, 5], [1, 2]),
    "mask_tokens": lambda s: sl.hooks.mask_tokens([1, 2], (1, 2), heads=[0, 1]),
    "mean_heads": lambda s: sl.hooks.mean_heads([0], s.pair, (1,)),
    "mean_residual": lambda s: sl.hooks.mean_residual([2, 5], s.pair, (1,)),
    "patch_heads": lambda s: sl.hooks.patch_heads(
        [0, 2], [s.pair[1]], (1,), positions=[5, 6], from_positions=[6, 5]
    ),
    "patch_residual": lambda s: sl.hooks.patch_residual([5, 6], [s.pair[1]], (1,)),
    "resample_residual": lambda s: sl.hooks.resample_residual([5, 6], s.pair, seed=1),
    "rounding": lambda s: sl.hooks.rounding("float8_e4m3fn", "values"),
    "scale_attention": lambda s: sl.hooks.scale_attention(3.0, [1, 3]),
    "sliding_window": lambda s: sl.hooks.sliding_window(3, sink=1),
    "uniform_attention": lambda s: sl.hooks.uniform_attention((0,)),
    "zero_heads": lambda s: sl.hooks.zero_heads([1], positions=[3, 4]),
    "zero_pattern": lambda s: sl.hooks.zero_pattern([1]),
    "zero_residual": lambda s: sl.hooks.zero_residual([2], (1,)),
    "zero_values": lambda s: sl.hooks.zero_values([2], (0, 2)),
}  # fmt: skip
NO_HOOKS = {"Hook": "a hook by its parts: `applied` has one of the user's own", "find_positions": WITHOUT}


def under(s: Subject, *hooks: Any) -> Any:
    """The residual streams under hooks."""
    with sl.applied(s.model, *hooks):
        return sl.capture(s.model, [s.prompt], keep="residuals").to_xarray()


def device_of(s: Subject) -> torch.device:
    return next(s.model.parameters()).device


def again(s: Subject) -> Any:
    """The model loaded and verified once more."""
    return sl.load(s.opened, device=device_of(s), progress=False)


def stacked(name: str, s: Subject, lengths: list[int]) -> Any:
    """A measurement of random stacks, on the device of the subject's model."""
    stack = sl.synthetic.Stack(depth=1, heads=2, width=8)
    function: Any = partial(getattr(sl.synthetic, name), stack)
    if name == "survey":
        function = partial(function, {"encoding": ["none", "alibi"]})
    return function(lengths, seeds=2, device=device_of(s), progress=False)


def public(module: Any = sl, prefix: str = "") -> list[str]:
    """Every callable of the public interface, by the name that follows `squashlens.`."""
    found = []
    for name in module.__all__:
        value = getattr(module, name)
        if callable(value):
            found.append(prefix + name)
        elif hasattr(value, "__all__"):
            found += public(value, f"{prefix}{name}.")
    return found
