"""Claims: which worker computes a cell.

A worker claims a cell with a lock on a small file, to which it adds a byte. When it is done, it removes the file. If it
dies, the system releases the lock, and the file with its byte remains: so it says how many workers died with the cell.
On a system without locks every claim is granted, and no death is counted: two workers may then compute the same cell,
with the same result.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from squashlens.saving.files import refusing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def claimed(path: Path) -> Iterator[int | None]:
    """The number of processes that died with this claim; None if another process holds it.

    The claim ends with the block, also after an exception.
    """
    handle = _lock(path)
    if handle is None:
        yield None
        return
    try:
        deaths = os.fstat(handle).st_size
        with refusing(path):
            os.write(handle, b".")
        yield deaths
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _lock(path: Path) -> int | None:
    """An open, locked file; None if another process holds the lock."""
    with refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if fcntl is None:
                    raise OSError("no locks")
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
            except OSError:  # without locks, its bytes may be of workers that live
                os.ftruncate(handle, 0)
                return handle
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # its holder removed it before it was locked
