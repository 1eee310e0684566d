"""Whether wrong answers are caused by collapse: answers and representations compared on the same prompts.

Corollary B.10 derives wrong counts from representational collapse. A count may also be wrong although it is
represented, if the model does not read it out. The verdicts distinguish these cases if the evidence allows it. A probe
counts only by its gain over random weights, over a control task and over the prompt's length.

A verdict is a fixed sequence of decisions, each of which asks whether an interval is on one side of a threshold. Two
runs with different numbers of samples may therefore differ in whether they decide, but not in what they decide, apart
from the errors that a 95 % interval allows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import Bridge, Mode, Template
from squashlens.errors import InputError
from squashlens.measure.answers.evaluate_task import (
    answer_questions,
    answers_file,
    prepare_questions,
)
from squashlens.measure.answers.frequencies import HALF, Ability, Answer
from squashlens.measure.answers.probe import (
    N_RANDOM_MODELS,
    N_SEEDS,
    probe_layers,
    require_probing,
    streams,
)
from squashlens.measure.answers.probe_scores import N_TRAIN, ProbedAnswers
from squashlens.measure.collapse.metric import Metric
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.records.labels import Variable
from squashlens.records.sentences import plural
from squashlens.run.activations import LastTokens, at_last_tokens
from squashlens.run.run import Run
from squashlens.saving.journal import checked
from squashlens.sequences import Ids
from squashlens.tasks import Question, Task
from squashlens.tasks.task import Prompting
from squashlens.theory.distances import identical
from squashlens.theory.statistics.ranks import wilson

__all__ = ["VERDICTS", "collapse_vs_readout"]


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
    resume: str | Path | None = None,
) -> xr.Dataset:
    """Accuracy, collapse and a probe of the right answer at each length, and a verdict on the cause of wrong answers.

    All are measured at the token after which the answer is given: each prompt ends with the first words of its answer,
    if the task requests some. v is the prompt, and v* the same with its last item repeated.

    Args:
        model, lengths, template, n_examples, n_baseline, resume: as in `evaluate_task`.
        task, mode, n_train, n_random_models: as in `probe`.
        seeds: number of random samples at each length, or a list of random seeds. By default 128, or 1 if all samples
            would be the same.

    Returns:
        Dataset. Over (length), dimensionless: `accuracy`, with its interval; `same_argmax`, the share of pairs with
        the same next token (of an answer of several tokens, only the first); `same_answer`, the share of pairs with the
        same answer text; `same_truth`, the share of pairs with the same right answer; `bit_identical`, the share of
        pairs whose y are bit-identical; `verdict`, and `reason`, a sentence with the numbers that decide
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
        `baseline_questions` say whether the model can do the task at short lengths, as in `evaluate_task`. Unless it
        can, `reason` says that longer lengths cannot be judged.

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
    resume = checked(resume)
    require_probing(n_train, n_random_models)
    form = Prompting(
        mode=mode,
        template=template,
        prefill=True,
        n_examples=n_examples,
        n_baseline=n_baseline,
    )
    run = Run.open(model, **this_call())
    run, asked = prepare_questions(run, task, lengths, seeds, form, n_seeds=N_SEEDS)
    doubled = [asked.task.doubled(question) for question in asked.each]
    ids = asked.all_ids(run, doubled)
    v = [ids[question] for question in asked.each]
    v_star = [ids[question] for question in doubled]
    data = ProbedAnswers.of(asked.task, asked.each, v, n_train)
    inserted = [more(*pair) for pair in zip(v, v_star, strict=True)]
    journal = answers_file(run, asked.task, resume)
    last = at_last_tokens(run, v + v_star, run.sites())  # all v, then all v*
    answers = answer_questions(run, asked, ids, journal)
    scores = asked.scored(run, answers).isel(mode=0)  # there is one mode
    shape = (scores.sizes["length"], scores.sizes["seed"])
    pairs = _compared(run, asked.each, doubled, answers, last)
    by_seed = {name: np.reshape(values, shape) for name, values in pairs.items()}
    by_seed |= {"inserted": np.reshape(inserted, shape)}
    by_seed |= {"right": scores["right"].values}
    shares = {name: by_seed[name].mean(axis=1) for name in SAME}
    # The result has the shares in place of what they are shares of.
    variables = variables_of(TABLE, by_seed | shares) | _accuracy_variables(scores)
    coords = {name: scores[name].values for name in ("length", "seed", "able")}
    probes: dict[str, Variable] = {}
    if data.probed:
        streams_of_v = streams(run, last)[:, : len(v)]
        probes, facts = probe_layers(run, data, streams_of_v, v, n_random_models)
        run = run.knowing(**facts)
        coords["layer"] = np.arange(run.n_blocks + 1)
    judged = _judgements(data, by_seed, probes, asked.task.random, n_random_models)
    variables |= probes | _judged_variables(judged, scores)
    about = f"collapse and read-out of {asked.task.name}"
    return run.dataset(about, coords, variables)


def _compared(
    run: Run,
    questions: Sequence[Question],
    doubled: Sequence[Question],
    answers: Mapping[Question, Answer],
    last: LastTokens,
) -> dict[str, np.ndarray]:
    """How each question v and its pair v* compare: what is the same, and the distance at layer L and at y.

    `doubled` are the questions of v*. `last` has the prompts of all v, and then those of all v*.
    """
    n = len(questions)
    representations, of_doubled = streams(run, last).split(n, dim=1)
    same_answer = []
    same_truth = []
    for question, other in zip(questions, doubled, strict=True):
        same_answer.append(answers[question].text == answers[other].text)
        same_truth.append(question.truth == other.truth)
    # All coordinates of y, the last of the representations, have the same bits.
    same_bits = identical(representations[-1], of_doubled[-1], run.dtype) == 1
    # The last two are layer L and y.
    distance, distance_y = LINF.gap(representations[-2:], of_doubled[-2:]).numpy()
    return {
        "bit_identical": same_bits.numpy(),
        "same_argmax": (last.next[:n] == last.next[n:]).numpy(),
        "same_answer": np.array(same_answer),
        "same_truth": np.array(same_truth),
        "distance": distance,
        "distance_y": distance_y,
    }


LINF = Metric("linf", "relative")
SAME = ("bit_identical", "same_argmax", "same_answer", "same_truth")
BY_SEED = "length seed"
TABLE = {
    "distance": (BY_SEED, "linf distance of v and v* at layer L", "1"),
    "distance_y": (BY_SEED, "linf distance of v and v*, y", "1"),
    "inserted": (BY_SEED, "number of tokens that v* has more", "tokens"),
    "right": (BY_SEED, "whether the parsed value is the right answer", "1"),
    "same_argmax": ("length", "share of pairs with the same next token", "1"),
    "same_answer": ("length", "share of pairs with the same answer", "1"),
    "same_truth": ("length", "share of pairs with the same right answer", "1"),
    "bit_identical": ("length", "share of pairs with bit-identical y", "1"),
    "verdict": ("length", "verdict on the answers", "text"),
    "reason": ("length", "what decides the verdict, or would decide it", "text"),
}


def evidence_at(
    data: ProbedAnswers,
    at: int,
    by_seed: Mapping[str, np.ndarray],
    probe: Mapping[str, float],
    **about_task: Any,
) -> "Evidence":
    """The evidence at one length, the one with the index `at`.

    `by_seed` has variables over (length, seed) by name, `probe` what the probe of y says at this length; `about_task`
    are further fields of `Evidence`.
    """
    right = by_seed["right"][at]
    # Only pairs whose right answers differ count: of others, equal representations are no fault.
    truths_differ = ~by_seed["same_truth"][at]
    return Evidence(
        right=int(right.sum()),
        samples=len(right),
        same_bits=int((by_seed["bit_identical"][at] & truths_differ).sum()),
        pairs=int(truths_differ.sum()),
        constant=not data.varied[at],
        prompts=data.prompts[at],
        needed=data.needed,
        n_train=data.n_train,
        probe=probe,
        **about_task,
    )


def _judgements(
    data: ProbedAnswers,
    by_seed: Mapping[str, np.ndarray],
    probes: Mapping[str, Variable],
    random: bool,
    n_random_models: int,
) -> "list[Judgement]":
    """The judgement at each length; `random` says whether the task draws its items."""
    about_task = {"random": random, "n_random_models": n_random_models}
    judged = []
    for at in range(len(data.lengths)):
        probe_of_y = _probe_of_y(probes, at)
        judged.append(judge(evidence_at(data, at, by_seed, probe_of_y, **about_task)))
    return judged


def _accuracy_variables(scores: xr.Dataset) -> dict[str, Variable]:
    """The accuracy and the baseline, as `evaluate_task` has them."""
    variables: dict[str, Variable] = {}
    # The first field of `Ability`, `able`, is a coordinate.
    for name in ("accuracy", "accuracy_low", "accuracy_high", *Ability._fields[1:]):
        score = scores[name]
        dims = tuple(map(str, score.dims))
        variables[name] = dims, score.values, score.long_name, score.units
    return variables


def _judged_variables(
    judged: "list[Judgement]", scores: xr.Dataset
) -> dict[str, Variable]:
    """The verdicts and reasons over lengths; the reasons say if length is not shown to matter."""
    verdicts, reasons = np.array(judged, dtype=object).T
    if scores["able"] != "yes":
        # What is said of wrong answers holds, but not as an effect of length.
        unable = f" Length is not shown to matter: {scores['able_reason'].item()}"
        reasons = reasons + np.where(verdicts == READ, "", unable).astype(object)
    return variables_of(TABLE, {"verdict": verdicts, "reason": reasons})


def _probe_of_y(probes: Mapping[str, Variable], at: int) -> dict[str, float]:
    """What the probe of y, and that of the length alone, say at one length: ``{"r2": …, "r2_length_low": …}``.

    These are the variables over lengths alone; names lose their ending ``_y``. Empty if nothing was probed.
    """
    by_name = {}
    for name, (dims, values, _, _) in probes.items():
        if dims == ("length",):
            by_name[name.removesuffix("_y")] = float(values[at])
    return by_name


def more(v: Ids, star: Ids) -> int:
    """The number of tokens that v* has more than v. Raises unless v* is v with its last item repeated."""
    extra = len(star) - len(v)
    # v* must be v with `extra` tokens inserted after the first `place`; the last of these repeats the one before them.
    for place in range(1, len(v) + 1):
        is_insertion = star[:place] == v[:place] and star[place + extra :] == v[place:]
        if extra > 0 and is_insertion and star[place + extra - 1] == v[place - 1]:
            return extra
    raise InputError(
        "The prompt with its last item repeated does not contain the prompt's tokens, because the tokenizer merges "
        "items.",
        "Separate the items: `task.shown(', ')` or `task.shown(' ')`.",
    )


READ = "read out"
COLLAPSED = "collapsed"
LENGTH = "given by length"
REPRESENTED = "represented, not read out"
PARTLY = "partly represented, not read out"
BASELINE = "no more than a baseline"
UNDECIDED = "undecided"
VERDICTS = (READ, COLLAPSED, LENGTH, REPRESENTED, PARTLY, BASELINE, UNDECIDED)
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
    value of a probe variable by name (`r2_low`, …).
    """

    right: int
    samples: int
    same_bits: int
    pairs: int
    constant: bool
    prompts: int
    needed: int
    n_train: int
    probe: Mapping[str, float]
    random: bool = True
    n_random_models: int = N_RANDOM_MODELS


def judge(evidence: Evidence) -> Judgement:
    """The judgement of the first step that decides, or that is undecided; None leaves it to the next step."""
    for step in (_judge_answers, _judge_bits, _judge_length):
        judgement = step(evidence)
        if judgement is not None:
            return judgement
    return _judge_probe(evidence)


def _judge_answers(e: Evidence) -> Judgement | None:
    """Step 1: whether at least half of the answers are right."""
    return _at_least_half(READ, e.right, e.samples, e.random, "answers are right")


def _judge_bits(e: Evidence) -> Judgement | None:
    """Step 2: whether at least half of the pairs whose right answers differ have the same y."""
    what = "pairs with different right answers are bit-identical"
    if not e.pairs:
        return None
    return _at_least_half(COLLAPSED, e.same_bits, e.pairs, e.random, what)


def _at_least_half(
    verdict: str, count: int, total: int, random: bool, what: str
) -> Judgement | None:
    """The verdict if the interval of count ÷ total is at least 1/2, undecided if it includes 1/2, else None.

    `what` ends the sentence "3 of 4 …", as in "answers are right".
    """
    share = count / total
    text = f"{count} of {total} {what}"
    low = high = share  # a task without random items always repeats its share
    if random:
        low, high = map(float, wilson(share, total))
    if low >= HALF:
        return verdict, f"{text}."
    if high < HALF:
        return None
    interval = _range(low, high)
    why = f"{text}; the interval {interval} includes 1/2. More samples would decide."
    return UNDECIDED, why


def _judge_length(e: Evidence) -> Judgement | None:
    """Step 3: whether the length gives the right answer away, by one answer for all or by the number of tokens."""
    if e.constant:
        # Few samples may all have one right answer by chance.
        if not e.random or e.samples >= e.n_train:
            return (
                LENGTH,
                "All prompts of this length have the same right answer, so that a probe shows nothing.",
            )
        return (
            UNDECIDED,
            f"{plural(e.samples, 'sample')} with one right answer; {e.n_train} would show if all have it.",
        )
    low = e.probe.get("r2_length_low", np.nan)
    high = e.probe.get("r2_length_high", np.nan)
    r2 = _range(low, high)
    if low >= REPRESENTED_FROM:
        why = f"The number of tokens alone predicts the answer (R² is {r2})."
        return LENGTH, why
    if high >= REPRESENTED_FROM:
        return UNDECIDED, (
            f"R² from the number of tokens alone is {r2}. More samples would decide whether it reaches "
            f"{REPRESENTED_FROM:g}."
        )
    return None


def _judge_probe(e: Evidence) -> Judgement:
    """Steps 4 to 6: whether a probe finds more of the right answer than the best baseline, and how much."""
    if np.isnan(e.probe.get("r2", np.nan)):  # not probed, or undefined
        if e.prompts < e.needed:
            why = f"{plural(e.prompts, 'distinct prompt')} in {plural(e.samples, 'sample')}: a probe needs {e.needed}"
        else:
            why = (
                "Nearly all prompts have the same right answer, so that R² is undefined in at least half of the "
                "splits"
            )
        return (
            UNDECIDED,
            f"{why}. Use more samples, longer sequences or a smaller n_train=.",
        )
    low = e.probe["gain_low"]
    high = e.probe["gain_high"]
    gain = _range(low, high)
    r2 = f"R² is {_range(e.probe['r2_low'], e.probe['r2_high'])}"
    if high < MARGIN:
        # Without two random models the lower end is not known.
        ends = "" if np.isnan(low) else f"{gain}, "
        why = f"{r2}; its gain over the best baseline is {ends}below {MARGIN}."
        return BASELINE, why
    if not low > MARGIN:  # below, or not known
        why = (
            f"{r2}; its gain over the best baseline is {gain}, which includes {MARGIN}. More samples or more random "
            "models would decide."
        )
        if e.n_random_models < 2:
            why = f"{r2}; its gain over random weights needs two such models, not {e.n_random_models}."
        return UNDECIDED, why
    text = f"{r2}; its gain over the best baseline is {gain}, above {MARGIN}."
    if e.probe["r2_low"] >= REPRESENTED_FROM:
        return REPRESENTED, text
    if e.probe["r2_high"] < REPRESENTED_FROM:
        return PARTLY, text
    more_samples = f"More samples would decide whether R² reaches {REPRESENTED_FROM:g}."
    return UNDECIDED, f"{text} {more_samples}"


def _range(low: float, high: float) -> str:
    """A range with two decimal places, without a minus sign before zero."""
    return f"{low:.2f} to {high:.2f}".replace("-", "−").replace("−0.00", "0.00")
