"""Certificates against a twin that shares no arithmetic with them: plain Hugging Face models in float64 throughout."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

import squashlens as sl
from squashlens.errors import SquashlensError, UnsoundModelError
from tests.cases import (
    COMMON,
    CONFIGS,
    FREEZE_SETS,
    MORE,
    OTHERS,
    draw,
    few,
    loaded,
    random_model,
)
from tests.references import exact_norms, float64_throughout, float64_twin

IDS = torch.tensor([2, 7, 11, 30, 7, 59])
EVERY = CONFIGS | MORE | OTHERS
KINDS = ("paths", "sketch")


def rounded_to(plain: Any, dtype: torch.dtype) -> Any:
    """The same model with weights as that dtype stores them; buffers stay as they are, as in a loaded model."""
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(parameter.to(dtype))
    return plain


def certified(model: Any, kind: str, ids: torch.Tensor = IDS, **shared: Any) -> Any:
    if kind == "sketch":
        return sl.jacobian_norms(
            model, ids, method="sketch_upper", n_probes=16, **shared
        )
    return sl.certified_bound(model, ids, **shared)


def ratios(
    model: Any, truth: np.ndarray, kind: str, ids: torch.Tensor = IDS, **shared: Any
) -> np.ndarray:
    """Bound over truth, for every token; infinite where the truth is below the range of numbers."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(
            certified(model, kind, ids, **shared).values / truth, nan=np.inf
        )


@pytest.mark.parametrize("family", few([*EVERY]))
def test_the_twin_has_no_float32_inside(family: str) -> None:
    plain = random_model(EVERY[family])
    dtypes: set[torch.dtype] = set()

    def look(_module: Any, _args: Any, out: Any) -> None:
        outs = out if isinstance(out, tuple) else (out,)
        dtypes.update(
            o.dtype
            for o in outs
            if isinstance(o, torch.Tensor) and o.is_floating_point()
        )

    with float64_throughout(), torch.no_grad():
        twin = float64_twin(plain)
        for module in twin.modules():
            module.register_forward_hook(look)
        patterns = twin(IDS[None], use_cache=False, output_attentions=True).attentions
    assert dtypes == {torch.float64}
    assert max((p.sum(dim=-1) - 1).abs().max().item() for p in patterns) < 1e-15


SAMPLE = [
    ("gemma3", 10.0, ("norms",), 1),
    ("gpt2", 3.0, (), 3),
    ("neox", 1.0, (), 2),
    ("olmo2", 10.0, ("attention",), 0),
    ("mixtral", 1.0, (), 4),
    ("bloom", 1.0, (), 5),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "scale", "freeze", "seed"), SAMPLE, ids=[case[0] for case in SAMPLE]
)
def test_certificates_hold(
    family: str, scale: float, freeze: Any, seed: int, tmp_path: Path
) -> None:
    check(family, scale, freeze, seed, torch.float32, tmp_path)


DTYPES = (torch.float32, torch.float64, torch.bfloat16)
# What transformers does not run with eager attention, and what it rounds to bfloat16 whatever it is given.
REFUSED = {("olmo2", torch.bfloat16), *(("falcon_alibi", dtype) for dtype in DTYPES)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The certificate is for these weights")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("family", [*EVERY])
def test_certificates_hold_everywhere(
    family: str, scale: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    if (family, dtype) in REFUSED:
        with pytest.raises(SquashlensError):
            check(family, scale, (), 0, dtype, tmp_path)
        return
    for seed, freeze in enumerate(
        [()] if family in OTHERS or family == "gpt2" else FREEZE_SETS
    ):
        check(family, scale, freeze, seed, dtype, tmp_path)


def check(
    family: str, scale: float, freeze: Any, seed: int, dtype: torch.dtype, folder: Path
) -> None:
    """Both kinds of certificate, for a prompt and a layer that the seed draws."""
    generator, source = torch.Generator().manual_seed(seed), seed % 3
    ids = torch.cat(
        [IDS[:1], torch.randint(3, 60, (6 - seed % 5,), generator=generator)]
    )
    plain, model = loaded(EVERY[family], folder, lambda p: draw(p, seed, scale), dtype)
    truth = exact_norms(rounded_to(plain, dtype), ids, freeze, source=source)
    for kind in KINDS:
        ratio = ratios(model, truth, kind, ids, freeze=freeze, from_layer=source)
        assert (ratio >= 1).all(), (kind, ratio)


def cancelling(plain: Any, size: float) -> None:
    """Queries and keys with two coordinates of that size whose products cancel, in GPT-2, which does not rotate."""
    for layer in plain.transformer.h:
        layer.attn.c_attn.weight.view(16, 3, 4, 4)[:, :2, :, [0, 3]] = 0
        layer.attn.c_attn.bias.view(3, 4, 4)[:2, :, [0, 3]] = size
        layer.attn.c_attn.bias.view(3, 4, 4)[1, :, 3] = -size


@pytest.mark.slow
def test_biases_that_cancel_leave_certificates_right(tmp_path: Path) -> None:
    """Their logits are small and their products large: float32 gets the Jacobian wrong, by more than any |s| tells."""
    plain, model = loaded(CONFIGS["gpt2"], tmp_path, lambda p: cancelling(p, 3e3))
    truth = exact_norms(plain, IDS)
    narrow = sl.jacobian_norms(model, IDS).values
    assert np.abs(narrow / truth - 1).max() > 0.01
    for kind in KINDS:
        found = ratios(model, truth, kind)
        assert (found >= 1).all(), (kind, found)
    rounding = certified(model, "paths").attrs["rounding"]
    assert 1e-8 < rounding < 1e-4  # ‖q‖ ‖k‖ is in it, as large as it is


def test_logits_without_a_digit_are_refused(tmp_path: Path) -> None:
    _, model = loaded(
        CONFIGS["gpt2"], tmp_path, lambda p: cancelling(p, 1e9), torch.float64
    )
    for kind in KINDS:
        with pytest.raises(UnsoundModelError):
            certified(model, kind)


def saturated(plain: Any, size: float) -> None:
    """Queries along the keys, so that most tokens attend to themselves, the more the larger `size`."""
    for layer in plain.model.layers:
        layer.self_attn.q_proj.weight.copy_(size * layer.self_attn.k_proj.weight)


WIDE = LlamaConfig(**COMMON | {"num_key_value_heads": 4})
NARROW = type(CONFIGS["mistral"])(
    **CONFIGS["mistral"].to_dict() | {"sliding_window": 2}
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("config", "size", "unreached"), [(WIDE, 1e3, 0), (WIDE, 1e6, 0), (NARROW, 0.0, 2)]
)
def test_zero_is_certified_where_no_path_leads_alone(
    config: Any, size: float, unreached: int, tmp_path: Path
) -> None:
    """Saturated attention has weights far below float32, and below every number; a window has exact zeros."""
    plain, model = loaded(
        config, tmp_path, lambda p: saturated(p, size) if size else None
    )
    truth = exact_norms(plain, IDS)
    assert truth.min() < 1e-30
    for kind in KINDS:
        found = certified(model, kind).values
        assert (found[:unreached] == 0).all(), (kind, found)
        assert (found[unreached:] > 0).all(), (kind, found)
        assert (found >= truth).all(), (kind, found / truth)


def mixing(size: float, to: int, source: int) -> Any:
    """A hook that adds some of one token to another, which is not what attention does."""

    def mix(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.index_add(1, torch.tensor([to]), size * tensor[:, [source]])

    return sl.hooks.Hook("mix", "blocks.1.mlp.hook_out", mix)


def norms_under(hook: Any, plain: Any) -> np.ndarray:
    """The exact norms of a copy of the plain model in which the second MLP's output is changed as by the hook."""
    plain = copy.deepcopy(plain)
    plain.model.layers[1].mlp.register_forward_hook(
        lambda _module, _args, out: hook.edit(out)
    )
    return exact_norms(plain, IDS)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "to", "source"), [(1e-7, 5, 0), (1e-7, 1, 0), (1e-4, 4, 1), (0.3, 4, 1)]
)
def test_hooks_that_mix_tokens_are_in_the_certificate(
    size: float, to: int, source: int, bridge_of: Any, plain_of: Any
) -> None:
    model, mix = bridge_of("llama"), mixing(size, to, source)
    truth = norms_under(mix, plain_of("llama"))
    with sl.applied(model, mix):
        for kind in KINDS:
            assert (ratios(model, truth, kind) >= 1).all(), kind


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-9, 0.3])
def test_tokens_from_behind_are_refused(size: float, bridge_of: Any) -> None:
    model, mix = bridge_of("llama"), mixing(size, 2, 4)
    with sl.applied(model, mix):
        with pytest.raises(UnsoundModelError):
            certified(model, "paths")
        for query in (2, 3):
            with pytest.raises(UnsoundModelError):
                certified(model, "sketch", query=query)


def test_a_bound_says_how_likely_it_fails_and_what_it_allows_for(
    bridge_of: Any,
) -> None:
    for kind, chance in (("paths", 5e-7), ("sketch", 1e-6)):
        stated = certified(bridge_of("llama"), kind, IDS[:2]).attrs
        assert stated["failure_probability"] == chance
        assert 0 < stated["rounding"] < 1e-9


def test_half_precision_is_certified_as_its_stored_weights(
    bridge_of: Any, plain_of: Any
) -> None:
    model = bridge_of("llama", torch.bfloat16)
    truth = exact_norms(
        rounded_to(copy.deepcopy(plain_of("llama")), torch.bfloat16), IDS
    )
    run: Any = sl.capture(model, IDS)
    for kind in KINDS:
        with pytest.warns(
            UserWarning, match="in bfloat16 the model computes something else"
        ):
            bound = certified(model, kind, run, seed=0)
        assert (bound.values >= truth).all()
        assert (bound.coords.get("low", 0.0) <= truth).all()
        assert sl.results.provenance(bound)["dtype"] == "bfloat16"


def heads_that_cancel(plain: Any, size: float, output: bool = False) -> None:
    """Two heads with one pattern and values, or output weights, B + A and B − A, where A is of that size."""
    for layer in plain.model.layers:
        attention, generator = layer.self_attn, torch.Generator().manual_seed(1)
        for weight in (attention.q_proj.weight, attention.k_proj.weight):
            weight[4:8] = weight[:4]
        large = size * torch.randint(-4, 5, (4, 16), generator=generator)
        small = (2 * torch.randn(4, 16, generator=generator)).round() / 8
        large[:, 8:], small[:, :8] = (
            0,
            0,
        )  # side by side in a row, so that no sum rounds
        values, out = attention.v_proj.weight, attention.o_proj.weight.T
        whole, halves = (values, out) if output else (out, values)
        whole[4:8] = whole[:4]
        halves[:4], halves[4:8] = small + large, small - large


def where_heads_cancel(
    folder: Path, size: float, output: bool = False, blocks: int = 2
) -> tuple[Any, Any]:
    """The plain model without A, which float32 stores exactly and does not round, and the bridge of the one with it."""
    config = LlamaConfig(
        **COMMON | {"num_key_value_heads": 4, "num_hidden_layers": blocks}
    )
    whole, _ = loaded(
        config, folder / "none", lambda plain: heads_that_cancel(plain, 0.0, output)
    )
    _, model = loaded(
        config, folder / "large", lambda plain: heads_that_cancel(plain, size, output)
    )
    return whole, model


@pytest.mark.few(1)
@pytest.mark.parametrize(("blocks", "size"), [(1, 2.0**24), (2, 2.0**13), (2, 2.0**36)])
def test_values_that_cancel_between_heads_leave_certificates_right(
    blocks: int, size: float, tmp_path: Path
) -> None:
    whole, model = where_heads_cancel(tmp_path, size, blocks=blocks)
    truth = exact_norms(whole, IDS)
    for kind in KINDS:
        found = ratios(model, truth, kind)
        assert (found >= 1).all(), (kind, found.min())


@pytest.mark.few(1)
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("size", [2.0**30, 2.0**40, 2.0**50])
def test_heads_that_cancel_are_in_the_interval_or_refused(
    size: float, output: bool, tmp_path: Path
) -> None:
    """At 10⁹ to 10¹⁵ times the other weights."""
    whole, model = where_heads_cancel(tmp_path, size, output)
    truth, all_together = exact_norms(whole, IDS), exact_norms(whole, IDS, order="fro")
    refused = 0
    tried: list[dict[str, Any]] = [
        {"n_probes": 16},
        {"n_probes": 24},
        {"norm": "frobenius"},
    ]
    for options in tried:
        try:
            found = sl.jacobian_norms(model, IDS, method="sketch_upper", **options)
        except UnsoundModelError:
            refused += 1
            continue
        norms = all_together if "norm" in options else truth
        assert (found["low"].values <= norms).all()
        assert (norms <= found.values).all()
        assert sl.results.provenance(found)["sketch"]["rounding"] > 1e-6
    assert refused in {2.0**30: (0,), 2.0**40: (1, 2, 3), 2.0**50: (3,)}[size]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_certificates_hold_of_a_model_with_hooks_that_round(
    form: Any, kind: str, bridge_of: Any
) -> None:
    hook = sl.hooks.round_activations(form, blocks=(1,))
    model = bridge_of("llama")
    wide = bridge_of("llama", torch.float64)
    with sl.applied(model, hook), sl.applied(wide, hook):
        found = certified(model, kind).values
        truth = sl.jacobian_norms(wide, IDS).values
    assert (found >= truth * (1 - 1e-6)).all()


def test_a_hook_that_computes_in_half_precision_has_no_certificate(
    bridge_of: Any,
) -> None:
    model = bridge_of("llama")
    hook = ("blocks.1.hook_resid_pre", lambda z: z.bfloat16().to(z.dtype))
    with (
        sl.applied(model, hook),
        pytest.raises(UnsoundModelError),
    ):
        certified(model, 1)


@pytest.mark.slow
def test_a_token_that_nobody_attends_to_has_zero(bridge_of: Any) -> None:
    model = bridge_of("llama")
    with sl.applied(model, sl.hooks.mask_tokens([1])):
        for kind in KINDS:
            assert certified(model, kind).values.tolist().count(0.0) == 1, kind
