"""Where a store is: a local folder, or any place that fsspec can open, such as an object store.

In a folder, a file is written under a temporary name, flushed and renamed. On an object store, an upload appears whole
or not at all. On other remote places a killed writer may leave half a file, whose digest is then wrong.

A worker claims a cell of a folder with a lock on a small file. If the worker dies, the system releases the lock, and
the file remains. A crash writes its traceback there; a process that the system killed for its memory is known by the
kernel's count of such kills. Only these two count against a cell, and no signal from outside. On a system without locks
every claim is granted: two workers may then compute the same cell, with the same result.
"""

import faulthandler
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from squashlens.errors import InputError, OutputError
from squashlens.saving.files import refusing, require_folder, write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def extra(package: str, what: str, name: str = "study") -> Any:
    """A package of the extra `name`, or an error that says what needs it and how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(
            f"{what} needs {package.partition('.')[0]}, which is not installed.",
            f'Install it: pip install "squashlens[{name}]".',
        ) from None


BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci")  # have no folders to create


def place_of(store: str | Path) -> "Folder | Remote":
    """The place for a path, or for a URL such as ``s3://bucket/study``."""
    if isinstance(store, str) and "://" in store:
        scheme, _, rest = store.partition("://")
        return Folder(Path(rest)) if scheme in ("file", "local") else Remote(store)
    return Folder(Path(store).expanduser())


class Folder:
    """A folder of this machine, or of a network file system."""

    def __init__(self, root: Path) -> None:
        self.root, self.url = root.absolute(), str(root.absolute())

    def require_writable(self) -> None:
        """Create the folder; an error if no files can be written there."""
        require_folder(self.root)

    def path(self, name: str) -> str:
        return str(self.root / name)

    def local(self, name: str) -> Path | None:
        """The path of a file that another program will write, in a folder that exists."""
        with refusing(self.root / name):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return self.root / name

    def read(self, name: str) -> bytes | None:
        with _reading(self.path(name)):
            return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        self.local(name)
        write(self.root / name, content)

    def names(self, folder: str) -> list[str]:
        """The names of all files below a folder."""
        files = (file for file in (self.root / folder).rglob("*.*") if file.name[0] != ".")
        return sorted(file.relative_to(self.root).as_posix() for file in files)

    def remove(self, name: str) -> None:
        with refusing(self.root / name):
            (self.root / name).unlink(missing_ok=True)

    def claim(self, name: str) -> Any:
        return claim_file(self.root / "claims" / name)


class Remote:
    """A place that fsspec opens. It has no locks, so two workers may compute the same cell; the results are equal."""

    def __init__(self, url: str) -> None:
        fsspec = extra("fsspec", f"store={url!r}")
        try:
            # Listings that are kept in memory would hide what other workers have written.
            self.files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            cause = f"store={url!r} cannot be opened: {error}."
            raise InputError(cause, "Check its beginning, such as s3://.") from error
        self.url, self.root = url, root.rstrip("/")

    def require_writable(self) -> None:
        self.write(".writable", b"")
        self.remove(".writable")

    def path(self, name: str) -> str:
        return self.files.unstrip_protocol(f"{self.root}/{name}")

    def local(self, name: str) -> Path | None:
        return None

    def read(self, name: str) -> bytes | None:
        with _reading(self.path(name)):
            return bytes(self.files.cat_file(f"{self.root}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        target = f"{self.root}/{name}"
        try:
            if self.url.partition("://")[0] not in BUCKETS:
                self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.files.pipe_file(target, content)
        except Exception as error:
            cause = f"Cannot write {self.path(name)!r}: {error}."
            raise OutputError(cause, "Check the permissions and the connection.") from error

    def names(self, folder: str) -> list[str]:
        found: list[Any] = []
        with _reading(self.path(folder)):
            found = self.files.find(f"{self.root}/{folder}")
        return sorted(name[len(self.root) + 1 :] for name in map(str, found))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.files.rm_file(f"{self.root}/{name}")

    @contextmanager
    def claim(self, name: str) -> Iterator[list[str] | None]:
        yield []


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn an error while `path` is read into an error of squashlens; a file that is missing is not one."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except Exception as error:  # every kind of place has errors of its own
        cause = f"{path!r} cannot be read: {' '.join(str(error).split())[:200]}."
        raise InputError(cause, "Check the place, the permissions and the connection.") from error


@contextmanager
def claim_file(path: Path) -> Iterator[list[str] | None]:
    """Why workers died with this claim, as far as the cell is to blame; None if another process holds the claim.

    The claim ends with the block, also after an exception: only a process that dies leaves something in the file.
    """
    handle = _lock(path)
    if handle is None:
        yield None
        return
    try:
        causes = _causes(os.read(handle, 1 << 20).decode("utf-8", "replace"))
        with refusing(path):
            _rewrite(handle, json.dumps({"causes": causes, "kills": _kills_for_memory()}) + "\n")
        with _crashes_noted(handle):
            yield causes
    finally:
        with suppress(OSError):
            _rewrite(handle, "")
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _rewrite(handle: int, text: str) -> None:
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, text.encode())


def _causes(text: str) -> list[str]:
    """What killed the workers that left this text in a claim; a signal from outside is not one of them."""
    head, _, crash = text.partition("\n")
    try:
        before = json.loads(head)
        causes, kills = list(before["causes"]), before["kills"]
    except (ValueError, KeyError, TypeError):
        return []
    if crash.strip():
        return [*causes, crash.strip()]
    now = _kills_for_memory()
    killed = kills is not None and now is not None and kills[0] == now[0] and kills[1] < now[1]
    return [*causes, "The system was out of memory and killed the worker."] if killed else causes


def _kills_for_memory() -> list[Any] | None:
    """This start of this machine, and how many processes Linux has killed since because the memory was used up."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), int(counts["oom_kill"])]
    except (OSError, ValueError, KeyError):  # another system
        return None


@contextmanager
def _crashes_noted(handle: int) -> Iterator[None]:
    """Let Python write where it was into a file if the process crashes (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL)."""
    before = faulthandler.is_enabled()
    faulthandler.enable(handle)
    try:
        yield
    finally:
        faulthandler.disable()
        if before and sys.__stderr__ is not None:
            with suppress(OSError, ValueError):  # a notebook's, which is no file
                faulthandler.enable(sys.__stderr__)


def _lock(path: Path) -> int | None:
    """An open, locked file; None if another process holds the lock."""
    with refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
            except OSError:  # a file system without locks
                return handle
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # its holder removed it before it was locked
