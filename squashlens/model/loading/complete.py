"""Check that a loaded model matches its checkpoint: no tensor missing, none left over, every number finite.

transformers fills gaps in a checkpoint with random numbers, drops tensors that it cannot use, and casts integers to
floating point. The comparison of the bridge with the loaded model cannot detect this, and the loading report does; the
integers are found in the headers of the weight files. Tied weights may be stored once. Tensors that the model's class
in transformers declares as unused may be left over: masks and rotary frequencies of old checkpoints, blocks for
multi-token prediction.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squashlens._typing import listed
from squashlens.errors import ModelAccessError
from squashlens.model.verify import differing_tie

ADAPTER = "adapter_config.json"
FLOATING = ("F64", "F32", "F16", "BF16")
# Buffers of old checkpoints that are made from nothing but the sizes of the model.
MADE = re.compile(r"\b((attn|attention)\.(masked_)?bias|position_ids)$")


def refuse_adapter(source: str, revision: str | None) -> None:
    """Raise an error for an adapter, which transformers silently applies if peft is installed, and else ignores."""
    if _file(source, ADAPTER, revision) is not None:
        raise ModelAccessError(
            f"{source} has an adapter ({ADAPTER}), which transformers applies only if peft is installed.",
            "Merge it with peft (`merge_and_unload`) and save the merged model, or remove its files to measure the "
            "model without it.",
        )


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """The path of a file of a folder or hub model, downloaded if necessary; None if it does not exist."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        source, name, revision=revision, _raise_exceptions_for_missing_entries=False
    )
    return None if path is None else Path(path)


def stored_dtypes(source: str, commit: str | None) -> dict[str, str]:
    """The dtype of every tensor, in the notation of safetensors (``"BF16"``), from the headers of the weight files."""
    from safetensors import safe_open

    config = _file(source, "config.json", commit)
    dtypes: dict[str, str] = {}
    for file in config.parent.glob("*.safetensors") if config else ():
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                dtypes[name] = opened.get_slice(name).get_dtype()
    return dtypes


def require_complete(
    model: Any, report: Mapping[str, Any], dtypes: Mapping[str, str], source: str
) -> None:
    """Raise an error if tensors are missing, left over, of another shape, or integers without a quantization."""
    left_over = [n for n in report["unexpected_keys"] if not MADE.search(n)]
    reshaped: list[str] = []
    for name, stored, needed in report["mismatched_keys"]:
        reshaped.append(f"{name} (stored {tuple(stored)}, needed {tuple(needed)})")
    wrong = {
        "missing": report["missing_keys"],
        "left over": left_over,
        "of another shape": reshaped,
    }
    complaints: list[str] = []
    for what, names in wrong.items():
        if names:
            complaints.append(f"{what}: {listed(sorted(names))}")
    if complaints:
        raise ModelAccessError(
            f"The weights of {source} do not match {type(model).__name__} with its config.json; "
            f"{'; '.join(complaints)}.",
            "Check that config.json belongs to these weights, or download the checkpoint again. Do not save it from "
            "transformers, which fills what is missing with random numbers.",
        )
    _refuse_integers(model, dtypes, source)
    _refuse_two_heads(model, source)


def _refuse_integers(model: Any, dtypes: Mapping[str, str], source: str) -> None:
    """Raise an error for integers without a quantization, which transformers would cast to floating point."""
    if getattr(model, "hf_quantizer", None) is not None:
        return  # the quantizer reads the integers
    unapplied = getattr(model.config, "quantization_config", None) is not None
    weights = model.state_dict()
    for name, dtype in dtypes.items():
        is_number = dtype in FLOATING or MADE.search(name)
        if name in weights and not weights[name].is_floating_point():
            is_number = True
        if unapplied or not is_number:
            raise ModelAccessError(
                f"{name} of {source} is stored as {dtype}, and transformers applied no quantization_config to it.",
                "Load the checkpoint that it was quantized from.",
            )


def _refuse_two_heads(model: Any, source: str) -> None:
    """Raise an error if a checkpoint ties two weights but stores different numbers for them."""
    tie = differing_tie(model)
    if tie is not None:
        raise ModelAccessError(
            f"config.json of {source} ties {tie[0]} to {tie[1]}, but the checkpoint has different numbers for them.",
            "Set tie_word_embeddings in config.json to false if both are needed, or remove one of the tensors.",
        )
