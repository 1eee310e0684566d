"""Panels of one page: what they share is said once, what differs is said at each, and one quantity has one scale."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.figures.drawing.page import Page
from tests import measurements
from tests.figures import specimens

PROMPT = "1101 ="


@pytest.fixture(scope="module")
def bounds(tiny: Any) -> dict[str, Any]:
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        hooked = sl.path_bound(tiny, PROMPT, to_layer=3, query=-2)
    return {"plain": sl.path_bound(tiny, PROMPT), "hooked": hooked}


def test_a_list_has_letters(bounds: dict[str, Any]) -> None:
    page = Page.of(sl.figures.panels([*bounds.values()]))
    assert [block[0].head for block in page.blocks] == ["(a)", "(b)"]


def test_columns_that_were_asked_for_are_kept(bounds: dict[str, Any]) -> None:
    page = sl.figures.panels([*bounds.values()] * 2, columns=2)
    narrow = sl.figures.styled(page, theme="paper", width="column")
    starts = {
        round(narrow.layout[panel.x].domain[0], 3) for panel in Page.of(narrow).panels
    }
    assert len(starts) == 2


def test_one_quantity_has_one_scale(bounds: dict[str, Any]) -> None:
    """Logarithmic, if every part can be shown so; panels never have a logarithmic scale beside a linear one."""
    bound = bounds["plain"]
    both = sl.figures.panels({"a": 3 * bound, "b": bound}).layout
    assert (both.yaxis.type, both.yaxis2.type, both.yaxis2.matches) == (
        "log",
        "log",
        "y",
    )
    zero = bound.copy(data=np.where(np.arange(bound.size) == 1, 0, bound.values))
    mixed = sl.figures.panels({"a": bound, "b": zero}).layout
    assert (mixed.yaxis.type, mixed.yaxis2.type, mixed.yaxis2.matches) == (
        "linear",
        "linear",
        "y",
    )
    unit = sl.figures.of(specimens.bound(5)).layout.yaxis.title.text
    wanted = "upper bound on the influence of each token on the query (‖∂y‖/‖∂v‖)"
    assert unit.replace("<br>", " ") == wanted


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    [
        "bound_vs_jacobian",
        "path_bound",
        "collapse",
        "compare_interventions",
        "composition",
    ],
)
def test_joined_results_have_a_panel_for_each_part(name: str) -> None:
    result: Any = measurements.result(name)
    both = {"first": measurements.longer(result), "second": result}
    figure: Any = sl.figures.of(sl.results.concat(both, dim="attempt"))
    titles = [
        block[0].head for block in Page.of(figure).blocks if block[0].head
    ]  # a part may have several panels
    assert titles == ["attempt first", "attempt second"]
    one: Any = sl.figures.of(result)
    np.testing.assert_array_equal(
        np.asarray(figure.data[-1].y, float), np.asarray(one.data[-1].y, float)
    )
