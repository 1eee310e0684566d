"""Every measurement, figure and hook is listed."""

import pytest

from tests.names import LISTS, missing


@pytest.mark.few(2)
@pytest.mark.parametrize("listing", LISTS)
def test_what_is_registered_is_public(listing: str) -> None:
    assert not missing(listing), "run `make names`"
