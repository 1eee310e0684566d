"""Norms of spans against jacrev's blocks side by side, and spans of texts against what they are parsed to."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.squashing.jacobians.sketch import Ends
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.text.context import texts_in_context
from squashlens.model.text.pieces import pieces_of, positions_in
from tests.cases import CONFIGS, random_model
from tests.references import jacobian_by_jacrev, plain_outputs

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])
SPANS = {"second half": [4, 5, 3], "ends": [0, 6], "after the query": [1]}
ORDERS: dict[str, Any] = {"spectral": 2, "frobenius": "fro"}
SHARED: dict[str, Any] = {"spans": SPANS}


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma", "gemma3", "gpt2"])
def test_the_norm_of_a_span_is_that_of_its_blocks_side_by_side(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    blocks = (
        jacobian_by_jacrev(random_model(CONFIGS[family]).double(), IDS[None], 6)
        .detach()
        .double()
    )
    model = bridge_of(family, torch.float64)
    truth: dict[Any, Any] = {
        norm: np.array(
            [
                np.linalg.norm(torch.cat([*blocks[list(s)]], dim=1).numpy(), ord=order)
                for s in sorted([sorted(s) for s in SPANS.values()])
            ]
        )
        for norm, order in ORDERS.items()
    }
    for norm, expected in truth.items():
        exact = sl.jacobian_norms(model, IDS, norm=norm, **SHARED)
        np.testing.assert_allclose(exact.values, expected, rtol=1e-6)
        upper = sl.jacobian_norms(
            model, IDS, norm=norm, method="sketch_upper", n_probes=6, **SHARED
        )
        assert (upper.values >= expected * (1 - 1e-5)).all()
        assert (upper["low"].values <= expected * (1 + 1e-5)).all()
        assert (upper["low"].values > 0).all()
        below = sl.jacobian_norms(
            model, IDS, norm=norm, method="sketch", n_probes=99, **SHARED
        )
        if norm == "spectral":  # with more directions than d, nothing is left out
            np.testing.assert_allclose(below["low"].values, expected, rtol=1e-6)
    alone = sl.jacobian_norms(model, IDS).values
    found = sl.jacobian_norms(model, IDS, **SHARED)
    assert found["token"].values.tolist() == ["ends", "after the query", "second half"]
    assert found["position"].values.tolist() == [0, 1, 3]
    assert found["span_size"].values.tolist() == [2, 1, 3]
    ends = truth["spectral"][0]
    assert (
        max(alone[[0, 6]])
        <= ends
        <= np.hypot(*alone[[0, 6]])
        < 0.999 * alone[[0, 6]].sum()
    )


@pytest.mark.slow
def test_bounds_of_spans_and_their_sensitivity(tiny: Any) -> None:
    prompt = "How many ones are in 1101 ="
    shared: Any = {"query": 9}
    words = sl.bound_vs_jacobian(tiny, prompt, spans="words", **shared)
    of_words = [[1], [2], [3], [4], [5], [6, 7, 8, 9]]
    assert sl.results.provenance(words)["spans"] == of_words
    assert " ".join(words["token"].values) == "How many ones are in 1101"
    for name, one in (
        ("path_bound", sl.path_bound(tiny, prompt, query=9)),
        ("null", sl.path_bound(tiny, prompt, query=9, attention="uniform")),
    ):
        assert words[name].values[-1] == pytest.approx(np.linalg.norm(one.values[6:10]))
        np.testing.assert_allclose(words[name].values[:-1], one.values[1:6], rtol=1e-6)
    exact = sl.jacobian_norms(tiny, prompt, spans="words", **shared)
    np.testing.assert_allclose(words["jacobian"], exact.values[:-1])
    assert exact.values[-1] == 0, "the last word comes after the query"
    bound = sl.certified_bound(tiny, prompt, spans="words", **shared)
    assert (bound.values[:-1] >= exact.values[:-1]).all()
    assert int(words["compared_tokens"]) == 5, "the word with the query is left out"


@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_the_effect_of_a_span_is_that_of_replacing_all_its_tokens(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """Against every replacement on the plain model: 200 draws of at most 6 find them all, and count each once."""
    model = bridge_of(family, torch.float64)
    plain = random_model(CONFIGS[family]).double()
    among = [5, 7, 9]
    shared: dict[str, Any] = {"candidates": among, "query": 5}
    spans = {"pair": [3, 1], "one": [4], "up to the query": [5, 6]}
    found = sl.substitution_effect(
        model, IDS, n_replacements=200, spans=spans, **shared
    )
    assert found["token"].values.tolist() == ["pair", "one", "up to the query"]
    assert found["span_size"].values.tolist() == [2, 1, 2]
    assert sl.results.provenance(found)["spans"] == [[1, 3], [4], [5, 6]]

    def outcome(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            out = plain_outputs(plain, ids[None])
        return out.hidden_states[-1][0, 5], out.logits[0, 5].log_softmax(-1)

    y, logs = outcome(IDS)
    for at, inside in enumerate([[1, 3], [4], [5]]):
        gaps, apart = [], []
        for tokens in product(
            *[[t for t in among if t != int(IDS[place])] for place in inside]
        ):
            other = IDS.clone()
            other[inside] = torch.tensor(tokens)
            moved, others = outcome(other)
            gaps.append((moved - y).norm().item())
            apart.append((logs.exp() * (logs - others)).sum().item())
        assert found["output_change"].values[at] == pytest.approx(
            np.mean(gaps), rel=1e-4
        )
        assert found["output_change_std"].values[at] == pytest.approx(
            np.std(gaps), rel=1e-3
        )
        assert found["kl"].values[at] == pytest.approx(np.mean(apart), rel=1e-3)
    alone = sl.substitution_effect(
        model, IDS, n_replacements=1, positions=[1, 4], **shared
    )
    spans = {"a": [1], "b": [4], "after the query": [6]}
    found = sl.substitution_effect(model, IDS, n_replacements=1, spans=spans, **shared)
    np.testing.assert_array_equal(
        found["output_change"], alone["output_change"][[1, 4, 6]]
    )


TEXT = 'One two. "Three!" Four\n\n 5.5 six'
PIECES: dict[Any, str] = {
    "words": 'One|two.|"Three!"|Four|5.5|six',
    "sentences": 'One two.|"Three!"|Four|5.5 six',
    "lines": 'One two. "Three!" Four|5.5 six',
}


@pytest.mark.parametrize("kind", PIECES)
def test_words_sentences_and_lines(kind: Any) -> None:
    pieces = pieces_of(TEXT, kind)
    assert "|".join(name for name, *_ in pieces) == PIECES[kind]
    for name, start, end in pieces:
        assert name == TEXT[start:end].strip()


def test_tokens_of_pieces() -> None:
    text = 'One| two|.| "|Thr|ee!|"| Four|\n|\n |5|.5| six'
    tokens = text.split("|")
    words = positions_in(tokens, pieces_of(TEXT, "words"))
    assert words == [[0], [1, 2], [3, 4, 5, 6], [7], [8, 9, 10, 11], [12]]
    lines = positions_in(tokens, pieces_of(TEXT, "lines"))
    assert lines == [[*range(8)], [*range(8, 13)]]


def test_a_character_of_several_tokens_is_in_the_span_that_it_ends_in() -> None:
    class Bytes:
        """A tokenizer of bytes."""

        def decode(self, ids: list[int], **_: Any) -> str:
            return bytes(ids).decode("utf-8", errors="replace")

    text = "aé→ 漢 z"
    texts = texts_in_context(Bytes(), list(text.encode()))
    assert "".join(texts) == text
    assert positions_in(texts, pieces_of(text, "words")) == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9],
        [10, 11],
    ]


def test_the_ends_of_known_norms() -> None:
    """Norms of rows side by side, of which rounding moves each by 0.1 (e + 4), where 4 is that of all rows."""
    high, low, likely = torch.tensor(
        [[[3.0, 0.0, 4.0]], [[2.0, 0.0, 1.0]], [[1.0, 0.0, 3.5]]], dtype=torch.float64
    )
    ends = Ends(high, low, likely)
    assert (
        ends.tightness == 1.5
    )  # 3 ÷ 2, as the estimate is below the lower end; 0 ÷ 0 is 1
    spans = Spans(["a", "b", ""], [[0, 2], [1], [0, 1, 2]])
    reached = torch.tensor([[[True, False, True]]])
    found = ends.by_span(reached, torch.tensor([[0.1]], dtype=torch.float64), spans)
    root = 0.1 * 2**0.5  # of the two rows of the first span; nothing reaches the second
    np.testing.assert_allclose(found.high, [[3 + root * (3 + 4), 0]])
    np.testing.assert_allclose(found.low, [[2 - root * (2 + 4), 0]])
