"""What decides a verdict on two prompts with two right answers, and the order of its tests."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from squashlens.records.sentences import escape, number, quoted, times
from squashlens.theory.distances import NOISE_FLOORS

# Least log-odds of a preferred answer, in nats, and least lead over placebos and random weights.
LEAD = math.log(2)
# How much less likely than the likeliest token those of an answer may be. λ of two answers that the model would never
# give follows the prompt by chance: of right answers in another order one in ten, all of them e^9.9 behind or more.
POSSIBLE = math.log(1000)
ANSWERED = "answered"
PREFERRED = "preferred, not answered"
REACHES = "reaches the last token, not used"
LOST = "lost"
UNDECIDED = "undecided"
CHANCE = 0.05  # greatest share of placebos, with the answer among them, that may lead as much as a mentioned answer
LEAST_PLACEBOS = 19  # with fewer, the answer alone is more than that share
FEWEST = "To decide it takes at least 19 such words: give more pairs, in which words change that are not the answers."


@dataclass
class Evidence:
    """What decides the verdict on one pair.

    `odds` and `odds_after` are λ(P) and λ(P′) in every run, the first run first, and `noise` is the larger of their
    noises. `margins` are distances of the two prompts ÷ noise, and `recovered` shares of runs that are nearer to their
    own prompt, at each layer and last at y. `only_mentioned` says that an answer occurs in its own prompt alone. `said`
    is what greedy decoding writes after each prompt, and `writes` whether that is the right answer: None if it depends
    on the grouping. `probabilities` are those of the right answers, `rank` is the worst one of a token of the first,
    and `behind` how far the likeliest token is ahead at most, in nats. `placebos` has the lead, min(λ, −λ′), of each
    pair of placebo words, `all_placebos` those of all pairs of prompts, and `random` λ and λ′ in models with random
    weights, (model, 2).
    """

    answers: tuple[str, str]
    said: tuple[str, str]
    writes: tuple[bool | None, bool | None]
    odds: np.ndarray
    odds_after: np.ndarray
    noise: float
    probabilities: tuple[float, float]
    rank: int
    behind: float
    margins: np.ndarray
    recovered: np.ndarray
    dtype: str
    only_mentioned: bool = False
    placebos: dict[tuple[str, str], float] = field(default_factory=dict)
    all_placebos: np.ndarray = field(default_factory=lambda: np.zeros(0))
    random: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def told_apart(self) -> np.ndarray:
        """Whether the two prompts are told apart, at each layer and at y."""
        return (self.margins > 1) & (self.recovered == 1)

    @property
    def last_told_apart(self) -> int:
        """The last layer at which the two prompts are told apart; −1 if there is none."""
        return int(max(np.flatnonzero(self.told_apart[:-1]), default=-1))

    @property
    def lead(self) -> float:
        """min(λ(P), −λ(P′)), by how much each prompt prefers its own answer at least."""
        return min(float(self.odds[0]), -float(self.odds_after[0]))

    @property
    def placebo(self) -> float:
        """By how much the strongest placebo is preferred, NaN without one."""
        return max(self.placebos.values(), default=math.nan)

    @property
    def verdict(self) -> str:
        """The verdict from what is known so far."""
        verdict, _ = decide(self)
        return verdict

    def as_row(self) -> dict[str, Any]:
        """What the result says of the pair, by the names of `diagnose`."""
        verdict, reason = decide(self)
        written, written_after = self.said
        probability, probability_after = self.probabilities
        return {
            "verdict": verdict,
            "reason": reason,
            "written": written,
            "written_after": written_after,
            "last_told_apart": self.last_told_apart,
            "log_odds": float(self.odds[0]),
            "log_odds_after": float(self.odds_after[0]),
            "log_odds_noise": self.noise,
            "gap_to_likeliest": self.behind,
            "placebo": self.placebo,
            "probability": probability,
            "probability_after": probability_after,
            "worst_rank": float(self.rank),
        }


def decide(known: Evidence) -> tuple[str, str]:
    """The verdict on one pair, and the reason, in the order of the docstring of `diagnose`."""
    before = float(known.odds[0])
    after = float(known.odds_after[0])
    is_change_resolved = abs(before - after) >= NOISE_FLOORS * known.noise
    is_same_at_y = known.margins[-1] <= 1 and known.recovered[-1] < 1
    written = f"Greedy decoding writes “{escape(known.said[0].strip())}” and “{escape(known.said[1].strip())}”."
    log_odds = _odds_of(known)  # both log-log_odds in a sentence
    if all(known.writes):
        return ANSWERED, written
    if None in known.writes and False not in known.writes:
        return (
            UNDECIDED,
            f"{written} Whether it writes the right answers depends on rounding in {known.dtype}.",
        )
    if is_same_at_y and not is_change_resolved:
        return LOST, f"{_where_lost(known)} {log_odds}"
    if before <= -known.noise or after >= known.noise:  # the wrong sign
        far = times(float(known.margins[-1]))
        apart = f"at the last token the two prompts are {far} as far apart as rounding moves them"
        if known.told_apart[-1] or is_change_resolved:
            return (
                REACHES,
                f"{_preferred_of(known)} {written} The change arrives: {apart}. {log_odds}",
            )
        return (
            UNDECIDED,
            f"Not all runs tell the two prompts apart: {apart}. {log_odds}",
        )
    are_preferred = (known.odds >= LEAD).all() and (known.odds_after <= -LEAD).all()
    if not (is_change_resolved and are_preferred):
        return (
            UNDECIDED,
            f"In not all runs is each right answer at least twice as likely as the other. {log_odds}",
        )
    explanation = _other_explanation(known)
    if explanation:
        return UNDECIDED, f"{explanation} {log_odds}"
    exceeded = []
    if known.placebos:
        exceeded.append(f"placebos ({number(known.placebo)} nats)")
    if len(known.random):
        exceeded.append("random weights")
    by_more_than = f", by more than {' and '.join(exceeded)}" if exceeded else ""
    return (
        PREFERRED,
        f"Of the two answers each prompt prefers its own{by_more_than}. {written} {log_odds}",
    )


def _other_explanation(known: Evidence) -> str:
    """What else may explain that each prompt prefers its own answer, in a sentence; "" if nothing does."""
    if known.behind > POSSIBLE:
        return f"The likeliest token is {times(float(np.exp(known.behind)))} as likely as one of the right answers'."
    if known.only_mentioned:
        n_as_strong = int((known.all_placebos >= known.lead).sum())
        n_placebos = len(known.all_placebos)
        # The answer itself counts with the placebos.
        if 1 + n_as_strong > CHANCE * (1 + n_placebos):
            why = (
                f"An answer occurs in its own prompt alone, and {n_as_strong} of {n_placebos} other words that change "
                "in the same places lead as much: that it was mentioned may be all."
            )
            return f"{why} {FEWEST}" if n_placebos < LEAST_PLACEBOS else why
    elif known.placebos and known.lead < known.placebo + LEAD:
        strongest = max(known.placebos, key=known.placebos.__getitem__)
        words = " and ".join(map(quoted, strongest))
        return f"{words}, which change too and are not the answers, lead by {number(known.placebo)} nats."
    if len(known.random) and not exceeds_random(known):
        moved = float(np.abs(known.random[:, 0] - known.random[:, 1]).max())
        return f"In random weights the change moves the log-odds by {number(moved)} nats, too."
    return ""


def _odds_of(known: Evidence) -> str:
    """Both log-odds and their noise, in a sentence."""
    answer, other = map(quoted, known.answers)
    before = number(known.odds[0])
    after = number(known.odds_after[0])
    return (
        f"The log-odds of {answer} and {other} are {before} nats after the first prompt and {after} after the second; "
        f"rounding in {known.dtype} moves them by {number(known.noise)}."
    )


def exceeds_random(known: Evidence) -> bool:
    """Whether both answers are preferred by more than random weights do.

    No random model may prefer both itself, and twice what the change moves its λ by must be exceeded by log 2: other
    draws move it further, and from another place. Of 192 pairs in untrained models half of it left 28 preferred, all of
    it 4, and twice of it none.
    """
    random_lead = np.minimum(known.random[:, 0], -known.random[:, 1])
    moved = np.abs(known.random[:, 0] - known.random[:, 1])
    return bool((random_lead < LEAD).all() and (known.lead >= LEAD + 2 * moved).all())


def _where_lost(known: Evidence) -> str:
    """Up to which layer the two prompts are told apart, in a sentence."""
    last = known.last_told_apart
    if last < 0:
        return "At no layer are the two prompts told apart at the last token."
    return f"The two prompts are told apart up to layer {last}, and not at the last token's output."


def _preferred_of(known: Evidence) -> str:
    """Which answer is preferred after both prompts, in a sentence."""
    answer, other = map(quoted, known.answers)
    if known.odds[0] < 0 < known.odds_after[0]:
        return "After each prompt the model prefers the other one's answer: are they given the wrong way round?"
    return f"Of the two answers the model prefers {answer if known.odds[0] > 0 else other} after both prompts."
