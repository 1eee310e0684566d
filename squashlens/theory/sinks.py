"""Attention sinks: tokens that later tokens attend to whatever those say.

A block in which every query gives the share e of its attention to token i, and spreads the rest evenly over all keys
that it sees, has ``a_i = e + (1 − e) u_i``, where a_i is the mean attention that later queries give to token i and u_i
the same under uniform attention. So ``e_i = (a_i − u_i)/(1 − u_i)`` is the share beyond uniform attention: 0 if token i
gets what causality alone gives it, however early it stands, and 1 if it gets everything.

A token is a sink if e_i is above 0.3 in more than half of the blocks. 0.3 is the threshold of Gu et al. 2025 (arXiv
2410.10781) for the mean attention a_i of one head; e_i ≤ a_i makes the rule stricter for short prompts, where uniform
attention alone gives the first token as much. One query with all its attention adds at most 1/k to the mean over k
later queries. So a token counts only where at least four later queries see it: then one neighbour cannot make a sink.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens.theory.attention import Attention

SINK = 0.3
FEWEST = 4  # the smallest k with 1/k < SINK


def received(pattern: Float[Tensor, "*prompt query key"] | Attention) -> Float[Tensor, " key"]:
    """The attention that each token gets from all later queries of one prompt together, as a mean over heads."""
    if isinstance(pattern, Attention):
        blocks = ((rows, keys, pattern.weights(rows, keys)[0][0].mean(dim=(0, 1))) for rows, keys in pattern.blocks())
        n = pattern.queries.shape[2]
    else:
        n = pattern.shape[-1]
        blocks = iter([(slice(0, n), slice(0, n), pattern.reshape(n, n))])
    total = torch.zeros(n, dtype=torch.float64)
    for rows, keys, weights in blocks:
        total[keys] += weights.double().tril(rows.start - keys.start - 1).sum(dim=0).cpu()
    return total


def beyond_uniform(total: Float[Tensor, " key"], window: int | None = None) -> Float[Tensor, " key"]:
    """The share e_i from `received`, in a block with this window; NaN for tokens that fewer than four queries see."""
    n = len(total)
    place, reach = torch.arange(n), n if window is None else window
    even = (1 / (place + 1).clamp(max=reach).double()).cumsum(dim=0)  # sums over queries of uniform weights
    last = (place + reach).clamp(max=n)  # after the last query that sees the token
    queries = last - place - 1
    mean, uniform = total / queries, (even[last - 1] - even) / queries
    return torch.where(queries >= FEWEST, (mean - uniform) / (1 - uniform), torch.nan)


def are_sinks(share: Float[Tensor, "block key"]) -> Bool[Tensor, " key"]:
    """Which tokens are sinks, from their shares beyond uniform attention in every block."""
    return (share > SINK).double().mean(dim=0) > 0.5
