"""The specimens that are looked at: one of every figure, short and long, with the dimensions of real results."""

from typing import Any

import pytest
import xarray as xr

import squashlens as sl
from tests import odd
from tests.figures import specimens

NO_DRAWING = {"of", "panels", "save", "styled", "statements", "substitution"}  # the last two are drawn elsewhere
# Drawn as they are measured, or like another.
NOT_MADE_UP = {"jacobian_norms", "knockout_effect", "substitution_effect", "collapse relative", "convergence"}


@pytest.mark.parametrize("kind", [pytest.param("small", marks=pytest.mark.slow), "full"])
def test_every_figure_has_a_specimen(kind: str) -> None:
    assert {*sl.figures.__all__} - specimens.drawn(kind)[1] <= NO_DRAWING


@pytest.mark.parametrize("name", [name for name in odd.result("") if name not in specimens.NO_FIGURE])
def test_every_measurement_has_a_specimen(name: str) -> None:
    assert (name in specimens.MEASUREMENTS) != (name in NOT_MADE_UP)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", specimens.MEASUREMENTS)
def test_specimens_have_the_dimensions_of_real_results(name: str) -> None:
    """A variable with other dimensions than the measured one would hide what its figure cannot draw."""
    ours, real = (dimensions(one) for one in (specimens.MEASUREMENTS[name](), odd.result(name)))
    assert {one: ours[one] for one in ours if one in real} == {one: real[one] for one in ours if one in real}
    assert {*ours} & {*real}


def dimensions(result: Any) -> dict[str, tuple[str, ...]]:
    """The dimensions of each variable by name, in their order."""
    if isinstance(result, xr.DataArray):
        return {
            "values": result.dims,
            **{str(name): values.dims for name, values in result.coords.items() if values.dims != (name,)},
        }
    return {str(name): values.dims for name, values in result.variables.items() if values.dims != (name,)}
