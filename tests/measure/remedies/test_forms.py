"""The form of a sequence: which prompts have it, against the prompts that sequences of this form make."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from squashlens.measure.remedies.named_interventions import lengths_with, stated
from squashlens.sequences import GrowingSequence


@st.composite
def sequences(draw: st.DrawFn) -> GrowingSequence:
    content = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    breaks = tuple(sorted(draw(st.sets(st.integers(1, len(content))))))
    ends = [tuple(draw(st.lists(st.integers(5, 8), max_size=2))) for _ in range(2)]
    return GrowingSequence(
        "any", content, (1, 2, 3, 4), *ends, breaks, (9,) * len(breaks), draw(st.sampled_from([None, 3]))
    )


@given(sequences(), st.integers(0, 99))
def test_every_prompt_of_a_form_is_recognised_and_no_other(sequence: GrowingSequence, seed: int) -> None:
    lengths, other = range(1, len(sequence) + 1), sequence.unrelated(Random(seed))
    one, any_content = stated(sequence, drawn=False), stated(sequence, drawn=True)
    for n in lengths:
        own, drawn = (list(each.plain(n).ids(each.trunk)) for each in (sequence, other))
        assert lengths_with(one, own, lengths) == lengths_with(any_content, own, lengths) == [n]
        assert lengths_with(any_content, drawn, lengths) == [n]
        assert lengths_with(one, drawn, lengths) == ([n] if drawn == own else [])
        assert lengths_with(one, own, [k for k in lengths if k != n]) == []
        for place in range(len(own)):
            wrong = [*own[:place], 10, *own[place + 1 :]]
            assert lengths_with(any_content, wrong, lengths) == []
        assert lengths_with(any_content, [*own, 10], lengths) == []
        if sequence.ending is not None:  # which is drawn at no length
            own[sequence.position(n)] = 1
            assert lengths_with(any_content, own, lengths) == []


def test_separators_that_differ_between_lengths_have_no_form() -> None:
    scattered = GrowingSequence("any", (1, 2, 3), (1, 2), breaks=(1,), separators=(9,)).scattered("seed")
    assert stated(scattered, drawn=False) is None
    assert lengths_with(None, [1, 2], [1, 2]) == []
