"""Write files completely or not at all, and check before a measurement whether its output file can be written.

A file is written under a temporary name in the folder of its target, flushed to the disk, and renamed. So the old file
remains unchanged if a writer is killed or the disk is full. A symbolic link remains a link, and its target is written.
A read-only file raises an error, although replacing it would need only the permission to write to its folder.

A writer holds a lock (`flock`) on its temporary file. If a temporary file has no lock, its writer was killed, possibly
in another container, and the next write into the folder removes the file. On a file system without locks, no temporary
files are removed.
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
except ImportError:  # on Windows an open file cannot be removed, so it needs no lock
    fcntl = None

PARTIAL = re.compile(r"\.squashlens-[0-9a-f]{16}\.partial")  # not longer than most file names that users choose
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
    errno.EROFS: ("The file system is read-only", "Choose a folder on another file system."),
    errno.EACCES: ("Permission is denied", "Choose a folder that you may write to."),
    errno.EPERM: ("Permission is denied", "Choose a folder that you may write to."),
    errno.ENAMETOOLONG: ("The name is too long", "Choose a shorter name."),
    errno.ELOOP: ("Its symbolic links lead in a circle", "Remove the link, or choose another name."),
    errno.ENOENT: ("The folder no longer exists", "Create it again, or choose another folder."),
    errno.EEXIST: ("There is a file of that name", "Choose another name."),
    errno.ENOTDIR: ("A part of its path is a file, not a folder", "Choose another folder."),
}


@contextmanager
def refusing(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` while `path` is written, or an impossible file name, into an error of squashlens."""
    try:
        yield
    except SquashlensError:
        raise
    except ValueError as error:  # a null character, half of a surrogate pair
        raise InputError(f"{str(path)!r} is not a valid file name.", "Choose another name.") from error
    except OSError as error:
        unknown = (error.strerror or str(error) or "The system gave no reason", "Choose another place.")
        cause, remedy = CAUSES.get(error.errno or 0, unknown)
        if error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(os.path.realpath(path))):
            cause, remedy = "No files can be created in its folder", "Choose another folder."  # for example /proc
        raise OutputError(f"Cannot write {str(path)!r}: {cause[0].lower()}{cause[1:]}.", remedy) from error


def require_output(path: object, endings: Sequence[str] = (), argument: str = "out") -> Path:
    """The path of an output file, checked before a measurement by creating a temporary file in its folder.

    Raises an error for an ending that is not in `endings` (if any are given), a folder that does not exist or is not
    writable, a path that is not a regular file, and a read-only file.
    """
    path = as_path(path, argument)
    if endings and path.suffix not in endings:
        raise InputError(f"{argument}={path.name!r} does not have a known ending.", f"Use one of {', '.join(endings)}.")
    target = _target(path)
    with refusing(path):
        _sweep(target.parent)
        partial, file = _partial(target.parent)
        file.close()
        partial.unlink(missing_ok=True)
    return path


def require_distinct(paths: Iterable[Path]) -> None:
    """Raise an error if two outputs have the same file, because the later would replace the earlier."""
    seen: set[str] = set()
    for path in paths:
        target = os.path.realpath(path)
        if target in seen:
            raise InputError(f"{str(path)!r} is given for two outputs.", "Give a different file for each.")
        seen.add(target)


def require_folder(path: object, argument: str = "folder") -> Path:
    """The path of a folder that files can be written to; it is created if it does not exist."""
    path = as_path(path, argument)
    with refusing(path):
        path.mkdir(parents=True, exist_ok=True)
    require_output(path / "file")
    return path


def as_path(path: object, argument: str) -> Path:
    """A path given as text or `pathlib.Path`; an error for anything else."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputError(f"{argument} must be a path, not {type(path).__name__}.", "Give text or a pathlib.Path.")
    if not os.fspath(path):
        raise InputError(f"{argument} is empty.", "Give the name of a file or folder.")
    return Path(os.fspath(path))


def write(path: str | Path, content: bytes | memoryview, *, lasting: bool = True) -> Path:
    """Write bytes to `path`, completely or not at all; return the path. `lasting` is that of `replacing`."""
    with replacing(path, lasting=lasting) as file:
        file.write(content)
    return Path(path)


@contextmanager
def replacing(path: str | Path, *, lasting: bool = True) -> Iterator[IO[bytes]]:
    """An open temporary file that replaces `path` if the block ends without an exception.

    Unless `lasting`, the folder is not flushed: after a power failure `path` may be as it was before, but never in part
    new. That suits files that are made again if they are missing, and takes half as long on a slow disk.
    """
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
                if fcntl is not None:  # keep the lock, so that no other writer removes the file
                    os.replace(partial, target)
            if fcntl is None:
                os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        if lasting:
            _flush(target.parent)


def _target(path: Path) -> Path:
    """The file that a path refers to, through symbolic links; an error unless a file can be written there."""
    name = str(path)
    with refusing(path):
        target = Path(os.path.realpath(path))
        about, folder = _about(target), _about(target.parent)
    if about is not None and stat.S_ISDIR(about.st_mode):
        raise InputError(f"{name!r} is a folder.", "Give the name of a file in it.")
    if folder is None or not stat.S_ISDIR(folder.st_mode):
        missing = target.parent if path.parent.is_dir() else path.parent  # for a link to a folder that does not exist
        raise InputError(f"There is no folder {str(missing)!r}.", "Create it first.")
    if about is None:
        return target
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for test, name in KINDS if test(about.st_mode)), "not a file")
        raise InputError(f"{name!r} is {kind}.", "Give the name of a file.")
    # An administrator may write to any file, but the read-only mark still says that the file should not change.
    if not about.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise OutputError(f"{name!r} is read-only.", "Choose another name, or allow writing to it (chmod u+w).")
    return target


def _about(path: Path) -> os.stat_result | None:
    """The status of a file or folder; None if there is none."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _partial(folder: Path) -> tuple[Path, IO[bytes]]:
    """A new, locked temporary file in a folder."""
    while True:
        partial = folder / f".squashlens-{secrets.token_hex(8)}.partial"
        file = partial.open("xb")
        if fcntl is not None:
            with suppress(OSError):  # on a file system without locks, no temporary files are removed
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:  # another writer removed it before it was locked
                file.close()
                continue
        return partial, file


def _sweep(folder: Path) -> None:
    """Remove the temporary files of writers that were killed, if possible."""
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
    """Flush the folder itself to the disk, so that the new name is stored, if the system supports this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
