"""What docs/gemma.md says of two real models, on one small prompt each, against plain transformers."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import squashlens as sl

SENTENCE = "The Eiffel Tower is in Paris. The capital of Germany is"
MARKS = {"gemma": [pytest.mark.gemma, pytest.mark.slow], "smollm": [pytest.mark.smollm]}
BOTH = [pytest.param(name, marks=marks, id=name) for name, marks in MARKS.items()]


class Pair(NamedTuple):
    """A model as squashlens opens it, and as transformers does."""

    name: str
    bridge: Any
    plain: Any


@pytest.fixture(scope="module", params=BOTH)
def pair(request: pytest.FixtureRequest) -> Pair:
    from transformers import AutoModelForCausalLM

    bridge = request.getfixturevalue(request.param)
    plain = AutoModelForCausalLM.from_pretrained(
        bridge.tokenizer.name_or_path, attn_implementation="eager", dtype=torch.float32
    )
    return Pair(request.param, bridge, plain.eval().requires_grad_(False))


def test_the_first_token_is_the_only_sink(pair: Pair) -> None:
    """More attention than uniform by 0.3 of what is left, in more than half of the blocks."""
    ids = sl.prompts.tokenize(pair.bridge, SENTENCE)
    sinks = []
    for token in range(ids.shape[1] - 4):
        later = np.arange(token + 1, ids.shape[1])
        uniform = np.mean(1 / (later + 1))
        above = []
        for attention in pair.plain(ids, output_attentions=True).attentions:
            received = attention[0].double().mean(0).numpy()[later, token].mean()
            above.append((received - uniform) / (1 - uniform) > 0.3)
        if np.mean(above) > 0.5:
            sinks.append(token)
    found = sl.attention_sinks(pair.bridge, SENTENCE)
    assert np.flatnonzero(found["sink"]).tolist() == sinks == [0]


def test_what_the_first_token_brings_is_read(pair: Pair) -> None:
    """The probability that moves without its values, by hooks on the plain model's projections."""
    ids = sl.prompts.tokenize(pair.bridge, SENTENCE)
    unchanged = pair.plain(ids).logits[0, -1].softmax(-1)

    def empty_first(module: Any, inputs: Any, values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        values[:, 0] = 0
        return values

    handles = [
        layer.self_attn.v_proj.register_forward_hook(empty_first)
        for layer in pair.plain.model.layers
    ]
    emptied = pair.plain(ids).logits[0, -1].softmax(-1)
    for handle in handles:
        handle.remove()
    moved = float((emptied - unchanged).abs().sum() / 2)
    with sl.applied(pair.bridge, sl.hooks.zero_values([0])):
        ours = pair.bridge(ids)[0, -1].softmax(-1)
    torch.testing.assert_close(ours, emptied, rtol=1e-3, atol=1e-5)
    assert moved == pytest.approx(
        {"gemma": 0.741, "smollm": 0.657}[pair.name], abs=0.01
    )


def test_path_bounds_are_far_above_derivatives(pair: Pair) -> None:
    """By powers of ten, and nearly all of their sum is of the first token."""
    found = sl.bound_vs_jacobian(pair.bridge, SENTENCE)
    bounds = found["path_bound"].values
    assert (bounds > 1e5 * found["jacobian"].values).all()
    assert bounds[0] / bounds.sum() == pytest.approx(
        {"gemma": 0.998, "smollm": 1.0}[pair.name], abs=0.001
    )


# A form that each model can do.
FIRST_DIGIT = {
    "gemma": "Digits:407. First:4\nDigits:39. First:3\nDigits:81126. First:8\nDigits:{}. First:",
    "smollm": "Digits:407. Copy:407\nDigits:39. Copy:39\nDigits:81126. Copy:81126\nDigits:{}. Copy:",
}
LEADS_FROM = {"gemma": 13, "smollm": 24}


def test_the_layer_from_which_the_first_digit_leads(pair: Pair) -> None:
    """The readout of every layer, with the plain model's norm and output embedding."""
    prompt = FIRST_DIGIT[pair.name].format("5203")
    ids = sl.prompts.tokenize(pair.bridge, prompt)
    digits = [
        int(sl.prompts.tokenize(pair.bridge, digit, bos="none")[0, 0])
        for digit in "0123456789"
    ]
    states = pair.plain(ids, output_hidden_states=True).hidden_states
    streams = [pair.plain.model.norm(state[0, -1]) for state in states[:-1]]
    readouts = [
        pair.plain.lm_head(stream)[digits] for stream in (*streams, states[-1][0, -1])
    ]
    likeliest = [int(readout.argmax()) for readout in readouts]
    found = sl.answer_by_layer(pair.bridge, [prompt], ["5"], choices=[*"0123456789"])
    leads = found["likeliest"].sel(scored="right answer").values.ravel()
    np.testing.assert_array_equal(leads, [digit == 5 for digit in likeliest])
    leads_to_the_end = len(leads) - int(np.argmin(leads[::-1]))
    assert leads_to_the_end == LEADS_FROM[pair.name]


def test_commas_keep_v_from_v_star(pair: Pair) -> None:
    """D of y of about 100 ones: with commas, where v* breaks a group of three, many times that without."""
    panels = sl.prompts.figure5(pair.bridge, 102)
    median = {}
    for name in ("c", "d"):
        found = sl.collapse(pair.bridge, panels[name], lengths=range(97, 103))
        median[name] = found["distance_y"].median().item()
    ids = panels["d"].pair(102)
    v, v_star = (
        pair.plain.model(torch.tensor([row])).last_hidden_state[0, -1]
        for row in (ids.v, ids.v_star)
    )
    distance = found["distance_y"].sel(length=102).item()
    assert distance == pytest.approx(float((v - v_star).abs().max()), rel=1e-3)
    assert median["d"] > 8 * median["c"]


@pytest.mark.smollm
def test_smollm_has_no_window(smollm: Any) -> None:
    """No length up to 600 ones is an exception, as 511 are in Gemma, where D is 166 times that of 500."""
    ones = sl.prompts.repeated(smollm, "1", 600, prefix="Count the ones:")
    found = sl.collapse(smollm, sl.capture(smollm, ones, lengths=[500, 511, 600]))
    assert found["window_edge"].values.tolist() == [-1, -1, -1]
    distances = found["distance"].isel(layer=-1).values
    assert distances.max() < 3 * distances.min()
