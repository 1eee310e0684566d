"""A certified upper bound on Jacobian norms from a sketch, in float64 and with an allowance for rounding."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm, RowsKept, Target
from squashlens.engine.anatomy import width
from squashlens.engine.differentiating.exact import CERTIFIES, certifying
from squashlens.engine.differentiating.visibility import derivative_rounding, tokens_reaching, visibilities
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.products import Products
from squashlens.measure.squashing.jacobians.rows import frobenius_of
from squashlens.theory.edges import with_rounding
from squashlens.theory.norms import direction_factor, sketch_factors

FAILURE = 1e-6  # probability that any of the values is too low


# More than ten parameters, since it takes all options of `jacobian_norms` that apply.
def upper_sketch(
    session: Session, spans: Mapping[Target, int], hooks: Sequence[Hook | Recipe], from_layer: int, query: int,
    norm: Norm, n_probes: int, seed: int, rows: RowsKept, batch_size: int | None, progress: bool,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:  # fmt: skip
    """Upper bounds on ‖J_i‖ for each target, and their certificate.

    They are the norms of ``G J_i`` times a factor, where G has `n_probes` standard normal rows.
    """
    model, n = session.model, session.positions
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(width(model), n_probes, generator=generator, dtype=torch.float64).T
    chance = FAILURE / (len(spans) * session.ids.numel())
    if norm == "spectral":
        factor = direction_factor(n_probes, chance)
    else:
        factor = sketch_factors(n_probes, chance)[1] / math.sqrt(n_probes)
    found: dict[Target, Tensor] = {}
    rounding = 0.0
    with certifying(model):
        blocks = range(from_layer, max(spans.values()))
        seen = [visibilities(model, ids[None], hooks, blocks) for ids in session.ids]
        here = torch.arange(n)[None] == query
        for to, top in spans.items():
            products = Products(session, hooks, from_layer, top, to, query, batch_size, progress)
            along = products.along(directions)
            values = products.spectral(directions, rows)[0] if norm == "spectral" else frobenius_of(along)
            raised = []
            for sight, row in zip(seen, factor * values.cpu(), strict=True):
                inside = range(from_layer, top)
                lost = derivative_rounding(model, sight, inside, n)
                raised.append(with_rounding(row[None], tokens_reaching(sight, inside, here), lost)[0])
                rounding = max(rounding, lost)
            found[to] = torch.stack(raised)
    return found, {
        "certifies": CERTIFIES, "rounding": rounding, "failure_probability": FAILURE, "factor": factor,
    }  # fmt: skip
