"""Figures of tokenization show every token and every distance of their Datasets and nothing else."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.measure.collapse.tokenization import repeat_tokenization as splits
from tests.splitters import splitter

PAIR, OTHER, ANEW = (
    "one more repeat adds the last token again: a pair",
    "one more repeat adds something else: no pair",
    "one more repeat changes earlier tokens: no pair",
)


def of_panel(figure: Any, number: int, kind: str) -> list[Any]:
    axis = "x" if number == 0 else f"x{number + 1}"
    return [t for t in figure.data if t.xaxis == axis and t.type == kind]


@pytest.mark.few(1)
@pytest.mark.parametrize("repeat", ["1", "one"])
@pytest.mark.parametrize("kind", ["threes", "merging", "prefixed"])
def test_boxes_spell_every_text(kind: str, repeat: str) -> None:
    ds = splits(splitter(kind), 8, repeat=repeat)
    figure = sl.figures.splits(ds)
    colours: dict[int, set[str]] = {}
    for number, form in enumerate(ds["form"].values):
        boxes = [
            (int(y), float(base), float(width), trace)
            for trace in of_panel(figure, number, "bar")
            for y, base, width in zip(trace.y, trace.base, trace.x, strict=True)
        ]
        spelt = {int(n): "".join(ds["piece"].sel(form=form, repeats=n).values) for n in ds["repeats"].values}
        fit = [n for n, pieces in spelt.items() if len(pieces) <= 22][:8]
        assert {y for y, *_ in boxes} == {*fit} | {1, 2, 3}
        for n in fit:
            row = sorted((base, width, trace.text[0], trace.marker.color) for y, base, width, trace in boxes if y == n)
            here = ds.sel(form=form, repeats=n)
            pieces = here["piece"].values[: here["tokens"].item()]
            assert [text for *_, text, _ in row] == pieces.tolist()
            np.testing.assert_array_equal([base for base, *_ in row], np.cumsum([0, *map(len, pieces[:-1])]))
            assert [width for _, width, *_ in row] == [len(piece) for piece in pieces]
            for token, (*_, colour) in zip(here["token_id"].values, row, strict=False):
                colours.setdefault(int(token), set()).add(colour)
    assert all(len(found) == 1 for found in colours.values())
    assert len({next(iter(found)) for found in colours.values()}) == len(colours)


def test_marks_say_what_one_more_does() -> None:
    ds = splits(splitter("threes"), 7)
    joined = {t.name: list(t.y) for t in of_panel(sl.figures.splits(ds), 0, "scatter")}
    assert joined == {PAIR: [], OTHER: [3, 6], ANEW: [1, 2, 4, 5, 7]}
    spaced = {t.name: list(t.y) for t in of_panel(sl.figures.splits(splits(splitter("merging"), 4)), 1, "scatter")}
    assert spaced == {PAIR: [2, 3, 4], OTHER: [1], ANEW: []}
