"""A changed model is noticed, and honest work is not; no other thread runs a model that is measured."""

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import (
    BusyModelError,
    InputError,
    SquashlensError,
    UnsoundModelError,
)
from squashlens.model import verify
from squashlens.model.proof import fingerprint_of
from squashlens.model.snapshot import _some_entries
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


ACCIDENTS: dict[str, Callable[[Any], Any]] = {
    "optimiser": optimiser_step,
    "a head of the output": lambda m: (
        m.blocks[2].attn.o.original_component.weight.data[:, 4:8].zero_()
    ),
    "a head of the values": lambda m: (
        m.blocks[2].attn.v.original_component.weight.data[:4].mul_(2)
    ),
    "whole weights": lambda m: m.blocks[1].mlp.out.weight.data.neg_(),
    "another parameter": lambda m: setattr(
        m.blocks[1].mlp.out.original_component,
        "weight",
        torch.nn.Parameter(m.blocks[1].mlp.out.weight.detach() * 1.1),
    ),
    "load_state_dict": lambda m: inner(m).load_state_dict(
        {k: v * 1.01 for k, v in inner(m).state_dict().items()}
    ),
    "dtype": lambda m: m.to(torch.bfloat16),
    "configuration": lambda m: inner(m).config.rope_parameters.update(rope_theta=50.0),
    "frequencies": lambda m: next(
        x for x in inner(m).modules() if "inv_freq" in x._buffers
    ).inv_freq.mul_(1.01),
    "train mode": lambda m: m.train(),
    "matmul precision": lambda m: torch.set_float32_matmul_precision("medium"),
    "hooks left behind": lambda m: m.add_hook(
        "blocks.1.hook_resid_pre", lambda stream, hook: stream * 1.01
    ),
    "a torch hook": lambda m: m.blocks[0].mlp.register_forward_hook(
        lambda _, args, out: out * 2
    ),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_no_accident_between_capture_and_use_passes(accident: str, own: Any) -> None:
    """The capture is refused, and so is the model, unless it is verified again with another fingerprint."""
    model = own("llama")
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


# -- honest work ----------------------------------------------------------------------------------------------------


HONEST = ["llama", "gemma3", "gpt2", "neox", "mixtral", "phi3", "dynamic"]


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", HONEST)
def test_honest_work_is_not_refused_and_verified_once(
    family: str, dtype: torch.dtype, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, verified = own(family, dtype=dtype), []
    monkeypatch.setattr(verify, "prove", lambda *_: verified.append(1))
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
    assert not verified


@pytest.mark.parametrize("family", ["llama", "neox"])
def test_bridges_share_weights_and_each_is_what_it_is(family: str, own: Any) -> None:
    """A copy can be made after derivatives too: GPT-NeoX's bridge would keep a pattern of the pass, with its graph."""
    with torch.inference_mode():
        model = own(family)
    sl.jacobian_norms(model, IDS)
    expected, other = bound(model), copy.deepcopy(model)
    np.testing.assert_array_equal(bound(other), expected)
    assert said(other) == "verified as it stands", (
        "a copy starts without what was verified of the other"
    )
    assert said(model) == "verified"


def test_a_setting_that_is_put_back_brings_back_what_was_verified(own: Any) -> None:
    model = own("mistral")
    assert said(model) == "verified"
    with sl.hooks.lift_windows(model):
        assert said(model) == "verified as it stands"
    assert said(model) == "verified"


def test_a_model_is_freed(own: Any) -> None:
    model = own("llama")
    bound(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


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
            with pytest.raises(InputError):
                call()
    assert said(model) == "verified"


def test_offloaded_weights_are_refused(own: Any) -> None:
    model = own("llama")
    layer = model.blocks[0].mlp.out.original_component
    layer.weight = torch.nn.Parameter(layer.weight.to("meta"))
    with pytest.raises(InputError):
        bound(model)


@pytest.mark.parametrize("measure", [sl.path_bound, sl.jacobian_norms])
@pytest.mark.parametrize("write", ["optimiser", "whole weights", "another parameter"])
def test_what_a_hook_writes_to_is_refused(write: str, measure: Any, own: Any) -> None:
    """At the first call too, when nothing was verified of the model that it leaves; also weights of earlier blocks."""
    model = own("llama")

    def edit(stream: torch.Tensor, hook: Any) -> None:
        ACCIDENTS[write](model)

    changed = pytest.raises(BusyModelError)
    with model.hooks(fwd_hooks=[("blocks.2.hook_resid_pre", edit)]), changed:
        measure(model, IDS)


def test_another_thread_is_told_to_wait_and_disturbs_nothing(own: Any) -> None:
    """A click on a map in a notebook measures in a thread of its own."""
    model = own("llama")
    expected, errors = bound(model), []
    with ThreadPoolExecutor(1) as pool:

        def measure_there(stream: torch.Tensor, hook: Any) -> None:
            errors.append(pool.submit(bound, model).exception(timeout=30))

        with model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", measure_there)]):
            np.testing.assert_array_equal(bound(model), expected)
        assert {type(error) for error in errors} == {BusyModelError}
        np.testing.assert_array_equal(pool.submit(bound, model).result(), expected)


def test_a_call_that_fails_leaves_the_model_as_it_was(own: Any) -> None:
    model = own("llama")

    def fail(stream: torch.Tensor, hook: Any) -> None:
        raise KeyError("mine")

    expected = bound(model)
    with (
        model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", fail)]),
        pytest.raises(KeyError),
    ):
        bound(model)
    assert bound(model).identical(expected)


@pytest.mark.slow
def test_a_folder_has_one_fingerprint_in_every_process(
    folder_of: Any, tmp_path: Path
) -> None:
    folder = folder_of("gemma3")
    program = (
        "import squashlens as sl; from squashlens.model.proof import fingerprint_of;"
        f"print(fingerprint_of(sl.load({folder.name!r})))"
    )
    (tmp_path / folder.name).symlink_to(folder)  # another path, and a relative one
    there = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert there.stdout.split()[-1:] == [fingerprint_of(sl.load(folder))], there.stderr


@pytest.mark.parametrize(
    "shape", [(640, 2048), (1500, 1025), (2048, 640), (7, 3), (5,), ()]
)
def test_every_row_and_column_of_a_weight_is_read(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    read = _some_entries(torch.arange(size).reshape(shape))
    assert len(read) <= 2 * 2048
    if len(shape) == 2:
        assert len(torch.unique(read // shape[1])) == shape[0]
        assert len(torch.unique(read % shape[1])) == shape[1]
