"""The joined view: each part against the function it comes from, pairs against token-space pairs, verdicts by hand."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers.collapse_vs_readout import more
from squashlens.tasks import Task
from tests.measurements import together

BERNOULLI, REPEATED = (
    sl.tasks.find(f"taught_count_{pattern}") for pattern in ("bernoulli", "repeated")
)
LENGTHS = [8, 24]
SEEDS, N_TRAIN = 32, 16  # too few different prompts of 8 digits, and enough of 24


@pytest.fixture(scope="module")
def joined(tiny: Any) -> Any:
    how: dict[str, Any] = {
        "lengths": LENGTHS,
        "seeds": SEEDS,
        "n_train": N_TRAIN,
        "n_random_models": 2,
    }
    return together(
        "joined view", lambda: sl.collapse_vs_readout(tiny, BERNOULLI, **how)
    )


@pytest.mark.slow
def test_agreement_is_counted_on_pairs(tiny: Any, joined: Any) -> None:
    model_says = sl.evaluate_task(tiny, BERNOULLI, lengths=[8], seeds=SEEDS)[
        "answer"
    ].values[0, 0]
    alike, same = [], []
    for seed in range(SEEDS):
        question = BERNOULLI.ask(8, seed=seed)
        twin = BERNOULLI.doubled(question)
        ids = sl.prompts.tokenize(tiny, twin.prompt)
        out = tiny.original_model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=4
        )
        text = tiny.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        alike.append(text == model_says[seed])
        same.append(twin.truth == question.truth)
    assert joined["same_answer"].values[0] == pytest.approx(np.mean(alike))
    assert joined["same_truth"].values[0] == pytest.approx(np.mean(same))
    assert 0 < np.mean(same) < 1


@pytest.mark.few(1)
@pytest.mark.parametrize("task", ["taught_count_alternating", "taught_count_repeated"])
def test_where_the_length_gives_the_answer_away_there_is_no_verdict(
    tiny: Any, task: str
) -> None:
    """Alternating digits of an even length have one count, whichever comes first; repeated ones always."""
    found = sl.tasks.find(task)
    ds = sl.collapse_vs_readout(
        tiny, found, lengths=[64], seeds=64 if found.random else 1
    )
    assert (ds["accuracy"] < 0.5).all()
    assert "r2_y" not in ds
    assert ds["verdict"].values.tolist() == ["given by length"]


@pytest.mark.slow
def test_verdicts_of_the_bundled_model(tiny: Any) -> None:
    """Beyond its training it answers next to nothing rightly. A line finds the count, in random weights as well."""
    ds = sl.collapse_vs_readout(tiny, BERNOULLI, lengths=[5, 56], n_random_models=2)
    assert ds["verdict"].values.tolist() == ["read out", "no more than a baseline"]
    assert "below 0.05" in str(ds["reason"].values[1])


@pytest.mark.slow
def test_a_planted_answer_is_called_represented(tiny: Any) -> None:
    """An answer that the model does not give is written into its last residual stream by a hook, with as much noise as
    a known R² leaves; twins run without the hook."""
    first = sl.tasks.find("taught_first_random")
    task = Task(
        "first, not said",
        first.template.replace("first", "last"),
        first.draw,
        first.answer,
        first.show,
    )
    digits = [int(sl.prompts.tokenize(tiny, str(digit))[0, -1]) for digit in range(10)]
    seen: dict[str, Any] = {}
    weight = tiny.original_model.get_input_embeddings().weight.detach()
    base, direction = torch.randn(
        2, tiny.cfg.d_model, generator=torch.Generator().manual_seed(1)
    )
    place = len(
        sl.prompts.tokenize(
            tiny, first.template.replace("first", "last").split(" {")[0]
        )[0]
    )

    def look(tensor: Any) -> None:
        table = weight[digits] * tensor[0, 0].norm() / weight[2].norm()
        if tensor.shape[1] <= place:  # an answer's token
            return
        near = (
            torch.cdist(tensor[:, place:].double(), table.double())
            .argmin(dim=-1)
            .to(tensor.dtype)
        )
        seen["digit"] = near[:, 0]
        # Noise from the digits alone, since each prompt must be the same whatever its batch and its rounding.
        seen["noise"] = (near @ torch.arange(1.0, near.shape[1] + 1)).sin() * 2**0.5

    def plant(tensor: Any) -> Any:
        out = tensor.clone()  # the norm takes the size away: the answer is how far the direction has turned
        out[:, -1] = (
            base
            + 0.02 * direction * (seen["digit"] - 4.5 + 0.3 * seen["noise"])[:, None]
        )
        return out

    last = f"blocks.{tiny.cfg.n_layers - 1}.hook_resid_post"
    with sl.applied(
        tiny,
        sl.hooks.Hook("look", "blocks.0.hook_resid_pre", look),
        sl.hooks.Hook("plant", last, plant),
    ):
        how: dict[str, Any] = {
            "lengths": [24],
            "seeds": 64,
            "n_train": 40,
            "n_random_models": 3,
        }
        ds = sl.collapse_vs_readout(tiny, task, **how)
    assert ds["accuracy"] < 0.5
    assert ds["r2"].sel(layer=tiny.cfg.n_layers) == pytest.approx(
        1 - 0.3**2 / (8.25 + 0.3**2), abs=0.05
    )
    assert ds["verdict"].item() in (
        "represented, not read out",
        "partly represented, not read out",
    )


@pytest.mark.parametrize(
    ("v", "star", "extra"),
    [
        ((2, 5, 5, 9), (2, 5, 5, 5, 9), 1),
        ((2, 5, 7), (2, 5, 7, 7), 1),
        ((2, 5, 9), (2, 5, 8, 5, 9), 2),
        ((2, 5, 8, 5, 9), (2, 5, 8, 5, 8, 5, 9), 2),  # with something between items
        ((2, 11, 9), (2, 111, 9), None),  # merged into another token
        ((2, 11, 11, 9), (2, 11, 11, 1, 9), None),  # what comes in is another token
        ((2, 5, 9), (2, 5, 9), None),
        ((2, 5, 5, 9), (2, 5, 9), None),
        ((2, 5, 9), (2, 6, 6, 9), None),
    ],
)
def test_pairs_are_known_by_their_tokens(
    v: tuple[int, ...], star: tuple[int, ...], extra: int | None
) -> None:
    if extra is None:
        with pytest.raises(InputError):
            more(v, star)
    else:
        assert more(v, star) == extra
