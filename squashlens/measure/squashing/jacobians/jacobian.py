"""The true sensitivity: norms of ∂y_n/∂v⁽⁰⁾_i by automatic differentiation, for all positions at once.

One vector–Jacobian product (VJP) with the k-th unit cotangent at position n gives row k of J_i for every i, so that d
products give all blocks J_i. The products run in batches. If the model has no hooks, they run block by block, so that a
long prompt needs the memory of one block only. A sketch takes fewer than d products.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bos, Bridge, Freezable, Method, Norm, RowsKept, Target, one_of, positive
from squashlens.engine.anatomy import dtype_of, width
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.hooking.freeze import freezing
from squashlens.engine.proving.registry import measured
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.products import Products, until
from squashlens.measure.squashing.jacobians.rows import frobenius_of
from squashlens.measure.squashing.jacobians.upper import Ends, upper_sketch
from squashlens.measure.unequal import one_by_one
from squashlens.remarks import remark
from squashlens.theory.norms import sketch_factors


# More than ten parameters, since each is an independent option of the measurement; all have defaults. They alone make
# the function a little longer than 60 lines.
@measured
@one_by_one()
def jacobian_norms(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    norm: Norm = "spectral",
    freeze: Freezable | Collection[Freezable] = (),
    method: Method = "exact",
    n_probes: int = 32,
    rtol: float | None = None,
    tightness: float | None = None,
    seed: int = 0,
    rows: RowsKept = "auto",
    query: int = -1,
    from_layer: int = 0,
    to_layer: Target | Sequence[Target] = "y",
    vjp_batch_size: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.DataArray:
    """The norm ‖∂y_n/∂v⁽⁰⁾_i‖ of the Jacobian with respect to each token i, exact or estimated.

    The exact norm takes d vector–Jacobian products (VJPs). A sketch takes k = `n_probes` of them. Sketched Frobenius
    norm: ``‖G J_i‖_F / √k`` with a Gaussian G; its square is unbiased and has a relative standard deviation of at most
    √(2/k). Sketched spectral norm: the largest singular value of ``Q J_i``, where the k rows of Q are orthonormal. It
    is a **lower** bound. ``method="sketch_upper"`` multiplies the norm of ``G J_i`` by a factor that makes it an
    **upper** bound at all positions at once, except with probability one in a million. The upper bound is certified for
    the exact derivative of the model with its stored weights: all steps run in float64, and rounding is allowed for.

    Args:
        model: as in `path_bound`.
        prompt: as in `path_bound`.
        norm: norm of the d × d block J_i: ``"spectral"`` (the default), its largest singular value, or
            ``"frobenius"``, the root of the sum of its squared entries.
        freeze: parts of the model held constant, one or several: ``"attention"``, the attention patterns, as Theorem
            5.1 assumes; ``"norms"``, the denominators of all norms; ``"gates"``, the nonlinearities of the MLPs.
            With all three the model is linear at this input, up to its biases. Nothing by default.
        method: way to compute the norm: ``"exact"`` (the default), ``"sketch"``, an estimate or lower bound from
            `n_probes` products, or ``"sketch_upper"``, a certified upper bound from `n_probes` products.
        n_probes: number of random directions of a sketch; 32 by default. With d or more, the exact norm is no slower.
        rtol: relative half-width of the 95 % interval at which a sketched Frobenius norm stops taking more probes (at
            most d), between 0 and 1; by default exactly `n_probes` are taken. The result then has the coordinates
            `low` and `high`.
        tightness: a certified upper bound on the spectral norm divided by that norm, above 1: the upper bound takes
            more directions until the quotient is estimated to be at most this at every position, and `n_probes` is not
            used; by default exactly `n_probes` are taken. The estimate is cautious: with 3, it took 194 directions on a
            random model with d of 512, where 96 gave 2.6.
        seed: random seed of the directions of a sketch; 0 by default.
        rows: storage of the Jacobian's rows for spectral norms: ``"hold"`` keeps all in memory, ``"spill"`` writes
            them to a temporary file, ``"repeat"`` repeats the products for a few positions at a time; ``"auto"`` (the
            default) takes the first of these that fits.
        query: as in `path_bound`.
        from_layer: layer ℓ whose residual stream v⁽ℓ⁾ is the input of the derivative, after any hooks at that point;
            0, the embeddings, by default.
        to_layer: layer whose residual stream at the query is differentiated: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the
            default) for the output of the final norm. A list of them gives a leading dimension `to_layer`, whose
            labels are text: ``"3"``, ``"y"``.
        vjp_batch_size: number of cotangents per batch; chosen to fit in about a gigabyte by default.
        bos: as in `path_bound`.
        progress: as in `path_bound`.

    Returns:
        DataArray (position), or (prompt, position) for several prompts: float64, from products in the model's dtype;
        dimensionless, the change of the target per unit change of the residual stream; exactly zero for positions
        after the query. The provenance of a sketch says whether it is a lower bound, an estimate (with the factors of
        its 95 % interval) or an upper bound (with its failure probability and its estimated tightness). An upper bound
        on the spectral norm has the coordinate `low`, a certified lower bound, with the same failure probability.
        Results of prompts of unequal
        lengths are padded as in `path_bound`.

    Raises:
        InputError: `rtol` without a sketched Frobenius norm, `tightness` without an upper bound on the spectral norm,
            or a query or layer that does not exist.
        CapacityError: the rows for a spectral norm do not fit with the chosen `rows`; the message states their size.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "How many ones are in the following sequence? 110 ="
    >>> spectral = sl.jacobian_norms(model, prompt, progress=False)
    >>> frobenius = sl.jacobian_norms(model, prompt, norm="frobenius", progress=False)
    >>> bool((spectral <= frobenius).all())
    True
    """
    one_of(norm, Norm, "norm")
    one_of(method, Method, "method")
    one_of(rows, RowsKept, "rows")
    positive(n_probes, "n_probes", "a number of directions")
    _require_goal(method, norm, rows, rtol, tightness)
    if vjp_batch_size is not None:
        positive(vjp_batch_size, "vjp_batch_size", "a batch size")
    hooks = freezing(freeze)
    frozen = [h.name.removeprefix("freeze_") for h in hooks]
    session = Session.start(
        model, prompt, bos, "jacobian_norms",
        norm=norm, freeze=frozen, method=method, query=query, from_layer=from_layer, to_layer=to_layer,
    )  # fmt: skip
    spans = session.spans(from_layer, to_layer)
    kinds = {"exact": "", "sketch": "sketched ", "sketch_upper": "upper bound on the "}
    long_name = f"{kinds[method]}{norm} norm of the Jacobian" + (f", {' and '.join(frozen)} frozen" if frozen else "")
    n, found = session.query(query), {}
    if method == "sketch_upper":
        bounds, certificate = upper_sketch(
            session, spans, hooks, from_layer, n, norm, n_probes, tightness, seed, rows, vjp_batch_size, progress
        )
        sketch = {"kind": "upper bound", "n_probes": n_probes, "seed": seed} | certificate
        sketch |= {} if tightness is None else {"tightness": tightness}
        return session.by_layer(to_layer, _labelled_bounds(session, bounds, norm, long_name, sketch))
    directions, sketch = _directions(session, norm, method, n_probes, seed)
    facts: dict[str, Any] = {} if method == "exact" else {"sketch": sketch | {"n_probes": n_probes, "seed": seed}}
    if dtype_of(session.model).itemsize < 4:
        remark("In half precision, small Jacobian entries are several times too large. Load the model in float32.")
    for to, top in spans.items():
        products = Products(session, hooks, from_layer, top, to, n, vjp_batch_size, progress)
        ends: dict[str, Tensor] = {}
        if rtol is not None:
            values, ends, facts = until(products, rtol, seed)
        elif norm == "spectral":
            values, facts["rows"] = products.spectral(directions, rows)
        else:
            values = frobenius_of(products.along(directions))
        ran = {"attention_implementation": products.attention}
        labelled = session.label(values, "jacobian_norm", long_name, "1", **facts, **ran)
        for name, end in ends.items():
            labelled[name] = session.label(end, name, f"{name} end of the 95 % interval", "1")
        found[to] = labelled
    return session.by_layer(to_layer, found)


def _require_goal(method: Method, norm: Norm, rows: RowsKept, rtol: float | None, tightness: float | None) -> None:
    """Raise for a goal of a sketch that cannot be reached or does not belong to the method."""
    if rtol is not None and not (method == "sketch" and norm == "frobenius" and 0 < rtol < 1):
        raise InputError(
            f"rtol={rtol!r} cannot be used here.",
            "Give a number between 0 and 1, with method='sketch' and norm='frobenius'.",
        )
    if tightness is None:
        return
    if not (method == "sketch_upper" and norm == "spectral" and 1 < tightness < math.inf):
        raise InputError(
            f"tightness={tightness!r} cannot be used here.",
            "Give a number above 1, with method='sketch_upper' and norm='spectral'.",
        )
    if rows == "repeat":
        raise InputError(
            "rows='repeat' cannot be used with tightness=, which adds rows to those it has.",
            "Use rows='hold' or 'spill', or leave tightness= out.",
        )


def _labelled_bounds(
    session: Session, bounds: Mapping[Target, Ends], norm: Norm, long_name: str, sketch: Mapping[str, Any]
) -> dict[Target, xr.DataArray]:
    """Certified bounds as DataArrays that state their allowance for rounding, failure probability and tightness."""
    names = ("rounding", "failure_probability", "estimated_tightness")
    stated = {name: sketch[name] for name in names if name in sketch}
    found: dict[Target, xr.DataArray] = {}
    for to, ends in bounds.items():
        found[to] = session.label(ends.high, "jacobian_norm", long_name, "1", sketch=sketch).assign_attrs(stated)
        if norm == "spectral":
            found[to]["low"] = session.label(ends.low, "low", "lower bound on the norm", "1")
    return found


def _directions(
    session: Session, norm: Norm, method: Method, n_probes: int, seed: int
) -> tuple[Float[Tensor, "cotangent d"], dict[str, Any]]:
    """The cotangents of the products, and what the provenance states about them."""
    d = width(session.model)
    if method == "exact":
        return torch.eye(d, dtype=torch.float64), {}
    drawn = torch.randn(d, n_probes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if norm == "spectral":
        return torch.linalg.qr(drawn).Q.T, {"kind": "lower bound"}
    return drawn.T / math.sqrt(n_probes), {"kind": "estimate", "interval_95": sketch_factors(n_probes, 0.025)}
