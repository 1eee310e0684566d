"""The script that tries versions: what it reads of pytest, and the page that it has written."""

from tests.versions.__main__ import EXTRAS, ROOT, ranges


def test_the_page_is_of_the_present_ranges() -> None:
    """A range that was changed is tried again: `make versions`."""
    said = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    allowed = ranges((ROOT / "pyproject.toml").read_text(encoding="utf-8"), EXTRAS)
    missing = [f"{name} {own}" for name, own in allowed.items() if f"| {name} | {own or 'any'} |" not in said]
    assert not missing
