"""From which layer on the right answer leads, as the model's own final norm and output embedding read it."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import (
    Bridge,
    ChoicesOfPrompts,
    Clusters,
    PromptsOrItems,
    positive,
)
from squashlens.errors import UnsoundModelError
from squashlens.measure.answers.choices import (
    Choices,
    in_groups,
    mean_of,
    of_choices,
    others_shares,
    questions_of,
)
from squashlens.measure.answers.sublayers import (
    chance_limit,
    parts_of,
    sites_of,
    written_directly,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.model.agreement import agree
from squashlens.model.applied import probe_ids
from squashlens.model.hooking.standing import without_ambient
from squashlens.model.text.context import text_after
from squashlens.records.labels import Variable
from squashlens.run.activations import at_last_tokens, untrained
from squashlens.run.forward import next_logits
from squashlens.run.run import Run
from squashlens.sequences import Ids
from squashlens.theory.statistics.ranks import share_interval
from squashlens.theory.statistics.trends import with_ends

MOST_RANDOM = 32  # prompts that are read out with random weights: chance needs no more
# How a choice stands among the others, and what the number can be.
STANDING = {
    "share_less_likely": (0.0, 1.0),
    "likeliest": (0.0, 1.0),
    "lead": (-math.inf, math.inf),
    "probability": (0.0, 1.0),
}
OF_ANSWERS = "scored prompt layer"
OF_SUBLAYERS = "prompt block sublayer"
LESS_LIKELY = "share of the other choices that the readout finds less likely"
LEAD = "log-odds of the answer and the likeliest other choice in the readout"
RIVAL = "probability of the answer that wins, or comes second, in the readout"
OF_ALL = "whether the readout finds no token likelier than the answer's first"
WRITTEN = "what an output adds directly to the lead of the right answer over its rival"
BY_CHANCE = "95 % limit of what an output adds if its coordinates have random signs"
TABLE = {
    "share_less_likely": (OF_ANSWERS, LESS_LIKELY, "1"),
    "likeliest": (OF_ANSWERS, "whether the readout finds no choice likelier", "1"),
    "lead": (OF_ANSWERS, LEAD, "nats"),
    "probability": (OF_ANSWERS, "probability of the answer in the readout", "1"),
    "likeliest_of_all": ("prompt layer", OF_ALL, "1"),
    "chance": ("", "share of first places by chance", "1"),
    "answered": ("prompt", "whether greedy decoding writes the right answer", "1"),
    "rival_probability": ("prompt layer", RIVAL, "1"),
    "written": (OF_SUBLAYERS, WRITTEN, "1"),
    "written_by_chance": (OF_SUBLAYERS, BY_CHANCE, "1"),
}


@measurement("answer_curve", "answers_by_group", "answer_way")
def answer_by_layer(
    model: Bridge,
    prompts: PromptsOrItems,
    answers: Sequence[str] | None = None,
    *,
    choices: ChoicesOfPrompts = None,
    group: Sequence[str] | None = None,
    clusters: Clusters = None,
    n_random_models: int = 1,
) -> xr.Dataset:
    """Whether prompts are answered, and how the right answer stands if the model is read out at each layer.

    The readout of layer ℓ is ``z_ℓ = W_U · norm(v_ℓ)`` of the last token, with the model's final norm, and its scale or
    soft cap; z_L are the logits. An answer is as likely as all of its tokens together, each read at ℓ after those
    before it (teacher forcing). For answers of one token, log-odds are differences of logits.

    A layer from which the right answer leads means nothing alone: a model that answers a constant is right now and
    then. So every number is also given for the right answers of the *other* prompts, which is chance (½ for
    `share_less_likely`, `chance` for `likeliest`) unless the prompts have answers in common, and for random weights.

    The *rival* is the answer that wins, or comes second if the right one wins: the right answer up to the token at
    which the model would first write another one, and that one. An attention or MLP *writes* for the right answer if
    what it adds to the stream of the last token there, read by the final norm with constant scale, adds to the lead of
    the right token over the rival's. By chance it writes something too: of a vector x whose coordinates have random
    signs, ``Σ_i ± x_i w_i`` is about normal with the variance ``Σ_i x_i² w_i²``. All outputs of a prompt are together
    within `written_by_chance` with 95 %.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompts: texts of prompts, at least two unless there are `choices`; or dictionaries with `prompt`, `answer` and
            perhaps `choices`, `group` and `cluster`, where an answer may also be the number of its choice; or a JSONL
            file of these, a line each. `squashlens.tasks.haystack` makes such prompts.
        answers: the right answer to each prompt, as the model would write it after the prompt, with its space. One that
            others continue, as 9 in 90, needs an end, as ``"9<eos>"``. Not beside dictionaries or a file.
        choices: texts among which an answer is ranked: a list for all prompts, by default all answers; or a list for
            each prompt, whose places then take the part of the answers in the control. None may begin another.
        group: one label for each prompt, such as a depth, length or template. Means are then over each group.
        clusters: one label for each prompt, the same for prompts that are not independent, such as those that share
            examples, a country or a template; by default each different prompt is a cluster of its own. Intervals are
            over clusters; use 20 or more.
        n_random_models: number of models with random weights that are read out as well, without hooks, on at most 32
            prompts; 1 by default.

    Returns:
        Dataset over (scored, prompt, layer), with `scored` one of ``"right answer"``, ``"other prompts' answers"`` (a
        mean over them; of a single prompt ``"other choices"``) and ``"random weights 0"``, …: `share_less_likely`,
        the share of the other choices that are less likely, from 0 to 1; `likeliest`, 1 if none is likelier; `lead`
        against the likeliest other choice, in nats; and `probability`. Over (scored, layer), or (scored, group, layer),
        their means over prompts, `mean_share_less_likely`, `mean_likeliest`, `mean_lead` and `mean_probability`, each
        with the ends `…_low` and `…_high` of a 95 % interval over clusters. Layer L is the model's answer. `chance` is
        1 ÷ number of choices.

        Over (prompt): `answered`, 1 if greedy decoding writes the right answer, with `mean_answered`. Over (prompt,
        layer): `likeliest_of_all`, 1 if of all tokens none is likelier than the first of the right answer; and
        `rival_probability`. Over (prompt, block, sublayer) `written`, in logits, NaN if outputs do not add up
        to the stream, and `written_by_chance`. The coordinates `answer`, `rival`, `cluster` and `group_of` name what
        each prompt has.

    Raises:
        InputError: not one answer for each prompt, an answer that is no choice, or a choice that begins another one; a
            file that is no JSONL of prompts.
        UnsoundModelError: the logits do not follow from the last layer by the final norm.

    Source: nostalgebraist 2020, the logit lens; the readout is TransformerLens's `logit_readout`.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> found = sl.answer_by_layer(model, prompts, [*"0123456789"])
    >>> found["mean_likeliest"].sel(layer=6).values.round(1).tolist()
    [1.0, 0.0, 0.1]
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    asked_for = questions_of(prompts, answers, choices, clusters, group)
    run, asked = of_choices(Run.open(model, **this_call()), *asked_for)
    run = run.knowing(group=asked.groups)
    readouts = _read_out(run, asked)
    standing = _standing(readouts.scores)
    shares = others_shares(asked.right, asked.many)
    others = "other prompts' answers" if len(asked.prompts) > 1 else "other choices"
    scored = {
        "right answer": _of_right(standing, asked.right),
        others: np.einsum("npcl,pc->npl", standing, shares),
    }
    # With random weights only these prompts are read, evenly spaced; the others are NaN.
    last = len(asked.prompts) - 1
    few = np.unique(np.linspace(0, last, MOST_RANDOM).astype(int))
    for seed in range(n_random_models):
        with untrained(run, seed) as random_run:
            random_standing = _standing(_scores(random_run, asked.of(few)))
        of_random = np.full_like(scored["right answer"], np.nan)
        of_random[:, few] = _of_right(random_standing, asked.right[few])
        scored[f"random weights {seed}"] = of_random
    # (name, scored, prompt, layer)
    values = np.stack(list(scored.values()), axis=1)
    return run.dataset(
        "answer by layer",
        {"scored": list(scored), **_labels(run, asked, readouts)},
        _variables(asked, values, readouts),
    )


@dataclass(frozen=True)
class Readouts:
    """What is read of the model itself: of every choice and rival at each layer, and what sublayers write.

    Attributes:
        scores: log p of each choice.
        likeliest_of_all: whether no token is likelier than the first of the right answer.
        rival: the text of each prompt's rival, and `rival_log_p` its log p.
        answered: whether greedy decoding writes the right answer.
        written: what each sublayer adds to the lead of the right answer, and `limit` what all add by chance at most.
    """

    scores: Float[np.ndarray, "prompt outcome layer"]
    likeliest_of_all: Float[np.ndarray, "prompt layer"]
    rival: list[str]
    rival_log_p: Float[np.ndarray, "prompt layer"]
    answered: Float[np.ndarray, " prompt"]
    written: Float[np.ndarray, "prompt part"]
    limit: Float[np.ndarray, "prompt part"]


def _labels(run: Run, asked: Choices, readouts: Readouts) -> dict[str, Any]:
    """The coordinates beside `scored`."""
    labels: dict[str, Any] = {
        "prompt": np.arange(len(asked.prompts)),
        "layer": np.arange(run.n_blocks + 1),
        "block": np.arange(run.n_blocks),
        "sublayer": ["attention", "mlp"],
        "answer": ("prompt", asked.answers),
        "rival": ("prompt", readouts.rival),
        "cluster": ("prompt", asked.clusters),
    }
    if asked.is_grouped:
        labels["group"] = list(asked.members)
        labels["group_of"] = ("prompt", asked.groups)
    return labels


def _variables(
    asked: Choices,
    values: Float[np.ndarray, "name scored prompt layer"],
    readouts: Readouts,
) -> dict[str, Variable]:
    """The numbers of each prompt, and their means over prompts, or over those of each group.

    `values` has an entry of the first axis for each name of `STANDING`.
    """
    by_sublayer = (len(asked.prompts), -1, 2)  # (prompt, block, attention or MLP)
    of_names = dict(zip(STANDING, values, strict=True))
    by_name = {
        "chance": 1 / asked.many,
        "answered": readouts.answered,
        "likeliest_of_all": readouts.likeliest_of_all,
        "rival_probability": np.exp(readouts.rival_log_p),
        "written": readouts.written.reshape(by_sublayer),
        "written_by_chance": readouts.limit.reshape(by_sublayer),
        **of_names,
    }
    variables = variables_of(TABLE, by_name)
    of_group = ("group",) if asked.is_grouped else ()
    for name, of_prompts in of_names.items():
        _, text, units = TABLE[name]
        prompts_last = of_prompts.swapaxes(1, 2)  # (scored, layer, prompt)
        by_group = in_groups(prompts_last, asked.members).swapaxes(1, 2)
        if not asked.is_grouped:  # then there is one group, of all prompts
            by_group = by_group[:, 0]
        variables |= mean_of(
            f"mean_{name}",
            ("scored", *of_group, "layer"),
            by_group,
            f"mean over prompts: {text}",
            units,
            clusters=asked.clusters,
            within=STANDING[name],
        )
    by_group = in_groups(readouts.answered, asked.members)
    if not asked.is_grouped:
        by_group = by_group[0]
    clusters = torch.from_numpy(asked.clusters)
    ends = share_interval(torch.from_numpy(by_group), clusters)
    text = "share of prompts that greedy decoding answers"
    return variables | with_ends("mean_answered", of_group, ends, text)


def _standing(
    scores: Float[np.ndarray, "prompt outcome layer"],
) -> Float[np.ndarray, "name prompt outcome layer"]:
    """For every choice of each prompt, how it stands among the others at each layer, by the names of `STANDING`."""
    n_choices = scores.shape[1]
    is_itself = np.eye(n_choices, dtype=bool)[:, :, None]
    # (prompt, choice, other choice, layer)
    lead = scores[:, :, None] - scores[:, None]
    # Equally likely choices count half; so does each choice beside itself, which is taken off.
    n_less_likely = ((lead > 0) + (lead == 0) / 2).sum(axis=2) - 0.5
    best_other = np.where(is_itself, -np.inf, scores[:, None]).max(axis=2)
    share_less_likely = n_less_likely / (n_choices - 1)
    likeliest = scores >= best_other
    return np.stack([share_less_likely, likeliest, scores - best_other, np.exp(scores)])


def _of_right(
    standing: Float[np.ndarray, "name prompt outcome layer"],
    right: Int[np.ndarray, " prompt"],
) -> Float[np.ndarray, "name prompt layer"]:
    """How the right choice of each prompt stands."""
    return standing[:, np.arange(len(right)), right]


def _row_of(asked: Choices) -> dict[Ids, int]:
    """A row for each text after which a token of a choice is read: a prompt, and the choice's tokens before that one.

    Choices that begin alike share rows.
    """
    row_of: dict[Ids, int] = {}
    for prompt, choice in asked.continuations:
        for k in range(len(choice)):
            row_of.setdefault((*prompt, *choice[:k]), len(row_of))
    return row_of


def _scores(run: Run, asked: Choices) -> Float[np.ndarray, "prompt outcome layer"]:
    """The log-probability of each prompt's choices, all tokens of one together, in the readout of each layer."""
    row_of = _row_of(asked)
    values = at_last_tokens(run, list(row_of), run.sites()[:-1]).values
    return _of_choices(run, _streams(run, values), row_of, asked)


def _streams(
    run: Run, values: Mapping[str, Float[Tensor, "row d"]]
) -> Float[Tensor, "layer row d"]:
    """v⁽⁰⁾ … v⁽ᴸ⁾ among activations by hook point."""
    return torch.stack([values[site] for site in run.sites()[:-1]])


def _of_choices(
    run: Run,
    streams: Float[Tensor, "layer row d"],
    row_of: Mapping[Ids, int],
    asked: Choices,
) -> Float[np.ndarray, "prompt outcome layer"]:
    """`_scores` from v⁽⁰⁾ … v⁽ᴸ⁾ after each text, whose row `row_of` gives."""
    log_p = _read_texts(run, streams, row_of, asked.continuations)
    return log_p.reshape(len(asked.prompts), asked.many, -1)


def _read_texts(
    run: Run,
    streams: Float[Tensor, "layer row d"],
    row_of: Mapping[Ids, int],
    texts: Sequence[tuple[Ids, Ids]],
) -> Float[np.ndarray, "text layer"]:
    """log p of texts, each given as (prompt, tokens): all of its tokens together, in the readout of each layer.

    `row_of` gives the row of `streams` after a prompt and the first tokens of a text.
    """
    different: set[int] = set()
    for _, tokens in texts:
        different.update(tokens)
    vocabulary = sorted(different)
    log_p = readout(run, streams, vocabulary).double().numpy()  # (layer, row, token)
    total = np.zeros((len(texts), len(streams)))
    for number, (prompt, tokens) in enumerate(texts):
        for k, token in enumerate(tokens):
            row = row_of[*prompt, *tokens[:k]]
            total[number] += log_p[:, row, bisect_left(vocabulary, token)]
    return total


class Rival(NamedTuple):
    """A prompt's rival: the first tokens of the right answer, and then another token in place of `right_token`.

    `row` is that of the text before these two tokens, and `lead` the log-odds of the right one there.
    """

    tokens: Ids
    row: int
    right_token: int
    lead: float


def _rivals(asked: Choices, row_of: Mapping[Ids, int], log_p: Tensor) -> list[Rival]:
    """The rival of each prompt, from log p of all tokens at the last layer, (row, outcome)."""
    best_two = log_p.topk(2).indices.tolist()
    rivals = []
    for prompt, answer in zip(asked.prompts, asked.right_tokens, strict=True):
        candidates = []
        for k, right in enumerate(answer):
            row = row_of[*prompt, *answer[:k]]
            first, second = best_two[row]
            # The likeliest token that is not the right one.
            other = second if first == right else first
            lead = float(log_p[row, right] - log_p[row, other])
            candidates.append(Rival((*answer[:k], other), row, right, lead))
        # The first that greedy decoding would write; if it writes the right answer, the one that comes nearest.
        ahead = [rival for rival in candidates if rival.lead < 0]
        rivals.append(ahead[0] if ahead else min(candidates, key=attrgetter("lead")))
    return rivals


def _are_likeliest(
    run: Run,
    asked: Choices,
    streams: Float[Tensor, "layer row d"],
    row_of: Mapping[Ids, int],
) -> Float[np.ndarray, "prompt layer"]:
    """Whether no token is likelier than the first of each right answer; a layer at a time, for large vocabularies."""
    rows = [row_of[prompt] for prompt in asked.prompts]
    # (prompt, 1): the first token of the right answer
    first = asked.first_tokens.gather(1, torch.from_numpy(asked.right)[:, None])
    of_layers = []
    for stream in streams:
        log_p = readout(run, stream[rows])
        is_likeliest = log_p.gather(1, first)[:, 0] >= log_p.amax(dim=1)
        of_layers.append(is_likeliest.double())
    return torch.stack(of_layers, dim=1).numpy()


def _read_out(run: Run, asked: Choices) -> Readouts:
    """All that is read of the model itself, from one pass for each prompt and each token of a choice but the last."""
    row_of = _row_of(asked)
    parts = parts_of(run, "sublayers")
    sites = sites_of(run, parts)
    every = list(dict.fromkeys(run.sites() + sites))
    values = at_last_tokens(run, list(row_of), every).values
    streams = _streams(run, values)
    rivals = _rivals(asked, row_of, readout(run, streams[-1]))
    tokens, rows, right_tokens, leads = zip(*rivals, strict=True)
    # At the token after which the right answer and its rival part.
    values_at_rivals = {site: values[site][list(rows)] for site in sites}
    # (prompt, 2): the right token, and the rival's in its place
    last_tokens = [of_rival[-1] for of_rival in tokens]
    pairs = torch.tensor([right_tokens, last_tokens]).T
    texts = list(zip(asked.prompts, tokens, strict=True))
    tokenizer = run.model.tokenizer
    return Readouts(
        scores=_of_choices(run, streams, row_of, asked),
        likeliest_of_all=_are_likeliest(run, asked, streams, row_of),
        rival=[text_after(tokenizer, *text) for text in texts],
        rival_log_p=_read_texts(run, streams, row_of, texts),
        # Greedy decoding writes the right answer if no rival is ahead of it.
        answered=(np.array(leads) >= 0).astype(float),
        written=written_directly(run, values_at_rivals, parts, pairs),
        limit=chance_limit(run, values_at_rivals, parts, pairs),
    )


def readout(
    run: Run,
    streams: Float[Tensor, "*many d"],
    vocabulary: Sequence[int] | None = None,
) -> Float[Tensor, "*many outcome"]:
    """Log-probabilities of some tokens if residual streams are read by the final norm and the output embedding.

    Tested once for each state of the model: read at the last layer, they are those of the model's own logits. Hooks do
    not act on the readout itself.
    """
    if not run.proof.once("readout of streams", lambda: _reads_out(run)):
        raise UnsoundModelError(
            f"The logits of {run.architecture} do not follow from its last residual stream by the "
            "final norm and the output embedding.",
            "Measure where the answer is with `diagnose`, which reads whole passes only.",
        )
    with without_ambient(run.model):
        return _logit_lens(run, streams, vocabulary)


def _logit_lens(run: Run, streams: Tensor, vocabulary: Sequence[int] | None) -> Tensor:
    """`readout` without its test, and under the hooks that are on the model."""
    from transformer_lens.tools.analysis import (
        logit_readout,
    )  # takes a second to import

    normed = streams.clone().to(run.device)
    norm = getattr(run.model, "ln_final", None)
    if norm:  # applied here, since it may be on another device than W_U
        one_prompt = normed.reshape(1, -1, normed.shape[-1])
        normed = norm(one_prompt).reshape(normed.shape)
    return logit_readout(
        run.model, normed, apply_ln=False, vocab=vocabulary, return_type="log_probs"
    ).values.cpu()


def _reads_out(run: Run) -> bool:
    """Whether the readout at layer L of a probe prompt's last token agrees with the model's own log-probabilities."""
    last: list[Tensor] = []

    def keep_last(stream: Tensor) -> None:
        last.append(stream[:, -1].clone())

    with without_ambient(run.model):
        watch = [(run.site(run.n_blocks), keep_last)]
        logits = next_logits(run, probe_ids(run.model), watch)
        try:
            read_log_p = _logit_lens(run, last[0], None)
        except (NotImplementedError, TypeError, ValueError):
            return False  # TransformerLens has no readout of this model
    model_log_p = logits.float().log_softmax(dim=-1).cpu()
    return agree(read_log_p, model_log_p, run.dtype)
