"""Measurements of pairs in one call: what is said to the capture beside what is said to the measurement."""

from typing import Any

import squashlens as sl
from tests.grouped import in_groups

CONTENT = (7, 8, 7, 7, 9, 9, 8, 7)
OF_CAPTURE = ("lengths", "baselines", "n_samples", "seed", "noise_lengths", "passes", "tokens_per_pass")
BOTH = ("residuals", "patterns")


def sequence_for(model: Any, family: str, content: Any = CONTENT, **form: Any) -> Any:
    """A sequence for a family's random model, after BOS if the family has one, and two more tokens."""
    return sl.prompts.build(model, content, prefix=[*([] if family == "qwen2" else [2]), 5, 11], **form)


def _measured(function: Any, keep: Any, replay: int, model: Any, given: Any, options: dict[str, Any]) -> Any:
    said = {name: value for name, value in options.items() if name in OF_CAPTURE}
    rest = {name: value for name, value in options.items() if name not in OF_CAPTURE}
    if said:
        given = sl.capture(model, given, keep=keep, **in_groups(sl.capture, {"noise_lengths": replay} | said))
    return function(model, given, **in_groups(function, rest))


def collapse(model: Any, sequence: Any, **options: Any) -> Any:
    keep = BOTH if options.get("by_head") == "value" else "residuals"
    return _measured(sl.collapse, keep, 0, model, sequence, options)


def mechanism(model: Any, sequence: Any, **options: Any) -> Any:
    return _measured(sl.mechanism, BOTH, 4, model, sequence, options)


def precision(model: Any, sequence: Any, **options: Any) -> Any:
    return _measured(sl.precision, "residuals", 4, model, sequence, options)


def precision_and_blocks(model: Any, given: Any, **options: Any) -> Any:
    """What storing and what rounding one block does, in one result."""
    formats = {name: options[name] for name in ("round_to", "norm", "scale") if name in options}
    said = {name: value for name, value in options.items() if name not in formats}
    pairs = sl.capture(model, given, keep="residuals", **in_groups(sl.capture, said))
    return sl.precision(model, pairs, **in_groups(sl.precision, formats), blocks="all")
