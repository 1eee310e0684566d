"""Test on a model what the mathematics needs: tokens depend on earlier tokens only, and only through attention.

Path bounds multiply attention patterns. They are wrong if a token sees later ones, and they miss everything else that
passes between tokens: a state-space model beside attention, a convolution over values, experts that take a limited
number of tokens. Such parts are not looked up by name; properties are tested instead.

* **Causality**: if the last tokens are replaced, the residual streams at earlier positions are the same.
* **Attention alone**: if every pattern is the identity, so that each token attends to itself only, and some tokens are
  replaced, the residual streams of the others are the same.
* **Block by block**, tested where it is needed: if the graph of each residual stream is cut off, no block depends on an
  earlier stream than the one that enters it. Blocks that share keys and values (Gemma 4) do.

The first two are one forward pass each, of a batch: a short prompt, and copies in which some tokens are replaced. After
a comparison, the streams of all other tokens are set to those of the prompt, since rounding in one block may send a
token to other experts in the next.
"""

from itertools import combinations, islice

import torch
from jaxtyping import Bool
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import UnsoundModelError
from squashlens.model.agreement import SAME_OPERATIONS, difference
from squashlens.model.anatomy import (
    dtype_of,
    forget_lengths,
    last_logits,
    n_blocks,
    n_tokens,
    pattern_site,
    residual_sites,
)
from squashlens.model.applied import probe_ids, require_effective, run_probe
from squashlens.model.hooking.hook import Watcher, watchers
from squashlens.model.hooking.standing import attached, without_ambient
from squashlens.model.proof import proof_of

ATTENTION = (
    "attention alone connects tokens"  # among the findings of a proof: None, or why not
)
# By hook point: the differences and those allowed, (copy, position).
Moved = dict[str, tuple[Tensor, Tensor]]
COPIES = 6


def require_causal(model: Bridge) -> None:
    """Raise an error if a token depends on later tokens."""
    violation = _violation(model, cut=False)
    if violation:
        raise UnsoundModelError(
            f"{type(model.original_model).__name__} is not causal: tokens depend on later ones. {violation}",
            "Use a causal model. If the configuration allows attention to later tokens (use_bidirectional_attention, "
            "attention_dir), turn it off; compile a tracr program with `causal=True`.",
        )


def why_not_attention_alone(model: Bridge) -> str | None:
    """Why nothing can be said from attention patterns alone; None if tokens are connected only by these."""
    name = type(model.original_model).__name__
    sites = [pattern_site(block) for block in range(n_blocks(model))]
    for block, site in enumerate(sites):
        if site not in model.hook_dict:
            return f"Block {block} of {name} has no attention pattern: something else passes between tokens there."
    try:
        require_effective(model, sites)
        violation = _violation(model, cut=True)
    except UnsoundModelError as error:
        return error.cause
    if not violation:
        return None
    return (
        f"In {name}, something besides attention passes between tokens, such as a state-space model, a convolution "
        f"or experts of limited capacity. {violation} Every attention pattern was the identity."
    )


def require_attention_alone(model: Bridge) -> None:
    """Raise an error if something besides attention passes between tokens, or attention cannot be read."""
    _require_none(proof_of(model).findings.get(ATTENTION))


def why_not_block_by_block(model: Bridge) -> str | None:
    """Why nothing can be composed of single blocks; None if each depends only on the stream that enters it."""
    return proof_of(model).once(
        "blocks depend on the stream that enters them", lambda: _earlier_stream(model)
    )


def why_no_paths(model: Bridge) -> str | None:
    """Why influence is not a sum over paths of one attention edge for each block; None if it is."""
    besides_attention = proof_of(model).findings.get(ATTENTION)
    return besides_attention or why_not_block_by_block(model)


def require_paths(model: Bridge) -> None:
    """Raise an error if influence is not a sum over paths of one attention edge for each block."""
    _require_none(why_no_paths(model))


def _require_none(reason: str | None) -> None:
    """Raise an error if there is a reason why bounds from attention patterns are wrong."""
    if reason:
        raise UnsoundModelError(
            reason,
            "Bounds from attention patterns would miss this. Use `collapse`, `jacobian_norms` or "
            "`substitution_effect`, which need no patterns, or another model.",
        )


def _earlier_stream(model: Bridge) -> str | None:
    """A sentence on the first block that depends on another stream than the one that enters it; None if none does.

    The graph of every residual stream is cut off in one pass. Then what leaves a block has a gradient only with respect
    to the stream that entered it, and to any earlier one that reached it otherwise.
    """
    # By layer ℓ = 0 … L: v⁽ℓ⁾ with the graph of the block that it leaves, and the leaf with which the pass goes on.
    leaving: list[Tensor] = []
    entering: list[Tensor] = []

    def cut(stream: Tensor) -> Tensor:
        leaving.append(stream)
        entering.append(stream.detach().clone().requires_grad_())
        return entering[-1]

    hooks = [Watcher(site, cut) for site in residual_sites(model)[:-1]]
    forget_lengths(model)
    with torch.enable_grad(), without_ambient(model):
        run_probe(model, *hooks)
    for block, stream in enumerate(leaving[1:]):  # what leaves a block is v⁽ᵇ⁺¹⁾
        if block == 0:  # no stream is earlier than the one that enters it
            continue
        earlier = entering[:block]
        ones = torch.ones_like(stream)
        gradients = torch.autograd.grad(
            stream, earlier, ones, retain_graph=True, allow_unused=True
        )
        for layer, gradient in enumerate(gradients):
            if gradient is not None:
                return (
                    f"Block {block} of {type(model.original_model).__name__} depends on the residual stream of layer "
                    f"{layer} otherwise than through the stream that enters it, as with keys and values that blocks "
                    "share."
                )
    return None


def _violation(model: Bridge, *, cut: bool) -> str:
    """A sentence on the first residual stream that a replaced token moved although it must not; empty if there is none.

    Without `cut` the last tokens are replaced, and earlier positions must not move. With `cut` every attention pattern
    is the identity, and no position whose own token stays may move.
    """
    ids = probe_ids(model)
    n = ids.shape[1]
    # Which tokens of each copy are replaced, (copy, position): those from a position on that differs between copies.
    first_replaced = torch.linspace(1, n - 1, COPIES).long()
    replaced = torch.arange(n) >= first_replaced[:, None]
    if cut:
        # Each token in another half of the copies, so that for any two some copy replaces the one and not the other.
        replaced = torch.zeros(COPIES, n, dtype=torch.bool)
        halves = combinations(range(COPIES), COPIES // 2)
        for token, copies in enumerate(islice(halves, n)):
            replaced[list(copies), token] = True
    for site, (error, allowed) in _moved(model, ids, replaced, cut=cut).items():
        wrong = ~replaced & ~(error <= allowed)  # true for NaN too
        if wrong.any():
            copy, position = wrong.nonzero()[0].tolist()
            tokens = ", ".join(str(int(place)) for place in replaced[copy].nonzero())
            size = f"{float(error[copy, position]):.2g} (allowed {float(allowed[copy, position]):.2g})"
            return f"Replacing the tokens {tokens} of a prompt changes {site} at position {position} by {size}."
    return ""


def _moved(
    model: Bridge, ids: Tensor, replaced: Bool[Tensor, "copy position"], *, cut: bool
) -> Moved:
    """How far each residual stream moves in its block if tokens are replaced; with `cut`, patterns are the identity.

    The prompt and its copies run as one batch, whose first row is the prompt.
    """
    dtype = dtype_of(model)
    vocabulary = n_tokens(model)
    others = (ids + vocabulary // 2) % vocabulary
    copies = torch.where(replaced.to(ids.device), others, ids)
    moved: Moved = {}

    def compare(site: str, stream: Tensor) -> Tensor:
        """Keep the differences at one site; the pass goes on without those at tokens that were not replaced."""
        of_prompt = stream[:1]
        of_copies = stream[1:]
        expected = of_prompt.expand_as(of_copies)
        error, allowed = difference(
            of_copies, expected, dtype, dim=-1, tolerance=SAME_OPERATIONS
        )
        moved[site] = error.cpu(), allowed.cpu()
        may_differ = replaced[..., None].to(stream.device)
        return torch.cat([of_prompt, torch.where(may_differ, of_copies, expected)])

    def isolate(pattern: Tensor) -> Tensor:
        """A pattern in which each token attends to itself only."""
        n = pattern.shape[-1]
        itself = torch.eye(n, dtype=pattern.dtype, device=pattern.device)
        return itself.expand_as(pattern).clone()

    sites = residual_sites(model)
    hooks = watchers(sites, compare)
    if cut:
        for site in map(pattern_site, range(n_blocks(model))):
            hooks.append(Watcher(site, isolate))
    # In bfloat16 on a CPU, PyTorch would copy the output embedding for each prompt, and no logits are read.
    no_logits = dict.fromkeys(last_logits(model), slice(0))
    forget_lengths(model)
    with attached(model, *hooks):
        model(torch.cat([ids, copies]), use_cache=False, **no_logits)
    return moved
