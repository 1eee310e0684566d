"""What is proved holds for exactly what was proved; one thread at a time uses a model."""

import copy
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config

import squashlens as sl
from squashlens.engine import digests, locks
from squashlens.engine.digests import tensor_digest
from squashlens.engine.hooking.hook import attached
from squashlens.engine.proving import proof, registry
from squashlens.engine.proving.fingerprint import fingerprint
from squashlens.errors import BusyModelError, InputError, ModelAccessError, StaleCaptureError, UnsoundModelError
from tests import captured
from tests.cases import COMMON, CONFIGS, NO_HEAD_DIM, save_random

IDS = torch.tensor([2, 5, 6, 9, 11, 20, 7])
DYNAMIC: Any = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG: Any = {
    "rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0], "rope_theta": 10000.0,
    "original_max_position_embeddings": 8, "factor": 8.0,
}  # fmt: skip
SHORT: Any = COMMON | {"max_position_embeddings": 8}
LENGTHS: dict[str, Any] = {
    "dynamic": LlamaConfig(**SHORT, rope_parameters=DYNAMIC),
    "longrope": Phi3Config(**NO_HEAD_DIM, original_max_position_embeddings=8, rope_parameters=LONG),
}


def bound(model: Any) -> Any:
    return sl.path_bound(model, IDS, bos="as-given")


def said(model: Any) -> str:
    return sl.results.provenance(bound(model))["proof"]


@pytest.fixture
def own(folder_of: Callable[[str], Path]) -> Callable[..., Any]:
    """A family's model that may be changed."""
    return lambda name, **options: sl.load(folder_of(name), device="cpu", progress=False, **options)


def changed(config: Any, **values: Any) -> Any:
    other = copy.deepcopy(config)
    for name, value in values.items():
        setattr(other, name, value)
    return other


# -- the fingerprint ------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "values", [{"rms_norm_eps": 0.1}, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}]
)
def test_the_configuration_is_part_of_a_model(values: Any, own: Any, tmp_path: Path) -> None:
    """The same weights with another epsilon or rotary base: captures and journals are refused."""
    one, other = own("llama"), sl.load(save_random(changed(CONFIGS["llama"], **values), tmp_path), progress=False)
    states = one.original_model.state_dict(), other.original_model.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0] if "inv_freq" not in name)
    assert fingerprint(one) != fingerprint(other)
    run = sl.capture(one, IDS, bos="as-given")
    with pytest.raises(StaleCaptureError, match="configuration"):
        sl.path_bound(other, run)
    sequence = sl.prompts.build(one, [5, 6, 7, 8], bos="as-given")
    options: dict[str, Any] = dict(separator=[9], every=[2], n_placements=5, progress=False)
    options["resume"] = tmp_path / "journal.json"
    sl.search_separators(one, sequence, **options)
    with pytest.raises(InputError, match="different .*fingerprint"):
        sl.search_separators(other, sequence, **options)


@pytest.mark.slow
def test_a_folder_has_one_fingerprint_in_every_process(folder_of: Any, own: Any, tmp_path: Path) -> None:
    folder = folder_of("gemma3")
    program = (
        f"import squashlens as sl; from squashlens.engine.proving.fingerprint import fingerprint;"
        f"print(fingerprint(sl.load({folder.name!r}, progress=False)))"
    )
    (tmp_path / folder.name).symlink_to(folder)  # another path, and a relative one
    there = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert there.stdout.split()[-1:] == [fingerprint(own("gemma3"))], there.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", LENGTHS)
def test_the_last_pass_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    model = sl.load(save_random(LENGTHS[kind], tmp_path), progress=False)
    before, verified = fingerprint(model), proof.status(model)
    for length in (30, 3, 12, 9):
        model(torch.arange(length)[None] + 3)
        assert fingerprint(model) == before
        assert proof.status(model) == verified == "verified"
    model(torch.arange(30)[None] + 3)
    registry.forget(model)
    proof.require_sound(model)  # built anew, the plain model has run nothing
    rotary: Any = next(m for m in model.original_model.modules() if "inv_freq" in m._buffers)
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
    before = bound(model)
    weight = model.blocks[0].attn.q.weight
    with torch.no_grad():
        weight[0] += 5
    with pytest.raises(UnsoundModelError, match="is off by"):
        bound(model)
    with torch.no_grad():
        weight[0] -= 5
        weight.copy_(own("neox").blocks[0].attn.q.weight)
    assert proof.status(model) == "verified"  # it is again what was proved
    assert bound(model).equals(before)


def shift_frequencies(model: Any) -> None:
    rotary: Any = next(m for m in model.original_model.modules() if "inv_freq" in m._buffers)
    rotary.inv_freq.data[0] *= 2


def replace_forward(model: Any) -> None:
    mlp = model.original_model.model.layers[0].mlp.down_proj._modules["_original_component"]
    before = mlp.forward
    mlp.forward = lambda x: before(x) * 2


def set_scaling(model: Any) -> None:
    model.blocks[1].attn.original_component.scaling = 0.1


def set_epsilon(model: Any) -> None:
    model.blocks[1].ln1.original_component.variance_epsilon = 0.3


def set_theta(model: Any) -> None:
    model.original_model.config.rope_parameters["rope_theta"] = 50.0


def write_nan(model: Any) -> None:
    model.blocks[1].mlp.out.weight.data[0, 0] = float("nan")


def switch_adapter(model: Any) -> None:
    class Adapter(torch.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base_layer, self.lora = base, torch.nn.Linear(base.in_features, base.out_features)

        def forward(self, x: Any) -> Any:
            return self.base_layer(x) + self.lora(x)

    mlp = model.original_model.model.layers[0].mlp.down_proj
    mlp._modules["_original_component"] = Adapter(mlp._modules["_original_component"]).eval()


def set_epsilon_a_little(model: Any) -> None:
    model.blocks[1].ln1.original_component.variance_epsilon *= 2  # less than twelve tokens show


def to_half(model: Any) -> None:
    model.half()  # rotary frequencies too


BREAKS = [
    set_epsilon_a_little, to_half, shift_frequencies, replace_forward, set_scaling, set_epsilon, set_theta, write_nan,
    switch_adapter,
]  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("change", BREAKS)
def test_a_change_that_parts_bridge_and_plain_model_is_refused(change: Callable[[Any], None], own: Any) -> None:
    model = own("llama")
    before = fingerprint(model)
    change(model)
    assert fingerprint(model) != before
    assert proof.status(model) == "unverified"
    wrong, said = (ModelAccessError, "NaN or infinite") if change is write_nan else (UnsoundModelError, None)
    with pytest.raises(wrong, match=said):
        bound(model)
    assert proof.status(model) == "unverified"


def through_data(model: Any) -> None:
    model.blocks[0].mlp.out.weight.data[...] *= 1.5


def through_numpy(model: Any) -> None:
    model.blocks[0].mlp.out.weight.detach().numpy()[0, 0] += 1


def swap_heads(model: Any) -> None:
    weight = model.blocks[0].attn.q.weight.data
    weight[:] = torch.cat([weight[4:8], weight[:4], weight[8:]])


@pytest.mark.few(1)
@pytest.mark.parametrize("change", [through_data, through_numpy, swap_heads])
def test_an_edit_of_weights_is_proved_again(
    change: Callable[[Any], None], own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, proofs = own("llama"), []
    honest = proof.rebuild_plain
    monkeypatch.setattr(proof, "rebuild_plain", lambda m: proofs.append(1) or honest(m))
    bound(model)
    assert not proofs
    version = [p._version for p in model.parameters()]
    change(model)
    if change is through_numpy:
        assert version == [p._version for p in model.parameters()]  # which PyTorch does not notice
    assert proof.status(model) == "unverified"
    assert said(model) == said(model) == "verified as it stands"
    assert len(proofs) == 1


def test_accepting_an_unverified_model_lapses(tmp_path: Path) -> None:
    from transformers import StableLmConfig

    model = sl.load(save_random(StableLmConfig(**NO_HEAD_DIM), tmp_path), verify=False, progress=False)
    assert said(model) == "unverified"
    with torch.no_grad():
        model.blocks[0].attn.q.weight[0] += 1
    with pytest.raises(UnsoundModelError):
        bound(model)
    proof.accept_unverified(model)
    assert said(model) == "unverified"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["tiny", "gemma2", "longrope"])
def test_ordinary_use_proves_once(
    family: str, tiny: Any, own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "longrope":
        model = sl.load(save_random(LENGTHS[family], tmp_path), progress=False)
    else:
        model = tiny if family == "tiny" else own(family)
    ids = IDS + 3
    sequence = sl.prompts.build(model, [5, 6, 7, 8] * 3, bos="as-given")
    calls: list[Callable[[], Any]] = [
        lambda: sl.path_bound(model, ids, bos="as-given"),
        lambda: sl.path_bound(model, ids, bos="as-given", constants="measured", progress=False),
        lambda: sl.jacobian_norms(model, ids, bos="as-given", progress=False),
        lambda: sl.capture(model, ids, bos="as-given"),
        lambda: captured.collapse(model, sequence, lengths=[3, 12], progress=False),
        lambda: captured.mechanism(model, sequence, lengths=[3, 12], progress=False),
        lambda: sl.substitution_effect(model, ids, bos="as-given", candidates=[5, 6], n_replacements=5, progress=False),
        lambda: model.run_with_cache(ids[None]),
    ]  # fmt: skip
    for call in calls:
        call()
    made: list[str] = []
    honest = registry.proved

    def counting(model: Any, what: str, make: Any, *key: Any) -> Any:
        return honest(model, what, lambda: made.append(what) or make(), *key)

    for module in [m for n, m in sys.modules.items() if n.startswith("squashlens.") and hasattr(m, "proved")]:
        monkeypatch.setattr(module, "proved", counting)
    for call in calls:
        call()
    with sl.applied(model, sl.hooks.freeze_attention()):
        calls[0]()
    assert not made


# -- what is refused ------------------------------------------------------------------------------------------------


def test_autocast_is_refused(own: Any) -> None:
    model = own("llama")
    with torch.autocast("cpu", torch.bfloat16):
        for call in (lambda: bound(model), lambda: sl.applied(model, sl.hooks.freeze_attention()).__enter__()):
            with pytest.raises(InputError, match="Autocast"):
                call()
    assert said(model) == "verified"


def test_weights_changed_by_a_hook_are_refused(own: Any) -> None:
    model = own("llama")

    def grow(tensor: torch.Tensor) -> None:
        with torch.no_grad():
            model.blocks[2].mlp.out.weight.mul_(1.001)

    hook = sl.hooks.Hook("grow", "blocks.0.hook_resid_pre", grow)
    with attached(model, hook), pytest.raises(BusyModelError, match="changed during a measurement"):
        bound(model)


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


def test_one_submodule_in_train_mode_is_refused(own: Any) -> None:
    model = own("llama")
    model.original_model.model.layers[1].train()
    with pytest.raises(InputError, match="train mode"):
        bound(model)


# -- threads --------------------------------------------------------------------------------------------------------


def public_functions() -> dict[str, Any]:
    """Every public function that takes a model, by name."""
    found: dict[str, Any] = {}
    for home in (sl, sl.prompts, sl.tasks, sl.zoo, sl.synthetic, sl.figures, sl.statements):
        for name in getattr(home, "__all__", None) or [n for n in vars(home) if not n.startswith("_")]:
            function = getattr(home, name)
            own = str(getattr(function, "__module__", "")).startswith("squashlens")
            if own and inspect.isfunction(function) and "model" in inspect.signature(function).parameters:
                found[f"{home.__name__}.{name}"] = function
    return found


def test_every_public_function_holds_the_model() -> None:
    """Those that run it also see that it is not changed; `applied` has a test of its own below."""
    functions = public_functions()
    assert len(functions) > 30
    without = [name for name, function in functions.items() if not hasattr(function, "__within__")]
    assert sorted(without) == ["squashlens.applied"]


def in_threads(*functions: Callable[[], None]) -> list[BaseException]:
    """Run functions side by side; what they raise."""
    raised: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 30
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return raised


@pytest.mark.slow
def test_two_threads_get_the_numbers_of_one(own: Any) -> None:
    model = own("llama")
    sequence = sl.prompts.build(model, [5, 6, 7, 8], bos="as-given")
    uniform = sl.hooks.uniform_attention()

    def under_a_hook() -> Any:
        with sl.applied(model, uniform):
            first = sl.jacobian_norms(model, IDS, bos="as-given", progress=False)
            return [first, sl.path_bound(model, IDS, bos="as-given")]

    def without() -> Any:
        run = sl.capture(model, IDS, bos="as-given")
        assert not run.ambient_hooks
        found = [sl.jacobian_norms(model, IDS, bos="as-given", freeze="attention", progress=False), bound(model)]
        return [*found, captured.collapse(model, sequence, lengths=[2, 4], progress=False)]

    works = (under_a_hook, without)
    expected = [work() for work in works]

    def repeat(number: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(6):
                for found, truth in zip(works[number](), expected[number], strict=True):
                    assert found.equals(truth)
                    assert (
                        sl.results.provenance(found)["ambient_hooks"] == sl.results.provenance(truth)["ambient_hooks"]
                    )

        return work

    assert not in_threads(repeat(0), repeat(1), repeat(0))


def test_a_thread_waits_until_hooks_are_taken_off(own: Any) -> None:
    model, order = own("llama"), []
    entered = threading.Event()

    def first() -> None:
        try:
            with sl.applied(model, sl.hooks.freeze_attention()):
                entered.set()
                threading.Event().wait(0.2)
                order.append("out")
                raise KeyError
        except KeyError:
            pass

    def second() -> None:
        assert entered.wait(30)
        bound(model)
        order.append("in")

    assert not in_threads(first, second)
    assert order == ["out", "in"]


def test_two_models_in_opposite_order(own: Any) -> None:
    """Threads that wait for each other's model are told so, instead of waiting for ever."""
    one, other = own("llama"), own("qwen2")
    both = threading.Barrier(2, timeout=30)

    def hold(a: Any, b: Any) -> Callable[[], None]:
        def work() -> None:
            with sl.applied(a, sl.hooks.freeze_attention()):
                both.wait()
                bound(b)

        return work

    raised = in_threads(hold(one, other), hold(other, one))
    assert [type(error) for error in raised] == [BusyModelError]
    bound(one)
    bound(other)


def test_a_long_wait_says_what_it_waits_for(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = own("llama")
    monkeypatch.setattr(locks, "WARN_AFTER", 0.05)
    entered, done = threading.Event(), threading.Event()

    def first() -> None:
        with locks.locked(model):
            entered.set()
            assert done.wait(30)

    def second() -> None:
        assert entered.wait(30)
        threading.Timer(0.3, done.set).start()
        with pytest.warns(UserWarning, match="Waiting for another thread"), locks.locked(model):
            pass

    assert not in_threads(first, second)


def test_copies_have_locks_and_proofs_of_their_own(own: Any) -> None:
    model = own("llama")
    with sl.applied(model, sl.hooks.freeze_attention()):
        other = copy.deepcopy(model)

        def elsewhere() -> None:
            other.reset_hooks()
            assert proof.status(other) == "unverified"
            bound(other)

        assert not in_threads(elsewhere)
    assert bound(model).equals(bound(other))


# -- what an attack found ---------------------------------------------------------------------------------------------


def test_a_module_of_another_class_is_refused(own: Any) -> None:
    """It may do the same to a short prompt and something else to a long one."""
    model = own("llama")
    module = next(m for m in model.original_model.modules() if type(m).__name__ == "LlamaRMSNorm")
    module.__class__ = type("Other", (type(module),), {})
    with pytest.raises(UnsoundModelError, match="instead of a LlamaRMSNorm"):
        bound(model)


def test_a_float64_model_is_proved_again_after_an_edit(tmp_path: Path) -> None:
    """Its buffers are float64, and those of the model built anew float32."""
    model = sl.load("tiny-gemma", dtype="float64", device="cpu", progress=False)
    next(iter(model.parameters())).data[0, 0] += 1e-3
    assert sl.results.provenance(sl.path_bound(model, "1101 ="))["proof"] == "verified as it stands"


def test_hooks_on_every_module_are_named(own: Any) -> None:
    model = own("llama")

    def triple(module: Any, given: Any, out: Any) -> Any:
        return out * 3 if type(module).__name__ == "LlamaMLP" else None

    handle = torch.nn.modules.module.register_module_forward_hook(triple)
    try:
        named = sl.results.provenance(sl.jacobian_norms(model, IDS, bos="as-given", progress=False))["ambient_hooks"]
    finally:
        handle.remove()
    assert [name for name in named if name.startswith("every module (torch)") and name.endswith("triple")]
