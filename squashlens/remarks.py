"""Issue warnings that point at the user's line, however deep in the package they arise."""

import sys
import warnings

OURS = ("squashlens", "jaxtyping", "beartype", "contextlib", "functools")


def remark(message: str) -> None:
    """Warn at the innermost stack frame outside this package and outside the libraries that wrap its functions."""
    frame, level = sys._getframe(1), 2
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
