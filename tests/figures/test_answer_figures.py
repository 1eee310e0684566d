"""Figures of answers show their Datasets' values, what was not read included, and texts as texts."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import Answer, score_answers
from squashlens.records.joining import joined as put_together
from squashlens.records.joining import restated
from squashlens.records.results import sealed

MODES = ("answer_only", "cot", "cot_few_shot")
TOLD = ["answer only", "chain of thought", "chain of thought, examples"]
LENGTHS = [5, 10, 40]
SEEDS = 4
WHO = {"model": "<i>hosted</i>"}


def values(points: Any) -> np.ndarray:
    return np.asarray(points, dtype=np.float64)


def hosted(
    said: Callable[[Any], str], task: str = "sum", lengths: Iterable[int] = LENGTHS, seeds: int = 4, mode: Any = MODES
) -> xr.Dataset:
    """What a hosted model might have answered that answers all short questions correctly."""
    one = sl.tasks.find(task)
    short = {question: Answer(question.truth, True) for question in one.asked(range(1, 9), mode=mode)}
    asked = [one.ask(n, seed=seed, mode=each) for each in mode for n in lengths for seed in range(seeds)]
    return score_answers(one, {question: Answer(said(question), True) for question in asked}, WHO, short=short)


def slipping(question: Any) -> str:
    """Off by the seed at 10 items, and by 100 times it at 40; no number at 5 items in the first mode, at even seeds."""
    if (question.mode, question.length) == ("answer_only", 5) and question.seed % 2 == 0:
        return "many"
    slip = {5: 0, 10: 1, 40: 100}[question.length] * question.seed
    return str(int(question.truth) + slip)


@pytest.fixture(scope="module")
def asked() -> xr.Dataset:
    return hosted(slipping)


@pytest.fixture(scope="module")
def counted(tiny: Any) -> xr.Dataset:
    task = sl.tasks.find("taught_count_bernoulli")
    return sl.evaluate(tiny, task, lengths=[8, 56], seeds=8)


@pytest.fixture(scope="module")
def mute(tiny: Any) -> xr.Dataset:
    return sl.evaluate(
        tiny, sl.tasks.find("sum"), lengths=[4, 8], seeds=1, max_new_tokens=4,
        mode=["answer_only", "cot"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def joined() -> xr.Dataset:
    """Made up: four lengths, one of each verdict."""
    facts = {"model": "<b>", "task": {"name": "count & tell"}}
    over = ("length",)
    share = np.array([1, 0.75, 0.25, 0])
    shares = {"accuracy": share, "accuracy_low": share * 0.5, "accuracy_high": 0.5 + share * 0.5}
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
    verdict = ["read out", "represented, not read out", "no more than a baseline", "collapsed"]
    found = xr.Dataset(
        {name: (over, one, {"units": "1"}) for name, one in shares.items()}
        | {"distance": (("length", "seed"), distance, {"units": "1"}), "verdict": (over, verdict)},
        coords={"length": [10, 20, 60, 100], "seed": [0, 1, 2]},
    )
    return sealed(found, facts)


@pytest.fixture(scope="module")
def probed() -> xr.Dataset:
    r2 = np.array([[-2e8, np.nan, 0.2], [0.5, np.nan, -0.1]])
    found = xr.Dataset(
        {"r2": (("layer", "length"), r2), "r2_y": (("length",), [0.9, np.nan, 0.8])},
        coords={"layer": [0, 1], "length": [8, 16, 64]},
    )
    return sealed(found, {"model": "tiny-gemma", "task": {"name": "counting"}})


def traces(figure: go.Figure, yaxis: str, mode: str = "lines+markers") -> list[Any]:
    return [trace for trace in figure.data if trace.yaxis == yaxis and trace.mode == mode]


def test_answers_in_another_form_have_a_line_of_their_own() -> None:
    """Where both shares are the same there is one line."""
    found = hosted(lambda q: f"There are {q.truth} ones." if q.seed else q.truth, mode=["cot"])
    figure = sl.figures.accuracy_by_length({"a": found, "b": hosted(lambda q: q.truth, mode=["cot"])})
    assert [trace.name for trace in figure.data] == ["a", "a, in the requested form", "b"]
    assert values(figure.data[0].y).tolist() == values(figure.data[2].y).tolist() == [1, 1, 1]
    assert values(figure.data[1].y).tolist() == found["accuracy_strict"].values[0].tolist() == [0.25] * 3
    assert "25 % right of 4 answers" in figure.data[1].text[0]
    assert "100 % right of 4 answers" in figure.data[0].text[0]


def test_answers_that_were_not_read_are_seen(mute: xr.Dataset, asked: xr.Dataset) -> None:
    assert bool((mute["unread"].sum("why") == 1).all())
    figure = sl.figures.error_by_length({"mute": mute, "hosted": asked})
    assert "no answer was read" in [note.text for note in figure.layout.annotations]
    (dots,) = [trace for trace in figure.data if trace.name == "single answers" and trace.showlegend is None]
    assert len(dots.x) > 0  # else the legend leaves it out
    (below,) = [trace for trace in traces(figure, "y2") if trace.name == "chain of thought"]
    assert values(below.y).tolist() == [1, 1]
    assert "100 % not read" in below.text[0]
    accuracy = sl.figures.accuracy_by_length(mute)
    assert values(accuracy.data[0].y).tolist() == [0, 0]
    assert "0 % right of 1 answer<br>0 % in the requested form<br>100 % not read" in accuracy.data[0].text[0]
    frequencies = sl.figures.answer_frequencies(sl.results.answer_frequencies(mute))
    bars = [bar for bar in frequencies.data if bar.name == "not read"]
    assert [values(bar.y).tolist() for bar in bars] == [[1], [1]]
    assert [bar.text for bar in bars] == [("100 %",), ("100 %",)]


def test_texts_have_frequencies_and_no_errors(tiny: Any) -> None:
    """Long runs of one digit look like numbers, and are none."""
    task = sl.tasks.find("taught_copy_repeated")
    copied = sl.evaluate(tiny, task, lengths=[4, 16])
    with pytest.raises(InputError, match="not numbers and have no error. Draw accuracy_by_length"):
        sl.figures.error_by_length(copied)
    figure = sl.figures.answer_frequencies(sl.results.answer_frequencies(copied))
    said, _, unread = figure.data
    assert values(said.x).tolist() == [0, 1]
    assert list(figure.layout.xaxis.labelalias.values()) == ["1111", "1111111… (16)"]
    assert said.hovertext[1] == f"{'1' * 16}: given to 50 % of questions, right for 50 %"
    assert unread.text == ("0 %",)  # and not what is left of a subtraction


def test_numbers_far_from_every_right_answer_are_counted_in_the_title(asked: xr.Dataset) -> None:
    counts = sl.results.answer_frequencies(asked)
    figure = sl.figures.answer_frequencies({"<s>": counts})
    assert figure.data[3].hovertext[0] == "5: given to 33.3 % of questions, right for 33.3 %"
    beyond = "25 % of answers are numbers beyond this axis"  # 140, 240 and 340, of 12 answers
    assert counts["said"].sel(mode="cot", value=["140", "240", "340"]).sum() == pytest.approx(0.25)
    assert figure.layout.annotations[1].text == f"&lt;s&gt;, chain of thought, {beyond}"
    assert list(figure.layout.xaxis.range) == [4, 41]


def test_collapse_vs_readout_draws_distances_and_their_zeros(joined: xr.Dataset) -> None:
    figure = sl.figures.collapse_vs_readout(joined)
    (line,), (band,) = traces(figure, "y3"), traces(figure, "y3", "none")
    ground = 0.005  # half of the least there is
    assert values(line.y).tolist() == [2, 0.2, 0.01, ground]
    assert values(band.y).tolist() == [4, 0.4, 0.02, ground, ground, ground, 0.1, 1]
    assert list(line.marker.symbol)[2:] == ["circle", "triangle-down"]
    assert line.text[2:] == (
        "D, 60 items: median 0.01, 0 to 0.02",
        "D, 100 items: median 0, 0 to 0",
    )
    assert "no R² at 10 items · ▼ R² is below 0 · ▼ D is 0" in figure.layout.title.subtitle.text
    r2 = next(trace for trace in figure.data if trace.name == "R² of the probe of y")
    assert list(r2.marker.symbol) == ["circle", "circle", "circle", "triangle-down"]
    without = joined.drop_vars([name for name in joined if str(name).startswith(("r2", "probe"))])
    assert "no probe at these lengths" in sl.figures.collapse_vs_readout(without).layout.title.subtitle.text
    gone = joined.copy(deep=True)
    gone["distance"][:] = 0
    assert values(traces(sl.figures.collapse_vs_readout(gone), "y3")[0].y).tolist() == [1, 1, 1, 1]


def test_verdicts_are_a_strip(joined: xr.Dataset) -> None:
    figure = sl.figures.collapse_vs_readout(joined)
    boxes = [trace for trace in figure.data if trace.type == "bar"]
    reach = {box.name: (float(box.x[0] - box.width / 2), float(box.x[0] + box.width / 2)) for box in boxes}
    assert reach == {
        "read out": (6.5, 13.5),
        "represented, not read out": (16.5, 23.5),
        "collapsed": (96.5, 103.5),
        "no more than a baseline": (56.5, 63.5),
    }
    assert all(box.showlegend and box.yaxis == "y4" for box in boxes)
    assert {figure.layout[box.legend].y for box in boxes} == {figure.layout.yaxis4.domain[1]}  # the strip has its own
    assert len({box.marker.color for box in boxes}) == 4
    other = restated(joined.assign(verdict=("length", ["<b>?</b>"] * 4)), {})
    (box,) = [trace for trace in sl.figures.collapse_vs_readout(other).data if trace.type == "bar"]
    assert box.name == "&lt;b&gt;?&lt;/b&gt;"
    assert values(box.customdata).tolist() == [10, 20, 60, 100]


def test_what_the_probe_cannot_say_is_white_or_left_out(probed: xr.Dataset) -> None:
    figure = sl.figures.probe(probed)
    (cells,) = figure.data
    assert (list(cells.x), list(cells.y), cells.colorbar.ticktext[0]) == (["8", "16", "64"], ["0", "1", "y"], "≤ 0")
    assert figure.layout.title.subtitle.text == "tiny-gemma · counting · white: no R²"
    twins = restated(probed.assign(r2_random_model=probed["r2"] / 2, r2_random_model_y=("length", [1, 0, 0.99])), {})
    assert [cells.showscale for cells in sl.figures.probe(twins).data] == [False, True]
    none = restated(twins.assign(r2_random_model_y=("length", [np.nan] * 3)), {})
    assert len(sl.figures.probe(none).data) == 1, "no twin was asked for"


def test_dimensions_too_many_are_refused(asked: xr.Dataset) -> None:
    both = put_together({"one": asked, "two": asked}, "model")
    with pytest.raises(InputError, match=r"has no 'accuracy' over \(length, mode\)"):
        sl.figures.accuracy_by_length(both)
    chosen = sl.figures.accuracy_by_length(both.sel(model="two"))
    np.testing.assert_array_equal(values(chosen.data[0].y), asked["accuracy"][0])
