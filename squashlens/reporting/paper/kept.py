"""Results of the paper's figures on disk, which are used again only for the same model and settings.

Each file states what its result depends on: the model, with its weights, hooks and versions, and the settings. A file
of another model or other settings raises an error and is not changed. A file that cannot be read, or whose checksum
does not fit, is measured again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from squashlens._typing import Bridge
from squashlens.engine.text.tokens import tokenizer_digest
from squashlens.errors import CapacityError, InputError
from squashlens.measure.session import Session, require_seen
from squashlens.records.results import open as open_result
from squashlens.records.results import save, versions
from squashlens.remarks import remark
from squashlens.reporting.paper.parts import Part
from squashlens.saving.journal import different

STATED = "squashlens_paper"  # attribute of a result: what it depends on, as JSON


class Kept:
    """The results of one model in a folder."""

    def __init__(self, folder: Path, model: Bridge) -> None:
        self.folder = folder
        require_seen(model, "A finished figure")
        session = Session.without_prompt(model, torch.zeros((1, 1), dtype=torch.long), "as-given", "paper")
        facts = {name: value for name, value in session.facts.items() if name not in ("call", "bos_count", "versions")}
        self.facts = session.facts
        self.model: Mapping[str, Any] = {**facts, "tokenizer": tokenizer_digest(model)}

    def path(self, part: Part) -> Path:
        """The file of a result."""
        return self.folder / f"{part.name}.nc"

    def found(self, part: Part, *, any_settings: bool = False) -> xr.Dataset | None:
        """The result of a part, if it is there. `any_settings` accepts those of an earlier call, not another model."""
        path = self.path(part)
        if not path.exists():
            return None
        try:
            result: Any = open_result(path)
            stated: Any = json.loads(str(result.attrs.get(STATED, "null")))
        except CapacityError:
            raise
        except InputError as error:
            remark(f"{error.cause} It is measured again.")
            return None
        if stated is None:
            raise InputError(
                f"{str(path)!r} was not written by `paper`.", "Choose another folder, or move this file away."
            )
        wanted = self._depends_on(part)
        if any_settings:
            stated = {**stated, "settings": wanted["settings"]}
        differing = [name.removeprefix("settings: ") for name in different(stated, wanted)]
        if differing:
            raise InputError(
                f"{str(path)!r} was measured for a different {', '.join(differing)}.",
                "Choose another folder for this one, or delete the file to measure it again.",
            )
        return result

    def keep(self, part: Part, result: xr.Dataset) -> None:
        """Write a result, with what it depends on."""
        stated = json.dumps(self._depends_on(part), sort_keys=True, default=str)
        save(result.assign_attrs({STATED: stated}), self.path(part))

    def _depends_on(self, part: Part) -> dict[str, Any]:
        model = {"model": self.model} if part.of_model else {}
        own = {"settings": dict(part.about), "versions": versions(), **model}
        return json.loads(json.dumps(own, default=str))
