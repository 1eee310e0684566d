"""Test on a model what the mathematics needs: tokens depend on earlier tokens only, and only through attention.

Path bounds multiply attention patterns. They are wrong if a token sees later ones, and they miss everything else that
passes between tokens: a state-space model beside attention, a convolution over queries, keys or values, experts that
take a limited number of tokens. Such parts are not looked up by name; two properties are tested instead.

* **Causality**: replacing a token changes no residual stream at an earlier position.
* **Attention alone**: if every pattern is replaced by the identity, so that each token attends to itself only,
  replacing a token changes no residual stream at another position. Nor does it change how a token weighs two others:
  the ratio of their weights, before the pattern is replaced.

Each is one forward pass of a batch: a short prompt, and its copies with one token replaced in each. A model that fails
is run with a second prompt, and refused if the same position moves again, since rounding alone may send a token to
other experts.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.agreement import SAME_OPERATIONS, difference
from squashlens.engine.anatomy import dtype_of, last_logits, n_blocks, pattern_site, residual_sites
from squashlens.engine.hooking.hook import Hook, attached
from squashlens.engine.positions import forget_lengths
from squashlens.engine.proving.effective import probe_ids
from squashlens.errors import UnsoundModelError

Moved = dict[str, tuple[Tensor, Tensor]]  # by hook point: the differences and those allowed, (replaced, position)
LEAST = 0.01  # Weights are compared if they sum to this: half precision rounds smaller ones too coarsely.


def require_premises(model: Bridge) -> None:
    """Raise an error if a token depends on later tokens, or on other tokens otherwise than through attention."""
    name, others = type(model.original_model).__name__, ~torch.eye(probe_ids(model).shape[1], dtype=torch.bool)
    if found := _violation(model, others.tril(), cut=False):
        raise UnsoundModelError(
            f"{name} is not causal: tokens depend on later ones. {found}",
            "Use a causal model. If the configuration allows attention to later tokens (use_bidirectional_attention, "
            "attention_dir), turn it off; compile a tracr program with `causal=True`.",
        )
    if found := _violation(model, others, cut=True):
        raise UnsoundModelError(
            f"In {name}, something besides attention passes between tokens, such as a state-space model, a convolution "
            f"or experts of limited capacity. {found} Every attention pattern was the identity.",
            "Use a model whose tokens are connected by attention only: bounds from attention patterns would miss the "
            "rest.",
        )


def _violation(model: Bridge, unmoved: Bool[Tensor, "replaced position"], *, cut: bool) -> str:
    """The first place in the forward pass that moved although it must not; empty if there is none."""
    for ids in ((probe := probe_ids(model)), probe.flip(-1)):
        moved = _moved(model, ids, cut=cut)
        wrong = {site: unmoved & ~(error <= allowed) for site, (error, allowed) in moved.items()}  # true for NaN too
        unmoved = torch.stack(list(wrong.values())).any(dim=0)
        if not unmoved.any():
            return ""
    site = next(site for site, where in wrong.items() if where.any())
    token, position = wrong[site].nonzero()[0].tolist()
    error, allowed = (float(each[token, position]) for each in moved[site])
    size = f"{error:.2g} (allowed {allowed:.2g})"
    return f"Replacing token {token} of a test prompt changes {site} at position {position} by {size}."


def _moved(model: Bridge, ids: Tensor, *, cut: bool) -> Moved:
    """How far each residual stream moves when a token is replaced; with `cut`, patterns are the identity."""
    n, vocabulary, dtype = ids.shape[1], int(model.cfg.d_vocab), dtype_of(model)
    prompts, each = ids.repeat(n + 1, 1), torch.arange(n)
    prompts[each + 1, each] = (ids[0] + vocabulary // 2) % vocabulary
    found: Moved = {}

    def compare(site: str) -> Callable[[Tensor], None]:
        def look(stream: Tensor) -> None:
            own = stream[:1].expand_as(stream[1:])
            error, allowed = difference(stream[1:], own, dtype, dim=-1, tolerance=SAME_OPERATIONS)
            found[site] = error.cpu(), allowed.cpu()

        return look

    def replace(site: str) -> Callable[[Tensor], Tensor]:
        def edit(pattern: Tensor) -> Tensor:
            found[site] = _reweighed(pattern, dtype)
            itself = torch.eye(*pattern.shape[-2:], dtype=pattern.dtype, device=pattern.device)
            return itself.repeat(*pattern.shape[:2], 1, 1)

        return edit

    hooks = [Hook("look", site, compare(site)) for site in residual_sites(model)]
    hooks += [Hook("cut", site, replace(site)) for site in map(pattern_site, range(n_blocks(model))) if cut]
    forget_lengths(model)
    with torch.no_grad(), attached(model, *hooks):
        model(prompts, use_cache=False, **last_logits(model))
    return found


def _reweighed(
    pattern: Float[Tensor, "prompt head query key"], dtype: torch.dtype
) -> tuple[Float[Tensor, "replaced position"], Float[Tensor, "replaced position"]]:
    """How far the weights of all keys but the replaced one move, relative to each other, and what is allowed."""
    kept = ~torch.eye(pattern.shape[-1], dtype=torch.bool, device=pattern.device)[:, None, None]
    weights = pattern.detach().double()
    (ours, one), (own, two) = ((w, w.sum(dim=-1, keepdim=True)) for w in (weights[1:] * kept, weights[:1] * kept))
    counted = (one > LEAST) & (two > LEAST)
    ours, own = ((w / total).where(counted, 0.0) for w, total in ((ours, one), (own, two)))
    error, allowed = difference(ours, own, dtype, dim=-1)
    worst = (error - allowed).argmax(dim=1, keepdim=True)
    return error.gather(1, worst)[:, 0].cpu(), allowed.gather(1, worst)[:, 0].cpu()
