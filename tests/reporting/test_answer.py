"""The four answers of the first screen, from results whose numbers are known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import xarray as xr

from squashlens.reporting import prompt_sentences as say
from squashlens.reporting import sentences
from squashlens.reporting.sentences import certainty_of_norms

N = 8
LEVELS = [9.0, 8.0, 8.0, 1.0, 2.0, 4.0, 4.0, 4.0]
FAR = (3.0, 1e-6, 2.0)  # D, its noise floor, and the root mean square of v


def evidence(
    norms: Any = LEVELS, moved: Any = None, end: tuple[float, float, float] = FAR,
    tried: Mapping[str, float] | None = None, predicted: str = "9",
) -> say.Evidence:  # fmt: skip
    n = len(norms)
    tokens = {"token": ("position", [f" t{k}" for k in range(n)]), "position": np.arange(n)}
    measured = xr.Dataset({"jacobian": ("position", norms), "compared_tokens": n - 2}, coords=tokens)
    knockout = None if moved is None else xr.Dataset({"total_variation": ("position", 2 * np.asarray(moved))}, tokens)
    names = ("collapse_distance", "collapse_noise", "last_token_rms")
    found = xr.Dataset({name: ("layer", [0.0, one]) for name, one in zip(names, end, strict=True)}, {"layer": [0, 6]})
    changes = None
    if tried is not None:
        far = np.array([[[0.0], [end[0] * ratio]] for ratio in (1.0, *tried.values())])
        changes = xr.Dataset(
            {"distance": (("change", "layer", "length"), far)}, coords={"change": ["as it is", *tried]}
        )
    top = xr.DataArray([0.6, 0.3], dims="rank", coords={"token": ("rank", ["9", "7"])})
    return say.Evidence(top, measured, found, knockout, changes, dict.fromkeys(tried or {}, predicted))


ONE = [0.1, 0.0, 0.0, 0.9, 0.0, 0.0, 0.1, 0.0]
PLACES = {"predicted": 0, "depends": 1, "lost": 2, "help": 3}
SAID: list[tuple[say.Evidence, str, str]] = [
    (evidence(), "predicted", "“9”, with a probability of 60 %. It has the majority. Next: “7” 30 %."),
    (evidence(moved=ONE), "depends", "Mostly on “␣t3” at position 3: if no later token can read it, 90 % of the"),
    (evidence(moved=ONE), "depends", "Apart, because every prompt begins with it: 10 % without “␣t0” at position 0."),
    (evidence(moved=ONE), "depends", "each knockout was measured, on this prompt. Whether knockouts and small changes"),
    (evidence(moved=[0.5] * N), "depends", "On many tokens: 3 of 6 have half of the dependence"),
    (evidence(moved=[0.0] * N), "depends", "It depends on no token before the last one."),
    (evidence([9.0, 8.0], moved=[0.5, 0.0]), "depends", "Of the tokens before the last one, only on the first. "
     "Probability that moves: 50 % without “␣t0” at position 0."),
    (evidence(), "depends", "cannot be knocked out of this model, so that these are derivatives. The norms are exact"),
    (evidence(), "depends", "Jacobian norm: 8 for"),
    (evidence(), "lost", "Nothing is lost, and nothing is close to it."),
    (evidence(), "lost", "9 times less sensitive to “␣t3” at position 3 than to “␣t0” at position 0, far from the 256"),
    # compared: positions 1 to 6 in thirds of two tokens
    (evidence(), "lost", "lowest in the middle third, 5.33 times below the highest (first third 8, middle third 1.5, "),
    (evidence([1.0, 1.1, 1.0, 1.2, 1.0, 1.1, 1.0, 1.0]), "lost", "by third of the prompt is about equal (first"),
    (evidence([*LEVELS[:3], 0.0, *LEVELS[4:]]), "lost", "Yes: something is lost. Tokens: the last representation does "
     "not depend on “␣t3” at position 3 at all."),
    (evidence([*LEVELS[:3], 0.01, *LEVELS[4:]]), "lost", "something is close to it. Tokens: the last representation is "
     "900 times less sensitive to “␣t3” at position 3 than to “␣t0” at position 0, more than the 256 times"),
    (evidence(), "lost", "one more “␣t7” moves the last representation by D = 3 at layer 6: 1.5 times its root mean "
     "square, and 3 million times what rounding changes, far from lost."),
    (evidence(end=(3e-6, 1e-6, 2.0)), "lost", "Yes: something is lost. Tokens"),
    (evidence(end=(3e-6, 1e-6, 2.0)), "lost", "at most 3 noise floors: rounding alone may cause it."),
    (evidence(end=(0.007, 1e-6, 2.0)), "lost", "less than a step of bfloat16: half precision may lose it."),
    (evidence(end=(np.nan, np.nan, 2.0)), "lost", "among the tokens, and nothing is close to it."),
    (evidence(tried={"sharper": 1.1}), "help", "Nothing has to: nothing is lost on this prompt. Tried on this prompt: "
     "with sharper D is about equal (1.1 times), and the prediction stays."),
    (evidence(tried={"sharper": 3.0}, end=(0.007, 1e-6, 2.0)), "help", "Sharper: it moves the two prompts apart and"),
    (evidence(tried={"sharper": 3.0}, end=(0.007, 1e-6, 2.0), predicted=" 8"), "help", "Nothing that was tried here."),
    (evidence(tried={"sharper": 0.2}, predicted=" 8"), "help", "5 times smaller, and the prediction becomes “␣8”."),
    (evidence([*LEVELS[:3], 0.01, *LEVELS[4:]]), "help", "Float32 keeps it. If “␣t3” at position 3 matters, put"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "question", "said"), SAID)
def test_it_says_what_the_numbers_say(given: say.Evidence, question: str, said: str) -> None:
    answer = say.first_answers(given)[PLACES[question]]
    assert said in " ".join((answer.verdict, *answer.details))


def test_half_precision_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (say, sentences):
        monkeypatch.setattr(module, "facts_of", lambda _: {"dtype": "bfloat16"})
    given = evidence(end=(0.007, 1e-6, 2.0))
    assert say.first_answers(given)[3].verdict.startswith("First measure in float32")
    assert "computed in bfloat16" in certainty_of_norms(given.measured)


@pytest.mark.parametrize(
    ("low", "said"), [(0.5, "up to a factor of 3.4 apart"), (0.0, "random products of the Jacobian")]
)
def test_a_sketch_is_not_called_exact(low: float, said: str) -> None:
    norms = np.array([4.0, 2.0, 1.0])
    parts = {"jacobian": norms, "jacobian_low": low * norms, "jacobian_high": norms * [1.5, 1.5, 1.7]}
    text = certainty_of_norms(xr.Dataset({name: ("position", values) for name, values in parts.items()}))
    assert said in text
    assert "exact" not in text


ROWS = [[1.0] * 8, [1.0] * 7 + [7.1], [0.0] * 7 + [3.0]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS, "12.5 % of the summed sensitivity at layer 0, and more than half from layer 1 of 2 on"),
        ([[0.0] * 8] * 2, "layers cannot be compared"),
        # at the last layer it is alone in every model
        ([[1.0] * 8, [1.0] * 8, [0.0] * 7 + [3.0]], "12.5 % of the summed sensitivity at layer 0, and 12.5 % at lay"),
    ],
)  # fmt: skip
def test_depth(rows: list[list[float]], said: str) -> None:
    dims = ("query", "layer", "position")
    assert said in say.depth(xr.Dataset({"jacobian": (dims, [rows])}, coords={"layer": np.arange(len(rows))}))
