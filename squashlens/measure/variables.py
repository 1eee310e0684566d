"""Variables of a result: their values, and a table of what they are and in which units."""

from collections.abc import Mapping
from typing import Any

from squashlens.records.labels import Variable

# The long name of each variable, with its units unless it is dimensionless.
Texts = Mapping[str, str | tuple[str, str]]


def variables_over(
    dims: tuple[str, ...], values: Mapping[str, Any], texts: Texts, added: str = ""
) -> dict[str, Variable]:
    """The variables with these values over the same dimensions; `added` is added to each long name."""
    variables: dict[str, Variable] = {}
    for name, value in values.items():
        text = texts[name]
        long_name, units = (text, "1") if isinstance(text, str) else text
        variables[name] = (dims, value, long_name + added, units)
    return variables
