"""Figures of answers show their Datasets' values, what was not read included, and texts as texts."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.page import Page
from squashlens.measure.answers.frequencies import Answer, score_answers
from squashlens.records.provenance import with_provenance

MODES = ("answer_only", "cot", "cot_few_shot")
LENGTHS = [5, 10, 40]
WHO = {"model": "<i>hosted</i>", "call": {"function": "evaluate_task"}}


def values(points: Any) -> np.ndarray:
    return np.asarray(points, dtype=np.float64)


def hosted(
    said: Callable[[Any], str],
    task: str = "sum",
    lengths: Iterable[int] = LENGTHS,
    seeds: int = 4,
    mode: Any = MODES,
) -> xr.Dataset:
    """What a hosted model might have answered that answers all short questions correctly."""
    one = sl.tasks.find(task)
    short = {
        question: Answer(question.truth, True)
        for question in one.asked(range(1, 9), mode=mode)
    }
    asked = [
        one.ask(n, seed=seed, mode=each)
        for each in mode
        for n in lengths
        for seed in range(seeds)
    ]
    return score_answers(
        one,
        {question: Answer(said(question), True) for question in asked},
        WHO,
        short=short,
    )


def slipping(question: Any) -> str:
    """Off by the seed at 10 items, and by 100 times it at 40; no number at 5 items in the first mode, at even seeds."""
    if (question.mode, question.length) == (
        "answer_only",
        5,
    ) and question.seed % 2 == 0:
        return "many"
    slip = {5: 0, 10: 1, 40: 100}[question.length] * question.seed
    return str(int(question.truth) + slip)


@pytest.fixture(scope="module")
def asked() -> xr.Dataset:
    return hosted(slipping)


@pytest.fixture(scope="module")
def mute(tiny: Any) -> xr.Dataset:
    return sl.evaluate_task(
        tiny,
        sl.tasks.find("sum"),
        lengths=[4, 8],
        seeds=1,
        max_new_tokens=4,
        mode=["answer_only", "cot"],
    )


@pytest.fixture(scope="module")
def joined() -> xr.Dataset:
    """Made up: four lengths, one of each verdict."""
    facts = {
        "model": "<b>",
        "call": {"function": "collapse_vs_readout"},
        "task": {"name": "count & tell"},
    }
    over = ("length",)
    share = np.array([1, 0.75, 0.25, 0])
    shares = {
        "accuracy": share,
        "accuracy_low": share * 0.5,
        "accuracy_high": 0.5 + share * 0.5,
    }
    shares |= {
        "same_argmax": 1 - share,
        "same_answer": 1 - share / 2,
        "same_truth": share / 4,
        "probe_right_y": share**2,
        "bit_identical": share[::-1],
        "r2_y": np.array([np.nan, 0.9, 0.4, -3.25]),
        "r2_low_y": np.array([np.nan, 0.8, 0.3, -4]),
        "r2_high_y": np.array([np.nan, 0.95, 0.5, -1]),
        "r2_random_model_y": np.array([np.nan, 0.2, 1, 1]),
        "r2_control_y": np.array([np.nan, 0, 0.1, -1]),
    }
    distance = np.array([[4, 1, 2], [0.4, 0.1, 0.2], [0, 0.01, 0.02], [0, 0, 0]])
    verdict = [
        "read out",
        "represented, not read out",
        "no more than a baseline",
        "collapsed",
    ]
    found = xr.Dataset(
        {name: (over, one, {"units": "1"}) for name, one in shares.items()}
        | {
            "distance": (("length", "seed"), distance, {"units": "1"}),
            "verdict": (over, verdict),
        },
        coords={"length": [10, 20, 60, 100], "seed": [0, 1, 2]},
    )
    return with_provenance(found, facts)


def traces(figure: go.Figure, yaxis: str, mode: str = "lines+markers") -> list[Any]:
    return [
        trace for trace in figure.data if trace.yaxis == yaxis and trace.mode == mode
    ]


def test_single_answers_at_many_lengths_are_rates() -> None:
    """Eight neighbouring lengths have one rate, with Wilson's interval."""
    found = hosted(
        lambda q: q.truth if q.length < 13 else "0",
        mode=["cot"],
        lengths=range(1, 17),
        seeds=1,
    )
    (line,) = sl.figures.task_accuracy(found).data
    np.testing.assert_array_equal(values(line.x), [4.5, 12.5])
    np.testing.assert_array_equal(values(line.y), [1, 0.5])
    assert values(line.error_y.arrayminus) == pytest.approx(
        [0.3244, 0.5 - 0.2152], abs=1e-4
    )  # 8 of 8, and 4 of 8
    notes = Page.of(sl.figures.task_accuracy(found)).notes
    assert "rates of 8 neighbouring lengths" in notes


def test_answers_that_were_not_read_are_seen(
    mute: xr.Dataset, asked: xr.Dataset
) -> None:
    assert bool((mute["unread"].sum("why") == 1).all())
    figure = sl.figures.task_error({"mute": mute, "hosted": asked})
    assert "100 % not read" in Page.of(figure).panels[0].title
    assert "100 % not read: no number 100 %" in figure.data[1].customdata[0]
    accuracy = sl.figures.task_accuracy(mute)
    assert values(accuracy.data[0].y).tolist() == [0, 0]
    told = accuracy.data[0].customdata[0]
    assert told.startswith("0 % right in the requested form<br>100 % not read")
    frequencies = sl.figures.answer_frequencies(sl.results.answer_frequencies(mute))
    titles = [panel.title for panel in Page.of(frequencies).panels]
    assert [title.rpartition(", ")[2] for title in titles] == ["100 % not read"] * 2


def test_texts_have_frequencies_and_no_errors(tiny: Any) -> None:
    """Long runs of one digit look like numbers, and are none."""
    task = sl.tasks.find("taught_copy_repeated")
    copied = sl.evaluate_task(tiny, task, lengths=[4, 16])
    with pytest.raises(
        InputError, match="not numbers and have no error. Draw task_accuracy"
    ):
        sl.figures.task_error(copied)
    figure = sl.figures.answer_frequencies(sl.results.answer_frequencies(copied))
    said, _ = figure.data
    assert values(said.x).tolist() == [0, 1]
    assert list(figure.layout.xaxis.labelalias.values()) == ["1111", "1111111… (16)"]
    assert said.customdata[1] == "1" * 16
    assert (
        Page.of(figure).panels[0].title == "0 % not read"
    )  # and not what is left of a subtraction


def test_numbers_far_from_every_right_answer_are_counted_in_the_title(
    asked: xr.Dataset,
) -> None:
    counts = sl.results.answer_frequencies(asked)
    figure = sl.figures.answer_frequencies({"<s>": counts, "again": counts})
    beyond = "25 % of answers are numbers beyond this axis"  # 140, 240 and 340, of 12 answers
    far = counts["said"].sel(mode="cot", value=["140", "240", "340"])
    assert far.sum() == pytest.approx(0.25)
    title = f"<s>, chain of thought, {beyond}, 0 % not read"
    assert Page.of(figure).panels[1].title == title
    drawn = [title.text for title in figure.layout.annotations]
    assert any(text.startswith("&lt;s&gt;, chain of thought") for text in drawn)
    assert max(max(values(bars.x)) for bars in figure.data) == 40


def test_collapse_vs_readout_draws_distances_and_verdicts(joined: xr.Dataset) -> None:
    figure = sl.figures.collapse_vs_readout(joined)
    (line,) = traces(figure, "y4")
    np.testing.assert_array_equal(values(line.y), [2, 0.2, 0.01, np.nan])
    low, high = traces(figure, "y4", "lines")[::-1]
    np.testing.assert_array_equal(values(low.y), [1, 0.1, 0.01, np.nan])
    np.testing.assert_array_equal(values(high.y), [4, 0.4, 0.02, np.nan])
    assert "median D is 0, and not drawn, at 1 length" in Page.of(figure).notes
    r2 = next(trace for trace in figure.data if trace.name == "this model")
    np.testing.assert_array_equal(values(r2.y), [np.nan, 0.9, 0.4, 0])
    without = joined.drop_vars(
        [name for name in joined if str(name).startswith(("r2", "probe"))]
    )
    notes = Page.of(sl.figures.collapse_vs_readout(without)).notes
    assert "no probe at these lengths" in notes
    (marks,) = traces(figure, "y5", "markers")
    assert [figure.layout.yaxis5.ticktext[int(row)] for row in marks.y] == joined[
        "verdict"
    ].values.tolist()
    other = joined.assign(verdict=("length", ["<b>?</b>"] * 4))
    assert sl.figures.collapse_vs_readout(other).layout.yaxis5.ticktext == (
        "&lt;b&gt;?&lt;/b&gt;",
    )
