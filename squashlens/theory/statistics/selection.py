"""A part selected among many, since changing it repairs most answers: confirmed on other units, beside two nulls.

The net share of a part is the mean of `gained`: of the units that its change repairs, minus those that it spoils.
Selected on other units it is no longer too large by chance, but two things still make it so, and each has a null that
goes through the same selection:

1. *Any change of this size repairs as much.* If the direction in which a part writes has nothing to do with the rest of
   the model, its changes and the same ones in a random direction (`turned`) have the same distribution, jointly over
   units. So have then the net share that is selected among the parts and the one that is selected among the turned
   changes of all parts, in each of R draws. One more draw is below ``x̄ + t_{0.95, R−1} s √(1 + 1/R)`` with probability
   0.95, if these net shares are normal. It is not enough to compare the selected part with random directions in its own
   place: the best of many exceeds those of its own place nearly always.
2. *The change makes an answer likelier that is often right.* Then it repairs as many if the right answers are exchanged
   among the units, which tells nothing of what each asks. Clusters are put in two random orders, and the units of the
   one get the right answers of the other, so that answers of a cluster stay together. Not known if all units have the
   same right answer, which no shuffle changes.

Both must be exceeded, and 0 by the interval. Each of the three comparisons has an error rate of its own. If one of the
nulls is true, all three together err at most as often as the worst of them alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import special
from torch import Tensor

from squashlens._typing import positive
from squashlens.theory.statistics.ranks import mean_interval

SHUFFLES = 200  # enough for a 95 % quantile
TAIL = 0.95  # of one-sided limits


@dataclass(frozen=True)
class Selection:
    """The part whose net share is largest in one half of the units, its net share in the other half, and its nulls.

    Attributes:
        part: the number of the selected part.
        net, low, high: its net share in the half that confirms, with a 95 % interval over clusters.
        random: the net share of the random directions that the same procedure selects, for each draw of them.
        shuffled: the net share of the part that the same procedure selects, for each shuffle of the right answers.
    """

    part: int
    net: float
    low: float
    high: float
    random: Float[np.ndarray, " draw"]
    shuffled: Float[np.ndarray, " shuffle"]

    @property
    def random_limit(self) -> float:
        """What the procedure reaches with random directions in at most 5 % of further draws."""
        return one_more(self.random)

    @property
    def shuffled_limit(self) -> float:
        """What the procedure reaches with shuffled answers in at most 5 % of shuffles."""
        return float(np.quantile(self.shuffled, TAIL, method="higher"))

    @property
    def above_null(self) -> str:
        """``"yes"`` if the interval is above 0 and the net share above both limits, else ``"no"``.

        ``"not measured"`` if the interval and the limits that are known say yes, and another limit is not known.
        """
        limits = np.array([self.random_limit, self.shuffled_limit])
        if not self.low > 0 or (self.net <= limits).any():
            return "no"
        return "yes" if np.isfinite(limits).all() else "not measured"


def halves(clusters: Int[np.ndarray, " unit"], seed: int) -> Bool[np.ndarray, " unit"]:
    """Whether each unit belongs to the half that selects: that of half of the clusters, drawn at random."""
    many = int(clusters.max()) + 1
    order = random_stream(seed).permutation(many)
    return np.isin(clusters, order[: many // 2])


def random_stream(seed: int, *number: int) -> np.random.Generator:
    """The random numbers of a seed, at least 0; those of each `number` are another stream."""
    positive(seed, "seed", "a random seed", or_zero=True, most=2**63 - 1)
    return np.random.default_rng([seed, *number])


def leads(
    logits: Float[np.ndarray, "unit run outcome"],
    right: Int[np.ndarray, "*many unit"],
) -> Float[np.ndarray, "*many unit run"]:
    """How far the logit of the right outcome, given by its number, is above the largest other one.

    A lead of at most 0 is a wrong answer. `right` may have further axes in front, one entry for each shuffle.
    """
    right_logit = logits[np.arange(len(logits)), :, right]
    ordered = np.partition(logits, -2, axis=-1)
    largest = ordered[..., -1]
    best_wrong_logit = np.where(right_logit == largest, ordered[..., -2], largest)
    return right_logit - best_wrong_logit


def gained(lead: Float[np.ndarray, "*many run"]) -> Int[np.ndarray, "*many part"]:
    """For each part, 1 where its change makes a wrong answer right, −1 where a right one wrong, else 0.

    The first run is that without a change; the others are those of the parts.
    """
    return (lead[..., 1:] > 0).astype(int) - (lead[..., :1] > 0)


def best(lead: Float[np.ndarray, "unit run"]) -> int:
    """The part with the largest net share; of equal ones that with the largest mean lead."""
    net_shares = gained(lead).sum(axis=0)
    mean_leads = lead[:, 1:].sum(axis=0)
    return int(np.lexsort((mean_leads, net_shares))[-1])


def held_out(
    lead: Float[np.ndarray, "unit run"], selecting: Bool[np.ndarray, " unit"]
) -> float:
    """The net share, in the half that confirms, of the part that is best in the half that selects."""
    part = best(lead[selecting])
    confirming = gained(lead[~selecting])
    return float(confirming[:, part].mean())


def select(
    logits: Float[np.ndarray, "unit run outcome"],
    random: Sequence[Float[np.ndarray, "unit part outcome"]],
    right: Int[np.ndarray, " unit"],
    clusters: Int[np.ndarray, " unit"],
    selecting: Bool[np.ndarray, " unit"],
    seed: int,
) -> Selection:
    """Select a part on one half of the units, and confirm it on the other, with both nulls of this module.

    `logits[:, 0]` are those of the run without a change, and `logits[:, p + 1]` those with part p changed. Each draw of
    `random` has the runs with a change alone.
    """
    lead = leads(logits, right)
    part = best(lead[selecting])
    net_shares = torch.from_numpy(gained(lead[~selecting])[:, part])
    net, low, high = mean_interval(net_shares, torch.from_numpy(clusters[~selecting]))
    return Selection(
        part=part,
        net=net.item(),
        low=low.item(),
        high=high.item(),
        random=_of_random_directions(lead[:, :1], random, right, selecting),
        shuffled=_of_shuffled_answers(logits, right, clusters, selecting, seed),
    )


def _of_random_directions(
    without_change: Float[np.ndarray, "unit 1"],
    random: Sequence[Float[np.ndarray, "unit part outcome"]],
    right: Int[np.ndarray, " unit"],
    selecting: Bool[np.ndarray, " unit"],
) -> Float[np.ndarray, " draw"]:
    """For each draw of random directions, the confirmed net share of the part that is selected among its parts."""
    net_shares: list[float] = []
    for changed in random:
        lead = np.hstack([without_change, leads(changed, right)])
        net_shares.append(held_out(lead, selecting))
    return np.array(net_shares)


def _of_shuffled_answers(
    logits: Float[np.ndarray, "unit run outcome"],
    right: Int[np.ndarray, " unit"],
    clusters: Int[np.ndarray, " unit"],
    selecting: Bool[np.ndarray, " unit"],
    seed: int,
) -> Float[np.ndarray, " shuffle"]:
    """For each shuffle of the right answers, the confirmed net share of the selected part; NaN if all are the same."""
    if (right == right[0]).all():
        return np.full(SHUFFLES, np.nan)
    rng = random_stream(seed, 1)  # another stream than that of the halves
    answers = np.stack([shuffled(right, clusters, rng) for _ in range(SHUFFLES)])
    by_shuffle = leads(logits, answers)
    return np.array([held_out(lead, selecting) for lead in by_shuffle])


def shuffled(
    values: Int[np.ndarray, " unit"],
    clusters: Int[np.ndarray, " unit"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " unit"]:
    """Values of other units: clusters in one random order get those of clusters in another, each in a random order."""
    exchanged = np.empty_like(values)
    receivers = _in_random_order(clusters, rng)
    exchanged[receivers] = values[_in_random_order(clusters, rng)]
    return exchanged


def _in_random_order(
    clusters: Int[np.ndarray, " unit"], rng: np.random.Generator
) -> Int[np.ndarray, " unit"]:
    """The units of one cluster after those of another, clusters and the units in them each in a random order."""
    units = rng.permutation(len(clusters))
    places = rng.permutation(int(clusters.max()) + 1)
    return np.lexsort((units, places[clusters]))  # by cluster, then by unit


def one_more(draws: Float[np.ndarray, " draw"]) -> float:
    """The one-sided 95 % limit of one more draw, ``x̄ + t s √(1 + 1/R)``; NaN for fewer than two draws."""
    many = len(draws)
    if many < 2:
        return float("nan")
    t = special.stdtrit(many - 1, TAIL)
    reach = t * draws.std(ddof=1) * np.sqrt(1 + 1 / many)
    return float(draws.mean() + reach)


def turned(changes: Float[Tensor, "unit d"], seed: int) -> Float[Tensor, "unit d"]:
    """Changes in a random direction: each coordinate gets a random sign, the same in all of them.

    Lengths, angles between changes and the size of each coordinate stay. A rotation would spread the few coordinates of
    a transformer's stream that hold most of its length over all others: on Gemma 3 270M, where one holds 57 % of the
    square of what a sublayer writes, a rotation moves leads five times as far as the sublayer does, and random signs
    0.7 times as far. Drawn signs and their opposites are equally likely; the one of both is taken that does not lead
    towards the changes, ``Σ_i ⟨c_i, c_i′⟩ ≤ 0``. Otherwise, with one large coordinate, half of the draws would nearly
    be the changes themselves.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = 1.0 - 2.0 * torch.randint(2, changes.shape[1:], generator=generator)
    signs = signs.double()
    changes = changes.double()
    towards = changes.square().sum(dim=0) @ signs  # Σ_i ⟨c_i, c_i′⟩
    if towards > 0:
        signs = -signs
    return changes * signs
