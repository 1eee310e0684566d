"""What CircuitsVis gets is what was measured, and tokens are text in what it draws."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.export import JOINER
from squashlens.records.results import attributes, sealed
from tests.conftest import PROMPT

HERE = Path(__file__).parent
NASTY = [
    "<script>document.title='owned'</script>", "</script><script>document.title='owned'</script>",
    '<img src=x onerror="document.title=1">', "&lt;b&gt;", "'\"\\`${1}", "a\nb\0c", "<!--<script>", "▁Ġ</w>",
]  # fmt: skip
AS_TEXT = [*NASTY[:5], r"a\nb\x00c", *NASTY[6:]]


def made(values: Any, dims: tuple[str, ...] = ("position",), **attrs: str) -> xr.DataArray:
    """A result over three tokens, or over those of two prompts of which the second is shorter."""
    tokens, ids = np.array(["<bos>", "</script>", "é\n"], dtype=object), np.array([2, 7, 9])
    coords: dict[str, Any] = {"token": ("position", tokens), "token_id": ("position", ids)}
    if "prompt" in dims:
        both = ("prompt", "position")
        coords = {
            "token": (both, np.stack([tokens, np.array(["<bos>", "x", ""], dtype=object)])),
            "token_id": (both, np.array([ids, [2, 8, -1]])),
            "n_tokens": ("prompt", [3, 2]),
        }
    if "layer" in dims:
        coords["layer"] = [0, 1]
    named = attributes("shares of two layers", "1") | {"provenance": '{"model": "tiny"}'} | attrs
    array = xr.DataArray(np.array(values, dtype=float), dims=dims, coords=coords, name="shares", attrs=named)
    return sealed(array, json.loads(named["provenance"]))


def drawn_by_circuitsvis(result: Any) -> tuple[str, dict[str, Any]]:
    """The element of CircuitsVis and its properties, in both forms of the page."""
    pytest.importorskip("circuitsvis")
    shown = sl.export.circuitsvis(result)
    ((element, text),) = re.findall(r"render\(\s*\"[\w-]+\",\s*(\w+),\s*(\{.*\})\s*\)", shown.cdn_src)
    assert f"CircuitsVis.{element},\n      {text}\n" in shown.local_src
    return element, json.loads(text)


def test_circuitsvis_draws_the_numbers_measured(tiny: Any) -> None:
    """Tokens in colours, with a button for each layer where there are layers, and the patterns of a capture."""
    bound, shares, capture = (
        sl.path_bound(tiny, PROMPT), sl.paths.composition(tiny, PROMPT), sl.capture(tiny, PROMPT, layers=[4, 1])
    )  # fmt: skip
    element, given = drawn_by_circuitsvis(bound)
    assert element == "ColoredTokens"
    assert given["values"] == bound.values.tolist()
    assert [text.replace(JOINER, "") for text in given["tokens"]] == bound["token"].values.tolist()
    assert (given["minValue"], given["maxValue"]) == (-float(bound.max()), float(bound.max()))
    for result in (shares, shares.transpose()):
        element, given = drawn_by_circuitsvis(result)
        assert element == "ColoredTokensMulti"
        assert given["labels"] == [f"layer {layer}" for layer in range(7)]
        assert given["values"] == shares.values.T.tolist()
        assert given["positiveBounds"] == [1.0] * 7  # the share of the query in the last layer
        assert given["negativeBounds"] == [-1.0] * 7
    element, given = drawn_by_circuitsvis(capture)
    assert element == "AttentionHeads"
    assert given["attentionHeadNames"] == [f"L{block}H{head}" for block in (1, 4) for head in range(4)]
    assert given["attention"] == [*capture.patterns[1][0].tolist(), *capture.patterns[4][0].tolist()]
    np.testing.assert_allclose(np.sum(given["attention"], axis=-1), 1, rtol=1e-5)


def hostile_array() -> xr.DataArray:
    names = np.array(NASTY, dtype=object)
    coords = {"token": ("position", names), "token_id": ("position", range(len(names)))}
    return xr.DataArray(np.arange(1.0, len(names) + 1), dims="position", coords=coords)


class Elements(HTMLParser):
    """Names of the elements of a page; the content of scripts is text, as browsers read it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)


def test_tokens_end_no_script(tiny: Any) -> None:
    pytest.importorskip("circuitsvis")
    capture = replace(sl.capture(tiny, "1 1 0 1 1 0 =", layers=[0]), labels=[NASTY])
    for drawn in (hostile_array(), capture):
        assert Elements(sl.export.circuitsvis(drawn).cdn_src).names == ["div", "div", "script"]
    assert drawn_by_circuitsvis(hostile_array())[1]["tokens"][3] == f"&{JOINER}lt;b&{JOINER}gt;"
    assert [text.replace(JOINER, "") for text in drawn_by_circuitsvis(capture)[1]["tokens"]] == AS_TEXT


@pytest.mark.browser
def test_tokens_are_text_in_a_browser(browser: Any) -> None:
    """CircuitsVis inserts tokens into the page as HTML; its own script is in the page, so no network is needed."""
    pytest.importorskip("circuitsvis")
    page = browser.new_page()
    page.set_content(sl.export.circuitsvis(hostile_array()).local_src)
    page.wait_for_selector(".colored-tokens")
    seen = page.eval_on_selector_all(".colored-tokens > span > span", "all => all.map(one => one.textContent)")
    assert [text.replace(JOINER, "").replace("\xa0", " ") for text in seen] == AS_TEXT
    assert page.eval_on_selector_all(".colored-tokens img, .colored-tokens b", "all => all.length") == 0
    assert page.title() == ""
    page.close()


def test_a_tool_that_is_missing_is_named(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "circuitsvis", None)
    with pytest.raises(InputError, match=r"needs CircuitsVis, which cannot be imported .*squashlens\[viewers\]"):
        sl.export.circuitsvis(sl.capture(tiny, "110 ="))


def test_what_has_no_number_for_each_token_or_would_be_shown_as_something_else_is_refused(tiny: Any) -> None:
    pytest.importorskip("circuitsvis")
    usual, capture = made([1, 2, 3]), sl.capture(tiny, "110 =")
    wide = made([[1, 2], [3, 4], [5, 6]], ("position", "layer")).expand_dims(head=2)
    several, dims = made([[1, 2, 3], [4, 5, np.nan]], ("prompt", "position")), ("layer", "position")
    small = [made(np.full((2, 3), 1e-4), dims), made([[1, 2, 3], [4, 5, np.nan]], dims)]
    for result, message in (
        (replace(capture, patterns={}), "no attention"),
        (replace(capture, ids=capture.ids.repeat(2, 1)), "2 prompts"),
        (xr.Dataset({"one": usual, "mean": usual.mean()}), r"values by position in: one\. .*`result\['one'\]`"),
        (usual.mean(), "no values for tokens"),
        (usual.drop_vars("token_id"), "no values for tokens"),
        (usual * 1j, "dtype complex128"),
        (wide, r"dimensions \(head, position, layer\), .*isel\(head=0\)"),
        (made([1, np.inf, 3]), "infinite"),
        (several, r"\(prompt, position\), .*isel\(prompt=0\)"),
        *((one, r"six decimals .*isel\(layer=0\)") for one in small),
    ):
        with pytest.raises(InputError, match=message):
            sl.export.circuitsvis(result)
    assert drawn_by_circuitsvis(several.isel(prompt=1))[1]["values"] == [4, 5]  # without padding
    for one in small:
        drawn_by_circuitsvis(one.isel(layer=1))
