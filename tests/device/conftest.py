"""The pretended devices, for every test of this folder."""

from collections.abc import Iterator

import pytest
import torch

from squashlens.model import anatomy
from tests.device import pretended


@pytest.fixture(scope="module", autouse=True)
def _pretend() -> Iterator[None]:
    """The device, and its tensors among those that are not quantized."""
    pretended.register()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anatomy, "PLAIN", (*anatomy.PLAIN, pretended.Pretended))
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(
            True
        )  # a weight with two names stays one
        yield
        torch.__future__.set_swap_module_params_on_conversion(before)
