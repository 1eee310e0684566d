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

from squashlens import example_models
from squashlens._typing import short_repr
from squashlens.bars import shown, write
from squashlens.errors import InputError, ModelAccessError, one_line
from squashlens.model.loading import cache as kept_folders
from squashlens.model.loading.complete import refuse_adapter
from squashlens.model.loading.gguf import convert, is_gguf
from squashlens.model.loading.packaged import PACKAGED, located

# Files that `load` does not read.
LEFT_OUT = (".md", ".txt", ".py", ".bin", ".pt", ".h5", ".msgpack")
READ_ANYWAY = ("merges.txt", "vocab.txt")


@dataclass(frozen=True)
class Source:
    """What is loaded (a folder, or a name on the hub), what results call it, and the GGUF file that it is from."""

    path: str
    label: str
    file: str | None = None


def source_of(name: str | Path) -> Source:
    """What a name refers to: the first of a bundled model, a folder, a packaged model, a file, and a name on the hub.

    A GGUF file is converted to a folder in the cache, unless that was done before. Names that look like a path, or
    nearly like a model of this package, raise an error instead of a question to the hub.
    """
    text = str(name)
    if not text.strip():
        raise ModelAccessError(f"name={text!r} is empty.", nearest(text))
    if text in example_models.bundled():
        folder = str(example_models.folder(text))
        return Source(folder, folder)
    path = Path(os.path.expanduser(text))
    # Not `path.is_dir()`, which is an error for a name that no path can have.
    if os.path.isdir(path):
        _require_config(path)
        resolved = str(path.resolve())  # the same name for every way to write the path
        return Source(resolved, resolved)
    if text in PACKAGED:
        return _packaged(text)
    if os.path.isfile(path):
        return _from_file(path.resolve())
    if path.suffix == ".gguf":
        raise ModelAccessError(f"There is no file {text!r}.", nearest(text))
    is_path = isinstance(name, Path) or path.is_absolute() or text[0] in ".~"
    if is_path or text.count("/") > 1:
        raise ModelAccessError(f"There is no folder {text!r}.", nearest(text))
    known = (*example_models.bundled(), *PACKAGED)
    if difflib.get_close_matches(text.lower(), known, cutoff=0.8):  # a misspelt one
        raise ModelAccessError(f"There is no model {text!r}.", nearest(text))
    return Source(text, text)


def _require_config(folder: Path) -> None:
    """Raise an error for a folder without a configuration, with what may be meant."""
    if os.path.isfile(folder / "config.json"):
        return
    refuse_adapter(str(folder), None)
    files = sorted(map(str, folder.glob("*.gguf")))
    remedy = "Give the folder that `save_pretrained` wrote."
    if files:
        remedy = f"Give the GGUF file: {files[0]!r}."
    raise ModelAccessError(f"{folder} has no config.json.", remedy)


def require_revisions(name: str | Path, source: str, revision: str | None) -> None:
    """Raise an error for a revision of something that has none: of all models but those on the hub."""
    if revision is not None and Path(source).is_dir():
        kind = "local model"
        if str(name) in example_models.bundled():
            kind = "bundled model"
        raise InputError(
            f"revision={short_repr(revision)} is given, and the {kind} {str(name)!r} has no revisions.",
            "Leave it out, or give the name of a model on the Hugging Face hub.",
        )


def nearest(text: str) -> str:
    """The remedy for a name that is not found: similar names, or the kinds of names that there are."""
    names = (*example_models.bundled(), *PACKAGED)
    near = difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return (
        f"Use a bundled model ({', '.join(example_models.bundled())}), a local folder or GGUF file, "
        f"or a Hugging Face name."
    )


def _packaged(name: str) -> Source:
    """The folder of a packaged model, converted from the file in its package."""
    model = PACKAGED[name]
    digest = kept_folders.digest_of(model.paths())
    if shown():  # progress messages; the terms are looked up only to be named
        write(
            f"{name}: {model.notice} Its terms of use: {located(model.package, model.terms)}"
        )
    folder = _converted(name, label=name, digest=digest, make=model.convert)
    return Source(folder, name, model.file)


def _from_file(path: Path) -> Source:
    """The folder that a GGUF file is converted to."""
    if not is_gguf(path):
        raise ModelAccessError(
            f"{path} is a file and no GGUF file.", "Give a model folder or a GGUF file."
        )
    digest = kept_folders.digest_of([path])

    def make(folder: Path) -> None:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        convert(path, sha256, folder)

    folder = _converted(path.name, label=path.stem, digest=digest, make=make)
    return Source(folder, str(path), path.name)


def _converted(
    name: str, *, label: str, digest: str, make: Callable[[Path], None]
) -> str:
    """The folder in the cache that `make` wrote for this model, now or before.

    The model is known by its `digest`. `name` is for the message, and `label` begins the folder's name.
    """

    def convert_it(folder: Path) -> None:
        """Say that it may take long, and write the folder."""
        write(
            f"{name}: converting it once, which may take two minutes, into {kept_folders.location()}"
        )
        # The bar of transformers has no setting that leaves it out.
        with nullcontext() if shown() else redirect_stderr(io.StringIO()):
            make(folder)

    return str(kept_folders.kept(label, digest, convert_it))


# Signs in the messages of the libraries, what they mean, and what to do.
MEANINGS = (
    (
        ("gatedrepoerror", "gated repo"),
        "{source} is gated: you must accept its licence first.",
        "1. Accept the licence at https://huggingface.co/{source}. 2. Create a read token at "
        "https://huggingface.co/settings/tokens. 3. Run `hf auth login` and paste the token, or set HF_TOKEN.",
    ),
    (
        ("repositorynotfounderror", "not a valid model identifier"),
        "Hugging Face has no model {source!r} that you can access.",
        "{near} A private model needs a token: `hf auth login`.",
    ),
    (
        ("safetensorerror",),
        "The weights of {source} are damaged or truncated.",
        "Download the checkpoint again, or save it again with `save_pretrained`.",
    ),
    (
        # Of experts, which are stored one by one and stacked while loading.
        ("conversion",),
        "The weights of {source} cannot be stacked: some are missing, left over or of another shape.",
        "Check that config.json belongs to these weights, or download the checkpoint again.",
    ),
    (
        ("trust_remote_code", "custom code"),
        "{source} needs its own Python code, which squashlens does not run.",
        "Use a model built into transformers.",
    ),
    (
        ("does not recognize this architecture", "unrecognized model"),
        "The installed transformers does not know the architecture of {source}.",
        "Update transformers.",
    ),
    (
        ("connect", "offline", "resolve", "timed out"),
        "{source} is not on this machine and the Hugging Face hub cannot be reached.",
        "{near} A Hugging Face name needs a connection to the internet.",
    ),
)


def access_error(source: str, error: Exception) -> ModelAccessError:
    """The error that explains why a model could not be opened, from the exceptions of the libraries."""
    # The classes and messages of the error and of all that led to it.
    messages = ""
    link: BaseException | None = error
    while link is not None:
        messages += f"{type(link).__name__}: {link} ".lower()
        link = link.__cause__ or link.__context__
    near = nearest(source)
    for signs, cause, remedy in MEANINGS:
        if any(sign in messages for sign in signs):
            return ModelAccessError(
                cause.format(source=source), remedy.format(source=source, near=near)
            )
    reason = f"{type(error).__name__}: {one_line(error)}"
    if Path(source).is_dir():
        return ModelAccessError(
            f"{source} cannot be opened with its config.json ({reason}).",
            "Check that config.json belongs to these weights.",
        )
    return ModelAccessError(f"{source} cannot be opened ({reason}).", near)


def identity(name: str, revision: str | None = None) -> str:
    """The SHA-256 of a folder's files, or the commit of a model on the hub.

    A folder's digest covers the weights, the configuration and the tokenizer. It is the same for every path to equal
    files, and is computed again only if a file was written or replaced.
    """
    source = source_of(name).path
    require_revisions(name, source, revision)
    if not Path(source).is_dir():
        return f"commit {hub_commit(source, revision)}"
    files: list[Path] = []
    for file in sorted(Path(source).iterdir()):
        is_read = file.suffix not in LEFT_OUT or file.name in READ_ANYWAY
        if file.is_file() and is_read and not file.name.startswith("."):
            files.append(file)
    digest_of_all = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest = _digest(str(file), about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        digest_of_all.update(f"{file.name} {digest}\n".encode())
    return f"files {digest_of_all.hexdigest()}"


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
            return Path(cached).parent.name  # the cache has a folder for each commit
        return str(HfApi().model_info(source, revision=revision).sha)
    except Exception as error:  # the many errors of networks, of the hub and of names
        raise access_error(source, error) from error
