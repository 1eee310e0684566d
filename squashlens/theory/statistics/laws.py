"""Laws of growth: the slope of a curve on logarithmic axes."""

from collections.abc import Sequence

import numpy as np


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope s of log y = s log x + c: y grows as x to the power s. NaN with a zero, or one point.

    >>> round(log_slope([1, 2, 4], [9, 4.5, 2.25]), 12)
    -1.0
    """
    if len(x) < 2 or not (np.asarray(y) > 0).all():
        return float("nan")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
