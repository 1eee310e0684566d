"""The blocks of the Jacobian themselves, with their leading singular directions: what is read of a token, and where
it goes."""

from collections.abc import Iterable
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
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.model.memory import require_room
from squashlens.records.labels import Variable
from squashlens.run.activations import require_places, streams_at
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import logits_of, require_understood
from squashlens.run.run import Run

RANKS = 5  # tokens that a direction raises or lowers most
COPIES = (
    4  # of the blocks: rows, the result, and what a singular value decomposition needs
)
Logits = Float[Tensor, "place direction outcome"]


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
    given = None if positions is None else list(positions)
    how = {
        "query": query,
        "positions": given,
        "k": k,
        "freeze": parts,
        "from_layer": from_layer,
        "to_layer": to_layer,
    }
    run = Run.of(model, prompt, "jacobian", **how)
    run.require_one()
    n, d = run.query(query), run.width
    places = sorted(range(n + 1) if given is None else distinct(given, "positions"))
    require_places(places, 0, n)
    positive(k, "k", "a number of directions", most=d)
    (top,) = run.spans(from_layer, to_layer).values()
    what = f"Computing the blocks of {len(places)} tokens, of {d} × {d} numbers each,"
    remedy = "Use fewer positions=, or `jacobian_norms`, which keeps no block."
    require_room(COPIES * 8 * len(places) * d**2, torch.device("cpu"), what, remedy)
    pullback = Pullback(
        run, [from_layer], freezing(parts), top, to_layer, vjp_batch_size
    )
    blocks = torch.empty(len(places), d, d, dtype=torch.float64)
    done = 0
    for rows in Products(pullback, n).along(torch.eye(d, dtype=torch.float64)):
        blocks[:, done : done + len(rows)] = (
            rows[:, 0, places].double().cpu().transpose(0, 1)
        )
        done += len(rows)
    left, values, right = _leading(blocks, k)
    shares = (
        values.square() / blocks.square().sum(dim=(1, 2))[:, None]
    )  # NaN for a block of zeros
    held = and_frozen(parts)
    places_by_k = "position", "direction"
    variables: dict[str, Variable] = {
        "jacobian": (
            ("position", "out", "in"),
            blocks,
            f"blocks of the Jacobian{held}",
            "1",
        ),
        "singular_value": (
            places_by_k,
            values,
            f"singular values of the blocks{held}",
            "1",
        ),
        "share": (
            places_by_k,
            shares,
            f"share of the squared Frobenius norm{held}",
            "1",
        ),
        "left": (
            ("position", "direction", "out"),
            left,
            f"left singular vectors{held}",
            "1",
        ),
        "right": (
            ("position", "direction", "in"),
            right,
            f"right singular vectors{held}",
            "1",
        ),
    }
    why = _why_not_unembedded(run, to_layer)
    if why is None:
        site = run.site("y")
        y = streams_at(run, run.ids.clone(), [site], at=n)[
            site
        ]  # which freezing does not change
        variables |= _tokens(run, _logit_changes(run, y, values[..., None] * left))
    _, coords = run.coords()
    coords = {
        "position": np.array(places),
        "token": ("position", coords["token"][1][places]),
        "token_id": ("position", coords["token_id"][1][places]),
        "direction": np.arange(k),
        "out": np.arange(d),
        "in": np.arange(d),
    }
    if why is None:
        coords["rank"] = np.arange(variables["raised"][1].shape[-1])
    ran = {"attention_implementation": pullback.attention, "unembedded": why or "yes"}
    return run.knowing(**ran).dataset(
        "Jacobian of the query's representation", coords, variables
    )


def _leading(
    blocks: Float[Tensor, "place out in"], k: int
) -> tuple[
    Float[Tensor, "place direction out"],
    Float[Tensor, "place direction"],
    Float[Tensor, "place direction in"],
]:
    """Left vectors, singular values and right vectors, with the largest entry of each left vector positive."""
    u, s, vh = torch.linalg.svd(blocks)
    left = u[..., :k].mT
    largest = left.gather(-1, left.abs().argmax(dim=-1, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).double()
    return signs * left, s[:, :k], signs * vh[:, :k]


def _why_not_unembedded(run: Run, to_layer: Target) -> str | None:
    """Why the directions are not read as changes of logits; None if they are."""
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
    """The derivative of the logits along each step from y, without its mean over the vocabulary."""
    flat = steps.flatten(0, 1).to(y.device, y.dtype)
    here = y.expand_as(flat).contiguous()
    changes: Any = torch.func.jvp(lambda at: logits_of(run, at), (here,), (flat,))
    found = changes[1].double().cpu().unflatten(0, steps.shape[:2])
    return found - found.mean(dim=-1, keepdim=True)


def _tokens(run: Run, changes: Logits) -> dict[str, Variable]:
    """The tokens whose logits each direction raises and lowers most."""
    found: dict[str, Variable] = {}
    dims = ("position", "direction", "rank")
    for name, largest in (("raised", True), ("lowered", False)):
        values, ids = changes.topk(min(RANKS, changes.shape[-1]), largest=largest)
        texts = np.array(run.tokens_of(ids.flatten(0, 1)), dtype=object).reshape(
            ids.shape
        )
        found[f"{name}_token"] = (
            dims,
            texts,
            f"tokens whose logits are {name} most",
            "text",
        )
        found[name] = (
            dims,
            values.numpy(),
            f"change of the logits that are {name} most",
            "nats",
        )
    return found
