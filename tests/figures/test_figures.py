"""What figures leave out, say in words, and refuse; `test_values` compares what they draw."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.page_blocks import Page
from squashlens.figures.drawing.shapes import extremes, interval
from squashlens.figures.drawing.text import label
from squashlens.records.provenance import with_provenance
from squashlens.records.sentences import percent
from tests.figures import specimens


def numbers(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def test_rows_stand_at_their_positions() -> None:
    """A selection or another order of tokens: hover texts and ticks are those of `position`; padding is left out."""
    every = specimens.bound(8)
    figure: Any = sl.figures.by_token(every.isel(position=[5, 2, 4]))
    wanted = [
        f"{place}: {label(str(every['token'].values[place]))}" for place in (2, 4, 5)
    ]
    assert list(figure.data[0].customdata) == wanted
    assert figure.layout.xaxis.labelalias == dict(zip("245", wanted, strict=True))
    padded: Any = sl.figures.by_token(
        every.assign_coords(n_tokens=5).isel(position=slice(2, None))
    )
    assert numbers(padded.data[0].x).tolist() == [2, 3, 4]
    with pytest.raises(
        InputError, match="'position' of this result does not have whole numbers"
    ):
        sl.figures.by_token(every.assign_coords(position=list("abcdefgh")))


ENDS = {"low": [0.5, 1, 1.5, 2.9], "high": [1.2, 2, 2.9, 4]}
SAID: list[tuple[list[float], dict[str, list[float]], str, str]] = [
    (
        [3.0, 1, np.nan, 9, 4, 0.5],
        {},
        "9 (“&lt;b&gt;fox&lt;/b&gt;” at position 3)",
        "0.5 (“␣incomprehens…” at ",
    ),
    (
        [3.1593157, 3.1593153, 2],
        {},
        "3.16 (2 of 3 values)",
        "2 (“␣brown” at position 2)",
    ),
    (
        [0.0, 2, 1, 0],
        {},
        "2 (“␣quick” at position 1)",
        "1 (“␣brown” at position 2), besides 2 zeros",
    ),
    (
        [1.0, 1.5, 2, 3],
        ENDS,
        "between 2.9 and 4 (one of 2 whose intervals overlap)",
        "between 0.5 and 1.2 (one of 2",
    ),
    (
        [1.0, 1.5, 2, 5],
        ENDS,
        "5 (“&lt;b&gt;fox&lt;/b&gt;” at position 3)",
        "1 (“The” at ",
    ),  # not within the intervals
    (
        [0.9, 1.5, 2, 3.5],
        {"low": [0.5, 1, 1.5, 3]},
        "3.5 (“&lt;b&gt;fox&lt;/b&gt;” at position 3)",
        "0.9 (“The” at ",
    ),
]


@pytest.mark.parametrize(("values", "ends", "largest", "smallest"), SAID)
def test_a_sentence_has_the_ends_of_what_is_drawn_if_they_are_apart(
    values: list[float], ends: dict[str, list[float]], largest: str, smallest: str
) -> None:
    found = specimens.bound(len(values)).copy(data=values)
    said = extremes(
        found.assign_coords({end: ("position", at) for end, at in ends.items()})
    )
    assert said.startswith(
        f"The largest value is {largest}; the smallest is {smallest}"
    )
    assert "values overlap: no value is clearly" in extremes(
        found.assign_coords(low=found * 0, high=found * 0 + 20)
    )
    assert "interval is in the whole result" in extremes(
        found.assign_attrs(long_name="sketched norm")
    )


def test_a_sentence_names_labels_and_why_a_sublayer_was_selected() -> None:
    same = specimens.bound(8).copy(data=[2.0] * 8)
    assert Page.of(sl.figures.by_token(same)).says == "The value is 2 everywhere."
    assert extremes(same.isel(position=[3]) * 0) == "The value is 0."
    from_the_end = sl.figures.by_token(specimens.bound(8).assign_coords(query=-1))
    assert len(from_the_end.data[0].y) == 8, "no token is after the last one"
    rates = xr.DataArray(
        [[0.1, 0.7], [0.3, 0.2]], {"block": [4, 5], "head": [0, 1]}, name="rate"
    )
    said = Page.of(
        sl.figures.of(with_provenance(rates, {"model": "m", "call": {"function": "f"}}))
    ).says
    assert (
        said
        == "The largest value is 0.7 (block 4, head 1); the smallest is 0.1 (block 4, head 0)."
    )
    with np.errstate(all="raise"):  # an infinite value has no bar
        assert not np.any(
            interval(
                np.array([np.inf, 1]), np.array([np.inf, 1]), np.array([np.inf, 1]), ""
            )["array"]
        )


def test_a_share_is_said_only_above_its_nulls() -> None:
    """Of a selected sublayer, beside what the same selection reaches by chance; with others that did as much."""
    numbers = dict.fromkeys(["selected_net_high", "net_random"], 0.5) | {
        "selected_net": 0.31,
        "selected_net_low": -0.002,
        "selected_net_random_limit": 0.08,
        "selected_net_shuffled_limit": 0.06,
    }
    made = specimens.MEASUREMENTS["sublayer_effect"]().assign(
        wrong=("half", [0, 1]), right=("half", [3, 0])
    )
    found = made.assign(
        {name: made[name] * 0 + value for name, value in numbers.items()}
    )

    def said(above: str, **others: Any) -> str:
        return Page.of(
            sl.figures.of(found.assign(others).assign_coords(above_null=above))
        ).says

    share = "a net 31 % [0, 50] of the other half of the prompts"
    chance = "selected likewise, random vectors of the same size 8 % and shuffled answers 6 % (95 % limits)."
    repairs = f"repairs {percent(float(made['repaired'][1, 7, 1]))} of 1 wrong answer"
    assert said("yes") == f"Leaving out MLP 7 {repairs}: {share}; {chance}"
    assert (
        said("no")
        == f"Leaving out MLP 7 repairs no more than chance does: {share}; {chance}"
    )
    unknown = said("not measured", selected_net_random_limit=np.nan)
    assert unknown.startswith(
        "Whether leaving out MLP 7 repairs more than chance does was not measured: "
    )
    assert "random" not in unknown
    alike = said("no", net=made["net"] * 0)
    assert (
        "MLP 7 (or one of 51 others that do as much in the half that selects) repairs no more"
        in alike
    )


def test_separators_of_both_signs_have_no_effect_that_remains() -> None:
    found = specimens.ablation()
    found["distance"][:2] = [[[1.0]], [[2.0]]]
    raised = Page.of(sl.figures.retained_by_kind(found)).says
    assert raised.startswith(
        "The separators raise D at 12 of 12 lengths and lower it at 0. The largest median of the"
    )
    found["distance"][1, :, :4] = 0.5
    both = Page.of(sl.figures.retained_by_kind(found)).says
    assert both == "The separators raise D at 8 of 12 lengths and lower it at 4."


def test_zeros_and_rows_without_values_are_left_out() -> None:
    """A logarithm has no zero; a row of which nothing is left stays, and is empty."""
    compared = specimens.compare()
    compared["distance"][1, -1, 0] = compared["distance"][2, -1] = 0
    compared["accuracy"][1:3] = 0
    figure: Any = sl.figures.changes(compared)
    np.testing.assert_array_equal(
        numbers(figure.data[3].x), compared["distance"][1, -1, 1:]
    )
    assert len(figure.data[6].x) == 0
    shares = compared["accuracy"].mean("length")
    unchanged, most = (
        percent(float(share)) for share in (shares.sel(change="as it is"), shares.max())
    )
    said = Page.of(figure).says
    assert (
        f"right answers is {unchanged} without a change, and 0 % (2 changes) to {most} (“"
        in said
    )
    unclear = specimens.ablation()
    unclear["retained"][:] = np.nan
    rows: Any = sl.figures.retained_by_kind(unclear)
    assert len(rows.layout.yaxis.ticktext) == 10
    assert len(rows.data) == 4 + 3 * 6
    edits: Any = sl.figures.retained_by_kind(
        specimens.ablation().drop_vars(["retained_from", "distance_from"])
    )
    assert len(edits.layout.yaxis.ticktext) == 4
    nothing = (
        specimens.ablation()
        .sel(edit=["none", "separators", "delete"])
        .drop_vars("retained_from")
    )
    with pytest.raises(InputError, match="There is no ablation to draw"):
        sl.figures.retained_by_kind(nothing)


def test_a_noise_floor_far_below_is_said_and_does_not_squeeze_what_is_drawn() -> None:
    found = specimens.collapse()
    found["noise_floor"] = found["noise_floor"] * 1e-9
    figure: Any = sl.figures.collapse_curve(found)
    assert "noise floor" not in {trace.name for trace in figure.data}
    highest = float(found["noise_floor"].sel(layer=26).max())
    said = float(
        figure.layout.title.subtitle.text.split("at most ")[1]
        .split(",")[0]
        .replace("−", "-")
    )
    assert said == pytest.approx(highest, rel=0.01)


def test_a_draw_of_the_same_content_is_left_out() -> None:
    """Its distance is rounding at all layers. One that is near at a single layer has other content, and stays."""
    found = specimens.collapse()
    floor = found["noise_floor"].max("replayed")
    draws = found["unrelated"].copy()
    draws[0, :, 0], draws[1, -1, 3] = floor / 2, floor[-1] / 2
    draws[:, 0, 1:] = 2 * floor[0]
    figure: Any = sl.figures.collapse_curve(found.assign(unrelated=draws))
    first, second, _ = (
        numbers(t.y) for t in figure.data if t.name == "unrelated: other content"
    )
    np.testing.assert_array_equal(first, [np.nan, *draws[0, -1, 1:]])
    np.testing.assert_array_equal(second, draws[1, -1])


@pytest.mark.parametrize("sinks", [[0], [2], [0, 3], []])
def test_sinks_are_beyond_the_scale_and_named(sinks: list[int]) -> None:
    """Tokens that are sinks by the stated rule, wherever they are; without one, the largest token is a point."""
    found, places = specimens.sensitivity(8), sinks or [0]
    found["path_bound"][places] = 20 * float(found["path_bound"].sum())
    found["sink"] = "position", np.isin(range(8), sinks).astype(float)
    figure: Any = sl.figures.attribution(found)
    bound, apart = found["path_bound"].values, np.isin(range(8), sinks)
    np.testing.assert_array_equal(numbers(figure.data[0].y), bound)
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert ("sinks: " in said) == bool(sinks)
    if sinks:
        low, high = figure.layout.yaxis.range
        assert (
            low
            < np.log10(bound[~apart].min())
            < np.log10(bound[~apart].max())
            < high
            < np.log10(bound[sinks[0]])
        )
        assert (
            f", with {percent(bound[apart].sum() / bound.sum())} of the path bound"
            in said
        )


@pytest.mark.parametrize("query_has_most", [False, True])
def test_shares_of_paths_beside_a_sink_have_their_own_scale(
    query_has_most: bool,
) -> None:
    """Unless the query has most paths at its own layers, which the scale must show; then nothing is beyond it."""
    shares = specimens.composition(8)
    values = np.full(shares.shape, 1e-4)
    values[:, 0] = 1 - 7e-4
    if query_has_most:
        values[-2, -1], values[-2, 0] = 0.6, 0.4 - 6e-4
    figure: Any = sl.figures.of(shares.copy(data=values))
    assert (figure.data[0].zmax == 0) == query_has_most
    assert (
        ", with over 99.9 % of the paths" in figure.layout.title.subtitle.text
    ) != query_has_most


def test_one_query_or_layer_of_a_profile_is_a_map(tiny: Any) -> None:
    few = sl.influence_by_distance(
        tiny, "1101 =", queries=range(-2, 0), method="none", n_random_models=0
    )
    assert sl.figures.of(few).layout.title.text.startswith(
        "Influence on 2 queries of a prompt"
    )  # and not on all
    every = sl.influence(tiny, "1101 =", queries=[1, 3, 4], method="none")
    found = every["path_bound"]
    by_layer: Any = sl.figures.of(found.sel(query=4))
    assert by_layer.layout.title.text == "Path bound, by layer"
    by_query: Any = sl.figures.of(found.sel(layer=2))
    assert by_query.layout.title.text == "Path bound, by query"
    assert by_query.layout.yaxis.ticktext == ("1", "3", "4")
    line: Any = sl.figures.of(found.sel(query=3, layer=0))
    np.testing.assert_array_equal(
        line.data[0].y, found.sel(query=3, layer=0)[:4]
    )  # none after the query
    assert "query at position 3" in line.layout.title.subtitle.text
    with pytest.raises(InputError, match=r"dimensions \(query, layer, position\)"):
        sl.figures.of(found)
    with pytest.raises(
        InputError, match=r"another measurement.*squashlens\.paths\.composition"
    ):
        sl.figures.composition(found.sel(query=4))


def test_what_has_no_lines_is_refused() -> None:
    cube = xr.DataArray(np.ones((3, 2, 4)))
    for values in (xr.DataArray(1.0), xr.DataArray(["a"]), xr.DataArray([])):
        with pytest.raises(InputError, match="There is no figure for .* Print them"):
            sl.figures.of(values)
    with pytest.raises(
        InputError,
        match=r"dim_0, dim_1, dim_2\. Select one .* as in `result\.isel\(dim_1=0\)`",
    ):
        sl.figures.of(cube)
    assert len(sl.figures.of(cube.isel(dim_1=0)).data) == 3
