"""Claims of cells: a worker holds a lock on a small file while it computes a cell.

If the worker is killed, the system releases the lock, and the file remains. It contains how many workers have claimed
the cell and not released it, so that a cell that kills its workers is noticed. On a system or file system without locks
every claim is granted: two workers may then compute the same cell, with the same result.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from squashlens.saving.files import refusing


@contextmanager
def claimed(path: Path) -> Iterator[int | None]:
    """How many workers died with this claim; None if another process holds it. The claim ends with the block."""
    handle = _locked(path)
    if handle is None:
        yield None
        return
    try:
        text = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        deaths = int(text) if text.isdigit() else 0
        with refusing(path):
            os.pwrite(handle, str(deaths + 1).encode(), 0)
        yield deaths
    finally:  # also after an exception: only a process that is killed leaves the file
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _locked(path: Path) -> int | None:
    """An open, locked file; None if another process holds the lock."""
    with refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
            except OSError:  # a file system without locks
                return handle
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # its holder removed it before it was locked
