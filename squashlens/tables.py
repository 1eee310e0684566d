"""Results as tables with a row for each number."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.facts import joints, read_facts, subjects
from squashlens.records.joining import restored
from squashlens.records.results import is_measured, labels_of, stored_facts
from squashlens.saving.stored import Result, as_dataset, rows_of

FIRST, LAST = (
    ("label", "model", "prompt", "hooks"),
    ("variable", "meaning", "value", "unit"),
)


@validated
def table(
    result: xr.DataArray | xr.Dataset | Mapping[str | int | float, Result],
) -> pd.DataFrame:
    """A result, or several by label, as one table with a row for each number.

    Args:
        result: a result of squashlens, or a dict of results by label, which may be of different measurements.

    Returns:
        DataFrame. Its columns are `label` (for several results), `model`, `prompt` (the prompt, or the name of the
        sequence or task), `hooks` (hooks that were on the model, with semicolons), the coordinates of the result, such
        as `position`, `token` and `layer`, `variable`, `meaning` (its long name, which has the options that define it;
        that of a derived result begins with "derived from: "), `value` and `unit`. Each variable has rows for its own
        dimensions only, and no value in the columns of others. A coordinate called like another of these columns gets
        an underscore, such as labels called `model`. Truth values are 1 and 0. Texts, such as answers, and the padding
        of shorter prompts are left out.

    Raises:
        InputError: no results, or a result without provenance or without numbers.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> bound, null = sl.path_bound(model, "11 ="), sl.path_bound(model, "11 =", attention="uniform")
    >>> found = sl.results.table({"bound": bound, "null": null})
    >>> found.columns.tolist()
    ['label', 'model', 'prompt', 'hooks', 'position', 'token', 'token_id', 'variable', 'meaning', 'value', 'unit']
    >>> found.pivot(index=["position", "token"], columns="label", values="value").shape
    (4, 2)
    """
    several = {"": result} if isinstance(result, Result) else result
    if not several:
        raise InputError(
            "result= is empty.", "Give a result, or a dict of results by label."
        )
    frames = {label: _long(restored(part)) for label, part in several.items()}
    labelled = [frame.assign(label=label) for label, frame in frames.items()]
    return frames[""] if isinstance(result, Result) else _below(labelled)


def _below(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables below each other, with the columns of all."""
    columns = dict.fromkeys(name for frame in frames for name in frame.columns)
    between = [name for name in columns if name not in (*FIRST, *LAST)]
    order = [*(name for name in FIRST if name in columns), *between, *LAST]
    return pd.concat(frames, ignore_index=True).reindex(columns=order)


def _long(result: Result) -> pd.DataFrame:
    """One row for each number of a result."""
    whole = as_dataset(result)
    origin = "" if is_measured(result) else "derived from: "
    frames = [
        _rows(part, stored, str(name), origin)
        for name, values in whole.data_vars.items()
        if values.dtype.kind in "biuf"
        for stored in [stored_facts(whole[[name]])]
        for part in _parts(values, stored)
    ]
    if not frames:
        raise InputError(
            "This result has no numbers: its variables are texts.",
            "Use result.to_dataframe().",
        )
    return _below(frames)


def _parts(values: xr.DataArray, stored: dict[str, Any]) -> Iterator[xr.DataArray]:
    """The values of each part of a joined result, whose models and prompts may differ, as far as they have parts."""
    dim = next((dim for dim in joints(stored) if dim in values.dims), None)
    if dim is None:
        yield values
    for place in range(values.sizes[dim] if dim else 0):
        yield from (
            part.expand_dims(dim)
            for part in _parts(restored(values.isel({dim: place})), stored)
        )


def _rows(
    values: xr.DataArray, stored: dict[str, Any], name: str, origin: str
) -> pd.DataFrame:
    """The numbers of one variable, with what they belong to; `origin` stands before the long name."""
    facts = read_facts(stored, labels_of(values))
    frame = rows_of(values, (*FIRST, *LAST))
    subject = next(iter(subjects(facts).values()), None)
    texts = (
        subject
        if isinstance(subject, list)
        and not all(isinstance(part, int) for part in subject)
        else None
    )
    prompt: Any = _as_text(subject)
    if "prompt_" in frame and pd.api.types.is_numeric_dtype(
        frame["prompt_"]
    ):  # the number of a prompt
        places = frame.pop("prompt_")
        if texts is not None and (places < len(texts)).all():
            prompt = [_as_text(texts[place]) for place in places]
    frame.insert(0, "model", _as_text(facts.get("model")))
    frame.insert(1, "prompt", prompt)
    frame.insert(
        2, "hooks", "; ".join(dict.fromkeys(_flatten(facts.get("ambient_hooks"))))
    )
    units = str(values.attrs.get("units", ""))
    meaning = origin + str(values.attrs.get("long_name", ""))
    return frame.assign(
        value=frame["value"].astype(float), variable=name, meaning=meaning, unit=units
    )


def _flatten(names: Any) -> list[str]:
    """Names in a list, or in the lists of several parts."""
    if isinstance(names, list):
        return [name for part in names for name in _flatten(part)]
    return [str(names)] if names else []


def _as_text(value: Any) -> str:
    """A prompt or name as text; several with commas, and token ids as a list."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(part, str) for part in value)
    ):
        return ", ".join(dict.fromkeys(value))
    return "" if value is None else value if isinstance(value, str) else str(value)
