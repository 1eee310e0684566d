"""Prescriptions against collapse by hand, closed forms of chance and cost, and searches that are broken off."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.remedies import search as module
from tests import odd
from tests.references import last_streams

CONTENT = [7, 8, 7, 7, 9, 9, 8, 7, 8, 8, 9]
LENGTHS = [4, 7, 8, 11]
BUILT: dict[str, Any] = {"prefix": [2, 5], "suffix": [20], "alphabet": [7, 8, 9]}


@pytest.fixture(scope="module")
def digits(tiny: Any) -> Any:
    return sl.prompts.bernoulli(tiny, 9, seed=3, prefix="How many ones are in the following sequence?", suffix="=")


@pytest.fixture(scope="module")
def prescribed(tiny: Any, digits: Any) -> xr.Dataset:
    how: Any = {"answer": odd.counted, "n_samples": 2, "lengths": [5, 6, 9], "seed": 1, "n_placements": 5}
    return odd.together(
        "separator search",
        lambda: sl.search_separators(tiny, digits, separator=[",", "dog"], every=[4, 2], **how),
    )


@pytest.fixture
def llama(bridge_of: Any) -> tuple[Any, Any]:
    model = bridge_of("llama")
    return model, sl.prompts.build(model, CONTENT, **BUILT)


def searched(llama: tuple[Any, Any], **options: Any) -> xr.Dataset:
    model, sequence = llama
    options = {"separator": [13, 14], "every": [2, 3], "lengths": LENGTHS, "n_placements": 5} | options
    return sl.search_separators(model, sequence, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "norm"), [("llama", "l1"), ("gpt2", "linf"), ("gemma2", "l1")])
def test_the_grid_equals_plain_passes(family: str, norm: Any, bridge_of: Any, plain_of: Any) -> None:
    model, plain = bridge_of(family), plain_of(family)
    sequence = sl.prompts.build(model, CONTENT, prefix=[2, 5], suffix=[20])
    ds = sl.search_separators(
        model,
        sequence,
        separator=[13],
        every=[2, 3],
        n_placements=5,
        lengths=[3, 4, 11],
        norm=norm,
        scale="absolute",
    )
    for every in (2, 3):
        for length in (3, 4, 11):
            body: list[int] = []
            for number, token in enumerate(CONTENT[:length], start=1):
                body += [token, 13] if number % every == 0 and number < length else [token]
            v, star = ([2, 5, *body, *more, 20] for more in ([], body[-1:]))
            streams = [last_streams(plain, ids).double()[3] for ids in (v, star)]
            expected = np.linalg.norm((streams[0] - streams[1]).numpy(), ord={"l1": 1, "linf": np.inf}[norm])
            found = ds["distance"].sel(separator="13", every=every, length=length).item()
            scale = np.linalg.norm(streams[0].numpy(), ord={"l1": 1, "linf": np.inf}[norm])
            assert abs(found - expected) <= 1e-5 * scale
    assert "accuracy" not in ds
    assert ds["cost"].values.tolist() == [[5 / 11, 3 / 11]]  # none behind the last
    assert ds["separation"].attrs["units"] == "model units"


def test_separators_of_the_sequence_are_taken_out(llama: Any) -> None:
    model, plain = llama
    with_commas = plain.every(4, 17)
    found, expected = searched((model, with_commas)), searched((model, plain))
    for name in expected.data_vars:
        np.testing.assert_array_equal(found[name], expected[name])
    assert sl.results.provenance(found)["sequence"]["separators_after"] == []


@pytest.mark.slow
def test_chance_is_random_placement(llama: Any) -> None:
    """As many of the same tokens at places drawn with the seed: reproducible, different, and never the periodic."""
    model, sequence = llama
    first, other = (searched(llama, seed=seed) for seed in (4, 5))
    np.testing.assert_array_equal(first["separation"], other["separation"])
    assert not np.isin(first["random"], other["random"]).any()
    token, every = int(first["best_separator"].item()), int(first["best_every"])
    for number, found in enumerate(first["random"].values):
        told = []
        for length in LENGTHS:  # as many as the periodic ones have there, drawn for this length
            rng = Random(f"placements 4 {number} {length}")
            places = sorted(rng.sample(range(1, length), (length - 1) // every))
            form = sequence.separated([token] * len(places), places)
            ds = sl.collapse(model, form, lengths=[length], scale="relative")
            told.append(ds["distance"].sel(layer=3).item())
        assert found == pytest.approx(np.median(told), rel=1e-4)
    assert first["separation"].values.max() not in first["random"].values
    assert len(np.unique(first["random"])) >= 4


@pytest.mark.parametrize(("seed", "placements"), [(0, 5), (1, 9), (2, 25)])
def test_the_interval_is_students_and_the_rank_is_counted(
    seed: int, placements: int, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On distances that are made up, some as good as the best."""
    rng = np.random.default_rng(seed)
    made = iter([3.0, *rng.uniform(3, 5, 4), *rng.uniform(1, 6, placements)])

    def collapse(_model: Any, form: Any, **options: Any) -> xr.Dataset:
        value = next(made)
        return xr.Dataset({"distance": (("layer", "length"), [[0.0] * 4, [value, value, 9.0, 0.0]])})

    monkeypatch.setattr(module, "collapse", collapse)
    ds = searched(llama, n_placements=placements)
    rng = np.random.default_rng(seed)
    grid, random = rng.uniform(3, 5, 4), rng.uniform(1, 6, placements)
    np.testing.assert_array_equal(ds["separation"].values.ravel(), grid)
    np.testing.assert_array_equal(ds["random"], random)
    np.testing.assert_allclose(ds["gain"].values.ravel(), grid / 3)
    assert ds["advantage"].item() == pytest.approx(grid.max() - random.mean())
    low, high = stats.t.interval(0.95, placements - 1, loc=random.mean(), scale=stats.sem(random))
    near = {5: 0.003, 9: 0.0005, 25: 0.0001}[placements] * (high - low) / 2  # the quantile is an expansion
    assert ds["advantage_low"].item() == pytest.approx(grid.max() - high, abs=near)
    assert ds["advantage_high"].item() == pytest.approx(grid.max() - low, abs=near)
    assert ds["random_as_good"].item() == (1 + np.sum(random >= grid.max())) / (1 + placements)
    assert 1 / (1 + placements) < ds["random_as_good"] < 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What was measured, in order; after `limit` of them the search is broken off."""

    class Count:
        def __init__(self) -> None:
            self.seen: list[Any] = []
            self.limit: int | None = None

        def __call__(self, model: Any, form: Any, **options: Any) -> xr.Dataset:
            if len(self.seen) == self.limit:
                raise KeyboardInterrupt
            self.seen.append((form.separators, form.breaks))
            return sl.collapse(model, form, **options)

    count = Count()
    monkeypatch.setattr(module, "collapse", count)
    return count


@pytest.mark.parametrize("limit", [0, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8))])
def test_a_search_goes_on_where_it_was_broken_off(limit: int, llama: Any, counted: Any, tmp_path: Path) -> None:
    """Nothing twice, and to the bit what an unbroken search finds."""
    whole = searched(llama)
    expected, counted.seen, counted.limit = counted.seen, [], limit
    assert len(expected) == 1 + 4 + 5
    path = tmp_path / "search.json"
    with pytest.raises(KeyboardInterrupt):
        searched(llama, resume=path)
    assert len(counted.seen) == limit
    assert path.exists() == (limit > 0)
    counted.limit = None
    xr.testing.assert_identical(searched(llama, resume=path), whole)
    assert counted.seen == expected
    xr.testing.assert_identical(searched(llama, resume=str(path)), whole)
    assert counted.seen == expected


def test_the_table_is_sorted(prescribed: xr.Dataset) -> None:
    table = sl.results.table(prescribed)
    assert list(table.columns) == ["separation", "gain", "cost", "accuracy"]
    assert table.index.names == ["separator", "every"]
    assert len(table) == 5
    assert table.index[-1] == ("none", 0)
    assert table["separation"][:-1].is_monotonic_decreasing
    assert table.index[0] == (prescribed["best_separator"].item(), prescribed["best_every"].item())
    for separator, every in table.index[:-1]:
        for name in table.columns:
            assert table.loc[(separator, every), name] == prescribed[name].sel(separator=separator, every=every)
    bare = [prescribed["separation_none"].item(), 1.0, 0.0, prescribed["accuracy_none"].item()]
    assert table.iloc[-1].tolist() == bare
    unasked = sl.results.table(prescribed.drop_vars(["accuracy", "accuracy_none"]))
    assert list(unasked.columns) == ["separation", "gain", "cost"]
    assert unasked.iloc[-1].tolist() == bare[:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_placements": 4}, "n_placements=4 are too few for an interval. Give at least 5"),
        ({"separator": []}, "separator= or every= is empty"),
        ({"every": [3, 11]}, "every= has 11, with which no separator is within 11 content tokens"),
        ({"separator": [","]}, "has no tokenizer"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, llama: Any, counted: Any) -> None:
    """Before anything is measured."""
    model, sequence = llama
    given_: dict[str, Any] = {"separator": [13], "every": [2], "n_placements": 5} | options
    with pytest.raises(InputError, match=message):
        sl.search_separators(model, sequence, **given_)
    assert counted.seen == []
