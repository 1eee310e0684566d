"""Measurements of pairs in one call: what is said to the capture beside what is said to the measurement."""

from typing import Any

import squashlens as sl

OF_CAPTURE = {"lengths", "baselines", "n_samples", "seed", "noise_lengths", "passes", "tokens_per_pass", "progress"}


def _measured(function: Any, patterns: bool, replay: int, model: Any, given: Any, options: dict[str, Any]) -> Any:
    said = {name: value for name, value in options.items() if name in OF_CAPTURE}
    rest = {name: value for name, value in options.items() if name not in OF_CAPTURE}
    if said.keys() - {"progress"}:
        given = sl.capture(model, given, **{"patterns": patterns, "noise_lengths": replay, "progress": False} | said)
    return function(model, given, **rest)


def collapse(model: Any, sequence: Any, **options: Any) -> Any:
    return _measured(sl.collapse, options.get("by_head") == "value", 0, model, sequence, options)


def mechanism(model: Any, sequence: Any, **options: Any) -> Any:
    return _measured(sl.mechanism, True, 4, model, sequence, options)


def precision(model: Any, sequence: Any, **options: Any) -> Any:
    return _measured(sl.precision, False, 4, model, sequence, options)


def precision_and_blocks(model: Any, given: Any, **options: Any) -> Any:
    """What storing and what rounding one block does, in one result."""
    formats = {name: options[name] for name in ("formats", "norm", "scale") if name in options}
    pairs = sl.capture(model, given, **{"patterns": False, "progress": False} | {
        name: value for name, value in options.items() if name not in formats
    })  # fmt: skip
    return sl.precision(model, pairs, **formats, blocks="all", progress=False)
