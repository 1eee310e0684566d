"""The short answer, from results whose numbers are known."""

import numpy as np
import pytest
import xarray as xr

from squashlens.reporting import sentences
from squashlens.reporting.sentences import short_answer


def results(jacobian: list[float], by_layer: list[list[float]], tail: tuple[float, float, float]) -> tuple[str, ...]:
    n = len(jacobian)
    ranks = {
        f"{name}{end}": ("estimate", [value, value])
        for name in ("rank_agreement", "position_trend")
        for end, value in (("", 0.9), ("_low", 0.85), ("_high", 0.95), ("_p", 0.001))
    }
    gaps = {f"agreement_over_null{end}": value for end, value in (("", 0.2), ("_low", 0.1), ("_high", 0.3))}
    measured = xr.Dataset(
        {"jacobian": ("position", jacobian), "bound_over_null": ("position", np.arange(1.0, n + 1)),
         "compared_tokens": n - 2, **ranks, **gaps},
        coords={"token": ("position", [f"t{k}" for k in range(n)]), "position": np.arange(n),
                "estimate": ["path_bound", "null"]},
    )  # fmt: skip
    found = xr.Dataset(
        {"jacobian": (("query", "layer", "position"), [by_layer]),
         **{name: ("layer", [0.0] * (len(by_layer) - 1) + [value])
            for name, value in zip(("collapse_distance", "collapse_noise", "last_token_rms"), tail, strict=True)}},
        coords={"layer": np.arange(len(by_layer))},
    )  # fmt: skip
    return tuple(text for _, text in short_answer(measured, found))


JACOBIAN = [9.0, 8.0, 8.0, 1.0, 2.0, 4.0, 4.0, 4.0]
ROWS = [[1.0] * 8, [1.0] * 7 + [7.1], [0.0] * 7 + [3.0]]


def test_it_says_what_the_numbers_say() -> None:
    what, where, depth, end, sure = results(JACOBIAN, ROWS, (3.0, 0.5, 2.0))
    assert what.startswith("3 of 8 tokens have half of the summed sensitivity")
    assert "9 times less sensitive to “t3” at position 3" in what
    # compared: positions 1 to 6 in thirds of two tokens, medians 8, 1.5 and 4; bound over null of 3 and 4 is 4 and 5
    assert "is 8, 1.5, 4: lowest in the middle third" in where
    assert "is 4.5 times the null" in where
    assert "12.5 % of the summed sensitivity at layer 0, and more than half from layer 1 of 2 on" in depth
    assert "D = 3 (L∞, layer 2), 6 times the noise floor. This is 1.5 times the root mean square" in end
    assert "difference 0.20, 95 % interval 0.10 to 0.30" in sure


def test_a_sketch_is_not_called_exact() -> None:
    norms = ("position", np.array([4.0, 2.0, 1.0]))
    ends = {"jacobian_low": ("position", norms[1] / 2), "jacobian_high": ("position", norms[1] * [1.5, 1.5, 1.7])}
    sketched = xr.Dataset({"jacobian": norms, **ends})
    for low in (ends["jacobian_low"][1], np.zeros(3)):
        said = sentences.certainty_of_norms(sketched.assign(jacobian_low=("position", low)))
        assert "estimates from random products" in said
        assert "exact" not in said
        assert ("factor of 3.4 apart" in said) == bool(low.any())
    assert "exact to first order" in sentences.certainty_of_norms(sketched[["jacobian"]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_not_called_exact(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exact to first order" in results(JACOBIAN, ROWS, (3.0, 0.5, 2.0))[-1]
    monkeypatch.setattr(sentences, "facts_of", lambda _: {"dtype": dtype})
    sure = results(JACOBIAN, ROWS, (3.0, 0.5, 2.0))[-1]
    assert f"computed in {dtype}, in which small ones are several times too large" in sure
    assert "exact" not in sure


@pytest.mark.parametrize(
    ("jacobian", "rows", "tail", "place", "said"),
    [
        ([0.0] * 8, ROWS, (3.0, 0.5, 2.0), 0, "sensitive to no token"),
        ([1.0, 0.0] * 4, ROWS, (3.0, 0.5, 2.0), 0, "infinitely less sensitive"),
        (JACOBIAN[:4], [[1.0] * 4] * 2, (3.0, 0.5, 2.0), 1, "With 2 tokens between"),
        (JACOBIAN, [[0.0] * 8] * 2, (3.0, 0.5, 2.0), 2, "layers cannot be compared"),
        (
            JACOBIAN,
            [[1.0] * 8, [1.0] * 8, [0.0] * 7 + [3.0]],  # at the last layer it is alone in every model
            (3.0, 0.5, 2.0),
            2,
            "12.5 % of the summed sensitivity at layer 0, and 12.5 % at layer 1, before",
        ),
        (JACOBIAN, ROWS, (1.4, 0.5, 2.0), 3, "2.8 times the noise floor. This is at most 3 noise floors"),
        (JACOBIAN, ROWS, (np.nan, np.nan, 2.0), 3, "longer than the model's context"),
    ],
)
def test_it_says_when_it_cannot(
    jacobian: list[float], rows: list[list[float]], tail: tuple[float, float, float], place: int, said: str
) -> None:
    assert said in results(jacobian, rows, tail)[place]
