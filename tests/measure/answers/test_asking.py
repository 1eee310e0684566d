"""What a file of answers is of, and what it is not: hooks, models, readers, rooms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from squashlens.errors import InputError
from squashlens.tasks import reading

COUNT = sl.tasks.find("taught_count_bernoulli")
CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def as_before(text: str, opening: str, ended: bool) -> reading.Reading:
    return reading.number(text, opening, ended)


@pytest.fixture
def how(tmp_path: Path) -> dict[str, Any]:
    return {"lengths": [20], "seeds": 4, "resume": tmp_path / "answers.json", "progress": False}


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (change.uniform_attention(heads=[0]), change.uniform_attention(heads=[1])),
        (change.attention_temperature(2.0), change.attention_temperature(2.0000001)),
        (
            change.resample_residual([3], ["How many 4", "How many 5"], seed=0),
            change.resample_residual([3], ["How many 4", "How many 5"], seed=3),
        ),
        (
            change.patch_residual([3], "How many 4", bos="family"),
            change.patch_residual([3], "How many 5", bos="family"),
        ),
    ],
    ids=["heads", "temperature", "seed", "source"],
)
def test_hooks_that_do_something_else_have_another_name(
    tiny: Any, how: dict[str, Any], first: Any, second: Any
) -> None:
    how |= {"lengths": [8], "seeds": 1}
    named = []
    for hook in (first, second):
        with sl.applied(tiny, hook):
            named.append(sl.results.provenance(sl.top_tokens(tiny, "How many ones are in 1 ="))["ambient_hooks"])
    assert named[0] != named[1]
    with sl.applied(tiny, first):
        sl.evaluate(tiny, COUNT, **how)
    with sl.applied(tiny, second), pytest.raises(InputError, match="saved for a different ambient_hooks"):
        sl.evaluate(tiny, COUNT, **how)


def test_answers_are_resumed_under_the_same_function(tiny: Any, how: dict[str, Any]) -> None:
    """Whatever its name: with the same code and what it closes over, also if TransformerLens holds it."""

    def scaled(factor: float) -> Any:
        return lambda tensor, hook: factor * tensor

    point = tiny.hook_dict["blocks.0.hook_resid_pre"]
    found = []
    for factor in (1.1, 1.1):
        point.add_hook(scaled(factor))
        found.append(sl.evaluate(tiny, COUNT, **how))
        point.remove_hooks()
    assert found[0].identical(found[1])
    point.add_hook(scaled(1.2))
    try:
        with pytest.raises(InputError, match="saved for a different code_and_hooks"):
            sl.evaluate(tiny, COUNT, **how)
    finally:
        point.remove_hooks()


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
    for number, options in enumerate(({}, {"r2_threshold": 0.8}, {"n_train": 3}, {"norm": "l2"})):
        sl.collapse_vs_readout(tiny, COUNT, **joined, **options)
        assert asked[4 + number] == (0 if number else 24)


def test_a_task_in_other_words_finds_no_old_answer(tiny: Any, how: dict[str, Any]) -> None:
    edited = replace(COUNT, template=sl.tasks.find("taught_last_bernoulli").template)
    before = sl.evaluate(tiny, COUNT, **how)
    after = sl.evaluate(tiny, edited, **how)
    assert after.drop_attrs().identical(sl.evaluate(tiny, edited, **how | {"resume": None}).drop_attrs())
    assert (before["answer"] != after["answer"]).any()


@pytest.mark.slow
def test_a_chat_begins_as_its_template_says(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without BOS, for a model that otherwise has one."""
    monkeypatch.setattr(tiny.tokenizer, "chat_template", CHAT, raising=False)
    how: dict[str, Any] = {"lengths": [4], "seeds": 2, "template": "chat", "progress": False}
    without = sl.evaluate(tiny, COUNT, **how)
    assert sl.results.provenance(without)["bos_count"] == 0
    monkeypatch.setattr(tiny.tokenizer, "chat_template", "{{ bos_token }}" + CHAT)
    assert sl.results.provenance(sl.evaluate(tiny, COUNT, **how))["bos_count"] == 1
    ids = torch.tensor(tiny.tokenizer.encode(COUNT.ask(4).prompt, add_special_tokens=False))
    assert without["prompt_tokens"].values[0, 0, 0] == len(ids)
