"""squashlens: how decoder-only transformers lose information on the way to the last token.

Read in this order:

1. `load` a model (a proven TransformerLens bridge) and turn text into `tokens`.
2. `capture` what one forward pass computes: residual streams, attention patterns.
3. Measure over-squashing on a prompt: `path_bound` (Theorem 5.1), `composition` (how attention composes by
   layer), `hops` and `strongest_paths` (the paths themselves), `depth_limit`, `jacobian_norms` (the true
   sensitivity), `sensitivity` (all side by side), `substitution_effect` (what a swap does), `audit` (every
   bound, norm and proxy: how tight, how like the truth, at what cost), `needle` (one token of many prompts),
   `next_token` (the answer).
4. Measure collapse on a growing sequence from `prompts`: `collapse` (Theorem 4.2), `mechanism` (why),
   `separator_ablation` (what separators do, layer by layer), `splits` and `tokenisation` (whether a repeated text is a
   repeated token), `precision` and `precision_by_run` (formats, bits, dtypes).
5. Try cures, with the share of right answers (`accuracy`) beside each: `compare` any hooks, `windows` with and
   without sinks, `prescribe` separators (`prescription_table`).
6. Ask: `tasks` of copying and counting, what the model answers (`behave`, `answer_frequencies`), whether the answer
   stands in the representation more than in random weights (`probe`), and whether a wrong one is the work of collapse
   (`collapse_vs_readout`).
7. Draw with `figures`; or write it all up with `report`.
8. Keep: `save`, `open_result`, `provenance`.
9. Check the theory itself: `statements` of appendix B on inputs of yours (`statements_page` writes them up),
   `shares_and_counts` (Proposition 6.1) on a model, random stacks of attention in `synthetic`.
10. Intervene: `applied(model, …)` with `freeze_attention`, `freeze_norms`, `freeze_gates`; `mask_tokens`,
   `mask_attention`, `sliding_window`, `attention_temperature`, `scale_attention`, `uniform_attention`; `zero_pattern`,
   `zero_values`, `zero_heads`, `mean_heads`, `patch_heads`; `zero_residual`, `mean_residual`, `resample_residual`,
   `patch_residual`; `rounding`; any `Hook`, or a pair as in TransformerLens's `fwd_hooks`, around any of the above.

Names load at first use; importing squashlens imports neither torch nor TransformerLens and changes nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squashlens import errors, figures, prompts, synthetic, tasks, zoo
    from squashlens.measure.accuracy import accuracy
    from squashlens.measure.answers import answer_frequencies
    from squashlens.measure.audit import audit, audit_table
    from squashlens.measure.behave import behave
    from squashlens.measure.bound import composition, path_bound
    from squashlens.measure.collapse import collapse
    from squashlens.measure.collapse_vs_readout import collapse_vs_readout
    from squashlens.measure.compare import compare
    from squashlens.measure.jacobian import jacobian_norms
    from squashlens.measure.mechanism import mechanism
    from squashlens.measure.needle import needle
    from squashlens.measure.precision import precision
    from squashlens.measure.precision_by_run import precision_by_run
    from squashlens.measure.prescribe import prescribe, prescription_table
    from squashlens.measure.probe import probe
    from squashlens.measure.readout import next_token
    from squashlens.measure.sensitivity import sensitivity
    from squashlens.measure.separators import separator_ablation
    from squashlens.measure.shares_and_counts import shares_and_counts
    from squashlens.measure.substitution import substitution_effect
    from squashlens.measure.tokenisation import splits, tokenisation
    from squashlens.measure.walks import depth_limit, hops, strongest_paths
    from squashlens.measure.windows import windows
    from squashlens.model.capture import Capture, capture, open_capture
    from squashlens.model.freeze import freeze_attention, freeze_gates, freeze_norms
    from squashlens.model.hooks import Hook
    from squashlens.model.interventions import (
        attention_temperature,
        mask_attention,
        mask_tokens,
        scale_attention,
        sliding_window,
        uniform_attention,
        zero_heads,
        zero_pattern,
        zero_residual,
        zero_values,
    )
    from squashlens.model.live import applied
    from squashlens.model.load import load
    from squashlens.model.patches import mean_heads, patch_heads, patch_residual
    from squashlens.model.places import places
    from squashlens.model.reference import mean_residual, resample_residual
    from squashlens.model.rounding import rounding
    from squashlens.model.tokens import tokens
    from squashlens.reporting.page import report
    from squashlens.reporting.statements import statements_page
    from squashlens.results import open_result, provenance, save
    from squashlens.theory import statements

_HOMES = {
    "load": "model.load",
    "tokens": "model.tokens",
    "capture": "model.capture",
    "Capture": "model.capture",
    "open_capture": "model.capture",
    "path_bound": "measure.bound",
    "composition": "measure.bound",
    "jacobian_norms": "measure.jacobian",
    "sensitivity": "measure.sensitivity",
    "shares_and_counts": "measure.shares_and_counts",
    "substitution_effect": "measure.substitution",
    "needle": "measure.needle",
    "accuracy": "measure.accuracy",
    "answer_frequencies": "measure.answers",
    "audit": "measure.audit",
    "audit_table": "measure.audit",
    "behave": "measure.behave",
    "collapse": "measure.collapse",
    "collapse_vs_readout": "measure.collapse_vs_readout",
    "compare": "measure.compare",
    "windows": "measure.windows",
    "mechanism": "measure.mechanism",
    "separator_ablation": "measure.separators",
    "splits": "measure.tokenisation",
    "tokenisation": "measure.tokenisation",
    "hops": "measure.walks",
    "strongest_paths": "measure.walks",
    "depth_limit": "measure.walks",
    "next_token": "measure.readout",
    "precision": "measure.precision",
    "precision_by_run": "measure.precision_by_run",
    "prescribe": "measure.prescribe",
    "prescription_table": "measure.prescribe",
    "probe": "measure.probe",
    "Hook": "model.hooks",
    "applied": "model.live",
    "freeze_attention": "model.freeze",
    "freeze_gates": "model.freeze",
    "freeze_norms": "model.freeze",
    "attention_temperature": "model.interventions",
    "mask_attention": "model.interventions",
    "mask_tokens": "model.interventions",
    "scale_attention": "model.interventions",
    "sliding_window": "model.interventions",
    "uniform_attention": "model.interventions",
    "zero_heads": "model.interventions",
    "zero_pattern": "model.interventions",
    "zero_residual": "model.interventions",
    "zero_values": "model.interventions",
    "mean_heads": "model.patches",
    "patch_heads": "model.patches",
    "patch_residual": "model.patches",
    "mean_residual": "model.reference",
    "resample_residual": "model.reference",
    "rounding": "model.rounding",
    "places": "model.places",
    "report": "reporting.page",
    "statements_page": "reporting.statements",
    "save": "results",
    "open_result": "results",
    "provenance": "results",
}
_WINGS = {name: name for name in ("errors", "figures", "hosted", "prompts", "synthetic", "tasks", "zoo")} | {
    "statements": "theory.statements"
}

__all__ = [
    "Capture",
    "Hook",
    "accuracy",
    "answer_frequencies",
    "applied",
    "attention_temperature",
    "audit",
    "audit_table",
    "behave",
    "capture",
    "collapse",
    "collapse_vs_readout",
    "compare",
    "composition",
    "depth_limit",
    "errors",
    "figures",
    "freeze_attention",
    "freeze_gates",
    "freeze_norms",
    "hops",
    "jacobian_norms",
    "load",
    "mask_attention",
    "mask_tokens",
    "mean_heads",
    "mean_residual",
    "mechanism",
    "needle",
    "next_token",
    "open_capture",
    "open_result",
    "patch_heads",
    "patch_residual",
    "path_bound",
    "places",
    "precision",
    "precision_by_run",
    "prescribe",
    "prescription_table",
    "probe",
    "prompts",
    "provenance",
    "report",
    "resample_residual",
    "rounding",
    "save",
    "scale_attention",
    "sensitivity",
    "separator_ablation",
    "shares_and_counts",
    "sliding_window",
    "splits",
    "statements",
    "statements_page",
    "strongest_paths",
    "substitution_effect",
    "synthetic",
    "tasks",
    "tokenisation",
    "tokens",
    "uniform_attention",
    "windows",
    "zero_heads",
    "zero_pattern",
    "zero_residual",
    "zero_values",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = import_module("importlib.metadata").version("squashlens")
    elif name in _HOMES:
        value = getattr(import_module(f"squashlens.{_HOMES[name]}"), name)
    elif name in _WINGS:
        value = import_module(f"squashlens.{_WINGS[name]}")
    else:
        raise AttributeError(f"module 'squashlens' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
