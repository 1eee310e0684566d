"""The provenance of results on random attention stacks."""

from dataclasses import asdict
from typing import Any

import torch

from squashlens._typing import dtype_name
from squashlens.records.results import versions
from squashlens.synthetic.stacks.stack import Stack


def facts(
    function: str, stack: Stack | None, seeds: list[int], dtype: torch.dtype, device: str, **arguments: Any
) -> dict[str, Any]:
    """The facts for the provenance of a result on a random stack."""
    return {
        "stack": None if stack is None else asdict(stack),
        "seeds": seeds,
        "dtype": dtype_name(dtype),
        "device": device,
        "versions": versions(),
        "call": {"function": function} | arguments,
    }
