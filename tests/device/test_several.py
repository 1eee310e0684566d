"""A model that accelerate spreads over two pretended devices: the CPU's numbers, or a refusal that says what to do."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError, ModelAccessError
from tests.device import calls
from tests.device.test_pretended import hooked, require_equal
from tests.golden import cases

BOTH = {"lazy:0", "lazy:1"}
# What the default run takes: each passes something between blocks in a way of its own. The others are slow.
DEFAULT = ("capture", "jacobian", "squash_map")
DEFAULT_HOOKS = ("mean_residual",)
# These load the model themselves, onto one device, as the runs of `precision` do, or run none.
ELSEWHERE = ("load", "Study", "report", "synthetic.")
CALLS = {name: made for name, made in (calls.SPEAKING | calls.CALLS).items() if not name.startswith(ELSEWHERE)}
REFUSED = {"path_bound": ("attention", "analytic", "local", "exact", "grouped")}


def spread(ends: str = "lazy:1") -> dict[str, str]:
    """The first three blocks of the bundled model and the tied embeddings on one device, the others on another."""
    first = dict.fromkeys(("model.embed_tokens", "lm_head", "model.rotary_emb"), "lazy:0")
    return first | {"model.norm": ends} | {f"model.layers.{block}": f"lazy:{block // 3}" for block in range(6)}


@pytest.fixture(scope="module")
def subjects(tiny: Any) -> tuple[cases.Subject, cases.Subject]:
    model = sl.load("tiny-gemma", device=spread(), progress=False)
    assert {str(parameter.device) for parameter in model.parameters()} == BOTH
    return cases.Subject("tiny-gemma", tiny, "tiny-gemma"), cases.Subject("tiny-gemma", model, "tiny-gemma")


def params(names: Any, default: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, id=name, marks=[pytest.mark.slow] * (name not in default)) for name in names]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", params(CALLS, DEFAULT))
def test_the_numbers_are_the_cpus(name: str, subjects: Any, tmp_path: Path) -> None:
    for call, function in CALLS[name].items():
        if call in REFUSED.get(name, ()):
            continue
        results = []
        for place, subject in enumerate(subjects):
            folder = tmp_path / f"{call} {place}"
            folder.mkdir()
            results.append(function(subject, folder))
        require_equal(f"{name} {call}", *results)


@pytest.mark.slow
@pytest.mark.parametrize("name", params(calls.HOOKS, DEFAULT_HOOKS))
def test_hooks_compute_what_they_do_on_the_cpu(name: str, subjects: Any) -> None:
    if name == "constant_gate":  # which the bundled model refuses wherever it is
        with pytest.raises(InputError, match="has no gate"):
            hooked(subjects[1], calls.HOOKS[name])
        return
    require_equal(name, *map(functools.partial(hooked, hook=calls.HOOKS[name]), subjects))


@pytest.mark.few(3)
@pytest.mark.parametrize("call", REFUSED["path_bound"])
def test_what_is_not_supported_is_refused(call: str, subjects: Any, tmp_path: Path) -> None:
    said = r"The weights are on lazy:0, lazy:1, and a certified bound needs all of them on one device\. Load the model"
    with pytest.raises(InputError, match=said):
        calls.CALLS["path_bound"][call](subjects[1], tmp_path)


CERTIFIED: dict[str, Callable[[Any], Any]] = {
    "profile": lambda s: sl.profile(s.model, [s.short], certified=True, n_random_models=0, progress=False),
    "squash_map": lambda s: sl.squash_map(s.model, [s.short], certified=True, progress=False),
    "needle": lambda s: sl.needle(s.model, [s.short], [2], [("a", 1)], certified=True, bos="as-given", progress=False),
    "audit": lambda s: sl.audit(s.model, [s.short[:3]], estimates=["attention edges"], bos="as-given", progress=False),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", params(CERTIFIED, ("profile", "needle")))
def test_certificates_of_other_measurements_are_refused(name: str, subjects: Any) -> None:
    with pytest.raises(InputError, match="needs all of them on one device"):
        CERTIFIED[name](subjects[1])


@pytest.mark.slow
def test_blocks_that_go_back_to_the_first_device(tiny: Any) -> None:
    model = sl.load("tiny-gemma", device=spread("lazy:0") | {"model.layers.5": "lazy:0"}, progress=False)
    ids = [[2, 7, 9, 7, 13]]
    require_equal("bound", *(sl.path_bound(m, ids) for m in (tiny, model)))


@pytest.mark.few(3)
@pytest.mark.parametrize("norm", ["spectral", "frobenius"])
@pytest.mark.parametrize("under", ["nothing", "a hook"])
def test_cotangents_stand_on_the_device_of_the_output(norm: Any, under: str, subjects: Any) -> None:
    """Block by block, and on the whole graph, which a standing hook needs: the output is not where the input is."""
    found = []
    for subject in subjects:
        hooks = [] if under == "nothing" else [("blocks.4.hook_resid_pre", lambda tensor: 2 * tensor)]
        with sl.applied(subject.model, *hooks):
            found.append(sl.jacobian_norms(subject.model, [subject.short], norm=norm, progress=False))
    by_block = sl.results.provenance(found[1])["attention_implementation"] == "streamed, block by block"
    assert by_block is (under == "nothing")
    require_equal("cotangents", *found)


def test_a_part_left_on_the_cpu_is_offloaded_and_refused() -> None:
    with pytest.raises(ModelAccessError, match="is offloaded.*Give a device= that holds them all"):
        sl.load("tiny-gemma", device=spread() | {"model.layers.5": "cpu"}, progress=False)
