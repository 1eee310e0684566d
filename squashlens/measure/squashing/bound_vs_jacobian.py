"""Path bound, its null and the true Jacobian norm of every token in one result, and how well they rank the tokens."""

from dataclasses import asdict

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from squashlens._typing import Bridge, FrozenParts, Method, Norm, SpansOfTokens
from squashlens.bars import bar
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.bound import printed
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import PROBES, Estimation, resolved
from squashlens.measure.squashing.token_spans import Spans
from squashlens.measure.squashing.walks import (
    patterns_of,
    shares_beyond_uniform,
    top_down,
)
from squashlens.records.labels import Variable, arrays_of, as_variable, attributes
from squashlens.records.provenance import with_provenance
from squashlens.run.captured import PromptOrCapture
from squashlens.run.run import Run
from squashlens.theory.spread import are_sinks
from squashlens.theory.statistics.trends import association

ESTIMATES = ("path_bound", "null", "bound_over_null", "jacobian_frozen", "jacobian")
FREEZE: dict[str, FrozenParts] = {"jacobian_frozen": "attention", "jacobian": ()}
ENDS = ("low", "high")


@measurement(
    "attribution",
    prompts="one",
    cheaper="A sketch, or one of fewer n_probes=, takes less.",
)
def bound_vs_jacobian(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    norm: Norm = "spectral",
    query: int = -1,
    spans: SpansOfTokens = None,
    method: Method = "auto",
    n_probes: int = PROBES,
    vjp_batch_size: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Sensitivity of y_n to each token: the path bound of Theorem 5.1, its null, and the true Jacobian norms.

    The result also says how well the bound and the null rank the tokens, compared with the Jacobian. Several prompts
    are measured one by one.

    Args:
        model, prompt, query: as in `path_bound`.
        norm, n_probes, vjp_batch_size, seed: as in `jacobian_norms`, of which this takes twice the time.
        method: ``"auto"`` (the default), ``"exact"`` or ``"sketch"``, as in `jacobian_norms`.
        spans: as in `jacobian_norms` and `path_bound`; the correlations are then over spans, without any that has the
            query token or BOS.

    Returns:
        Dataset. Over (position) up to the query, all dimensionless: `path_bound`, with the constants 1; `null`, the
        same under uniform attention; `bound_over_null`, their ratio; `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `jacobian_frozen`, the
        same with attention patterns held constant, as the theorem assumes. Sketched ones also have `…_low` and
        `…_high`, intervals that hold for all tokens together with 95 % probability. Over (estimate), with these five as
        coordinate: `rank_agreement`, Spearman's ρ with the Jacobian, and `position_trend`, Spearman's ρ with the
        position. Each has `…_low` and `…_high`, the ends of a 95 % interval, and `…_p`, the p-value of no association,
        Holm-corrected for the estimates tested; both allow for dependence between neighbouring tokens
        (`squashlens.theory.statistics.trends`). The scalar
        `compared_tokens` is the number of tokens in the correlations. Correlations leave
        out the query token, a leading BOS and attention sinks (`sink` is 1, as in `attention_sinks`), whose values are
        of another kind. ρ is NaN for a constant quantity or with fewer than three tokens; intervals need four tokens.
        Several prompts have a leading dimension `prompt`, and are padded as in `path_bound`.

    Raises:
        InputError: a query or span outside the prompt, or spans of several prompts.

    Source: Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ds = sl.bound_vs_jacobian(model, "How many ones are in the following sequence? 110 =")
    >>> bool((ds["jacobian"] > 0).all()), round(ds["rank_agreement"].sel(estimate="jacobian").item(), 9)
    (True, 1.0)
    """
    run = Run.open(model, **this_call())
    way = Estimation(
        method=method,
        n_probes=n_probes,
        vjp_batch_size=vjp_batch_size,
        seed=seed,
    )
    way = resolved(way, run, ("exact", "sketch"))
    run = run.given(prompt, method=way.method)
    n = run.query(query)
    blocks = range(run.n_blocks)
    run, groups = Spans.of(run, spans)
    patterns = patterns_of(run, "model", blocks)
    # From the top block down, as the bound multiplies them.
    down = list(reversed(patterns.values()))
    uniform = top_down(run, "uniform", 0, len(blocks))
    bound = printed(run, groups, "model", down, n)
    null = printed(run, groups, "uniform", uniform, n)
    over_null = attributes("path bound relative to uniform attention", "1")
    quantities = {
        "path_bound": bound,
        "null": null,
        "bound_over_null": (bound / null).assign_attrs(over_null),
    }
    for name, freeze in bar(FREEZE.items(), desc="bound_vs_jacobian", unit="quantity"):
        norms = jacobian_norms(
            run.model,
            run.capture or run.ids,
            norm=norm,
            freeze=freeze,
            query=n,
            spans=None if groups is None else groups.named(),
            **asdict(way),
        )
        quantities |= _with_ends_apart(name, norms.assign_coords(run.coords()[1]))
    dataset = xr.Dataset(
        {name: as_variable(values, name) for name, values in quantities.items()}
    )
    sinks = are_sinks(shares_beyond_uniform(run, patterns))
    run, dataset = _ranked(run, groups, dataset, sinks, n, norm)
    dataset = dataset.assign_coords(estimate=list(ESTIMATES))
    dataset = dataset.assign_attrs(
        long_name="sensitivity of the query's representation"
    )
    return with_provenance(dataset, run.as_run())


def _with_ends_apart(name: str, norms: xr.DataArray) -> dict[str, xr.DataArray]:
    """A norm by name, and the coordinates `low` and `high` of a sketched one as `<name>_low` and `<name>_high`."""
    quantities = {name: norms.drop_vars(ENDS, errors="ignore")}
    for end in ENDS:
        if end in norms.coords:
            quantities[f"{name}_{end}"] = norms[end].drop_vars(ENDS)
    return quantities


def _ranked(
    run: Run,
    groups: Spans | None,
    dataset: xr.Dataset,
    sinks: Bool[Tensor, " position"],
    query: int,
    norm: Norm,
) -> tuple[Run, xr.Dataset]:
    """The quantities up to the query, with sinks marked, and rank correlations over the other tokens or spans.

    A span is a sink if one of its tokens is. The run is that whose provenance has the spans that are in the result.
    """
    # The positions of each entry of the result, a token or a span.
    positions = [[position] for position in range(run.positions)]
    if groups is not None:
        positions = groups.positions
    is_sink = np.array([bool(sinks[inside].any()) for inside in positions])
    first = np.array([min(inside) for inside in positions])
    last = np.array([max(inside) for inside in positions])
    about = attributes("whether the token is an attention sink", "1")
    dataset["sink"] = ("position", is_sink.astype(float), about)
    # Correlations are over tokens after a leading BOS and before the query.
    is_compared = ~is_sink & (first >= run.facts["bos_count"]) & (last < query)
    ranks = _ranks(dataset.isel(position=np.flatnonzero(is_compared)), norm)
    up_to_query = np.flatnonzero(first <= query)
    if groups is not None:
        run = run.knowing(spans=[groups.positions[entry] for entry in up_to_query])
    return run, dataset.isel(position=up_to_query).assign(arrays_of(ranks))


def _ranks(inner: xr.Dataset, norm: Norm) -> dict[str, Variable]:
    """Rank correlations over the compared tokens of each estimate with the Jacobian, and with the position."""
    # (estimate, token)
    values = inner[list(ESTIMATES)].to_array("estimate").values
    table = torch.tensor(values, dtype=torch.float64)
    truth = table[ESTIMATES.index("jacobian")]
    n_tokens = len(truth)
    agreement = association(table, truth)
    # The Jacobian agrees with itself: that is no test, and NaN is left out of Holm's correction.
    itself = torch.from_numpy(np.array(ESTIMATES) == "jacobian")
    agreement = agreement._replace(p=agreement.p.masked_fill(itself, torch.nan))
    trend = association(table, torch.arange(n_tokens, dtype=torch.float64))
    among = "the estimates that are tested"
    return {
        **agreement.corrected().variables(
            "rank_agreement",
            f"Spearman correlation with the {norm} norm of the Jacobian",
            "estimate",
            among=among,
        ),
        **trend.corrected().variables(
            "position_trend",
            "Spearman correlation of the estimate with the position",
            "estimate",
            among=among,
        ),
        "compared_tokens": ((), n_tokens, "tokens in the correlations", "1"),
    }
