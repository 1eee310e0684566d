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
INTS, PLACE = Iterable[int], str | Sequence[str] | Tensor
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
    (
        torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
        Iterable[float],
        [1.0, 1.0],
    ),
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
    (2**63, int),
    (torch.tensor(1), int),
    (odd.Unprintable(), int),
    (math.nan, float),
    (math.inf, float),
    (10**400, float),
    (1, bool),
    ("yes", bool),
    (b"x", str),
    ("\ud800", str),
    ("l3", Literal["l1", "l2"]),
    ([], Literal["l1"]),
    (True, Literal[1]),
    ("a", Collection[Literal["a", "b"]]),
    ("12", INTS),
    ({1: 2}, INTS),
    ({1, 2j}, INTS),
    ([-(2**63) - 1, 1], INTS),
    (itertools.count(), INTS),
    (np.array([[1]]), INTS),
    (torch.ones(2, device="meta"), INTS),
    ({1: 1}, Mapping[str, int]),
    (3, str | Path),
    (torch.int8, torch.dtype | None),
    ((1.0,), tuple[float, float]),
    (3, Callable[[int], int]),
    (-(2**63) - 1, int),
    (torch.ones(3), ROWS),
    (torch.ones(3, 3, dtype=torch.int64), ROWS),
    (torch.ones(3, 3, device="meta"), ROWS),
    (None, PLACE),
    ({"a": 1}, PLACE),
    (torch.float32, Literal["bfloat16"]),
    (torch.int8, Literal["int8"]),
]


def named(value: Any) -> str:
    """A value as it is shown, without the address of a generator, which differs between workers."""
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(("value", "hint", "wanted"), ACCEPTED, ids=named)
def test_what_has_one_meaning_is_converted(value: Any, hint: Any, wanted: Any) -> None:
    found = converted(value, hint, "it")
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("value", "hint"), REFUSED, ids=lambda part: named(short_repr(part))
)
def test_what_is_of_another_kind_is_refused_by_name(value: Any, hint: Any) -> None:
    with pytest.raises(InputError, match=r"\bit\b") as refusal:
        converted(value, hint, "it")
    assert len(str(refusal.value)) < 400


def test_defaults_and_keywords_are_left_as_they_are() -> None:
    @validated
    def function(
        first: int, *rest: int, other: float = math.inf, **form: Any
    ) -> tuple[Any, ...]:
        return first, rest, other, form

    assert function(np.int8(1), np.int8(2), more=math.nan)[:3] == (1, (2,), math.inf)
    with pytest.raises(InputError, match="rest='x'"):
        function(1, "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="missing"):  # which is Python's own
        function()  # pyright: ignore[reportCallIssue]


def test_counts_have_a_limit() -> None:
    positive(MOST, "n", "a number")
    for n in (MOST + 1, 10**30, 10**5000):
        with pytest.raises(InputError, match="n=.* is too large"):
            positive(n, "n", "a number")


def test_every_public_function_is_validated() -> None:
    bare = []
    for name, function in odd.public().items():
        if name in odd.MADE_BY_US or not inspect.signature(function).parameters:
            continue
        call = function.__init__ if inspect.isclass(function) else function
        while not hasattr(call, "__validated__") and hasattr(call, "__wrapped__"):
            call = call.__wrapped__
        if not hasattr(call, "__validated__"):
            bare.append(name)
    assert not bare, (
        "These do not refuse odd arguments: put `validated`, `measured` or `exclusive` over them."
    )


def annotations() -> dict[str, Any]:
    """Those of all public parameters."""
    functions = [
        function
        for name, function in odd.public().items()
        if name not in odd.MADE_BY_US
    ]
    found = [
        one.annotation
        for each in functions
        for one in inspect.signature(each, eval_str=True).parameters.values()
    ]
    anything = (
        "TransformerBridge",
        "typing.Any",
    )  # models are checked by the functions themselves
    return {
        str(hint): hint
        for hint in found
        if not any(one in str(hint) for one in anything)
    }


@pytest.mark.parametrize("hint", annotations().values(), ids=str)
def test_every_public_argument_refuses_odd_values_by_name_or_converts_them(
    hint: Any,
) -> None:
    """An odd value is refused with the argument's name, or becomes one that `converted` leaves as it is."""
    for value in odd.ODD:
        try:
            found = converted(value, hint, "it")
        except InputError as refusal:
            said = str(refusal)
        else:
            said = "it is accepted"
            assert (
                not isinstance(value, float) or math.isfinite(value) or hint is Extended
            )
            assert type(converted(found, hint, "it")) is type(found)
        assert re.search(r"\bit\b", said)
        assert len(said) < 2000


def test_a_number_is_a_list_of_one_where_places_are_meant(tiny: Any) -> None:
    for one, several in (
        (sl.hooks.mask_tokens(0, blocks=1), sl.hooks.mask_tokens([0], blocks=(1,))),
        (
            sl.hooks.zero_heads(np.int64(2), positions=3),
            sl.hooks.zero_heads([2], positions=[3]),
        ),
    ):
        assert one == several or str(one) == str(several)
    assert list(sl.capture(tiny, "110 =", layers=3).residuals) == [3]
    with pytest.raises(InputError, match="prompt"):
        sl.path_bound(tiny, 5)
    with pytest.raises(InputError, match="positions"):
        sl.hooks.mask_tokens(True)


def test_an_unknown_keyword_is_answered_with_the_nearest_or_where_it_belongs() -> None:
    measure: Any = sl.jacobian_norms
    with pytest.raises(
        InputError,
        match=r"^jacobian_norms\(\) has no keyword n_prober=. Did you mean n_probes=\?$",
    ):
        measure(None, "110 =", n_prober=3)
    with pytest.raises(InputError, match=r"of_no_function=. Use one of: model, "):
        measure(None, "110 =", of_no_function=3)
    with pytest.raises(
        InputError,
        match=r"^of\(\) has .* theme=. It is a keyword of figures.styled. Use .* result.$",
    ):
        sl.figures.of(xr.DataArray([1.0]), theme="dark")  # pyright: ignore
    with pytest.raises(
        InputError, match=r"load\(\) has no keyword torch_dtype=. Did you mean dtype=\?"
    ):
        sl.load("tiny-gemma", torch_dtype="auto")  # pyright: ignore
    with pytest.raises(
        TypeError,
        match=r"report\(\) too many .* only model can be given by position.* prompt=…",
    ):
        sl.report(None, "110 =")  # pyright: ignore


def test_signatures_are_short_in_a_notebook() -> None:
    """Every choice is given by its keyword, and no annotation is a long union."""
    for name, function in odd.public().items():
        if name.partition(".")[0] in (
            "Study",
            "figures",
            "hosted",
            "results",
            "statements",
        ):
            continue
        for one in inspect.signature(function).parameters.values():
            assert len(inspect.formatannotation(one.annotation)) <= 105, (
                name,
                one.name,
            )
            assert one.kind is not one.VAR_KEYWORD, (name, one.name)
