"""What identifies a checkpoint, found without loading it: the content of its files, or the commit on the hub."""

import hashlib
from functools import cache
from pathlib import Path

from squashlens.engine.loading.hub import unreachable
from squashlens.engine.loading.sources import nearest, require_revisions, resolve

LEFT_OUT = (".md", ".txt", ".py", ".bin", ".pt", ".h5", ".msgpack")  # files that `load` does not read
READ_ANYWAY = ("merges.txt", "vocab.txt")


def identity(name: str, revision: str | None = None) -> str:
    """The SHA-256 of a folder's files, or the commit of a model on the hub.

    A folder's digest covers the weights, the configuration and the tokenizer. It is the same for every path to equal
    files, and is computed again only if a file was written or replaced.
    """
    source = resolve(name)
    require_revisions(name, source, revision)
    if not Path(source).is_dir():
        return f"commit {_commit(source, revision)}"
    files = sorted(file for file in Path(source).iterdir() if file.is_file() and _is_read(file))
    whole = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest = _digest(str(file), about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        whole.update(f"{file.name} {digest}\n".encode())
    return f"files {whole.hexdigest()}"


def _is_read(file: Path) -> bool:
    return not file.name.startswith(".") and (file.suffix not in LEFT_OUT or file.name in READ_ANYWAY)


@cache
def _digest(path: str, *about: int) -> str:
    """The SHA-256 of a file; its size and the times of its last changes are part of the cache's key."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit(source: str, revision: str | None) -> str:
    """The commit that a revision of a hub model refers to: in the local cache if it is there, else on the hub."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    cached = try_to_load_from_cache(source, "config.json", revision=revision)
    if isinstance(cached, str):
        return Path(cached).parent.name
    try:
        found = HfApi().model_info(source, revision=revision).sha
    except Exception as error:  # the many errors of networks, of the hub and of names
        raise unreachable(source, nearest(source)) from error
    if found is None:
        raise unreachable(source, nearest(source))
    return found
