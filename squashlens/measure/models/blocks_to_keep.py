"""Which blocks to keep at a reference's precision: selected on half of the prompts, tested on the other half."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens._typing import (
    Bridge,
    ChoicesOfPrompts,
    Clusters,
    PromptsOrItems,
    positive,
)
from squashlens.errors import InputError
from squashlens.measure.answers.choices import mean_of
from squashlens.measure.models.questions import (
    LEAD,
    TwoModels,
    choice_logits,
    mean_kl_of,
    next_tokens,
    recorded_batches,
    two_models,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.records.labels import Variable
from squashlens.remarks import remark
from squashlens.run.exchange import Exchanged, require_exchangeable
from squashlens.theory.distances import divergence
from squashlens.theory.statistics import selection
from squashlens.theory.statistics.ranks import paired_change
from squashlens.theory.statistics.trends import with_ends

Units = Literal["blocks", "sublayers"]
NONE = "none"
SELECTED = "selected"
BY_KL = "selected by KL"
ALL = "all blocks"
Unit = tuple[int, Exchanged]  # a block, and whether all of it, its attention or its MLP
KL = "KL of the next token from the reference's"
RIGHT_WITH = "share of right answers with this unit kept too"
KL_WITH = "mean KL of the next token with this unit kept too"
TABLE = {
    "lead": ("kept prompt", LEAD, "nats"),
    "kl": ("kept prompt", KL, "nats"),
    "right_with": ("step unit", RIGHT_WITH, "1"),
    "kl_with": ("step unit", KL_WITH, "nats"),
    "random_limit": ("", "gain of one more random set with 95 %", "1"),
    "shuffled_limit": ("", "gain in shuffled answers, 95 % quantile", "1"),
}


@measurement("kept_blocks")
def blocks_to_keep(
    reference: Bridge,
    other: Bridge,
    prompts: PromptsOrItems,
    answers: Sequence[str] | None = None,
    *,
    n_keep: int = 2,
    units: Units = "blocks",
    choices: ChoicesOfPrompts = None,
    clusters: Clusters = None,
    n_random: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Which blocks of another model to keep as they are in the reference, so that right answers are not lost.

    Half of the clusters of prompts, drawn with `seed`, select: first the block that, taken from the reference, makes
    most answers right (of equal ones that with the largest mean lead), then the one that does so beside it, and so on.
    Each candidate is really kept, since what a block loses depends on what the blocks below it lost. The other half of
    the clusters tests what was selected beside

    * as many *random* blocks, `n_random` different sets; below the limit is one more draw with 95 % (Student's);
    * the blocks that the same procedure selects for the smallest mean KL of the next token;
    * *shuffled answers*: prompts are given the right answers of others, 200 times. A block that makes an answer
      likelier whatever is asked gains as many of these; the limit is their 95 % quantile.

    `above_null` is "yes" only if the gain of what was selected is above both limits and its interval above 0.

    Args:
        reference, other, prompts, answers, choices, clusters: as in `damage_by_block`. Use 48 prompts or more.
        n_keep: number of blocks, or sublayers, to keep; 2 by default.
        units: ``"blocks"``, the default, or ``"sublayers"``, attention or MLP of a block by themselves.
        n_random: number of random sets; 8 by default, or all other sets if there are fewer. With fewer than two
            there is no limit.
        seed: random seed of the halves, the random sets and the shuffles, at least 0; 0 by default.

    Returns:
        Dataset. Over (kept, prompt), with `kept` ``"none"``, ``"selected"``, ``"selected by KL"``, ``"random 0"`` … and
        ``"all blocks"``, and the prompts of the half that tests: `lead`, in nats, and `kl`, the KL of the next token
        from the reference's. Over (kept): the coordinate `units_kept`, what is kept, in words; `right`, the share of
        prompts whose right answer leads; `gain`, this share minus that of ``"none"``; `mean_kl`; each with the ends
        `…_low` and `…_high` of a 95 % interval over clusters. Over (step, unit), of the half that selects:
        `right_with` and `kl_with`, the share of right answers and the mean KL with this unit beside those selected
        before, NaN for these. `random_limit`, `shuffled_limit` and the coordinate `above_null`, ``"yes"``, ``"no"`` or
        ``"not measured"``.

    Raises:
        InputError: the cases of `damage_by_block`; fewer than four clusters; more units than there are; a seed below 0.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> other = sl.quantize_weights(model, "Q4_0", blocks=(1,))
    >>> found = sl.blocks_to_keep(model, other, prompts, [*"0123456789"], n_keep=1)
    >>> str(found["units_kept"].sel(kept="selected by KL").values), str(found["above_null"].values)
    ('block 1', 'no')
    """
    positive(n_random, "n_random", "a number of random sets", or_zero=True)
    given = (prompts, answers, choices, clusters, None)
    with two_models(reference, other, this_call(), *given) as two:
        require_exchangeable(two.reference, two.other)
        candidates = _candidates(two, units)
        n_clusters = int(two.asked.clusters.max()) + 1
        if n_clusters < 4:
            raise InputError(
                f"{n_clusters} different prompts or clusters are too few for two halves.",
                "Give at least 4, better 48 or more.",
            )
        positive(n_keep, "n_keep", f"a number of {units}", most=len(candidates) - 1)
        return _tested(two, candidates, n_keep, n_random, seed)


def _candidates(two: TwoModels, units: Units) -> list[Unit]:
    """All units: the blocks, or attention and MLP of each block."""
    blocks = range(two.reference.n_blocks)
    parts: tuple[Exchanged, ...] = ("block",)
    if units == "sublayers":
        parts = ("attention", "mlp")
    return [(block, part) for block in blocks for part in parts]


@dataclass(frozen=True)
class Trials:
    """What some prompts answer with several sets of units kept: logits of their choices, and KL of the next token."""

    choices: Float[np.ndarray, "prompt kept outcome"]
    kl: Float[np.ndarray, "prompt kept"]


def _trials(
    two: TwoModels, chosen: Bool[np.ndarray, " prompt"], sets: Sequence[Sequence[Unit]]
) -> Trials:
    """Run the chosen prompts through the other model, once for each set of units that it keeps from the reference."""
    numbers = np.flatnonzero(chosen)
    choices = np.zeros((len(numbers), len(sets), two.first_tokens.shape[1]))
    kl = np.zeros((len(numbers), len(sets)))
    for places, pair in recorded_batches(two, numbers.tolist()):
        rows = np.searchsorted(numbers, places)  # of these prompts among those chosen
        y_of_reference = pair.reference.y_of(pair.reference.streams[-1])
        log_p = next_tokens(two, two.reference, y_of_reference)
        for column, units in enumerate(sets):
            y = pair.y_keeping(_as_kept(units))
            log_q = next_tokens(two, two.other, y)
            choices[rows, column] = choice_logits(two, two.other, places, y)
            kl[rows, column] = divergence(log_p, log_q)
    return Trials(choices, kl)


def _as_kept(units: Sequence[Unit]) -> Mapping[int, Exchanged]:
    """What is kept of each block; attention and MLP together are the whole block."""
    kept: dict[int, Exchanged] = {}
    for block, part in units:
        kept[block] = "block" if block in kept else part
    return kept


@dataclass(frozen=True)
class Selected:
    """The units that one criterion selected, and what every unit reached at each step (NaN for those selected)."""

    units: list[Unit]
    right: Float[np.ndarray, "step unit"]
    kl: Float[np.ndarray, "step unit"]


def _select(
    candidates: Sequence[Unit],
    n_keep: int,
    right: Int[np.ndarray, " prompt"],
    trials_beside: Callable[[tuple[int, ...]], Trials],
    *,
    by_kl: bool,
) -> Selected:
    """Select units one after another, each beside those selected before, by right answers or by KL.

    `right` has the number of each prompt's right choice. ``trials_beside(chosen)`` gives the trials of each candidate
    that is not yet chosen, kept together with those whose numbers are `chosen`.
    """
    chosen: tuple[int, ...] = ()
    shares = np.full((n_keep, len(candidates)), np.nan)
    divergences = np.full((n_keep, len(candidates)), np.nan)
    for step in range(n_keep):
        remaining = _not_chosen(candidates, chosen)
        trials = trials_beside(chosen)
        leads = selection.leads(trials.choices, right)
        kl = trials.kl.mean(axis=0)
        right_shares = (leads > 0).mean(axis=0)
        shares[step, remaining] = right_shares
        divergences[step, remaining] = kl
        # The largest share; of equal ones, that with the largest mean lead.
        best = np.lexsort((leads.mean(axis=0), right_shares))[-1]
        if by_kl:
            best = kl.argmin()
        chosen += (int(remaining[best]),)
    units = [candidates[number] for number in chosen]
    return Selected(units, shares, divergences)


def _not_chosen(candidates: Sequence[Unit], chosen: tuple[int, ...]) -> np.ndarray:
    """The numbers of the candidates that are not chosen, in ascending order."""
    return np.setdiff1d(np.arange(len(candidates)), chosen)


def _tested(
    two: TwoModels, candidates: list[Unit], n_keep: int, n_random: int, seed: int
) -> xr.Dataset:
    """The result: units are selected on one half of the clusters, and tested on the other beside random sets."""
    selecting = selection.halves(two.asked.clusters, seed)  # True for each prompt of it
    by_answers, by_kl = _both_selected(two, candidates, n_keep, selecting)
    random_sets = _random_sets(candidates, by_answers.units, n_random, seed)
    sets: dict[str, list[Unit]] = {
        NONE: [],
        SELECTED: by_answers.units,
        BY_KL: by_kl.units,
    }
    for number, units in enumerate(random_sets):
        sets[f"random {number}"] = units
    sets[ALL] = [(block, "block") for block in range(two.reference.n_blocks)]
    in_words = [_in_words(units) for units in sets.values()]
    in_words[-1] = ALL  # which may be too many to name
    trials = _trials(two, ~selecting, list(sets.values()))
    right = two.asked.right[~selecting]
    # The clusters of the half that tests, numbered from 0 on.
    _, clusters = np.unique(two.asked.clusters[~selecting], return_inverse=True)
    judged = _judged(trials.choices, right, clusters, len(random_sets), seed)
    leads = selection.leads(trials.choices, right).T  # (kept, prompt)
    found = {
        "lead": leads,
        "kl": trials.kl.T,
        "right_with": by_answers.right,
        "kl_with": by_answers.kl,
        "random_limit": judged.random_limit,
        "shuffled_limit": judged.shuffled_limit,
    }
    variables = variables_of(TABLE, found) | _means(leads, trials.kl.T, clusters)
    tested = np.flatnonzero(~selecting)
    coords: dict[str, Any] = {
        "kept": list(sets),
        "units_kept": ("kept", in_words),
        "prompt": tested,
        "answer": ("prompt", np.array(two.asked.answers, dtype=object)[tested]),
        "cluster": ("prompt", two.asked.clusters[tested]),
        "step": np.arange(n_keep),
        "unit": [_in_words([unit]) for unit in candidates],
        "above_null": judged.above_null,
    }
    return two.reference.dataset("blocks to keep", coords, variables)


def _both_selected(
    two: TwoModels,
    candidates: list[Unit],
    n_keep: int,
    selecting: Bool[np.ndarray, " prompt"],
) -> tuple[Selected, Selected]:
    """The units that are selected by right answers, and those by KL."""

    # Cached, since both criteria begin with the same trials.
    @cache
    def trials_beside(chosen: tuple[int, ...]) -> Trials:
        """The trials of each candidate that is not chosen, kept together with those that are."""
        units = [candidates[number] for number in chosen]
        sets: list[list[Unit]] = []
        for number in _not_chosen(candidates, chosen):
            sets.append([*units, candidates[number]])
        return _trials(two, selecting, sets)

    right = two.asked.right[selecting]
    by_answers = _select(candidates, n_keep, right, trials_beside, by_kl=False)
    by_kl = _select(candidates, n_keep, right, trials_beside, by_kl=True)
    return by_answers, by_kl


def _means(
    leads: Float[np.ndarray, "kept prompt"],
    kl: Float[np.ndarray, "kept prompt"],
    clusters: Int[np.ndarray, " prompt"],
) -> dict[str, Variable]:
    """The variables `right`, `gain` and `mean_kl` of each set that is kept, with intervals over clusters."""
    over = ("kept",)
    is_right = (leads > 0).astype(float)
    text = "share of prompts in which the right answer leads"
    right = mean_of("right", over, is_right, text, clusters=clusters)
    text = "share of right answers that keeping these gives back"
    gain = with_ends("gain", over, _gains(is_right, clusters), text)
    return right | gain | mean_kl_of(over, kl, f"mean {KL}", clusters)


def _random_sets(
    candidates: Sequence[Unit], selected: Sequence[Unit], n_random: int, seed: int
) -> list[list[Unit]]:
    """`n_random` different sets of as many units as were selected, none of them the selected one.

    If there are fewer such sets, all of them.
    """
    rng = selection.random_stream(seed, 1)
    n_others = math.comb(len(candidates), len(selected)) - 1
    if n_others < n_random:
        remark(f"n_random={n_random} is more than the {n_others} other sets there are.")
    excluded = {frozenset(selected)}  # and those that were drawn already
    sets: list[list[Unit]] = []
    while len(sets) < min(n_random, n_others):
        drawn = rng.permutation(len(candidates))[: len(selected)]
        units = [candidates[number] for number in sorted(drawn)]
        if frozenset(units) not in excluded:
            excluded.add(frozenset(units))
            sets.append(units)
    return sets


def _gains(
    is_right: Float[np.ndarray, "kept prompt"], clusters: Int[np.ndarray, " prompt"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of right answers that each set gives back, with the ends of its interval, over (kept).

    The first set keeps nothing: its gain and both ends are 0 by definition.
    """
    shares = torch.from_numpy(is_right)
    nothing_kept = shares[:1].expand_as(shares)
    gains, lows, highs = paired_change(nothing_kept, shares, torch.from_numpy(clusters))
    lows[0] = highs[0] = 0
    return gains, lows, highs


def _judged(
    choices: Float[np.ndarray, "prompt kept outcome"],
    right: Int[np.ndarray, " prompt"],
    clusters: Int[np.ndarray, " prompt"],
    n_random: int,
    seed: int,
) -> selection.Selection:
    """The gain of the selected units with its interval, and the two nulls that it is compared with.

    `choices` are logits of the half that tests. The sets along `kept` are, in this order: nothing, the selected units,
    those selected by KL, `n_random` random sets, and all blocks.
    """
    is_right = (selection.leads(choices, right) > 0).T.astype(float)
    gains, lows, highs = _gains(is_right, clusters)
    random_gains = gains[3 : 3 + n_random].numpy()
    rng = selection.random_stream(seed, 2)
    shuffled_gains = np.full(selection.SHUFFLES, np.nan)
    # No shuffle changes answers that are all the same.
    if (right != right[0]).any():
        without_and_with = choices[:, :2]  # nothing kept, and the selected units
        for draw in range(selection.SHUFFLES):
            answers_of_others = selection.shuffled(right, clusters, rng)
            leads = selection.leads(without_and_with, answers_of_others)
            shares = (leads > 0).mean(axis=0)
            shuffled_gains[draw] = shares[1] - shares[0]
    return selection.Selection(
        part=0,  # which a set of units has none of
        net=float(gains[1]),
        low=float(lows[1]),
        high=float(highs[1]),
        random=random_gains,
        shuffled=shuffled_gains,
    )


def _in_words(units: Sequence[Unit]) -> str:
    """Units in words.

    >>> _in_words([(3, "attention"), (4, "block")])
    'attention of block 3, block 4'
    """
    names: list[str] = []
    for block, part in units:
        name = f"block {block}"
        if part != "block":
            name = f"{part} of {name}"
        names.append(name)
    return ", ".join(names) or "none"
