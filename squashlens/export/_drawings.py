"""Drawings of CircuitsVis and BertViz: tokens coloured by attribution, and attention patterns."""

import html
import importlib
import re
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import xarray as xr
from torch import Tensor, cat

from squashlens.checks.arguments import validated
from squashlens.engine.capturing.capture import Capture
from squashlens.engine.text.tokens import escape
from squashlens.errors import InputError
from squashlens.export._numbers import by_token, model_of, name_of, other_dim, prompts_of
from squashlens.records.results import facts_of

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
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> drawn = sl.export.circuitsvis(sl.path_bound(model, "110 ="))  # doctest: +SKIP
    """
    tool = _imported("circuitsvis", "CircuitsVis")
    if isinstance(result, Capture):
        patterns = _patterns(result)
        names = [f"L{block}H{head}" for block, each in patterns.items() for head in range(each.shape[1])]
        heads = cat([each[0] for each in patterns.values()])
        drawn = tool.attention.attention_heads(heads, _as_text(result.labels[0]), attention_head_names=names)
        return _captioned(drawn, _caption_of(result))
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
    return _captioned(drawn, _line(name_of(found), unit, model_of(facts), _hooked(facts.get("ambient_hooks") or ())))


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
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> drawn = sl.export.bertviz(sl.capture(model, "110 ="), view="model")  # doctest: +SKIP
    """
    tool = _imported("bertviz", "BertViz")
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
    return _line("attention patterns", _hooked(capture.ambient_hooks))


def _hooked(hooks: Iterable[Any]) -> str:
    """The names of hooks, without their hook points: one hook often acts in many blocks."""
    names = ", ".join(dict.fromkeys(str(hook).rpartition(": ")[2] for hook in hooks))
    return f"under hooks: {names}" if names else ""


def _line(*parts: str) -> str:
    """A line of HTML with the parts that are not empty, as text."""
    return f'<div style="font-family: sans-serif">{html.escape(escape(" · ".join(filter(None, parts))))}</div>\n'


def _captioned(drawn: Any, line: str) -> Any:
    """A drawing of CircuitsVis with a line above it."""
    return type(drawn)(line + drawn.local_src, line + drawn.cdn_src)


def _imported(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"This function needs {name}, which cannot be imported ({error}).", 'pip install "squashlens[viewers]"'
        ) from error
