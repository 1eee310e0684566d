"""Which answers another model loses: a quantized, rounded or fine-tuned model beside a reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, ChoicesOfPrompts, Clusters, PromptsOrItems
from squashlens.bars import bar
from squashlens.measure.answers.choices import ALL, in_groups, mean_of, noise_of_leads
from squashlens.measure.answers.forced_answers import answer_in, write_freely
from squashlens.measure.models.questions import (
    LEAD,
    TOGETHER,
    TwoModels,
    choice_logits,
    mean_kl_of,
    next_tokens,
    two_models,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.model.text.context import text_after
from squashlens.records.labels import Variable
from squashlens.run.activations import at_last_tokens, log_p, streams_at
from squashlens.run.groupings import REASON
from squashlens.run.run import Run
from squashlens.run.streamed import patterns_written
from squashlens.theory.distances import divergence
from squashlens.theory.statistics import selection
from squashlens.theory.statistics.ranks import paired_change
from squashlens.theory.statistics.trends import with_ends

KEPT = "kept"
LOST = "lost"
GAINED = "gained"
WRONG = "wrong in both"
UNSURE = "within noise"
OUTCOMES = (KEPT, LOST, GAINED, WRONG, UNSURE)
BOTH = "model prompt"
TABLE = {
    "lead": (BOTH, LEAD, "nats"),
    "lead_noise": (BOTH, "how far another pass moves this lead", "nats"),
    "probability": (BOTH, "probability of the right answer", "1"),
    "kl": ("prompt", "KL of the other's next token from the reference's", "nats"),
    "same_top": ("prompt", "whether the likeliest next token is the same", "1"),
    "count": ("group outcome_kind", "number of prompts with this outcome", "1"),
}
SHARES = {
    "right": "share of prompts in which the right answer leads",
    "writes": "share of prompts after which greedy decoding writes the right answer",
    "mean_same_top": "share of prompts with the same likeliest next token",
}


@dataclass(frozen=True)
class Answers:
    """How one model answers: numbers by prompt, and the streams y of the last tokens.

    Attributes:
        lead: logit of the right choice's first token minus that of the likeliest other one.
        noise: how far the lead of another pass is from it, at least what rounding two logits does.
        probability: of the whole right answer, by teacher forcing.
        written: texts that greedy decoding writes.
        writes: whether that begins with the right answer.
    """

    y: Float[Tensor, "prompt d"]
    lead: Float[np.ndarray, " prompt"]
    noise: Float[np.ndarray, " prompt"]
    probability: Float[np.ndarray, " prompt"]
    written: np.ndarray
    writes: Bool[np.ndarray, " prompt"]


@measurement("lost_answers", "lost_shares")
def compare_models(
    reference: Bridge,
    other: Bridge,
    prompts: PromptsOrItems,
    answers: Sequence[str] | None = None,
    *,
    choices: ChoicesOfPrompts = None,
    group: Sequence[str] | None = None,
    clusters: Clusters = None,
) -> xr.Dataset:
    """Which answers of a reference another model loses, such as a quantized or rounded one, a fine-tune or an adapter.

    Mean KL says how far two models are apart, and not what is lost. Here each prompt has a right answer. Its *lead* is
    ``log p(right) − max log p(other choice)`` of the first tokens of the choices, after the prompt; the answer is right
    if its lead is above 0. What a model computes depends on how a prompt is cut into passes, so each prompt is run
    twice, among others with fused attention and alone with written patterns; the *noise* of a lead is how far apart the
    two are, and at least what rounding two logits does. The outcome of a prompt is ``"kept"`` (right in both),
    ``"lost"`` (right in the reference, wrong in the other), ``"gained"``, ``"wrong in both"``, or ``"within noise"``,
    if the lead of one of them is not larger than its noise.

    The models may differ in everything but the tokens: weights, dtype, hooks (``with sl.applied(other, …)``), size.

    Args:
        reference: the model whose answers count, a `TransformerBridge` from `load` or your own.
        other: the model to compare, of the same tokenizer.
        prompts: texts of at least two prompts; or dictionaries with `prompt`, `answer` and perhaps `choices`, `group`
            and `cluster`; or a JSONL file of these, a line each.
        answers: the right answer to each prompt, as the model would write it after the prompt, with its space. Not
            beside dictionaries or a file.
        choices: texts among which an answer leads: a list for all prompts, by default all answers; or a list for each
            prompt, all equally long. No other choice of a prompt may begin with the same token as its right answer.
        group: a label for each prompt, such as its task or length; shares are given for each. By default all are one.
        clusters: a label for each prompt, the same for prompts that are not independent, such as those that share
            examples or a template; by default each different prompt is a cluster of its own.

    Returns:
        Dataset. Over (model, prompt), with `model` ``"reference"`` and ``"other"``: `lead`, in nats; `lead_noise`;
        `probability` of the whole right answer, by teacher forcing; and the coordinate `written`, what greedy decoding
        writes. Over (prompt): the coordinates `outcome`, `answer`, `group_of`, `cluster`; `kl`,
        ``Σ p_reference (log p_reference − log p_other)`` of the next token over the tokens that both have, in nats; and
        `same_top`, 1 if the likeliest token is the same. Over (group, outcome_kind): `count`, the number of prompts.
        Over (model, group): `right`, the share with a lead above 0, and `writes`, the share whose answer greedy
        decoding writes. Over (group): `change`, the other's share right minus the reference's, paired by prompt;
        `mean_kl`; `mean_same_top`. Shares and means have the ends `…_low` and `…_high` of a 95 % interval over
        clusters.

    Raises:
        InputError: other token ids for the same text, not one answer for each prompt, an answer that is no choice, or
            choices that begin alike.
        UnsoundModelError: the logits of a model do not follow from y.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ask = "How many ones are in the following sequence? {} ="
    >>> prompts = [ask.format(text) for text in ("1", "11", "101", "1111", "0110")]
    >>> found = sl.compare_models(model, sl.quantize_weights(model, "Q4_0"), prompts, [*"12242"])
    >>> found["outcome"].values.tolist()
    ['kept', 'kept', 'kept', 'kept', 'kept']
    """
    given = (prompts, answers, choices, clusters, group)
    with two_models(reference, other, this_call(), *given) as two:
        # One bar for both, so that the time that is announced is that of the whole call.
        runs = bar([two.reference, two.other], desc="models", unit="model")
        of_reference, of_other = [_answers_of(two, run) for run in runs]
        kl, same_top = _next_tokens(two, of_reference.y, of_other.y)
        return _result(two, of_reference, of_other, kl, same_top)


def outcomes(reference: Answers, other: Answers) -> np.ndarray:
    """What became of each prompt's answer, one of `OUTCOMES`, from the leads of both models and their noises."""
    unsure = np.abs(reference.lead) <= reference.noise
    unsure |= np.abs(other.lead) <= other.noise
    was_right = reference.lead > 0
    is_right = other.lead > 0
    # The first case that is true counts.
    cases = [unsure, was_right & is_right, was_right & ~is_right, ~was_right & is_right]
    return np.select(cases, [UNSURE, KEPT, LOST, GAINED], default=WRONG)


def _answers_of(two: TwoModels, run: Run) -> Answers:
    """How one of the models answers every prompt.

    Each prompt is run twice, in a batch and alone followed by its right answer; the difference shows noise.
    """
    asked = two.asked
    y_site = run.site("y")
    y = at_last_tokens(run, asked.prompts, [y_site]).values[y_site]
    ys_alone: list[Tensor] = []
    probabilities: list[float] = []
    questions = list(zip(asked.prompts, asked.right_tokens, strict=True))
    for ids, answer in bar(questions, desc="answers", unit="prompt"):
        # The last token of the answer is predicted, and not read.
        row = torch.tensor([ids + answer[:-1]], device=run.device)
        with patterns_written(REASON):
            seen = streams_at(run, row, [y_site], at=slice(len(ids) - 1, None))
        ys_alone.append(seen[y_site][0, :1].cpu())
        log_probabilities = log_p(run, seen[y_site], torch.tensor(answer))
        probabilities.append(float(log_probabilities.sum().exp()))
    all_places = range(len(asked.prompts))
    in_batches = choice_logits(two, run, all_places, y)
    alone = choice_logits(two, run, all_places, torch.cat(ys_alone))
    longest = 0  # most tokens of a choice
    for choice in chain.from_iterable(asked.tokens):
        longest = max(longest, len(choice))
    new_tokens = write_freely(run, asked.prompts, longest)
    written: list[str] = []
    writes: list[bool] = []
    for ids, new, answer in zip(asked.prompts, new_tokens, asked.answers, strict=True):
        text = ""
        if new:
            text = text_after(run.model.tokenizer, ids, new)
        written.append(text)
        writes.append(answer_in(text, [answer]) == answer)
    leads = selection.leads(in_batches[:, None], asked.right)  # of one run of each
    return Answers(
        y=y,
        lead=leads[:, 0],
        noise=noise_of_leads(in_batches, alone, asked.right, run.dtype),
        probability=np.array(probabilities),
        written=np.array(written, dtype=object),
        writes=np.array(writes),
    )


def _next_tokens(
    two: TwoModels, y: Float[Tensor, "prompt d"], other_y: Float[Tensor, "prompt e"]
) -> tuple[Float[np.ndarray, " prompt"], Bool[np.ndarray, " prompt"]]:
    """KL of the other's next token from the reference's, and whether the likeliest one is the same, for each prompt.

    `y` is the reference's, and `other_y` the other's. Some prompts at a time, since vocabularies are large.
    """
    kl: list[Tensor] = []
    same_top: list[Tensor] = []
    for rows, other_rows in zip(
        y.split(TOGETHER), other_y.split(TOGETHER), strict=True
    ):
        log_p = next_tokens(two, two.reference, rows)
        log_q = next_tokens(two, two.other, other_rows)
        kl.append(divergence(log_p, log_q))
        same_top.append(log_p.argmax(dim=-1) == log_q.argmax(dim=-1))
    return torch.cat(kl).numpy(), torch.cat(same_top).numpy()


def _result(
    two: TwoModels,
    reference: Answers,
    other: Answers,
    kl: Float[np.ndarray, " prompt"],
    same_top: Bool[np.ndarray, " prompt"],
) -> xr.Dataset:
    """The result: leads and outcomes of all prompts, and shares of each group.

    `kl` and `same_top` compare the next tokens of the two models.
    """
    outcome = outcomes(reference, other)

    def of_both(name: str) -> np.ndarray:
        """The attribute of `Answers` of this name, of both models, (model, prompt)."""
        return np.stack([getattr(reference, name), getattr(other, name)])

    found: dict[str, Any] = {
        "lead": of_both("lead"),
        "lead_noise": of_both("noise"),
        "probability": of_both("probability"),
        "kl": kl,
        "same_top": same_top.astype(float),
    }
    members = two.asked.members
    if len(members) > 1:
        members = {ALL: np.ones(len(outcome), dtype=bool), **members}
    is_member = np.stack(list(members.values()))  # (group, prompt)
    is_kind = outcome == np.array(OUTCOMES)[:, None]  # (kind of outcome, prompt)
    found["count"] = (is_member[:, None] & is_kind).sum(axis=-1)
    variables = variables_of(TABLE, found)
    right = (of_both("lead") > 0).astype(float)
    writes = of_both("writes").astype(float)
    variables |= _by_group(two, members, right, writes, kl, same_top)
    coords: dict[str, Any] = {
        "model": list(two.runs),
        "prompt": np.arange(len(outcome)),
        "group": list(members),
        "outcome_kind": list(OUTCOMES),
        "outcome": ("prompt", outcome),
        "answer": ("prompt", two.asked.answers),
        "group_of": ("prompt", two.asked.groups),
        "cluster": ("prompt", two.asked.clusters),
        "written": (("model", "prompt"), of_both("written")),
    }
    return two.reference.dataset("answers of two models", coords, variables)


def _by_group(
    two: TwoModels,
    members: dict[str, Bool[np.ndarray, " prompt"]],
    right: Float[np.ndarray, "model prompt"],
    writes: Float[np.ndarray, "model prompt"],
    kl: Float[np.ndarray, " prompt"],
    same_top: Bool[np.ndarray, " prompt"],
) -> dict[str, Variable]:
    """Shares and means over the prompts of each group, with intervals over clusters.

    `members` says by group which prompts it has; `right` and `writes` are 1 or 0.
    """
    clusters = two.asked.clusters
    shares = {
        "right": right,
        "writes": writes,
        "mean_same_top": same_top.astype(float),
    }
    variables: dict[str, Variable] = {}
    for name, values in shares.items():
        # `same_top` is that of both models together.
        dims = ("model", "group")[-values.ndim :]
        of_groups = in_groups(values, members)
        variables |= mean_of(name, dims, of_groups, SHARES[name], clusters=clusters)
    kl_of_groups = in_groups(kl, members)
    text = "mean KL of the next token"
    variables |= mean_kl_of(("group",), kl_of_groups, text, clusters)
    of_reference, of_other = torch.from_numpy(in_groups(right, members))
    ends = paired_change(of_reference, of_other, torch.from_numpy(clusters))
    text = "share right in the other model minus the share in the reference"
    return variables | with_ends("change", ("group",), ends, text)
