"""A sketch of the Jacobian raised to an upper bound, certified: in float64, with rounding allowed for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm, RowsKept, Target
from squashlens.measure._products import Products
from squashlens.measure._rows import frobenius_of
from squashlens.measure._session import Session
from squashlens.model.anatomy import width
from squashlens.model.exact import CERTIFIES, certifying
from squashlens.model.hooks import Hook, Recipe
from squashlens.model.sight import reached, rounding_in, sights
from squashlens.theory.edges import with_rounding
from squashlens.theory.norms import direction_factor, sketch_factors

FAILURE = 1e-6  # the chance that any of the values is too low


def upper_sketch(
    session: Session, spans: Mapping[Target, int], hooks: Sequence[Hook | Recipe], source: int, query: int,
    norm: Norm, probes: int, seed: int, rows: RowsKept, chunk: int | None, progress: bool,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:  # fmt: skip
    """Upper bounds on ‖J_i‖ for each target from ``GJ_i``, G of `probes` standard normal rows, and the certificate."""
    model, n = session.model, session.positions
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(width(model), probes, generator=generator, dtype=torch.float64).T
    chance = FAILURE / (len(spans) * session.ids.numel())
    if norm == "spectral":
        factor = direction_factor(probes, chance)
    else:
        factor = sketch_factors(probes, chance)[1] / math.sqrt(probes)
    found: dict[Target, Tensor] = {}
    rounding = 0.0
    with certifying(model):
        blocks = range(source, max(spans.values()))
        seen = [sights(model, ids[None], hooks, blocks) for ids in session.ids]
        here = torch.arange(n)[None] == query
        for to, top in spans.items():
            products = Products(session, hooks, source, top, to, query, chunk, progress)
            along = products.along(directions)
            values = products.spectral(directions, rows)[0] if norm == "spectral" else frobenius_of(along)
            raised = []
            for sight, row in zip(seen, factor * values.cpu(), strict=True):
                inside = range(source, top)
                lost = rounding_in(model, sight, inside, n)
                raised.append(with_rounding(row[None], reached(sight, inside, here), lost)[0])
                rounding = max(rounding, lost)
            found[to] = torch.stack(raised)
    return found, {
        "certifies": CERTIFIES, "rounding": rounding, "failure_probability": FAILURE, "factor": factor,
    }  # fmt: skip
