"""The lists of public names are those that the sources give."""

import pytest

from tests.names import LISTS, PACKAGE, ROOT, written


def listed(text: str) -> list[str]:
    """The words of a list, in whichever lines they stand."""
    return text.replace("(", " ").replace(")", " ").replace(",", " ").split()


@pytest.mark.few(2)
@pytest.mark.parametrize("listing", LISTS)
def test_the_lists_are_up_to_date(listing: str) -> None:
    text = (ROOT / PACKAGE / listing).read_text(encoding="utf-8")
    assert listed(written(ROOT, listing)) == listed(text), "run `make names`"
