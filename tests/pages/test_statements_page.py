"""The page of the theory is what its functions say today, and every exhibit is what it is shown as."""

from pathlib import Path

import pytest

import squashlens as sl

EXHIBITS = sl.theorems.gallery()
COMMAND = "run analyses/statements.py --out docs"


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda e: e.check.__name__)
def test_an_exhibit_holds_at_every_size_and_not_without_its_premise(
    exhibit: sl.theorems.Exhibit,
) -> None:
    assert {one.verdict for one in exhibit.kept} == {
        "consistent" if exhibit.kept[0].steps else "holds"
    }
    assert exhibit.broken.verdict == "premise violated"
    assert [one.at for one in exhibit.rows] == list(exhibit.at)
    assert len(exhibit.at) >= 5
    assert list(exhibit.at) == sorted(set(exhibit.at))


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(1, 4))
def test_whatever_is_drawn(seed: int) -> None:
    for exhibit in sl.theorems.gallery(seed):
        assert {one.verdict for one in exhibit.kept} <= {"holds", "consistent"}, (
            exhibit.kept
        )
        assert exhibit.broken.verdict == "premise violated"


def test_the_page_in_the_documents_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "theory.md"
    assert page.read_text(encoding="utf-8") == sl.theorems.statements_page(EXHIBITS), (
        COMMAND
    )
