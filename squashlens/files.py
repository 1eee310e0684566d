"""Files that are written whole or not at all, and that are refused before the work where they cannot be written.

A file is written under a temporary name in the folder of its target, flushed to the disk, and renamed. So a writer that
is killed, or a disk that is full, leaves the old file as it was. A symbolic link stays a link: its target is written.
A file without permission to write is refused, although renaming over it would need only that of its folder.

A writer holds a lock (`flock`) on its temporary file. A temporary file whose lock is free was left by a writer that
was killed, also in another container; the next write into the folder removes it. On a file system without locks none
is removed.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from squashlens.errors import InputError, OutputError, SquashlensError

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed and so needs no lock
    fcntl = None

PARTIAL = re.compile(r"\.squashlens-[0-9a-f]{16}\.partial")  # no longer than most names that are asked for
KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
CAUSES = {
    errno.ENOSPC: ("The disk is full", "Free some space there, or choose a folder on another disk."),
    errno.EDQUOT: ("Your quota on that disk is used up", "Free some space there, or choose a folder on another disk."),
    errno.EFBIG: ("The file would be larger than this system allows", "Raise the limit (ulimit -f), or save less."),
    errno.EROFS: ("The file system is read-only", "Choose a folder on another one."),
    errno.EACCES: ("Permission is denied", "Choose a folder that you may write to."),
    errno.EPERM: ("Permission is denied", "Choose a folder that you may write to."),
    errno.ENAMETOOLONG: ("The name is too long", "Choose a shorter name."),
    errno.ELOOP: ("Its symbolic links lead in a circle", "Remove the link, or choose another name."),
    errno.ENOENT: ("The folder is gone", "Make it again, or choose another."),
    errno.EEXIST: ("There is a file of that name", "Choose another name."),
    errno.ENOTDIR: ("A part of its path is a file, not a folder", "Choose another folder."),
}


@contextmanager
def refusing(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` while `path` is written, or a name that no file can have, into a refusal."""
    try:
        yield
    except SquashlensError:
        raise
    except ValueError as error:  # a null character, half of a surrogate pair
        raise InputError(f"{str(path)!r} cannot be the name of a file.", "Choose another name.") from error
    except OSError as error:
        unknown = (error.strerror or str(error) or "The system gave no reason", "Choose another place.")
        cause, remedy = CAUSES.get(error.errno or 0, unknown)
        if error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(os.path.realpath(path))):
            cause, remedy = "Its folder takes no files", "Choose another folder."  # /proc
        raise OutputError(f"Cannot write {str(path)!r}: {cause[0].lower()}{cause[1:]}.", remedy) from error


def require_output(path: object, endings: Sequence[str] = (), argument: str = "out") -> Path:
    """A path that a file can be written to, checked before the work by making a temporary file beside it.

    Refuses an unknown ending (any will do if there are no `endings`), a folder that does not exist or may not be
    written to, a name that is taken by something other than a file, and a file that is read-only.
    """
    path = as_path(path, argument)
    if endings and path.suffix not in endings:
        raise InputError(f"Cannot write {path.name!r}.", f"End the name in {', '.join(endings)}.")
    target = _target(path)
    with refusing(path):
        _sweep(target.parent)
        partial, file = _partial(target.parent)
        file.close()
        partial.unlink(missing_ok=True)
    return path


def require_distinct(paths: Iterable[Path]) -> None:
    """Refuse one file as the place of two outputs, of which the later would replace the earlier."""
    seen: set[str] = set()
    for path in paths:
        target = os.path.realpath(path)
        if target in seen:
            raise InputError(f"{str(path)!r} is named for two outputs.", "Give each a file of its own.")
        seen.add(target)


def require_folder(path: object, argument: str = "folder") -> Path:
    """A folder that files can be written to: made if it does not exist, with those above it."""
    path = as_path(path, argument)
    with refusing(path):
        path.mkdir(parents=True, exist_ok=True)
    require_output(path / "file")
    return path


def as_path(path: object, argument: str) -> Path:
    """A path given as text or as a path; anything else is refused."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputError(f"{argument} must be a path, not {type(path).__name__}.", "Give text or a pathlib.Path.")
    if not os.fspath(path):
        raise InputError(f"{argument} is empty.", "Give the name of a file or folder.")
    return Path(os.fspath(path))


def write(path: str | Path, content: bytes | memoryview) -> Path:
    """Write these bytes to `path`, whole or not at all; returns the path."""
    with replacing(path) as file:
        file.write(content)
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A temporary file, open and locked, that takes the place of `path` when the block ends without an exception."""
    target = _target(Path(path))
    with refusing(path):
        _sweep(target.parent)
        partial, file = _partial(target.parent)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if target.exists():
                    partial.chmod(stat.S_IMODE(target.stat().st_mode))
                if fcntl is not None:  # under the lock, lest another writer takes it for one that was left behind
                    os.replace(partial, target)
            if fcntl is None:
                os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        _flush(target.parent)


def _target(path: Path) -> Path:
    """The file that a path leads to, through symbolic links; refused unless a file can be there."""
    shown = str(path)
    with refusing(path):
        target = Path(os.path.realpath(path))
        about, folder = _about(target), _about(target.parent)
    if about is not None and stat.S_ISDIR(about.st_mode):
        raise InputError(f"{shown!r} is a folder.", "Give the name of a file in it.")
    if folder is None or not stat.S_ISDIR(folder.st_mode):
        missing = target.parent if path.parent.is_dir() else path.parent  # of a link to a place that is not there
        raise InputError(f"There is no folder {str(missing)!r}.", "Make it first.")
    if about is None:
        return target
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for test, name in KINDS if test(about.st_mode)), "not a file")
        raise InputError(f"{shown!r} is {kind}.", "Give the name of a file.")
    # An administrator may write to any file: that it is marked read-only still says that it is not to change.
    if not about.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise OutputError(f"{shown!r} is read-only.", "Choose another name, or allow writing to it (chmod u+w).")
    return target


def _about(path: Path) -> os.stat_result | None:
    """What is there, or None for nothing."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _partial(folder: Path) -> tuple[Path, IO[bytes]]:
    """A new temporary file in this folder, with a lock on it."""
    while True:
        partial = folder / f".squashlens-{secrets.token_hex(8)}.partial"
        file = partial.open("xb")
        if fcntl is not None:
            with suppress(OSError):  # no locks here: then nobody can tell that this file is free
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:  # swept between the two lines above
                file.close()
                continue
        return partial, file


def _sweep(folder: Path) -> None:
    """Remove the temporary files of writers that were killed; whatever cannot be removed stays."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if PARTIAL.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    if fcntl is None:
        os.unlink(path)
        return
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(handle)


def _flush(folder: Path) -> None:
    """Bring the new name itself to the disk, where the system lets a folder be flushed."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
