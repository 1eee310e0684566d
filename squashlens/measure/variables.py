"""Variables of a result: their values, and a table of what they are and in which units."""

from collections.abc import Mapping
from typing import Any

from squashlens.records.labels import Variable

# The dimensions of each variable with spaces between them, its long name, and its units.
Table = Mapping[str, tuple[str, str, str]]


def variables_of(
    table: Table, values: Mapping[str, Any], added: str = "", **inserted: Any
) -> dict[str, Variable]:
    """The variables of a table that have values.

    `inserted` has values for the fields of long names, such as {norm}; `added` is appended to every long name.
    """
    variables: dict[str, Variable] = {}
    for name, value in values.items():
        dims, long_name, units = table[name]
        text = long_name.format(**inserted) + added
        variables[name] = (tuple(dims.split()), value, text, units)
    return variables


def with_y(variables: Mapping[str, Variable]) -> dict[str, Variable]:
    """Each variable, whose last entry along `layer` is y, as two: `name` over the layers, and `name_y` for y alone."""
    split: dict[str, Variable] = {}
    for name, (dims, values, text, units) in variables.items():
        axis = dims.index("layer")
        before = (slice(None),) * axis  # all of the axes before `layer`
        without_layer = dims[:axis] + dims[axis + 1 :]
        split[name] = (dims, values[(*before, slice(-1))], text, units)
        split[f"{name}_y"] = (without_layer, values[(*before, -1)], f"{text}, y", units)
    return split
