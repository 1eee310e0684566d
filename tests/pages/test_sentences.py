"""The report's sentences on data whose truth is known: true, false, undecided and degenerate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import signal

import squashlens as sl
from squashlens.model.loading.random_weights import with_random_weights
from squashlens.pages import collapse_sentences as collapse
from squashlens.pages import prompt_sentences as screen
from squashlens.records.provenance import with_provenance
from squashlens.records.sentences import number

TOP = xr.DataArray([0.7, 0.2], dims="rank", coords={"token": ("rank", ["4", " 5"])})
LIMIT = 1.0


def way_of(
    right: list[float],
    rival: list[float],
    controls: float | list[float] = 0.01,
    written: dict[tuple[int, str], float] | None = None,
) -> xr.Dataset:
    """What `answer_by_layer` gives of a prompt, from the probabilities of the right answer, its rival and a control."""
    n = len(right)
    scored = ["right answer", "random weights 0"]
    outputs = xr.DataArray(
        np.zeros((1, n - 1, 2)),
        coords={
            "prompt": [0],
            "block": range(n - 1),
            "sublayer": ["attention", "mlp"],
        },
    )
    for (block, sublayer), value in (written or {}).items():
        outputs.loc[0, block, sublayer] = value
    both = np.stack([right, np.broadcast_to(controls, n)])[:, None]
    return xr.Dataset(
        {
            "probability": (("scored", "prompt", "layer"), both),
            "likeliest": (("scored", "prompt", "layer"), np.ones((2, 1, n))),
            "likeliest_of_all": (("prompt", "layer"), np.ones((1, n))),
            "rival_probability": (("prompt", "layer"), [rival]),
            "answered": ("prompt", [float(right[-1] > rival[-1])]),
            "written": outputs,
            "written_by_chance": xr.full_like(outputs, LIMIT),
        },
        coords={
            "scored": scored,
            "layer": range(n),
            "answer": ("prompt", [" yellow"]),
            "rival": ("prompt", [" white"]),
        },
    )


def judged(verdict: str, reason: str = "Why.", **numbers: float) -> xr.Dataset:
    """One pair of a result of `diagnose`."""
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


RISES = [0.0, 0.05, 0.3, 0.6, 0.9]
FALLS = [0.0, 0.4, 0.6, 0.3, 0.05]
WINS = [0.0, 0.0, 0.1, 0.2, 0.15]
AGAINST = {(3, "mlp"): -2.5, (2, "attention"): -1.5, (0, "mlp"): -9.0}
WAYS: list[tuple[xr.Dataset, str]] = [
    (
        way_of(RISES, [0.05] * 5),
        "“yellow” is ahead from layer 2 on; next is “white” with 5 %.",
    ),
    (
        way_of(RISES, [0.05] * 5).assign_coords(rival=("prompt", ["\n"])),
        "“yellow” is ahead from layer 2 on; next is “\\n” with 5 %.",
    ),
    (
        way_of([0.0, 0.3, 0.2, 0.2, 0.9], [0.0, 0.1, 0.3, 0.3, 0.1]),
        "“yellow” is ahead at the end alone; next is “white” with 10 %.",
    ),
    # Of what writes against it, that after the layer where it is likeliest.
    (
        way_of(FALLS, WINS, written=AGAINST),
        "“yellow” is ahead from layer 1 to 3 (60 % at layer 2), and “white” wins at the end. Beyond chance, the MLP of "
        "block 3 writes most against it.",
    ),
    (
        way_of(FALLS, WINS, written={(3, "mlp"): -0.9 * LIMIT}),
        "“yellow” is ahead from layer 1 to 3 (60 % at layer 2), and “white” wins at the end.",
    ),
    (
        way_of([0.0, 0.0, 0.6, 0.1, 0.05], WINS),
        "“yellow” is ahead at layer 2 (60 %), and “white” wins at the end.",
    ),
    # A layer does not count where it leads with little, or with no more than its controls.
    (
        way_of([0.0, 0.0, 0.09, 0.01, 0.0], [0.0, 0.0, 0.01, 0.2, 0.4]),
        "“yellow” stands out at no layer (at most 9 %, at layer 2), and “white” wins at the end.",
    ),
    (
        way_of([0.9, 0.0, 0.0, 0.0, 0.05], WINS, [0.5, 0.0, 0.0, 0.0, 0.0]),
        "“yellow” stands out at no layer (at most 90 %, at layer 0), and “white” wins at the end.",
    ),
]


@pytest.mark.parametrize(("way", "sentence"), WAYS)
def test_the_way_of_an_answer(way: xr.Dataset, sentence: str) -> None:
    assert screen.way(screen.Evidence(TOP, way)) == sentence


@pytest.mark.parametrize(
    ("way", "given", "sentence", "state"),
    [
        (way_of(RISES, WINS), {}, "says “yellow” (90 %), which is right.", "right"),
        (
            way_of(FALLS, WINS),
            {},
            "says “white” (15 %). Right is “yellow” (5 %).",
            "wrong",
        ),
        (
            way_of(RISES, WINS),
            {"is_known": False},
            "(90 %). No right answer was given.",
            "unknown",
        ),
        (
            way_of(RISES, WINS),
            {"goes_on": True},
            "says “yellow” (90 %) and goes on: this may be another answer.",
            "unknown",
        ),
    ],
)
def test_what_the_model_says(
    way: xr.Dataset, given: dict[str, Any], sentence: str, state: str
) -> None:
    evidence = screen.Evidence(TOP, way, **given)
    assert screen.said(evidence).endswith(sentence)
    assert evidence.state == state


def test_an_answer_is_not_ahead_where_another_token_is_the_likeliest() -> None:
    """Neither its rival nor a choice, as “France” after a question for its capital."""
    way = way_of(FALLS, WINS)
    said = []
    for is_likeliest in ([0, 0, 0, 0, 0], [0, 1, 1, 1, 0]):
        way["likeliest_of_all"][0] = is_likeliest
        said.append(screen.way(screen.Evidence(TOP, way)))
    nowhere, ahead = said
    assert nowhere.startswith(
        "“yellow” stands out at no layer (at most 60 %, at layer 2)"
    )
    assert ahead.startswith("“yellow” is ahead from layer 1 to 3 (60 % at layer 2)")


def test_answers_that_differ_in_a_space_are_told_apart() -> None:
    way = way_of(FALLS, WINS).assign_coords(answer=("prompt", ["white"]))
    assert screen.said(screen.Evidence(TOP, way)).endswith(
        "says “␣white” (15 %). Right is “white” (5 %)."
    )


def test_the_sentence_is_true_of_a_model_and_silent_on_another(tiny: Any) -> None:
    """The bundled model knows the last digit; another digit, and random weights, are there at no layer."""
    prompts = [f"What is the last digit in this sequence? 01{k} =" for k in range(10)]
    digits = [*"0123456789"]
    untrained = with_random_weights(tiny, 0)
    untrained.tokenizer = tiny.tokenizer
    others = [*digits[3:], *digits[:3]]
    for model, answers, is_there in (
        (tiny, digits, True),
        (tiny, others, False),
        (untrained, others, False),
    ):
        found = sl.answer_by_layer(model, prompts, answers, choices=digits)
        for k in range(len(prompts)):
            evidence = screen.Evidence(TOP, found.isel(prompt=[k]))
            assert evidence.is_wrong != is_there
            assert evidence.is_there[-1] == is_there
            assert ("stands out at no layer" in screen.way(evidence)) != is_there


def left_out(best: float, leading: int) -> xr.Dataset:
    """What `sublayer_effects` gives of a prompt: leads without a sublayer, and with 8 random changes."""
    leads = np.full((1, 2, 2), -1.0)
    leads[0, 1, 1] = best
    random = np.full((2, 1, 2, 2), -1.0)
    random.ravel()[:leading] = 0.5
    over = ("prompt", "block", "sublayer")
    return xr.Dataset(
        {
            "lead_without": (over, leads),
            "lead_random": (("random_vector", *over), random),
            "lead_noise": ("prompt", [0.01]),
        },
        coords={"block": range(2), "sublayer": ["attention", "mlp"]},
    )


PAIR = ("“yellow”", "“white”")
HELPS: list[tuple[Callable[[], screen.Changed], bool, str]] = [
    (
        lambda: screen.left_out(left_out(2.0, 1), *PAIR),
        True,
        "Without the MLP of block 1 at the last token “yellow” is ahead of “white” by 2 nats. Of 4 attentions and "
        "MLPs, left out one at a time, 1 do this; of 8 random changes of the same sizes, 1 do.",
    ),
    (
        lambda: screen.left_out(left_out(2.0, 3), *PAIR),
        False,
        "Without the MLP of block 1 at the last token “yellow” is ahead of “white” by 2 nats. Of 4 attentions and "
        "MLPs, left out one at a time, 1 do this; of 8 random changes of the same sizes, 3 do. That is "
        "no more than chance.",
    ),
    (
        lambda: screen.left_out(left_out(0.005, 0), *PAIR),
        False,
        "Left out at the last token one at a time, none of 4 attentions and MLPs puts “yellow” ahead of “white”; of 8",
    ),
    (
        lambda: screen.helps("With a hook", way_of(RISES, WINS)),
        True,
        "With a hook the model says “yellow” (90 %).",
    ),
    (
        lambda: screen.helps("With a hook", way_of(FALLS, WINS)),
        False,
        "With a hook it says “white” (15 %; “yellow” 5 %).",
    ),
]


@pytest.mark.parametrize(("changed", "does", "sentence"), HELPS)
def test_what_helps(
    changed: Callable[[], screen.Changed], does: bool, sentence: str
) -> None:
    found = changed()
    assert found.helps == does
    assert found.sentence.startswith(sentence)


def test_the_other_prompt_of_a_pair_is_shown() -> None:
    verdict, other = screen.of_the_pair(judged("lost"), ("Other prompt =", " 91"))
    assert verdict.startswith("Lost before the last token")
    assert (
        other
        == "The other prompt is “Other prompt =”, and its right answer “91” has 2 % there."
    )


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
