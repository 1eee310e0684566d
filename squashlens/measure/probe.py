"""Is the answer in the representation, whether or not it is said? Ridge regression of it, layer by layer.

A probe's R² means nothing by itself: random weights carry a count of digits too. So every probe is repeated on twins of
the model with random weights, on a control task, and on the prompt's length alone.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Direction, Mode, Template, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._asking import Asking
from squashlens.measure._pairs import with_y
from squashlens.measure._scores import gains, interval, of_length, scored
from squashlens.measure._splits import FIT, Answers
from squashlens.model.anatomy import n_blocks, residual_sites
from squashlens.model.branches import Ids
from squashlens.model.ends import Ends, ends
from squashlens.model.proof import status
from squashlens.model.registry import measured, steady
from squashlens.model.twin import random_twin
from squashlens.results import Variable
from squashlens.tasks import Question, Task

ENOUGH = 128  # draws at each length unless seeds= says otherwise
TWINS = 4  # of two, the interval for another one is 12.7 · √(3/2) standard deviations; of four, 3.2 · √(5/4)


@measured
def probe(
    model: Bridge,
    task: Task,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    mode: Mode = "answer_only",
    template: Template = "none",
    opened: bool = True,
    direction: Direction = "own",
    fit: int = FIT,
    twins: int = TWINS,
    chunk: int | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """How well a line reads the right answer off the last token's representation, and how much of that is the model's.

    Ridge regression of the right answer (a number) on v_n⁽⁰⁾ … v_n⁽ᴸ⁾ and y_n, at the token the answer is given from.
    Prompts are divided 100 times: the fit sees `fit` different prompts and is tested on all others, resampled with
    replacement. No prompt is on both sides, however often it was drawn. R² depends on the size of a fit, so that size
    is fixed: more draws make the intervals narrower and leave the quantity as it is. All intervals are the middle 95 %
    over these splits; they include what a fit happens to see and what it is tested on.

    Three baselines are probed in the same splits:

    - **Twins**: models of the same class and configuration with random weights (seeds 0, 1, …), on the same tokens,
      without the hooks that stand on the model. Split s is compared with twin s mod `twins`. Each costs a second model
      in memory, one after the other, and one forward pass for every prompt.
    - **Control task**, after Hewitt and Liang (2019). Theirs gives every word *type* a random output, the same wherever
      it occurs; only a probe that memorises types can learn it. Here the type is an item at its place, and a prompt's
      target is the sum of its items' outputs, as a count is the sum of 1 for each item counted: Σ_i c(i, x_i), each
      c(i, x) drawn from N(0, 1), anew in each split. (A random target for each prompt would say nothing: no prompt is
      on both sides, so that its R² is at most 0 for any representation.) A representation from which any such sum can
      be read holds the prompt, not its count. *Selectivity* is R² − R² of the control.
    - **Length**: the answer predicted from the prompt's number of tokens alone, as the mean answer of the prompts with
      that number.

    Args:
        task: one whose right answers are numbers.
        seeds: how many draws at each length, or their seeds; 128 if not given.
        opened: end each prompt with the opening words of the answer, so that the answer comes next.
        direction: ``"own"``, a fit for each length; ``"shared"``, one direction for all with an offset for each.
        fit: different prompts of a length that each fit sees. A probe of a length takes 16 more to test on.
        twins: models with random weights; 0 for none.

    Returns:
        Dataset. Over (layer, length), NaN where there are too few different prompts or the truth does not vary: `r2` =
        1 − Σ(truth − prediction)² / Σ(truth − mean truth)², mean over splits; `probe_right`, the share of predictions
        that round to the truth; `r2_twin`, `r2_control` and `selectivity`; `gain` = R² − max(0, R² of the twin, of the
        control, of the length), whose interval also allows for one more draw of random weights (see
        `squashlens.measure._scores.gains`). Each but `probe_right` with `_low` and `_high`. Over (layer): `r2_overall`,
        as `r2` with sums over all lengths. Each also with `_y`. Over (length): `r2_length` with its ends; `prompts`,
        how many different ones were drawn. Over (length, seed): `truth`, and `prediction`, of y, the mean over the
        splits that did not fit to that prompt. The provenance has `fit`, the number of splits and the twins' seeds.

    Raises:
        InputError: answers that are no numbers, or the same for every prompt; tasks with one answer at each length,
            which the prompt's length gives away; fewer than `fit` + 16 different prompts at every length.
        CapacityError: a twin does not fit beside the model.

    Source: Hewitt and Liang 2019, *Designing and Interpreting Probes with Control Tasks*. Regression of counts instead
    of tags, and sums over places, are ours.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.probe(model, task, lengths=[24], twins=2, progress=False)
    >>> bool(found["r2_y"] > 0.9), bool(found["gain_y"] > 0)  # the count is there, and in random weights just as well
    (True, False)
    """
    one_of(direction, Direction, "direction")
    check_probes(fit, twins)
    asking = Asking.start(
        model, task, lengths, seeds, "probe", modes=[mode], template=template, opened=opened, draws=ENOUGH,
        direction=direction, fit=fit, twins=twins,
    )  # fmt: skip
    prompts = [asking.ids(question) for question in asking.questions]
    data = Answers.of(task, asking.questions, prompts, fit)
    _require_probed(data, asking.questions)
    sound = asking.session.model
    shown = ends(sound, prompts, residual_sites(sound), chunk=chunk, progress=progress)
    own = streams(sound, shown)
    found, facts = probed(sound, data, own, prompts, direction, twins, chunk, progress)
    session = replace(asking.session, facts={**asking.session.facts, **facts})
    layers = list(range(n_blocks(sound) + 1))
    return session.dataset(f"probe of {task.name}", {"layer": layers, **data.coords()}, found)


def check_probes(fit: object, twins: object) -> None:
    """Refuse what is no number of prompts to fit to, or of twins."""
    positive(fit, "fit", "a number of prompts")
    if fit == 1:
        raise InputError("fit=1: nothing can be fitted to one prompt.", "Give at least 2.")
    positive(twins, "twins", "a number of models", or_zero=True)


def streams(model: Bridge, shown: Ends) -> Float[Tensor, "layer branch d"]:
    """v⁽⁰⁾ … v⁽ᴸ⁾ and y of each prompt, at its last token."""
    return torch.stack([shown.values[site].float() for site in residual_sites(model)])


def probed(
    model: Bridge, data: Answers, representations: Float[Tensor, "layer branch d"], prompts: list[Ids],
    direction: Direction, twins: int, chunk: int | None, progress: bool,
) -> tuple[dict[str, Variable], dict[str, Any]]:  # fmt: skip
    """Scores of each layer and its baselines, the last layer being y; and what the provenance is to say of them."""
    own = scored(representations.double().numpy(), data, direction, range(data.splits), "probes", progress)
    r2, control = own.r2, own.control  # (split, layer, length)
    length, twin, proofs = of_length(data)[:, None], np.full_like(r2, np.nan), []
    for seed in range(twins if data.probed else 0):
        other = random_twin(model, seed)
        with steady(other):
            shown = ends(other, prompts, residual_sites(other), chunk=chunk, progress=progress, label=f"twin {seed}")
            proofs.append(status(other))
        numbers = range(seed, data.splits, twins)
        theirs = streams(other, shown).double().numpy()
        twin[seed::twins] = scored(theirs, data, direction, numbers, f"probes of twin {seed}", progress).r2
    found = {
        **_ends("r2", interval(r2), "R² of the right answer, held out"),
        **_ends("r2_twin", interval(twin), "R² in models with random weights"),
        **_ends("r2_control", interval(control), "R² of the control task"),
        **_ends("selectivity", interval(r2 - control), "R² less that of the control task"),
        **_ends("gain", gains(r2, np.fmax(0, np.fmax(length, control)), twin, twins), "R² less the best baseline's"),
    }
    right, overall = interval(own.right)[0], interval(own.overall)[0]
    found |= with_y("probe_right", torch.tensor(right), "share of predictions that round to the right answer", "1")
    found |= with_y("r2_overall", torch.tensor(overall), "R² over all lengths, held out", "1", ("layer",))
    over = ("length", "seed")
    for name, values in zip(("", "_low", "_high"), interval(length[:, 0]), strict=True):
        found[f"r2_length{name}"] = (over[:1], values, f"R² from the number of tokens alone{END[name]}", "1")
    found |= {
        "prompts": (over[:1], data.prompts, "different prompts at a length", "item"),
        "truth": (over, data.truth, "the right answer", "item"),
        "prediction": (over, own.prediction, "what the probe of y says, held out", "item"),
    }
    facts = {"probe": {"fit": data.fit, "splits": data.splits, "twins": list(range(twins)), "twin_proofs": proofs}}
    return found, facts


END = {"": "", "_low": ", lower end of 95 %", "_high": ", upper end of 95 %"}


def _ends(name: str, values: tuple[np.ndarray, np.ndarray, np.ndarray], text: str) -> dict[str, Variable]:
    """A mean over splits and the ends of its interval, by layer, and of y."""
    each = zip(END.items(), values, strict=True)
    found = [with_y(f"{name}{end}", torch.tensor(value), f"{text}{said}", "1") for (end, said), value in each]
    return found[0] | found[1] | found[2]


def _require_probed(data: Answers, questions: tuple[Question, ...]) -> None:
    """Refuse answers that nothing can be learned about."""
    if len({q.truth for q in questions}) == 1:
        raise InputError(
            f"The right answer is {questions[0].truth} every time: there is nothing to find.",
            "Probe a task whose answers differ, such as copy_last_random.",
        )
    if not any(data.varied):
        raise InputError(
            "At each length all prompts have one right answer: the prompt's length gives it away, and a probe that "
            "finds it shows nothing.",
            "Probe a task that draws its items, such as count_bernoulli.",
        )
    if not data.probed:
        at = int(np.argmax(np.where(data.varied, data.prompts, -1)))
        raise InputError(
            f"{data.prompts[at]} different prompts at length {data.lengths[at]} are too few: fit={data.fit} of them "
            f"are fitted to, and {data.needed - data.fit} more are needed to test on.",
            "Give more seeds or longer sequences, or a smaller fit=.",
        )
