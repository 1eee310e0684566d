"""Position encodings that depend on the length of the pass, against plain models that run every prompt by itself."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

import squashlens as sl
from squashlens.engine.positions import length_dependent_encodings, why_lengths_differ
from squashlens.engine.running import passes
from squashlens.engine.running.generate import Prompt, generate
from squashlens.engine.running.passes import read
from squashlens.errors import InputError
from squashlens.sequences import Branch
from tests import captured
from tests.cases import COMMON, CONFIGS, NO_HEAD_DIM, save_random
from tests.references import last_streams

LIMIT = 16  # tokens of a pass from which on longrope has its other frequencies
LONG: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1], "long_factor": [3.0, 9.0],
    "original_max_position_embeddings": LIMIT, "factor": 4.0,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
VARIABLE: dict[str, Any] = {
    "phi3": Phi3Config(**NO_HEAD_DIM | {"original_max_position_embeddings": LIMIT}, rope_parameters=LONG),
    "llama": LlamaConfig(**COMMON, rope_parameters=LONG),
    "dynamic": LlamaConfig(**COMMON | {"max_position_embeddings": 32}, rope_parameters=DYNAMIC),
}
CONTENT = [7, 8, 9, 9, 7, 8] * 4


@pytest.fixture(scope="module")
def both_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bridge and the plain model of a configuration, loaded apart."""
    made: dict[str, Any] = {}

    def both(name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
        folder = tmp_path_factory.getbasetemp() / f"variable_{name}"
        if name not in made:
            made[name] = save_random(VARIABLE[name], folder)
        plain = AutoModelForCausalLM.from_pretrained(made[name], dtype=dtype, attn_implementation="eager").eval()
        return sl.load(made[name], dtype=dtype, progress=False), plain

    return both


def by_hand(plain: Any, pair: Any) -> np.ndarray:
    v, star = (last_streams(plain, ids).double() for ids in (pair.v, pair.v_star))
    return (v - star).abs().amax(-1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phi3", "llama"])
@pytest.mark.parametrize("content", [CONTENT, [7] * 24], ids=["varied", "constant"])
def test_collapse_across_the_switch(name: str, content: list[int], both_of: Any) -> None:
    """v* may already be long where v is not: D at 16 tokens is that of the plain model too."""
    model, plain = both_of(name)
    sequence = sl.prompts.build(model, content, prefix=[2, 5], bos="one")
    ds = captured.collapse(model, sequence, noise_lengths=3, progress=False)
    assert "longrope) depends on the length of the pass beyond 16 tokens" in sl.results.provenance(ds)["passes"]
    assert ds["noise_floor"].min() > 0
    for length in (1, 5, 13, 14, 15, 24):
        expected = by_hand(plain, sequence.pair(length))
        np.testing.assert_allclose(ds["distance"].sel(length=length), expected[:-1], atol=2e-5)
        np.testing.assert_allclose(ds["distance_y"].sel(length=length), expected[-1], atol=2e-5)
    with pytest.raises(InputError, match="depends on the length of the pass"):
        captured.collapse(model, sequence, passes="shared", progress=False)


@pytest.mark.slow
def test_one_side_of_the_switch_shares(both_of: Any) -> None:
    model, plain = both_of("phi3")
    sequence = sl.prompts.build(model, [7] * 24, prefix=[2, 5], bos="one")
    for lengths, route in (([2, 9, 13], "shared"), ([2, 9, 14], "separate"), ([15, 20], "shared"), ([14, 20], "sep")):
        ds = captured.collapse(model, sequence, lengths=lengths, progress=False)
        assert sl.results.provenance(ds)["passes"].startswith(route), lengths
        for length in lengths:
            expected = by_hand(plain, sequence.pair(length))[:-1]
            np.testing.assert_allclose(ds["distance"].sel(length=length), expected, atol=2e-5)
    # A trunk of 16 tokens with branches that are longer than it, all of them beyond the limit.
    trunk = (2, *torch.randint(3, 60, (15,), generator=torch.Generator().manual_seed(0)).tolist())
    readings = read(model, trunk, [Branch(16, (4,)), Branch(16, (5, 6))], ["blocks.2.hook_resid_post"], progress=False)
    assert readings.route.startswith("separate")
    expected = torch.stack([last_streams(plain, ids)[-2] for ids in ((*trunk, 4), (*trunk, 5, 6))])
    torch.testing.assert_close(readings.values["blocks.2.hook_resid_post"], expected, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_everything_on_pairs_follows(both_of: Any) -> None:
    """Mechanism, comparisons, precision and tokens, each through the same passes."""
    model, plain = both_of("phi3")
    sequence = sl.prompts.build(model, CONTENT, prefix=[2, 5], bos="one", separator=13, every=4)
    lengths = [3, 10, 12, 20]
    mechanism = captured.mechanism(model, sequence, lengths=lengths, progress=False)
    assert (mechanism["observed"] <= mechanism["bound"] * (1 + 1e-5)).all()
    window = {"window": sl.hooks.sliding_window(4, sink=1)}
    compared = sl.compare(model, sequence, window, lengths=lengths, scale="absolute", progress=False)
    unhooked = compared["distance"].sel(change="as it is")
    precision = captured.precision(
        model, sequence, lengths=lengths, round_to=["bfloat16"], scale="absolute", progress=False
    )
    ablation = sl.separator_ablation(
        model, sequence, lengths=lengths, kinds=["random_places"], noise_lengths=0, progress=False
    )
    for length in lengths:
        pair = sequence.pair(length)
        expected = by_hand(plain, pair)[:-1]
        np.testing.assert_allclose(unhooked.sel(length=length), expected, atol=2e-5)
        np.testing.assert_allclose(ablation["distance"].sel(edit="separators", length=length), expected, atol=2e-5)
        scattered = sequence.scattered("places 0").pair(length)
        found = ablation["distance"].sel(edit="random_places", length=length)
        np.testing.assert_allclose(found, by_hand(plain, scattered)[:-1], atol=2e-5)
        with torch.no_grad():
            rows = [
                plain(torch.tensor([ids]), use_cache=False, output_attentions=True).attentions[1][0, :, -1]
                for ids in (pair.v, pair.v_star)
            ]
        n = len(pair.v)
        change = (rows[0] - rows[1][:, :n]).abs().sum(-1)
        np.testing.assert_allclose(mechanism["attention_tv"].sel(block=1, length=length), change, atol=2e-5)
        np.testing.assert_allclose(mechanism["self_weight"].sel(block=1, length=length), rows[1][:, n], atol=2e-5)
    assert precision["bits_needed"].sel(layer=3).notnull().all()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["phi3", "llama"])
def test_answers_are_those_of_transformers(name: str, both_of: Any) -> None:
    """Decoding across the switch goes as `generate` of the plain model: Phi-3 runs all anew there, Llama does not."""
    model, plain = both_of(name)
    ids = tuple(range(3, 3 + LIMIT - 4))
    said = next(generate(model, [Prompt(ids, 12)]))[0]
    expected = plain.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)[0, len(ids) :]
    assert said.ids == tuple(expected.tolist())[: len(said.ids)]
    assert len(said.ids) >= 8


@pytest.mark.slow
def test_measurements_forget_longer_passes(both_of: Any) -> None:
    """A plain pass beyond the context leaves "dynamic" frequencies behind; no measurement is to see them."""
    model, plain = both_of("dynamic")
    sequence = sl.prompts.build(model, (CONTENT * 2)[:29], prefix=[2, 5], bos="one")  # v* fills the context
    expected = np.stack([by_hand(plain, sequence.pair(n))[:-1] for n in (4, 29)], axis=1)
    fresh = captured.collapse(model, sequence, lengths=[4, 29], progress=False)
    assert sl.results.provenance(fresh)["passes"] == "shared"
    np.testing.assert_allclose(fresh["distance"], expected, atol=2e-5)

    def run_too_long(ids: Any) -> None:
        with torch.no_grad():
            model.original_model(ids)

    longer = torch.randint(3, 60, (1, 60))
    before = model.original_model.model.rotary_emb.original_component.inv_freq.clone()
    run_too_long(longer)
    assert not torch.equal(before, model.original_model.model.rotary_emb.original_component.inv_freq)
    again = captured.collapse(model, sequence, lengths=[29], progress=False)
    np.testing.assert_array_equal(again["distance"].sel(length=29), fresh["distance"].sel(length=29))
    run_too_long(longer)
    plainly = sl.jacobian_norms(model, torch.tensor(sequence.pair(29).v_star), bos="one", progress=False)
    assert plainly.notnull().all()


def test_dynamic_frequencies_are_for_prompts_beyond_the_context(both_of: Any) -> None:
    """Each longer pass has its own; the plain model runs them from the shortest on, as it keeps those of a longer."""
    model, plain = both_of("dynamic")
    sequence = sl.prompts.build(model, CONTENT * 3, prefix=[2, 5], bos="one")
    lengths = [4, 29, 30, 31, 50, 70]
    ds = captured.collapse(model, sequence, lengths=lengths, progress=False)
    assert "dynamic) depends on the length of the pass beyond 32 tokens" in sl.results.provenance(ds)["passes"]
    for length in lengths:
        expected = by_hand(plain, sequence.pair(length))[:-1]
        np.testing.assert_allclose(ds["distance"].sel(length=length), expected, atol=2e-5)
    with pytest.raises(InputError, match="context of 32"):
        next(generate(model, [Prompt(tuple(range(3, 33)), 12)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "from_", "content"), [("llama", 17, [7] * 24), ("gpt2", 22, CONTENT), ("llama", 28, CONTENT)]
)
def test_a_hidden_dependence_is_found(family: str, from_: int, content: list[int], bridge_of: Any) -> None:
    """Embeddings that are scaled from some length of the pass on, which no configuration says."""
    model = bridge_of(family)
    embed = model.embed.original_component
    sequence = sl.prompts.build(model, content, prefix=[2, 5, 11], bos="one")  # v* has 5 to 28 tokens

    def scaled(ids: Any) -> Any:
        return type(embed).forward(embed, ids) * (1.5 if ids.shape[-1] >= from_ else 1.0)

    embed.__dict__["forward"] = scaled
    try:
        ds = captured.collapse(model, sequence, progress=False)
        alone = captured.collapse(model, sequence, passes="separate", progress=False)
    finally:
        del embed.__dict__["forward"]
    assert sl.results.provenance(ds)["passes"].startswith(
        "separate, since its numbers depend on what it shares a pass with"
    )
    np.testing.assert_array_equal(ds["distance"], alone["distance"])


def test_what_the_configuration_says() -> None:
    class Model:
        def __init__(self, config: Any) -> None:
            self.original_model = type("Inner", (), {"config": config})()

    model: Any = Model(VARIABLE["phi3"])
    assert length_dependent_encodings(model) == [("longrope", LIMIT)]
    assert why_lengths_differ(model, {3, 16}) is None
    assert why_lengths_differ(model, {17, 30}) is None
    assert why_lengths_differ(model, {16, 17}) is not None
    model = Model(VARIABLE["dynamic"])
    assert length_dependent_encodings(model) == [("dynamic", 32)]
    assert why_lengths_differ(model, {5, 32}) is None
    assert why_lengths_differ(model, {32, 33}) is not None
    assert why_lengths_differ(model, {40, 41}) is not None
    assert why_lengths_differ(model, {41}) is None
    for config in CONFIGS.values():
        assert length_dependent_encodings(Model(config)) == []


def planned(bridge_of: Any, trunk: tuple[int, ...], branches: list[Branch]) -> passes.Plan:
    return passes.Plan(bridge_of("llama"), trunk, tuple(branches), ("blocks.0.hook_resid_pre",))


def test_what_a_shared_pass_is_compared_on(bridge_of: Any) -> None:
    """The shortest prompt, the longest, and the longest up to a quarter of it."""
    plan = planned(bridge_of, tuple(range(3, 27)), [Branch(n, (5,)) for n in range(1, 24)])
    assert [len(plan.branches[i]) for i in passes._sample(plan)] == [2, 6, 24]


@pytest.mark.slow
def test_each_trunk_is_compared_for_itself(bridge_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, model, branches = [], bridge_of("qwen3"), [Branch(n, (5,)) for n in range(1, 9)]
    honest = passes._one_by_one
    monkeypatch.setattr(
        passes, "_one_by_one", lambda plan, progress: alone.append(plan.trunk) or honest(plan, progress)
    )
    site = ["blocks.0.hook_resid_pre"]
    read(model, (7, 8, 9, 10, 11, 12, 13, 14), branches, site)
    alone.clear()  # the first use of a model compares a trunk of its own too
    for trunk in ((8, 7, 9, 10, 11, 12, 13, 14), (8, 7, 9, 10, 11, 12, 13, 14), (9, 7, 8, 10, 11, 12, 13, 14)):
        read(model, trunk, branches, site)
    assert [trunk[0] for trunk in alone] == [8, 9]
