"""Issue warnings that point at the user's line, however deep in the package they arise."""

import sys
import warnings

OURS = ("squashlens", "jaxtyping", "beartype", "contextlib", "functools")


def remark(message: str) -> None:
    """Warn at the innermost stack frame outside this package and outside the libraries that wrap its functions."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)


def _is_ours(module: object) -> bool:
    return str(module).partition(".")[0] in OURS
