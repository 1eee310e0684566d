"""How often the host waits for the device does not depend on the number of blocks, of rows at a time, or of cotangents.

A device computes while the host prepares the next operations. Each time that the host reads a number from it, it has
to finish all that it was given, and is idle until the host has prepared more.
"""

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import UnsoundModelError
from squashlens.run.derivatives import spans
from squashlens.run.derivatives.exact import Jittered
from tests import cases
from tests.device import pretended
from tests.references import run_of

DEVICE, BLOCKS = "lazy:0", (2, 4)
IDS = [[2, 7, 9, 7, 13, 8, 21, 30, 7, 11, 12, 14]]
FAMILIES = cases.CONFIGS | cases.MORE | cases.OTHERS
DEFAULT = "gemma2"  # windows in every other block, capped logits, and norms behind the branches too
WRITTEN = "bloom"  # its attention is computed with patterns, in which its position encoding is
DAILY = [
    (DEFAULT, "path_bound"),
    (DEFAULT, "spectral norms"),
    (DEFAULT, "collapse with two passes"),
    (WRITTEN, "path_bound"),
]


def sequence(model: Any, content: list[int]) -> sl.prompts.GrowingSequence:
    return sl.prompts.build(model, content, prefix=[2, 5, 14], alphabet=[7, 8])


CALLS: dict[str, Callable[[Any], Any]] = {
    "path_bound": lambda m: sl.path_bound(m, IDS),
    "path_bound of an early query": lambda m: sl.path_bound(
        m, IDS, query=3, to_layer=[1, 2]
    ),
    "hops": lambda m: sl.attention_paths.hops(m, IDS),
    "spectral norms": lambda m: sl.jacobian_norms(m, IDS, vjp_batch_size=4),
    "sketch": lambda m: sl.jacobian_norms(
        m, IDS, norm="frobenius", method="sketch", n_probes=4
    ),
    "profile without norms": lambda m: sl.token_influence(m, IDS),
    "profile with spectral norms": lambda m: sl.token_influence(
        m, IDS, queries=[5, -1], method="auto", norm="spectral"
    ),
    "profile with Frobenius norms": lambda m: sl.token_influence(
        m, IDS, queries=[-1], method="auto", norm="frobenius"
    ),
    "collapse with one pass": lambda m: sl.collapse(m, sequence(m, [7] * 6)),
    "collapse with two passes": lambda m: sl.collapse(
        m, sequence(m, [7, 8, 7, 7, 8, 7])
    ),
}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Any]:
    @cache
    def loaded(family: str, blocks: int) -> Any:
        config = copy.deepcopy(FAMILIES[family])
        config.num_hidden_layers = blocks
        if getattr(config, "layer_types", None):
            kinds = cases.SLIDING[:2] if config.sliding_window else ["full_attention"]
            config.layer_types = (kinds * blocks)[:blocks]
        folder = cases.save_random(
            config, tmp_path_factory.mktemp("blocks") / f"{family} {blocks}"
        )
        return sl.load(folder, device=DEVICE)

    return loaded


def waited(model: Any, call: Callable[[Any], Any]) -> Counter[str]:
    """Each line of squashlens where the host waits, with the number of times, once everything is proved."""
    call(model)
    with pretended.round_trips() as seen:
        call(model)
    assert seen, "the result has to come to the CPU"
    return Counter(seen)


@pytest.mark.parametrize(
    ("family", "call"),
    [
        pytest.param(
            family, call, marks=[pytest.mark.slow] * ((family, call) not in DAILY)
        )
        for family in (DEFAULT, WRITTEN)
        for call in CALLS
    ],
)
def test_more_blocks_take_no_more_round_trips(
    family: str, call: str, model_of: Any
) -> None:
    few, many = (waited(model_of(family, blocks), CALLS[call]) for blocks in BLOCKS)
    assert many == few


@pytest.mark.few(1)
@pytest.mark.parametrize("norm", ["spectral", "frobenius"])
def test_more_batches_of_cotangents_take_no_more(norm: Any, model_of: Any) -> None:
    model = model_of(DEFAULT, 2)
    one, many = (
        waited(
            model,
            lambda m, size=size: sl.jacobian_norms(
                m, IDS, norm=norm, vjp_batch_size=size
            ),
        )
        for size in (16, 2)
    )
    assert many == one


def test_derivatives_that_are_not_finite(model_of: Any) -> None:
    x = torch.tensor([0.0, 1.0]).to(DEVICE).requires_grad_()
    with pytest.raises(UnsoundModelError):
        list(
            spans.vjps(
                run_of(model_of(DEFAULT, 2)), x.sqrt(), [x], torch.eye(2).to(DEVICE), 1
            )
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["jacobian_norms", "token_influence"])
def test_later_tokens_on_a_device(name: str, model_of: Any) -> None:
    options = (
        {"queries": [2], "layers": [0]} if name == "token_influence" else {"query": 2}
    )
    leak = ("blocks.1.hook_resid_pre", lambda tensor: tensor + tensor[:, -1:])
    with (
        sl.applied(model_of(DEFAULT, 2), leak) as model,
        pytest.raises(UnsoundModelError),
    ):
        getattr(sl, name)(model, IDS, **options)


@pytest.mark.parametrize(
    "measure", [sl.path_bound, sl.jacobian_norms, sl.knockout_effect]
)
def test_a_pass_with_nan_is_an_error_though_nobody_waits_for_it(
    measure: Any, model_of: Any
) -> None:
    """Also where NaN leads to another error first, and for the prompt whose it is."""
    model, long = model_of("gpt2", 3), [2] + [7] * 44
    model.pos_embed.weight.data[40] = 3e38  # whose mean is infinite
    measure(model, IDS)
    with pytest.raises(UnsoundModelError):
        measure(model, long)
    with pytest.raises(UnsoundModelError):
        measure(model, [IDS[0], long])


def test_the_size_of_rounding_is_that_of_the_cpu() -> None:
    """Every result is moved by the same random numbers, on a device too."""
    x = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)
    found = []
    for place in (x, x.to(DEVICE)):
        with Jittered(place.device):
            moved = place.exp()
        assert not torch.equal(moved.cpu(), x.exp())
        found.append(moved.cpu())
    assert torch.equal(*found)
