"""What is prose on an HTML page, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.prose.extract import paragraphs_of

SENTENCE = "The table has one row for each of the files that were read."
OTHER = "A second paragraph says something else, with a <code>word</code> in it."


@pytest.mark.parametrize(
    "listing",
    [
        f"<pre>{SENTENCE}</pre>",
        f"<script>{SENTENCE}</script>",
        f"<h2>{SENTENCE}</h2>",
        f'<div class="navheader"><div>{SENTENCE}</div><p>{SENTENCE}</p></div>',
        f'<div class="highlight-python notranslate"><div class="highlight"><pre>{SENTENCE}</pre></div></div>',
        "<p>Too few words.</p>",
        "<p>x = f(1) + g(2) * h(3); y += 4 - 5 / 6; z[7] = {8: 9}; return 0;</p>",
        "<p>a heading without the end of a sentence in it</p>",
    ],
)
def test_what_is_left_out(listing: str) -> None:
    page = f"<html><body><p>{SENTENCE}</p>{listing}<p>{OTHER}</p></body></html>"
    assert paragraphs_of(page) == [SENTENCE, "A second paragraph says something else, with a word in it."]


@given(st.text(alphabet="<>/pdivre =\"'&;aA.", max_size=200))
def test_damaged_pages_do_not_stop_it(page: str) -> None:
    assert all("\n" not in paragraph for paragraph in paragraphs_of(page))
