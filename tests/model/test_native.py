"""Models of `boot_native` and compiled programs: against their weights in plain float64, and against closed forms."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.proof import fingerprint_of
from squashlens.run.generate import Prompt, generate
from tests.native import KINDS, Plain, compiled, native, previous_token
from tests.references import run_of

IDS = torch.tensor([3, 4, 0, 5, 3, 3, 2])


# The others have what one of these has too.
DISTINCT = ("layer_norm", "attention_only", "like_llama", "capped", "program")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=() if kind in DISTINCT else pytest.mark.slow)
        for kind in KINDS
    ],
)
def model(request: pytest.FixtureRequest) -> Any:
    return native(request.param)


def jacobian(plain: Plain, ids: torch.Tensor, source: int = 0) -> torch.Tensor:
    """∂y_n/∂v⁽ˢ⁾ of the last token, (position, out, in), by the plain function."""
    start = plain.run(plain.embedded(ids), range(source))
    rest = range(source, plain.cfg.n_layers)
    last = torch.func.jacrev(
        lambda stream: plain.norm("ln_out", plain.run(stream, rest))[-1]
    )(start)
    return last.transpose(0, 1)


@pytest.mark.few(3)
def test_everything_that_is_captured_is_what_the_weights_say(model: Any) -> None:
    plain = Plain(model)
    streams = [plain.embedded(IDS)]
    for number in range(3):
        streams.append(plain.block(number, streams[-1]))
    patterns = list(plain.patterns)
    run = sl.capture(model, IDS)
    for layer in range(4):
        torch.testing.assert_close(
            run.residuals[layer][0].double(), streams[layer], rtol=1e-4, atol=1e-4
        )
    for block in range(3):
        torch.testing.assert_close(
            run.patterns[block][0].double(), patterns[block], rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(
        run.y[0].double(), plain.norm("ln_out", streams[-1]), rtol=1e-4, atol=1e-4
    )
    answer = sl.top_tokens(model, IDS, k=int(model.cfg.d_vocab_out))
    truth = plain.logits(IDS)[-1].softmax(dim=-1)
    np.testing.assert_allclose(
        answer.values, truth[answer["token_id"].values], rtol=1e-3, atol=1e-5
    )
    assert list(answer["token"].values) == [f"#{i}" for i in answer["token_id"].values]
    facts = sl.results.provenance(answer)
    assert (facts["proof"], facts["architecture"]) == (
        "verified against its own module",
        "NativeModel",
    )


@pytest.mark.few(4)
def test_the_bound_is_the_sum_over_paths(model: Any) -> None:
    plain = Plain(model)
    plain.run(plain.embedded(IDS))
    row = torch.eye(len(IDS), dtype=torch.float64)[-1]
    for pattern in reversed(plain.patterns):
        row = 2 * (row @ (pattern.mean(dim=0) + torch.eye(len(IDS))))
    np.testing.assert_allclose(sl.path_bound(model, IDS).values, row.numpy(), rtol=1e-4)


@pytest.mark.slow
def test_norms_and_certificates_against_the_plain_jacobian(model: Any) -> None:
    plain = Plain(model)
    for source in (0, 2) if model.cfg.normalization_type == "LN" else (0,):
        truth = torch.linalg.matrix_norm(jacobian(plain, IDS, source), ord=2).numpy()
        found = sl.jacobian_norms(model, IDS, from_layer=source)
        np.testing.assert_allclose(
            found.values, truth, rtol=1e-3, atol=1e-4 * truth.max()
        )
        bound = sl.certified_bound(model, IDS, from_layer=source).values
        assert (bound >= truth * (1 - 1e-9)).all(), (bound / truth).min()


def test_a_compiled_program_has_the_norms_of_its_closed_form() -> None:
    """y_n = v_n + Σ_i α_ni W v_i, with α of logits β [i = n − 1] and W from tokens to outputs.

    Frozen: ∂y_n/∂v_i = α_ni W, of norm α_ni, and I + α_nn W, of norm (α + √(α² + 4))/2. Not frozen, for i < n:
    α_ni (W + β' (w_i − z_n) eᵀ), e the index n − 1, of norm α_ni √(1 + (β ‖w_i − z_n‖)²).
    """
    symbols, n, beta = (
        4,
        9,
        5.0,
    )  # √9 β is a float32 number, so that β is what is stored
    model = compiled(previous_token(symbols, n, beta), "previous_1")
    ids = torch.tensor([2, 0, 1, 3, 3])
    k = len(ids)
    alpha = torch.zeros(k, k, dtype=torch.float64)
    for j in range(k):
        weights = torch.tensor(
            [math.exp(beta) if i == j - 1 else 1.0 for i in range(j + 1)],
            dtype=torch.float64,
        )
        alpha[j, : j + 1] = weights / weights.sum()
    run = sl.capture(model, ids)
    torch.testing.assert_close(
        run.patterns[0][0, 0].double(), alpha, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(
        sl.path_bound(model, ids).values, 2 * (alpha[-1] + torch.eye(k)[-1]), rtol=1e-5
    )
    own = float(alpha[-1, -1])
    frozen = alpha[-1].clone()
    frozen[-1] = (own + math.sqrt(own**2 + 4)) / 2
    np.testing.assert_allclose(
        sl.jacobian_norms(model, ids, freeze="attention").values,
        frozen,
        rtol=1e-5,
        atol=1e-6,
    )
    given = torch.eye(symbols, dtype=torch.float64)[ids]
    away = (given - alpha[-1] @ given).norm(dim=-1)
    free = (alpha[-1] * (1 + (beta * away).square()).sqrt())[:-1]
    np.testing.assert_allclose(
        sl.jacobian_norms(model, ids).values[:-1], free, rtol=1e-4
    )
    bound = sl.certified_bound(model, ids)
    assert (bound.values[:-1] >= free.numpy()).all()
    np.testing.assert_allclose(bound.values[:-1], free, rtol=1e-6)
    held = sl.certified_bound(model, ids, freeze="attention")
    assert (held.values >= frozen.numpy() * (1 - 1e-12)).all()
    np.testing.assert_allclose(held.values, frozen, rtol=1e-6)
    answer = sl.top_tokens(model, ids)
    assert (int(answer["token_id"][0]), answer["token"].values[0]) == (3, "#3"), (
        "the token before the last"
    )
    assert sl.results.provenance(answer)["proof"] == "verified against its own module"
    effect = sl.substitution_effect(model, ids)
    assert int(effect["output_change"].values.argmax()) in (3, 4)


@pytest.mark.few(1)
def test_interventions_on_logits_take_effect_and_leave_nothing_behind(
    model: Any,
) -> None:
    """A native bridge shows `hook_attn_scores` the pattern, and ignores what comes back: squashlens sees to both."""
    with torch.no_grad():
        before = model(IDS[None])
    mark = fingerprint_of(model)
    hidden = torch.zeros(len(IDS), len(IDS), dtype=torch.float64)
    hidden[3:, 2] = -torch.inf
    truth = Plain(model, hidden).logits(IDS)[-1]
    with sl.applied(model, change.mask_attention(range(3, 7), [2])), torch.no_grad():
        found = model(IDS[None])[0, -1]
        assert fingerprint_of(model) == mark
        facts = sl.results.provenance(sl.path_bound(model, IDS))
        assert (facts["proof"], facts["fingerprint"]) == (
            "verified against its own module",
            mark,
        )
        norms = sl.jacobian_norms(model, IDS)
        bound = sl.certified_bound(model, IDS)
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-4)
    exact = torch.linalg.matrix_norm(jacobian(Plain(model, hidden), IDS), ord=2).numpy()
    np.testing.assert_allclose(norms.values, exact, rtol=1e-3, atol=1e-4 * exact.max())
    assert (bound.values >= exact * (1 - 1e-9)).all()
    with torch.no_grad():
        assert torch.equal(model(IDS[None]), before)


def test_attention_to_later_tokens_is_refused() -> None:
    """A program compiled without `causal=True` reads what is to come."""
    program = previous_token(4, 6, 5.0, causal=False)
    model = compiled(program, "previous_1")
    for measure in (
        sl.path_bound,
        sl.capture,
        sl.jacobian_norms,
        sl.top_tokens,
        sl.bound_vs_jacobian,
    ):
        with pytest.raises(UnsoundModelError):
            measure(model, torch.tensor([2, 0, 1]))


def test_generation_is_a_plain_loop() -> None:
    model = native(d_vocab_out=20)
    plain, ids = Plain(model), [3, 4, 0]
    (said,) = generate(run_of(model), [Prompt((3, 4, 0), 4)])
    for _ in range(4):
        ids.append(int(plain.logits(torch.tensor(ids))[-1].argmax()))
    assert said[0].ids == tuple(ids[3:])
    drawn = [
        next(generate(run_of(model), [Prompt((3, 4, 0), 4, seed)], temperature=3.0))[
            0
        ].ids
        for seed in ("a", "a", "b")
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(InputError):
        list(generate(run_of(native("program")), [Prompt((3, 4, 0), 4)]))
