"""Arguments with which nothing can be measured are refused before any work."""

from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError, RangeError
from tests.references import raw

ASKED = [f"What is the last digit in this sequence ? {n} =" for n in ("0111", "1101 1")]
REFUSED: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    (sl.path_bound, {"query": 9}, InputError),
    (sl.path_bound, {"from_layer": 6, "to_layer": 6}, InputError),
    (sl.path_bound, {"from_layer": 7}, InputError),
    (sl.path_bound, {"to_layer": []}, InputError),
    (sl.path_bound, {"beta1": 0.0}, InputError),
    (sl.path_bound, {"beta1": 1e-300}, RangeError),
    (sl.path_bound, {"beta1": 1e-40, "spans": {"all": [1, 2]}}, RangeError),
    (sl.certified_bound, {"vjp_batch_size": 0}, InputError),
    (sl.jacobian_norms, {"n_probes": 0}, InputError),
    (sl.jacobian_norms, {"vjp_batch_size": 0}, InputError),
    (sl.jacobian_norms, {"query": -6}, InputError),
    (sl.jacobian_norms, {"spans": {}}, InputError),
    (sl.jacobian_norms, {"spans": {"a": [1, -4]}}, InputError),
    (sl.jacobian_norms, {"spans": {"a": [9]}}, InputError),
    (sl.jacobian_norms, {"spans": {"a": [1, 2], "b": [2]}}, InputError),
    (sl.jacobian, {"positions": [1, 1]}, InputError),
    (sl.jacobian, {"positions": [3], "query": 2}, InputError),
    (sl.jacobian, {"k": 129}, InputError),
    (sl.jacobian, {"prompt": ["110 =", "111 ="]}, InputError),
    (sl.token_influence, {"prompt": [2]}, InputError),
    (sl.token_influence, {"queries": [4, -1]}, InputError),
    (sl.token_influence, {"queries": [9]}, InputError),
    (sl.token_influence, {"layers": [1, 2, 1]}, InputError),
    (sl.token_influence, {"layers": [7]}, InputError),
    (sl.token_influence, {"n_probes": 0}, InputError),
    (sl.substitution_effect, {"candidates": [-1]}, InputError),
    (sl.substitution_effect, {"prompt": "11"}, InputError),
    (sl.substitution_effect, {"positions": [0]}, InputError),
    (
        sl.substitution_effect,
        {"candidates": "predicted", "positions": [0]},
        InputError,
    ),
    (sl.knockout_effect, {"spans": {"a": [1]}, "positions": [1]}, InputError),
    (sl.knockout_effect, {"positions": [4], "query": 3}, InputError),
    (sl.knockout_effect, {"target": ("3", "30")}, InputError),
    (sl.knockout_effect, {"target": ("3", "")}, InputError),
    (sl.knockout_effect, {"target": ""}, InputError),
    (sl.needle_sensitivity, {"prompt": ASKED, "find": "one"}, InputError),
    (sl.needle_sensitivity, {"prompt": ASKED, "find": "1"}, InputError),
    (sl.needle_sensitivity, {"prompt": ASKED, "find": "igit"}, InputError),
    (sl.needle_sensitivity, {"prompt": ASKED}, InputError),
]


@pytest.mark.parametrize(("measure", "arguments", "error"), REFUSED)
def test_refusals(
    measure: Any, arguments: dict[str, Any], error: type[Exception], tiny: Any
) -> None:
    with pytest.raises(error):
        raw(measure)(tiny, **{"prompt": "110 ="} | arguments)
