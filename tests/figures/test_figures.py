"""What figures leave out, note and refuse; `test_values` compares what they draw."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.page import Page
from squashlens.figures.drawing.text import label
from squashlens.records.sentences import number, percent
from tests.figures import specimens


def numbers(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def noted(figure: Any) -> str:
    return " · ".join(Page.of(figure).notes)


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


def test_intervals_that_belong_to_other_values_are_not_drawn() -> None:
    """Arithmetic changes the values of an array, and not its coordinates."""
    found = specimens.with_low(8)
    assert sl.figures.by_token(found).data[0].error_y.arrayminus is not None
    assert sl.figures.by_token(found / 100).data[0].error_y.arrayminus is None


def test_one_prompt_at_a_place_has_no_interval_and_a_note_says_so() -> None:
    found = specimens.needle_sensitivity().assign(
        prompts=(("group", "number"), np.full((8, 12), 5))
    )
    found["prompts"][2] = 1
    note = f"one prompt at each place, so no bars: {found['group'].values[2]}"
    assert note in noted(sl.figures.needle_sensitivity(found))
    found["prompts"][2] = 5
    assert "no bars" not in noted(sl.figures.needle_sensitivity(found))


def test_zeros_and_rows_without_values_are_left_out() -> None:
    """A logarithm has no zero; a row of which nothing is left stays, and is empty."""
    compared = specimens.compare_interventions()
    compared["distance"][1, -1, 0] = compared["distance"][2, -1] = 0
    figure: Any = sl.figures.changes(compared)
    np.testing.assert_array_equal(
        numbers(figure.data[3].x), compared["distance"][1, -1, 1:]
    )
    assert len(figure.data[6].x) == 0
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
    with pytest.raises(InputError):
        sl.figures.retained_by_kind(nothing)


def test_a_noise_floor_far_below_is_noted_and_does_not_squeeze_what_is_drawn() -> None:
    found = specimens.collapse()
    found["noise_floor"] = found["noise_floor"] * 1e-9
    figure: Any = sl.figures.collapse_curve(found)
    assert "noise floor" not in {trace.name for trace in figure.data}
    highest = number(found["noise_floor"].sel(layer=26).max())
    assert f"noise floor, at most {highest}, below the axis" in noted(figure)


def test_a_draw_of_the_same_content_is_left_out() -> None:
    """Its distance is rounding at all layers. One that is near at a single layer has other content, and stays."""
    found = specimens.collapse()
    floor = found["noise_floor"].max("replayed")
    drawn = found["unrelated"].copy()
    drawn[0, :, 0], drawn[1, -1, 3] = floor / 2, floor[-1] / 2
    drawn[:, 0, 1:] = 2 * floor[0]
    figure: Any = sl.figures.collapse_curve(found.assign(unrelated=drawn))
    first, second, _ = (
        numbers(t.y) for t in figure.data if t.name == "unrelated: other content"
    )
    np.testing.assert_array_equal(first, [np.nan, *drawn[0, -1, 1:]])
    np.testing.assert_array_equal(second, drawn[1, -1])


def test_one_query_or_layer_of_a_profile_is_a_map(tiny: Any) -> None:
    every = sl.token_influence(tiny, "1101 =", queries=[1, 3, 4], method="none")
    found = every["path_bound"]
    by_layer: Any = sl.figures.of(found.sel(query=4))
    assert by_layer.layout.title.text == "Path bound, by layer"
    by_query: Any = sl.figures.of(found.sel(layer=2))
    assert by_query.layout.title.text == "Path bound, by query"
    assert list(by_query.data[0].y) == ["1", "3", "4"]
    assert {"layer 2", "blank: 0"} <= {*Page.of(by_query).notes}
    line: Any = sl.figures.of(found.sel(query=3, layer=0))
    np.testing.assert_array_equal(
        line.data[0].y, found.sel(query=3, layer=0)[:4]
    )  # none after the query
    assert "query 3" in Page.of(line).notes
    with pytest.raises(InputError):
        sl.figures.of(found)
    with pytest.raises(InputError):
        sl.figures.composition(found.sel(query=4))


def test_a_figure_says_what_was_measured(tiny: Any) -> None:
    """The model and its dtype, the prompt, hooks, and options that are not the usual ones."""
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        found = sl.path_bound(tiny, "1101 =", to_layer=3, query=-2)
    usual = ["tiny-gemma", "float32", "'1101 ='"]
    unusual = ["mask_tokens(1)", "query -2", "to layer 3"]
    assert Page.of(sl.figures.of(found)).notes == [*usual, *unusual]
    plain = sl.path_bound(tiny, "1101 =")
    assert Page.of(sl.figures.of(plain)).notes == usual
    both = Page.of(sl.figures.of({"plain": plain, "hooked": found}))
    assert both.notes == usual
    titles = [block[0].title for block in both.blocks]
    assert titles == ["", " · ".join(unusual)]


def test_single_answers_at_many_lengths_are_rates() -> None:
    """Eight neighbouring lengths have one rate, with Wilson's interval."""
    one = specimens.evaluate_task(0).isel(mode=[0], seed=[0], length=[0] * 16)
    right = ("mode", "length"), [[1.0] * 12 + [0.0] * 4]
    found = one.assign_coords(length=range(1, 17)).assign(accuracy=right)
    (rates,) = sl.figures.task_accuracy(found).data
    np.testing.assert_array_equal(numbers(rates.x), [4.5, 12.5])
    np.testing.assert_array_equal(numbers(rates.y), [1, 0.5])
    low = [0.3244, 0.5 - 0.2152]  # 8 of 8, and 4 of 8
    assert numbers(rates.error_y.arrayminus) == pytest.approx(low, abs=1e-4)


def test_answers_that_were_not_read_are_seen() -> None:
    found = specimens.evaluate_task(0)
    found["unread"][:] = 1.0
    for figure in (sl.figures.task_accuracy, sl.figures.task_error):
        drawn: Any = figure(found)
        assert "not read: no number 100 %" in drawn.data[-1].customdata
    counts = specimens.frequencies(0)
    counts["unread"][:] = 1.0
    panels = Page.of(sl.figures.answer_frequencies(counts)).panels
    assert [panel.title[-14:] for panel in panels] == ["100 % not read"] * 2


def test_answers_are_texts_side_by_side_or_numbers_near_the_right_ones() -> None:
    texts: Any = sl.figures.answer_frequencies(specimens.frequencies(0))
    names = list(texts.layout.xaxis.labelalias.values())
    assert names[:4] == ["yes", "no", "a rathe… (20)", "0"]
    counts = specimens.frequencies(1)
    counts["truth"][:, 6:] = 0.0
    figure: Any = sl.figures.answer_frequencies({"<s>": counts, "again": counts})
    share = percent(counts["said"][0, 16:].sum().item())
    beyond = f"{share} of answers are numbers beyond this axis"
    assert Page.of(figure).panels[0].title.startswith(f"<s>, answer only, {beyond}")
    assert max(max(numbers(bars.x)) for bars in figure.data) == 15
    shown = [note.text for note in figure.layout.annotations]
    assert any(text.startswith("&lt;s&gt;, answer only") for text in shown)


def test_a_median_distance_of_0_is_noted_and_r2_below_0_is_drawn_at_0() -> None:
    found = specimens.readout()
    found["distance"][0] = 0.0
    found["r2_y"][1] = -3.25
    figure: Any = sl.figures.collapse_vs_readout(found)
    assert "median D is 0, and not drawn, at 1 length" in Page.of(figure).notes
    r2 = next(trace for trace in figure.data if trace.name == "this model")
    assert numbers(r2.y)[1] == 0
    other = found.assign(verdict=("length", ["<b>?</b>"] * 8))
    rows: Any = sl.figures.collapse_vs_readout(other).layout.yaxis5.ticktext
    assert rows == ("&lt;b&gt;?&lt;/b&gt;",)
