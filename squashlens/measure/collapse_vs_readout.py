"""Is a wrong answer the work of collapse? What the model answers, beside what it represents, on the very same prompts.

Corollary B.10 derives wrong counts from representational collapse. That is one way to a wrong count; another is a count
that stands in the representation and is not read out. The four verdicts tell them apart.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Mode, Scale, Template
from squashlens.errors import InputError
from squashlens.journal import checked
from squashlens.measure._asking import Asking
from squashlens.measure._pairs import Ruler, check_choices
from squashlens.measure.answers import scored
from squashlens.measure.behave import answered
from squashlens.measure.probe import ENOUGH, Answers, probed, streams
from squashlens.model.anatomy import dtype_of, n_blocks, residual_sites
from squashlens.model.branches import Ids
from squashlens.model.ends import ends
from squashlens.model.registry import measured
from squashlens.results import Variable
from squashlens.tasks import Task
from squashlens.theory.distances import identical

VERDICTS = ("read out", "represented, not read out", "collapsed", "not decodable")


@measured
def collapse_vs_readout(
    model: Bridge,
    task: Task,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    mode: Mode = "answer_only",
    template: Template = "none",
    norm: Distance = "linf",
    scale: Scale = "relative",
    round_to: torch.dtype | None = None,
    decodable: float = 0.9,
    folds: int = 5,
    chunk: int | None = None,
    resume: str | Path | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Accuracy, collapse, the next token's agreement and a probe of the right answer, by length, all at the token that
    the answer is given from.

    Each prompt ends with the opening words of its answer (where the task asks for some), so that its last token is that
    one. v is the prompt, v* the same with its last item once more; where the two are not a pair in tokens, as when a
    tokenizer merges items, they are refused.

    Args:
        task, lengths, mode, template, chunk: as in `behave`.
        seeds: how many draws at each length, or their seeds; 128 if not given, 1 where all are the same.
        norm, scale: of D, as in `collapse`.
        round_to: the dtype in which y and y* are compared bit by bit; that of the run if not given.
        decodable: the R² from which on the answer counts as represented.
        folds: as in `probe`.
        resume: a file that keeps the answers, as in `behave`.

    Returns:
        Dataset. Over (length): `accuracy` with its interval; `same_argmax`, the share of pairs with the same next
        token, which of an answer of several tokens is only the first; `same_answer`, the share answered in the same
        words; `same_truth`, the share whose right answer is the same; `bit_identical`, the share of pairs with every
        coordinate of y the same once rounded; `r2_y`, `probe_right_y` of the probe, and `verdict`:
        **read out**, at least half of the answers are right; **represented, not read out**, fewer, and the probe of y
        has R² ≥ `decodable` (or, where all prompts of a length are one, so that the probe learns from other lengths,
        predicts the answer);
        **collapsed**, neither, and at least half of the pairs are the same bits; **not decodable**, none of these.
        Over (length, seed): `distance`, D at layer L; `distance_y`; `inserted`, tokens that v* has more; `right`.
        Over (layer, length): `r2`, `probe_right`. No probe where every right answer is the same.

    Source: Barbero et al. 2024, Corollary B.10; the verdicts are ours.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.collapse_vs_readout(model, task, lengths=[8, 64], seeds=32, progress=False)
    >>> str(found["verdict"].values[0])
    'read out'
    """
    check_choices(norm=norm, scale=scale, passes="auto")
    resume = checked(resume)
    if not 0 < decodable <= 1:
        raise InputError(f"decodable={decodable!r} is no R² to reach.", "Give a number above 0, at most 1.")
    asking = Asking.start(
        model, task, lengths, seeds, "collapse_vs_readout", modes=[mode], template=template, opened=True, draws=ENOUGH,
        norm=norm, scale=scale, round_to=None if round_to is None else str(round_to).removeprefix("torch."),
        decodable=decodable, folds=folds,
    )  # fmt: skip
    sound, questions = asking.session.model, asking.questions
    data = None if len({q.truth for q in questions}) == 1 else Answers.of(task, questions, folds)
    twins = [task.doubled(question) for question in questions]
    ids = {question: asking.ids(question) for question in (*questions, *twins)}
    v, star = [ids[q] for q in questions], [ids[q] for q in twins]
    journal = asking.journal(resume)
    inserted = [more(a, b) for a, b in zip(v, star, strict=True)]
    shown = ends(sound, [*v, *star], residual_sites(sound), chunk=chunk, progress=progress)
    own, other = streams(sound, shown).split(len(v), dim=1)
    answers = answered(asking, ids, journal, chunk=chunk, progress=progress)
    said = scored(task, {q: answers[q] for q in questions}, asking.session.facts, opened=True).isel(mode=0)
    shape = (said.sizes["length"], said.sizes["seed"])
    over, ruler = ("length", "seed"), Ruler(norm, scale)
    gaps = ruler.gap(own[-2:], other[-2:]).reshape(2, *shape)
    same_bits = identical(own[-1], other[-1], round_to or dtype_of(sound)).reshape(shape) == 1
    same_next = (shown.next[: len(v)] == shown.next[len(v) :]).reshape(shape)
    same_answer = np.array([answers[a].text == answers[b].text for a, b in zip(questions, twins, strict=True)])
    same_truth = np.array([a.truth == b.truth for a, b in zip(questions, twins, strict=True)]).reshape(shape)
    found: dict[str, Variable] = {
        "distance": (over, gaps[0], f"{norm} distance of v and v* at layer L", ruler.units),
        "distance_y": (over, gaps[1], f"{norm} distance of v and v*, y", ruler.units),
        "inserted": (over, np.array(inserted).reshape(shape), "tokens that v* has more", "token"),
        "right": (over, said["right"].values, "whether what was read is the right answer", "1"),
        "same_argmax": (over[:1], same_next.double().mean(dim=1), "share of pairs with the same next token", "1"),
        "same_answer": (over[:1], same_answer.reshape(shape).mean(axis=1), "share of pairs answered alike", "1"),
        "same_truth": (over[:1], same_truth.mean(axis=1), "share of pairs with the same right answer", "1"),
        "bit_identical": (over[:1], same_bits.double().mean(dim=1), "share of pairs that are the same bits, y", "1"),
    }
    for name in ("accuracy", "accuracy_low", "accuracy_high"):
        found[name] = (over[:1], said[name].values, said[name].attrs["long_name"], "1")
    if data is not None:
        found |= probed(data, own, "own", progress)
    found["verdict"] = (over[:1], _verdicts(found, decodable), "what became of the answer", "text")
    coords = {"layer": list(range(n_blocks(sound) + 1))} if data is not None else {}
    coords |= {"length": said["length"].values, "seed": said["seed"].values}
    return asking.session.dataset(f"collapse and read-out of {task.name}", coords, found)


def more(v: Ids, star: Ids) -> int:
    """How many tokens v* has more than v; refused unless they are v's last item once more, and nothing else."""
    extra = len(star) - len(v)
    ends_alike = (p for p in range(1, len(v) + 1) if star[:p] == v[:p] and star[p + extra :] == v[p:])
    if extra < 1 or not any(star[p + extra - 1] == v[p - 1] for p in ends_alike):
        raise InputError(
            "The prompt with its last item once more is not the same tokens and some more: the tokenizer merges items.",
            "Put something between them: `task.shown(', ')`, or `task.shown(' ')`.",
        )
    return extra


def _verdicts(found: dict[str, Variable], decodable: float) -> np.ndarray:
    accuracy, bits = np.asarray(found["accuracy"][1]), np.asarray(found["bit_identical"][1])
    represented = np.zeros(len(accuracy), dtype=bool)
    if "r2_y" in found:
        r2, right = np.asarray(found["r2_y"][1]), np.asarray(found["probe_right_y"][1])
        represented = np.where(np.isnan(r2), right >= 1 / 2, r2 >= decodable)
    chosen = np.select([accuracy >= 1 / 2, represented, bits >= 1 / 2], VERDICTS[:3], VERDICTS[3])
    return chosen.astype(object)
