"""The true sensitivity: norms of ∂y_n/∂v⁽⁰⁾_i by automatic differentiation, for all positions at once.

One vector–Jacobian product (VJP) with the k-th unit cotangent at position n gives row k of J_i for every i, so that d
products give all blocks J_i. If the model has no hooks, they run block by block, so that a long prompt needs the memory
of one block only.
"""

from collections.abc import Mapping
from typing import Any

import xarray as xr

from squashlens._typing import (
    Bridge,
    FrozenParts,
    Method,
    Norm,
    SpansOfTokens,
    Target,
    Targets,
)
from squashlens.checks.arguments import and_frozen
from squashlens.hooks.freeze import freezing, frozen_parts
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.jacobians import sketch
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.squashing.token_spans import Spans
from squashlens.records.labels import arrays_of
from squashlens.remarks import remark
from squashlens.run.captured import PromptOrCapture
from squashlens.run.run import Run

# What the attributes of a certified bound state.
STATED = ("rounding", "failure_probability", "estimated_tightness")


@measurement(
    "by_token",
    prompts="equal",
    cheaper="A sketch, or one of fewer n_probes=, takes less.",
)
def jacobian_norms(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    norm: Norm = "spectral",
    freeze: FrozenParts = (),
    query: int = -1,
    from_layer: int = 0,
    to_layer: Targets = "y",
    spans: SpansOfTokens = None,
    method: Method = "auto",
    n_probes: int = sketch.PROBES,
    vjp_batch_size: int | None = None,
    seed: int = 0,
) -> xr.DataArray:
    """The norm ‖∂y_n/∂v⁽⁰⁾_i‖ of the Jacobian with respect to each token i, exact or estimated.

    The exact norm takes d vector–Jacobian products (VJPs). A sketch takes k = `n_probes` of them, the rows of
    ``G J_i`` with a Gaussian G, and gives an estimate with an interval. On Gemma 3 270M, 64 products take a tenth of
    the time of the exact norm, and estimates of the spectral norm are 0.73 to 1.25 times it. ``method="sketch_upper"``
    gives an **upper bound** that is certified for the exact derivative of the model with its stored weights: all steps
    run in float64, and rounding is allowed for, as 16 more products show it. All upper and lower bounds of the result
    hold together except with probability one in a million.

    Args:
        model, prompt, query, from_layer, to_layer: as in `path_bound`.
        norm: norm of the d × d block J_i: ``"spectral"`` (the default), its largest singular value, or
            ``"frobenius"``, the root of the sum of its squared entries.
        freeze: parts of the model held constant, one or several: ``"attention"``, the attention patterns, as Theorem
            5.1 assumes; ``"norms"``, the denominators of all norms; ``"gates"``, the nonlinearities of the MLPs.
            With all three the model is linear at this input, up to its biases. Nothing by default.
        spans: groups of tokens of a single prompt that are measured at once, with their blocks side by side:
            ``"words"``, ``"sentences"``, ``"lines"``, or positions by name. By default every token is measured by
            itself.
        method: ``"exact"``; ``"sketch"``, an estimate with an interval from `n_probes` products; ``"sketch_upper"``, a
            certified upper bound from `n_probes` products; or ``"auto"`` (the default), the exact norm if it takes at
            most 2·10¹⁰ operations a token (2·10¹² on a GPU), and a sketch otherwise. It depends on the model only, and
            the provenance says which it was (`call`).
        n_probes: number of random directions of a sketch; 64 by default, with which 60 tokens take 15 seconds of one
            core on Gemma 3 270M. More take longer in proportion, and give narrower intervals. With d or more, the exact
            norm is no slower.
        vjp_batch_size: number of cotangents per batch; chosen to fit in about a gigabyte by default.
        seed: random seed of the directions of a sketch; 0 by default. A failure probability is over the draw of these
            directions, for a model that was not built to avoid them.

    Returns:
        DataArray (position), or (prompt, position) for several prompts: float64, from products in the model's dtype;
        dimensionless; exactly zero for positions after the query; padded as in `path_bound` for prompts of unequal
        lengths. A sketch has the coordinates `low` and `high`, intervals that all hold together with 95 % probability.
        A certified upper bound has the coordinate `low`, a certified lower bound; the provenance has the failure
        probability of both, and of a spectral norm the estimated tightness. With `spans` there is one value for each:
        `position` is that of its first token, `token` its text or name, `token_id` −1, and `span_size` the number of
        its tokens; the provenance has all positions (`spans`).

    Raises:
        UnsoundModelError: with an upper bound, terms of the derivative that cancel so that rounding may change it by
            more than a tenth.
        InputError: options that the method does not have, a query, layer or span that does not exist, or spans of
            several prompts.
        CapacityError: the rows for a spectral norm do not fit into half of the free memory.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompt = "How many ones are in the following sequence? 110 ="
    >>> spectral = sl.jacobian_norms(model, prompt)
    >>> frobenius = sl.jacobian_norms(model, prompt, norm="frobenius")
    >>> bool((spectral <= frobenius).all())
    True
    """
    way = sketch.Estimation(
        method=method,
        n_probes=n_probes,
        vjp_batch_size=vjp_batch_size,
        seed=seed,
    )
    parts = frozen_parts(freeze)
    hooks = freezing(parts)
    run = Run.open(model, **this_call(freeze=parts))
    way = sketch.resolved(way, run, ("exact", "sketch", "sketch_upper"))
    run = run.given(prompt, method=way.method)
    tops = run.spans(from_layer, to_layer)
    run, groups = Spans.of(run, spans)
    n = run.query(query)
    long_name = f"{way.kind}{norm} norm of the Jacobian{and_frozen(parts)}"
    if groups is not None:
        long_name += ", of all tokens of the span together"
    by_target: dict[Target, xr.DataArray] = {}
    if way.method == "sketch_upper":
        bounds, certificate = sketch.certified_norms(
            run, tops, hooks, from_layer, n, norm, way, groups
        )
        for to, ends in bounds.items():
            by_target[to] = _certified(run, ends, long_name, certificate)
        return run.by_layer(to_layer, by_target)
    if run.dtype.itemsize < 4:
        remark(
            "In half precision, small Jacobian entries are several times too large. Load the model in float32."
        )
    for to, top in tops.items():
        pullback = Pullback(run, [from_layer], hooks, top, to, vjp_batch_size)
        products = Products(pullback, n, groups)
        # All intervals of the result, of every target, hold together.
        chance = sketch.chance_of_each(len(tops) * products.count)
        ends = sketch.ends_of(products, norm, way, chance)
        facts = {**way.facts, "attention_implementation": pullback.attention}
        norms = run.label(ends.estimate, "jacobian_norm", long_name, "1", **facts)
        by_target[to] = norms
        if way.method == "sketch":
            by_target[to] = norms.assign_coords(_interval(run, ends))
    return run.by_layer(to_layer, by_target)


def _certified(
    run: Run, ends: sketch.Ends, long_name: str, certificate: Mapping[str, Any]
) -> xr.DataArray:
    """The certified upper bound of each token, with the lower bound as a coordinate, and the certificate's numbers."""
    bound = run.label(ends.high, "jacobian_norm", long_name, "1", sketch=certificate)
    low = run.by_token(ends.low, "lower bound on the norm", "1")
    stated = {name: certificate[name] for name in STATED if name in certificate}
    return bound.assign_coords(arrays_of({"low": low})).assign_attrs(stated)


def _interval(run: Run, ends: sketch.Ends) -> dict[str, Any]:
    """The ends of the interval of each norm, as coordinates."""
    text = "end of the 95 % interval"
    low = run.by_token(ends.low, f"low {text}", "1")
    high = run.by_token(ends.high, f"high {text}", "1")
    return arrays_of({"low": low, "high": high})
