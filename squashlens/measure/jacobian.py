"""The true sensitivity: norms of ∂y_n/∂v⁽⁰⁾_i by automatic differentiation, all positions at once.

One vector–Jacobian product with the k-th unit cotangent at (n, k) gives row k of J_i for every i, so d of
them give every block. They run in batches, block by block of the model where nobody's hooks stand on it, so that the
memory of a long prompt is that of one block; a sketch takes fewer products than d.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bos, Bridge, Freezable, Method, Norm, RowsKept, Target, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._products import Products, until
from squashlens.measure._rows import frobenius_of
from squashlens.measure._session import Session
from squashlens.measure._unequal import one_by_one
from squashlens.measure._upper import upper_sketch
from squashlens.model.anatomy import dtype_of, width
from squashlens.model.capture import Given
from squashlens.model.freeze import freezing
from squashlens.model.registry import measured
from squashlens.remarks import remark
from squashlens.theory.norms import sketch_factors


@measured
@one_by_one()
def jacobian_norms(
    model: Bridge,
    prompts: Given,
    *,
    norm: Norm = "spectral",
    freeze: Freezable | Collection[Freezable] = (),
    method: Method = "exact",
    probes: int = 32,
    rtol: float | None = None,
    seed: int = 0,
    rows: RowsKept = "auto",
    query: int = -1,
    source: int = 0,
    target: Target | Sequence[Target] = "y",
    chunk: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.DataArray:
    """‖∂y_n/∂v⁽⁰⁾_i‖ for every token i, exact, from d vector–Jacobian products; or a sketch of it from fewer.

    ``"spectral"`` is the largest singular value of the d × d block J_i, ``"frobenius"`` the root of the sum of
    its squared entries. Dimensionless: change of the target per unit change of the residual stream.

    ``method="sketch"`` takes `probes` products, seeded. Frobenius: ``‖GJ_i‖_F/√k`` with G Gaussian; its square is
    without bias, with a relative standard deviation of at most √(2/k). Spectral: the largest singular value of
    ``QJ_i`` with the rows of Q orthonormal, a **lower** bound. ``"sketch_upper"`` is the norm of ``GJ_i`` raised so
    that it is an **upper** bound at every position but for one chance in a million. It is a certificate on the exact
    derivative of the model with its stored weights: everything runs in float64, and rounding is allowed for.

    Args:
        freeze: what is held constant, one name or several: ``"attention"`` (patterns, the theorem's
            assumption), ``"norms"`` (every norm's denominator), ``"gates"`` (MLPs made linear). With all three
            the model is linear at this input, up to its biases.
        probes, seed: how many directions a sketch takes, and what draws them. From d on `"exact"` costs no more.
        rtol: take probes until the 95 % interval of a sketched Frobenius norm is within ± `rtol` of it at every
            position (at most d); the result has the coordinates `low` and `high`, from the probes' own spread.
        rows: spectral norms only: how the rows of all blocks are kept together: ``"hold"`` in memory, ``"spill"`` to
            a file, ``"repeat"`` the products for some positions at a time; ``"auto"``: the first that fits.
        query: the position n that is differentiated; counted from the end if negative.
        source: layer ℓ whose residual stream v⁽ℓ⁾ is moved (after any hooks standing there).
        target: ``"y"``, or layer ℓ for v⁽ℓ⁾_n; a list gives a leading `target` dimension.
        chunk: cotangents per batch; chosen to fit in about a gigabyte if not given.

    Returns:
        DataArray (position), or (prompt, position); exactly 0 behind the query. float64, from VJPs in the
        model's dtype. The provenance of a sketch says what kind of number it is: a lower bound, an estimate with
        the factors of its 95 % interval, or an upper bound with its failure probability. Prompts of unequal lengths
        are measured one by one and padded: behind a prompt's own tokens (the coordinate `length` has their number)
        values are NaN, the token is "" and the token_id −1.

    Refuses: a spectral norm whose rows do not fit in the way asked for (the message gives the size).

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
    positive(probes, "probes", "a number of directions")
    if rtol is not None and not (method == "sketch" and norm == "frobenius" and 0 < rtol < 1):
        raise InputError(
            f"rtol={rtol!r} has no meaning here.", "Between 0 and 1, with method='sketch', norm='frobenius'."
        )
    if chunk is not None:
        positive(chunk, "chunk", "a batch size")
    hooks = freezing(freeze)
    frozen = [h.name.removeprefix("freeze_") for h in hooks]
    session = Session.start(
        model, prompts, bos, "jacobian_norms",
        norm=norm, freeze=frozen, method=method, query=query, source=source, target=target,
    )  # fmt: skip
    spans = session.spans(source, target)
    kinds = {"exact": "", "sketch": "sketched ", "sketch_upper": "upper bound on the "}
    long_name = f"{kinds[method]}{norm} norm of the Jacobian" + (f", {' and '.join(frozen)} frozen" if frozen else "")
    n, found = session.query(query), {}
    if method == "sketch_upper":
        bounds, certificate = upper_sketch(session, spans, hooks, source, n, norm, probes, seed, rows, chunk, progress)
        about = {"kind": "upper bound", "probes": probes, "seed": seed} | certificate
        stated = {name: certificate[name] for name in ("rounding", "failure_probability")}
        for to, values in bounds.items():
            labelled = session.label(values, "jacobian_norm", long_name, "1", sketch=about)
            found[to] = labelled.assign_attrs(stated)
        return session.by_target(target, found)
    directions, about = _directions(session, norm, method, probes, seed)
    said: dict[str, Any] = {} if method == "exact" else {"sketch": about | {"probes": probes, "seed": seed}}
    if dtype_of(session.model).itemsize < 4:
        remark("In half precision small Jacobian entries come out several times too large; load in float32.")
    for to, top in spans.items():
        products = Products(session, hooks, source, top, to, n, chunk, progress)
        ends: dict[str, Tensor] = {}
        if rtol is not None:
            values, ends, said = until(products, rtol, seed)
        elif norm == "spectral":
            values, said["rows"] = products.spectral(directions, rows)
        else:
            values = frobenius_of(products.along(directions))
        facts = said | {"attention_implementation": products.attention}
        labelled = session.label(values, "jacobian_norm", long_name, "1", **facts)
        for name, end in ends.items():
            labelled[name] = session.label(end, name, f"{name} end of the 95 % interval", "1")
        found[to] = labelled
    return session.by_target(target, found)


def _directions(
    session: Session, norm: Norm, method: Method, probes: int, seed: int
) -> tuple[Float[Tensor, "cotangent d"], dict[str, Any]]:
    """The cotangents to take, and what the provenance says of them."""
    d = width(session.model)
    if method == "exact":
        return torch.eye(d, dtype=torch.float64), {}
    drawn = torch.randn(d, probes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if norm == "spectral":
        return torch.linalg.qr(drawn).Q.T, {"kind": "lower bound"}
    return drawn.T / math.sqrt(probes), {"kind": "estimate", "interval_95": sketch_factors(probes, 0.025)}
