"""Find out what a name refers to: a bundled or packaged model, a folder, a GGUF file, or a model on the hub.

`access_error` says why a model could not be opened.
"""

import difflib
import hashlib
import io
import os
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from squashlens import zoo
from squashlens._typing import short_repr
from squashlens.bars import shown, write
from squashlens.errors import InputError, ModelAccessError
from squashlens.model.finite import AGAIN
from squashlens.model.loading import cache as kept_folders
from squashlens.model.loading.complete import refuse_adapter
from squashlens.model.loading.gguf import convert, is_gguf
from squashlens.model.loading.packaged import PACKAGED, located

LEFT_OUT = (
    ".md",
    ".txt",
    ".py",
    ".bin",
    ".pt",
    ".h5",
    ".msgpack",
)  # files that `load` does not read
READ_ANYWAY = ("merges.txt", "vocab.txt")


@dataclass(frozen=True)
class Source:
    """What is loaded (a folder, or a name on the hub), what results call it, and the GGUF file that it is from."""

    path: str
    label: str
    file: str | None = None


def source_of(name: str | Path) -> Source:
    """What a name refers to. A GGUF file is converted to a folder in the cache, unless that was done before."""
    text = str(name)
    if not text.strip():
        raise ModelAccessError(f"name={text!r} is empty.", nearest(text))
    if text in zoo.bundled():
        return Source(str(zoo.folder(text)), str(zoo.folder(text)))
    path = Path(os.path.expanduser(text))
    if os.path.isdir(
        path
    ):  # which is false, and no error, for a name that no path can have
        if not os.path.isfile(path / "config.json"):
            refuse_adapter(str(path), None)
            files = sorted(map(str, path.glob("*.gguf")))
            other = (
                f"the GGUF file: {files[0]!r}."
                if files
                else "the folder that `save_pretrained` wrote."
            )
            raise ModelAccessError(f"{path} has no config.json.", f"Give {other}")
        resolved = str(path.resolve())  # the same name for every way to write the path
        return Source(resolved, resolved)
    if text in PACKAGED:
        return _packaged(text)
    if os.path.isfile(path):
        return _from_file(path.resolve())
    looks_local = (
        isinstance(name, Path)
        or path.is_absolute()
        or text.startswith((".", "~"))
        or path.suffix == ".gguf"
    )
    if looks_local or text.count("/") > 1:
        what = "file" if path.suffix == ".gguf" else "folder"
        raise ModelAccessError(f"There is no {what} {text!r}.", nearest(text))
    if difflib.get_close_matches(text.lower(), (*zoo.bundled(), *PACKAGED), cutoff=0.8):
        raise ModelAccessError(f"There is no model {text!r}.", nearest(text))
    return Source(text, text)


def require_revisions(name: str | Path, source: str, revision: str | None) -> None:
    """An error for a revision of something that has none."""
    if revision is not None and Path(source).is_dir():
        kind = "bundled model" if str(name) in zoo.bundled() else "local model"
        raise InputError(
            f"revision={short_repr(revision)} is given, and the {kind} {str(name)!r} has no revisions.",
            "Leave it out, or give the name of a model on the Hugging Face hub.",
        )


def nearest(text: str) -> str:
    """The remedy for a name that is not found: similar names, or the kinds of names that there are."""
    names = (*zoo.bundled(), *PACKAGED)
    if near := difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.6):
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return f"Use a bundled model ({', '.join(zoo.bundled())}), a local folder or GGUF file, or a Hugging Face name."


def _packaged(name: str) -> Source:
    model = PACKAGED[name]
    digest = kept_folders.digest_of(model.paths())
    if shown():  # the terms are looked up only to be named
        write(
            f"{name}: {model.notice} Its terms of use: {located(model.package, model.terms)}"
        )
    folder = _converted(name, name, digest, model.convert)
    return Source(folder, name, model.file)


def _from_file(path: Path) -> Source:
    if not is_gguf(path):
        raise ModelAccessError(
            f"{path} is a file and no GGUF file.", "Give a model folder or a GGUF file."
        )
    digest = kept_folders.digest_of([path])

    def make(folder: Path) -> None:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        convert(path, sha256, folder)

    return Source(_converted(path.name, path.stem, digest, make), str(path), path.name)


def _converted(name: str, label: str, digest: str, make: Callable[[Path], None]) -> str:
    """The folder that `make` writes. If quiet, the bar of transformers is left out too: it has no setting."""

    def told(folder: Path) -> None:
        write(
            f"{name}: converting it once, which may take two minutes, into {kept_folders.location()}"
        )
        with nullcontext() if shown() else redirect_stderr(io.StringIO()):
            make(folder)

    return str(kept_folders.kept(label, digest, told))


def access_error(source: str, error: Exception, near: str) -> ModelAccessError:
    """The error that explains why a model could not be opened, from the exceptions of the libraries."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    chain, link = [], error
    while link is not None and len(chain) < 10:
        chain.append(link)
        link = link.__cause__ or link.__context__  # pyright: ignore[reportAssignmentType]
    messages = " ".join(f"{type(e).__name__}: {e}" for e in chain).lower()
    if any(isinstance(e, GatedRepoError) for e in chain) or "gated repo" in messages:
        return ModelAccessError(
            f"{source} is gated: you must accept its licence first.",
            f"1. Accept the licence at https://huggingface.co/{source}. 2. Create a read token at "
            "https://huggingface.co/settings/tokens. 3. Run `hf auth login` and paste the token, or set HF_TOKEN.",
        )
    if (
        any(isinstance(e, RepositoryNotFoundError) for e in chain)
        or "not a valid model identifier" in messages
    ):
        return ModelAccessError(
            f"Hugging Face has no model {source!r} that you can access.",
            f"{near} A private model needs a token: `hf auth login`.".lstrip(),
        )
    if "trust_remote_code" in messages or "custom code" in messages:
        return ModelAccessError(
            f"{source} needs its own Python code, which squashlens does not run.",
            "Use a model built into transformers.",
        )
    if (
        "does not recognize this architecture" in messages
        or "unrecognized model" in messages
    ):
        return ModelAccessError(
            f"The installed transformers does not know the architecture of {source}.",
            "Update transformers.",
        )
    if (
        "connect" in messages
        or "offline" in messages
        or "resolve" in messages
        or "timed out" in messages
    ):
        return ModelAccessError(
            f"{source} is not on this machine and the Hugging Face hub cannot be reached.",
            f"{near} A Hugging Face name needs a connection to the internet.",
        )
    if Path(source).is_dir():
        reason = " ".join(str(error).split())[:300]
        return ModelAccessError(
            f"{source} cannot be opened with its config.json ({type(error).__name__}: {reason}).",
            "Check that config.json belongs to these weights.",
        )
    first_line = (str(error).splitlines() or [""])[0]
    return ModelAccessError(f"{source} cannot be opened: {first_line}", near or AGAIN)


def identity(name: str, revision: str | None = None) -> str:
    """The SHA-256 of a folder's files, or the commit of a model on the hub.

    A folder's digest covers the weights, the configuration and the tokenizer. It is the same for every path to equal
    files, and is computed again only if a file was written or replaced.
    """
    source = source_of(name).path
    require_revisions(name, source, revision)
    if not Path(source).is_dir():
        return f"commit {hub_commit(source, revision)}"
    shown = (
        file
        for file in Path(source).iterdir()
        if file.is_file() and not file.name.startswith(".")
    )
    files = sorted(
        file
        for file in shown
        if file.suffix not in LEFT_OUT or file.name in READ_ANYWAY
    )
    whole = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest = _digest(str(file), about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        whole.update(f"{file.name} {digest}\n".encode())
    return f"files {whole.hexdigest()}"


@cache
def _digest(path: str, *about: int) -> str:
    """The SHA-256 of a file; its size and the times of its last changes are part of the cache's key."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hub_commit(source: str, revision: str | None) -> str:
    """The commit that a revision of a hub model refers to: in the local cache if it is there, else on the hub.

    The hub is asked once: where it cannot be reached, `from_pretrained` would ask for 23 seconds.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
        if isinstance(cached, str):
            return Path(cached).parent.name
        return str(HfApi().model_info(source, revision=revision).sha)
    except Exception as error:  # the many errors of networks, of the hub and of names
        raise access_error(source, error, nearest(source)) from error
