"""Refuse weights with NaN or infinite entries, which are signs of a damaged file."""

import torch
from torch import nn

from squashlens.errors import ModelAccessError
from squashlens.model.agreement import is_finite
from squashlens.model.digests import parts

AGAIN = "Download the checkpoint again, or save it again with `save_pretrained`."


def require_finite(model: nn.Module, source: str) -> None:
    """Raise an error for NaN or infinite entries in any parameter or buffer, in one pass without copies."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, nn.Parameter) and tensor.is_inference():
            raise ModelAccessError(
                f"{name} of {source} was made in `torch.inference_mode()`, so PyTorch takes no derivatives with it.",
                "Leave that mode, and use a copy: `copy.deepcopy(model)`.",
            )
        if tensor.is_meta:
            raise ModelAccessError(
                f"{name} of {source} is offloaded, so its values cannot be checked.",
                "Give a device= that holds them all.",
            )
        for part in parts(tensor.detach()):
            if part.numel() == 0 or not part.is_floating_point():
                continue
            # A quantizer's float8 has no minimum.
            wide = part.float() if part.element_size() == 1 else part
            if is_finite(wide):
                continue
            wrong = (~torch.isfinite(wide)).nonzero()
            overflow = "Or load it with dtype=torch.bfloat16 or torch.float32, whose range is larger."
            raise ModelAccessError(
                f"{name} of {source} has {len(wrong)} NaN or infinite entries of {part.numel()}, the first at "
                f"{tuple(wrong[0].tolist())}.",
                f"{AGAIN} {overflow}" if part.dtype == torch.float16 else AGAIN,
            )
