"""What is proved holds for exactly what was proved, weights and code; one thread at a time uses a model."""

import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers.activations
from transformers import LlamaConfig
from transformers.models.gemma3 import modeling_gemma3

import squashlens as sl
from squashlens.engine import digests
from squashlens.engine.digests import tensor_digest
from squashlens.engine.hooking.hook import attached
from squashlens.engine.proving import proof, registry
from squashlens.engine.proving.fingerprint import Walk, code_of, fingerprint
from squashlens.errors import BusyModelError, InputError, ModelAccessError, StaleCaptureError, UnsoundModelError
from tests import odd
from tests.cases import COMMON, CONFIGS, MORE, NO_HEAD_DIM, VARIABLE, few, save_random

IDS = torch.tensor([2, 5, 6, 9, 11, 20, 7])


def bound(model: Any) -> Any:
    return sl.path_bound(model, IDS)


def said(model: Any) -> str:
    return sl.results.provenance(bound(model))["proof"]


@pytest.fixture
def own(folder_of: Callable[[str], Path]) -> Callable[..., Any]:
    """A family's model that may be changed."""
    return lambda name, **options: sl.load(folder_of(name), device="cpu", **options)


# -- the fingerprint ------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "values", [{"rms_norm_eps": 0.1}, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}]
)
def test_the_configuration_is_part_of_a_model(values: Any, own: Any, tmp_path: Path) -> None:
    """The same weights with another epsilon or rotary base: captures and journals are refused."""
    one, other = own("llama"), sl.load(save_random(LlamaConfig(**COMMON | values), tmp_path))
    states = one.original_model.state_dict(), other.original_model.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0] if "inv_freq" not in name)
    assert fingerprint(one) != fingerprint(other)
    run = sl.capture(one, IDS)
    with pytest.raises(StaleCaptureError, match="configuration"):
        sl.path_bound(other, run)
    sequence = sl.prompts.build(one, [5, 6, 7, 8])
    options: dict[str, Any] = dict(separator=[9], every=[2], n_placements=5)
    options["resume"] = tmp_path / "journal.json"
    sl.search_separators(one, sequence, **options)
    with pytest.raises(InputError, match="different .*fingerprint"):
        sl.search_separators(other, sequence, **options)


@pytest.mark.slow
def test_a_folder_has_one_fingerprint_in_every_process(folder_of: Any, own: Any, tmp_path: Path) -> None:
    folder = folder_of("gemma3")
    program = (
        "import squashlens as sl; from squashlens.engine.proving.fingerprint import fingerprint;"
        "from squashlens.engine.proving.registry import code_in;"
        f"model = sl.load({folder.name!r}); print(fingerprint(model), code_in(model).digest)"
    )
    (tmp_path / folder.name).symlink_to(folder)  # another path, and a relative one
    there = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    here = own("gemma3")
    assert there.stdout.split()[-2:] == [fingerprint(here), registry.code_in(here).digest], there.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["dynamic", "phi3"])
def test_the_last_pass_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    model = sl.load(save_random(VARIABLE[kind], tmp_path))
    before, verified = fingerprint(model), proof.status(model)
    for length in (50, 3, 20, 9):
        model(torch.arange(length)[None] + 3)
        assert fingerprint(model) == before
        assert proof.status(model) == verified == "verified"
    model(torch.arange(50)[None] + 3)
    registry._known.pop(model)  # everything that was verified
    proof.require_sound(model)  # built anew, the plain model has run nothing
    rotary = rotary_of(model)
    rotary.inv_freq[1] *= 1.01  # which is made again before every pass
    assert fingerprint(model) == before
    rotary.original_inv_freq[1] *= 1.01
    assert fingerprint(model) != before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("entries", [7, 5000])
def test_a_digest_sees_every_entry_and_its_place(
    dtype: torch.dtype, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_REMEMBERED", 0)  # every digest is computed
    x = torch.randn(3, entries, generator=torch.Generator().manual_seed(0)).to(dtype)
    others = [
        -x,
        x.flip(0),
        x.flip(1),
        x.t().contiguous().view(3, -1),
        x.view(-1, 3),
        x.float() if dtype != torch.float32 else x.double(),
    ]
    for a, b in ((0, 1), (0, 2), (3, 7 % entries + 1), (0, entries - 1)):
        swapped, flipped = x.clone(), x.clone()
        swapped[1, [a, b]] = x[1, [b, a]]
        flipped[1, [a, b]] *= -1  # in float64 the top bits of two words
        others += [swapped, flipped]
    found = [tensor_digest(other) for other in (x, *others)]
    assert len(set(found)) == len(found)
    assert tensor_digest(x.clone()) == found[0]
    assert tensor_digest(torch.cat([x[:1], x])[1:]) == found[0]  # a view that starts elsewhere


# -- proofs lapse with what was proved ------------------------------------------------------------------------------


def test_one_of_two_copies_of_a_weight(own: Any) -> None:
    """The bridge of GPT-NeoX holds q, k, v beside the fused weight; the plain model has only that."""
    model = own("neox")
    with torch.no_grad():
        model.blocks[0].attn.q.weight[0] += 5
    with pytest.raises(UnsoundModelError, match="is off by"):
        bound(model)


def rotary_of(model: Any) -> Any:
    return next(m for m in model.original_model.modules() if "inv_freq" in m._buffers)


def double_the_output(model: Any) -> None:
    mlp = model.original_model.model.layers[0].mlp.down_proj._modules["_original_component"]
    before = mlp.forward
    mlp.forward = lambda x: before(x) * 2


def double_the_epsilon(model: Any) -> None:
    model.blocks[1].ln1.original_component.variance_epsilon *= 2  # less than twelve tokens show


def change_a_class(model: Any) -> None:
    """Another class may do the same to a short prompt and something else to a long one."""
    module = next(m for m in model.original_model.modules() if type(m).__name__ == "LlamaRMSNorm")
    module.__class__ = type("Other", (type(module),), {})


BREAKS: dict[str, Callable[[Any], Any]] = {
    "epsilon": double_the_epsilon,
    "half": lambda model: model.half(),  # rotary frequencies too
    "frequencies": lambda model: rotary_of(model).inv_freq.data[0].mul_(2),
    "forward": double_the_output,
    "rotary base": lambda model: model.original_model.config.rope_parameters.update(rope_theta=50.0),
    "NaN": lambda model: model.blocks[1].mlp.out.weight.data[0, 0].fill_(float("nan")),
    "class": change_a_class,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("change", BREAKS)
def test_a_change_that_parts_bridge_and_plain_model_is_refused(change: str, own: Any) -> None:
    model = own("llama")
    before = fingerprint(model)
    BREAKS[change](model)
    assert fingerprint(model) != before
    assert proof.status(model) == "unverified"
    wrong, said = (ModelAccessError, "NaN or infinite") if change == "NaN" else (UnsoundModelError, None)
    with pytest.raises(wrong, match=said):
        bound(model)
    assert proof.status(model) == "unverified"


def test_an_edit_of_weights_is_proved_again(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, proofs = own("llama"), []
    honest = proof.rebuild_plain
    monkeypatch.setattr(proof, "rebuild_plain", lambda m: proofs.append(1) or honest(m))
    bound(model)
    assert not proofs
    model.blocks[0].mlp.out.weight.detach().numpy().__imul__(1.5)  # which PyTorch does not notice
    assert proof.status(model) == "unverified"
    assert said(model) == said(model) == "verified as it stands"
    assert len(proofs) == 1


def test_accepting_an_unverified_model_lapses(tmp_path: Path) -> None:
    from transformers import StableLmConfig

    model = sl.load(save_random(StableLmConfig(**NO_HEAD_DIM), tmp_path), verify=False)
    assert said(model) == "unverified"
    with torch.no_grad():
        model.blocks[0].attn.q.weight[0] += 1
    with pytest.raises(UnsoundModelError):
        bound(model)
    proof.accept_unverified(model)
    assert said(model) == "unverified"


def test_autocast_is_refused(own: Any) -> None:
    model = own("llama")
    with torch.autocast("cpu", torch.bfloat16):
        for call in (lambda: bound(model), lambda: sl.applied(model, sl.hooks.freeze_attention()).__enter__()):
            with pytest.raises(InputError, match="Autocast"):
                call()
    assert said(model) == "verified"


def test_an_entry_changed_past_pytorch_by_a_hook_is_refused(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch counts no write, and the entry is not among those that are sampled."""
    model = own("llama")
    monkeypatch.setattr(digests, "SAMPLED", 4)

    def write(tensor: torch.Tensor) -> None:
        model.blocks[2].mlp.out.weight.detach().numpy()[0, 1] += 1

    with (
        attached(model, sl.hooks.Hook("write", "blocks.0.hook_resid_pre", write)),
        pytest.raises(BusyModelError, match="changed during a measurement"),
    ):
        bound(model)


# -- threads --------------------------------------------------------------------------------------------------------


def test_every_public_function_holds_the_model() -> None:
    """Those that run it also see that it is not changed; `applied` has a test below, `lifted_windows` changes it."""
    functions = {name: one for name, one in odd.public().items() if inspect.isfunction(one)}
    run = {name: one for name, one in functions.items() if "model" in inspect.signature(one).parameters}
    assert len(run) > 30
    assert [name for name, function in run.items() if not hasattr(function, "__within__")] == [
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


# -- the code of a forward pass ------------------------------------------------------------------------------------


REPLACED: dict[str, tuple[str, Any, str]] = {
    "activation": ("gemma3", transformers.activations.GELUTanh, "forward"),
    "norm": ("gemma3", modeling_gemma3.Gemma3RMSNorm, "forward"),
    "softmax": ("llama", F, "softmax"),
    "silu": ("llama", F, "silu"),
    "a module of PyTorch": ("llama", torch.nn.Linear, "forward"),
    "a method of tensors": ("llama", torch.Tensor, "pow"),
}


def slightly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with other numbers."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return tuple(one * 1.01 for one in found) if isinstance(found, tuple) else found * 1.01

    return replaced


DAILY = ("norm", "softmax", "a module of PyTorch")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DAILY else pytest.mark.slow) for n in REPLACED])
def test_a_capture_does_not_outlive_a_replaced_function(
    name: str, bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both directions, and a function that is put back makes it valid again."""
    family, where, attribute = REPLACED[name]
    model = bridge_of(family)
    before, digest = sl.capture(model, IDS), registry.code_in(model).digest
    plain = sl.path_bound(model, before)
    with monkeypatch.context() as patch:
        patch.setattr(where, attribute, slightly(getattr(where, attribute)))
        changed = code_of(Walk.over(model))
        assert changed.digest != digest
        assert any(attribute in one and "slightly" in one for one in changed.replaced)
        if sl.capture(model, IDS).digest == before.digest:
            pytest.skip("this family does not call it")
        with pytest.raises(StaleCaptureError, match="other activations"):
            sl.path_bound(model, before)
        under = sl.capture(model, IDS)
        assert sl.results.provenance(sl.path_bound(model, under))["replaced_functions"]
    if not isinstance(where, type(torch)) or attribute in vars(where):
        with pytest.raises(StaleCaptureError, match="other activations"):
            sl.path_bound(model, under)
        assert sl.path_bound(model, before).identical(plain)


def test_a_function_with_the_same_results_leaves_a_capture_valid(
    bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that counts calls: one pass shows that the numbers are the same."""
    model, calls = bridge_of("llama"), []
    held, silu = sl.capture(model, IDS), F.silu
    plain = sl.path_bound(model, held)
    monkeypatch.setattr(F, "silu", lambda *args, **kwargs: (calls.append(1), silu(*args, **kwargs))[1])
    assert sl.path_bound(model, held).equals(plain)
    assert calls


@pytest.mark.parametrize("family", few([*CONFIGS, *MORE]))
def test_libraries_as_they_are_have_nothing_replaced(family: str, bridge_of: Any) -> None:
    assert code_of(Walk.over(bridge_of(family))).replaced == ()
