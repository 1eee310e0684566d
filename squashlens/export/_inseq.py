"""Files that inseq reads: its objects as JSON with the names of their classes, and numbers as encoded safetensors."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from safetensors.numpy import save as as_safetensors

from squashlens.checks.arguments import validated
from squashlens.errors import RangeError
from squashlens.export._numbers import Numbers, by_token, model_of, name_of, prompts_of
from squashlens.records.results import facts_of, origin_of
from squashlens.saving.files import require_output, write


@validated
def inseq(result: xr.DataArray | xr.Dataset, path: str | Path) -> Path:
    """Write attribution to a file that ``inseq.FeatureAttributionOutput.load`` reads.

    The prompt is inseq's source, with source attributions for each token. In the place of generated tokens are the
    columns of the result: its name or, with a second dimension, texts such as ``layer 0``. Their id is −1, because
    squashlens attributes a representation and not a generated token. Several prompts become several sequences, without
    padding. Numbers are rounded to float32, the only dtype that inseq loads; inseq does not normalize them. NaN means
    that there is no number, as it does in inseq. ``info["squashlens"]`` has name, unit and provenance of the result.

    Args:
        result: attribution to the tokens of one or several prompts: a DataArray, such as the result of `path_bound` or
            one variable of `sensitivity`.
        path: the ``.json`` file to write.

    Returns:
        The path.

    Raises:
        InputError: a Dataset, more than two dimensions for each prompt, infinite values, or another ending.
        RangeError: values that would become 0 or infinite in float32.
        OutputError: the file cannot be written.

    >>> import squashlens as sl, tempfile
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sl.export.inseq(sl.path_bound(model, "110 ="), f"{folder}/bound.json").name
    'bound.json'
    """
    found = by_token(result)
    path = require_output(path, (".json",), "path")
    prompts, facts = prompts_of(found), facts_of(found)
    facts |= {"values": origin_of(found)} if facts else {}
    info = {
        "attribution_method": f"squashlens {found.name or 'values'}",
        "generated_texts": [" ".join(one.columns) for one in prompts],
        "input_texts": ["".join(one.tokens) for one in prompts],
        "model_name": model_of(facts),
        "squashlens": {"long_name": name_of(found), "units": str(found.attrs.get("units", "")), "provenance": facts},
    }
    attributes = {"info": info, "sequence_attributions": [*map(_sequence, prompts)], "step_attributions": None}
    written = json.dumps(_instance("data.attribution", "FeatureAttributionOutput", attributes), indent=4)
    return write(path, written.encode())


def _sequence(one: Numbers) -> dict[str, Any]:
    """One prompt. The class is the one whose numbers inseq shows as they are, without aggregation."""
    with np.errstate(over="ignore"):
        scores = one.values.astype(np.float32, order="C")  # safetensors writes numbers in the order of memory
    if ((scores == 0) & (one.values != 0)).any() or np.isinf(scores).any():
        sizes = np.abs(one.values[(one.values != 0) & ~np.isnan(one.values)])
        raise RangeError(
            f"The sizes of these values, from {sizes.min():.2g} to {sizes.max():.2g}, are outside the range of "
            "float32, the only dtype that inseq loads.",
            "Divide the result by a constant, or select the positions that you need.",
        )
    attributes = {
        "attr_pos_end": len(one.columns),
        "attr_pos_start": 0,
        "sequence_scores": {},
        "source": [_token(text, number) for text, number in zip(one.tokens, one.ids, strict=True)],
        "source_attributions": base64.b64encode(as_safetensors({"attribution": scores})).decode(),
        "step_scores": {},
        "target": [_token(text, -1) for text in one.columns],
        "target_attributions": None,
    }
    return _instance("data.attribution", "CoarseFeatureAttributionSequenceOutput", attributes)


def _token(text: str, number: int) -> dict[str, Any]:
    return _instance("utils.typing", "TokenWithId", {"id": number, "token": text})


def _instance(module: str, name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"__instance_type__": [f"inseq.{module}", name], "attributes": attributes}
