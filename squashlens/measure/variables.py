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


def with_y(variables: Mapping[str, Variable]) -> dict[str, Variable]:
    """Variables whose last layer is y, each as two: one over the layers, and one for y, with `_y` after its name."""
    found: dict[str, Variable] = {}
    for name, (dims, values, text, units) in variables.items():
        axis = dims.index("layer")
        before = (slice(None),) * axis
        without_layer = dims[:axis] + dims[axis + 1 :]
        found[name] = (dims, values[(*before, slice(-1))], text, units)
        found[f"{name}_y"] = (without_layer, values[(*before, -1)], f"{text}, y", units)
    return found
