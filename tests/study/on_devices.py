"""A measurement of a model on a pretended device, which the processes of workers must know before they load one."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import xarray as xr

if Path(sys.argv[0]).name == "work.py":
    from squashlens.engine import anatomy
    from squashlens.engine.loading import quantized
    from tests.device import pretended

    pretended.register()
    torch.__future__.set_swap_module_params_on_conversion(True)
    for module in (anatomy, quantized):
        module.PLAIN = (*anatomy.PLAIN, pretended.Pretended)


def largest_logit(model: Any, prompt: str, notes: str = "") -> xr.DataArray:
    """Of the next token; and a note about where it was computed."""
    weight = next(model.parameters())
    found = model(model.to_tokens(prompt).to(weight.device))[0, -1].max().item()
    if notes:
        dtype = str(weight.dtype).removeprefix("torch.")
        Path(notes, f"{os.getpid()} {prompt} {dtype}").write_text(json.dumps([dtype, str(weight.device)]))
    return xr.DataArray(found, name="largest_logit")
