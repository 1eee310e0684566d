"""Write files completely or not at all, and check before a measurement whether its output file can be written.

A file is written under a temporary name in the folder of its target, flushed to the disk, and renamed. So the old file
remains unchanged if a writer is killed or the disk is full. A symbolic link remains a link, and its target is written.
A read-only file raises an error, although replacing it would need only the permission to write to its folder.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from squashlens.errors import InputError, OutputError, SquashlensError

PAGES = (".html", ".htm")
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or a user's quota


@contextmanager
def refusing(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` while `path` is written, or an impossible file name, into an error of squashlens."""
    try:
        yield
    except SquashlensError:
        raise
    except ValueError as error:  # a null character, half of a surrogate pair
        cause = f"{str(path)!r} is not a valid file name."
        raise InputError(cause, "Choose another name.") from error
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        remedy = "Choose another name or folder."
        if error.errno in FULL:
            cause = "the disk is full"
            remedy = "Free some space there, or choose a folder on another disk."
        raise OutputError(f"Cannot write {str(path)!r}: {cause}.", remedy) from error


def require_output(
    path: str | Path, endings: Sequence[str] = (), argument: str = "out"
) -> Path:
    """The path of an output file, checked before a measurement by creating a temporary file in its folder.

    Raises an error for an ending that is not in `endings` (if any are given), a folder that does not exist or is not
    writable, a path that is not a regular file, and a read-only file.
    """
    path = Path(path)
    if endings and path.suffix not in endings:
        raise InputError(
            f"{argument}={path.name!r} does not have a known ending.",
            f"Use one of {', '.join(endings)}.",
        )
    with refusing(path):
        partial = _partial(_target(path))
        partial.touch()
        partial.unlink(missing_ok=True)
    return path


def require_folder(path: str | Path) -> Path:
    """The path of a folder that files can be written to; it is created if it does not exist."""
    path = Path(path)
    with refusing(path):
        path.mkdir(parents=True, exist_ok=True)
    require_output(path / "file")
    return path


def write(path: str | Path, content: bytes | memoryview) -> Path:
    """Write bytes to `path`, completely or not at all; return the path."""
    with replacing(path) as file:
        file.write(content)
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """An open temporary file that replaces `path` if the block ends without an exception."""
    with refusing(path):
        target = _target(Path(path))
        partial = _partial(target)
        try:
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():  # the new file gets the permissions of the old one
                partial.chmod(stat.S_IMODE(target.stat().st_mode))
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """The file that a path refers to, through symbolic links; an error unless a file can be written there."""
    name = str(path)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{name!r} is a folder.", "Give the name of a file in it.")
    if not target.parent.is_dir():
        # The path may be a link to a folder that does not exist.
        missing = target.parent if path.parent.is_dir() else path.parent
        raise InputError(f"There is no folder {str(missing)!r}.", "Create it first.")
    if not target.exists():
        return target
    if not target.is_file():
        cause = f"{name!r} is a pipe or a device, not a file."
        raise InputError(cause, "Give the name of a file.")
    # An administrator may write to any file, but the read-only mark still says that the file should not change.
    is_marked = not target.stat().st_mode & 0o222
    if is_marked or not os.access(target, os.W_OK):
        remedy = "Choose another name, or allow writing to it (chmod u+w)."
        raise OutputError(f"{name!r} is read-only.", remedy)
    return target


def _partial(target: Path) -> Path:
    """The name of a new temporary file beside a file."""
    return target.with_name(f".squashlens-{secrets.token_hex(8)}.partial")
