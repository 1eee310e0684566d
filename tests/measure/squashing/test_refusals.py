"""Arguments with which nothing can be measured are refused, by name and before any work."""

from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import SquashlensError
from tests.references import raw

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (sl.path_bound, {"query": 9}, "Use 0 to 4, or"),
    (sl.path_bound, {"from_layer": 6, "to_layer": 6}, "not below"),
    (sl.path_bound, {"from_layer": 7}, "Use a layer from 0"),
    (sl.path_bound, {"to_layer": []}, "has no value or one twice"),
    (sl.path_bound, {"beta1": 0.0}, "beta1=0.0 is not a positive number"),
    (
        sl.path_bound,
        {"beta1": 1e-300},
        "beyond the range of float64.*beta1=1e-300.*larger beta1",
    ),
    (
        sl.path_bound,
        {"beta1": 1e-40, "spans": {"all": [1, 2]}},
        "beyond the range of float64",
    ),
    (sl.certified_bound, {"n_composed": 0}, "a number of blocks"),
    (sl.jacobian_norms, {"n_probes": 0}, "a number of directions"),
    (sl.jacobian_norms, {"vjp_batch_size": 0}, "batch size"),
    (sl.jacobian_norms, {"query": -6}, "Use 0 to 4, or"),
    (sl.jacobian_norms, {"rtol": 0.1}, "rtol"),
    (sl.jacobian_norms, {"rtol": 2.0, "method": "sketch", "norm": "frobenius"}, "rtol"),
    (sl.jacobian_norms, {"rtol": 0.1, "method": "sketch"}, "rtol"),
    (sl.jacobian_norms, {"spans": {}}, "no span"),
    (sl.jacobian_norms, {"spans": {"a": [1, -4]}}, "one twice"),
    (sl.jacobian_norms, {"spans": {"a": [9]}}, "not a position of the prompt"),
    (sl.jacobian_norms, {"spans": {"a": [1, 2], "b": [2]}}, "a token in common"),
    (sl.jacobian, {"positions": [1, 1]}, "one twice"),
    (sl.jacobian, {"positions": [3], "query": 2}, "not positions from 0 to 2"),
    (sl.jacobian, {"k": 129}, "k="),
    (sl.jacobian, {"prompt": ["110 =", "111 ="]}, "single prompt"),
    (
        sl.influence,
        {"prompt": [2]},
        "at least 2 tokens, and this one has 1. Give a longer prompt",
    ),
    (sl.influence, {"queries": [4, -1]}, r"queries=\[4, -1\] has .* one twice"),
    (sl.influence, {"queries": [9]}, "not a position"),
    (sl.influence, {"layers": [1, 2, 1]}, "layers=.* has no value or one twice"),
    (sl.influence, {"layers": [7]}, "layers"),
    (sl.influence, {"n_probes": 0}, "a number of directions"),
    (sl.substitution_effect, {"candidates": [-1]}, "not token ids"),
    (sl.substitution_effect, {"prompt": "11"}, "No candidate differs"),
    (sl.substitution_effect, {"positions": [0]}, "not positions from 1 to 4"),
    (
        sl.substitution_effect,
        {"candidates": "predicted", "positions": [0]},
        "positions from 1 to 4",
    ),
    (sl.knockout_effect, {"spans": {"a": [1]}, "positions": [1]}, "exclude each other"),
    (sl.knockout_effect, {"positions": [4], "query": 3}, "positions from 0 to 3"),
]


@pytest.mark.parametrize(("measure", "arguments", "complaint"), REFUSED)
def test_refusals(
    measure: Any, arguments: dict[str, Any], complaint: str, tiny: Any
) -> None:
    with pytest.raises(SquashlensError, match=complaint):
        raw(measure)(tiny, **{"prompt": "110 ="} | arguments)
