"""The report's sentences on data whose truth is known: true, false, undecided and degenerate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import signal

from squashlens.pages import collapse_sentences as collapse
from squashlens.pages import prompt_sentences as screen
from squashlens.records.provenance import with_provenance
from squashlens.records.sentences import number

TOKENS = [f"t{i}" for i in range(20)]


def measured(compared: int = 18, **values: Any) -> xr.Dataset:
    """What `sensitivity` gives for 20 tokens, of which some are compared."""
    names = ("path_bound", "null", "jacobian", "jacobian_frozen")
    base: dict[str, Any] = dict.fromkeys(names, np.ones(20)) | values
    ds = xr.Dataset(
        {name: ("position", np.asarray(v, dtype=float)) for name, v in base.items()},
        coords={"position": range(20), "token": ("position", TOKENS)},
    )
    ranks = (
        ("rank_agreement", [0.8, 0.2]),
        ("rank_agreement_low", [0.45, -0.1]),
        ("rank_agreement_high", [0.92, 0.5]),
    )
    for name, both in ranks:
        ds[name] = ("estimate", both)
    return ds.assign_coords(estimate=["path_bound", "null"]).assign(
        compared_tokens=compared
    )


def moved(*shares: float) -> xr.Dataset:
    """What `knockout_effect` gives if hiding the first tokens moves these shares of the probability."""
    values = np.zeros(20)
    values[1 : 1 + len(shares)] = 2 * np.array(shares)  # stored as L1
    text = {"long_name": "total variation of the next token without the token"}
    lead = {
        "log_odds_change": ("position", -9 * values),
        "log_odds": 2.5,
        "log_odds_noise": 1e-6,
    }
    labels = {"target": " Rome", "against": " Berlin"}
    return xr.Dataset({"total_variation": ("position", values, text), **lead}, labels)


def judged(verdict: str, reason: str = "Why.", **numbers: float) -> xr.Dataset:
    """One pair of a result of `verdict`."""
    values = {"probability": 0.0004, "probability_after": 0.02} | numbers
    ds = xr.Dataset({name: ("pair", [value]) for name, value in values.items()})
    labels = {
        "answer": "90",
        "answer_after": "91",
        "written": "4",
        "verdict": verdict,
        "reason": reason,
    }
    return ds.assign_coords({name: ("pair", [text]) for name, text in labels.items()})


def answers(**given: Any) -> dict[str, str]:
    top = xr.DataArray([0.7, 0.2], dims="rank", coords={"token": ("rank", ["4", " 5"])})
    evidence = screen.Evidence(top, measured(), **{"knockout": moved(0.3, 0.1)} | given)
    return {
        one.question: " ".join([one.verdict, *one.details])
        for one in screen.first_answers(evidence)
    }


BECAME, DEPENDS, HELPS = (
    "What became of the right answer?",
    "Which tokens does the prediction depend on?",
    "What helps?",
)
PREDICTED = "What did the model predict?"
SCREEN: list[tuple[dict[str, Any], str, str]] = [
    ({}, PREDICTED, "“4”, with a probability of 70 %. Next: “␣5” 20 %."),
    (
        {"judged": judged("answered")},
        PREDICTED,
        "“90” has under 0.1 %. Greedy decoding writes “4”. After the other "
        "prompt, its right answer “91” has 2 %.",
    ),
    ({}, BECAME, "No verdict: no right answer was given."),
    (
        {"judged": judged("answered")},
        BECAME,
        "Answered: greedy decoding writes each prompt's own right answer. Why.",
    ),
    (
        {"judged": judged("reaches the last token, not used")},
        BECAME,
        "The change reaches the last token and is not ",
    ),
    (
        {"judged": judged("lost")},
        BECAME,
        "Lost before the last token: nothing tells the two prompts apart there. Why.",
    ),
    (
        {},
        DEPENDS,
        "Most on “t1” at position 1. Probability that moves if no later token can read it: 30 % without",
    ),
    (
        {},
        DEPENDS,
        "Why “␣Rome” and not “␣Berlin”: its lead of 2.5 nats changes by −5.4 without “t1” at position 1.",
    ),
    (
        {"knockout": moved(0.0003)},
        DEPENDS,
        "No single token matters. Hiding one from all later tokens moves under "
        "0.1 % of the probability at most (“t1” at position 1).",
    ),
    (
        {"knockout": None},
        DEPENDS,
        "Most on one of 18 tokens whose norms may be equal, by the Jacobian norm.",
    ),
    (
        {"knockout": moved(0.3, 0.3001, 0.1)},
        DEPENDS,
        "Most on “t2” at position 2 and “t1” at position 1.",
    ),
    (
        {"helped": {"sharper": judged("answered", probability=0.9)}},
        HELPS,
        "Sharper. Tried, with the probabilities of the two right answers: sharper: answered (90 % and 2 %).",
    ),
    (
        {"helped": {"sharper": judged("lost")}},
        HELPS,
        "None of the changes that were tried.",
    ),
]


@pytest.mark.parametrize(("given", "question", "expected"), SCREEN)
def test_the_first_screen(given: dict[str, Any], question: str, expected: str) -> None:
    assert expected in answers(**given)[question]


def test_help_is_a_question_only_of_what_was_tried() -> None:
    assert [*answers()] == [PREDICTED, BECAME, DEPENDS]


def pairs(distance: Any, contrast: Any = None) -> xr.Dataset:
    """What `collapse` gives at one layer."""
    both = {"distance": distance} | ({} if contrast is None else {"contrast": contrast})
    ds = xr.Dataset(
        {name: (("layer", "length"), [values]) for name, values in both.items()}
    )
    return ds.assign_coords(length=range(1, len(distance) + 1), layer=[2])


def apart(share: float, step: float, **more: Any) -> xr.Dataset:
    ds = xr.Dataset(
        {"recovery_y": share, "chance": 0.01, "step_y": ("length", [step] * 5)} | more
    )
    return ds.assign_coords(length=range(5))


PLATEAU = [100.0, 20, 8, 4, *[3.0] * 60]
STEP = [1.0] * 11 + [3.0] * 53
COMMAS = {
    "call": {"function": "collapse"},
    "sequence": {"separators_after": [3, 6, 9, 12]},
}
WITH_COMMAS = with_provenance(
    pairs([(1 / n, 1.0, n / 2)[(n - 1) % 3] for n in range(1, 13)], [1.0] * 12), COMMAS
)
SAID: list[tuple[Callable[[], str], str]] = [
    (
        lambda: collapse.collapses(pairs(PLATEAU, [50.0] * 64)),
        "D at layer 2 is 100 at n = 1 and 3 at n = 64, with a "
        "log-log slope of −0.361 [−0.572, −0.15] (64 lengths, nominal 95 % interval). D is below the contrast",
    ),
    (
        lambda: collapse.collapses(pairs(PLATEAU, [50.0] * 64)),
        "lengths, at all from n = 2 on (median ratio 0.06)",
    ),
    (
        lambda: collapse.by_length(pairs(STEP)),
        "D at layer 2 is 1 at n = 1 and 3 at n = 64, with a log-log slope of ",
    ),
    (
        lambda: collapse.by_length(pairs([0.001] * 24)),
        "D at layer 2 is 0.001 at n = 1 and 0.001 at n = 24, with a "
        "log-log slope of 0 [0, 0] (24 lengths",
    ),
    (
        lambda: collapse.by_length(pairs([1.0, 2, 3, 4])),
        "1 at n = 1 and 4 at n = 4, with a log-log slope of 1 [1, 1]",
    ),
    (
        lambda: collapse.by_length(pairs([2.0, 1])),
        "D at layer 2 is 2 at n = 1 and 1 at n = 2 (2 lengths).",
    ),
    (
        lambda: collapse.by_length(pairs([2.0])),
        "D at layer 2 is 2 at n = 1 (1 length).",
    ),
    (
        lambda: collapse.by_length(pairs([2.0, 0, 0, 0])),
        "D at layer 2 is 2 at n = 1 and 0 at n = 4 (4 lengths).",
    ),
    (lambda: collapse.against_contrast(pairs([1.0] * 5)), ""),
    (
        lambda: collapse.recovers(apart(0.44, 1.03)),
        "44 % of 5 lengths can be recovered from y; one more token moves "
        "y by 1.03 times what rounding does (median; a step that is rounded too is hardly below 1). "
        "By chance 1 % would ",
    ),
    (
        lambda: screen.ranks(measured()),
        "over 18 tokens is 0.8, 95 % interval 0.45 to 0.92; that of the null",
    ),
    (
        lambda: screen.sinks(
            measured(path_bound=[81] + [1] * 19).assign(
                sink=("position", [1] + [0] * 19)
            )
        ),
        "Attention sinks: “t0” at position 0, with 81 % of the path bound, 5 % of the null and 5 %",
    ),
    (
        lambda: collapse.collapses(WITH_COMMAS),
        "D at layer 2 is 1.5 at n = 3 and 6 at n = 12, with a log-log slope of "
        "1 [1, 1]; 1 at n = 1 and 0.1 at n = 10, with a log-log slope of −1 [−1, −1]; 1 at n = 2 and 1 at n = 11, "
        "with a "
        "log-log slope of 0 [0, 0] (12 lengths, nominal 95 % intervals).",
    ),
    (
        lambda: collapse.collapses(WITH_COMMAS),
        "at 3 of 12 lengths (median ratio 3.75, 0.196 and 1, at n mod 3 = 0, 1 and 2).",
    ),
]


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_what_is_said(said: Callable[[], str], expected: str) -> None:
    assert expected in said()


def test_no_trend_is_said_of_a_curve() -> None:
    """The ends and the slope are NumPy's; there is no verb, whether the curve is a law, a step, or dependent noise."""
    rng, lengths = np.random.default_rng(0), np.arange(1, 65)
    noise = np.exp(
        signal.lfilter([1], [1, -0.9], rng.standard_normal((20, 264)))[:, 200:]
    )
    for row in (14 * lengths**-0.74, np.asarray(STEP), *noise):
        said = collapse.by_length(pairs(row))
        slope = np.polyfit(np.log(lengths), np.log(row), 1)[0]
        shortest, longest, power = map(number, (row[0], row[-1], round(slope, 3)))
        assert (
            f"is {shortest} at n = 1 and {longest} at n = 64, with a log-log slope of {power} ["
            in said
        )
        assert not {"falls", "grows", "rises", "trend"} & {*said.split()}


def test_ranks_are_not_said_of_few_tokens_nor_sinks_where_there_are_none() -> None:
    assert screen.ranks(measured(14)) == ""
    assert screen.sinks(measured().assign(sink=("position", [0] * 20))) == ""
