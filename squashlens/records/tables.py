"""Results as tables with a row for each number."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pandas as pd
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.provenance import (
    Facts,
    Result,
    merged,
    names_of,
    read,
    require_done,
    subject_of,
    without_provenance,
)

ABOUT = ["label", "model", "prompt", "hooks"]
VALUE = ["variable", "meaning", "value", "unit"]
# pandas's kinds of numbers in columns that have no value in some rows.
NULLABLE = {"b": "boolean", "i": "Int64", "u": "UInt64"}


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
        as `position`, `token` and `layer`, `variable`, `meaning` (its long name, which has the options that define it),
        `value` and `unit`. Where the result has labels called `model`, `prompt` or `hooks`, these stand in the column;
        numbers of prompts are replaced by the prompts. Each variable has rows for its own dimensions only, and no value
        in the columns of others. A coordinate called like another of these columns gets an underscore. Truth values are
        1 and 0. Texts, such as answers, and the padding of shorter prompts are left out.

    Raises:
        InputError: no results, or a result without numbers.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> bound, null = sl.path_bound(model, "11 ="), sl.path_bound(model, "11 =", attention="uniform")
    >>> found = sl.results.table({"bound": bound, "null": null})
    >>> found.columns.tolist()
    ['label', 'model', 'prompt', 'hooks', 'position', 'token', 'token_id', 'variable', 'meaning', 'value', 'unit']
    >>> found.pivot(index=["position", "token"], columns="label", values="value").shape
    (4, 2)
    """
    if isinstance(result, xr.DataArray | xr.Dataset):
        return _in_order(_frames(result))
    if not result:
        remedy = "Give a result, or a dict of results by label."
        raise InputError("result= is empty.", remedy)
    frames: list[pd.DataFrame] = []
    for label, part in result.items():
        for frame in _frames(part):
            frames.append(frame.assign(label=label))
    return _in_order(frames)


def long_table(result: Result) -> pd.DataFrame:
    """One row for each number or text of a result: the name of its variable, its labels, and its `value`."""
    frames = []
    for name, values in as_dataset(result).data_vars.items():
        frame = rows_of(without_provenance(values), ["variable", "value"])
        frames.append(frame.assign(variable=str(name)))
    return pd.concat(frames, ignore_index=True)


def rows_of(values: xr.DataArray, taken: list[str]) -> pd.DataFrame:
    """One row for each entry: its coordinates, then its `value`. A coordinate with a `taken` name gets an underscore.

    Whole numbers and truth values among the coordinates keep their kind where they are put below rows without them.
    """
    names = set(taken) & (set(values.dims) | set(values.coords))
    for name in names:
        values = values.rename({name: f"{name}_"})
    values = values.rename("value")
    if values.ndim:
        frame = values.to_dataframe().reset_index()
    else:  # a number without dimensions has one row, which has no label
        frame = values.expand_dims("row").to_dataframe().reset_index(drop=True)
    labels = frame.columns.drop("value")
    kinds = {name: NULLABLE.get(frame[name].dtype.kind, object) for name in labels}
    return frame.astype(kinds).reindex(columns=[*labels, "value"])


def as_dataset(result: Result) -> xr.Dataset:
    """A result as a Dataset; an array without a name, or called like one of its coordinates, becomes `value`."""
    if isinstance(result, xr.Dataset):
        return result
    if result.name is None or result.name in result.coords:
        return result.to_dataset(name="value")
    return result.to_dataset()


def _frames(result: Result) -> list[pd.DataFrame]:
    """The rows of each variable of numbers."""
    require_done(result)
    frames = []
    dataset = as_dataset(result)
    for name, values in dataset.data_vars.items():
        if values.dtype.kind in "biuf":
            others = set(dataset.dims) - set(values.dims)
            frames.append(_rows(values, str(name), others))
    if not frames:
        cause = "This result has no numbers: its variables are texts."
        raise InputError(cause, "Use result.to_dataframe().")
    return frames


def _rows(values: xr.DataArray, name: str, others: set[Any]) -> pd.DataFrame:
    """The numbers of one variable, with what they belong to; no value for `others`, dimensions of other variables."""
    frame = rows_of(values, VALUE)
    if "n_tokens" in frame and "position" in frame:  # without the padding of prompts
        frame = frame.query("position < n_tokens")
    # The provenances are columns of texts, which the columns about each row replace.
    about = _about_rows(frame.reindex(columns=names_of(values)))
    frame = frame.drop(columns=names_of(values))
    # A label called like one of these columns stands in it.
    for column in ("model", "hooks"):
        if column not in frame and column not in others:
            frame[column] = about[column]
    frame["prompt"] = _prompts(frame, about["subject"])
    return frame.assign(
        variable=name,
        meaning=str(values.attrs.get("long_name", "")),
        value=frame["value"].astype(float),
        unit=str(values.attrs.get("units", "")),
    )


def _about_rows(texts: pd.DataFrame) -> pd.DataFrame:
    """What the provenances of each row say of the model, the hooks and what was measured; each text is read once.

    `texts` has a column for each provenance of the result, mostly one.
    """
    facts_in = cache(_facts_in)
    rows = [facts_in(tuple(row)) for row in texts.to_numpy(dtype=object)]
    return pd.DataFrame(rows, texts.index, ["model", "hooks", "subject"])


def _facts_in(texts: tuple[Any, ...]) -> tuple[str, str, Any]:
    """The model, its hooks and what was measured, by the provenances of one row."""
    facts = merged([read(text) for text in texts])
    return _as_text(facts.get("model")), _hooks_of(facts), subject_of(facts)


def _hooks_of(facts: Facts) -> str:
    """The names of the hooks that were on the model; those of several parts one after another."""
    names: list[str] = []
    for name in facts.get("ambient_hooks", []):
        names += name if isinstance(name, list) else [name]
    return "; ".join(dict.fromkeys(names))


def _prompts(frame: pd.DataFrame, subjects: Any) -> Any:
    """What each row is of: its own label `prompt`, if that is text, or else the prompt, the sequence or the task.

    A label that is a number is that of one of the prompts of the call, as in `subjects`.
    """
    if "prompt" not in frame:
        return subjects.map(_as_text)
    if not pd.api.types.is_numeric_dtype(frame["prompt"]):
        return frame["prompt"]
    return subjects.combine(frame["prompt"], _numbered)


def _numbered(subject: Any, number: int) -> str:
    """The prompt of this number, where a call had several, which are texts or lists of token ids."""
    # A list of whole numbers is one prompt, as token ids.
    has_several = isinstance(subject, list) and not isinstance(subject[0], int)
    return _as_text(subject[number] if has_several else subject)


def _as_text(value: Any) -> str:
    """A prompt or name as text; several with commas, and token ids as a list."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ", ".join(dict.fromkeys(value))
    return str(value)


def _in_order(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables below each other, with the columns of all."""
    whole = pd.concat(frames, ignore_index=True)
    about = pd.Index(ABOUT).intersection(whole.columns, sort=False)
    labels = whole.columns.difference(ABOUT + VALUE, sort=False)
    return whole.reindex(columns=[*about, *labels, *VALUE])
