"""Long searches that can be broken off: what was found so far, in a file that says what it was found for."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from squashlens.errors import InputError
from squashlens.results import write_atomically


class Journal:
    """Findings by name, each written down as soon as it is had, and read back instead of being found again.

    Without a path nothing is kept. A file that was begun for anything else (other weights, another call) is refused.
    """

    def __init__(self, path: str | Path | None, facts: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.facts: Any = json.loads(json.dumps(facts, default=str))
        self.found: dict[str, Any] = {}
        if self.path is not None and self.path.exists():
            self.found = self._read(self.path)
        elif self.path is not None and not self.path.parent.is_dir():
            raise InputError(f"There is no folder {str(self.path.parent)!r}.", "Make it first.")

    def get(self, name: str, find: Callable[[], Any]) -> Any:
        """What was found under this name, or what `find` gives now: numbers, texts and lists of them."""
        if name not in self.found:
            self.keep({name: find()})
        return self.found[name]

    def keep(self, findings: Mapping[str, Any]) -> None:
        """Write down what was found under several names."""
        self.found |= findings
        if self.path is not None:
            write_atomically(self.path, self._write)

    def _write(self, path: Path) -> None:
        path.write_text(json.dumps({"facts": self.facts, "found": self.found}, ensure_ascii=False), encoding="utf-8")

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            facts, found = dict(content["facts"]), dict(content["found"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is no journal of a search.", "Give another name, or delete it.") from error
        others = _different(facts, self.facts)
        if others:
            raise InputError(
                f"{path} was begun with another {', '.join(others)}.", "Give another name, or delete it to begin anew."
            )
        return found


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of facts that differ; of groups of facts, such as a call, which of them."""
    found = []
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += [f"{name}: {inner}" for inner in _different(a, b)]
        elif a != b:
            found.append(name)
    return found
