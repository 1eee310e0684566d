"""Float64 in place of every float32 that code asks for, so that only the rounding of float64 is left."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from squashlens._typing import dtype_name
from squashlens.errors import UnsoundModelError


class Wide(TorchFunctionMode):
    """Every torch function of the body with float64 in place of float32 among its arguments."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch so; raise if it makes a narrower tensor of a float64 tensor all the same."""
        # Every operation of a pass comes by here: no function is called for each of its arguments.
        args = [torch.float64 if a is torch.float32 else a for a in args]
        named = dict(kwargs or {})
        for key, value in named.items():
            if value is torch.float32:
                named[key] = torch.float64
        if func is Tensor.float:
            func = Tensor.double
        result = func(*args, **named)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        first_dtype = None
        if args and isinstance(args[0], Tensor):
            first_dtype = args[0].dtype
        if first_dtype == torch.float64 and result.dtype != torch.float64:
            raise UnsoundModelError(
                f"This model, or a hook on it, computes in {dtype_name(result.dtype)} "
                f"({resolve_name(func)}) even when given float64 tensors, so its derivative cannot be certified.",
                "If a hook rounds, write it with `squashlens.hooks.round_activations`; otherwise use `jacobian_norms`.",
            )
        return result
