"""What the report says of a prompt: its prediction, its right answer, the tokens that matter, and what helps.

A verdict is about a change of the prompt that changes the right answer (`squashlens.verdict`). Without one, the page
says what the prediction is sensitive to, and what a verdict would need.
"""

from collections.abc import Iterable, Mapping
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
from squashlens.pages.page import Answer
from squashlens.records.provenance import facts_of
from squashlens.records.sentences import listed, number, percent, quoted
from squashlens.theory.distances import NOISE_FLOORS

MATTERS = 0.01  # share of the probability: below it, no single token is said to matter
SHOWN = 3  # tokens that are named
ENOUGH = 15  # tokens from which on ranks are compared
HALF = ("float16", "bfloat16")
WORDS = {
    ANSWERED: "Answered: greedy decoding writes each prompt's own right answer.",
    PREFERRED: "Preferred, not answered: of the two answers each prompt prefers its own, and greedy decoding does not "
    "write both.",
    REACHES: "The change reaches the last token and is not used: not both prompts prefer their own answer.",
    LOST: "Lost before the last token: nothing tells the two prompts apart there.",
    UNDECIDED: "Undecided.",
}
NEEDED = (
    "A verdict needs the right answer, and another prompt with another right answer: "
    'answer="…", instead=("another prompt", "its answer"); in a shell, --answer … --instead "another prompt" …'
)


@dataclass(frozen=True)
class Evidence:
    """What was measured of a prompt.

    `top` has the next tokens, and `knockout` what the prediction loses without each token, or is None where tokens
    cannot be knocked out. `judged` is the verdict on the prompt and another one, if there are right answers, and
    `helped` the verdicts under each remedy that was tried.
    """

    top: xr.DataArray
    measured: xr.Dataset
    knockout: xr.Dataset | None = None
    judged: xr.Dataset | None = None
    helped: Mapping[str, xr.Dataset] = field(default_factory=dict)

    @property
    def compared(self) -> slice:
        """The tokens that comparisons are about: without BOS and the last one."""
        last = self.measured.sizes["position"] - 1
        return slice(last - int(self.measured["compared_tokens"]), last)

    @property
    def dependence(self) -> np.ndarray:
        """How much each token matters: the probability that its knockout moves, or its Jacobian norm."""
        if self.knockout is None:
            return self.measured["jacobian"].values
        return moved_probability(self.knockout["total_variation"]).values

    def token(self, place: int) -> str:
        """A token with its position."""
        return _token_at(self.measured, place)


def first_answers(evidence: Evidence) -> list[Answer]:
    """The answers of the first screen."""
    answers = [_predicted(evidence), _became(evidence.judged), _depended(evidence)]
    if evidence.helped:
        answers.append(_helps(evidence.helped))
    return answers


def _predicted(evidence: Evidence) -> Answer:
    tokens = evidence.top["token"].values
    shares = [percent(share) for share in evidence.top.values.tolist()]
    verdict = f"{quoted(tokens[0])}, with a probability of {shares[0]}."
    details = []
    if len(tokens) > 1:
        others = zip(tokens[1:], shares[1:], strict=True)
        texts = ", ".join(f"{quoted(token)} {share}" for token, share in others)
        details.append(f"Next: {texts}.")
    if evidence.judged is not None:
        pair = evidence.judged.isel(pair=0)
        answer = f"{quoted(pair['answer'].item())} has {_share(pair, 'probability')}"
        after = _share(pair, "probability_after")
        details += [
            f"The right answer {answer}. Greedy decoding writes {quoted(pair['written'].item())}.",
            f"After the other prompt, its right answer {quoted(pair['answer_after'].item())} has {after}.",
        ]
    return Answer("What did the model predict?", verdict, details)


def _share(pair: xr.Dataset, name: str) -> str:
    return percent(pair[name].item())


def _became(judged: xr.Dataset | None) -> Answer:
    question = "What became of the right answer?"
    if judged is None:
        return Answer(question, "No verdict: no right answer was given.", [NEEDED])
    pair = judged.isel(pair=0)
    return Answer(question, WORDS[pair["verdict"].item()], [pair["reason"].item()])


def _depended(evidence: Evidence) -> Answer:
    """The tokens whose knockout moves the prediction, or that have the largest Jacobian norms."""
    question = "Which tokens does the prediction depend on?"
    inside = evidence.compared
    values = evidence.dependence[inside]
    if not len(values):
        verdict = "There is no token between the first and the last one."
        return Answer(question, verdict, [])
    # From the largest on.
    order = np.argsort(values)[::-1][:SHOWN]
    largest = values[order].tolist()
    names = [evidence.token(inside.start + place) for place in order]
    if evidence.knockout is None:
        norms = with_interval(evidence.measured, "jacobian")[inside]
        return Answer(question, *_largest_norms(norms, largest, names))
    shares = [percent(share) for share in largest]
    if largest[0] < MATTERS:
        detail = f"Hiding one from all later tokens moves {shares[0]} of the probability at most ({names[0]})."
        return Answer(question, "No single token matters.", [detail])
    most = [
        name for name, share in zip(names, shares, strict=True) if share == shares[0]
    ]
    moves = _each(f"{{}} without {name}" for name in names).format(*shares)
    details = [f"Probability that moves if no later token can read it: {moves}."]
    if inside.start:
        first = percent(evidence.dependence[0])
        details[0] += f" Left out is {evidence.token(0)}, without which {first} moves."
    details += _why(evidence, evidence.knockout)
    return Answer(question, f"Most on {listed(most)}.", details)


def _each(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _largest_norms(
    norms: xr.DataArray, largest: list[float], names: list[str]
) -> tuple[str, list[str]]:
    """Which token has the largest norm, or how many may have it, by their intervals and the three digits shown."""
    low, high = ends_of(norms)
    known = np.array([f"{end:.3g}" for end in low], dtype=float).max()
    open_to = int(
        (np.array([f"{end:.3g}" for end in high], dtype=float) >= known).sum()
    )
    most = names[0]
    if open_to > 1:
        most = f"one of {open_to} tokens whose norms may be equal"
    each = _each(
        f"{number(norm)} for {name}" for norm, name in zip(largest, names, strict=True)
    )
    detail = f"Jacobian norms: {each}. Tokens could not be hidden."
    return f"Most on {most}, by the Jacobian norm.", [detail]


def _why(evidence: Evidence, knockout: xr.Dataset) -> list[str]:
    """Why the likeliest token and not the next: the token without which its lead changes most, above rounding."""
    inside = evidence.compared
    changes = knockout["log_odds_change"].values[inside]
    place = int(np.argmax(np.abs(changes)))
    if abs(changes[place]) < NOISE_FLOORS * knockout["log_odds_noise"].item():
        return []
    first = quoted(knockout["target"].item())
    other = quoted(knockout["against"].item())
    lead = number(knockout["log_odds"])
    change = f"{number(changes[place])} without {evidence.token(inside.start + place)}"
    return [
        f"Why {first} and not {other}: its lead of {lead} nats changes by {change}."
    ]


def _helps(helped: Mapping[str, xr.Dataset]) -> Answer:
    """With which of the changes that were tried the model writes both right answers."""
    helping = []
    tried = []
    for name, found in helped.items():
        pair = found.isel(pair=0)
        verdict = pair["verdict"].item()
        if verdict == ANSWERED:
            helping.append(f"{name[:1].upper()}{name[1:]}")
        both = f"{_share(pair, 'probability')} and {_share(pair, 'probability_after')}"
        tried.append(f"{name}: {verdict} ({both})")
    best = helping[0] if helping else "None of the changes that were tried"
    each = "; ".join(tried)
    detail = f"Tried, with the probabilities of the two right answers: {each}."
    return Answer("What helps?", f"{best}.", [detail])


def ranks(measured: xr.Dataset) -> str:
    """How alike path bound and Jacobian rank the tokens; empty for too few tokens."""
    tokens = int(measured["compared_tokens"])
    if tokens < ENOUGH:
        return ""
    bound = measured.sel(estimate="path_bound")
    rho = number(bound["rank_agreement"])
    low = number(bound["rank_agreement_low"])
    high = number(bound["rank_agreement_high"])
    null = number(measured["rank_agreement"].sel(estimate="null"))
    return (
        f"Spearman's ρ of path bound and Jacobian norm over {tokens} tokens is {rho}, 95 % interval {low} to {high}; "
        f"that of the null, which does not use this model's attention, is {null}. BOS and the last token are left out."
    )


def sinks(measured: xr.Dataset) -> str:
    """The attention sinks and their shares; empty without one."""
    if "sink" not in measured or not (measured["sink"] == 1).any():
        return ""
    places = np.flatnonzero(measured["sink"] == 1).tolist()
    each = measured[["path_bound", "null", "jacobian"]]
    total = each.sum()
    share = 100 * each.isel(position=places).sum() / total.where(total > 0)
    names = ", ".join(_token_at(measured, place) for place in places)
    norms = f"{share['jacobian'].item():.3g}"
    if "jacobian_low" in measured:  # estimated
        norms = f"about {share['jacobian'].item():.0f}"
    bound = f"{share['path_bound'].item():.4g} % of the path bound"
    null = f"{share['null'].item():.3g} % of the null"
    return f"Attention sinks: {names}, with {bound}, {null} and {norms} % of the Jacobian norms."


def certainty_of_norms(measured: xr.Dataset) -> str:
    """How far the Jacobian norms may be off: exact, estimated with intervals, or in half precision."""
    dtype = facts_of(measured).get("dtype")
    if dtype in HALF:
        return f"The norms were computed in {dtype}, in which small ones are several times too large."
    if "jacobian_low" not in measured:
        return "The norms are exact to first order, for this prompt and this model."
    said = "The norms are estimates from random products of the Jacobian"
    low = measured["jacobian_low"]
    factor = (measured["jacobian_high"] / low.where(low > 0)).max().item()
    if np.isnan(factor):
        return f"{said}."
    return (
        f"{said}; the ends of their intervals are up to a factor of {factor:.2g} apart."
    )


def _token_at(measured: xr.Dataset, place: int) -> str:
    position = int(measured["position"].values[place])
    return f"{quoted(measured['token'].values[place])} at position {position}"
