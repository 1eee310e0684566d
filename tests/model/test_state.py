"""A changed model is noticed, whatever changed it, and honest work is not; one thread at a time uses a model."""

import copy
import gc
import inspect
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import squashlens as sl
from squashlens.errors import (
    BusyModelError,
    InputError,
    SquashlensError,
    StaleCaptureError,
    UnsoundModelError,
)
from squashlens.model import reader, verify
from squashlens.model.reader import Reader, contents_of, every_bit, sampled
from squashlens.model.state import fingerprint_of
from tests import odd
from tests.cases import CONFIGS, EXPERTS, MORE, NO_HEAD_DIM, VARIABLE, save_random

IDS = torch.tensor([2, 5, 6, 9, 11, 20, 7])


def bound(model: Any) -> Any:
    return sl.path_bound(model, IDS)


def said(model: Any) -> str:
    return sl.results.provenance(bound(model))["proof"]


def fresh(name: str, folder: Path, **options: Any) -> Any:
    """A family's model that may be changed."""
    return sl.load(
        save_random((VARIABLE | EXPERTS | MORE | CONFIGS)[name], folder),
        device="cpu",
        **options,
    )


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Any]:
    return lambda name, **options: fresh(name, tmp_path, **options)


# -- accidents between capture and use ------------------------------------------------------------------------------


def inner(model: Any) -> Any:
    return model.original_model


def optimiser_step(model: Any) -> None:
    weight = model.blocks[0].mlp.out.weight
    weight.requires_grad_(True)
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=1e-3).step()


def mlp(model: Any) -> Any:
    """A module with a switch that it has had from the begin, as with adapters."""
    return inner(model).model.layers[0].mlp


ACCIDENTS: dict[str, Callable[[Any], Any]] = {
    "optimiser": optimiser_step,
    "one entry in place": lambda m: (
        m.blocks[0].mlp.out.weight.data[0, 0].add_(0.1)
    ),  # a small weight is read whole
    "a head of the output": lambda m: (
        m.blocks[2].attn.o.original_component.weight.data[:, 4:8].zero_()
    ),
    "a head of the values": lambda m: (
        m.blocks[2].attn.v.original_component.weight.data[:4].mul_(2)
    ),
    "a row of the embedding": lambda m: m.embed.weight.data[31].add_(1),
    "whole weights": lambda m: m.blocks[1].mlp.out.weight.data.neg_(),
    "through NumPy": lambda m: (
        m.blocks[1].mlp.out.weight.detach().numpy().__imul__(1.5)
    ),
    "another storage": lambda m: setattr(
        m.ln_final.weight, "data", m.ln_final.weight.data * 1.1
    ),
    "load_state_dict": lambda m: inner(m).load_state_dict(
        {k: v * 1.01 for k, v in inner(m).state_dict().items()}
    ),
    "dtype": lambda m: m.to(torch.bfloat16),
    "adapter": lambda m: setattr(mlp(m), "disable_adapters", False),
    "window": lambda m: setattr(
        inner(m).model.layers[1].self_attn, "sliding_window", 2
    ),
    "epsilon": lambda m: setattr(
        m.blocks[1].ln1.original_component, "variance_epsilon", 0.1
    ),
    "configuration": lambda m: inner(m).config.rope_parameters.update(rope_theta=50.0),
    "an attribute renamed": lambda m: setattr(
        mlp(m), "adapters_are_off", vars(mlp(m)).pop("disable_adapters")
    ),
    "frequencies": lambda m: next(
        x for x in inner(m).modules() if "inv_freq" in x._buffers
    ).inv_freq.mul_(1.01),
    "forward": lambda m: setattr(
        m.blocks[0].mlp.original_component, "forward", lambda x: x
    ),
    "train mode": lambda m: m.train(),
    "matmul precision": lambda m: torch.set_float32_matmul_precision("medium"),
    "hooks left behind": lambda m: m.add_hook(
        "blocks.1.hook_resid_pre", lambda stream, hook: stream * 1.01
    ),
    "a tensor on a module": lambda m: setattr(m.blocks[0], "stored", torch.ones(3)),
    "a torch hook": lambda m: mlp(m).register_forward_hook(
        lambda _, args, out: out * 2
    ),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_no_accident_between_capture_and_use_passes(accident: str, own: Any) -> None:
    """The capture is refused, and so is the model, unless it is verified again with another fingerprint."""
    model = own("llama")
    mlp(model).disable_adapters = True
    held, before, precision = (
        sl.capture(model, IDS),
        fingerprint_of(model),
        torch.get_float32_matmul_precision(),
    )
    sl.path_bound(model, held)
    try:
        ACCIDENTS[accident](model)
        with pytest.raises(SquashlensError):
            sl.path_bound(model, held)
        try:
            facts = sl.results.provenance(bound(model))
        except SquashlensError:
            return
        told = (
            (facts["fingerprint"] != before)
            or facts["ambient_hooks"]
            or facts["matmul_precision"] != precision
        )
        assert told, "a result under the accident says what is different"
    finally:
        torch.set_float32_matmul_precision(precision)


def test_a_row_or_a_column_of_a_large_weight_is_read() -> None:
    """Of every matrix, in which a row or a column is a neuron, and of one expert too."""
    for shape in [
        (2048, 16384),
        (16384, 2048),
        (640, 1024),
        (8192, 640),
        (3, 700, 900),
        (128, 384),
        (64, 64),
        (1, 7),
    ]:
        read = torch.zeros(shape).flatten()
        count, step = reader._places(torch.Size(shape))
        read[torch.arange(count) * step] = 1
        read = read.view(-1, *shape[-2:])
        assert bool(read.any(dim=1).all() and read.any(dim=2).all()), shape
        assert float(read.mean()) < 0.01 or read.numel() < 2e6, (
            "some entries are read, not all"
        )
    assert [reader._places(torch.Size(shape))[0] for shape in ((), (7,), (5000,))] == [
        1,
        7,
        1667,
    ]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int8,
        torch.bool,
    ],
)
def test_what_is_read_on_a_gpu_sees_a_bit_and_what_is_sampled_the_order(
    dtype: torch.dtype,
) -> None:
    """Both are read there: the one sees any bit that changes, and no sign of all entries; the other does."""
    x = torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0)).to(dtype)
    moved = x.clone()
    moved[77, 1] = x[77, 1] + 1 if dtype.is_floating_point else ~x[77, 1]
    assert every_bit([moved]) != every_bit([x]) == every_bit([x.clone()])
    assert sampled([x]) == sampled([x.clone()])
    if dtype.is_floating_point:
        assert every_bit([-x]) == every_bit([x])
        assert sampled([-x]) != sampled([x])
        assert sampled([x.flip(0)]) != sampled([x]) != sampled([x.t()])


def test_without_hash_tensor_entries_are_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before PyTorch 2.9."""
    monkeypatch.delattr(torch, "hash_tensor")
    x = torch.ones(4, 4)
    assert contents_of([x]) != contents_of([x * 2])


# -- honest work ----------------------------------------------------------------------------------------------------


HONEST = ["llama", "gemma3", "gpt2", "neox", "mixtral", "phi3", "dynamic"]


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", HONEST)
def test_honest_work_is_not_refused_and_verified_once(
    family: str, dtype: torch.dtype, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fingerprints = own(family, dtype=dtype), []
    honest = Reader.fingerprint
    monkeypatch.setattr(
        Reader, "fingerprint", lambda self, m: fingerprints.append(1) or honest(self, m)
    )
    held = sl.capture(model, IDS)
    with torch.inference_mode():
        expected = sl.path_bound(model, held)
    for length in (30, 3):  # beyond the length at which frequencies change
        inner(model)(torch.arange(length)[None] + 3)
    torch.compile(inner(model), backend="eager")(IDS[None])
    model.run_with_cache(IDS[None])
    type(
        inner(model)
    )._can_set_attn_implementation_cached_value = (
        None  # transformers keeps there what it finds out
    )
    copy.deepcopy(inner(model)).set_attn_implementation("eager")
    sl.top_tokens(model, IDS)
    with sl.applied(model, ("blocks.1.attn.hook_z", lambda z: z * 0.5)):
        bound(model)
        sl.collapse(model, sl.prompts.build(model, [5, 6, 7]))
    assert sl.path_bound(model, held).identical(expected)
    assert said(model) == "verified"
    assert not fingerprints, "the weights were read once"


@pytest.mark.parametrize("family", ["llama", "neox"])
def test_bridges_share_weights_and_each_is_what_it_is(family: str, own: Any) -> None:
    """A copy can be made after derivatives too: GPT-NeoX's bridge would keep a pattern of the pass, with its graph."""
    with torch.inference_mode():
        model = own(family)
    sl.jacobian_norms(model, IDS)
    expected, other = bound(model), copy.deepcopy(model)
    assert bound(other).equals(expected)
    assert said(other) == "verified as it stands", (
        "a copy starts without what was verified of the other"
    )
    assert said(model) == "verified"


def test_a_change_that_is_undone_brings_back_what_was_verified(own: Any) -> None:
    model = own("llama")
    held, weight = sl.capture(model, IDS), model.blocks[0].mlp.out.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(2)
    assert said(model) == "verified as it stands"
    with torch.no_grad():
        weight.copy_(before)
    assert said(model) == "verified"
    np.testing.assert_allclose(sl.path_bound(model, held), bound(model), rtol=1e-5)


def test_a_precision_that_is_put_back_is_the_one_before(own: Any) -> None:
    """PyTorch says `ieee` then of what was `none`."""
    model, precision = own("llama"), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    torch.set_float32_matmul_precision(precision)
    assert said(model) == "verified"


def test_a_model_is_freed(own: Any) -> None:
    model = own("llama")
    bound(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("method", ["forward", "__call__"])
def test_a_class_whose_code_is_replaced_is_another_state(
    method: str, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = own("llama")
    held, code = sl.capture(model, IDS), getattr(LlamaRMSNorm, method)
    monkeypatch.setattr(LlamaRMSNorm, method, lambda self, x: code(self, x) * 1.01)
    with pytest.raises(StaleCaptureError, match="other activations"):
        sl.path_bound(model, held)
    assert said(model) == "verified as it stands"


def test_norms_kept_with_a_capture_are_those_of_the_code(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules of relevance propagation replace the derivative of a norm: the passes stay the same."""
    model, code = own("llama"), LlamaRMSNorm.forward
    held = sl.capture(model, IDS)
    before = sl.jacobian_norms(model, held)
    monkeypatch.setattr(
        LlamaRMSNorm,
        "forward",
        lambda norm, x: code(norm, x).detach() + (x - x.detach()),
    )
    after = sl.jacobian_norms(model, held)
    np.testing.assert_allclose(after, sl.jacobian_norms(model, IDS), rtol=1e-6)
    assert abs(after / before - 1).max() > 0.01


@pytest.mark.slow
def test_a_folder_has_one_fingerprint_in_every_process(
    folder_of: Any, tmp_path: Path
) -> None:
    folder = folder_of("gemma3")
    program = (
        "import squashlens as sl; from squashlens.model.state import fingerprint_of;"
        f"print(fingerprint_of(sl.load({folder.name!r})))"
    )
    (tmp_path / folder.name).symlink_to(folder)  # another path, and a relative one
    there = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert there.stdout.split()[-1:] == [fingerprint_of(sl.load(folder))], there.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["dynamic", "phi3"])
def test_the_last_pass_leaves_no_trace(kind: str, own: Any) -> None:
    model = own(kind)
    before = fingerprint_of(model)
    for length in (50, 3, 20, 9):
        model(torch.arange(length)[None] + 3)
        assert fingerprint_of(model) == before
    bound(model)  # until then, both sets of frequencies may be one tensor
    rotary = next(
        module for module in inner(model).modules() if "inv_freq" in module._buffers
    )
    rotary.inv_freq[1] *= 1.01  # which is made again before every pass
    assert fingerprint_of(model) == before
    rotary.original_inv_freq[1] *= 1.01
    assert fingerprint_of(model) != before


def test_accepting_an_unverified_model_lapses(tmp_path: Path) -> None:
    from transformers import StableLmConfig

    model = sl.load(save_random(StableLmConfig(**NO_HEAD_DIM), tmp_path), verify=False)
    assert said(model) == "unverified"
    with torch.no_grad():
        model.blocks[0].attn.q.weight[0] += 1
    with pytest.raises(UnsoundModelError):
        bound(model)
    verify.accept_unverified(model)
    assert said(model) == "unverified"


def test_autocast_is_refused(own: Any) -> None:
    model = own("llama")
    with torch.autocast("cpu", torch.bfloat16):
        for call in (
            lambda: bound(model),
            lambda: sl.applied(model, sl.hooks.freeze_attention()).__enter__(),
        ):
            with pytest.raises(InputError, match="Autocast"):
                call()
    assert said(model) == "verified"


def test_offloaded_weights_are_refused(own: Any) -> None:
    model = own("llama")
    layer = model.blocks[0].mlp.out.original_component
    layer.weight = torch.nn.Parameter(layer.weight.to("meta"))
    with pytest.raises(InputError, match="offloaded"):
        bound(model)


@pytest.mark.parametrize("measure", [sl.path_bound, sl.jacobian_norms])
@pytest.mark.parametrize(
    "write", ["optimiser", "whole weights", "epsilon", "a tensor on a module"]
)
def test_what_a_hook_writes_to_is_refused(write: str, measure: Any, own: Any) -> None:
    """At the first call too, when nothing was verified of the model that it leaves; also weights of earlier blocks."""
    model = own("llama")

    def edit(stream: torch.Tensor, hook: Any) -> None:
        ACCIDENTS[write](model)

    changed = pytest.raises(BusyModelError, match="changed during a measurement")
    with model.hooks(fwd_hooks=[("blocks.2.hook_resid_pre", edit)]), changed:
        measure(model, IDS)


# -- threads --------------------------------------------------------------------------------------------------------


def test_every_public_function_holds_the_model() -> None:
    """Those that run it also see that it is not changed; `applied` has a test below, `lifted_windows` changes it."""
    functions = {
        name: one for name, one in odd.public().items() if inspect.isfunction(one)
    }
    run = {
        name: one
        for name, one in functions.items()
        if "model" in inspect.signature(one).parameters
    }
    assert len(run) > 30
    assert [
        name for name, function in run.items() if not hasattr(function, "__within__")
    ] == [
        "applied",
        "hooks.lifted_windows",
    ]


def in_threads(*functions: Callable[[], None]) -> list[BaseException]:
    """Run functions side by side; what they raise."""
    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(function) for function in functions]
        return [error for one in running if (error := one.exception(timeout=30))]


def test_a_thread_waits_until_hooks_are_taken_off(own: Any) -> None:
    model, order = own("llama"), []
    entered = threading.Event()

    def first() -> None:
        with suppress(KeyError), sl.applied(model, sl.hooks.freeze_attention()):
            entered.set()
            threading.Event().wait(0.2)
            order.append("out")
            raise KeyError

    def second() -> None:
        assert entered.wait(30)
        bound(model)
        order.append("in")

    assert not in_threads(first, second)
    assert order == ["out", "in"]
