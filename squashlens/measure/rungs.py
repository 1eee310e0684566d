"""The rungs of the audit's ladder: every way to say how far a token reaches, as a name and a call."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from squashlens._typing import Bridge, Freezable, Target, choices_of
from squashlens.errors import InputError
from squashlens.measure.bound import path_bound
from squashlens.measure.jacobian import jacobian_norms
from squashlens.measure.proxies import one_cotangent, rollout
from squashlens.measure.substitution import substitution_effect

TRUTH, NULL, SWAP = "Jacobian", "null", "substitution effect"


@dataclass(frozen=True)
class Rung:
    """One quantity by token: its name and kind, how it is had from a model and ids, which rung it bounds, if any."""

    name: str
    kind: str  # printed, bound, derivative, proxy, swap
    measure: Callable[[Bridge, Any], xr.DataArray]
    bounds: str | None = None


def ladder(
    *, query: int, source: int, target: Target, probes: int, replacements: int, among: list[int] | None,
    seed: int,
) -> Iterator[Rung]:  # fmt: skip
    """All rungs, from the printed bound to the swap."""
    read: dict[str, Any] = {"query": query, "bos": "as-given"}
    walk: dict[str, Any] = read | {"source": source, "target": target}
    quiet: dict[str, Any] = walk | {"progress": False}
    sets = [s for k in range(4) for s in itertools.combinations(choices_of(Freezable), k)]

    def bound(name: str, freeze: tuple[str, ...] = (), **options: Any) -> Rung:
        arguments: dict[str, Any] = quiet | options | {"freeze": freeze}
        measure: Any = lambda model, ids: path_bound(model, ids, constants="measured", **arguments)  # noqa: E731
        return Rung(name + _named(freeze), "bound", measure, TRUTH + _named(freeze))

    def derivative(name: str, **options: Any) -> Rung:
        arguments: dict[str, Any] = quiet | options
        return Rung(name, "derivative", lambda model, ids: jacobian_norms(model, ids, **arguments))

    yield Rung("paper form", "printed", lambda model, ids: path_bound(model, ids, **walk))
    yield Rung(NULL, "printed", lambda model, ids: path_bound(model, ids, attention="uniform", **walk))
    for freeze in sets:
        yield bound("analytic edges", freeze)
    yield bound("local edges", edges="local")
    yield bound("attention edges", edges="attention")
    yield bound("exact edges", edges="exact")
    yield bound("exact edges", ("attention",), edges="exact")
    yield bound("two blocks composed", edges="exact", group=2)
    if target == "y":
        if source == 0:
            yield Rung("rollout", "proxy", lambda model, ids: rollout(model, ids, **read))
        yield Rung("top-logit gradient", "proxy", lambda model, ids: one_cotangent(model, ids, of="top_logit", **walk))
    yield Rung("all-ones cotangent", "proxy", lambda model, ids: one_cotangent(model, ids, of="ones", **walk))
    options = {"method": "sketch", "probes": probes, "seed": seed}
    yield derivative(f"sketch of {probes}, Frobenius", norm="frobenius", **options)
    yield derivative(f"sketch of {probes}, spectral", **options)
    raised = derivative(f"sketch of {probes}, certified", **options | {"method": "sketch_upper"})
    yield replace(raised, kind="bound", bounds=TRUTH)
    for freeze in reversed(sets[1:]):
        yield derivative(TRUTH + _named(freeze), freeze=freeze)
    yield derivative("Frobenius norm", norm="frobenius")
    yield derivative(TRUTH)
    swapped = read | {
        "target": target, "replacements": replacements, "seed": seed, "progress": False,
        "among": among,
    }  # fmt: skip
    yield Rung(SWAP, "swap", lambda model, ids: substitution_effect(model, ids, **swapped)["effect"])


def _named(frozen: tuple[str, ...]) -> str:
    held = "all" if len(frozen) == len(choices_of(Freezable)) else " and ".join(frozen)
    return f", {held} frozen" if frozen else ""


def chosen(rungs: list[Rung], names: Iterable[str] | None) -> list[Rung]:
    """Those whose names start with one of `names`, with the Jacobian, the null, and whatever they bound."""
    if names is None:
        return rungs
    wanted = list(names)
    for name in wanted:
        if not any(rung.name.startswith(name) for rung in rungs):
            raise InputError(f"No rung is called {name!r}.", f"There are: {', '.join(r.name for r in rungs)}.")
    kept = {r.name for r in rungs if r.name.startswith(tuple(wanted))} | {TRUTH, NULL}
    kept |= {r.bounds for r in rungs if r.name in kept and r.bounds}
    return [r for r in rungs if r.name in kept]
