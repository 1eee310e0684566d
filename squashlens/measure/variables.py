"""Variables of a result: their values, and a table of what they are and in which units."""

from collections.abc import Mapping
from typing import Any

from squashlens.records.labels import Variable

# The dimensions of each variable with spaces between them, its long name, and its units.
Table = Mapping[str, tuple[str, str, str]]


def variables_of(
    table: Table, values: Mapping[str, Any], added: str = "", **said: Any
) -> dict[str, Variable]:
    """The variables of a table that have values; `said` fills the long names in, and `added` is added to each."""
    variables: dict[str, Variable] = {}
    for name, value in values.items():
        dims, long_name, units = table[name]
        text = long_name.format(**said) + added
        variables[name] = (tuple(dims.split()), value, text, units)
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
