"""Texts of tokens that mean something to a browser or to LaTeX are shown as text."""

import copy
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

import squashlens as sl
from tests import cases, typeset
from tests.splitters import splitter

HOSTILE = (
    '<img src=x onerror="alert(1)">',
    "</script><b>",
    "&lt;b&gt;",
    "$x$",
    r"\input{/etc/passwd}",
    "a_b%#",
    "=1",
)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random Llama whose tokenizer reads any text, byte by byte, and has hostile texts as tokens."""
    folder, tokenizer = (
        tmp_path_factory.mktemp("other") / "random",
        copy.deepcopy(splitter("merging")),
    )
    tokenizer.add_tokens([*HOSTILE])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    config = copy.deepcopy(cases.CONFIGS["llama"])
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 128
    tokenizer.save_pretrained(folder)
    return sl.load(cases.save_random(config, folder), device="cpu")


@pytest.mark.browser
def test_hostile_tokens_are_drawn_as_text(
    other: Any, browser: Any, tmp_path: Path
) -> None:
    """In a figure, its page and its table: no element of a token is made, and no program of one runs."""
    prompt = "1 " + " ".join(HOSTILE)
    result = sl.path_bound(other, prompt)
    assert {*HOSTILE} <= {*result["token"].values.tolist()}
    page, said = browser.new_page(viewport={"width": 1400, "height": 800}), []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(sl.figures.save(sl.figures.of(result), tmp_path / "figure.html").as_uri())
    page.wait_for_selector(".xtick text")
    ticks = page.eval_on_selector_all(
        ".xtick text", "all => all.map(one => one.textContent)"
    )
    for position, token in enumerate(result["token"].values.tolist()):
        if token in HOSTILE:
            assert any(
                text.startswith(f"{position}: {token[:13]}") for text in ticks
            ), (token, ticks)
    assert (
        page.eval_on_selector_all(
            "img, .main-svg a, .main-svg script", "all => all.length"
        )
        == 0
    )
    assert said == []
    page.close()
    written = sl.results.table(result).to_latex(longtable=True, escape=True)
    said = typeset.text_of(
        typeset.pdf(
            tmp_path, rf"\tiny {written}", preamble=r"\usepackage{booktabs,longtable}"
        )
    )
    assert r"\input{/etc/passwd}" in said.replace(" ", "")
