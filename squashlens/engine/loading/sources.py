"""Find out what a name refers to: a bundled or packaged model, a folder, a GGUF file, or a model on the hub."""

import difflib
import hashlib
import io
import os
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from squashlens import zoo
from squashlens._typing import short_repr
from squashlens.bars import shown
from squashlens.engine.loading.converting import cache
from squashlens.engine.loading.converting.gguf import convert
from squashlens.engine.loading.converting.header import is_gguf
from squashlens.engine.loading.converting.packaged import PACKAGED
from squashlens.engine.proving.complete import refuse_adapter
from squashlens.errors import InputError, ModelAccessError

# Common decoder-only models: a misspelt name gets a suggestion without asking the hub.
WELL_KNOWN = (
    "google/gemma-2b",
    "google/gemma-2b-it",
    "google/gemma-7b",
    "google/gemma-7b-it",
    "google/gemma-2-2b",
    "google/gemma-2-2b-it",
    "google/gemma-2-9b",
    "google/gemma-3-270m",
    "google/gemma-3-1b-pt",
    "google/gemma-3-1b-it",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "allenai/OLMo-2-0425-1B",
    "EleutherAI/pythia-70m",
    "EleutherAI/pythia-410m",
    "openai-community/gpt2",
    "gpt2",
)


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
    path, is_folder = _folder(text)
    if is_folder:
        if not (path / "config.json").is_file():
            refuse_adapter(str(path), None)
            raise ModelAccessError(f"{path} has no config.json.", _remedy(path))
        resolved = str(path.resolve())  # the same name for every way to write the path
        return Source(resolved, resolved)
    if text in PACKAGED:
        return _packaged(text)
    if path.is_file():
        return _from_file(path.resolve())
    looks_local = isinstance(name, Path) or path.is_absolute() or text.startswith((".", "~")) or path.suffix == ".gguf"
    if looks_local or text.count("/") > 1:
        what = "file" if path.suffix == ".gguf" else "folder"
        raise ModelAccessError(f"There is no {what} {text!r}.", nearest(text))
    if difflib.get_close_matches(text.lower(), (*zoo.bundled(), *PACKAGED), cutoff=0.8):
        raise ModelAccessError(f"There is no model {text!r}.", nearest(text))
    return Source(text, text)


def resolve(name: str | Path) -> str:
    """The path of a bundled model, of a folder, or of what a file was converted to; any other name is unchanged."""
    return source_of(name).path


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
    names = (*zoo.bundled(), *PACKAGED, *WELL_KNOWN)
    lower = {n.lower(): n for n in names} | {n.split("/")[-1].lower(): n for n in reversed(names)}
    if text in names:  # the name is spelt correctly
        return ""
    near = difflib.get_close_matches(text.lower(), lower, n=3, cutoff=0.6)
    found = list(dict.fromkeys(lower[n] for n in near))
    if found:
        return f"Did you mean {' or '.join(repr(n) for n in found)}?"
    return f"Use a bundled model ({', '.join(zoo.bundled())}), a local folder or GGUF file, or a Hugging Face name."


def _packaged(name: str) -> Source:
    model = PACKAGED[name]
    digest = cache.digest_of(model.paths())
    if shown():
        print(f"{name}: {model.notice} Its terms of use: {model.terms_of_use()}")
    folder = _converted(name, name, digest, model.convert)
    return Source(folder, name, model.file)


def _from_file(path: Path) -> Source:
    if not is_gguf(path):
        raise ModelAccessError(f"{path} is a file and no GGUF file.", "Give a model folder or a GGUF file.")
    digest = cache.digest_of([path])

    def make(folder: Path) -> None:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        convert(path, sha256, folder)

    return Source(_converted(path.name, path.stem, digest, make), str(path), path.name)


def _converted(name: str, label: str, digest: str, make: Callable[[Path], None]) -> str:
    """The folder that `make` writes. If quiet, the bar of transformers is left out too: it has no setting."""

    def told(folder: Path) -> None:
        if shown():
            print(f"{name}: converting it once, which may take a minute, into {cache.location()}")
        with nullcontext() if shown() else redirect_stderr(io.StringIO()):
            make(folder)

    return str(cache.kept(label, digest, told))


def _remedy(folder: Path) -> str:
    files = sorted(path.name for path in folder.glob("*.gguf"))
    return (
        f"Give the GGUF file: {str(folder / files[0])!r}." if files else "Give the folder that `save_pretrained` wrote."
    )


def _folder(text: str) -> tuple[Path, bool]:
    """The name as a path, and whether it is a readable folder."""
    try:
        path = Path(text).expanduser()
        is_folder = path.is_dir()
        if is_folder:
            os.listdir(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name of an unknown user
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        raise ModelAccessError(
            f"{short_repr(text)} cannot be opened as a folder ({reason}).", "Check the path and its permissions."
        ) from error
    return path, is_folder
