"""Names for the examples in docstrings, of the library and of the tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _names_for_doctests(request: pytest.FixtureRequest) -> Iterator[None]:
    """What examples use; the bundled model is opened once for all of them."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    import torch

    import squashlens as sl
    from tests.odd import loading_once

    names = request.getfixturevalue("doctest_namespace")
    names.update(torch=torch, tmp_path=request.getfixturevalue("tmp_path"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sl, "load", loading_once(sl.load))
        patch.setenv("SQUASHLENS_PROGRESS", "0")
        yield
