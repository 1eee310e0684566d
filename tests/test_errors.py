"""Refusals survive copies, pickles and process pools with their cause, remedy and attributes."""

import copy
import pickle
from collections.abc import Callable

import pytest

from squashlens import errors
from squashlens.errors import SquashlensError


class ShelfError(errors.InputError):
    def __init__(self, shelf: int):
        super().__init__(f"Shelf {shelf} is full.", "Take another.")


def all_kinds(kind: type[SquashlensError]) -> list[type[SquashlensError]]:
    return [
        kind,
        *(each for inner in kind.__subclasses__() for each in all_kinds(inner)),
    ]


WAYS: dict[str, Callable[[SquashlensError], SquashlensError]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": lambda e, n=n: pickle.loads(pickle.dumps(e, n))  # noqa: S301
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_every_refusal_survives(way: str) -> None:
    kinds = all_kinds(SquashlensError)
    assert {kind.__name__ for kind in kinds} >= {
        n for n in dir(errors) if n.endswith("Error")
    }
    for kind in kinds:
        error = (
            ShelfError(3) if kind is ShelfError else kind("The cause.", "The remedy.")
        )
        error.attached = {"shape": (1, 2)}  # pyright: ignore[reportAttributeAccessIssue]
        error.add_note("seen at layer 3")
        again = WAYS[way](error)
        assert type(again) is kind
        assert again is not error
        assert (str(again), again.args, vars(again)) == (
            str(error),
            error.args,
            vars(error),
        )
        assert again.__notes__ == ["seen at layer 3"]
