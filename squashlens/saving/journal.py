"""Journals: files that keep the results of long work, so that it can be interrupted and resumed.

A journal is a text file. Its first line has the facts about the search, as JSON; each further line is a finding with a
digest of itself and the facts. A line without the right digest, such as one that a killed process began, is not read,
so that its finding is computed again.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squashlens.errors import InputError
from squashlens.saving.files import refusing, require_output


class Journal:
    """Findings of a search by name. Each is written to the file at once, and read back instead of computed again.

    Without a path nothing is stored. A file of another search (other weights, another call), or one that is no journal,
    raises an error and is not changed.
    """

    def __init__(self, path: str | Path | None, facts: Mapping[str, Any]) -> None:
        self.path = checked(path)
        self.facts: Any = json.loads(json.dumps(facts, default=str))
        self.found: dict[str, Any] = {}
        if self.path is not None and self.path.exists() and self.path.stat().st_size:
            self._read(self.path)

    def keep(self, findings: Mapping[str, Any]) -> None:
        """Store findings by name."""
        new = {name: json.loads(json.dumps(value)) for name, value in findings.items()}
        if self.path is not None:
            with refusing(self.path), self.path.open("ab") as file:
                begun = file.tell()
                rows = (
                    new if begun else self.found | new
                )  # all of them if the file is new, or was deleted
                lines = [
                    [name, value, self._digest(name, value)]
                    for name, value in rows.items()
                ]
                texts = [
                    json.dumps(line)
                    for line in ([] if begun else [{"facts": self.facts}]) + lines
                ]
                file.write(
                    "".join(f"\n{text}" for text in texts).encode()
                )  # after a line that was only begun
                file.flush()
                os.fsync(file.fileno())
        self.found |= new

    def _read(self, path: Path) -> None:
        """Take the findings of the file; an error unless they are of this search."""
        with refusing(path):
            lines = [*map(_parsed, path.read_bytes().splitlines())]
        facts = [
            line["facts"]
            for line in lines
            if isinstance(line, dict) and isinstance(line.get("facts"), dict)
        ]
        if not facts:
            raise InputError(
                f"{path} is not a journal of a search.",
                "Give another name, or delete it.",
            )
        if others := sorted(
            {name for each in facts for name in different(each, self.facts)}
        ):
            raise InputError(
                f"{path} was saved for a different {', '.join(others)}.",
                "Give another name, or delete the file to start again.",
            )
        for line in lines:
            if (
                isinstance(line, list)
                and len(line) == 3
                and line[2] == self._digest(*line[:2])
            ):
                self.found.setdefault(str(line[0]), line[1])

    def _digest(self, name: object, value: object) -> str:
        return hashlib.sha256(
            json.dumps([self.facts, name, value]).encode()
        ).hexdigest()


def _parsed(line: bytes) -> Any:
    """A line of a journal; None if it is no JSON, or only a part of it."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def checked(path: str | Path | None) -> Path | None:
    """The path of a journal, after a check that it can be written; None if there is no path."""
    return None if path is None else require_output(path, argument="resume")


def different(facts: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the facts that differ; for a group of facts, such as a call, the names inside the group."""
    names = []
    for name in sorted({*facts, *other}):
        a, b = facts.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += [f"{name}: {inner}" for inner in different(a, b)]
        elif a != b:
            names.append(name)
    return names
