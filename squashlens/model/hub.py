"""Whether the Hugging Face hub can be reached, found out in seconds: its own library tries several times, for long."""

import os
import socket
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from squashlens.errors import ModelAccessError
from squashlens.model.checkpoint import AGAIN

PATIENCE = 3.0  # seconds for a name to be resolved and a connection to be made


def not_here(source: str, near: str) -> ModelAccessError:
    """The refusal of a name that is neither on this machine nor to be had; `near` says what else may be meant."""
    return ModelAccessError(
        f"{source} is not on this machine and the Hugging Face hub cannot be reached.",
        f"{near} Otherwise connect, or give a local folder."
        if near.startswith("Did you mean")
        else "Connect, or give a local folder or a bundled name (tiny-gemma).",
    )


def access_error(source: str, error: Exception, near: str) -> ModelAccessError:
    """What went wrong on the way to a model, told from the libraries' many ways of saying it; `near` as above."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    chain, link = [], error
    while link is not None and len(chain) < 10:
        chain.append(link)
        link = link.__cause__ or link.__context__  # pyright: ignore[reportAssignmentType]
    said = " ".join(str(e) for e in chain).lower()
    if any(isinstance(e, GatedRepoError) for e in chain) or "gated repo" in said:
        return ModelAccessError(
            f"{source} is gated: its owner wants you to accept a licence first.",
            f"Three steps: 1. accept it at https://huggingface.co/{source}; 2. make a read token at "
            "https://huggingface.co/settings/tokens; 3. run `hf auth login` and paste it, or set HF_TOKEN.",
        )
    if any(isinstance(e, RepositoryNotFoundError) for e in chain) or "not a valid model identifier" in said:
        return ModelAccessError(
            f"Hugging Face shows no model {source!r} to you.",
            f"{near} A private one needs a token: `hf auth login`.".lstrip(),
        )
    if "trust_remote_code" in said or "custom code" in said:
        return ModelAccessError(
            f"{source} wants to run code of its own.", "squashlens does not; use a model built into transformers."
        )
    if "does not recognize this architecture" in said or "unrecognized model" in said:
        return ModelAccessError(f"The architecture of {source} is unknown here.", "Update transformers.")
    if "connect" in said or "offline" in said or "resolve" in said or "timed out" in said:
        return not_here(source, near)
    if Path(source).is_dir():
        reason = " ".join(str(error).split())[:300]
        return ModelAccessError(
            f"{source} cannot be opened as its config.json describes it ({type(error).__name__}: {reason}).",
            "Check that config.json belongs to these weights.",
        )
    said = (str(error).splitlines() or [""])[0]
    return ModelAccessError(f"{source} cannot be opened: {said}", near or AGAIN)


def require_reachable(source: str, revision: str | None, near: str) -> None:
    """Refuse a name that is not in the hub's cache on this machine while the hub does not answer.

    Behind a proxy nothing is tried here: only the library knows how to get through.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
    except (HFValidationError, ValueError):  # no name of a repository, which the library says best
        return
    if isinstance(cached, str):
        return
    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE", "") in ("1", "ON", "YES", "TRUE"):
        raise not_here(source, near)
    address = urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies() or not address.hostname:
        return
    if not _answers(address.hostname, address.port or (80 if address.scheme == "http" else 443)):
        raise not_here(source, near)


def _answers(host: str, port: int) -> bool:
    """Whether a connection can be made within `PATIENCE`; resolving a name alone may take longer, so it is not waited
    for."""
    found: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=PATIENCE):
                found.append(True)
        except OSError:
            found.append(False)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(found and found[0])
