"""Float64 in place of every float32 that code asks for, so that only the rounding of float64 is left."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.checkpoint import checkpoint

from squashlens._typing import dtype_name
from squashlens.errors import UnsoundModelError

ROWS = 2**14  # of a table of embeddings that are widened at a time


class Wide(TorchFunctionMode):
    """Every torch function of the body with float64 in place of float32 among its arguments."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Every operation of a pass comes by here: no function is called for each of its arguments.
        args = [torch.float64 if a is torch.float32 else a for a in args]
        named = dict(kwargs or {})
        for key, value in named.items():
            if value is torch.float32:
                named[key] = torch.float64
        if func is F.linear and args[1].dtype != args[0].dtype:
            return _head(*args, **named)
        found = (Tensor.double if func is Tensor.float else func)(*args, **named)
        if func is F.embedding:
            return found.double()
        if not isinstance(found, Tensor) or not found.is_floating_point():
            return found
        given = args[0].dtype if args and isinstance(args[0], Tensor) else None
        if given == torch.float64 and found.dtype != torch.float64:
            raise UnsoundModelError(
                f"This model, or a hook on it, computes in {dtype_name(found.dtype)} "
                f"({resolve_name(func)}) even when given float64 tensors, so its derivative cannot be certified.",
                "If a hook rounds, write it with `squashlens.hooks.round_activations`; otherwise use `jacobian_norms`.",
            )
        return found


def _head(x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """The output head if it is the table of embeddings, which is not widened, in parts that no graph keeps."""

    def product(x: Tensor, rows: Tensor) -> Tensor:
        return F.linear(x, rows.double())

    parts = [
        cast(Tensor, checkpoint(product, x, rows, use_reentrant=False))
        for rows in table.split(ROWS)
    ]
    logits = torch.cat(parts, dim=-1)
    return logits if bias is None else logits + bias
