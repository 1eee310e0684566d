"""`squashlens cache`: what is kept of models that were converted from GGUF files, and how to delete it."""

from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import Annotated, Any

from squashlens.checks.sizes import human


def cache(given: list[str], parsed: Callable[..., Any], about: str) -> None:
    """List the folders of the cache, or delete one."""
    import tyro

    from squashlens.engine.loading.converting import cache as kept

    delete = Annotated[
        str, tyro.conf.arg(help="Name of the folder to delete, or how its name starts; none by default.")
    ]
    options = make_dataclass("Options", [("delete", delete, field(default=""))])
    options.__doc__ = about
    chosen = parsed(options, given, "squashlens cache")
    if chosen.delete:
        gone = kept.delete(chosen.delete)
        print(f"Deleted {gone.name} ({human(gone.n_bytes)}).")
        return
    entries = kept.entries()
    for entry in entries:
        print(f"{human(entry.n_bytes):>9}  {entry.name}")
    total = human(sum(entry.n_bytes for entry in entries))
    print(f"{len(entries)} models, {total}, in {kept.location()}. SQUASHLENS_CACHE sets another folder.")
