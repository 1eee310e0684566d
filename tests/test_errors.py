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


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_refusal_survives(error: errors.SquashlensError) -> None:
    error.attached = {"shape": (1, 2)}  # pyright: ignore[reportAttributeAccessIssue]
    for again in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
