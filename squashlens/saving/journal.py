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

PATIENCE = 60.0  # seconds to wait while another process holds the file
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
            with _opened(self.path) as database:
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
        with _opened(self.path) as database:
            database.execute("BEGIN IMMEDIATE")
            if not _has_tables(database):
                for table in TABLES:
                    database.execute(f"CREATE TABLE {table}")
                database.execute("INSERT INTO facts VALUES (?)", (json.dumps(self.facts),))
                new = {name: json.dumps(value) for name, value in self.found.items()} | new  # if the file was deleted
            rows = [(name, text, self._digest(name, text)) for name, text in new.items()]
            database.executemany("INSERT OR IGNORE INTO findings VALUES (?, ?, ?)", rows)
            there = self._read(database, f"WHERE name IN ({', '.join('?' * len(findings))})", *findings)
            database.execute("COMMIT")
        self.found |= there

    def _read(self, database: sqlite3.Connection, where: str = "", *names: str) -> dict[str, Any]:
        """The findings of the file; an error unless they are of this search and as they were written."""
        if not _has_tables(database):  # another process has created the file but not yet its tables
            return {}
        try:
            (facts,) = (json.loads(text) for (text,) in database.execute("SELECT text FROM facts"))
            rows = database.execute(f"SELECT * FROM findings {where}", names).fetchall()  # noqa: S608
            others = different(facts, self.facts)
            if not others and any(digest != self._digest(name, text) for name, text, digest in rows):
                raise ValueError("a finding was changed")
        except (TypeError, ValueError, AttributeError) as error:
            raise _no_journal(self.path, error) from error
        if others:
            raise InputError(
                f"{self.path} was saved for a different {', '.join(others)}.",
                "Give another name, or delete the file to start again.",
            )
        return {name: json.loads(text) for name, text, _ in rows}

    def _digest(self, name: str, text: Any) -> str:
        whole = json.dumps([self.facts, name, str(text)], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


def _no_journal(path: Path | None, why: object) -> InputError:
    return InputError(f"{path} is not a journal of a search, or is damaged: {why}.", "Give another name, or delete it.")


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that is closed at the end; errors of SQLite become errors of squashlens."""
    try:
        with closing(sqlite3.connect(os.path.realpath(path), timeout=PATIENCE, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = FULL")
            yield database
    except sqlite3.DatabaseError as error:
        # Operational are a full disk, a lock or a permission, and also a table that is missing.
        if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
            raise OutputError(f"Cannot write {str(path)!r}: {error}.", UNWRITTEN) from error
        raise _no_journal(path, error) from error


def checked(path: str | Path | None) -> Path | None:
    """The path of a journal; an error unless the file is a database or can be created. None if there is no path."""
    if path is None:
        return None
    path = require_output(path, argument="resume")
    if path.exists() and path.stat().st_size:
        with _opened(path) as database:
            _has_tables(database)
    return path


def _has_tables(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0


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
