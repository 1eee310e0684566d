"""The first screen of the report: what was predicted, what became of the right answer, what it depends on, what helps.

A verdict is about a change of the prompt that changes the right answer (`squashlens.verdict`). Without one, the page
says what the prediction is sensitive to, and what a verdict would need.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from squashlens.checks.results import moved_probability
from squashlens.figures.drawing.shapes import ends_of, with_interval
from squashlens.measure.answers.verdict_evidence import (
    ANSWERED,
    LOST,
    PREFERRED,
    REACHES,
    UNDECIDED,
)
from squashlens.records.sentences import listed, number, percent, quoted
from squashlens.theory.distances import NOISE_FLOORS

MATTERS = 0.01  # share of the probability: below it, no single token is said to matter
SHOWN = 3  # tokens that are named
PROBABILITIES = ("probability", "probability_after")
WORDS = {
    ANSWERED: "answered: greedy decoding writes each prompt's own right answer",
    PREFERRED: "preferred, not answered: of the two answers each prompt prefers its own, and greedy decoding does not "
    "write both",
    REACHES: "the change reaches the last token and is not used: not both prompts prefer their own answer",
    LOST: "lost before the last token: nothing tells the two prompts apart there",
    UNDECIDED: "undecided",
}


@dataclass(frozen=True)
class Evidence:
    """What the first screen is about.

    `top` has the next tokens, and `knockout` what the prediction loses without each token, or is None where tokens
    cannot be knocked out. `judged` is the verdict on the prompt and another one, if there are right answers, and
    `helped` the verdicts under each remedy that was tried.
    """

    top: xr.DataArray
    measured: xr.Dataset
    knockout: xr.Dataset | None = None
    judged: xr.Dataset | None = None
    helped: Mapping[str, xr.Dataset] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One of the questions with its answer in a sentence, and what it rests on."""

    question: str
    verdict: str
    details: tuple[str, ...]


def first_answers(given: Evidence) -> tuple[Answer, ...]:
    """The answers of the first screen."""
    answers = [
        Answer("What did the model predict?", *_predicted(given)),
        Answer("What became of the right answer?", *_became(given.judged)),
        Answer("Which tokens does the prediction depend on?", *_depended(given)),
    ]
    if given.helped:
        answers.append(Answer("What helps?", *_helps(given)))
    return tuple(answers)


def dependence(given: Evidence) -> tuple[np.ndarray, str]:
    """How much each token matters, and what the numbers are: what its knockout moves, or its Jacobian norm."""
    if given.knockout is None:
        return given.measured["jacobian"].values, "Jacobian norm"
    moved = moved_probability(given.knockout["total_variation"])
    return moved.values, "share of the probability that moves without the token"


def compared(measured: xr.Dataset) -> slice:
    """The tokens that comparisons are about: without BOS and the last one."""
    last = measured.sizes["position"] - 1
    return slice(last - int(measured["compared_tokens"]), last)


def _predicted(given: Evidence) -> tuple[str, tuple[str, ...]]:
    tokens, shares = given.top["token"].values, given.top.values
    verdict = f"{quoted(tokens[0])}, with a probability of {percent(float(shares[0]))}."
    others = ", ".join(
        f"{quoted(t)} {percent(float(p))}"
        for t, p in zip(tokens[1:], shares[1:], strict=True)
    )
    details = [f"Next: {others}."] if others else []
    if given.judged is not None:
        own = given.judged.isel(pair=0)
        share, said = percent(float(own["probability"])), quoted(own["written"].item())
        details.append(
            f"The right answer {quoted(own['answer'].item())} has {share}. Greedy decoding writes {said}."
        )
        other = f"{quoted(own['answer_after'].item())} has {percent(float(own['probability_after']))}"
        details.append(f"After the other prompt, its right answer {other}.")
    return verdict, tuple(details)


def _became(judged: xr.Dataset | None) -> tuple[str, tuple[str, ...]]:
    if judged is None:
        return "No verdict: no right answer was given.", (
            "A verdict needs the right answer, and another prompt with another right answer: "
            'answer="…", instead=("another prompt", "its answer"); in a shell, --answer … --instead "another prompt" …',
        )
    own = judged.isel(pair=0)
    return f"{sentence(WORDS[str(own['verdict'].item())])}.", (
        str(own["reason"].item()),
    )


def _depended(given: Evidence) -> tuple[str, tuple[str, ...]]:
    """The tokens whose knockout moves the prediction, or that have the largest Jacobian norms."""
    values, inside = dependence(given)[0], compared(given.measured)
    own = values[inside]
    if not len(own):
        return "There is no token between the first and the last one.", ()
    order = [int(at) for at in np.argsort(own)[::-1][:SHOWN]]
    names = [name_at(given.measured, inside.start + at) for at in order]
    if given.knockout is None:
        each = ", ".join(
            f"{number(own[at])} for {name}"
            for at, name in zip(order, names, strict=True)
        )
        open_to = _candidates(with_interval(given.measured, "jacobian")[inside])
        most = (
            names[0]
            if open_to == 1
            else f"one of {open_to} tokens whose norms may be equal"
        )
        return f"Most on {most}, by the Jacobian norm.", (
            f"Jacobian norms: {each}. Tokens could not be hidden.",
        )
    if own.max() < MATTERS:
        return "No single token matters.", (
            f"Hiding one from all later tokens moves {percent(float(own.max()))} of the probability at most "
            f"({names[0]}).",
        )
    each = ", ".join(
        f"{percent(float(own[at]))} without {name}"
        for at, name in zip(order, names, strict=True)
    )
    moves = f"Probability that moves if no later token can read it: {each}."
    if inside.start:
        moves += f" Left out is {name_at(given.measured, 0)}, without which {percent(float(values[0]))} moves."
    most = [
        name
        for at, name in zip(order, names, strict=True)
        if percent(own[at]) == percent(own[order[0]])
    ]
    return f"Most on {listed(most)}.", (
        moves,
        *_why(given.knockout, given.measured, inside),
    )


def _candidates(values: xr.DataArray) -> int:
    """How many values may be the largest, by their intervals and the three digits that are shown."""
    low, high = (
        np.array([float(f"{end:.3g}") for end in ends]) for ends in ends_of(values)
    )
    return int((high >= low.max()).sum())


def _why(knockout: xr.Dataset, measured: xr.Dataset, inside: slice) -> tuple[str, ...]:
    """Why the likeliest token and not the next: the token without which its lead changes most, above rounding."""
    changes = knockout["log_odds_change"].values[inside]
    at = int(np.argmax(np.abs(changes)))
    if abs(changes[at]) < NOISE_FLOORS * float(knockout["log_odds_noise"]):
        return ()
    first, other = (quoted(knockout[name].item()) for name in ("target", "against"))
    name, lead = (
        name_at(measured, inside.start + at),
        number(float(knockout["log_odds"])),
    )
    return (
        f"Why {first} and not {other}: its lead of {lead} nats changes by {number(changes[at])} without {name}.",
    )


def _helps(given: Evidence) -> tuple[str, tuple[str, ...]]:
    """With which of the changes that were tried the model writes both right answers."""
    verdicts = {
        name: str(found["verdict"].values[0]) for name, found in given.helped.items()
    }
    helping = next(
        (name for name, said in verdicts.items() if said == ANSWERED),
        "None of the changes that were tried",
    )
    each = "; ".join(
        f"{name}: {said} ({' and '.join(percent(float(given.helped[name][p].values[0])) for p in PROBABILITIES)})"
        for name, said in verdicts.items()
    )
    return f"{sentence(helping)}.", (
        f"Tried, with the probabilities of the two right answers: {each}.",
    )


def name_at(result: xr.Dataset | xr.DataArray, place: int) -> str:
    """A token with its position, for a sentence."""
    return f"{quoted(result['token'].values[place])} at position {int(result['position'].values[place])}"


def sentence(clause: str) -> str:
    """A clause with its first letter large."""
    return clause[:1].upper() + clause[1:]
