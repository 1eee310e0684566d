"""Variables of a result from their values, and from a table of what they are and their units."""

from collections.abc import Mapping
from typing import Any

from squashlens.records.labels import Variable

Texts = Mapping[str, tuple[str, str]]  # the long name and units of each variable


def variables_over(
    dims: tuple[str, ...], values: Mapping[str, Any], texts: Texts
) -> dict[str, Variable]:
    """The variables with these values over the same dimensions."""
    return {name: (dims, value, *texts[name]) for name, value in values.items()}
