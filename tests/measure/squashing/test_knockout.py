"""The knockout effect against plain models whose attention goes without a token, or whose embedding of it is zero."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import FAMILIES
from tests.references import model_without, plain_outputs

IDS = [2, 7, 11, 30, 7, 9, 59, 12]
QUERY = 6


def without(
    plain: Any, places: list[int], kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and the log-probabilities of the next token at the query of a model that goes without some tokens."""
    ids = torch.tensor([IDS[: QUERY + 1]])
    model = model_without(plain, places, 0, "keys") if kind == "attention" else plain
    embeddings = model.get_input_embeddings()(ids).detach()
    embeddings[:, places if kind == "embedding" else []] = 0
    found = plain_outputs(model, ids, embeddings)
    return found.hidden_states[-1][0, -1].detach(), found.logits.detach()[
        0, -1
    ].double().log_softmax(-1)


@pytest.mark.parametrize("kind", ["attention", "embedding"])
@pytest.mark.few(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_change_of_a_plain_model(
    family: str,
    kind: Any,
    bridge_of: Callable[..., Any],
    plain_of: Callable[[str], Any],
) -> None:
    plain = plain_of(family)
    own_y, own = without(plain, [], kind)
    expected: dict[str, list[float]] = {
        "output_change": [],
        "kl": [],
        "probability_l1": [],
        "target_score_change": [],
    }
    first, second = own.topk(2).indices
    for place in range(QUERY + 1):
        y, logs = without(plain, [place], kind)
        expected["output_change"].append(float((y - own_y).double().norm()))
        expected["kl"].append(float((own.exp() * (own - logs)).sum()))
        expected["probability_l1"].append(float((own.exp() - logs.exp()).abs().sum()))
        expected["target_score_change"].append(
            float((logs - own)[first] - (logs - own)[second])
        )
    found = sl.knockout_effect(bridge_of(family), IDS, kind=kind, query=QUERY)
    for name, values in expected.items():
        size = max(map(abs, values))
        assert size > 1e-4
        np.testing.assert_allclose(
            found[name].values[: QUERY + 1],
            values,
            rtol=2e-3,
            atol=1e-4 * size,
            err_msg=name,
        )
        assert (found[name].values[QUERY + 1 :] == 0).all()


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_nothing_of_a_token_passes_a_knockout(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """Whatever stands at a place that nobody reads, y is the same: only its distance to the prompt's own y differs."""
    model, place, read = bridge_of(family), 3, []
    for token in (4, 30, 55):
        ids = [*IDS[:place], token, *IDS[place + 1 :]]
        found = sl.knockout_effect(model, ids, positions=[place])[
            "output_change"
        ].values
        assert np.isnan(found[:place]).all()
        own, hidden = y_of(model, ids), y_of(model, ids, sl.hooks.mask_tokens([place]))
        assert found[place] == pytest.approx(float((own - hidden).norm()), rel=1e-4)
        read.append(hidden)
    for other in read[1:]:
        torch.testing.assert_close(other, read[0], rtol=1e-5, atol=1e-5)


def y_of(model: Any, ids: list[int], *hooks: Any) -> torch.Tensor:
    """The output of the final norm at the last token."""
    seen: list[torch.Tensor] = []
    with sl.applied(
        model, *hooks, ("ln_final.hook_out", lambda y: seen.append(y[0, -1].double()))
    ):
        model(torch.tensor([ids]))
    return seen[-1]


@pytest.mark.parametrize("target", [("12", "3"), "120"])
def test_answers_of_several_tokens_are_followed(
    target: Any, tiny: Any, plain_tiny: Any
) -> None:
    prompt, place = "How many ones are in the following sequence? 1101 =", 11
    ids = sl.prompts.tokenize(tiny, prompt)[0].tolist()

    def lead(plain: Any) -> float:
        totals = []
        for text in [target] if isinstance(target, str) else target:
            answer = [sl.prompts.one_token(tiny, digit) for digit in text]
            logs = (
                plain_outputs(plain, torch.tensor([[*ids, *answer]]))
                .logits[0]
                .detach()
                .double()
                .log_softmax(-1)
            )
            totals.append(
                sum(
                    float(logs[len(ids) - 1 + k, token])
                    for k, token in enumerate(answer)
                )
            )
        return totals[0] - (totals[1] if len(totals) > 1 else 0.0)

    found = sl.knockout_effect(tiny, prompt, positions=[place], target=target)
    own = lead(plain_tiny)
    assert float(found["target_score"]) == pytest.approx(own, abs=1e-3)
    assert float(found["target_score_noise"]) < 1e-3
    moved = lead(model_without(plain_tiny, [place], 0, "keys")) - own
    assert abs(moved) > 1
    assert float(found["target_score_change"][place]) == pytest.approx(moved, abs=2e-3)


def test_a_span_is_knocked_out_at_once(
    bridge_of: Callable[..., Any], plain_of: Callable[[str], Any]
) -> None:
    model, plain = bridge_of("llama"), plain_of("llama")
    found = sl.knockout_effect(model, IDS, spans={"a": [1, 3], "b": [4]}, query=QUERY)
    (own, _), (y, _) = (
        without(plain, [], "attention"),
        without(plain, [1, 3], "attention"),
    )
    assert float(found["output_change"][0]) == pytest.approx(
        float((y - own).double().norm()), rel=1e-3
    )
    assert found["span_size"].values.tolist() == [2, 1]
