"""Is a wrong answer the work of collapse? What the model answers, beside what it represents, on the very same prompts.

Corollary B.10 derives wrong counts from representational collapse. That is one way to a wrong count; another is a count
that stands in the representation and is not read out. The verdicts tell them apart where the evidence does: a probe
counts only by what it finds beyond random weights, a control task and the prompt's length.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Mode, Scale, Template
from squashlens.errors import InputError
from squashlens.journal import checked
from squashlens.measure._asking import Asking
from squashlens.measure._pairs import Ruler, check_choices
from squashlens.measure._splits import FIT, Answers
from squashlens.measure._verdicts import VERDICTS, verdicts
from squashlens.measure.answers import scored
from squashlens.measure.behave import answered
from squashlens.measure.probe import ENOUGH, TWINS, check_probes, probed, streams
from squashlens.model.anatomy import dtype_of, n_blocks, residual_sites
from squashlens.model.branches import Ids
from squashlens.model.ends import ends
from squashlens.model.registry import measured
from squashlens.results import Variable
from squashlens.tasks import Task
from squashlens.theory.distances import identical

__all__ = ["VERDICTS", "collapse_vs_readout"]


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
    fit: int = FIT,
    twins: int = TWINS,
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
        fit, twins: as in `probe`. Twins are models with random weights: each costs a second model in memory, one after
            the other, and one more forward pass for every prompt.
        resume: a file that keeps the answers, as in `behave`.

    Returns:
        Dataset. Over (length): `accuracy` with its interval; `same_argmax`, the share of pairs with the same next
        token, which of an answer of several tokens is only the first; `same_answer`, the share answered in the same
        words; `same_truth`, the share whose right answer is the same; `bit_identical`, the share of pairs with every
        coordinate of y the same once rounded; `verdict` and `reason`, a sentence with the numbers behind it.
        Over (length, seed): `distance`, D at layer L; `distance_y`; `inserted`, tokens that v* has more; `right`.
        All that `probe` gives, unless no length can be probed.

        The verdict at a length is the first that holds. Every bar is met or missed by a whole 95 % interval; where the
        interval includes the bar, the verdict is **undecided** and `reason` says what would decide.

        1. **read out**: at least half of the answers are right.
        2. **collapsed**: of the pairs whose right answers differ, at least half are the same bits: one of the two
           answers must be wrong, whatever reads them.
        3. **given by length**, which is no verdict about the model: at this length there is one right answer, or the
           number of tokens alone predicts it with R² ≥ `decodable`.
        4. **no more than a baseline**: `gain_y`, the probe's R² less that of the best baseline (random weights, control
           task, number of tokens, 0), is below 0.05.
        5. **represented, not read out**: `gain_y` is above 0.05 and `r2_y` ≥ `decodable`.
        6. **partly represented, not read out**: `gain_y` is above 0.05 and `r2_y` < `decodable`.

        Shares have Wilson's interval, the probe has that of `probe`. Of a task that does not draw its items there is
        one prompt at each length, and its answer has no interval. With fewer than 2 twins, 5 and 6 cannot be reached.

    Source: Barbero et al. 2024, Corollary B.10; the verdicts are ours.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.collapse_vs_readout(model, task, lengths=[8, 64], seeds=32, progress=False)
    >>> found["verdict"].values.tolist()
    ['read out', 'undecided']
    >>> print(found["reason"].values[1])
    32 different prompts among 32 draws; a probe takes 80. More draws, longer sequences or a smaller fit= help.
    """
    check_choices(norm=norm, scale=scale, passes="auto")
    resume = checked(resume)
    if not 0 < decodable <= 1:
        raise InputError(f"decodable={decodable!r} is no R² to reach.", "Give a number above 0, at most 1.")
    check_probes(fit, twins)
    asking = Asking.start(
        model, task, lengths, seeds, "collapse_vs_readout", modes=[mode], template=template, opened=True, draws=ENOUGH,
        norm=norm, scale=scale, round_to=None if round_to is None else str(round_to).removeprefix("torch."),
        decodable=decodable, fit=fit, twins=twins,
    )  # fmt: skip
    sound, questions = asking.session.model, asking.questions
    doubled = [task.doubled(question) for question in questions]
    ids = {question: asking.ids(question) for question in (*questions, *doubled)}
    v, star = [ids[q] for q in questions], [ids[q] for q in doubled]
    data = Answers.of(task, questions, v, fit)
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
    same_answer = np.array([answers[a].text == answers[b].text for a, b in zip(questions, doubled, strict=True)])
    same_truth = np.array([a.truth == b.truth for a, b in zip(questions, doubled, strict=True)]).reshape(shape)
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
    session, coords = asking.session, {"length": said["length"].values, "seed": said["seed"].values}
    if data.probed:
        scores, facts = probed(sound, data, own, v, "own", twins, chunk, progress)
        found |= scores
        session = replace(session, facts={**session.facts, **facts})
        coords |= {"layer": list(range(n_blocks(sound) + 1))}
    of_y = {name.removesuffix("_y"): np.asarray(each[1]) for name, each in found.items() if each[0] == over[:1]}
    judged = verdicts(data, said["right"].values, same_bits.numpy(), ~same_truth, task.random, twins, of_y, decodable)
    words, reasons = (np.array(list(column), dtype=object) for column in zip(*judged, strict=True))
    found["verdict"] = (over[:1], words, "what became of the answer", "text")
    found["reason"] = (over[:1], reasons, "what decided the verdict, or what would", "text")
    return session.dataset(f"collapse and read-out of {task.name}", coords, found)


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
