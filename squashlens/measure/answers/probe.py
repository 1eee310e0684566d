"""Probes of the right answer: ridge regression on the last token's representation, layer by layer, with baselines.

The R² of a probe means nothing by itself, because a count of digits can be read from random weights too. Every probe is
therefore repeated on models with random weights, on a control task, and on the prompt's length alone.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Mode, Template, positive
from squashlens.errors import InputError
from squashlens.measure.answers.evaluate_task import prepare_questions
from squashlens.measure.answers.probe_scores import (
    N_TRAIN,
    ProbedAnswers,
    gains,
    interval,
    of_length,
    score_probes,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of, with_y
from squashlens.records.labels import Variable
from squashlens.run.activations import LastTokens, at_last_tokens, untrained
from squashlens.run.run import Run
from squashlens.sequences import Ids
from squashlens.tasks import Task
from squashlens.tasks.task import Prompting
from squashlens.theory.statistics.trends import with_ends

N_SEEDS = 128  # default number of samples at each length
# The interval for one more random model is 12.7 √(3/2) standard deviations with two models, 3.2 √(5/4) with four.
N_RANDOM_MODELS = 4


@measurement("probe", cheaper="Fewer lengths= or n_random_models=0 takes less.")
def probe(
    model: Bridge,
    task: Task | str,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    mode: Mode = "answer_only",
    template: Template = "none",
    prefill: bool = True,
    n_examples: int = 0,
    n_train: int = N_TRAIN,
    n_random_models: int = N_RANDOM_MODELS,
) -> xr.Dataset:
    """How well a linear probe reads the right answer from the last token, and its gain over three baselines.

    The probe is a ridge regression of the right answer (a number) on v_n⁽⁰⁾ … v_n⁽ᴸ⁾ and y_n, at the token after which
    the answer is given. The prompts are split 100 times: a probe is fitted to `n_train` distinct prompts, since R²
    depends on their number, and tested on all others, resampled with replacement. All intervals are the middle 95 %
    over the splits. Three baselines are probed in the same splits:

    - **Random models** of the same class and configuration (seeds 0, 1, …), on the same tokens and without hooks. Split
      s is compared with random model s mod `n_random_models`.
    - **Control task**: a random sum over the items, Σ_i c(i, x_i), with each c(i, x) from N(0, 1), anew in each split.
      A representation from which any such sum can be read contains the prompt, not its count. *Selectivity* is R² minus
      that of the control task.
    - **Length**: the mean answer of the prompts with this number of tokens.

    Args:
        model, lengths, template, n_examples: as in `evaluate_task`.
        task: name of a task whose right answers are numbers, or a `Task` of your own.
        seeds: number of random samples at each length, or a list of random seeds; 128 samples by default.
        mode: form of the questions, one of those of `evaluate_task`.
        prefill: as in `evaluate_task`; yes by default, so that the answer comes next.
        n_train: number of distinct prompts of a length to which each probe is fitted; 64 by default. A length needs
            16 more distinct prompts for testing.
        n_random_models: number of models with random weights that are probed as well; 4 by default, 0 for none.

    Returns:
        Dataset, dimensionless unless a unit is stated. Over (layer, length), NaN if there are too few distinct prompts
        or the truth does not vary: `r2`, 1 − Σ(truth − prediction)² / Σ(truth − mean truth)², mean over splits;
        `probe_right`, the share of predictions that round to the truth; `r2_random_model` and `r2_control`, the R² with
        random weights and of the control task; `selectivity`; `gain`, R² − max(0, R² of the random model, the control,
        the length), whose interval also allows for one more draw of random weights (see
        `squashlens.measure.answers.probe_scores.gains`). Each except `probe_right` has the ends `_low` and `_high` of
        its interval. Over (layer): `r2_overall`, the R² with sums over all lengths. All of these also have a variable
        with `_y`, for y. Over (length): `r2_length`, with its ends; `prompts`, the number of distinct prompts. Over
        (length, seed), in items: `truth`; `prediction`, from y, the mean over the splits that do not train on the
        prompt. The provenance has the number of training prompts, the number of splits and the seeds of the random
        models.

    Raises:
        InputError: right answers that are not numbers, or that are all the same; a task with one answer at each length,
            which the length then gives away; fewer than `n_train` + 16 distinct prompts at every length.
        CapacityError: a second model does not fit into memory.

    Source: Hewitt and Liang 2019, *Designing and Interpreting Probes with Control Tasks*. Counts instead of tags, and
    sums over places, are ours.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.probe(model, task, lengths=[24], n_random_models=2)
    >>> bool(found["r2_y"] > 0.9), bool(found["gain_y"] > 0)  # the count is there, and in random weights just as well
    (True, False)
    """
    require_probing(n_train, n_random_models)
    form = Prompting(
        mode=mode,
        template=template,
        prefill=prefill,
        n_examples=n_examples,
        n_baseline=0,
    )
    run = Run.open(model, **this_call())
    run, questions = prepare_questions(run, task, lengths, seeds, form, n_seeds=N_SEEDS)
    prompts = [questions.ids(run, question) for question in questions.each]
    data = ProbedAnswers.of(questions.task, questions.each, prompts, n_train)
    _require_probed(data)
    last = at_last_tokens(run, prompts, run.sites())
    representations = streams(run, last)
    variables, facts = probe_layers(
        run, data, representations, prompts, n_random_models
    )
    coords = {
        "layer": range(run.n_blocks + 1),
        "length": list(data.lengths),
        "seed": list(data.seeds),
    }
    about = f"probe of {questions.task.name}"
    return run.knowing(**facts).dataset(about, coords, variables)


def require_probing(n_train: int, n_random_models: int) -> None:
    """Raise for a number of training prompts, or of models with random weights, that is too small."""
    if n_train < 2:
        raise InputError(
            f"n_train={n_train}: a probe cannot be fitted to so few prompts.",
            "Give at least 2.",
        )
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)


def streams(run: Run, last: LastTokens) -> Float[Tensor, "layer branch d"]:
    """The representations v⁽⁰⁾ … v⁽ᴸ⁾ and y of each prompt, at its last token."""
    return torch.stack([last.values[site].float() for site in run.sites()])


def probe_layers(
    run: Run,
    data: ProbedAnswers,
    representations: Float[Tensor, "layer branch d"],
    prompts: list[Ids],
    n_random_models: int,
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """The scores of each layer and of its baselines as variables of a result, and facts for the provenance.

    `prompts` are the token ids of the prompts of `data`, on which models with random weights are run.
    """
    features = representations.double().numpy()
    scores = score_probes(features, data, range(data.splits), "probes")
    r2_length = of_length(data)  # (split, length)
    r2_random = np.full_like(scores.r2, np.nan)  # (split, layer, length)
    proofs = []
    for seed in range(n_random_models if data.probed else 0):
        with untrained(run, seed) as random_run:
            label = f"random weights {seed}"
            sites = random_run.sites()
            last = at_last_tokens(random_run, prompts, sites, label=label)
            proofs.append(random_run.proof.status)
        features = streams(random_run, last).double().numpy()
        # Random model s is probed in every `n_random_models`-th split, from split s on.
        splits = range(seed, data.splits, n_random_models)
        label = f"probes of random weights {seed}"
        random_scores = score_probes(features, data, splits, label)
        r2_random[seed::n_random_models] = random_scores.r2
    # The best baseline that needs no random model; NaN counts as less than 0.
    baselines = np.fmax(0, np.fmax(r2_length[:, None], scores.control))
    ends = {
        "r2": interval(scores.r2),
        "r2_random_model": interval(r2_random),
        "r2_control": interval(scores.control),
        "selectivity": interval(scores.r2 - scores.control),
        "gain": gains(scores.r2, baselines, r2_random, n_random_models),
    }
    mean_right, _, _ = interval(scores.right)
    mean_overall, _, _ = interval(scores.overall)
    means = {"probe_right": mean_right, "r2_overall": mean_overall}
    layers = variables_of(TABLE, means)
    for name, of_layers in ends.items():
        layers |= with_ends(name, ("layer", "length"), of_layers, ESTIMATES[name])
    of_length_alone = "R² from the number of tokens alone"
    variables = with_y(layers)  # the last layer is y
    variables |= with_ends(
        "r2_length", ("length",), interval(r2_length), of_length_alone
    )
    of_samples = {
        "prompts": data.prompts,
        "truth": data.truth,
        "prediction": scores.prediction,
    }
    variables |= variables_of(TABLE, of_samples)
    facts = {
        "n_train": data.n_train,
        "splits": data.splits,
        "random_model_seeds": list(range(n_random_models)),
        "random_model_proofs": proofs,
    }
    return variables, {"probe": facts}


OF_LAYERS = "layer length"
BY_SEED = "length seed"
PREDICTED = "prediction of the probe of y for test prompts"
TABLE = {
    "probe_right": (
        OF_LAYERS,
        "share of predictions that round to the right answer",
        "1",
    ),
    "r2_overall": ("layer", "R² over all lengths on test prompts", "1"),
    "prompts": ("length", "number of distinct prompts", "prompts"),
    "truth": (BY_SEED, "right answer", "items"),
    "prediction": (BY_SEED, PREDICTED, "items"),
}
ESTIMATES = {
    "r2": "R² of the right answer on test prompts",
    "r2_random_model": "R² in models with random weights",
    "r2_control": "R² of the control task",
    "selectivity": "R² minus that of the control task",
    "gain": "R² minus that of the best baseline",
}


def _require_probed(data: ProbedAnswers) -> None:
    """Raise for right answers that a probe cannot learn anything about."""
    if not data.varied.any():
        raise InputError(
            "At each length all prompts have the same right answer, so that only the length can be learned.",
            "Probe a task with random items, such as count_bernoulli or copy_last_random.",
        )
    if not data.probed:
        # The length with the most prompts among those whose right answers vary.
        at = int(np.argmax(np.where(data.varied, data.prompts, -1)))
        raise InputError(
            f"The number of distinct prompts at length {data.lengths[at]} is {data.prompts[at]}, and a probe needs "
            f"n_train={data.n_train} for training and {data.needed - data.n_train} more for testing.",
            "Give more seeds, longer sequences or a smaller n_train=.",
        )
