"""Check within seconds whether the Hugging Face hub can be reached, and explain why a model could not be opened.

The hub's own library retries for minutes before it gives up.
"""

import os
import socket
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from squashlens.engine.proving.complete import AGAIN
from squashlens.errors import ModelAccessError

TIMEOUT = 3.0  # seconds to resolve the host name and connect


def unreachable(source: str, near: str) -> ModelAccessError:
    """The error for a model that is not on this machine while the hub is unreachable; `near` suggests other names."""
    return ModelAccessError(
        f"{source} is not on this machine and the Hugging Face hub cannot be reached.",
        f"{near} Otherwise connect to the internet, or give a local folder."
        if near.startswith("Did you mean")
        else "Connect to the internet, or give a local folder or a bundled name (tiny-gemma).",
    )


def access_error(source: str, error: Exception, near: str) -> ModelAccessError:
    """The error that explains why a model could not be opened, from the exceptions of the libraries."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    chain, link = [], error
    while link is not None and len(chain) < 10:
        chain.append(link)
        link = link.__cause__ or link.__context__  # pyright: ignore[reportAssignmentType]
    messages = " ".join(str(e) for e in chain).lower()
    if any(isinstance(e, GatedRepoError) for e in chain) or "gated repo" in messages:
        return ModelAccessError(
            f"{source} is gated: you must accept its licence first.",
            f"1. Accept the licence at https://huggingface.co/{source}. 2. Create a read token at "
            "https://huggingface.co/settings/tokens. 3. Run `hf auth login` and paste the token, or set HF_TOKEN.",
        )
    if any(isinstance(e, RepositoryNotFoundError) for e in chain) or "not a valid model identifier" in messages:
        return ModelAccessError(
            f"Hugging Face has no model {source!r} that you can access.",
            f"{near} A private model needs a token: `hf auth login`.".lstrip(),
        )
    if "trust_remote_code" in messages or "custom code" in messages:
        return ModelAccessError(
            f"{source} needs its own Python code, which squashlens does not run.",
            "Use a model built into transformers.",
        )
    if "does not recognize this architecture" in messages or "unrecognized model" in messages:
        return ModelAccessError(
            f"The installed transformers does not know the architecture of {source}.", "Update transformers."
        )
    if "connect" in messages or "offline" in messages or "resolve" in messages or "timed out" in messages:
        return unreachable(source, near)
    if Path(source).is_dir():
        reason = " ".join(str(error).split())[:300]
        return ModelAccessError(
            f"{source} cannot be opened with its config.json ({type(error).__name__}: {reason}).",
            "Check that config.json belongs to these weights.",
        )
    first_line = (str(error).splitlines() or [""])[0]
    return ModelAccessError(f"{source} cannot be opened: {first_line}", near or AGAIN)


def require_reachable(source: str, revision: str | None, near: str) -> None:
    """Raise an error if a model is not in the local cache and the hub does not answer.

    Behind a proxy the hub is not tried: only its own library knows the proxy settings.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
    except (HFValidationError, ValueError):  # not a repository name: the library's own message is clearer
        return
    if isinstance(cached, str):
        return
    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE", "") in ("1", "ON", "YES", "TRUE"):
        raise unreachable(source, near)
    address = urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies() or not address.hostname:
        return
    if not _answers(address.hostname, address.port or (80 if address.scheme == "http" else 443)):
        raise unreachable(source, near)


def _answers(host: str, port: int) -> bool:
    """Whether the host accepts a connection within `TIMEOUT` seconds, including the time to resolve its name."""
    found: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=TIMEOUT):
                found.append(True)
        except OSError:
            found.append(False)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return bool(found and found[0])
