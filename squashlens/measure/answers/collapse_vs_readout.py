"""Whether wrong answers are caused by collapse: answers and representations compared on the same prompts.

Corollary B.10 derives wrong counts from representational collapse. A count may also be wrong although it is
represented, if the model does not read it out. The verdicts distinguish these cases if the evidence allows it. A probe
counts only by its gain over random weights, over a control task and over the prompt's length.

A verdict is a fixed sequence of decisions, each of which asks whether an interval is on one side of a threshold. Two
runs with different numbers of samples may therefore differ in whether they decide, but not in what they decide, apart
from the errors that a 95 % interval allows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xarray as xr

from squashlens._typing import Bridge, Mode, Template
from squashlens.errors import InputError
from squashlens.measure.answers._scores import N_TRAIN, Answers
from squashlens.measure.answers.evaluate import (
    answer_questions,
    answers_file,
    prepare_questions,
)
from squashlens.measure.answers.frequencies import HALF, Ability, score_answers
from squashlens.measure.answers.probe import (
    N_RANDOM_MODELS,
    N_SEEDS,
    probe_layers,
    require_probing,
    streams,
)
from squashlens.measure.collapse.metric import Dtype, Metric, find_dtype
from squashlens.measure.registration import measurement
from squashlens.records.labels import Variable
from squashlens.records.sentences import plural
from squashlens.run.activations import at_last_tokens
from squashlens.run.run import Run
from squashlens.saving.journal import checked
from squashlens.sequences import Ids
from squashlens.tasks import Task
from squashlens.tasks.task import Prompting
from squashlens.theory.distances import identical
from squashlens.theory.statistics.ranks import wilson

__all__ = ["VERDICTS", "collapse_vs_readout"]


# Longer than 60 lines, since nearly every step from prompts to verdicts needs the results of the earlier ones.
@measurement(
    "collapse_vs_readout",
    "probe",
    cheaper="Fewer lengths= or n_random_models=0 takes less.",
)
def collapse_vs_readout(
    model: Bridge,
    task: Task | str,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    mode: Mode = "answer_only",
    template: Template = "none",
    n_examples: int = 0,
    n_baseline: int = 16,
    n_train: int = N_TRAIN,
    n_random_models: int = N_RANDOM_MODELS,
    round_to: Dtype | None = None,
    resume: str | Path | None = None,
) -> xr.Dataset:
    """Accuracy, collapse and a probe of the right answer at each length, and a verdict on the cause of wrong answers.

    All are measured at the token after which the answer is given: each prompt ends with the first words of its answer,
    if the task requests some. v is the prompt, and v* the same with its last item repeated.

    Args:
        model, lengths, template, n_examples, n_baseline, resume: as in `evaluate`.
        task, mode, n_train, n_random_models: as in `probe`.
        seeds: number of random samples at each length, or a list of random seeds. By default 128, or 1 if all samples
            would be the same.
        round_to: dtype to which y and y* are rounded before they are compared bit by bit; that of the run by default.

    Returns:
        Dataset. Over (length), dimensionless: `accuracy`, with its interval; `same_argmax`, the share of pairs with
        the same next token (of an answer of several tokens, only the first); `same_answer`, the share of pairs with the
        same answer text; `same_truth`, the share of pairs with the same right answer; `bit_identical`, the share of
        pairs whose y are bit-identical after rounding; `verdict`, and `reason`, a sentence with the numbers that decide
        it. Over (length, seed): `distance`, the L∞ distance D at layer L divided by the root mean square of v, and
        `distance_y`; `inserted`, the number of tokens that v* has more; `right`. Also all variables of `probe`, unless
        no length can be probed.

        The verdict at a length is the first of the following that holds. A threshold counts as reached or missed only
        if a whole 95 % interval is on one side of it. Otherwise the verdict is **undecided**, and `reason` says what
        would decide it.

        1. **read out**: at least half of the answers are right.
        2. **collapsed**: of the pairs whose right answers differ, at least half are bit-identical, so that one of the
           two answers must be wrong.
        3. **given by length**: at this length there is only one right answer, or the number of tokens alone predicts it
           with R² ≥ 0.9. This is not a verdict about the model.
        4. **no more than a baseline**: `gain_y`, the probe's R² minus that of the best baseline (random weights,
           control task, number of tokens, 0), is below 0.05.
        5. **represented, not read out**: `gain_y` is above 0.05 and `r2_y` ≥ 0.9.
        6. **partly represented, not read out**: `gain_y` is above 0.05 and `r2_y` < 0.9.

        A verdict is about the representations at its length. Whether wrong answers are an effect of the length is
        another question: the coordinate `able` and the scalars `able_reason`, `baseline`, `chance` and
        `baseline_questions` say whether the model can do the task at short lengths, as in `evaluate`. Unless it can,
        `reason` says that longer lengths cannot be judged.

        Shares have Wilson's interval, and the probe that of `probe`. A task without random items has one prompt at each
        length, and its answer has no interval. Verdicts 5 and 6 need at least 2 models with random weights.

    Raises:
        InputError: right answers that are not numbers; a pair whose tokens are not v and v with its last item repeated,
            for example because the tokenizer merges items; several seeds that would all give the same answer.
        CapacityError: a second model does not fit into memory.

    Source: Barbero et al. 2024, Corollary B.10; the verdicts are ours.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.collapse_vs_readout(model, task, lengths=[8, 64], seeds=32)
    >>> found["verdict"].values.tolist()
    ['read out', 'undecided']
    >>> print(found["reason"].values[1])
    32 distinct prompts in 32 samples: a probe needs 80. Use more samples, longer sequences or a smaller n_train=.
    """
    metric = Metric("linf", "relative")
    rounding = replace(metric, round_to=find_dtype(round_to))
    resume = checked(resume)
    require_probing(n_train, n_random_models)
    form = Prompting(
        mode=mode,
        template=template,
        prefill=True,
        n_examples=n_examples,
        n_baseline=n_baseline,
    )
    run, prepared = prepare_questions(
        Run.open(model, "collapse_vs_readout"),
        task,
        lengths,
        seeds,
        form,
        n_seeds=N_SEEDS,
        norm=metric.norm,
        scale=metric.scale,
        round_to=rounding.form,
        n_train=n_train,
        n_random_models=n_random_models,
    )
    task, questions = prepared.task, prepared.each
    doubled = [task.doubled(question) for question in questions]
    every = dict.fromkeys((*questions, *doubled, *prepared.baseline))
    ids = {question: prepared.ids(run, question) for question in every}
    v, star = [ids[q] for q in questions], [ids[q] for q in doubled]
    data = Answers.of(task, questions, v, n_train)
    journal = answers_file(run, task, resume)
    inserted = [more(a, b) for a, b in zip(v, star, strict=True)]
    last = at_last_tokens(run, [*v, *star], run.sites())
    own, other = streams(run, last).split(len(v), dim=1)
    answers = answer_questions(run, prepared, ids, journal)
    asked, short = (
        {q: answers[q] for q in each} for each in (questions, prepared.baseline)
    )
    scores = score_answers(task, asked, run.facts, prefill=True, short=short).isel(
        mode=0
    )
    shape = (scores.sizes["length"], scores.sizes["seed"])
    over = ("length", "seed")
    gaps = metric.gap(own[-2:], other[-2:]).reshape(2, *shape)
    same_bits = (
        identical(own[-1], other[-1], rounding.round_to or run.dtype).reshape(shape)
        == 1
    )
    same_next = (last.next[: len(v)] == last.next[len(v) :]).reshape(shape)
    same_answer = np.array(
        [
            answers[a].text == answers[b].text
            for a, b in zip(questions, doubled, strict=True)
        ]
    )
    same_truth = np.array(
        [a.truth == b.truth for a, b in zip(questions, doubled, strict=True)]
    ).reshape(shape)
    bits = rounding.stated("share of pairs with bit-identical y")
    found: dict[str, Variable] = {
        "distance": (
            over,
            gaps[0],
            metric.distance("distance of v and v* at layer L"),
            metric.units,
        ),
        "distance_y": (
            over,
            gaps[1],
            metric.distance("distance of v and v*, y"),
            metric.units,
        ),
        "inserted": (
            over,
            np.array(inserted).reshape(shape),
            "number of tokens that v* has more",
            "tokens",
        ),
        "right": (
            over,
            scores["right"].values,
            "whether the parsed value is the right answer",
            "1",
        ),
        "same_argmax": (
            over[:1],
            same_next.double().mean(dim=1),
            "share of pairs with the same next token",
            "1",
        ),
        "same_answer": (
            over[:1],
            same_answer.reshape(shape).mean(axis=1),
            "share of pairs with the same answer",
            "1",
        ),
        "same_truth": (
            over[:1],
            same_truth.mean(axis=1),
            "share of pairs with the same right answer",
            "1",
        ),
        "bit_identical": (over[:1], same_bits.double().mean(dim=1), bits, "1"),
    }
    for name in ("accuracy", "accuracy_low", "accuracy_high", *Ability._fields[1:]):
        long_name, units = (scores[name].attrs[k] for k in ("long_name", "units"))
        found[name] = (
            tuple(map(str, scores[name].dims)),
            scores[name].values,
            long_name,
            units,
        )
    coords = {
        "length": scores["length"].values,
        "seed": scores["seed"].values,
        "able": scores["able"].item(),
    }
    if data.probed:
        probes, facts = probe_layers(run, data, own, v, "own", n_random_models)
        found |= probes
        run = run.knowing(**facts)
        coords |= {"layer": list(range(run.n_blocks + 1))}
    of_y = {
        name.removesuffix("_y"): np.asarray(each[1])
        for name, each in found.items()
        if each[0] == over[:1]
    }
    judged = verdicts(
        data,
        scores["right"].values,
        same_bits.numpy(),
        ~same_truth,
        task.random,
        n_random_models,
        of_y,
    )
    if (
        scores["able"] != "yes"
    ):  # what is said of wrong answers holds, but not as an effect of length
        unable = f" Length is not shown to matter: {scores['able_reason'].item()}"
        judged = [
            (verdict, reason + unable * (verdict != READ)) for verdict, reason in judged
        ]
    words, reasons = (
        np.array(list(column), dtype=object) for column in zip(*judged, strict=True)
    )
    found["verdict"] = (over[:1], words, "verdict on the answers", "text")
    found["reason"] = (
        over[:1],
        reasons,
        "what decides the verdict, or would decide it",
        "text",
    )
    return run.dataset(f"collapse and read-out of {task.name}", coords, found)


def more(v: Ids, star: Ids) -> int:
    """The number of tokens that v* has more than v. Raises unless v* is v with its last item repeated."""
    extra = len(star) - len(v)
    ends_alike = (
        p
        for p in range(1, len(v) + 1)
        if star[:p] == v[:p] and star[p + extra :] == v[p:]
    )
    if extra < 1 or not any(star[p + extra - 1] == v[p - 1] for p in ends_alike):
        raise InputError(
            "The prompt with its last item repeated does not contain the prompt's tokens, because the tokenizer merges "
            "items.",
            "Separate the items: `task.shown(', ')` or `task.shown(' ')`.",
        )
    return extra


READ, COLLAPSED, LENGTH, REPRESENTED, PARTLY, BASELINE, UNDECIDED = VERDICTS = (
    "read out",
    "collapsed",
    "given by length",
    "represented, not read out",
    "partly represented, not read out",
    "no more than a baseline",
    "undecided",
)
MARGIN = 0.05  # least gain in R² over the best baseline that counts; our choice
REPRESENTED_FROM = (
    0.9  # least R² at which the right answer counts as represented; our choice
)
Judgement = tuple[str, str]  # verdict and reason


@dataclass(frozen=True)
class Evidence:
    """The evidence at one length.

    `right` of `samples` answers are right. Of the `pairs` with different right answers, `same_bits` are bit-identical.
    `random` says whether the task has random items, `constant` whether all right answers are the same. There are
    `prompts` distinct prompts, and a probe needs `needed` of them, including `n_train` for training. `probe` gives the
    value of a probe variable by name (`r2_low`, …), NaN if there is none.
    """

    right: int
    samples: int
    same_bits: int
    pairs: int
    random: bool
    constant: bool
    prompts: int
    needed: int
    n_train: int
    n_random_models: int
    probe: Callable[[str], float]


def judge(evidence: Evidence) -> Judgement:
    """The judgement of the first step that decides, or that is undecided."""
    e, differing = evidence, "pairs with different right answers are bit-identical"
    found = _at_least_half(READ, e.right, e.samples, e.random, "answers are right")
    if found is None and e.pairs:
        found = _at_least_half(COLLAPSED, e.same_bits, e.pairs, e.random, differing)
    return found or _judge_length(e) or _judge_probe(e)


def _at_least_half(
    verdict: str, count: int, total: int, random: bool, what: str
) -> Judgement | None:
    """The verdict if the interval of the share is at least 1/2, undecided if it includes 1/2, else None."""
    share, text = count / total, f"{count} of {total} {what}"
    # A task without random items always repeats its share.
    low, high = map(float, wilson(share, total)) if random else (share, share)
    if low >= HALF:
        return verdict, f"{text}."
    if high >= HALF:
        return (
            UNDECIDED,
            f"{text}; the interval {_range(low, high)} includes 1/2. More samples would decide.",
        )
    return None


def _judge_length(e: Evidence) -> Judgement | None:
    """Step 3: whether the length determines the right answer."""
    if e.constant:
        if not e.random or e.samples >= e.n_train:
            return (
                LENGTH,
                "All prompts of this length have the same right answer, so that a probe shows nothing.",
            )
        return (
            UNDECIDED,
            f"{plural(e.samples, 'sample')} with one right answer; {e.n_train} would show if all have it.",
        )
    low, high = e.probe("r2_length_low"), e.probe("r2_length_high")
    if low >= REPRESENTED_FROM:
        return (
            LENGTH,
            f"The number of tokens alone predicts the answer (R² is {_range(low, high)}).",
        )
    if high >= REPRESENTED_FROM:
        return UNDECIDED, (
            f"R² from the number of tokens alone is {_range(low, high)}. More samples would decide whether it reaches "
            f"{REPRESENTED_FROM:g}."
        )
    return None


def _judge_probe(e: Evidence) -> Judgement:
    """Steps 4 to 6: whether a probe finds more of the right answer than the best baseline, and how much."""
    low, high = e.probe("gain_low"), e.probe("gain_high")
    if np.isnan(e.probe("r2")):
        why = "Nearly all prompts have the same right answer, so that R² is undefined in at least half of the splits"
        if e.prompts < e.needed:
            why = f"{plural(e.prompts, 'distinct prompt')} in {plural(e.samples, 'sample')}: a probe needs {e.needed}"
        return (
            UNDECIDED,
            f"{why}. Use more samples, longer sequences or a smaller n_train=.",
        )
    r2 = f"R² is {_range(e.probe('r2_low'), e.probe('r2_high'))}"
    if high < MARGIN:
        ends = "" if np.isnan(low) else f"{_range(low, high)}, "
        return (
            BASELINE,
            f"{r2}; its gain over the best baseline is {ends}below {MARGIN}.",
        )
    if not low > MARGIN:
        if e.n_random_models < 2:
            return (
                UNDECIDED,
                f"{r2}; its gain over random weights needs two such models, not {e.n_random_models}.",
            )
        return UNDECIDED, (
            f"{r2}; its gain over the best baseline is {_range(low, high)}, which includes {MARGIN}. More samples or "
            "more random models would decide."
        )
    text = (
        f"{r2}; its gain over the best baseline is {_range(low, high)}, above {MARGIN}"
    )
    if e.probe("r2_low") >= REPRESENTED_FROM:
        return REPRESENTED, f"{text}."
    if e.probe("r2_high") < REPRESENTED_FROM:
        return PARTLY, f"{text}."
    return (
        UNDECIDED,
        f"{text}. More samples would decide whether R² reaches {REPRESENTED_FROM:g}.",
    )


def _range(low: float, high: float) -> str:
    """A range with two decimal places, without a minus sign before zero."""
    return " to ".join(
        f"{value + 0:.2f}".replace("-", "−").replace("−0.00", "0.00")
        for value in (low, high)
    )


def verdicts(
    data: Answers,
    right: np.ndarray,
    same_bits: np.ndarray,
    differ: np.ndarray,
    random: bool,
    n_random_models: int,
    probe: Mapping[str, np.ndarray],
) -> list[Judgement]:
    """The verdict and its reason for each length; `right`, `same_bits` and `differ` are over (length, seed)."""
    return [
        judge(
            Evidence(
                int(right[at].sum()),
                right.shape[1],
                int((same_bits & differ)[at].sum()),
                int(differ[at].sum()),
                random,
                not data.varied[at],
                data.prompts[at],
                data.needed,
                data.n_train,
                n_random_models,
                lambda name, at=at: (
                    float(probe[name][at]) if name in probe else float("nan")
                ),
            ),
        )
        for at in range(len(data.lengths))
    ]
