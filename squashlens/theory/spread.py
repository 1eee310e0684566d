"""How spread out attention and representations are: sinks, entropies, effective rank.

Sources: Roy and Vetterli 2007, "The effective rank"; Giraldo, Rao and Principe 2015 for the entropy of a Gram matrix.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.theory.attention import Attention


def entropy(shares: Float[Tensor, "*many outcome"]) -> Float[Tensor, "*many"]:
    """``−Σ p ln p`` in nat, with 0 ln 0 = 0."""
    return torch.special.entr(shares).sum(dim=-1, dtype=torch.float64)


def heads_of(pattern: Float[Tensor, "prompt head query key"]) -> Float[Tensor, "head several"]:
    """For each head the mean over queries, but the first, of the weight on the first token and of the entropy of a
    row."""
    rows = pattern[0, :, 1:]
    return torch.stack([rows[..., 0].double().mean(dim=-1), entropy(rows).mean(dim=-1)], dim=-1)


def heads_of_attention(attention: Attention) -> Float[Tensor, "head several"]:
    """The same from queries and keys, a few rows at a time; a window leaves no weight on a first token out of sight."""
    n = attention.queries.shape[2]
    found = torch.zeros(attention.queries.shape[1], 2, dtype=torch.float64, device=attention.queries.device)
    for rows, keys in attention.blocks(copies=2, rows=slice(1, n)):
        weights = attention.weights(rows, keys)[0][0].flatten(0, 1)
        if keys.start == 0:
            found[:, 0] += weights[..., 0].double().sum(dim=-1)
        found[:, 1] += entropy(weights).sum(dim=-1)
    return found / (n - 1)


def spectrum(streams: Float[Tensor, "position d"]) -> Float[Tensor, " several"]:
    """The entropy of representations in nat, and their effective rank; 0 and 0 if all are zero.

    With the singular values σ of the matrix of all tokens' representations, the first is the entropy of the shares
    ``σ²/Σσ²``, and the second ``exp`` of the entropy of ``σ/Σσ``, at most the smaller of n and d.
    """
    values = torch.linalg.svdvals(streams.double())
    nothing = values.sum() == 0  # not asked for here, since a device would have to be waited for
    squares = (values / values.max()).square()
    found = torch.stack([entropy(squares / squares.sum()), entropy(values / values.sum()).exp()])
    return torch.where(nothing, 0.0, found)


NEARLY_ALL = 0.9  # the share of the sum above which the first token is shown apart: nine times all others together


def first_share(values: np.ndarray) -> float:
    """The share of the first token in the sum of values that are not negative; NaN if the sum is 0 or not finite."""
    total = float(np.sum(values))
    return float(values[0]) / total if np.isfinite(total) and total > 0 and np.min(values) >= 0 else float("nan")


def first_has_nearly_all(values: np.ndarray) -> bool:
    """Whether the first of at least three tokens has nearly all: a share above `NEARLY_ALL`, while others have some.

    >>> [first_has_nearly_all(np.array(shares)) for shares in ([98.0, 1.0, 1.0], [50.0, 25.0, 25.0], [98.0, 1.0])]
    [True, False, False]
    """
    return len(values) >= 3 and NEARLY_ALL < first_share(values) < 1
