"""Drawings of CircuitsVis and BertViz: tokens coloured by attribution, and attention patterns."""

import base64
import html
import importlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from safetensors.numpy import save as as_safetensors
from torch import Tensor, cat

from squashlens.checks.arguments import validated
from squashlens.engine.capturing.capture import Capture
from squashlens.engine.text.tokens import escape
from squashlens.errors import InputError, RangeError
from squashlens.records.results import facts_of, origin_of
from squashlens.saving.files import require_output, write

JOINER = "\u2060"  # a word joiner: invisible, and with it after "<" or "&" there is no tag, entity or end of a script
COARSE = 1e-3  # below it, six decimals have fewer than three digits


@validated
def circuitsvis(result: xr.DataArray | xr.Dataset | Capture) -> Any:
    """Draw attribution or attention patterns with CircuitsVis.

    One number for each token colours the tokens: white is 0, blue positive, red negative, and both scales end at the
    largest absolute value. A token with NaN is white and has no number. With a second dimension, such as the layers of
    `paths.composition`, there is a button for each of its values; all have the same scale, and CircuitsVis shows six
    decimals. The patterns of a capture are drawn as one heatmap for each head, with colours from 0 to 1.

    Tokens are shown as text: control characters are escaped, and an invisible word joiner follows each ``<`` and ``&``.

    Args:
        result: attribution to the tokens of one prompt (a DataArray, such as the result of `path_bound` or one variable
            of `sensitivity`), or a `Capture` of one prompt with attention patterns.

    Returns:
        An object of CircuitsVis that notebooks show. Its attribute ``local_src`` is HTML that needs no network. In a
        notebook CircuitsVis looks for a network, and if there is one, it loads its code from unpkg.com.

    Raises:
        InputError: CircuitsVis is not installed; a Dataset, several prompts, more than two dimensions, or infinite
            values; or several columns with NaN or with values too small for six decimals.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> drawn = sl.export.circuitsvis(sl.path_bound(model, "110 ="))  # doctest: +SKIP
    """
    tool = _import("circuitsvis", "CircuitsVis")
    if isinstance(result, Capture):
        patterns = _patterns(result)
        names = [f"L{block}H{head}" for block, each in patterns.items() for head in range(each.shape[1])]
        heads = cat([each[0] for each in patterns.values()])
        drawn = tool.attention.attention_heads(heads, _as_text(result.labels[0]), attention_head_names=names)
        return _add_caption(drawn, _caption_of(result))
    found = by_token(result)
    if "prompt" in found.dims:
        raise InputError(
            f"result= has {found.sizes['prompt']} prompts, and CircuitsVis draws one.",
            "Select one, for instance with `result.isel(prompt=0)`.",
        )
    (one,) = prompts_of(found)
    tokens, most = _as_text(one.tokens), float(np.nanmax(np.abs(one.values))) or 1.0
    if not other_dim(found):
        values = [None if np.isnan(value) else value for value in one.values[:, 0].tolist()]
        drawn = tool.tokens.colored_tokens(tokens, values, min_value=-most, max_value=most)
    elif most < COARSE or np.isnan(one.values).any():
        raise InputError(
            f"CircuitsVis shows six decimals of several columns, and no NaN. The largest value here is {most:.2g}, "
            f"and {int(np.isnan(one.values).sum())} are NaN.",
            f"Select one column, for instance with `result.isel({other_dim(found)}=0)`.",
        )
    else:  # not `colored_tokens_multi`, which colours every column by the range of the first
        drawn = tool.utils.render.render(
            "ColoredTokensMulti", tokens=tokens, values=one.values, labels=_as_text(one.columns),
            positiveBounds=[most] * len(one.columns), negativeBounds=[-most] * len(one.columns),
        )  # fmt: skip
    facts, unit = facts_of(found), found.attrs.get("units", "1")
    unit = f"unit: {unit}" if unit != "1" else ""
    return _add_caption(
        drawn, _line(name_of(found), unit, model_of(facts), _name_hooks(facts.get("ambient_hooks") or ()))
    )


@validated
def bertviz(capture: Capture, *, view: Literal["head", "model"] = "head") -> Any:
    """Draw the attention patterns of a capture with BertViz.

    Only attention patterns are accepted, because BertViz calls everything that it draws attention. Blocks keep their
    numbers if only some were captured. Tokens are shown as in `circuitsvis`. The HTML contains a number for each block,
    head, query and key, so capture few ``layers`` of a long prompt.

    Args:
        capture: a capture of one prompt with attention patterns.
        view: ``"head"`` draws lines between the tokens for the heads of one block; ``"model"`` draws small pictures of
            all blocks and heads.

    Returns:
        An IPython ``HTML`` object that notebooks show; its attribute ``data`` is the HTML. It loads RequireJS, d3 and
        jQuery from cdnjs.cloudflare.com, and draws nothing without a network.

    Raises:
        InputError: BertViz is not installed, the capture has several prompts, or it has no patterns.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> drawn = sl.export.bertviz(sl.capture(model, "110 ="), view="model")  # doctest: +SKIP
    """
    tool = _import("bertviz", "BertViz")
    patterns = _patterns(capture)
    unused = next(iter(patterns.values()))  # in the places of blocks that were not captured; it is not drawn
    draw = tool.head_view if view == "head" else tool.model_view
    drawn = draw(
        [patterns.get(block, unused) for block in range(max(patterns) + 1)],
        _as_text(capture.labels[0]),
        prettify_tokens=False,  # the tokens are decoded, and may contain the characters that this replaces
        include_layers=list(patterns),
        html_action="return",
    )
    return type(drawn)(_caption_of(capture) + drawn.data)


def _patterns(capture: Capture) -> dict[int, Tensor]:
    """The patterns of a capture of one prompt, (1, head, query, key) by block."""
    if not capture.patterns:
        raise InputError("This capture has no attention patterns.", "Capture a layer below L, with keep='patterns'.")
    if len(capture.ids) > 1:
        raise InputError(f"This capture has {len(capture.ids)} prompts, and one is drawn.", "Capture one prompt.")
    return {block: capture.patterns[block].float() for block in sorted(capture.patterns)}


def _as_text(texts: list[str]) -> list[str]:
    """The texts such that both tools show them as text; CircuitsVis inserts tokens into its page as HTML."""
    return [re.sub("([<&])", rf"\1{JOINER}", escape(text)) for text in texts]


def _caption_of(capture: Capture) -> str:
    return _line("attention patterns", _name_hooks(capture.ambient_hooks))


def _name_hooks(hooks: Iterable[Any]) -> str:
    """The names of hooks, without their hook points: one hook often acts in many blocks."""
    names = ", ".join(dict.fromkeys(str(hook).rpartition(": ")[2] for hook in hooks))
    return f"under hooks: {names}" if names else ""


def _line(*parts: str) -> str:
    """A line of HTML with the parts that are not empty, as text."""
    return f'<div style="font-family: sans-serif">{html.escape(escape(" · ".join(filter(None, parts))))}</div>\n'


def _add_caption(drawn: Any, line: str) -> Any:
    """A drawing of CircuitsVis with a line above it."""
    return type(drawn)(line + drawn.local_src, line + drawn.cdn_src)


def _import(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"This function needs {name}, which cannot be imported ({error}).", 'pip install "squashlens[viewers]"'
        ) from error


class Numbers(NamedTuple):
    """The numbers of one prompt: (token, column). A column is the whole result, or for instance one of its layers."""

    tokens: list[str]
    ids: list[int]
    columns: list[str]
    values: np.ndarray


def by_token(result: xr.DataArray | xr.Dataset) -> xr.DataArray:
    """The result without dimensions of size 1, or an error if it is not one number or column for each token."""
    if isinstance(result, xr.Dataset):
        names = [str(name) for name, one in result.data_vars.items() if "position" in one.dims]
        raise InputError(
            f"result= is a Dataset, with values by position in: {', '.join(names) or 'no variable'}.",
            f"Give one variable, for instance `result[{names[0]!r}]`." if names else "Give the result of `path_bound`.",
        )
    dims = ", ".join(map(str, result.dims))
    labels = [result.coords.get("token"), result.coords.get("token_id")]
    if "position" not in result.dims or any(one is None or "position" not in one.dims for one in labels):
        raise InputError(
            f"result= has no values for tokens: its dimensions are ({dims}).",
            "Give one number for each token, such as the result of `path_bound`.",
        )
    if not np.issubdtype(result.dtype, np.number) or np.iscomplexobj(result) or not result.size:
        raise InputError(
            f"result= has {result.size} values of dtype {result.dtype}.", "Give a result with real numbers."
        )
    found = result.squeeze([dim for dim in result.dims if dim != "position" and result.sizes[dim] == 1])
    if len(set(found.dims) - {"prompt", "position"}) > 1:
        raise InputError(
            f"result= has the dimensions ({dims}).",
            f"Keep position and one more, for instance with `result.isel({other_dim(found)}=0)`.",
        )
    return found


def other_dim(found: xr.DataArray) -> str:
    """The first dimension besides prompt and position, or an empty text."""
    return next((str(dim) for dim in found.dims if dim not in ("prompt", "position")), "")


def prompts_of(found: xr.DataArray) -> list[Numbers]:
    """The numbers of each prompt, without padding."""
    other, several = other_dim(found), [found]
    if "prompt" in found.dims:
        several = [found.isel(prompt=number) for number in range(found.sizes["prompt"])]
    columns = [f"{other} {value}" for value in found[other].values] if other else [name_of(found)]
    return [_numbers(one, columns) for one in several]


def _numbers(one: xr.DataArray, columns: list[str]) -> Numbers:
    if "n_tokens" in one.coords:
        one = one.isel(position=slice(int(one["n_tokens"])))
    values = one.transpose("position", ...).values.astype(np.float64).reshape(one.sizes["position"], len(columns))
    if np.isinf(values).any() or np.isnan(values).all():
        raise InputError("result= has infinite values, or only NaN.", "Give a result with finite numbers.")
    ids = [int(number) for number in one["token_id"].values]
    return Numbers([str(token) for token in one["token"].values], ids, columns, values)


def name_of(found: xr.DataArray) -> str:
    """The long name of a result, with what was selected from it: "share of attention paths into the query, layer 3"."""
    chosen = [f"{name} {one.item()}" for name, one in found.coords.items() if not one.ndim and name != "n_tokens"]
    return ", ".join([str(found.attrs.get("long_name") or found.name or "values"), *chosen])


def model_of(facts: Mapping[str, Any]) -> str:
    """The model's name, or several names."""
    names = facts.get("model") or ""
    return ", ".join(map(str, names)) if isinstance(names, list) else str(names)


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
    >>> model = sl.load("tiny-gemma")
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
