"""Warnings that point at the line of the caller, however deep in the package they arise."""

import sys
import warnings

OURS = ("squashlens", "jaxtyping", "beartype", "contextlib", "functools")


def remark(message: str) -> None:
    """Warn at the innermost line on the stack that is neither this package's nor of what wraps its functions."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
