"""How spread out attention and representations are: attention sinks, entropies, effective rank.

A sink is a token that later tokens attend to whatever those say. A block in which every query gives the share e of its
attention to token i, and spreads the rest evenly over all keys that it sees, has ``a_i = e + (1 − e) u_i``, where a_i
is the mean attention that later queries give to token i and u_i the same under uniform attention. So
``e_i = (a_i − u_i)/(1 − u_i)`` is the share beyond uniform attention: 0 if token i gets what causality alone gives it,
however early it stands, and 1 if it gets everything.

A token is a sink if e_i is above 0.3 in more than half of the blocks. 0.3 is the threshold of Gu et al. 2025 (arXiv
2410.10781) for the mean attention a_i of one head; e_i ≤ a_i makes the rule stricter for short prompts, where uniform
attention alone gives the first token as much. One query with all its attention adds at most 1/k to the mean over k
later queries. So a token counts only where at least four later queries see it: then one neighbour cannot make a sink.

Sources: Roy and Vetterli 2007, "The effective rank"; Giraldo, Rao and Principe 2015 for the entropy of a Gram matrix.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens.theory.attention import Attention, by_rows

SINK = 0.3
FEWEST = 4  # the smallest k with 1/k < SINK


def received(
    pattern: Float[Tensor, "*prompt query key"] | Attention,
) -> Float[Tensor, " key"]:
    """The attention that each token gets from all later queries of one prompt together, as a mean over heads."""
    like = pattern if isinstance(pattern, Tensor) else pattern.queries
    total = like.new_zeros(_length(pattern), dtype=torch.float64)
    for rows, keys, weights in by_rows(pattern):
        mean = weights.mean(dim=0).double()
        # Below the diagonal of the whole pattern: what a token gives to itself does not count.
        total[keys] += mean.tril(rows.start - keys.start - 1).sum(dim=0)
    return total


def _length(pattern: Tensor | Attention) -> int:
    if isinstance(pattern, Attention):
        return pattern.queries.shape[2]
    return pattern.shape[-1]


def beyond_uniform(
    total: Float[Tensor, " key"], window: int | None = None, learned_sink: bool = False
) -> Float[Tensor, " key"]:
    """The share e_i from `received`, in a block with this window; NaN for tokens that fewer than four queries see.

    A learned sink is one more key for every query, without a value.
    """
    n = len(total)
    reach = n if window is None else window
    place = torch.arange(n)
    n_keys = (place + 1).clamp(max=reach) + learned_sink  # that a query sees
    even = (1 / n_keys.double()).cumsum(dim=0)  # sums over queries of uniform weights
    last_query = (place + reach - 1).clamp(max=n - 1)  # that sees the token
    n_queries = last_query - place  # that see the token and are later
    mean = total / n_queries
    uniform = (even[last_query] - even) / n_queries
    beyond = (mean - uniform) / (1 - uniform)
    return torch.where(n_queries >= FEWEST, beyond, torch.nan)


def are_sinks(share: Float[Tensor, "block key"]) -> Bool[Tensor, " key"]:
    """Which tokens are sinks, from their shares beyond uniform attention in every block."""
    return (share > SINK).double().mean(dim=0) > 0.5


def entropy(shares: Float[Tensor, "*many outcome"]) -> Float[Tensor, "*many"]:
    """``−Σ p ln p`` in nat, with 0 ln 0 = 0."""
    return torch.special.entr(shares).sum(dim=-1, dtype=torch.float64)


def heads_of(
    pattern: Float[Tensor, "prompt head query key"] | Attention,
    learned_sink: bool = False,
) -> Float[Tensor, "head several"]:
    """For each head the mean over all queries but the first of the weight on token 0 and of the entropy of a row.

    They are the columns 0 and 1 of the result. What a row lacks to 1 is the weight of a learned sink, which is one more
    outcome.
    """
    sums = []
    for rows, keys, weights in by_rows(pattern, copies=2):
        later = weights[:, 1:] if rows.start == 0 else weights
        # A window leaves no weight on a first token that is out of it.
        on_first = later[..., 0].double().sum(dim=-1) * (keys.start == 0)
        entropies = entropy(later)
        if learned_sink:
            on_sink = (1 - later.double().sum(dim=-1)).clamp(min=0)
            entropies = entropies + torch.special.entr(on_sink)
        sums.append(torch.stack([on_first, entropies.sum(dim=-1)], dim=-1))
    return torch.stack(sums).sum(dim=0) / (_length(pattern) - 1)


def spectrum(streams: Float[Tensor, "position d"]) -> Float[Tensor, " several"]:
    """The entropy of representations in nat, and their effective rank; 0 and 0 if all are zero.

    With the singular values σ of the matrix of all tokens' representations, the first is the entropy of the shares
    ``σ²/Σσ²``, and the second ``exp`` of the entropy of ``σ/Σσ``, at most the smaller of n and d.
    """
    values = torch.linalg.svdvals(streams.double())
    squares = (values / values.max()).square()
    spectral_entropy = entropy(squares / squares.sum())
    effective_rank = entropy(values / values.sum()).exp()
    both = torch.stack([spectral_entropy, effective_rank])
    # `where`, since for an `if` the host would have to wait for the device
    return torch.where(values.sum() == 0, 0.0, both)


NEARLY_ALL = 0.9  # the share of the sum above which the first token is shown apart: nine times all others together


def first_share(values: np.ndarray) -> float:
    """The share of the first token in the sum of values that are not negative; NaN if the sum is 0 or not finite."""
    total = float(np.sum(values))
    if not np.isfinite(total) or total <= 0 or np.min(values) < 0:
        return float("nan")
    return float(values[0]) / total


def first_has_nearly_all(values: np.ndarray) -> bool:
    """Whether the first of at least three tokens has nearly all: a share above `NEARLY_ALL`, while others have some.

    >>> [first_has_nearly_all(np.array(shares)) for shares in ([98.0, 1.0, 1.0], [50.0, 25.0, 25.0], [98.0, 1.0])]
    [True, False, False]
    """
    return len(values) >= 3 and NEARLY_ALL < first_share(values) < 1
