"""Read residual streams, and other activations, of the prompts of a run."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Target, short_repr
from squashlens.errors import InputError
from squashlens.run.forward import forward
from squashlens.run.run import Run


def streams_of(
    run: Run, layers: Sequence[Target], at: Any = slice(None)
) -> list[Tensor]:
    """The residual streams of a run's prompts at some layers: those of its capture, or from one forward pass."""
    held = run.capture
    if held is not None and held.y is not None:
        kept = {**held.residuals, "y": held.y}
        if {*layers} <= {*kept}:
            return [kept[layer][:, at] for layer in layers]
    sites = [run.site(layer) for layer in layers]
    seen = streams_at(run, run.ids, sites, at=at)
    return [seen[site] for site in sites]


def require_places(positions: Sequence[int], first: int, last: int) -> None:
    """Raise unless there is at least one position, all of them from `first` to `last`."""
    if not positions or not first <= min(positions) <= max(positions) <= last:
        raise InputError(
            f"positions={short_repr(positions)} are not positions from {first} to {last}.",
            f"Give at least one position from {first} to {last}.",
        )


def streams_at(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    sites: Iterable[str],
    context: Mapping[str, Any] | None = None,
    at: Any = slice(None),
) -> dict[str, Tensor]:
    """The activations at some hook points, and positions, in one forward pass, detached."""
    seen: dict[str, Tensor] = {}

    def keep(site: str, tensor: Tensor) -> None:
        seen[site] = tensor[:, at].detach().clone()

    forward(run, ids, [(site, partial(keep, site)) for site in sites], context)
    return seen
