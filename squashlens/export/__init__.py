"""Convert results to what CircuitsVis draws.

It gets the numbers as they are. Above each drawing is a line with the name and unit of what was measured, because
CircuitsVis shows any numbers in the same way as attention. It is installed with the extra `viewers`.
"""

import html
import importlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, cat

from squashlens.checks.arguments import validated
from squashlens.engine.capturing.capture import Capture
from squashlens.engine.text.tokens import escape
from squashlens.errors import InputError
from squashlens.records.facts import named_models
from squashlens.records.results import facts_of

__all__ = ["circuitsvis"]

JOINER = "\u2060"  # a word joiner: invisible, and with it after "<" or "&" there is no tag, entity or end of a script
COARSE = 1e-3  # below it, six decimals have fewer than three digits


def __dir__() -> list[str]:
    return [*__all__]


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
    try:
        tool = importlib.import_module("circuitsvis")
    except ImportError as error:
        raise InputError(
            f"This function needs CircuitsVis, which cannot be imported ({error}).", 'pip install "squashlens[viewers]"'
        ) from error
    if isinstance(result, Capture):
        patterns = _patterns(result)
        names = [f"L{block}H{head}" for block, each in patterns.items() for head in range(each.shape[1])]
        heads = cat([each[0] for each in patterns.values()])
        drawn = tool.attention.attention_heads(heads, _as_text(result.labels[0]), attention_head_names=names)
        return _captioned(drawn, "attention patterns", _name_hooks(result.ambient_hooks))
    found = _by_token(result)
    values, tokens = found.values.astype(float), _as_text(list(map(str, found["token"].values)))
    if np.isinf(values).any() or np.isnan(values).all():
        raise InputError("result= has infinite values, or only NaN.", "Give a result with finite numbers.")
    other, most = _other_dim(found), float(np.nanmax(np.abs(values))) or 1.0
    if not other:
        numbers = [None if np.isnan(value) else value for value in values.tolist()]
        drawn = tool.tokens.colored_tokens(tokens, numbers, min_value=-most, max_value=most)
    elif most < COARSE or np.isnan(values).any():
        raise InputError(
            f"CircuitsVis shows six decimals of several columns, and no NaN. The largest value here is {most:.2g}, "
            f"and {int(np.isnan(values).sum())} are NaN.",
            f"Select one column, for instance with `result.isel({other}=0)`.",
        )
    else:  # not `colored_tokens_multi`, which colours every column by the range of the first
        columns = [f"{other} {value}" for value in found[other].values]
        drawn = tool.utils.render.render(
            "ColoredTokensMulti", tokens=tokens, values=values, labels=_as_text(columns),
            positiveBounds=[most] * len(columns), negativeBounds=[-most] * len(columns),
        )  # fmt: skip
    facts, unit = facts_of(found), found.attrs.get("units", "1")
    unit = f"unit: {unit}" if unit != "1" else ""
    hooks = _name_hooks(facts.get("ambient_hooks") or ())
    return _captioned(drawn, _name(found), unit, ", ".join(named_models(facts)), hooks)


def _patterns(capture: Capture) -> dict[int, Tensor]:
    """The patterns of a capture of one prompt, (1, head, query, key) by block."""
    if not capture.patterns:
        raise InputError("This capture has no attention patterns.", "Capture a layer below L, with keep='patterns'.")
    if len(capture.ids) > 1:
        raise InputError(f"This capture has {len(capture.ids)} prompts, and one is drawn.", "Capture one prompt.")
    return {block: capture.patterns[block].float() for block in sorted(capture.patterns)}


def _as_text(texts: list[str]) -> list[str]:
    """The texts such that CircuitsVis, which inserts tokens into its page as HTML, shows them as text."""
    return [re.sub("([<&])", rf"\1{JOINER}", escape(text)) for text in texts]


def _name_hooks(hooks: Iterable[Any]) -> str:
    """The names of hooks, without their hook points: one hook often acts in many blocks."""
    names = ", ".join(dict.fromkeys(str(hook).rpartition(": ")[2] for hook in hooks))
    return f"under hooks: {names}" if names else ""


def _captioned(drawn: Any, *parts: str) -> Any:
    """A drawing of CircuitsVis below a line with the parts that are not empty, as text."""
    text = html.escape(escape(" · ".join(filter(None, parts))))
    line = f'<div style="font-family: sans-serif">{text}</div>\n'
    return type(drawn)(line + drawn.local_src, line + drawn.cdn_src)


def _by_token(result: xr.DataArray | xr.Dataset) -> xr.DataArray:
    """The result of one prompt over its tokens first, or an error if it is not one number or column for each token."""
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
    other = "prompt" if "prompt" in found.dims else _other_dim(found)
    if other == "prompt" or found.ndim > 2:
        raise InputError(
            f"result= has the dimensions ({dims}), and CircuitsVis draws one prompt with one more dimension.",
            f"Select one, for instance with `result.isel({other}=0)`.",
        )
    if "n_tokens" in found.coords:  # without the padding of a shorter prompt
        found = found.isel(position=slice(int(found["n_tokens"])))
    return found.transpose("position", ...)


def _other_dim(found: xr.DataArray) -> str:
    """The first dimension besides position, or an empty text."""
    return next((str(dim) for dim in found.dims if dim != "position"), "")


def _name(found: xr.DataArray) -> str:
    """The long name of a result, with what was selected from it: "share of attention paths into the query, layer 3"."""
    chosen = [f"{name} {one.item()}" for name, one in found.coords.items() if not one.ndim and name != "n_tokens"]
    return ", ".join([str(found.attrs.get("long_name") or found.name or "values"), *chosen])
