"""The attention sink: a first token, usually BOS, that has nearly all of what a prompt's tokens share."""

import numpy as np

SINK = 0.9  # the share of the sum above which the first token is shown apart: nine times all others together


def first_share(values: np.ndarray) -> float:
    """The share of the first token in the sum of values that are not negative; NaN if the sum is 0 or not finite."""
    total = float(np.sum(values))
    return float(values[0]) / total if np.isfinite(total) and total > 0 and np.min(values) >= 0 else float("nan")


def has_sink(values: np.ndarray) -> bool:
    """Whether the first of at least three tokens is a sink: its share is above `SINK`, and others have some.

    >>> has_sink(np.array([98.0, 1.0, 1.0])), has_sink(np.array([50.0, 25.0, 25.0])), has_sink(np.array([98.0, 1.0]))
    (True, False, False)
    """
    return len(values) >= 3 and SINK < first_share(values) < 1
