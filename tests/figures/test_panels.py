"""Panels of one page: what they share is said once, what differs is said at each, and one quantity has one scale."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.figures.drawing.page_blocks import Page
from tests import measurements
from tests.figures import specimens

PROMPT = "1101 ="


def said(figure: Any) -> tuple[str, str, list[str]]:
    """Title and notes of a page, and the notes of its panels after their sentences."""
    page = Page.of(figure)
    own = [
        " · ".join(note for note in block[0].notes.split(" · ") if note[-1:] != ".")
        for block in page.blocks
    ]
    return page.title, page.notes, own


@pytest.fixture(scope="module")
def bounds(tiny: Any) -> dict[str, Any]:
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        hooked = sl.path_bound(tiny, PROMPT, to_layer=3, query=-2)
    return {"plain": sl.path_bound(tiny, PROMPT), "hooked": hooked}


@pytest.mark.few(1)
@pytest.mark.parametrize("order", [["plain", "hooked"], ["hooked", "plain"]])
def test_panels_say_what_they_do_not_share(
    bounds: dict[str, Any], order: list[str]
) -> None:
    own = {"plain": "", "hooked": "mask_tokens(1) · to layer 3 · query at position −2"}
    wanted = ("Path bound of Theorem 5.1", "tiny-gemma", [own[name] for name in order])
    parts = {name: bounds[name] for name in order}
    assert said(sl.figures.of(parts)) == said(sl.figures.panels(parts)) == wanted


def test_a_mixed_page_says_what_each_panel_shows(
    tiny: Any, bounds: dict[str, Any]
) -> None:
    parts: dict[str, Any] = {
        "a": bounds["hooked"],
        "b": sl.paths.composition(tiny, PROMPT, query=-2),
    }
    bound = "Path bound of Theorem 5.1 · mask_tokens(1) · to layer 3"
    shares = "Where the paths to the query start, by layer"
    common = "tiny-gemma · query at position −2"
    assert (
        said(sl.figures.of(parts))
        == said(sl.figures.panels(parts))
        == (common, "", [bound, shares])
    )
    assert said(sl.figures.panels(parts, title="Both")) == (
        "Both",
        common,
        [bound, shares],
    )
    # There is room for the notes at the width of a page, in each theme, and they come back from another look.
    page = sl.figures.panels(parts)
    assert said(
        sl.figures.styled(sl.figures.styled(page, theme="dark", width=4), theme="paper")
    )[2] == [bound, shares]


def test_one_quantity_has_one_scale(bounds: dict[str, Any]) -> None:
    bound = bounds["plain"]
    flat = bound.copy(data=np.linspace(1, 1.1, bound.size))
    both = sl.figures.panels({"a": flat, "b": bound})
    assert (
        both.layout.yaxis.type,
        both.layout.yaxis2.type,
        both.layout.yaxis2.matches,
    ) == ("log", "log", "y")
    assert both.layout.yaxis.title.text == "path bound of Theorem 5.1"
    zero = bound.copy(data=np.where(np.arange(bound.size) == 1, 0, bound.values))
    mixed = sl.figures.panels({"a": bound, "b": zero})
    assert (
        mixed.layout.yaxis.type,
        mixed.layout.yaxis2.type,
        mixed.layout.yaxis2.matches,
    ) == ("log", None, None)
    unit = sl.figures.of(specimens.bound(5)).layout.yaxis.title.text.replace(
        "<br>", " "
    )
    assert unit == "upper bound on the influence of each token on the query (‖∂y‖/‖∂v‖)"


def test_hooks_of_some_results_are_said() -> None:
    plain: Any = measurements.result("evaluate")
    with sl.applied(measurements.model(), sl.hooks.mask_tokens([1])):
        task = sl.tasks.find("taught_count_bernoulli")
        hooked = sl.evaluate(
            measurements.model(), task, lengths=[2, 3], seeds=1, max_new_tokens=2
        )
    notes = said(sl.figures.accuracy_by_length({"plain": plain, "hooked": hooked}))[1]
    assert "mask_tokens(1) in 1 of 2 results" in notes
    assert (
        "in 1 of"
        not in said(sl.figures.accuracy_by_length({"a": hooked, "b": hooked}))[1]
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["sensitivity", "path_bound", "collapse", "compare", "composition"]
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


def test_a_legend_lists_names_only() -> None:
    """Plotly calls a trace without a name "trace 1"."""
    page: Any = sl.figures.panels(
        {"bars": specimens.top_tokens(), "curves": specimens.sensitivity(5)}
    )
    assert [
        t.name
        for t in page.data
        if t.type == "bar" and t.showlegend is not False and not t.name
    ] == []


def test_shared_axes_have_the_same_grid_lines() -> None:
    """Also those without labels, where plotly would draw lines at 2 and 5 times each power of ten."""
    page = sl.figures.of(
        {"a": specimens.sensitivity(20), "b": specimens.sensitivity(40)}
    )
    page: Any = sl.figures.styled(
        page, height=5.0
    )  # fewer ticks than the parts have alone
    shared = [axis for axis in page.select_yaxes() if axis.matches]
    assert len(shared) == 3
    for axis in shared:
        first = page.layout[axis.matches.replace("y", "yaxis")]
        assert axis.showticklabels is False
        assert (axis.dtick, axis.type) == (first.dtick, "log")
        assert axis.dtick is not None
