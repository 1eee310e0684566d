"""Temperatures of attention: factors on the logits that are constant, grow with the position, or follow the entropy.

All of them act on the logits that enter the softmax, after any scale, bias, mask and soft cap of the model. The weights
of a row change as ``α → α^β``, divided by their sum, where β is the row's factor. A learned sink is one more key of
every row.
"""

import math

import torch
from torch import Tensor

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.hooks.interventions import Blocks, Heads, rescored
from squashlens.model.hooking.hook import Hook
from squashlens.theory.attention import unmasked

# arXiv 2410.01104, figure 4, highest power first.
ADAPTIVE = (-0.037, 0.481, -2.3, 4.917, -1.791)
LEAST_ENTROPY = 0.5  # nat; same figure: rows that are sharper than this are left alone


@validated
def attention_temperature(
    temperature: float, blocks: Blocks = None, *, heads: Heads = None
) -> Hook:
    """Divide the attention logits by `temperature`: each weight α becomes ``α^(1/T)``, divided by its row's sum.

    Args:
        temperature: T > 0. Values below 1 sharpen attention, values above 1 flatten it.
        blocks, heads: blocks and query heads to act in; all by default.
    """
    if temperature <= 0:
        raise InputError(
            f"attention_temperature: temperature={temperature!r} is not a temperature.",
            "Give a positive number.",
        )

    def change(rows: Tensor, queries: Tensor) -> Tensor:
        return rows / temperature

    name = f"attention_temperature({temperature!r})"
    return rescored(name, change, blocks, heads)


@validated
def log_scaling(
    trained_length: int, blocks: Blocks = None, *, heads: Heads = None
) -> Hook:
    """Multiply the attention logits of each query by a factor that grows with the logarithm of its context.

    The factor is ln n / ln N, where n is the number of keys that the query may attend to, and N = `trained_length`. It
    is the scaling βₙ = γ ln n of Chen et al. with γ = 1 / ln N, and below 1 for n < N. A learned sink (gpt-oss) is one
    more key, and the hook acts after a soft cap.

    Args:
        trained_length: N, at least 2 tokens: the context length that the model was trained on.
        blocks, heads: blocks and query heads to act in; all by default.

    Source: Chen et al. 2025, arXiv 2510.05554.

    >>> import squashlens as sl
    >>> sl.hooks.log_scaling(16)
    log_scaling(16)
    """
    if trained_length < 2:
        raise InputError(
            f"log_scaling: trained_length={trained_length} has no scale.",
            "Give at least 2 tokens.",
        )

    def change(rows: Tensor, queries: Tensor) -> Tensor:
        n = unmasked(rows).sum(dim=-1, keepdim=True).clamp(min=1).double()
        return rows * (n.log() / math.log(trained_length)).to(rows.dtype)

    name = f"log_scaling({trained_length})"
    return rescored(name, change, blocks, heads)


@validated
def adaptive_temperature(blocks: Blocks = None, *, heads: Heads = None) -> Hook:
    """Sharpen each row of attention by a factor that follows from its entropy.

    With H the entropy of the row in nat, the logits are multiplied by ``β = max(1, p(H))`` where H > 0.5, and by 1
    elsewhere; so no entropy increases. The polynomial p is that of the source, which was fitted to a model that finds
    the largest item of a set: ``p(H) = −0.037 H⁴ + 0.481 H³ − 2.3 H² + 4.917 H − 1.791``. It is above 1 only for H
    between about 0.85 and 5.94, and at most 2.43. A derivative goes through the entropy too.

    Args:
        blocks, heads: blocks and query heads to act in; all by default.

    Source: Veličković et al. 2024, arXiv 2410.01104, figure 4, without the 1e-9 that it adds to weights.

    >>> import squashlens as sl
    >>> sl.hooks.adaptive_temperature((2, 3))
    adaptive_temperature
    """

    def change(rows: Tensor, queries: Tensor) -> Tensor:
        seen = torch.where(unmasked(rows), rows, 0.0)
        return seen * _adaptive_factor(rows, seen).to(rows.dtype)

    return rescored("adaptive_temperature", change, blocks, heads)


def _adaptive_factor(scores: Tensor, seen: Tensor) -> Tensor:
    """β for each row, in at least float32; masked logits are 0 in `seen`, so that no product has an infinity in it.

    With s̃ the logits less the highest, H = ln Σ e^s̃ − Σ α s̃.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    highest = wide.amax(dim=-1, keepdim=True).detach()
    alpha = wide.softmax(dim=-1)
    mean = (alpha * (seen.to(wide.dtype) - highest)).sum(dim=-1, keepdim=True)
    entropy = (wide - highest).logsumexp(dim=-1, keepdim=True) - mean
    polynomial = torch.zeros_like(entropy)  # by Horner's rule
    for coefficient in ADAPTIVE:
        polynomial = polynomial * entropy + coefficient
    return torch.where(entropy > LEAST_ENTROPY, polynomial.clamp(min=1), 1.0)
