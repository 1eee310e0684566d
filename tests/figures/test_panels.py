"""Panels of one page: what they share is said once, what differs is said at each, and one quantity has one scale."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.figures.drawing.page import Page
from tests import measurements
from tests.figures import specimens

PROMPT = "1101 ="


def said(figure: Any) -> tuple[str, list[str], list[str]]:
    """Title and notes of a page, and what stands above its parts."""
    page = Page.of(figure)
    return page.title, page.notes, [block[0].title for block in page.blocks]


@pytest.fixture(scope="module")
def bounds(tiny: Any) -> dict[str, Any]:
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        hooked = sl.path_bound(tiny, PROMPT, to_layer=3, query=-2)
    return {"plain": sl.path_bound(tiny, PROMPT), "hooked": hooked}


COMMON = ["tiny-gemma", "float32", "'1101 ='"]


@pytest.mark.few(1)
@pytest.mark.parametrize("order", [["plain", "hooked"], ["hooked", "plain"]])
def test_panels_say_what_they_do_not_share(
    bounds: dict[str, Any], order: list[str]
) -> None:
    own = {"plain": "", "hooked": "mask_tokens(1) · query -2 · to layer 3"}
    wanted = ("Path bound of Theorem 5.1", COMMON, [own[name] for name in order])
    parts = {name: bounds[name] for name in order}
    assert said(sl.figures.of(parts)) == said(sl.figures.panels(parts)) == wanted


def test_a_mixed_page_says_what_each_panel_shows(
    tiny: Any, bounds: dict[str, Any]
) -> None:
    parts: dict[str, Any] = {
        "a": bounds["hooked"],
        "b": sl.attention_paths.composition(tiny, PROMPT, query=-2),
    }
    bound = "Path bound of Theorem 5.1 · mask_tokens(1) · to layer 3"
    shares = "Where the paths to the query start, by layer"
    title = " · ".join([*COMMON, "query -2"])
    assert said(sl.figures.of(parts)) == (title, [], [bound, shares])
    named = sl.figures.panels(parts, title="Both")
    assert said(named) == ("Both", [*COMMON, "query -2"], [bound, shares])
    again = sl.figures.styled(
        sl.figures.styled(named, theme="dark", width=4), theme="paper"
    )
    assert said(again) == said(named)


def test_a_list_has_letters(bounds: dict[str, Any]) -> None:
    page = Page.of(sl.figures.panels([*bounds.values()]))
    assert [block[0].head for block in page.blocks] == ["(a)", "(b)"]


@pytest.mark.parametrize("width", ["column", "page", 13])
def test_columns_that_were_asked_for_are_kept(
    bounds: dict[str, Any], width: Any
) -> None:
    page = sl.figures.panels([*bounds.values()] * 2, columns=2)
    narrow = sl.figures.styled(page, theme="paper", width=width)
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


def test_hooks_of_some_results_are_said() -> None:
    plain: Any = measurements.result("evaluate_task")
    with sl.applied(measurements.model(), sl.hooks.mask_tokens([1])):
        task = sl.tasks.find("taught_count_bernoulli")
        hooked = sl.evaluate_task(
            measurements.model(), task, lengths=[2, 3], seeds=1, max_new_tokens=2
        )
    some = sl.figures.task_accuracy({"plain": plain, "hooked": hooked})
    assert "mask_tokens(1) in 1 of 2 results" in Page.of(some).notes
    every = sl.figures.task_accuracy({"a": hooked, "b": hooked})
    assert "mask_tokens(1)" in Page.of(every).notes


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
