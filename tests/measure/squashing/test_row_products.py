"""Bounds of models of all families with the kernel for row products, run on the CPU, beside blocks of rows."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig

import squashlens as sl
from squashlens.engine.running.streamed import streamed
from squashlens.theory import row_products
from squashlens.theory.attention import Attention
from tests import cases
from tests.theory import triton_on_cpu

FAMILIES = cases.CONFIGS | cases.MORE | cases.OTHERS | {
    "gpt_oss": GptOssConfig(**cases.COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=5)
}  # fmt: skip
WITH_PATTERNS = ("bloom", "mpt", "falcon", "falcon_alibi")  # position biases, and masks of their own: no `Attention`
IDS = [2, 7, 9, 7, 13, 8, 21, 30, 7, 11, 12, 14]


@pytest.fixture(scope="module", params=triton_on_cpu.WAYS)
def kernel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module of the kernel, run by the stand-in or by Triton's interpreter."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield triton_on_cpu.kernel(request.param, monkeypatch)


@pytest.fixture(scope="module")
def model_of(bridge_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    @cache
    def model(name: str) -> Any:
        if name in cases.CONFIGS | cases.MORE:
            return bridge_of(name)
        folder = cases.save_random(copy.deepcopy(FAMILIES[name]), tmp_path_factory.mktemp(name))
        return sl.load(folder, device="cpu", progress=False)

    return model


ALWAYS = ("gpt_oss", "bloom")  # with sinks, and with patterns


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "name",
    FAMILIES if triton_on_cpu.INTERPRETED else [*ALWAYS, *cases.few(name for name in FAMILIES if name not in ALWAYS)],
)
def test_families(name: str, kernel: Any, model_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the public calls: bounds with the kernel equal those with blocks, and the provenance says which."""
    model = model_of(name)
    calls = {
        "path_bound": lambda: sl.path_bound(model, IDS, bos="as-given"),
        "composition": lambda: sl.paths.composition(model, IDS, bos="as-given"),
        "hops": lambda: sl.paths.hops(model, IDS, bos="as-given"),
    }
    plain = {call: calls[call]() for call in calls}
    used: list[Attention] = []

    def counted(one: Attention, rows: Tensor, within: slice) -> Tensor:
        used.append(one)
        return kernel.pushed_by_head(one, rows, within)

    monkeypatch.setattr(row_products, "DEVICES", ("cpu",))
    monkeypatch.setattr(row_products, "_imported", lambda: counted)
    monkeypatch.setattr(row_products, "_agrees", lambda *_: True)  # `test_row_products.py` tests it
    for call, expected in plain.items():
        used.clear()
        found = calls[call]()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)
        told = sl.results.provenance(found)["attention_implementation"]
        if name in WITH_PATTERNS:
            assert not used
            assert "kernel" not in told
        else:
            assert len(used) == 3
            assert told == "streamed, row products by a Triton kernel"
    if name in WITH_PATTERNS:
        return
    seen: dict[int, Attention] = {}
    with torch.no_grad(), streamed(model, seen.__setitem__):
        model(torch.tensor([IDS]), use_cache=False)
    for one in seen.values():
        triton_on_cpu.compared(kernel, one, 2, slice(0, len(IDS)))


def test_the_provenance_says_in_how_many_blocks(bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three blocks have a window, for which this kernel was found wrong."""
    monkeypatch.setattr(row_products, "DEVICES", ("cpu",))
    monkeypatch.setattr(row_products, "_imported", lambda: lambda one, *rows: one.pushed_in_blocks(*rows))
    monkeypatch.setattr(row_products, "_agrees", lambda *kind: not kind[-2])
    told = sl.results.provenance(sl.path_bound(bridge_of("gemma2"), IDS, bos="as-given"))["attention_implementation"]
    assert told == "streamed, row products by a Triton kernel in 1 of 3 blocks"
