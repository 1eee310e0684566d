"""Write files completely or not at all, and check before a measurement whether its output file can be written.

A file is written under a temporary name in the folder of its target, flushed to the disk, and renamed. So the old file
remains unchanged if a writer is killed or the disk is full. A symbolic link remains a link, and its target is written.
A read-only file raises an error, although replacing it would need only the permission to write to its folder. The
temporary file of a killed writer is removed by a write into its folder a day later.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from squashlens.errors import InputError, OutputError, SquashlensError

LEFT = 24 * 3600.0  # seconds after which nobody writes to a temporary file any more
FULL = ("The disk is full", "Free some space there, or choose a folder on another disk.")
CAUSES = {  # others are told as the system tells them
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: ("The file would be larger than this system allows", "Raise the limit (ulimit -f), or save less."),
    errno.EEXIST: ("There is a file of that name", "Choose another name."),
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
        unknown = (error.strerror or str(error) or "The system gave no reason", "Choose another name or folder.")
        cause, remedy = CAUSES.get(error.errno or 0, unknown)
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
        partial = _partial(target.parent)
        partial.touch()
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
        partial = _partial(target.parent)
        try:
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                partial.chmod(stat.S_IMODE(target.stat().st_mode))
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
        raise InputError(f"{name!r} is a pipe or a device, not a file.", "Give the name of a file.")
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


def _partial(folder: Path) -> Path:
    """The name of a new temporary file in a folder. Those that killed writers left there are removed."""
    for left in folder.glob(".squashlens-*.partial"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > LEFT:
                left.unlink()
    return folder / f".squashlens-{secrets.token_hex(8)}.partial"


def _flush(folder: Path) -> None:
    """Flush the folder itself to the disk, so that the new name is stored, if the system supports this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
