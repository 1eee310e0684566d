"""Which lengths and seeds are run: whole numbers of any make, and lengths that a fit can use."""

import runpy
import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import squashlens as sl
from squashlens.errors import InputError
from squashlens.synthetic import Stack, convergence, lengths_up_to, softmax_total_variation
from squashlens.synthetic.fits import tail_of
from squashlens.synthetic.stacks.draws import chosen_lengths, chosen_seeds

ANALYSES = Path(__file__).parents[2] / "analyses"
SCRIPTS = ("fig8_synthetic_convergence", "fig9_total_variation", "encodings_and_depth")


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.integers(20, 200), st.integers(20, 10**6)), st.integers(6, 80))
def test_lengths_are_even_on_a_log_scale_and_can_be_fitted(longest: int, many: int) -> None:
    found = lengths_up_to(longest, many)
    assert (found[0], found[-1]) == (10, longest)
    exact = np.geomspace(10, longest, many)
    assert all(np.abs(exact - n).min() <= 0.5 + 1e-9 for n in found)
    assert all(np.abs(np.array(found) - n).min() <= 0.5 + 1e-9 for n in exact)
    assert tail_of(found, 0.5).sum() >= 3
    if longest > 20 * many:
        assert len(found) > many / 2


def test_lengths_by_hand() -> None:
    assert lengths_up_to(100_000, 9) == [10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000]
    assert lengths_up_to(14, 40) == [10, 11, 12, 13, 14]
    assert len(lengths_up_to(10**6)) == 40


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((1000, 1), "many=1 gives too few lengths .* 6 or more"),
        ((1000, 5), "many=5 gives too few"),
        ((1000, True), "many=True is not allowed. Give a whole number"),
        ((1000, 7.0), "many=7.0 is of type float. Give a whole number"),
        ((9, 40), "longest=9 is not a length of at least 10"),
        ((99.5, 40), "longest=99.5 is of type float. Give a whole number"),
        ((10, 40), "there are 1 different lengths, .* 20 or more"),
        ((13, 40), "From 10 to longest=13 there are 4 different lengths"),
    ],
)
def test_lengths_that_no_fit_can_use_are_refused(wrong: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its own refusals come first
    with pytest.raises(InputError, match=words):
        lengths_up_to(*wrong)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_refuse_too_few_lengths(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, "--lengths", "1"])
    with pytest.raises(InputError, match="many=1 gives too few lengths"):
        runpy.run_path(str(ANALYSES / f"{script}.py"), run_name="__main__")


def test_numpys_whole_numbers_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # annotations say int, users' arrays do not
    numbers, seeds = np.array([40, 10, 80, 20]), np.arange(5)
    expected = convergence(Stack(), [10, 20, 40, 80], seeds=5, tail=1.0, progress=False)
    count: Any = np.int64(5)
    for chosen in (seeds, count, list(seeds)):
        found = convergence(Stack(), numbers, seeds=chosen, tail=1.0, progress=False)
        xr.testing.assert_identical(found, expected)
    assert sl.results.provenance(found)["call"]["lengths"] == [10, 20, 40, 80]
    softmaxes = softmax_total_variation(10 * numbers, k=5, seeds=seeds, tail=1.0)
    xr.testing.assert_identical(softmaxes, softmax_total_variation([100, 200, 400, 800], k=5, tail=1.0))
    assert lengths_up_to(*np.array([1000, 7])) == lengths_up_to(1000, 7)
    for each in (
        *chosen_lengths(numbers),
        *chosen_seeds(seeds),
        *chosen_seeds(count),
        *lengths_up_to(*numbers[[2, 0]]),
    ):
        assert type(each) is int


def test_what_is_no_whole_number_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    wrong: Any
    for wrong in (np.array([]), np.array([0, 3]), np.array([True]), np.array([3.0]), [1, "a"]):
        with pytest.raises(InputError, match="are not numbers of tokens"):
            chosen_lengths(wrong)
    for wrong in (True, np.int64(0), np.int64(-2), np.array([-1]), np.array([1, 1]), np.array([0.0]), [True, 2]):
        with pytest.raises(InputError, match="does not give any draws"):
            chosen_seeds(wrong)
