"""The cache: folders that were converted from other files, each made once.

It is `$SQUASHLENS_CACHE` if that is set, else `squashlens` in `$XDG_CACHE_HOME` or `~/.cache`. What an
interrupted conversion leaves is never taken for a whole folder.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import xxhash

from squashlens.errors import OutputError


def location() -> Path:
    """The folder of the cache, which may not exist yet."""
    folder = os.environ.get("SQUASHLENS_CACHE")
    if folder:
        return Path(folder).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "squashlens"


def digest_of(files: Iterable[Path]) -> str:
    """A fast 128-bit digest of the content of several files, one after the other."""
    digest = xxhash.xxh3_128()
    for file in files:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()


def kept(label: str, digest: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` wrote for files of this digest, now or at an earlier call.

    `label` begins the folder's name, for people; the digest alone says which folder it is.
    """
    root = location()
    for folder in root.glob(f"*-{digest}"):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole, so that an interrupted conversion leaves no folder of the final name.
        partial = Path(tempfile.mkdtemp(dir=root, prefix=".partial-"))
    except OSError as error:
        raise OutputError(
            f"The cache {root} cannot be written ({error.strerror}).",
            "Set SQUASHLENS_CACHE to another folder.",
        ) from error
    try:
        make(partial)
        final = root / f"{label}-{digest}"
        try:
            partial.rename(final)
        except OSError:
            if not final.is_dir():  # else another process was faster
                raise
        return final
    except OSError as error:
        raise OutputError(
            f"{label} cannot be kept in the cache {root} ({error.strerror or error}).",
            "Free some space, or set SQUASHLENS_CACHE to another folder.",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
