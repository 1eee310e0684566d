"""A figure and a table of two models and three prompts, as a user makes them; a token is text in all of them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

import squashlens as sl
from tests import cases, typeset
from tests.splitters import splitter

QUESTION = "How many ones are in the following sequence?"
HOSTILE = ('<img src=x onerror="alert(1)">', "</script><b>", "&lt;b&gt;", "$x$", r"\input{/etc/passwd}", "a_b%#", "=1")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random Llama whose tokenizer reads any text, byte by byte, and has hostile texts as tokens."""
    folder, tokenizer = tmp_path_factory.mktemp("other") / "random", copy.deepcopy(splitter("merging"))
    tokenizer.add_tokens([*HOSTILE])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    config = copy.deepcopy(cases.CONFIGS["llama"])
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 128
    tokenizer.save_pretrained(folder)
    return sl.load(cases.save_random(config, folder), device="cpu", progress=False)


@pytest.fixture(scope="module")
def found(tiny: Any, other: Any) -> dict[str, Any]:
    models, prompts = {"gemma": tiny, "llama": other}, {"few": "1101", "none": "000", "many": "11111111"}
    return {
        f"{name}, {kind}": sl.sensitivity(model, f"{QUESTION} {digits} =", progress=False)
        for name, model in models.items()
        for kind, digits in prompts.items()
    }


@pytest.fixture(scope="module")
def panels(found: dict[str, Any]) -> Any:
    return sl.figures.panels(found, columns=3)


def test_each_panel_has_its_own_result(found: dict[str, Any], panels: Any) -> None:
    page = sl.figures.styled(panels, theme="paper", width="page")
    shown: Any = page.data
    norms = [trace for trace in shown if trace.name == "true Jacobian"]
    assert len(norms) == len(found) == 6
    for trace, one in zip(norms, found.values(), strict=True):
        np.testing.assert_array_equal(trace.y, one["jacobian"])
        np.testing.assert_array_equal(trace.x, one["position"])
    titles = {note.text.replace("<br>", " ") for note in page.layout.annotations}
    assert set(found) <= titles
    assert page.layout.width == 6.75 * 96
    assert {page.layout[name].matches for name in ("yaxis4", "yaxis7")} == {"y"}  # one scale


def test_a_table_of_them_compiles(found: dict[str, Any], tmp_path: Path) -> None:
    table = sl.results.table(found, escape="latex")
    assert len(table) == sum(part.size for one in found.values() for part in one.data_vars.values())
    norms = table[table["variable"] == "jacobian"]
    for label, one in found.items():
        np.testing.assert_array_equal(norms["value"][norms["label"] == label], one["jacobian"])
    wide = norms.pivot(index=["position", "token"], columns="label", values="value")
    body = r"\tiny " + wide.to_latex(float_format="%.2g", longtable=True, multirow=False)
    said = typeset.text_of(typeset.pdf(tmp_path, body, preamble=r"\usepackage{booktabs,longtable}"))
    first = found["gemma, few"]["jacobian"]
    assert all(f"{value:.2g}" in said for value in first.values if value > 1e-3)


@pytest.mark.browser
def test_hostile_tokens_are_drawn_as_text(other: Any, browser: Any, tmp_path: Path) -> None:
    """In a figure, its page and its table: no element of a token is made, and no program of one runs."""
    prompt = "1 " + " ".join(HOSTILE)
    result = sl.path_bound(other, prompt)
    assert {*HOSTILE} <= {*result["token"].values.tolist()}
    page, said = browser.new_page(viewport={"width": 1400, "height": 800}), []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(sl.figures.save(sl.figures.of(result), tmp_path / "figure.html").as_uri())
    page.wait_for_selector(".xtick text")
    ticks = page.eval_on_selector_all(".xtick text", "all => all.map(one => one.textContent)")
    for position, token in enumerate(result["token"].values.tolist()):
        if token in HOSTILE:
            assert any(text.startswith(f"{position}: {token[:13]}") for text in ticks), (token, ticks)
    assert page.eval_on_selector_all("img, .main-svg a, .main-svg script", "all => all.length") == 0
    assert said == []
    page.close()
    written = sl.results.table(result, escape="latex").to_latex(longtable=True)
    said = typeset.text_of(typeset.pdf(tmp_path, rf"\tiny {written}", preamble=r"\usepackage{booktabs,longtable}"))
    assert r"\input{/etc/passwd}" in said.replace(" ", "")
    assert sl.results.save(result, tmp_path / "x.csv").read_text().count("'=1") == 1
