"""Long searches that can be broken off: what was found so far, in a file that says what it was found for.

The file is an SQLite database of any name: a row for each fact about the search, a row for each finding, and with each
finding a digest over it and the facts. Two processes may work with one file at a time. A process that is killed loses
what it had not finished finding, and nothing else.

On a local disk SQLite writes ahead to a log (WAL). That log is shared between processes through memory, so it does not
work between machines (https://sqlite.org/wal.html, section 1): on a file system of the network, by the names that
Linux and macOS give them, the older rollback journal is used instead, with a warning. It is as safe, if the locks of
that file system work, which many versions of NFS do not promise (https://sqlite.org/faq.html, question 5): let only
one machine at a time write there.

Each finding is written by a connection of its own, which is closed at once. So SQLite's files beside the journal
(`-wal`, `-shm`) are there only during a write or after a process was killed; then they hold findings, and belong with
the journal until the next search opens it.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from squashlens.errors import InputError, OutputError
from squashlens.files import require_output
from squashlens.remarks import remark

APPLICATION = 0x53714C4A  # "SqLJ", in the header of every file of ours
HEADER = b"SQLite format 3\x00"
FORM = 1  # of the tables below
PATIENCE = 60.0  # seconds that another process may hold the file
NETWORK = {
    "nfs",
    "nfs3",
    "nfs4",
    "cifs",
    "smb2",
    "smb3",
    "smbfs",
    "afpfs",
    "afs",
    "9p",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
}
NETWORK |= {"webdav", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.davfs", "fuse.s3fs", "fuse.rclone", "macfuse"}
UNWRITTEN = {  # by the beginning of SQLite's name for the error; any other says that the file is damaged
    "SQLITE_FULL": "Free some space there, or choose a folder on another disk.",
    "SQLITE_BUSY": f"Another process has held it for {PATIENCE:.0f} s: wait for that, or give another name.",
    "SQLITE_LOCKED": "Another process is writing to it: wait for that, or give another name.",
    "SQLITE_READONLY": "Allow writing to it and its folder, or give another name.",
    "SQLITE_CANTOPEN": "Allow writing to it and its folder, or give another name.",
    "SQLITE_PERM": "Allow writing to it and its folder, or give another name.",
    "SQLITE_IOERR": "Check the disk and its free space, or choose a folder on another disk.",
    "SQLITE_NOMEM": "Free some memory.",
}
ANOTHER = "Give another name, or delete it."


class Journal:
    """Findings by name, each written down as soon as it is had, and read back instead of being found again.

    Without a path nothing is kept. A file that was begun for anything else (other weights, another call) is refused,
    and so is one that is damaged or no journal; it is left as it is. Where two processes find the same, the first that
    writes it down is believed by both.
    """

    def __init__(self, path: str | Path | None, facts: Mapping[str, Any]) -> None:
        self.path = checked(path)
        self.facts: Any = json.loads(json.dumps(facts, default=str))
        self.found: dict[str, Any] = {}
        self._log = self.path is None or _logs_work(self.path)
        if self.path is not None and self.path.exists() and self.path.stat().st_size:
            with self._opened(self.path) as database:
                if database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                    raise self._damaged("its pages do not fit together")
                if _tables(database):  # else another process has made the file, and not yet its tables
                    self._require_same(database)
                    names = [name for (name,) in database.execute("SELECT name FROM findings")]
                    self.found = {name: self._value(database, name) for name in names}

    def get(self, name: str, find: Callable[[], Any]) -> Any:
        """What was found under this name, or what `find` gives now: numbers, texts and lists of them."""
        if name not in self.found:
            self.keep({name: find()})
        return self.found[name]

    def keep(self, findings: Mapping[str, Any]) -> None:
        """Write down what was found under several names: all of it or, if that fails, nothing."""
        if self.path is None:
            self.found |= findings
            return
        new = {name: json.dumps(value) for name, value in findings.items()}
        form = "wal" if self._log else "delete"
        with self._opened(self.path) as database:
            if _tables(database):
                self._require_same(database)  # before anything about the file is changed
                _set_form(database, form)
            database.execute("BEGIN IMMEDIATE")
            if _tables(database):
                self._require_same(database)
            else:
                self._begin(database)
                new = {name: json.dumps(value) for name, value in self.found.items()} | new  # if it was deleted
            rows = [(name, text, self._digest(name, text)) for name, text in new.items()]
            database.executemany("INSERT OR IGNORE INTO findings VALUES (?, ?, ?)", rows)
            kept = {name: self._value(database, name) for name in findings}
            database.execute("COMMIT")
            _set_form(database, form)
        self.found |= kept

    def _begin(self, database: sqlite3.Connection) -> None:
        """Make the tables of an empty file."""
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {FORM}")
        database.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        database.execute("CREATE TABLE findings (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest TEXT NOT NULL)")
        database.executemany("INSERT INTO facts VALUES (?, ?)", [(n, json.dumps(v)) for n, v in self.facts.items()])

    def _require_same(self, database: sqlite3.Connection) -> None:
        facts = {name: self._parsed(text) for name, text in database.execute("SELECT name, value FROM facts")}
        others = _different(facts, self.facts)
        if others:
            raise InputError(
                f"{self.path} was saved for a different {', '.join(others)}.",
                "Give another name, or delete it to begin anew.",
            )

    def _value(self, database: sqlite3.Connection, name: str) -> Any:
        text, digest = database.execute("SELECT value, digest FROM findings WHERE name = ?", (name,)).fetchone()
        if digest != self._digest(name, text):
            raise self._damaged(f"what it keeps under {name[:60]!r} was changed")
        return self._parsed(text)

    def _parsed(self, text: Any) -> Any:
        try:
            return json.loads(text)
        except (TypeError, ValueError) as error:
            raise self._damaged("a value is not JSON") from error

    def _digest(self, name: str, text: Any) -> str:
        whole = json.dumps([self.facts, name, str(text)], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    def _damaged(self, why: str) -> InputError:
        return InputError(f"{self.path} is a damaged journal: {why}.", ANOTHER)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[sqlite3.Connection]:
        """A connection that is closed at the end, with what SQLite says turned into refusals."""
        checked(path)
        try:
            with closing(sqlite3.connect(os.path.realpath(path), timeout=PATIENCE, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = FULL")
                yield database
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorname", "")
            remedy = next((remedy for name, remedy in UNWRITTEN.items() if code.startswith(name)), None)
            if remedy is None:
                raise self._damaged(str(error)) from error
            raise OutputError(f"Cannot write {str(path)!r}: {error}.", remedy) from error


def checked(path: str | Path | None) -> Path | None:
    """The path of a journal, refused unless a journal is there or can be made; None for no path."""
    if path is None:
        return None
    path = require_output(path, argument="resume")
    if not path.exists():
        return path
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", "Allow reading, or give another name.") from error
    if header and (not header.startswith(HEADER) or int.from_bytes(header[68:72], "big") != APPLICATION):
        raise InputError(f"{path} is no journal of a search.", ANOTHER)
    if header and int.from_bytes(header[60:64], "big") != FORM:
        raise InputError(f"{path} is a journal of another version of squashlens.", ANOTHER)
    return path


def _tables(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0


def _set_form(database: sqlite3.Connection, form: str) -> None:
    """Let SQLite write ahead to a log, or not: a property of the file, which any process may set when none writes."""
    if database.execute("PRAGMA journal_mode").fetchone()[0] == form:
        return
    try:
        database.execute(f"PRAGMA journal_mode = {form}")
    except sqlite3.OperationalError as error:
        if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):  # another process is at it
            raise


def _logs_work(path: Path) -> bool:
    """Whether the file is on a disk of this machine; where it is not, a warning says what that means."""
    kind = _file_system(path)
    if kind in NETWORK:
        remark(
            f"{path} is on a file system of the network ({kind}): a rollback journal is used, and only one machine at "
            "a time may write to it."
        )
    return kind not in NETWORK


def _file_system(path: Path) -> str:
    """The kind of file system that a path is on, as the system calls it; empty if it does not say."""
    place = os.path.realpath(path)
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    while place not in mounts and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return mounts.get(place, "").lower()


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
