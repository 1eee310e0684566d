"""Journals: files that keep the results of long work, so that it can be interrupted and resumed.

A journal is an SQLite database. It has one row of facts about the search and a row for each finding, with a digest of
the finding and the facts. Several processes may use one file at the same time. A process that is killed loses only the
finding that it was working on.

SQLite writes with a rollback journal, which also works on a network disk if the locks of that file system do, which
many versions of NFS do not guarantee (https://sqlite.org/faq.html, question 5). There, only one machine at a time
should write. A file `-journal` that a killed process leaves is used by the next connection to restore the file.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from squashlens.errors import InputError, OutputError
from squashlens.saving.files import require_output

APPLICATION = 0x53714C4B  # "SqLK", in the header of every journal
HEADER = b"SQLite format 3\x00"
PATIENCE = 60.0  # seconds to wait while another process holds the file
ANOTHER = "Give another name, or delete it."
UNWRITTEN = "Free some space, allow writing there, wait for other processes that write to it, or give another name."
TABLES = ("facts (text TEXT NOT NULL)", "findings (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest TEXT NOT NULL)")


class Journal:
    """Findings of a search by name. Each is written to the file at once, and read back instead of computed again.

    Without a path nothing is stored. A file of another search (other weights, another call), a damaged file, or a file
    that is not a journal raises an error and is not changed. If two processes compute the same finding, both use the
    one that was written first.
    """

    def __init__(self, path: str | Path | None, facts: Mapping[str, Any]) -> None:
        self.path = checked(path)
        self.facts: Any = json.loads(json.dumps(facts, default=str))
        self.found: dict[str, Any] = {}
        if self.path is not None and self.path.exists() and self.path.stat().st_size:
            with self._opened(self.path) as database:
                if database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                    raise self._damaged("its pages do not fit together")
                self.found = self._read(database)

    def get(self, name: str, find: Callable[[], Any]) -> Any:
        """The stored result with this name; if there is none, the result of `find`, which is stored under it."""
        if name not in self.found:
            self.keep({name: find()})
        return self.found[name]

    def keep(self, findings: Mapping[str, Any]) -> None:
        """Store findings by name: all of them or, if that fails, none."""
        if self.path is None:
            self.found |= findings
            return
        new = {name: json.dumps(value) for name, value in findings.items()}
        with self._opened(self.path) as database:
            database.execute("BEGIN IMMEDIATE")
            if not _tables(database):
                database.execute(f"PRAGMA application_id = {APPLICATION}")
                for table in TABLES:
                    database.execute(f"CREATE TABLE {table}")
                database.execute("INSERT INTO facts VALUES (?)", (json.dumps(self.facts),))
                new = {name: json.dumps(value) for name, value in self.found.items()} | new  # if the file was deleted
            rows = [(name, text, self._digest(name, text)) for name, text in new.items()]
            database.executemany("INSERT OR IGNORE INTO findings VALUES (?, ?, ?)", rows)
            kept = [self._read(database, "WHERE name = ?", name) for name in findings]
            database.execute("COMMIT")
        for one in kept:
            self.found |= one

    def _read(self, database: sqlite3.Connection, where: str = "", *names: str) -> dict[str, Any]:
        """Findings of the file; an error unless they are of this search."""
        if not _tables(database):  # another process has created the file but not yet its tables
            return {}
        try:
            (facts,) = (json.loads(text) for (text,) in database.execute("SELECT text FROM facts"))
        except (TypeError, ValueError) as error:
            raise self._damaged("its facts are not JSON") from error
        if others := different(facts, self.facts):
            raise InputError(
                f"{self.path} was saved for a different {', '.join(others)}.",
                "Give another name, or delete the file to start again.",
            )
        found = {}
        for name, text, digest in database.execute(f"SELECT * FROM findings {where}", names):  # noqa: S608
            if digest != self._digest(name, text):
                raise self._damaged(f"the finding {name[:60]!r} was changed")
            found[name] = json.loads(text)
        return found

    def _digest(self, name: str, text: Any) -> str:
        whole = json.dumps([self.facts, name, str(text)], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    def _damaged(self, why: str) -> InputError:
        return InputError(f"{self.path} is a damaged journal: {why}.", ANOTHER)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[sqlite3.Connection]:
        """A connection that is closed at the end; errors of SQLite become errors of squashlens."""
        _require_journal(path)
        try:
            with closing(sqlite3.connect(os.path.realpath(path), timeout=PATIENCE, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = FULL")
                yield database
        except sqlite3.DatabaseError as error:
            # Operational are a full disk, a lock or a permission, and also a table that is missing.
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise OutputError(f"Cannot write {str(path)!r}: {error}.", UNWRITTEN) from error
            raise self._damaged(str(error)) from error


def checked(path: str | Path | None) -> Path | None:
    """The path of a journal; an error unless the file is a journal or can be created. None if there is no path."""
    if path is None:
        return None
    path = require_output(path, argument="resume")
    _require_journal(path)
    return path


def _require_journal(path: Path) -> None:
    """An error for a file that is neither a journal nor empty."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", "Allow reading, or give another name.") from error
    if header and (not header.startswith(HEADER) or int.from_bytes(header[68:72], "big") != APPLICATION):
        raise InputError(f"{path} is not a journal of a search.", ANOTHER)


def _tables(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the facts that differ; for a group of facts, such as a call, the names inside the group."""
    found = []
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += [f"{name}: {inner}" for inner in different(a, b)]
        elif a != b:
            found.append(name)
    return found
