"""What squashlens refuses, by kind. Every message says the cause, then what to do about it."""

from typing import Any

LONGEST = 1200  # characters of a cause that quotes what was given; the middle of a longer one is left out


class SquashlensError(ValueError):
    """Base of all refusals; a `ValueError`, so that ordinary handlers catch it."""

    def __init__(self, cause: str, remedy: str):
        cause = cause if len(cause) <= LONGEST else f"{cause[: LONGEST // 2]} … {cause[-LONGEST // 4 :]}"
        super().__init__(f"{cause} {remedy}")
        self.cause, self.remedy = cause, remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles, so that a refusal in a worker process reaches its parent as it is.

        An exception is rebuilt by default from its one message, which `__init__` does not take. Here it is made
        without `__init__`, and its attributes are set; this holds for subclasses with any signature.
        """
        return _rebuilt, (type(self), self.args), self.__dict__.copy()


def _rebuilt(kind: type[SquashlensError], args: tuple[Any, ...]) -> SquashlensError:
    return kind.__new__(kind, *args)


class InputError(SquashlensError):
    """An argument or a prompt that cannot be measured as given."""


class RangeError(InputError):
    """A number that the format it is to be kept in cannot hold."""


class ModelAccessError(SquashlensError):
    """A model that cannot be found, reached, opened or used as it is."""


class UnsoundModelError(SquashlensError):
    """A model whose bridge fails the proof against the plain model, or whose hooks do nothing."""


class CapacityError(SquashlensError):
    """Something that does not fit into memory, said before it is tried."""


class StaleCaptureError(SquashlensError):
    """A capture taken from other weights, tokens or hooks than those at hand."""


class BusyModelError(SquashlensError):
    """A model that cannot be used now: threads wait for each other, or it was changed while it was measured."""


class OutputError(SquashlensError):
    """A file or folder that cannot be written; a file that was there before stays as it was."""
