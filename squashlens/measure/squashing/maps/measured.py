"""Everything that a squash map of one prompt shows, as one result."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bos, Bridge, Norm, positive
from squashlens.engine.anatomy import n_blocks, width
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.proving.proof import require_sound
from squashlens.engine.proving.registry import measured
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.pullback import Pullback
from squashlens.measure.squashing.jacobians.sketch import MISSED, PROBES, resolved
from squashlens.measure.squashing.maps.spread import spread
from squashlens.measure.squashing.maps.traces import LONGEST, traces
from squashlens.measure.squashing.profiles.profile import ENDS, profile
from squashlens.measure.squashing.profiles.pullbacks import Sketch, norms_of, require_held
from squashlens.measure.squashing.spans import Given, Spans, recorded
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.records.results import Variable, provenance, signed

Method = Literal["auto", "exact", "sketch", "none"]
BY_QUERY = ("query", "layer", "position")
ROOM = 1_000_000  # numbers of one quantity: queries × layers × positions
CELLS = 100_000  # cells whose ways are kept, over all traced queries
RATIO = ("path bound over that under uniform attention", "1")
SAME = ("model", "fingerprint", "dtype", "device", "ambient_hooks", "replaced_functions")  # of joined results


# More than ten parameters: all of `squash_map`, and how a live map measures a further query.
@measured
def measure(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    query: int,
    method: Method,
    norm: Norm,
    certified: bool,
    n_replacements: int,
    seed: int,
    bos: Bos,
    progress: bool,
    spans: Given | None = None,
    alone: bool = False,
    accept: Callable[[Mapping[str, Any], list[int]], None] | None = None,
    tick: Callable[[float], None] | None = None,
) -> xr.Dataset:
    """What `squash_map` shows of a model and a prompt; see there for the arguments.

    With `alone`, only `query` is measured. `accept` gets the facts and token ids before anything is measured, and may
    raise. `tick` is called with the share of the Jacobian's rows that are done.
    """
    positive(n_replacements, "n_replacements", "a number of tokens", or_zero=True)
    model = require_sound(model)
    method = resolved(method, model, PROBES)
    session = Session.start(
        model, prompt, bos, "squash_map",
        query=query, method=method, norm=norm, certified=certified, n_replacements=n_replacements, seed=seed,
        **recorded(spans),
    )  # fmt: skip
    session.require_one(tokens=2)
    if accept is not None:
        accept(session.facts, session.ids[0].tolist())
    groups = Spans.of(session, spans)
    opened, layers = session.query(query), list(range(n_blocks(session.model) + 1))
    queries = [opened] if alone else spread(range(session.positions), opened, len(layers), ROOM)
    whole = profile(
        model, prompt, queries=queries, method="none", certified=certified, n_random_models=0, seed=seed, bos=bos,
        progress=progress,
    )  # fmt: skip
    variables, coords = variables_of(whole), coords_of(whole)
    variables["bound_over_null"] = ratio(whole)
    if groups is not None:
        coords |= _of_tokens(groups, session.positions)
    sketch: dict[str, Any] = {}
    if method != "none":
        norms = _jacobian(session, queries, opened, layers, norm, method, seed, tick)
        variables |= norms
        sketch = {"sketch": {"n_probes": PROBES, "seed": seed, "failure_probability": MISSED}} if len(norms) > 1 else {}
    if n_replacements:
        variables |= _replaced(session, opened, queries, n_replacements, seed, progress)
    if session.positions <= LONGEST:
        chosen = spread(queries, opened, len(layers), CELLS)
        rows = whole["path_bound"].sel(query=chosen).values
        ways, labels = traces(session, chosen, rows)
        variables, coords = variables | ways, coords | labels
    known = provenance(whole)
    facts = {**session.facts, **sketch, **{name: known[name] for name in ("certificate",) if name in known}}
    return signed("squash map of a prompt", coords, variables, facts)


def _of_tokens(groups: Spans, n: int) -> dict[str, Any]:
    """The span of each token as coordinates: its number and name, -1 and no name for a token of none."""
    number, name = np.full(n, -1), np.full(n, "", dtype=object)
    for k, inside in enumerate(groups.positions):
        number[inside], name[inside] = k, groups.names[k]
    return {"span": ("position", number), "span_name": ("position", name)}


def of_profile(found: xr.Dataset) -> xr.Dataset:
    """The result of `profile` with the ratio of path bound and null, under the same provenance."""
    return signed(
        str(found.attrs["long_name"]), coords_of(found), variables_of(found) | {"bound_over_null": ratio(found)},
        provenance(found),
    )  # fmt: skip


def ratio(found: xr.Dataset) -> Variable:
    """Path bound ÷ null; NaN where the null is zero, as after the query."""
    bound, null = found["path_bound"].values, found["null"].values
    with np.errstate(invalid="ignore", divide="ignore"):
        return BY_QUERY, np.where(null > 0, bound / null, np.nan), *RATIO


def variables_of(found: xr.Dataset) -> dict[str, Variable]:
    """The variables of a result, as they were given to it."""
    return {
        str(name): (tuple(map(str, one.dims)), one.values, str(one.attrs["long_name"]), str(one.attrs["units"]))
        for name, one in found.data_vars.items()
    }


def coords_of(found: xr.Dataset) -> dict[str, Any]:
    return {str(name): (one.dims, one.values) for name, one in found.coords.items()}


def _jacobian(
    session: Session, queries: list[int], opened: int, layers: list[int], norm: Norm, method: Method, seed: int,
    tick: Callable[[float], None] | None,
) -> dict[str, Variable]:  # fmt: skip
    """Norms for the opened query from all layers; NaN for the other queries, which were not measured."""
    rows = PROBES if method == "sketch" else width(session.model)
    if norm == "spectral":
        require_held(session, layers, opened + 1, rows)
    pullback = Pullback(session, layers, tick=tick)
    text = f"{norm} norm of the Jacobian"
    if method == "exact":
        found = {"jacobian": (norms_of(pullback, opened, norm, torch.eye(rows, dtype=torch.float64)), text)}
    else:
        ends = Sketch(pullback, norm, rows, seed, MISSED / 2 / (len(layers) * (opened + 1))).of(opened)
        found = {"jacobian": (ends.estimate, f"sketched {text}")}
        found |= {f"jacobian_{end}": (getattr(ends, end), f"{end} end of the interval of the {text}") for end in ENDS}
    variables: dict[str, Variable] = {}
    for name, (norms, label) in found.items():
        values = np.full((len(queries), len(layers), session.positions), np.nan)
        values[queries.index(opened)] = norms.numpy()
        variables[name] = BY_QUERY, values, label, "1"
    return variables


def joined(found: xr.Dataset, more: xr.Dataset, query: int) -> xr.Dataset:
    """A map's result with the rows of one more query, which was measured alone on the same model and prompt."""
    facts, others = provenance(found), provenance(more)
    if any(facts.get(name) != others.get(name) for name in SAME):
        raise InputError(
            "The model was changed since the map was made.", "Make the map again, with `squashlens.squash_map`."
        )
    variables, coords = variables_of(found), coords_of(found)
    for dim in [dim for dim in ("query", "traced") if dim in found.dims and query in more[dim].values]:
        labels = sorted({*map(int, found[dim].values), query})
        coords[dim] = np.array(labels)
        for name, one in found.data_vars.items():
            if dim in one.dims:
                fill: Any = -1 if np.issubdtype(one.dtype, np.integer) else np.nan
                whole = one.reindex({dim: labels}, fill_value=fill).copy(deep=True)
                whole.loc[{dim: query}] = more[str(name)].sel({dim: query}).values
                variables[str(name)] = (*variables[str(name)][:1], whole.values, *variables[str(name)][2:])
    later: dict[str, Any] = {"further_queries": sorted({*facts.get("further_queries", []), query})}
    for part in ("certificate", "sketch"):
        if part in facts:
            both = [one[part]["failure_probability"] for one in (facts, others)]
            later[part] = facts[part] | {"failure_probability": sum(both)}
    return signed(str(found.attrs["long_name"]), coords, variables, facts | later)


def _replaced(
    session: Session, opened: int, queries: list[int], n_replacements: int, seed: int, progress: bool
) -> dict[str, Variable]:
    """What replacing each token does to y of the opened query; NaN for the other queries."""
    found = substitution_effect(
        session.model, session.ids, n_replacements=n_replacements, query=opened, seed=seed, bos="as-given",
        progress=progress,
    )  # fmt: skip
    variables: dict[str, Variable] = {}
    for name in ("effect", "kl"):
        values = np.full((len(queries), session.positions), np.nan)
        values[queries.index(opened)] = found[name].values
        text, unit = (str(found[name].attrs[key]) for key in ("long_name", "units"))
        variables[name] = (("query", "position"), values, text, unit)
    return variables
