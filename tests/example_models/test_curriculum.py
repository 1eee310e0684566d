"""What the bundled model is taught is spelled as in the paper."""

from hypothesis import given
from hypothesis import strategies as st

from squashlens.example_models.curriculum import spell


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_commas_after_every_third_digit_never_last(digits: list[int]) -> None:
    text = spell(digits, commas=True)
    assert text.replace(",", "") == spell(digits, commas=False)
    assert [len(group) for group in text.split(",")][:-1] == [3] * (
        (len(digits) - 1) // 3
    )
    assert not text.endswith(",")
