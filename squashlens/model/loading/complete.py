"""Check that a loaded model matches its checkpoint: no tensor missing, none left over, every number finite.

transformers fills gaps in a checkpoint with random numbers, drops tensors that it cannot use, and casts integers to
floating point. The comparison of the bridge with the loaded model cannot detect this, so the loading report is compared
here with the tensors that the headers of the weight files name. Tied weights may be stored once. Tensors that the
model's class in transformers declares as unused may be left over: masks and rotary frequencies of old checkpoints,
blocks for multi-token prediction.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import listed
from squashlens.errors import ModelAccessError
from squashlens.model.finite import AGAIN

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
FLOATING = ("F64", "F32", "F16", "BF16")
# Buffers of old checkpoints that are made from nothing but the sizes of the model.
MADE = re.compile(r"\b((attn|attention)\.(masked_)?bias|position_ids)$")


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: its file, and its dtype in the notation of safetensors (``"BF16"``)."""

    file: Path
    dtype: str


def read_checkpoint(
    source: str, revision: str | None, config: Any
) -> dict[str, Stored]:
    """Every tensor that transformers will read for this folder or hub name; missing files are downloaded."""
    refuse_adapter(source, revision)
    named = getattr(config, "transformers_weights", None) or SINGLE
    file = _file(source, named, revision) or _file(source, INDEX, revision)
    if file is None:
        raise ModelAccessError(
            f"{source} has no weights in safetensors.",
            "Convert the weights with `save_pretrained`; pickled weights can run code and are not opened.",
        )
    tensors: dict[str, Stored] = {}
    for shard in (
        [file] if file.suffix == ".safetensors" else _shards(source, revision, file)
    ):
        for name, stored in _tensors(shard):
            tensors[name] = stored
    return tensors


def refuse_adapter(source: str, revision: str | None) -> None:
    """Raise an error for an adapter, which transformers silently applies if peft is installed, and else ignores."""
    if _file(source, ADAPTER, revision) is not None:
        raise ModelAccessError(
            f"{source} has an adapter ({ADAPTER}), which transformers applies only if peft is installed.",
            "Merge it with peft (`merge_and_unload`) and save the merged model, or remove its files to measure the "
            "model without it.",
        )


def commit_of(stored: Mapping[str, Stored]) -> str | None:
    """The commit of the hub model, from the name of its folder in the cache; None for a local folder."""
    matches = [
        re.search(r"/snapshots/([0-9a-f]{40})/", each.file.as_posix())
        for each in stored.values()
    ]
    return next((match.group(1) for match in matches if match), None)


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """The path of a file of a folder or hub model, downloaded if necessary; None if it does not exist."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        source, name, revision=revision, _raise_exceptions_for_missing_entries=False
    )
    return None if path is None else Path(path)


def _shards(source: str, revision: str | None, index: Path) -> list[Path]:
    try:
        names = sorted(
            set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelAccessError(
            f"{index} is not a valid index of weight files ({error!r}).", AGAIN
        ) from error
    files = {name: _file(source, name, revision) for name in names}
    if absent := [name for name, file in files.items() if file is None]:
        raise ModelAccessError(
            f"{source} lacks {listed(absent)}, listed in {index.name}.", AGAIN
        )
    return [file for file in files.values() if file is not None]


def _tensors(file: Path) -> Iterator[tuple[str, Stored]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, Stored(file, opened.get_slice(name).get_dtype())
    except (SafetensorError, OSError) as error:
        raise ModelAccessError(
            f"{file} is damaged or truncated ({error}).", AGAIN
        ) from error


def require_complete(
    model: Any, report: Mapping[str, Any], stored: Mapping[str, Stored], source: str
) -> None:
    """Raise an error if tensors are missing, left over, of another shape, or integers without a quantization."""
    held = model.state_dict(keep_vars=True)
    prefix = f"{model.base_model_prefix}."  # which checkpoints may leave out or add
    spellings = {
        name: (name, prefix + name, name.removeprefix(prefix)) for name in stored
    }
    places = {
        name: next((one for one in each if one in held), None)
        for name, each in spellings.items()
    }
    # The model's class may exclude missing tensors from the loading report.
    unreported = model._keys_to_ignore_on_load_missing or ()
    absent = (
        held.keys()
        - {*places.values()}
        - {*getattr(model, "all_tied_weights_keys", {})}
    )
    absent = {
        name
        for name in absent
        if any(re.search(pattern, name) for pattern in unreported)
    }
    shapes = (
        f"{n} (stored {tuple(a)}, needed {tuple(b)})"
        for n, a, b in report["mismatched_keys"]
    )
    wrong: dict[str, Iterable[str]] = {
        "missing": {*report["missing_keys"], *absent},
        "left over": (
            name for name in report["unexpected_keys"] if not MADE.search(name)
        ),
        "of another shape": shapes,
    }
    complaints = [
        f"{what}: {listed(sorted(names))}"
        for what, each in wrong.items()
        if (names := list(each))
    ]
    if complaints:
        raise ModelAccessError(
            f"The weights of {source} do not match {type(model).__name__} with its config.json; "
            f"{'; '.join(complaints)}.",
            "Check that config.json belongs to these weights, or download the checkpoint again. Do not save it from "
            "transformers, which fills what is missing with random numbers.",
        )
    _refuse_integers(model, held, stored, places, source)
    _refuse_two_heads(model, source)


def _refuse_integers(
    model: Any,
    held: Mapping[str, Any],
    stored: Mapping[str, Stored],
    places: Mapping[str, str | None],
    source: str,
) -> None:
    """Raise an error for integers without a quantization, which transformers would cast to floating point."""
    if getattr(model, "hf_quantizer", None) is not None:
        return  # the quantizer reads the integers
    unapplied = getattr(model.config, "quantization_config", None) is not None
    for name, tensor in stored.items():
        place = places[name]
        fits = (
            MADE.search(name) if place is None else not held[place].is_floating_point()
        )
        if unapplied or not (tensor.dtype in FLOATING or fits):
            raise ModelAccessError(
                f"{name} of {source} is stored as {tensor.dtype}, and transformers applied no quantization_config to "
                "it.",
                "Load the checkpoint that it was quantized from.",
            )


def _refuse_two_heads(model: Any, source: str) -> None:
    """Raise an error if a checkpoint ties two weights but stores different numbers for them."""
    for name, other in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first, second = model.get_parameter(name), model.get_parameter(other)
        if first is not second and not torch.equal(first.cpu(), second.cpu()):
            raise ModelAccessError(
                f"config.json of {source} ties {name} to {other}, but the checkpoint has different numbers for them.",
                "Set tie_word_embeddings in config.json to false if both are needed, or remove one of the tensors.",
            )
