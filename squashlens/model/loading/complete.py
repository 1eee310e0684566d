"""Check that a loaded model matches its checkpoint: no tensor missing, none left over, every number finite.

transformers fills gaps in a checkpoint with random numbers, drops tensors that it cannot use, and casts integers to
floating point. The comparison of the bridge with the loaded model cannot detect this, and the loading report does; the
integers are found in the headers of the weight files. Tied weights may be stored once. Tensors that the model's class
in transformers declares as unused may be left over: masks and rotary frequencies of old checkpoints, blocks for
multi-token prediction.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from squashlens._typing import listed
from squashlens.errors import ModelAccessError
from squashlens.model.verify import AGAIN, differing_tie

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
FLOATING = ("F64", "F32", "F16", "BF16")
# Buffers of old checkpoints that are made from nothing but the sizes of the model.
MADE = re.compile(r"\b((attn|attention)\.(masked_)?bias|position_ids)$")


def weight_files(source: str, revision: str | None, config: Any) -> list[Path]:
    """The files that transformers will read for this folder or hub name; missing ones are downloaded."""
    refuse_adapter(source, revision)
    named = getattr(config, "transformers_weights", None) or SINGLE
    file = _file(source, named, revision) or _file(source, INDEX, revision)
    if file is None:
        raise ModelAccessError(
            f"{source} has no weights in safetensors.",
            "Convert the weights with `save_pretrained`; pickled weights can run code and are not opened.",
        )
    if file.suffix == ".safetensors":
        return [file]
    try:
        places = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({*places.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelAccessError(
            f"{file} is not a valid index of weight files ({error!r}).", AGAIN
        ) from error
    files = {name: _file(source, name, revision) for name in names}
    absent = [name for name in names if files[name] is None]
    if absent:
        raise ModelAccessError(
            f"{source} lacks {listed(absent)}, listed in {file.name}.", AGAIN
        )
    return [found for found in files.values() if found is not None]


def refuse_adapter(source: str, revision: str | None) -> None:
    """Raise an error for an adapter, which transformers silently applies if peft is installed, and else ignores."""
    if _file(source, ADAPTER, revision) is not None:
        raise ModelAccessError(
            f"{source} has an adapter ({ADAPTER}), which transformers applies only if peft is installed.",
            "Merge it with peft (`merge_and_unload`) and save the merged model, or remove its files to measure the "
            "model without it.",
        )


def commit_of(file: Path) -> str | None:
    """The commit of a hub model, from the name of its folder in the cache; None for a local folder."""
    match = re.search(r"/snapshots/([0-9a-f]{40})/", file.as_posix())
    return None if match is None else match.group(1)


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """The path of a file of a folder or hub model, downloaded if necessary; None if it does not exist."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        source, name, revision=revision, _raise_exceptions_for_missing_entries=False
    )
    return None if path is None else Path(path)


def stored_dtypes(files: Iterable[Path]) -> dict[str, str]:
    """The dtype of every tensor, in the notation of safetensors (``"BF16"``), from the headers of files."""
    from safetensors import SafetensorError, safe_open

    dtypes: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    dtypes[name] = opened.get_slice(name).get_dtype()
        except (SafetensorError, OSError) as error:
            raise ModelAccessError(
                f"{file} is damaged or truncated ({error}).", AGAIN
            ) from error
    return dtypes


def require_complete(
    model: Any, report: Mapping[str, Any], dtypes: Mapping[str, str], source: str
) -> None:
    """Raise an error if tensors are missing, left over, of another shape, or integers without a quantization."""
    wrong = {
        "missing": [*report["missing_keys"]],
        "left over": [n for n in report["unexpected_keys"] if not MADE.search(n)],
        "of another shape": [
            f"{name} (stored {tuple(stored)}, needed {tuple(needed)})"
            for name, stored, needed in report["mismatched_keys"]
        ],
    }
    complaints = [
        f"{what}: {listed(sorted(names))}" for what, names in wrong.items() if names
    ]
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
    whole = {
        n for n, held in model.state_dict().items() if not held.is_floating_point()
    }
    for name, dtype in dtypes.items():
        is_number = dtype in FLOATING or name in whole or MADE.search(name)
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
