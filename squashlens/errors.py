"""The errors that squashlens raises. Every message has the cause, then the remedy."""

__all__ = [
    "BusyModelError",
    "CapacityError",
    "InputError",
    "ModelAccessError",
    "OutputError",
    "RangeError",
    "SquashlensError",
    "StaleCaptureError",
    "UnsoundModelError",
]

LONGEST = 1200  # characters of a cause; the middle of a longer one is left out


# What code of other libraries raises where it cannot do something.
FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, LookupError)


def one_line(error: BaseException) -> str:
    """The words of an error of another library, in one line and shortened."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def __dir__() -> list[str]:
    return [*__all__]


class SquashlensError(ValueError):
    """Base class of all errors of squashlens; a `ValueError`, so that ordinary handlers catch it.

    Attributes:
        cause: what was given, and what is wrong with it.
        remedy: what to do.
    """

    def __init__(self, cause: str, remedy: str):
        if len(cause) > LONGEST:  # such as the repr of a long prompt
            cause = f"{cause[: LONGEST // 2]} … {cause[-LONGEST // 4 :]}"
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        # Without `__init__`, whose parameters may be others in a subclass.
        return type(self).__new__, (type(self), *self.args), vars(self)

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}"


class InputError(SquashlensError):
    """An argument or a prompt that cannot be used."""


class RangeError(InputError):
    """A number outside the range of its number format."""


class ModelAccessError(SquashlensError):
    """A model that cannot be found, downloaded, opened or used."""


class UnsoundModelError(SquashlensError):
    """A model that is not causal, has more than attention between tokens, differs from its bridge, or ignores hooks."""


class CapacityError(SquashlensError):
    """Something that does not fit into memory or on disk; raised before the work starts."""


class StaleCaptureError(SquashlensError):
    """A capture that was edited, or taken with other weights, configuration, hooks or dtype."""


class BusyModelError(SquashlensError):
    """A model that cannot be used now: threads wait for each other, or it was changed during a measurement."""


class OutputError(SquashlensError):
    """A file or folder that cannot be written; an existing file stays unchanged."""
