"""What a file of answers is of, and what it is not: hooks, models, readers, rooms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.tasks import reading

COUNT = sl.tasks.find("taught_count_bernoulli")


def as_before(text: str, opening: str, ended: bool) -> reading.Reading:
    return reading.number(text, opening, ended)


@pytest.fixture
def how(tmp_path: Path) -> dict[str, Any]:
    return {"lengths": [20], "seeds": 4, "resume": tmp_path / "answers.json", "prompting": {"n_baseline": 0}}


def test_a_function_that_may_change_is_refused_before_anything_is_asked(tiny: Any, how: dict[str, Any]) -> None:
    """Else the file that the first run wrote would be refused by the second."""
    kept: list[int] = []

    def watch(tensor: Any, hook: Any) -> None:
        kept.clear()

    with sl.applied(tiny, ("blocks.0.hook_resid_pre", watch)), pytest.raises(InputError, match="which may change"):
        sl.evaluate(tiny, COUNT, **how)
    assert not how["resume"].exists()
    with sl.applied(tiny, ("blocks.0.hook_resid_pre", watch)):
        under = sl.path_bound(tiny, sl.capture(tiny, "110 ="))  # captures are compared by their activations
    np.testing.assert_allclose(under, sl.path_bound(tiny, "110 ="), rtol=1e-6)


def test_what_does_not_change_answers_does_not_end_a_file(tiny: Any, how: dict[str, Any], monkeypatch: Any) -> None:
    """Another reader, a view of the same prompts with other thresholds, another room: no answer is lost or taken."""
    from squashlens.measure.answers import evaluate as module

    asked: list[int] = []
    real = module.generate

    def counted(model: Any, prompts: Any, **options: Any) -> Any:
        asked.append(len(prompts))
        return real(model, prompts, **options)

    monkeypatch.setattr(module, "generate", counted)
    sl.evaluate(tiny, COUNT, **how)
    other = sl.evaluate(tiny, replace(COUNT, read=as_before), **how)
    assert asked == [4, 0]
    assert sl.results.provenance(other)["task"]["read_as"] == "as_before"
    sl.evaluate(tiny, COUNT, max_new_tokens=3, **how)
    sl.evaluate(tiny, COUNT, max_new_tokens=3, **how)
    assert asked[2:] == [4, 0], "answers with less room are others, and both are kept"
    joined: dict[str, Any] = how | {"seeds": 12, "resume": how["resume"].with_name("joined.json")}
    for number, options in enumerate(({}, {"probing": {"n_train": 3}}, {"round_to": "bf16"})):
        sl.collapse_vs_readout(tiny, COUNT, **joined, **options)
        assert asked[4 + number] == (0 if number else 24)


def test_a_task_in_other_words_finds_no_old_answer(tiny: Any, how: dict[str, Any]) -> None:
    edited = replace(COUNT, template=sl.tasks.find("taught_last_bernoulli").template)
    before = sl.evaluate(tiny, COUNT, **how)
    after = sl.evaluate(tiny, edited, **how)
    assert after.drop_attrs().identical(sl.evaluate(tiny, edited, **how | {"resume": None}).drop_attrs())
    assert (before["answer"] != after["answer"]).any()
