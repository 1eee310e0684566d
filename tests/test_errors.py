"""Refusals survive copies, pickles and process pools with their cause, remedy and attributes."""

import copy
import pickle

import pytest

from squashlens import errors


class ShelfError(errors.InputError):
    """An error of one's own, with parameters of its own."""

    def __init__(self, shelf: int):
        super().__init__(f"Shelf {shelf} is full.", "Take another.")


PUBLIC = [getattr(errors, name) for name in errors.__all__]
ERRORS = [ShelfError(3), *(kind("The cause.", "The remedy.") for kind in PUBLIC)]


@pytest.mark.parametrize("protocol", range(-2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_refusal_survives(error: errors.SquashlensError, protocol: int) -> None:
    error.attached = {"shape": (1, 2)}  # pyright: ignore[reportAttributeAccessIssue]
    error.__notes__ = ["seen at layer 3"]
    if protocol == -2:
        again = copy.copy(error)
    elif protocol == -1:
        again = copy.deepcopy(error)
    else:
        again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
    assert type(again) is type(error)
    assert again is not error
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)
