"""Check that a loaded model matches its checkpoint: no tensor missing, none left over.

transformers fills gaps in a checkpoint with random numbers, and drops tensors that it cannot use. The comparison of the
bridge with the loaded model cannot detect this, and the loading report does. Tied weights may be stored once. Tensors
that the model's class in transformers declares as unused may be left over: masks and rotary frequencies of old
checkpoints, blocks for multi-token prediction.
"""

import re
from collections.abc import Mapping
from typing import Any

from squashlens._typing import listed
from squashlens.errors import ModelAccessError
from squashlens.model.verify import differing_tie

ADAPTER = "adapter_config.json"
# Buffers of old checkpoints that are made from nothing but the sizes of the model.
MADE = re.compile(r"\b((attn|attention)\.(masked_)?bias|position_ids)$")


def refuse_adapter(source: str, revision: str | None) -> None:
    """Raise an error for an adapter, which transformers silently applies if peft is installed, and else ignores."""
    from transformers.utils.hub import cached_file

    adapter = cached_file(
        source, ADAPTER, revision=revision, _raise_exceptions_for_missing_entries=False
    )
    if adapter is not None:
        raise ModelAccessError(
            f"{source} has an adapter ({ADAPTER}), which transformers applies only if peft is installed.",
            "Merge it with peft (`merge_and_unload`) and save the merged model, or remove its files to measure the "
            "model without it.",
        )


def require_complete(model: Any, report: Mapping[str, Any], source: str) -> None:
    """Raise an error if tensors are missing, left over or of another shape, or if tied ones have two values.

    `report` is the loading report of transformers, and `source` the model's name in the message.
    """
    left_over = [name for name in report["unexpected_keys"] if not MADE.search(name)]
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
    tie = differing_tie(model)
    if tie is not None:
        name, other = tie
        raise ModelAccessError(
            f"config.json of {source} ties {name} to {other}, but the checkpoint has different numbers for them.",
            "Set tie_word_embeddings in config.json to false if both are needed, or remove one of the tensors.",
        )
