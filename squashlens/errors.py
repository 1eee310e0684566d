"""What squashlens refuses, by kind. Every message says the cause, then what to do about it."""


class SquashlensError(ValueError):
    """Base of all refusals; a `ValueError`, so that ordinary handlers catch it."""

    def __init__(self, cause: str, remedy: str):
        super().__init__(f"{cause} {remedy}")
        self.cause, self.remedy = cause, remedy


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
