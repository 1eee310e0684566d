"""Estimates of Jacobian norms from products with random cotangents, each with an interval.

The rows of G are standard normal cotangents, and the products are the rows of ``GJ_i``. For k = `n_probes`:

- Frobenius norm: ``‖GJ_i‖_F / √k``, whose square is unbiased. The ends of the interval are it times `sketch_factors`.
- Spectral norm: the upper end is `spike_sizes` times `direction_factor`; the lower end is the larger of the norm of
  J_i in the row space of G and the lengths that quarters of G see of the direction that the others find (`upper`).

All intervals of a result hold together, except with probability `MISSED`; with ``rtol=`` it is that of each of them.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Norm, positive
from squashlens.engine.anatomy import device_of, n_blocks, width
from squashlens.errors import InputError
from squashlens.measure.squashing.jacobians.products import Products
from squashlens.measure.squashing.jacobians.upper import Measure, frobenius_ends
from squashlens.options import Estimation
from squashlens.remarks import remark
from squashlens.theory.norms import mean_interval
from squashlens.theory.probes import normals, seed_of

FIRST = 16  # probes with rtol= before the interval is computed for the first time
MISSED = 0.05  # probability that any norm of a result is outside its interval
# Operations for each token up to which "auto" takes the exact norm: a second for ten tokens on two cores.
EXACT = {"cpu": 2e10, "cuda": 2e12}
ByToken = Float[Tensor, "prompt position"]


def resolved(given: Estimation, model: Bridge, allowed: Collection[str], *, certifies: bool = False) -> Estimation:
    """The options with the method that ``"auto"`` stands for, and a seed.

    The method depends on the model and its device, and not on the prompt. Raises for one that is not `allowed`.
    """
    positive(given.n_probes, "n_probes", "a number of directions")
    method = given.method
    if method not in ("auto", *allowed):
        raise InputError(f"method={method!r} cannot be used here.", f"Use one of {', '.join(('auto', *allowed))}.")
    if method == "auto":
        weights = sum(p.numel() for block in list(model.blocks)[: n_blocks(model)] for p in block.parameters())
        most = EXACT["cpu" if device_of(model).type == "cpu" else "cuda"]
        exact = width(model) <= given.n_probes or 2 * width(model) * weights <= most
        method = "exact" if exact else "sketch"
    certifies = certifies or method in ("sketch_upper", "lanczos")
    positions = None if given.positions is None else list(given.positions)
    return replace(given, method=method, positions=positions, seed=seed_of(given.seed, certifies=certifies))


def seed_in(method: Estimation) -> int:
    """The seed of resolved options."""
    return cast(int, method.seed)


def sketched(
    products: Products, norm: Norm, n_probes: int, seed: int, targets: int
) -> tuple[ByToken, dict[str, ByToken], dict[str, Any]]:
    """The estimates, the ends of their intervals, and what the provenance says of them."""
    d = width(products.session.model)
    facts: dict[str, Any] = {"kind": "estimate", "n_probes": n_probes, "seed": seed}
    directions = normals(seed)(d, n_probes).T
    each = MISSED / 2 / (targets * products.count)
    if norm == "frobenius":
        ends = frobenius_ends(products.frobenius(directions), n_probes, each)
    else:
        measure = Measure(directions)
        ends = measure.ends(products.measured(directions, products.storage(n_probes), measure), each)
    return ends.estimate, {"low": ends.low, "high": ends.high}, {"sketch": facts | {"failure_probability": MISSED}}


def until(products: Products, rtol: float, seed: int) -> tuple[ByToken, dict[str, ByToken], dict[str, Any]]:
    """A Frobenius norm sketched until its interval is narrow enough, the ends of the interval, and provenance facts."""
    d, generator = width(products.session.model), torch.Generator().manual_seed(seed)
    squares: list[Tensor] = []
    taken = 0
    while True:
        more = min(d - taken, max(FIRST, taken // 2))
        directions = torch.randn(more, d, generator=generator, dtype=torch.float64)
        new = [rows.double().square().sum(dim=-1) for rows in products.along(directions)()]
        squares += new if products.spans is None else [products.spans.sums(part) for part in new]
        taken += more
        mean, half = mean_interval(torch.cat(squares))
        ends = {"low": (mean - half).clamp(min=0).sqrt(), "high": (mean + half).sqrt()}
        reached = float(((ends["high"] - ends["low"]) / (2 * mean.sqrt())).nan_to_num(0).max())
        if reached <= rtol or taken == d:
            break
    if reached > rtol:
        remark(
            f"rtol={rtol:g} was not reached after {taken} probes, as many as the exact norm takes; the interval is "
            f"±{reached:.1%}."
        )
    sketch = {"kind": "estimate", "probes": taken, "seed": seed, "rtol": rtol, "reached": reached}
    return mean.sqrt(), ends, {"sketch": sketch}
