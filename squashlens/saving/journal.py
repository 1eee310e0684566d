"""Journals: files that keep the results of long work, so that it can be interrupted and resumed.

A journal is a text file of JSON, in which a line break stands before each line. The first line has the facts about the
search; each further line is the name and the value of a finding. A line that a killed process only began is no JSON,
and is not read, so that its finding is computed again. Without the facts a file is no journal.
"""

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
        """`facts` say which search it is: those in a file must be equal to them."""
        self.path = checked(path)
        # as they are read back from a file
        self.facts: Any = json.loads(json.dumps(facts, default=str))
        self.found: dict[str, Any] = {}
        if self.path is not None and self.path.exists() and self.path.stat().st_size:
            self._read(self.path)

    def keep(self, findings: Mapping[str, Any]) -> None:
        """Store findings by name."""
        new = json.loads(json.dumps(dict(findings)))  # as a later run will read them
        if self.path is not None:
            with refusing(self.path), self.path.open("ab") as file:
                lines: list[Any] = list(new.items())
                if file.tell() == 0:  # the file is new
                    lines.insert(0, {"facts": self.facts})
                # A line break comes first, since the line before may only have been begun.
                texts = [f"\n{json.dumps(line)}" for line in lines]
                file.write("".join(texts).encode())
                file.flush()
                os.fsync(file.fileno())
        self.found |= new

    def _read(self, path: Path) -> None:
        """Take the findings of the file; an error unless they are of this search."""
        with refusing(path):
            lines = [_parsed(line) for line in path.read_bytes().splitlines()]
        # Two processes that began together have each written its facts.
        headers = [line["facts"] for line in lines if _is_header(line)]
        if not headers:
            cause = f"{path} is not a journal of a search."
            raise InputError(cause, "Give another name, or delete it.")
        for facts in headers:
            names = different(facts, self.facts)
            if names:
                raise InputError(
                    f"{path} was saved for a different {', '.join(names)}.",
                    "Give another name, or delete the file to start again.",
                )
        for line in lines:
            if isinstance(line, list) and len(line) == 2:
                name, value = line
                self.found.setdefault(name, value)  # the first, if two computed it


def _is_header(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("facts"), dict)


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
    names: list[str] = []
    for name in sorted({**facts, **other}):
        value = facts.get(name)
        other_value = other.get(name)
        if isinstance(value, dict) and isinstance(other_value, dict):
            names += [f"{name}: {inner}" for inner in different(value, other_value)]
        elif value != other_value:
            names.append(name)
    return names
