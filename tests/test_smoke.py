"""The bundled model through a bound, a Jacobian and a collapse: what `make quick` runs of a model."""

from typing import Any

import numpy as np

import squashlens as sl
from tests.references import jacobian_by_jacrev

PROMPT = "110 ="


def test_a_bound_a_jacobian_and_a_collapse(tiny: Any) -> None:
    bound = sl.certified_bound(tiny, PROMPT)
    norms = sl.jacobian_norms(tiny, PROMPT)
    assert (norms <= bound * (1 + 1e-5)).all()
    truth = jacobian_by_jacrev(
        tiny.original_model, sl.prompts.tokenize(tiny, PROMPT), 4
    )
    expected = np.linalg.svd(truth.detach().numpy(), compute_uv=False)[:, 0]
    np.testing.assert_allclose(norms.values, expected, rtol=2e-4)
    found = sl.collapse(tiny, sl.prompts.repeated(tiny, "1", 6))["distance"]
    assert found.sizes == {"layer": 7, "length": 6}
    assert (found[-1, -1] < found[-1, 0]).all()
