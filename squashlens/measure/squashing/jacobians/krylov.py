"""Spectral norms of the Jacobian at a few positions, by Lanczos iteration on J Jᵀ.

A product Jᵀu is a vector–Jacobian product, from one backward pass. A product Jv is a Jacobian–vector product, in
forward mode: the stream of the token gets a tangent v, and y has the tangent Jv. One step takes one of each for every
position, so that a few positions of a wide model cost fewer than the d products of all blocks. The start is a random
cotangent, the first one of a sketch: the upper bound of the iteration holds for a random start only. Half of the
failure probability is its own; the other half is that of the comparison with `Jittered` products, which widens both
bounds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from squashlens._typing import Target
from squashlens.bars import bar
from squashlens.engine.anatomy import dtype_of, pattern_site, residual_site, width
from squashlens.engine.applied import applied
from squashlens.engine.budget import batch_memory, pass_bytes, tell
from squashlens.engine.differentiating.visibility import require_digits
from squashlens.engine.hooking.freeze import split_frozen_attention
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.engine.running.forward import forward
from squashlens.errors import UnsoundModelError
from squashlens.measure.session import require_places
from squashlens.measure.squashing.jacobians.products import ByToken, Products
from squashlens.measure.squashing.jacobians.sketch import seed_in
from squashlens.options import Estimation
from squashlens.theory.lanczos import certified_spectral_norms, lanczos_steps

FAILURE = 1e-6  # probability that any norm is outside its bounds
WIDTH = 0.01  # relative distance of the two bounds at which the iteration ends, unless it is given
EACH = 3  # vector–Jacobian products that a step takes as long as; a product in forward mode also runs the model
REMEDY = "Use method='exact'."


class Forward:
    """Products Jv at some positions, each from a copy of the prompt whose token at that position has a tangent."""

    def __init__(self, products: Products, hooks: Sequence[Hook | Recipe], places: Sequence[int]) -> None:
        self.session, self.query, self.places = products.session, products.query, torch.tensor(places)
        ends: tuple[Target, Target] = (products.pullback.bottom, products.pullback.to)
        self.start, self.end = (residual_site(layer, self.session.model) for layer in ends)
        self.frozen, self.hooks = split_frozen_attention(hooks)
        memory = 4 * pass_bytes(self.session.model, 1, self.session.positions)
        self.size = max(1, int(batch_memory(self.session.model) / memory))

    def __call__(self, vectors: Float[Tensor, "operator d"]) -> Float[Tensor, "operator d"]:
        parts = zip(vectors.split(self.size), self.places.split(self.size), strict=True)
        return torch.cat([self._pushed(part, at) for part, at in parts])

    def _pushed(self, vectors: Float[Tensor, "operator d"], places: Tensor) -> Float[Tensor, "operator d"]:
        model, many, found = self.session.model, len(vectors), []

        def plant(stream: Tensor) -> Tensor:
            tangent = torch.zeros_like(stream)
            tangent[torch.arange(many), places] = vectors.to(stream.device, stream.dtype)
            return forward_ad.make_dual(stream.detach(), tangent)

        def read(stream: Tensor) -> None:
            tangent = forward_ad.unpack_dual(stream).tangent
            found.append(torch.zeros_like(stream[:, 0]) if tangent is None else tangent[:, self.query].clone())

        # A watched pattern is computed whole: attention in rows has no derivative in forward mode.
        whole = (pattern_site(0), lambda _: None)
        ids = self.session.ids.expand(many, -1).clone()
        try:
            with torch.inference_mode(False), torch.no_grad(), forward_ad.dual_level(), applied(model, *self.hooks):
                forward(model, ids, [(self.start, plant), (self.end, read), whole], frozen=self.frozen)
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            reason = (str(error).splitlines() or [""])[0][:160]
            raise UnsoundModelError(f"This model has no derivative in forward mode ({reason}).", REMEDY) from error
        return found[0].double().cpu()


def lanczos_norms(
    products: Products, hooks: Sequence[Hook | Recipe], method: Estimation, targets: int
) -> tuple[ByToken, dict[str, ByToken], dict[str, Any]]:
    """‖J_i‖₂ at some positions, NaN elsewhere, with lower bounds, and what the provenance says of them.

    The upper bounds hold together, also with those for the other ones of `targets`.
    """
    session, seed, rtol, query = products.session, seed_in(method), method.rtol, products.reach - 1
    session.require_one()
    places = [query] if method.positions is None else [*method.positions]
    require_places(places, 0, query, different=True)
    ahead = Forward(products, hooks, places)
    allowed = 1e-3 if dtype_of(session.model).itemsize < 8 else 1e-5
    rows, at = torch.arange(len(places)), torch.tensor(places)
    steps = bar(desc="Lanczos", unit="step")

    def gram(cotangents: Float[Tensor, "operator d"]) -> Float[Tensor, "operator d"]:
        """J Jᵀ u for each u. Both products must agree, since ``u·(J Jᵀ u) = ‖Jᵀu‖²``."""
        back = products.rows(cotangents)[rows, 0, at].double()
        image = ahead(back)
        expected, found = back.square().sum(dim=-1), (cotangents * image).sum(dim=-1)
        scale = expected + cotangents.norm(dim=-1) * image.norm(dim=-1)
        if bool(((found - expected).abs() > allowed * scale).any()):
            raise UnsoundModelError("The model's derivatives in forward and in backward mode differ.", REMEDY)
        steps.update()
        return image

    inflation, d, jointly = WIDTH if rtol is None else rtol, width(session.model), targets * len(places)
    most = lanczos_steps(d, jointly, inflation, FAILURE / 4)
    tell(
        session.model, f"Lanczos, up to {most} steps", EACH * most * len(places), products.reach,
        f"method='exact' takes as long as {d // EACH} steps at one position, and measures all positions.",
    )  # fmt: skip
    try:
        bounds = certified_spectral_norms(
            gram, len(places), d, seed=seed, inflation=inflation, failure=FAILURE / 2, norms=jointly
        )
    finally:
        steps.close()
    lost = products.rounded_away(FAILURE / 2 / targets, seed)[0, at]
    share = float((lost / bounds.upper).nan_to_num(0.0).max())  # 0 where nothing reaches the query
    require_digits(share)
    spread = torch.full((2, 1, session.positions), torch.nan, dtype=torch.float64)
    spread[..., products.reach :] = 0.0
    spread[0, 0, at], spread[1, 0, at] = bounds.upper + lost, (bounds.lower - lost).clamp(min=0)
    facts = {
        "kind": "Lanczos", "steps": bounds.steps, "products": 2 * bounds.steps * len(places), "seed": seed,
        "rtol": inflation, "rounding": share, "failure_probability": FAILURE,
    }  # fmt: skip
    return spread[0], {"low": spread[1]}, {"lanczos": facts}
