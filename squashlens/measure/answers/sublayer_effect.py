"""What each attention and each MLP does for the answer at the last token: what it writes, and what is left without it.

What a sublayer writes into the logits directly, and what the answer becomes without it, are two questions: later blocks
may depend on it, or undo it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens._typing import (
    Bridge,
    ChoicesOfPrompts,
    Clusters,
    Missing,
    Parts,
    dtype_name,
    positive,
)
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.answers.choices import mean_of, of_choices
from squashlens.measure.answers.sublayers import (
    Edits,
    Part,
    parts_of,
    sites_of,
    written_directly,
)
from squashlens.measure.registration import measurement
from squashlens.model.agreement import agree
from squashlens.model.hooking.hook import Hook
from squashlens.model.text.tokens import tokenize
from squashlens.records.labels import Variable
from squashlens.remarks import remark
from squashlens.run.activations import at_last_tokens, edited_copies, log_p, streams_at
from squashlens.run.forward import forward, logits_among, require_understood
from squashlens.run.generate import empty_cache
from squashlens.run.run import Run
from squashlens.run.streamed import patterns_written
from squashlens.sequences import Ids
from squashlens.theory.distances import ulp
from squashlens.theory.statistics import selection
from squashlens.theory.statistics.trends import with_ends

HALVES = ("select", "confirm")
WITHOUT = {"zero": "output 0", "mean": "the mean output of the other prompts"}
CACHED = "the last token continues a cache"
OVER = ("block", "sublayer")


@measurement("sublayer_repairs")
def sublayer_effect(
    model: Bridge,
    prompts: Sequence[str],
    answers: Sequence[str],
    *,
    choices: ChoicesOfPrompts = None,
    missing: Missing = "zero",
    parts: Parts = "sublayers",
    clusters: Clusters = None,
    n_random_vectors: int = 4,
    texts: Sequence[str] = (),
    seed: int = 0,
) -> xr.Dataset:
    """What each attention and MLP writes into the answer at the last token, and what changes without its output there.

    The output is what the sublayer adds to the residual stream of the last token, after a norm of its own if it has
    one; that of a head is z, its weighted sum of values. It *repairs* an answer that was wrong to leave it out, if the
    right choice then leads, and *breaks* one that was right if it no longer does; `net` is the share of all prompts
    that it repairs minus the share that it breaks. Equal prompts are one, and are measured once.

    Of many sublayers one repairs something by chance. So half of the clusters of prompts, drawn with `seed`, select the
    sublayer with the largest `net`, and the other half confirm it. That is not enough: an answer near the boundary
    flips by any change. So what is selected is compared with what the same procedure selects

    1. among *random vectors*: each replacement minus the output, with a random sign for each coordinate, so that for
       each sublayer and prompt the stream changes by as much, in a random direction, and as alike from prompt to prompt
       as before. They are drawn `n_random_vectors` times; the limit, below which one more draw is with 95 %, is
       Student's;
    2. among the sublayers with *shuffled answers*: prompts are given the right answers of others, 200 times, which
       takes no further runs; the limit is the 95 % quantile. Of choices of each prompt the places are exchanged. If
       all right answers, or places, are the same, no shuffle changes them, and the limit is NaN.

    `above_null` is "yes" only if `selected_net` is above both limits and its interval above 0. Only then did leaving it
    out repair more than another change would. Each random vector takes as many runs of the last token as the parts.

    Args:
        model, prompts, answers, choices, clusters: as in `answer_by_layer`, but the first tokens of a prompt's choices
            must differ, since only the last token of the prompt is changed. Use 48 prompts or more.
        missing: what takes the place of the output: ``"zero"``, the default, or ``"mean"``, its mean over the last
            tokens of the other prompts.
        parts: ``"sublayers"``, the default, or ``"heads"``, each head of attention as well.
        n_random_vectors: number of random vectors in the place of each output; 4 by default. With fewer than two there
            is no limit, and nothing is above it.
        texts: other texts, whose loss is measured with the output replaced at all their tokens, by 0 or by its mean
            over all tokens of these texts; none by default.
        seed: random seed of the two halves, the random vectors and the shuffles; 0 by default.

    Returns:
        Dataset. Over (prompt), with the coordinates `of_half`, `answer` and `cluster`: `log_odds`, the logit of the
        right choice minus the largest other one, and `log_odds_noise`, how far it is from that of another batch. Over
        (prompt, block, sublayer), with `sublayer` ``"attention"``, ``"mlp"`` or ``"head 0"``, …: `log_odds_without`;
        `log_odds_random`, the same with each random vector, over (random_vector) too; `written`, what the output adds
        to this difference by itself, before a scale or soft cap of the logits (NaN if outputs do not add up to the
        stream). The final norm has its scale held constant, and so does a norm that follows attention where a head
        writes through it. Over (half, block, sublayer): `repaired`, the share of wrong answers that become right;
        `broken`, the share of right ones that become wrong; `net`, repaired minus broken answers ÷ all prompts of the
        half; `net_random`, its mean over random vectors; `change`, the mean change of the difference; each with the
        ends `…_low` and `…_high` of a 95 % interval over clusters. Over (half): `wrong` and `right`, numbers of
        prompts. With `texts`, over (block, sublayer): `loss_change`, in nats per token, with an interval over texts.

        The coordinates `selected_block` and `selected_sublayer` name the one with the largest `net` in the half that
        selects, and `above_null` is ``"yes"``, ``"no"`` or ``"not measured"``. Beside them: `selected_net`, its net
        share in the half that confirms, with its interval; `selected_net_random` and `selected_net_shuffled`, the mean
        of what the procedure reaches by chance, with the limits `…_limit`.

    Raises:
        InputError: the cases of `answer_by_layer`; choices with equal first tokens; fewer than four
            clusters.
        UnsoundModelError: the logits do not follow from y, or hooks at the outputs have no effect.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> found = sl.sublayer_effect(model, prompts, [*"0123456789"])
    >>> float(found["broken"].sel(half="confirm", sublayer="attention").max())  # four of five
    0.8
    """
    positive(n_random_vectors, "n_random_vectors", "a number of vectors", or_zero=True)
    run, asked = of_choices(
        Run.open(model, "sublayer_effect"),
        prompts,
        answers,
        choices,
        clusters,
        missing=missing,
        parts=parts,
        n_random_vectors=n_random_vectors,
        texts=list(texts),
        seed=seed,
    )
    many, independent = len(asked.prompts), int(asked.clusters.max()) + 1
    if independent < 4:
        raise InputError(
            f"{independent} different prompts or clusters are too few for two halves.",
            "Give at least 4, better 48 or more.",
        )
    first = asked.first_tokens()
    rows = np.arange(many)
    require_understood(run)
    every = parts_of(run, parts)
    values = at_last_tokens(run, asked.prompts, sites_of(run, every)).values
    replacements = _replacements(every, values, missing, n_random_vectors, seed)
    replacing = every * (1 + n_random_vectors)
    logits = _logits_of_choices(
        run, asked.prompts, first, replacing, replacements, values
    )
    leads, noise, against = _leads(logits, asked.right, run.dtype)
    pairs = first[rows[:, None], np.stack([asked.right, against], axis=1)]
    written = written_directly(run, values, every, pairs)
    own, without, *random = np.split(
        leads[:, 1:], 1 + len(every) * np.arange(1 + n_random_vectors), axis=1
    )
    selecting = selection.halves(asked.clusters, seed)
    here = np.stack([selecting, ~selecting])
    shape = (run.n_blocks, len(every) // run.n_blocks)
    text = f"with {WITHOUT[missing]} at the last token"
    variables: dict[str, Variable] = {
        "log_odds": (
            ("prompt",),
            own[:, 0],
            "logit of the right choice minus the largest other one",
            "1",
        ),
        "log_odds_noise": (
            ("prompt",),
            noise,
            "how far rounding moves this difference",
            "1",
        ),
        "log_odds_without": (
            ("prompt", *OVER),
            without.reshape(-1, *shape),
            f"the same {text}",
            "1",
        ),
        "written": (
            ("prompt", *OVER),
            written.reshape(-1, *shape),
            "what the output adds to the difference directly",
            "1",
        ),
    }
    if random:
        label = f"the same with an equally large random change of the stream as {text}"
        each = np.stack(random).reshape(n_random_vectors, -1, *shape)
        variables["log_odds_random"] = (
            ("random_vector", "prompt", *OVER),
            each,
            label,
            "1",
        )
    variables |= _by_half(
        np.hstack([own, without]), random, here, asked.clusters, shape, text
    )
    if texts:
        variables |= _losses(
            run, [tokenize(run.model, one) for one in texts], every, missing
        )
    if (own[selecting] > 0).all():
        remark(
            "No answer of the half that selects is wrong, so that no sublayer can repair any."
        )
    if unsure := int((np.abs(own[:, 0]) <= noise).sum()):
        name = dtype_name(run.dtype)
        remark(
            f"{unsure} of {many} answers are right or wrong by rounding in {name}: load a wider dtype to be sure."
        )
    beside = np.split(logits[:, 2 + len(every) :], n_random_vectors or 1, axis=1)[
        :n_random_vectors
    ]
    chosen = selection.select(
        logits[:, 1 : 2 + len(every)],
        beside,
        asked.right,
        asked.clusters,
        selecting,
        seed,
    )
    variables |= _of_selected(chosen, text)
    block, number = divmod(chosen.part, shape[1])
    at = {
        "selected_block": block,
        "selected_sublayer": every[number].name,
        "above_null": chosen.above_null,
    }
    of_half = np.where(selecting, *HALVES)
    labels = {
        "half": [*HALVES],
        "of_half": ("prompt", of_half),
        "answer": ("prompt", asked.answers),
        "cluster": ("prompt", asked.clusters),
    }
    over = {
        "prompt": rows,
        "block": np.arange(shape[0]),
        "sublayer": [part.name for part in every[: shape[1]]],
    }
    return run.dataset("sublayer effect", {**over, **labels, **at}, variables)


def _replacements(
    parts: Sequence[Part],
    values: Mapping[str, Tensor],
    missing: Missing,
    n_random_vectors: int,
    seed: int,
) -> list[Float[Tensor, "prompt out"]]:
    """What takes the place of each output: 0 or its mean over the other prompts, and then, for each random vector, the
    output changed by as much in a random direction."""
    outputs = [part.of(values) for part in parts]
    replacements = [torch.zeros_like(output) for output in outputs]
    if missing == "mean":
        others = len(outputs[0]) - 1
        replacements = [(output.sum(dim=0) - output) / others for output in outputs]
    rng = np.random.default_rng([seed, 2])
    draws = rng.integers(2**31, size=(n_random_vectors, len(parts))).tolist()
    turned = []
    for numbers in draws:
        for output, other, number in zip(outputs, replacements, numbers, strict=True):
            change = selection.turned(other - output, number)
            turned.append(output + change.to(output))
    return replacements + turned


def _logits_of_choices(
    run: Run,
    prompts: Sequence[Ids],
    first: Int[Tensor, "prompt outcome"],
    parts: Sequence[Part],
    replacements: Sequence[Float[Tensor, "prompt out"]],
    values: Mapping[str, Tensor],
) -> Float[np.ndarray, "prompt variant outcome"]:
    """The logits of each prompt's choices: as it is, in two batches, and with each output replaced."""
    y = values[run.site("y")]
    runs = []
    for row, ids in enumerate(bar(prompts, desc="prompts")):
        vectors = [replacement[row] for replacement in replacements]
        edits = list(zip(parts, vectors, strict=True))
        edited = _without(run, ids, y[row, None], edits).to(y.device)
        every_y = torch.cat([y[row, None], edited])
        runs.append(logits_among(run, every_y, first[row]).double().cpu())
    return torch.stack(runs).numpy()


def _leads(
    logits: Float[np.ndarray, "prompt variant outcome"],
    right: Int[np.ndarray, " prompt"],
    dtype: torch.dtype,
) -> tuple[
    Float[np.ndarray, "prompt variant"],
    Float[np.ndarray, " prompt"],
    Int[np.ndarray, " prompt"],
]:
    """How far the right choice leads in each run, how far rounding moves that, and the choice that it leads.

    The noise is the difference of the first two runs, but at least what rounding the two logits does.
    """
    rows, others = np.arange(len(right)), logits[:, 0].copy()
    others[rows, right] = -np.inf
    first = torch.from_numpy(np.stack([logits[rows, 0, right], others.max(axis=-1)]))
    rounded = ulp(first, dtype).sum(dim=0).numpy() / 2
    leads = selection.leads(logits, right)
    return (
        leads,
        np.maximum(np.abs(leads[:, 0] - leads[:, 1]), rounded),
        others.argmax(axis=-1),
    )


def _by_half(
    odds: Float[np.ndarray, "prompt variant"],
    random: Sequence[Float[np.ndarray, "prompt part"]],
    here: Bool[np.ndarray, "half prompt"],
    clusters: Int[np.ndarray, " prompt"],
    shape: tuple[int, int],
    text: str,
) -> dict[str, Variable]:
    """Shares of repaired and broken answers, their net share, and the mean change, in each half."""
    own, without = odds[:, 0], odds[:, 1:].T
    beside = [selection.gained(np.hstack([odds[:, :1], one])).T for one in random]
    by_chance = np.mean(beside, axis=0) if beside else np.full(without.shape, np.nan)
    counts = {"wrong": own <= 0, "right": own > 0}
    parts = {
        "repaired": (
            without > 0,
            counts["wrong"],
            f"share of wrong answers that are right {text}",
        ),
        "broken": (
            without <= 0,
            counts["right"],
            f"share of right answers that are wrong {text}",
        ),
        "net": (
            selection.gained(odds).T,
            True,
            f"repaired minus broken answers {text}, share of all prompts",
        ),
        "net_random": (
            by_chance,
            True,
            f"the same with equally large random changes of the stream as {text}",
        ),
        "change": (
            without - own,
            True,
            f"mean change of the difference of logits {text}",
        ),
    }
    found: dict[str, Variable] = {}
    for name, (values, counted, label) in parts.items():
        each = np.where(here[:, None] & counted, values, np.nan).reshape(
            len(HALVES), *shape, -1
        )
        found |= mean_of(
            name,
            ("half", *OVER),
            each,
            label,
            clusters=clusters,
            share="net" not in name,
        )
    for name, which in counts.items():
        found[name] = (
            ("half",),
            (here & which).sum(axis=1),
            f"number of {name} answers",
            "prompts",
        )
    return found


def _of_selected(chosen: selection.Selection, text: str) -> dict[str, Variable]:
    """The net share of the selected part in the half that confirms, and what the same selection reaches by chance."""
    ends, label = (
        (chosen.net, chosen.low, chosen.high),
        f"net share of prompts repaired {text}, selected, held out",
    )
    found = dict(with_ends("selected_net", (), ends, label))
    kinds = {
        "random": ("equally large random changes", chosen.random, chosen.random_limit),
        "shuffled": ("shuffled answers", chosen.shuffled, chosen.shuffled_limit),
    }
    for name, (kind, draws, limit) in kinds.items():
        mean = draws.mean() if len(draws) else np.nan
        found[f"selected_net_{name}"] = ((), mean, f"{label}, with {kind}: mean", "1")
        found[f"selected_net_{name}_limit"] = (
            (),
            limit,
            f"{label}, with {kind}: 95 % limit",
            "1",
        )
    return found


def _without(
    run: Run, ids: Ids, whole: Float[Tensor, "1 d"], edits: Edits
) -> Float[Tensor, "variant d"]:
    """The last y of a prompt as it is, and with each part's output replaced at its last token.

    The other tokens are run once, if the last token on their cache is what it is in the `whole` prompt.
    """
    row = torch.tensor(ids, device=run.device)
    if len(ids) > 1 and (cache := empty_cache(run)) is not None:
        with patterns_written(CACHED):
            forward(
                run, row[None, :-1], [], {"use_cache": True, "past_key_values": cache}
            )
            y = torch.cat([*_replaced(run, row[-1:], edits, -1, cache)])[:, -1]
        if agree(y[:1], whole, run.dtype):
            return y
    return torch.cat([part[:, -1].clone() for part in _replaced(run, row, edits, -1)])


def _replaced(
    run: Run,
    ids: Int[Tensor, " position"],
    edits: Edits,
    place: Any,
    cache: Any = None,
) -> Iterator[Float[Tensor, "some position d"]]:
    """y of a prompt as it is, and of a copy for each part whose output is replaced at a place."""

    def hooks(numbers: list[int]) -> list[Hook]:
        chosen = [
            (copied, *edits[number - 1])
            for copied, number in enumerate(numbers)
            if number
        ]
        return [part.replaced(copied, place, vector) for copied, part, vector in chosen]

    return edited_copies(run, ids, len(edits) + 1, hooks, cache)


def _losses(
    run: Run, texts: Sequence[Tensor], parts: Sequence[Part], missing: Missing
) -> dict[str, Variable]:
    """How the loss on texts changes when a part's output is replaced at every token."""
    sites = {part.site for part in parts}
    seen = [streams_at(run, ids, sites) for ids in texts] if missing == "mean" else []
    means = (
        [
            torch.cat([part.of(values)[0] for values in seen]).mean(dim=0)
            for part in parts
        ]
        if seen
        else []
    )
    edits = list(zip(parts, means or [torch.zeros(())] * len(parts), strict=True))
    changes = []
    for ids in bar(texts, desc="texts"):
        variants = _replaced(run, ids[0], edits, slice(None))
        losses = torch.cat(
            [-log_p(run, y[:, :-1], ids[0, 1:]).mean(dim=-1) for y in variants]
        )
        changes.append(losses[1:] - losses[0])
    values = torch.stack(changes, dim=-1).reshape(run.n_blocks, -1, len(texts)).numpy()
    text = f"change of the loss on texts with {'output 0' if missing == 'zero' else 'the mean output'} at every token"
    return mean_of("loss_change", OVER, values, text, "nats", share=False)
