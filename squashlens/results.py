"""What to do with a result: save and open it, read its provenance, join several, and make a table.

`save` and `open` store results without a change, and `provenance` says how one was made. `concat` joins results along a
new dimension, `table` makes a table of one or several, and `answer_frequencies` counts the
answers of `evaluate_task`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from squashlens.records.files import open, save
from squashlens.records.joining import concat
from squashlens.records.provenance import provenance

if TYPE_CHECKING:
    from squashlens.measure.answers.frequencies import answer_frequencies
    from squashlens.records.tables import table

__all__ = ["answer_frequencies", "concat", "open", "provenance", "save", "table"]

# Imported at first use, since they import torch, which takes seconds and is not needed to open a file.
LATER = {
    "answer_frequencies": "squashlens.measure.answers.frequencies",
    "table": "squashlens.records.tables",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(LATER[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__]
