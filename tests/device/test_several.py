"""A model that accelerate spreads over two pretended devices: its recorded numbers, or a refusal that helps."""

from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError, ModelAccessError
from tests import measurements
from tests.device.test_pretended import require_equal
from tests.golden.test_golden import recorded, require_as_recorded

DEFAULT = ("capture",)  # the others are slow
# Certified bounds are refused; `synthetic` has no model.
REFUSED = ("certified_bound",)
CASES = [
    name
    for name in measurements.MEASUREMENTS
    if "tiny-gemma" in recorded(name) and name != "synthetic"
]


def spread(ends: str = "lazy:1") -> dict[str, str]:
    """The first three blocks of the bundled model and the tied embeddings on one device, the others on another."""
    first = dict.fromkeys(
        ("model.embed_tokens", "lm_head", "model.rotary_emb"), "lazy:0"
    )
    return (
        first
        | {"model.norm": ends}
        | {f"model.layers.{block}": f"lazy:{block // 3}" for block in range(6)}
    )


@pytest.fixture(scope="module")
def subject() -> measurements.Subject:
    model = sl.load("tiny-gemma", device=spread())
    assert {str(parameter.device) for parameter in model.parameters()} == {
        "lazy:0",
        "lazy:1",
    }
    return measurements.bundled(model)


@pytest.mark.parametrize(
    "name",
    [c if c in DEFAULT else pytest.param(c, marks=pytest.mark.slow) for c in CASES],
)
def test_the_numbers_are_those_on_record(
    name: str, subject: measurements.Subject
) -> None:
    if name in REFUSED:
        assert {result for _, result in measurements.calls(subject, name)} == {
            "InputError"
        }
    else:
        require_as_recorded(subject, name)


def test_certificates_are_refused(subject: measurements.Subject) -> None:
    with pytest.raises(InputError):
        sl.certified_bound(subject.model, [subject.short])


def test_cotangents_are_on_the_device_of_the_output(
    tiny: Any, subject: measurements.Subject
) -> None:
    """On the whole graph, which a hook needs: the output is not where the input is."""
    double = ("blocks.4.hook_resid_pre", lambda tensor: 2 * tensor)
    found: list[Any] = []
    for model in (tiny, subject.model):
        with sl.applied(model, double):
            found.append(sl.jacobian_norms(model, [subject.short]))
    require_equal(*found)


def test_a_part_left_on_the_cpu_is_offloaded_and_refused() -> None:
    with pytest.raises(ModelAccessError):
        sl.load("tiny-gemma", device=spread() | {"model.layers.5": "cpu"})
