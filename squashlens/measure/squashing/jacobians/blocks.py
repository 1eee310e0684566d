"""The blocks of the Jacobian themselves, with their leading singular directions: what is read of a token, and where
it goes."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, FrozenParts, Target, distinct, positive
from squashlens.checks.arguments import and_frozen
from squashlens.errors import UnsoundModelError
from squashlens.hooks.freeze import freezing, frozen_parts
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.variables import variables_of
from squashlens.model.memory import require_room
from squashlens.records.labels import Variable
from squashlens.run.activations import require_places, streams_at
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import logits_of, require_understood
from squashlens.run.run import Run

RANKS = 5  # tokens that a direction raises or lowers most
# Copies of the blocks in memory: rows, the result, and what a singular value decomposition needs.
COPIES = 4
Logits = Float[Tensor, "place direction outcome"]
BY_DIRECTION = "position direction"
BY_RANK = "position direction rank"
TABLE = {
    "jacobian": ("position out in", "blocks of the Jacobian", "1"),
    "singular_value": (BY_DIRECTION, "singular values of the blocks", "1"),
    "share": (BY_DIRECTION, "share of the squared Frobenius norm", "1"),
    "left": ("position direction out", "left singular vectors", "1"),
    "right": ("position direction in", "right singular vectors", "1"),
    "raised_token": (BY_RANK, "tokens whose logits are raised most", "text"),
    "lowered_token": (BY_RANK, "tokens whose logits are lowered most", "text"),
    "raised": (BY_RANK, "change of the logits that are raised most", "nats"),
    "lowered": (BY_RANK, "change of the logits that are lowered most", "nats"),
}


@measurement("jacobian", cheaper="Fewer positions= takes less.")
def jacobian(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    query: int = -1,
    positions: Iterable[int] | None = None,
    k: int = 3,
    freeze: FrozenParts = (),
    from_layer: int = 0,
    to_layer: Target = "y",
    vjp_batch_size: int | None = None,
) -> xr.Dataset:
    """The blocks J_i = ∂y_n/∂v⁽⁰⁾_i of the Jacobian, and their leading singular directions.

    ``J_i = Σ_m σ_m a_m b_mᵀ`` with σ₁ ≥ σ₂ ≥ …: a step along the right direction b_m in the residual stream of token i
    moves the output at the query by σ_m along the left direction a_m. So b_m is what is read of the token, and a_m is
    where it goes. If the output is y, the change of the logits says which next tokens that raises and lowers.

    Args:
        model, query: as in `path_bound`.
        prompt: as in `path_bound`, but a single prompt.
        positions: positions i of the tokens; all up to the query by default.
        k: number of leading singular directions of each block; 3 by default.
        freeze, vjp_batch_size: as in `jacobian_norms`.
        from_layer: as in `path_bound`.
        to_layer: layer at which influence ends, ``"y"`` by default; one, and no list.

    Returns:
        Dataset, dimensionless unless it says so. `jacobian` (position, out, in), the blocks in float64, from products
        in the model's dtype. Over (position, direction): `singular_value`; `share`, σ² divided by the sum of all σ².
        `left` (position, direction, out) and `right` (position, direction, in), unit vectors with arbitrary common
        signs: the entry of `left` with the largest absolute value is positive. Where several σ are equal, so are their
        directions, up to rotation.

        With ``to_layer="y"``, over (position, direction, rank): `raised_token` and `lowered_token`, the tokens whose
        logits change most, and `raised` and `lowered`, the change σ ∂logit/∂y · a for a step of length 1 along b, in
        nats, less its mean over the vocabulary. They are left out for another `to_layer`, and for a model whose logits
        do not follow from y; the provenance says so (`unembedded`).

    Raises:
        InputError: several prompts, or a query, position or layer that does not exist.
        CapacityError: the blocks do not fit into memory; the message states their size.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.jacobian(model, "110 =", positions=[3], k=2)
    >>> norm = sl.jacobian_norms(model, "110 =")[3]
    >>> bool(abs(found["singular_value"][0, 0] / norm - 1) < 1e-5)
    True
    """
    parts = frozen_parts(freeze)
    run = Run.of(model, prompt, **this_call(freeze=parts))
    run.require_one()
    n = run.query(query)
    d = run.width
    places = list(range(n + 1))
    if positions is not None:
        places = sorted(distinct(list(positions), "positions"))
    require_places(places, 0, n)
    positive(k, "k", "a number of directions", most=d)
    (top,) = run.spans(from_layer, to_layer).values()
    require_room(
        COPIES * 8 * len(places) * d**2,
        torch.device("cpu"),
        f"Computing the blocks of {len(places)} tokens, of {d} × {d} numbers each,",
        "Use fewer positions=, or `jacobian_norms`, which keeps no block.",
    )
    hooks = freezing(parts)
    pullback = Pullback(run, [from_layer], hooks, top, to_layer, vjp_batch_size)
    blocks = _blocks_at(Products(pullback, n), places)
    left, values, right = _leading(blocks, k)
    variables = _described(blocks, left, values, right, and_frozen(parts))
    _, coords = run.coords()
    coords = {
        "position": np.array(places),
        "token": ("position", coords["token"][1][places]),
        "token_id": ("position", coords["token_id"][1][places]),
        "direction": np.arange(k),
        "out": np.arange(d),
        "in": np.arange(d),
    }
    why_not = _why_not_unembedded(run, to_layer)
    if why_not is None:
        site = run.site("y")  # which freezing does not change
        y = streams_at(run, run.ids.clone(), [site], at=n)[site]
        changes = _logit_changes(run, y, steps=values[..., None] * left)
        variables |= _most_changed(run, changes, "raised")
        variables |= _most_changed(run, changes, "lowered")
        coords["rank"] = np.arange(variables["raised"][1].shape[-1])
    run = run.knowing(
        attention_implementation=pullback.attention, unembedded=why_not or "yes"
    )
    return run.dataset("Jacobian of the query's representation", coords, variables)


def _blocks_at(products: Products, places: list[int]) -> Float[Tensor, "place out in"]:
    """The blocks of some tokens in float64 on the CPU; the product with unit cotangent k is row k of every block."""
    unit = torch.eye(products.run.width, dtype=torch.float64)
    rows: list[Tensor] = []
    for batch in products.along(unit):  # (out, prompt, position, in)
        rows.append(batch[:, 0, places].double().cpu())
    return torch.cat(rows).transpose(0, 1).contiguous()


def _leading(
    blocks: Float[Tensor, "place out in"], k: int
) -> tuple[
    Float[Tensor, "place direction out"],
    Float[Tensor, "place direction"],
    Float[Tensor, "place direction in"],
]:
    """The k leading left vectors, singular values and right vectors of each block.

    A singular vector pair may have either sign; the largest entry of each left vector is made positive.
    """
    u, s, vh = torch.linalg.svd(blocks)
    left = u[..., :k].mT  # (place, direction, out)
    largest = left.gather(-1, left.abs().argmax(dim=-1, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).double()
    return signs * left, s[:, :k], signs * vh[:, :k]


def _described(
    blocks: Float[Tensor, "place out in"],
    left: Float[Tensor, "place direction out"],
    values: Float[Tensor, "place direction"],
    right: Float[Tensor, "place direction in"],
    frozen: str,
) -> dict[str, Variable]:
    """The blocks and their singular values and vectors as variables; `frozen` is appended to their long names."""
    frobenius_squared = blocks.square().sum(dim=(1, 2))[:, None]
    shares = values.square() / frobenius_squared  # NaN for a block of zeros
    described = {
        "jacobian": blocks,
        "singular_value": values,
        "share": shares,
        "left": left,
        "right": right,
    }
    return variables_of(TABLE, described, added=frozen)


def _why_not_unembedded(run: Run, to_layer: Target) -> str | None:
    """Why the directions are not read as changes of logits, for the provenance; None if they are."""
    if to_layer != "y":
        return f"no: the output matrix reads y, and not layer {to_layer}"
    try:
        require_understood(run)
    except UnsoundModelError as error:
        return f"no: {error}"
    return None


def _logit_changes(
    run: Run, y: Float[Tensor, "1 d"], steps: Float[Tensor, "place direction d"]
) -> Logits:
    """The derivative of the logits along each step from y, without its mean over the vocabulary.

    A change that all logits share moves no probability.
    """
    tangents = steps.flatten(0, 1).to(y.device, y.dtype)
    start = y.expand_as(tangents).contiguous()
    both: Any = torch.func.jvp(partial(logits_of, run), (start,), (tangents,))
    _, derivatives = both
    changes = derivatives.double().cpu().unflatten(0, steps.shape[:2])
    return changes - changes.mean(dim=-1, keepdim=True)


def _most_changed(run: Run, changes: Logits, name: str) -> dict[str, Variable]:
    """The tokens whose logits each direction raises (`name` "raised") or lowers ("lowered") most, and by how much."""
    count = min(RANKS, changes.shape[-1])
    values, ids = changes.topk(count, largest=name == "raised")
    # `tokens_of` takes rows of ids: one for each place and direction.
    texts = np.array(run.tokens_of(ids.flatten(0, 1)), dtype=object)
    changed = {f"{name}_token": texts.reshape(ids.shape), name: values}
    return variables_of(TABLE, changed)
