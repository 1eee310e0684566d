"""Run a model entirely in float64: with its stored weights, and with float64 in place of every cast to float32.

Most models compute norms, rotations and the softmax in float32, even if their own dtype is float64. A certificate is
about the exact derivative of a model, so these roundings must not affect it. They can be large: the logit of queries
and keys of length 10³ may be wrong by 10⁻¹, however small the logit itself is. In `in_float64` a cast to float32 gives
float64 instead. Any other function whose result has a lower precision than its input raises an error that names the
function, for example a cast to half precision. `squashlens.hooks.round_activations` rounds on purpose and is allowed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from squashlens._typing import dtype_name
from squashlens.errors import InputError
from squashlens.model.anatomy import quantization
from squashlens.model.memory import require_room
from squashlens.model.snapshot import layout_of
from squashlens.model.wide import Wide
from squashlens.remarks import remark
from squashlens.run.run import Run

CERTIFIES = (
    "the exact derivative of the model with its stored weights and buffers, with the hooks on the model and the "
    "constants they hold, computed in float64 throughout"
)
EXPERTS = "_experts_implementation"
JITTER = 4.0  # units in the last place; correct rounding is within 1/2


class Jittered(TorchFunctionMode):
    """Move every result of a function of PyTorch at random by up to `JITTER` units in its last place, in the body.

    A computation loses digits in its intermediate results, and where these cancel, its final result does not show it.
    Once with this mode and once without, its results differ by several times what rounding did to one of them, wherever
    in forward or backward pass that was. Views and results written in place are left alone. Random numbers are drawn on
    the CPU and moved to the device, so that they are the same on every device.
    """

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        super().__init__()
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch, and move its result unless that has the memory of an argument."""
        result = func(*args, **(kwargs or {}))
        is_number = isinstance(result, Tensor) and result.is_floating_point()
        if not is_number or result.device != self.device:
            return result
        address = result.untyped_storage().data_ptr()
        for argument in args:
            is_tensor = isinstance(argument, Tensor)
            if is_tensor and argument.untyped_storage().data_ptr() == address:
                return result
        units = torch.empty_like(result, device="cpu", requires_grad=False)
        units.uniform_(-JITTER, JITTER, generator=self.generator)
        return result * (1 + torch.finfo(result.dtype).eps * units.to(result.device))


@contextmanager
def in_float64(run: Run) -> Iterator[None]:
    """Run the model in float64 in the body: weights and buffers are widened, and casts replaced (`Wide`).

    Afterwards it is as it was, bit by bit. The tensors are widened in place, because bridges keep references to their
    modules that a copy would share.
    """
    with ExitStack() as stack:
        for tensor in _tensors(run):
            # A tensor that comes a second time is wide by then, so its old data are not lost.
            if tensor.is_floating_point() and tensor.dtype != torch.float64:
                stack.callback(setattr, tensor, "data", tensor.data)
                tensor.data = tensor.data.double()
        for config in layout_of(run.model).configs:
            if hasattr(config, EXPERTS):
                stack.callback(setattr, config, EXPERTS, getattr(config, EXPERTS))
                # The grouped kernels have no float64.
                setattr(config, EXPERTS, "eager")
        with Wide():
            yield


def _tensors(run: Run) -> Iterator[Tensor]:
    """Parameters, buffers, and what modules keep as plain attributes, such as a weight under a second name."""
    yield from run.model.parameters()
    yield from run.model.buffers()
    for module in run.model.modules():
        for value in vars(module).values():
            # Only leaves: a tensor with a graph is a result of a pass.
            if isinstance(value, Tensor) and value.grad_fn is None:
                yield value


def require_one_device(run: Run) -> None:
    """Raise an error for a model that is spread over several devices, whose blocks cannot be certified together."""
    devices = sorted({str(parameter.device) for parameter in run.model.parameters()})
    if len(devices) > 1:
        raise InputError(
            f"The weights are on {', '.join(devices)}, and a certified bound needs all of them on one device.",
            "Load the model with device=, or use `jacobian_norms`, which takes a model on several devices.",
        )


@contextmanager
def certifying(run: Run) -> Iterator[None]:
    """`in_float64` for a number that is to be certified: quantized weights are refused, half precision is warned of."""
    kind = quantization(run.model)
    if kind is not None:
        raise InputError(
            f"The weights are quantized ({kind}); the allowance for rounding does not cover their kernels.",
            "Load the model without quantization.",
        )
    dtype = run.dtype
    if dtype.itemsize < 4:
        remark(
            f"The certificate is for these weights in exact arithmetic; in {dtype_name(dtype)} the "
            "model computes something else."
        )
    if dtype != torch.float64:
        size = 8 * sum(parameter.numel() for parameter in run.model.parameters())
        remedy = "Use a device with more memory."
        require_room(size, run.device, "The weights in float64", remedy)
    with in_float64(run):
        yield
