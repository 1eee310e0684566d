"""Which lengths and seeds are run: whole numbers of any make, and lengths that a fit can use."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.errors import InputError
from squashlens.synthetic import lengths_up_to
from squashlens.synthetic.fits import tail_of


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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((1000, 5), "many=5 give too few lengths"),
        ((9, 40), "longest=9 and many=40 give"),
        ((13, 40), "longest=13 and many=40 give too few"),
    ],
)
def test_lengths_that_no_fit_can_use_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        lengths_up_to(*wrong)
