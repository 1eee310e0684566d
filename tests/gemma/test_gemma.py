"""A real Gemma 3 270M, against plain transformers: what a model of a user's size shows, and toys do not."""

import itertools
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import squashlens as sl
from squashlens.run.forward import log_probabilities
from tests.references import run_of

pytestmark = [pytest.mark.gemma, pytest.mark.slow]
PROMPT = "The capital of France is"
IDS = [2, 818, 5279, 529, 7001, 563]
ONES = 12


@pytest.fixture(scope="module")
def plain(gemma: Any) -> Any:
    """The same folder as transformers opens it."""
    from transformers import AutoModelForCausalLM

    folder = gemma.tokenizer.name_or_path
    return (
        AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        .eval()
        .requires_grad_(False)
    )


def test_text_becomes_the_tokens_of_gemma(gemma: Any) -> None:
    assert sl.prompts.tokenize(gemma, PROMPT).tolist() == [IDS]
    assert len(gemma.tokenizer) == gemma.cfg.d_vocab == 262_144
    ones = sl.prompts.repeated(
        gemma, "1", ONES, prefix="Count: ", separator=",", suffix=" ="
    )
    text = "Count: " + "".join("1" + "," * (k % 3 == 0) for k in range(1, ONES + 1))
    assert list(ones.trunk) == gemma.tokenizer(text)["input_ids"]
    result = sl.path_bound(gemma, PROMPT)
    assert (
        sl.results.provenance(result)["token_ids"]
        == result["token_id"].values.tolist()
        == IDS
    )


def test_path_bound_and_null(gemma: Any, plain: Any) -> None:
    """Row n of ∏(A + I), from the plain model's attention; 512 tokens of window are more than the prompt has."""
    ids = torch.tensor([IDS])
    row = torch.zeros(len(IDS), dtype=torch.float64)
    row[-1] = 1
    uniform = row.clone()
    causal = torch.ones(len(IDS), len(IDS), dtype=torch.float64).tril()
    causal /= causal.sum(1, keepdim=True)
    for attention in reversed(plain(ids, output_attentions=True).attentions):
        row = row + row @ attention[0].double().mean(0)
        uniform = uniform + uniform @ causal
    found = sl.path_bound(gemma, PROMPT)
    scale = (
        found.values[1] / row.numpy()[1]
    )  # the constants, 2 for each of 18 blocks, are one factor
    np.testing.assert_allclose(found.values, scale * row.numpy(), rtol=1e-5)
    null = sl.path_bound(gemma, PROMPT, attention="uniform")
    np.testing.assert_allclose(null.values, scale * uniform.numpy(), rtol=1e-5)
    assert found.values[0] / found.values.sum() > 0.99, "BOS is an attention sink"


def test_collapse(gemma: Any, plain: Any) -> None:
    ones = sl.prompts.repeated(gemma, "1", ONES, prefix="Count the ones:")
    found = sl.collapse(gemma, ones, norm="linf")
    for n in (1, 7, ONES):
        pair = ones.pair(n)
        v, star = (
            plain(torch.tensor([ids]), output_hidden_states=True)
            for ids in (pair.v, pair.v_star)
        )
        assert found["tokens"].sel(length=n) == len(pair.v)
        for layer, (a, b) in enumerate(
            zip(v.hidden_states[:-1], star.hidden_states[:-1], strict=True)
        ):
            truth = (a[0, -1] - b[0, -1]).abs().max()
            size = a[0, -1].abs().max()
            assert abs(
                float(found["distance"].sel(layer=layer, length=n)) - float(truth)
            ) < 1e-5 * float(size), layer
        p, q = (one.logits[0, -1].double().softmax(-1) for one in (v, star))
        np.testing.assert_allclose(
            found["probability_l1"].sel(length=n),
            (p - q).abs().sum(),
            rtol=1e-3,
            atol=1e-6,
        )
    ids = sl.results.provenance(found)["sequence"]["token_ids"]
    assert (*ids["prefix"], *ids["content"]) == ones.trunk


def test_bos_leaves_the_window(gemma: Any) -> None:
    ones = sl.prompts.repeated(gemma, "1", 512)
    found = sl.collapse(gemma, sl.capture(gemma, ones, lengths=[509, 511]))
    with sl.hooks.lift_windows(gemma):
        lifted = sl.collapse(gemma, sl.capture(gemma, ones, lengths=[509, 511]))
    assert found["window_edge"].values.tolist() == [-1, 0]
    assert lifted["window_edge"].values.tolist() == [-1, -1]
    np.testing.assert_allclose(
        found["distance"].isel(layer=-1), [8.3, 2415.2], rtol=0.02
    )
    np.testing.assert_allclose(
        lifted["distance"].isel(layer=-1), [8.3, 39.9], rtol=0.02
    )


def test_separators(gemma: Any, plain: Any) -> None:
    """Masking the commas, as a 4-D mask of the plain model."""
    ones = sl.prompts.repeated(gemma, "1", 9, separator=",")
    found = sl.separator_ablation(
        gemma, ones, kinds=["mask"], from_blocks=[0], lengths=[8]
    )
    streams = []
    pair = ones.pair(8)
    for ids in (pair.v, pair.v_star):
        n = len(ids)
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        for place in ones.separator_places(8):
            allowed[place + 1 :, place] = False
        mask = torch.zeros(1, 1, n, n).masked_fill(
            ~allowed, torch.finfo(torch.float32).min
        )
        masks = {"full_attention": mask, "sliding_attention": mask}
        out = plain(
            torch.tensor([ids]), attention_mask=masks, output_hidden_states=True
        )
        streams.append([state[0, -1] for state in out.hidden_states[:-1]])
    for layer, (a, b) in enumerate(zip(*streams, strict=True)):
        ours = float(
            found["distance_from"].sel(hook="mask", from_block=0, layer=layer, length=8)
        )
        assert abs(ours - float((a - b).abs().max())) < 2e-5 * float(a.abs().max()), (
            layer
        )


def test_jacobian(gemma: Any, plain: Any) -> None:
    """One row of derivatives, and a finite difference of a large step along a random direction."""
    ids = torch.tensor([IDS[:3]])
    start = plain.get_input_embeddings()(ids).detach().requires_grad_(True)
    y = plain.model(inputs_embeds=start, use_cache=False).last_hidden_state[0, -1]
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(640, generator=generator)
    for _ in range(12):  # power iteration on JᵀJ at token 1
        (row,) = torch.autograd.grad(y @ vector, start, retain_graph=True)
        direction = row[0, 1] / row[0, 1].norm()
        tangent = torch.zeros_like(start).detach()
        tangent[0, 1] = direction
        step = 1e-3
        ends = [
            plain.model(
                inputs_embeds=start.detach() + s * step * tangent, use_cache=False
            ).last_hidden_state[0, -1]
            for s in (1, -1)
        ]
        vector = (ends[0] - ends[1]) / (2 * step)
    norms = sl.jacobian_norms(gemma, ids, method="exact")
    # Power iteration and finite differences approach the norm from below, up to their error.
    assert float(norms.sel(position=1)) == pytest.approx(float(vector.norm()), rel=2e-2)


def test_logits_are_made_in_pieces_that_fit(gemma: Any) -> None:
    """64 rows of 262,144 log-probabilities have 134 MB in float64, and some copies; never several gigabytes."""
    process = psutil.Process()
    before = process.memory_info().rss
    most = 0
    for rows in log_probabilities(run_of(gemma), torch.randn(96, 640)):
        assert rows.shape[1] == 262_144
        most = max(most, process.memory_info().rss - before)
    assert most < 0.9 * 2**30


def test_paths_beside_the_sink(gemma: Any) -> None:
    every = sl.attention_paths.strongest_paths(gemma, PROMPT, k=5)
    assert (every["position_at"].values[:, 0] == 0).all()
    others = sl.attention_paths.strongest_paths(gemma, PROMPT, k=5, avoid=[0])
    assert (others["position_at"].values != 0).all()
    brute = _brute_force(gemma, k=3)
    np.testing.assert_allclose(others["weight"].values[:3], brute, rtol=1e-5)


def _brute_force(gemma: Any, k: int) -> list[float]:
    """The k largest weights of walks over 1 … 5 that end at 5, kept from layer to layer without pruning by rank."""
    acts = sl.capture(gemma, PROMPT)
    patterns = [
        acts.patterns[block][0].double().mean(0).numpy() + np.eye(6)
        for block in range(18)
    ]
    best: dict[int, list[float]] = {position: [1.0] for position in range(1, 6)}
    for pattern in patterns:
        best = {
            j: sorted(
                (w * pattern[j, i] for i in range(1, j + 1) for w in best[i]),
                reverse=True,
            )[:50]
            for j in range(1, 6)
        }
    return list(itertools.islice(best[5], k))
