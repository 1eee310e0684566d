"""An atlas: the same battery of measurements for every model of a manifest, in one append-only data set.

    models.yaml          the manifest: for each model its name for `load`, dtype, licence and pin
    atlas/store/         the cells, as of any study
    atlas/data/*.parquet a file for each model and state of its cells, which is never changed
    atlas/README.md      the card of the data set

The battery runs on each model and on a random model, the same architecture with random weights. Each number is
taken from the result of one model, so that the last layer is that model's own, however deep others are.
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from squashlens._typing import EngineName
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, SquashlensError
from squashlens.records.results import versions
from squashlens.saving.files import write
from squashlens.study.battery import BATTERY, COLUMNS, WEIGHTS, draw, ends, numbers
from squashlens.study.cells import Cell
from squashlens.study.describing.description import from_yaml
from squashlens.study.describing.measurements import call
from squashlens.study.places import Folder, extra, place_of
from squashlens.study.study import Study

ABOUT = ("checkpoint", "licence", "dtype", "cell", "squashlens", "torch", "transformers")


@validated
@dataclass(frozen=True)
class Entry:
    """A model of a manifest. `pin` is the commit or the digest of files that `Atlas.pin` found."""

    model: str
    licence: str
    dtype: str = "float32"
    quantize: str | None = None
    pin: str | None = None
    expects: Mapping[str, float] | None = None  # cost, for the reader


class Atlas:
    """The same battery of measurements for many models, each beside a random model, in one append-only data set.

    The manifest is a YAML file with ``models:``, for each label an entry with `model` (what `load` takes), `licence`,
    `dtype`, `quantize` and `pin`. `pin` writes the commit of a model on the hub, or the digest of a folder's files, and
    `run` refuses a checkpoint with another. Everything is in one folder: cells in a store as of a `Study`, the data set
    as Parquet files that are added and never changed, and its card.

    Args:
        folder: folder of the atlas.
        models: the manifest, needed for `pin` and `run`.

    Raises:
        InputError: a manifest that cannot be read, or an entry that is wrong.

    >>> import squashlens as sl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(sl.Atlas(folder).table())
    0
    """

    @validated
    def __init__(self, folder: str | Path = "atlas", models: str | Path | None = None) -> None:
        self.place, self.manifest = Folder(Path(folder).expanduser()), None if models is None else Path(models)
        self.entries: dict[str, Entry] = {}
        if self.manifest is not None:
            given = from_yaml(self.manifest)
            if not isinstance(given, Mapping) or not isinstance(given.get("models"), Mapping):
                raise InputError(
                    f"{str(models)!r} has no mapping `models`.", "Give for each label: model, licence, dtype."
                )
            self.entries = {str(label): call(Entry, one, f"models: {label}") for label, one in given["models"].items()}

    def pin(self) -> pd.DataFrame:
        """Write into the manifest which checkpoint each model has now, where no pin is written yet.

        Comments at the beginning of the file stay.

        Returns:
            Table with the label, model and pin of each entry, or the reason why it has none.
        """
        import yaml

        file, rows, found = self._manifest(), [], {}
        for label, entry in self.entries.items():
            pin, reason = entry.pin, ""
            if pin is None:
                pin, reason = _checkpoint(entry)
            given = {name: value for name, value in vars(entry).items() if value is not None}
            found[label] = given | ({"pin": pin} if pin else {})
            rows.append({"label": label, "model": entry.model, "pin": pin, "reason": reason})
        head = re.match(r"(#.*\n|\s*\n)*", file.read_text(encoding="utf-8"))
        text = yaml.safe_dump({"models": found}, sort_keys=False, allow_unicode=True, width=120)
        write(file, ((head[0] if head else "") + text).encode())
        return pd.DataFrame(rows)

    @validated
    def run(
        self, *, engine: EngineName = "local", workers: int = 1, threads: int = 1, device: str | None = None,
        resources: Mapping[str, Any] | None = None, retry: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Measure the models of the manifest, and add to the data set what is new.

        A model that cannot be reached, or has another checkpoint than its pin, is left out with the reason.

        Args:
            engine: as in `Study.run`.
            workers: as in `Study.run`.
            threads: as in `Study.run`.
            device: as in `Study.run`.
            resources: as in `Study.run`.
            retry: also compute the cells that have failed before.

        Returns:
            Table with a row for each model: its cells, how many are done and failed, the number of rows that were
            added to the data set, and the reason why a model was left out or its first cell failed.
        """
        self._manifest()
        reasons = {label: _refusal(entry) for label, entry in self.entries.items()}
        grids = {label: _grids(label, entry) for label, entry in self.entries.items() if not reasons[label]}
        rows: list[dict[str, Any]] = [{"label": label, "reason": reason} for label, reason in reasons.items() if reason]
        if grids:
            study = Study([grid for each in grids.values() for grid in each], self.place.root / "store")
            study.run(engine=engine, workers=workers, threads=threads, device=device, resources=resources, retry=retry)
            failed = study.store.failures()
            for label, own in grids.items():
                cells = [cell for cell in study.cells if cell.grid in {grid["name"] for grid in own}]
                done = [cell for cell in cells if study.store.read(cell.key) is not None]
                why = [failed[cell.key]["reason"] for cell in cells if cell.key in failed]
                rows.append({
                    "label": label, "cells": len(cells), "done": len(done), "failed": len(why),
                    "added": self._add(label, self.entries[label], done, study) if done else 0,
                    "reason": why[0] if why else "",
                })  # fmt: skip
            _write_card(self.place)
        counts = ["cells", "done", "failed", "added"]
        table = pd.DataFrame(rows).reindex(columns=["label", *counts, "reason"])
        return table.fillna(dict.fromkeys(counts, 0)).astype(dict.fromkeys(counts, int))

    def table(self) -> pd.DataFrame:
        """All numbers of the data set, the newest of each model.

        Returns:
            Table with `model`, `weights` (trained or untrained), `quantity`, `condition`, `x` (a length or distance),
            `value`, the ends `low` and `high` of its interval, `units`, and where it comes from.
        """
        return _newest(self.place)

    @validated
    def compare(self, model: str) -> pd.DataFrame:
        """Where one model stands among the others of the data set.

        Args:
            model: label of the model.

        Returns:
            Table with a row for each quantity and condition: the model's value, that of its random model, the median
            and range of the other trained models, and the share of these that are lower. Of a curve over lengths or
            distances, the last value.
        """
        table = self.table()
        if model not in set(table["model"]):
            raise InputError(f"The atlas has no model {model!r}.", f"It has: {', '.join(table['model'].unique())}.")
        by = ["quantity", "condition", "weights", "model"]
        values: Any = ends(table).set_index(by)["value"].unstack(["weights", "model"])
        values = values.dropna(how="all", subset=[column for column in values if column[0] == "trained"])
        own, others = values[("trained", model)], values["trained"].drop(columns=model)
        columns = {
            "value": own, "untrained": values.get(("untrained", model), np.nan), "others_median": others.median(axis=1),
            "others_low": others.min(axis=1), "others_high": others.max(axis=1),
            "share_lower": others.lt(own, axis=0).sum(axis=1) / others.count(axis=1), "others": others.count(axis=1),
        }  # fmt: skip
        return pd.DataFrame(columns, index=values.index).reset_index()

    @validated
    def figure(self, model: str | None = None) -> go.Figure:
        """All models in one figure: a panel for each quantity, with random models dotted or hollow.

        Args:
            model: label of a model to draw in colour before the others; by default each has a colour of its own.

        Returns:
            The figure.
        """
        return draw(self.table(), model)

    @validated
    def page(self, out: str | Path, model: str | None = None) -> Path:
        """Write the figure and the tables to a page.

        Args:
            out: the .html file to write.
            model: label of a model to draw before the others, with a table of where it stands.

        Returns:
            The path.
        """
        table = self.table()
        parts = [self.figure(model).to_html(full_html=False, include_plotlyjs=True)]
        parts += [self.compare(model).to_html(index=False, float_format="%.3g")] if model else []
        parts.append(_models(table).to_html(index=False))
        head = "<!DOCTYPE html><meta charset='utf-8'><title>Atlas</title><h1>Atlas of models</h1>"
        return write(out, (head + "\n".join(parts)).encode())

    @validated
    def publish(self, to: str) -> list[str]:
        """Copy the data set and its card to a folder or URL. Files that are there already stay as they are.

        Args:
            to: a folder, or a URL that fsspec can open, such as ``hf://datasets/owner/name``.

        Returns:
            The names of the files that were added.

        Raises:
            InputError: a file of the same name has other content there.
        """
        there = place_of(to)
        added = _copy(self.place, there)
        _write_card(there)
        return added

    @validated
    def pull(self, source: str) -> list[str]:
        """Add the data set of another atlas to this one, so that `compare` and `figure` have its models too.

        Args:
            source: where it was published: a folder or URL, as in `publish`.

        Returns:
            The names of the files that were added.

        Raises:
            InputError: as in `publish`.
        """
        added = _copy(place_of(source), self.place)
        _write_card(self.place)
        return added

    def _manifest(self) -> Path:
        if self.manifest is None:
            raise InputError("The atlas has no manifest.", "Give models=, a YAML file.")
        extra("pyarrow", "An atlas")
        return self.manifest

    def _add(self, label: str, entry: Entry, cells: Sequence[Cell], study: Study) -> int:
        """Write the rows of a model to a file named by its cells, unless it is there; return how many are new."""
        digest = hashlib.sha256("".join(sorted(cell.key for cell in cells)).encode()).hexdigest()[:16]
        name = f"data/{re.sub(r'[^A-Za-z0-9.]+', '-', label)}-{digest}.parquet"
        if self.place.read(name) is not None:
            return 0
        about = {"checkpoint": entry.pin, "licence": entry.licence, "dtype": entry.dtype}
        about |= {package: versions()[package] for package in ("squashlens", "torch", "transformers")}
        rows = []
        for cell in cells:
            varied = next((str(one) for name, one in cell.labels.items() if name != "untrained"), "")
            common = {"model": label, "weights": cell.labels["untrained"], **about, "cell": cell.key}
            found = numbers(cell.grid.partition(" of ")[0], varied, study.result(cell.key))
            rows += [row | common for row in found]
        content = io.BytesIO()
        pd.DataFrame(rows)[[*COLUMNS, *ABOUT]].to_parquet(content, index=False)
        self.place.write(name, content.getvalue())
        return len(rows)


def _checkpoint(entry: Entry) -> tuple[str | None, str]:
    """The identity of a model's checkpoint, or the reason why it cannot be found."""
    from squashlens.engine.loading.sources import identity

    kind, _, commit = (entry.pin or "").partition(" ")
    try:
        return identity(entry.model, commit if kind == "commit" else None), ""
    except SquashlensError as error:
        return None, error.cause


def _refusal(entry: Entry) -> str:
    """Why a model cannot be measured; empty if it can."""
    if entry.pin is None:
        return "It has no pin: run `pin` first."
    found, reason = _checkpoint(entry)
    return reason or ("" if found == entry.pin else f"Its checkpoint was replaced: it is {found}, and not {entry.pin}.")


def _grids(label: str, entry: Entry) -> list[dict[str, Any]]:
    """The battery for one model and its random model."""
    kind, _, commit = (entry.pin or "").partition(" ")
    how = {"model": entry.model, "dtype": entry.dtype, "quantize": entry.quantize}
    how |= {"revision": commit} if kind == "commit" else {}
    return [
        one | {"name": f"{one.get('name', one['measurement'])} of {label}", "arguments": one["arguments"] | how,
               "each": {"untrained": WEIGHTS, **one.get("each", {})}}
        for one in BATTERY
    ]  # fmt: skip


def _newest(place: Any) -> pd.DataFrame:
    """The rows of a data set: of each model and checkpoint, those of the newest version and the most cells."""
    files = [name for name in place.names("data") if name.endswith(".parquet")]
    frames = [pd.read_parquet(io.BytesIO(place.read(name) or b"")) for name in files]
    if not frames:
        return pd.DataFrame(columns=[*COLUMNS, *ABOUT])
    whole: Any = pd.concat([frame.assign(file=file) for frame, file in zip(frames, files, strict=True)])
    about = whole.groupby("file").agg(
        model=("model", "first"), checkpoint=("checkpoint", "first"), squashlens=("squashlens", "first"),
        cells=("cell", "nunique"),
    )  # fmt: skip
    order = about.sort_values(["squashlens", "cells"])  # the newest version, and the most complete of its files
    kept = order[~order.duplicated(["model", "checkpoint"], keep="last")].index
    return whole[whole["file"].isin(kept)].drop(columns="file").reset_index(drop=True)


def _copy(source: Any, target: Any) -> list[str]:
    """Add the files of a data set to another; an error before anything is written if one would change."""
    content = {name: source.read(name) for name in source.names("data") if name.endswith(".parquet")}
    if not content:
        raise InputError(f"{source.url!r} has no data set of an atlas.", "Give the folder or URL it was published to.")
    there = {name: target.read(name) for name in content}
    if changed := [name for name, old in there.items() if old is not None and old != content[name]]:
        raise InputError(f"{changed[0]!r} has other content in {target.url!r}.", "Files of an atlas never change.")
    new = [name for name, old in there.items() if old is None]
    for name in new:
        target.write(name, content[name])
    return new


def _models(table: Any) -> Any:
    """A row for each model of a data set."""
    return table[["model", "dtype", "licence", "checkpoint", "squashlens"]].drop_duplicates()


def _write_card(place: Any) -> None:
    """Write the card of a data set, in the form that model hubs read."""
    table = _newest(place)
    models = _models(table)
    lines = [
        "---", "configs:", "- config_name: default", "  data_files: data/*.parquet", "---", "", "# Atlas of models", "",
        f"{len(table)} numbers of {models['model'].nunique()} models, each beside the same architecture with random",
        "weights, by squashlens. Files are added and never changed. The weights of the models are not part of this",
        "data set; each has the licence of the table.", "",
        f"Columns: {', '.join(f'`{name}`' for name in table.columns)}. `x` is a length or a distance in tokens. `cell`",
        "names the call that gave the number.", "",
        models.to_markdown(index=False), "", "Quantities: " + "; ".join(table["quantity"].unique()) + ".", "",
    ]  # fmt: skip
    place.write("README.md", "\n".join(lines).encode())
