"""Arguments of public functions: what is converted, what is refused by name, and a walk over every function."""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

import squashlens as sl
from squashlens._typing import MOST, Extended, positive, short_repr
from squashlens.checks.arguments import converted, validated
from squashlens.errors import InputError
from tests import odd

ROWS = Float[Tensor, "query key"]
INTS = Iterable[int]
PLACE = str | Sequence[str] | Tensor
LARGEST = 2**63 - 1
HALF = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
ACCEPTED = [
    (np.int64(3), int, 3),
    (np.float32(0.5), float, 0.5),
    (2, float, 2),
    (Fraction(1, 4), float, 0.25),
    (Fraction(1, 4), Extended, 0.25),
    (-(10**30), Extended, -1e30),
    (math.inf, Extended, math.inf),
    (np.bool_(True), bool, True),
    ("l1", Literal["l1", "l2"], "l1"),
    (None, int | None, None),
    ((n for n in (1, 2)), INTS, [1, 2]),
    (np.array([1, 2]), INTS, [1, 2]),
    (xr.DataArray([1, 2]), INTS, [1, 2]),
    (torch.tensor([1, 2]), Sequence[int], [1, 2]),
    ({3, 1}, INTS, [1, 3]),
    (range(3), INTS, range(3)),
    (HALF, Iterable[float], [1.0, 1.0]),
    ([1, 2], tuple[int, ...] | None, (1, 2)),
    ((1, 2.5), tuple[float, float], (1, 2.5)),
    ("110", Sequence[str | int], "110"),
    (["a"], Collection[Literal["a", "b"]], ["a"]),
    ({"a": [1]}, Mapping[str, INTS], {"a": [1]}),
    ("x.nc", str | Path, "x.nc"),
    (torch.bfloat16, torch.dtype | None, torch.bfloat16),
    (torch.bfloat16, Literal["bfloat16", "bf16"], "bfloat16"),
]
REFUSED = [
    (True, int),
    (1.0, int),
    ("1", int),
    (LARGEST + 1, int),
    (-LARGEST - 2, int),
    (torch.tensor(1), int),
    (odd.Unprintable(), int),
    (math.nan, float),
    (math.inf, float),
    (10**400, float),
    (1, bool),
    ("yes", bool),
    (b"x", str),
    ("l3", Literal["l1", "l2"]),
    ([], Literal["l1"]),
    (True, Literal[1]),
    ("a", Collection[Literal["a", "b"]]),
    ("12", INTS),
    ({1: 2}, INTS),
    ({1, 2j}, INTS),
    ([-LARGEST - 2, 1], INTS),
    (itertools.count(), INTS),
    (np.array([[1]]), INTS),
    ({1: 1}, Mapping[str, int]),
    (3, str | Path),
    (torch.int8, torch.dtype | None),
    ((1.0,), tuple[float, float]),
    (3, Callable[[int], int]),
    (torch.ones(3), ROWS),
    (torch.ones(3, 3, dtype=torch.int64), ROWS),
    (None, PLACE),
    ({"a": 1}, PLACE),
    (torch.float32, Literal["bfloat16"]),
    (torch.int8, Literal["int8"]),
]
PUBLIC = odd.public().items()
FUNCTIONS = {name: one for name, one in PUBLIC if name not in odd.MADE_BY_US}


def name_of(value: Any) -> str:
    """A value as it is shown, without the address of a generator, which differs between workers."""
    return re.sub(r" at 0x\w+", "", short_repr(value))


@pytest.mark.parametrize(("value", "hint", "wanted"), ACCEPTED, ids=name_of)
def test_what_has_one_meaning_is_converted(value: Any, hint: Any, wanted: Any) -> None:
    result = converted(value, hint, "it")
    assert result == wanted
    assert type(result) is type(wanted)


@pytest.mark.parametrize(("value", "hint"), REFUSED, ids=name_of)
def test_what_is_of_another_kind_is_refused_by_name(value: Any, hint: Any) -> None:
    with pytest.raises(InputError, match=r"\bit\b") as refusal:
        converted(value, hint, "it")
    assert len(str(refusal.value)) < 400


def test_defaults_and_keywords_are_left_as_they_are() -> None:
    @validated
    def function(first: int, *rest: int, other: float = math.inf, **form: Any) -> Any:
        return first, rest, other, form

    result = function(np.int8(1), np.int8(2), more=3)
    assert result == (1, (2,), math.inf, {"more": 3})
    with pytest.raises(InputError):
        function(1, "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):  # which is Python's own
        function()  # pyright: ignore[reportCallIssue]


def test_counts_have_a_limit() -> None:
    positive(MOST, "n", "a number")
    positive(0, "n", "a number", or_zero=True)
    for n in (MOST + 1, 10**5000, 0, True, 1.0):
        with pytest.raises(InputError):
            positive(n, "n", "a number")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_validated(name: str) -> None:
    call = FUNCTIONS[name]
    if inspect.isclass(call):
        call = call.__init__
    while not hasattr(call, "__validated__") and hasattr(call, "__wrapped__"):
        call = call.__wrapped__
    takes_nothing = not inspect.signature(FUNCTIONS[name]).parameters
    assert takes_nothing or hasattr(call, "__validated__"), "put `validated` over it"


def annotations() -> dict[str, Any]:
    """Those of all public parameters; models are checked by the functions themselves."""
    hints = {}
    for function in FUNCTIONS.values():
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            hint = parameter.annotation
            if not re.search(r"TransformerBridge|typing\.Any", str(hint)):
                hints[str(hint)] = hint
    return hints


@pytest.mark.parametrize("hint", annotations().values(), ids=str)
def test_every_public_argument_refuses_odd_values_by_name_or_converts_them(
    hint: Any,
) -> None:
    """An odd value is refused with the argument's name, or becomes one that `converted` leaves as it is."""
    for value in odd.ODD:
        message = ""
        try:
            result = converted(value, hint, "it")
        except InputError as refusal:
            message = str(refusal)
        if message:
            assert re.search(r"\bit\b", message)
            assert len(message) < 2000
            continue
        assert type(converted(result, hint, "it")) is type(result)
        if isinstance(value, float) and hint is not Extended:
            assert math.isfinite(value)


def test_a_number_is_a_list_of_one_where_places_are_meant(tiny: Any) -> None:
    one = sl.hooks.mask_tokens(0, blocks=1)
    assert str(one) == str(sl.hooks.mask_tokens([0], blocks=(1,)))
    one = sl.hooks.zero_heads(np.int64(2), positions=3)
    assert str(one) == str(sl.hooks.zero_heads([2], positions=[3]))
    assert list(sl.capture(tiny, "110 =", layers=3).residuals) == [3]
    with pytest.raises(InputError):
        sl.path_bound(tiny, 5)
    with pytest.raises(InputError):
        sl.hooks.mask_tokens(True)
