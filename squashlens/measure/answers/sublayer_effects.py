"""What each attention and each MLP does for the answer at the last token: what it writes, and what is left without it.

What a sublayer writes into the logits directly, and what the answer becomes without it, are two questions: later blocks
may depend on it, or undo it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
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
from squashlens.measure.answers.choices import (
    Choices,
    mean_of,
    noise_of_leads,
    of_choices,
)
from squashlens.measure.answers.sublayers import (
    Edits,
    Part,
    parts_of,
    sites_of,
    written_directly,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
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
from squashlens.theory.statistics import selection
from squashlens.theory.statistics.trends import with_ends

HALVES = ("select", "confirm")
FEWEST = 4  # clusters, of which two halves can be made
WITHOUT = {"zero": "output 0", "mean": "the mean output of the other prompts"}
CACHED = "the last token continues a cache"


@measurement("sublayer_repairs")
def sublayer_effects(
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
            must differ, since only the last token of the prompt is changed. Use 48 prompts or more: with fewer than
            four clusters there are no halves, and only the numbers of each prompt.
        missing: what takes the place of the output: ``"zero"``, the default, or ``"mean"``, its mean over the last
            tokens of the other prompts.
        parts: ``"sublayers"``, the default, or ``"heads"``, each head of attention as well.
        n_random_vectors: number of random vectors in the place of each output; 4 by default. With fewer than two there
            is no limit, and nothing is above it.
        texts: other texts, whose loss is measured with the output replaced at all their tokens, by 0 or by its mean
            over all tokens of these texts; none by default.
        seed: random seed of the two halves, the random vectors and the shuffles; 0 by default.

    Returns:
        Dataset. Over (prompt), with the coordinates `of_half`, `answer` and `cluster`: `lead`, the logit of the
        right choice minus the largest other one, and `lead_noise`, how far it is from that of another batch. Over
        (prompt, block, sublayer), with `sublayer` ``"attention"``, ``"mlp"`` or ``"head 0"``, …: `lead_without`;
        `lead_random`, the same with each random vector, over (random_vector) too; `written`, what the output adds
        to this difference by itself, before a scale or soft cap of the logits (NaN if outputs do not add up to the
        stream). The final norm has its scale held constant, and so does a norm that follows attention where a head
        writes through it. Over (half, block, sublayer): `repaired`, the share of wrong answers that become right;
        `broken`, the share of right ones that become wrong; `net`, repaired minus broken answers ÷ all prompts of the
        half; `net_random`, its mean over random vectors; `change`, the mean change of the difference; each with the
        ends `…_low` and `…_high` of a 95 % interval over clusters. Over (half): `wrong` and `right`, numbers of
        prompts.

        The coordinates `selected_block` and `selected_sublayer` name the one with the largest `net` in the half that
        selects, and `above_null` is ``"yes"``, ``"no"`` or ``"not measured"``. Beside them: `selected_net`, its net
        share in the half that confirms, with its interval; `selected_net_random` and `selected_net_shuffled`, the mean
        of what the procedure reaches by chance, with the limits `…_limit`.

    Raises:
        InputError: the cases of `answer_by_layer`; choices with equal first tokens; the mean
            over others of one prompt.
        UnsoundModelError: the logits do not follow from y, or hooks at the outputs have no effect.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> found = sl.sublayer_effects(model, prompts, [*"0123456789"])
    >>> float(found["broken"].sel(half="confirm", sublayer="attention").max())  # four of five
    0.8
    """
    positive(n_random_vectors, "n_random_vectors", "a number of vectors", or_zero=True)
    positive(seed, "seed", "a random seed", or_zero=True)
    run = Run.open(model, **this_call())
    run, asked = of_choices(run, prompts, answers, choices, clusters)
    if missing == "mean" and len(asked.prompts) == 1:
        raise InputError(
            "missing='mean' is the mean over other prompts, and there is one prompt.",
            "Give several prompts, or missing='zero'.",
        )
    require_understood(run)
    all_parts = parts_of(run, parts)
    values = at_last_tokens(run, asked.prompts, sites_of(run, all_parts)).values
    asked.require_distinct_first_tokens()
    replacements = _replacements(all_parts, values, missing)
    draws = _random_replacements(
        all_parts, values, replacements, n_random_vectors, seed
    )
    logits = _logits_of_choices(run, asked, all_parts, [replacements, *draws], values)
    variants = Variants(logits, len(all_parts), asked.right, run.dtype)
    replaced = f"with {WITHOUT[missing]} at the last token"  # ends the long names
    variables = _of_prompts(run, asked, all_parts, values, variants, replaced)
    if texts:
        token_ids = [tokenize(run.model, text) for text in texts]
        variables |= _losses(run, token_ids, all_parts, missing)
    coords: dict[str, Any] = {
        "prompt": np.arange(len(asked.prompts)),
        "block": np.arange(run.n_blocks),
        "sublayer": [part.name for part in all_parts if part.block == 0],
        "answer": ("prompt", asked.answers),
        "cluster": ("prompt", asked.clusters),
    }
    selecting = selection.halves(asked.clusters, seed)  # the other half confirms
    _remark_doubtful(run, variants, selecting)
    n_clusters = int(asked.clusters.max()) + 1
    if n_clusters >= FEWEST:
        chosen = variants.select(asked.clusters, selecting, seed)
        in_half = np.stack([selecting, ~selecting])
        shape = (run.n_blocks, len(all_parts) // run.n_blocks)  # (block, sublayer)
        variables |= _by_half(variants, in_half, asked.clusters, shape, replaced)
        variables |= _of_selected(chosen, replaced)
        part = all_parts[chosen.part]
        coords |= {
            "half": list(HALVES),
            "of_half": ("prompt", np.where(selecting, *HALVES)),
            "selected_block": part.block,
            "selected_sublayer": part.name,
            "above_null": chosen.above_null,
        }
    return run.dataset("sublayer effect", coords, variables)


BY_PART = "prompt block sublayer"
BY_DRAW = "random_vector prompt block sublayer"
RANDOM = "the same with an equally large random change of the stream as {replaced}"
SELECTED = "net share of prompts repaired {replaced}, selected, held out"
WITH_RANDOM = f"{SELECTED}, with equally large random changes"
WITH_SHUFFLED = f"{SELECTED}, with shuffled answers"
TABLE = {
    "lead": ("prompt", "logit of the right choice minus the largest other one", "1"),
    "lead_noise": ("prompt", "how far rounding moves this difference", "1"),
    "lead_without": (BY_PART, "the same {replaced}", "1"),
    "lead_random": (BY_DRAW, RANDOM, "1"),
    "written": (BY_PART, "what the output adds to the difference directly", "1"),
    "selected_net_random": ("", f"{WITH_RANDOM}: mean", "1"),
    "selected_net_random_limit": ("", f"{WITH_RANDOM}: 95 % limit", "1"),
    "selected_net_shuffled": ("", f"{WITH_SHUFFLED}: mean", "1"),
    "selected_net_shuffled_limit": ("", f"{WITH_SHUFFLED}: 95 % limit", "1"),
}
MEANS = {
    "repaired": "share of wrong answers that are right {}",
    "broken": "share of right answers that are wrong {}",
    "net": "repaired minus broken answers {}, share of all prompts",
    "net_random": "the same with equally large random changes of the stream as {}",
    "change": "mean change of the difference of logits {}",
}


@dataclass(frozen=True)
class Variants:
    """The logits of each prompt's choices in all variants, and how far the right choice leads in each.

    Variants 0 and 1 are the prompt as it is, in two batches; then each part's output is replaced, and then, for each
    draw of random vectors, each part's output by those.
    """

    logits: Float[np.ndarray, "prompt variant outcome"]
    n_parts: int
    right: Int[np.ndarray, " prompt"]
    dtype: torch.dtype

    @cached_property
    def leads(self) -> Float[np.ndarray, "prompt variant"]:
        """The logit of the right choice minus the largest other one."""
        return selection.leads(self.logits, self.right)

    @property
    def lead(self) -> Float[np.ndarray, " prompt"]:
        """The lead in the prompt as it is, in the batch of the changed variants."""
        return self.leads[:, 1]

    @property
    def lead_noise(self) -> Float[np.ndarray, " prompt"]:
        """How far another batch moves the lead of the prompt as it is."""
        first = self.logits[:, 0]
        return noise_of_leads(first, self.logits[:, 1], self.right, self.dtype)

    @property
    def lead_without(self) -> Float[np.ndarray, "prompt part"]:
        """The lead with each part's output replaced."""
        return self.leads[:, 2 : 2 + self.n_parts]

    @property
    def lead_random(self) -> Float[np.ndarray, "draw prompt part"]:
        """The lead with random vectors in place of each part's output."""
        return self._of_draws(self.leads)

    @property
    def best_wrong(self) -> Int[np.ndarray, " prompt"]:
        """The likeliest other choice of each prompt."""
        wrong = self.logits[:, 0].copy()
        wrong[np.arange(len(self.right)), self.right] = -np.inf
        return wrong.argmax(axis=-1)

    def _of_draws(
        self, values: Float[np.ndarray, "prompt variant ..."]
    ) -> Float[np.ndarray, "draw prompt part ..."]:
        """The values of the variants with random vectors, by draw of these and by part."""
        random = values[:, 2 + self.n_parts :]
        by_draw = (len(values), -1, self.n_parts, *values.shape[2:])
        return random.reshape(by_draw).swapaxes(0, 1)

    def select(
        self,
        clusters: Int[np.ndarray, " prompt"],
        selecting: Bool[np.ndarray, " prompt"],
        seed: int,
    ) -> selection.Selection:
        """The part that repairs most in the half that selects, and what the same selection reaches by chance.

        `selecting` says which prompts are in that half.
        """
        return selection.select(
            logits=self.logits[:, 1 : 2 + self.n_parts],  # as it is, and without
            random=list(self._of_draws(self.logits)),
            right=self.right,
            clusters=clusters,
            selecting=selecting,
            seed=seed,
        )

    def gained(self, changed: Float[np.ndarray, "prompt part"]) -> np.ndarray:
        """1 where a change makes a wrong answer right, −1 where a right one wrong, else 0; (part, prompt).

        `changed` has the leads with each part's output replaced.
        """
        return selection.gained(np.column_stack([self.lead, changed])).T


def _of_prompts(
    run: Run,
    asked: Choices,
    parts: Sequence[Part],
    values: Mapping[str, Tensor],
    variants: Variants,
    replaced: str,
) -> dict[str, Variable]:
    """The numbers of each prompt; `values` are activations at last tokens, and `replaced` ends the long names."""
    # (prompt, 2): the right choice and the likeliest other one, and then their first tokens
    right_and_best_wrong = np.stack([asked.right, variants.best_wrong], axis=1)
    pairs = asked.first_tokens.gather(1, torch.from_numpy(right_and_best_wrong))
    written = written_directly(run, values, parts, pairs)
    by_part = (len(asked.prompts), run.n_blocks, len(parts) // run.n_blocks)
    numbers = {
        "lead": variants.lead,
        "lead_noise": variants.lead_noise,
        "lead_without": variants.lead_without.reshape(by_part),
        "written": written.reshape(by_part),
    }
    if len(variants.lead_random):
        numbers["lead_random"] = variants.lead_random.reshape(-1, *by_part)
    return variables_of(TABLE, numbers, replaced=replaced)


def _remark_doubtful(
    run: Run, variants: Variants, selecting: Bool[np.ndarray, " prompt"]
) -> None:
    """Print a remark if no answer can be repaired, and one with how many answers are decided by rounding.

    `selecting` says which prompts are in the half that selects.
    """
    lead = variants.lead
    if selecting.any() and (lead[selecting] > 0).all():
        remark(
            "No answer of the half that selects is wrong, so that no sublayer can repair any."
        )
    n_unsure = int((np.abs(lead) <= variants.lead_noise).sum())
    if n_unsure:
        remark(
            f"{n_unsure} of {len(lead)} answers are right or wrong by rounding in {dtype_name(run.dtype)}: load a "
            "wider dtype to be sure."
        )


def _replacements(
    parts: Sequence[Part], values: Mapping[str, Tensor], missing: Missing
) -> list[Float[Tensor, "prompt out"]]:
    """What takes the place of each output: 0, or its mean over the other prompts.

    `values` are activations at each prompt's last token by hook point, here and below.
    """
    replacements = []
    for part in parts:
        replacement = torch.zeros_like(part.of(values))
        if missing == "mean":
            output = part.of(values)
            replacement = (output.sum(dim=0) - output) / (len(output) - 1)
        replacements.append(replacement)
    return replacements


def _random_replacements(
    parts: Sequence[Part],
    values: Mapping[str, Tensor],
    replacements: Sequence[Float[Tensor, "prompt out"]],
    n_random_vectors: int,
    seed: int,
) -> list[list[Float[Tensor, "prompt out"]]]:
    """For each random vector, each output changed by as much as its replacement, in a random direction."""
    # Another stream than those of the halves and of the shuffles.
    rng = selection.random_stream(seed, 2)
    draws = []
    seeds = rng.integers(2**31, size=(n_random_vectors, len(parts)))
    for seeds_of_draw in seeds.tolist():
        vectors = []
        for part, replacement, part_seed in zip(
            parts, replacements, seeds_of_draw, strict=True
        ):
            output = part.of(values)
            change = selection.turned(replacement - output, part_seed)
            vectors.append(output + change.to(output))
        draws.append(vectors)
    return draws


def _logits_of_choices(
    run: Run,
    asked: Choices,
    parts: Sequence[Part],
    replacements: Sequence[Sequence[Float[Tensor, "prompt out"]]],
    values: Mapping[str, Tensor],
) -> Float[np.ndarray, "prompt variant outcome"]:
    """The logits of each prompt's choices: as it is, in two batches, and with each part's output replaced.

    The last are those for each list of `replacements`, which has an entry for each part.
    """
    y = values[run.site("y")]
    # One after the other: the variants of the first list, then those of the next.
    vectors = list(chain.from_iterable(replacements))
    replaced_parts = list(parts) * len(replacements)
    logits = []
    for row, ids in enumerate(bar(asked.prompts, desc="prompts")):
        vectors_of_prompt = [vector[row] for vector in vectors]
        edits = list(zip(replaced_parts, vectors_of_prompt, strict=True))
        # (1 + edit, d), of which the first is the prompt as it is
        edited = _without(run, ids, y[row, None], edits).to(y.device)
        y_of_variants = torch.cat([y[row, None], edited])
        among = logits_among(run, y_of_variants, asked.first_tokens[row])
        logits.append(among.double().cpu())
    return torch.stack(logits).numpy()


def _by_half(
    variants: Variants,
    in_half: Bool[np.ndarray, "half prompt"],
    clusters: Int[np.ndarray, " prompt"],
    shape: tuple[int, int],
    replaced: str,
) -> dict[str, Variable]:
    """Shares of repaired and broken answers, their net share, and the mean change of the lead, in each half.

    Repaired are shares of the wrong answers, broken of the right ones, the others of all prompts.
    `in_half` says which prompts each half has; `shape` is the number of blocks, and of parts in each.
    """
    without = variants.lead_without.T  # (part, prompt)
    is_wrong = variants.lead <= 0
    is_right = variants.lead > 0
    is_any = np.ones_like(is_right)
    net_random = np.full(without.shape, np.nan)
    if len(variants.lead_random):
        gained = [variants.gained(lead) for lead in variants.lead_random]
        net_random = np.mean(gained, axis=0)
    # What is averaged, (part, prompt); over which prompts; and whether it is a share of them, 0 or 1 for each.
    means = {
        "repaired": (without > 0, is_wrong, True),
        "broken": (without <= 0, is_right, True),
        "net": (variants.gained(variants.lead_without), is_any, False),
        "net_random": (net_random, is_any, False),
        "change": (without - variants.lead, is_any, False),
    }
    variables: dict[str, Variable] = {}
    for name, (values, is_counted, share) in means.items():
        is_in_mean = in_half[:, None] & is_counted  # (half, 1, prompt)
        by_part = np.where(is_in_mean, values, np.nan).reshape(len(HALVES), *shape, -1)
        variables |= mean_of(
            name,
            ("half", "block", "sublayer"),
            by_part,
            MEANS[name].format(replaced),
            clusters=clusters,
            share=share,
        )
    for name, is_counted in {"wrong": is_wrong, "right": is_right}.items():
        number = (in_half & is_counted).sum(axis=1)
        variables[name] = (("half",), number, f"number of {name} answers", "prompts")
    return variables


def _of_selected(chosen: selection.Selection, replaced: str) -> dict[str, Variable]:
    """The net share of the selected part in the half that confirms, and what the same selection reaches by chance."""
    nulls = {
        "selected_net_random": chosen.random.mean() if len(chosen.random) else np.nan,
        "selected_net_random_limit": chosen.random_limit,
        "selected_net_shuffled": chosen.shuffled.mean(),
        "selected_net_shuffled_limit": chosen.shuffled_limit,
    }
    ends = (chosen.net, chosen.low, chosen.high)
    net = with_ends("selected_net", (), ends, SELECTED.format(replaced=replaced))
    return net | variables_of(TABLE, nulls, replaced=replaced)


def _without(
    run: Run, ids: Ids, whole: Float[Tensor, "1 d"], edits: Edits
) -> Float[Tensor, "variant d"]:
    """y, the output of the final norm, of the last token: as it is, and with each part's output replaced there.

    `whole` is the last y of the prompt in one pass, as it is. If the last token has the same y on a cache of the
    others, these are run once, and only the last token for each variant. Otherwise all tokens are run for each.
    """
    row = torch.tensor(ids, device=run.device)
    cache = (
        empty_cache(run) if len(ids) > 1 else None
    )  # None also if tokens cannot be run on one
    if cache is not None:
        with patterns_written(CACHED):  # fused attention takes no cache
            # All tokens but the last fill the cache.
            context = {"use_cache": True, "past_key_values": cache}
            forward(run, row[None, :-1], [], context)
            y = torch.cat(list(_replaced(run, row[-1:], edits, -1, cache)))[:, -1]
        if agree(y[:1], whole, run.dtype):
            return y
    # A batch at a time; the clone frees y at the other tokens.
    batches = _replaced(run, row, edits, -1)
    return torch.cat([y[:, -1].clone() for y in batches])


def _replaced(
    run: Run,
    ids: Int[Tensor, " position"],
    edits: Edits,
    place: Any,
    cache: Any = None,
) -> Iterator[Float[Tensor, "some position d"]]:
    """y of a prompt as it is, and of a copy for each part whose output is replaced at a place, in batches.

    With a cache, `ids` follow what is in it. `place` is a position among `ids`, or a slice of them.
    """

    def hooks(numbers: list[int]) -> list[Hook]:
        """The hooks for a batch that has the copies with these numbers, of which number 0 is the prompt as it is."""
        hooks_of_batch = []
        for row, number in enumerate(numbers):
            if number > 0:
                part, vector = edits[number - 1]
                hooks_of_batch.append(part.replaced(row, place, vector))
        return hooks_of_batch

    return edited_copies(run, ids, len(edits) + 1, hooks, cache)


def _losses(
    run: Run, texts: Sequence[Tensor], parts: Sequence[Part], missing: Missing
) -> dict[str, Variable]:
    """How the loss on texts, given as token ids, changes when a part's output is replaced at every token."""
    vectors = [torch.zeros(())] * len(parts)  # one 0 for all coordinates
    if missing == "mean":
        sites = {part.site for part in parts}
        values_of_texts = [streams_at(run, ids, sites) for ids in texts]
        vectors = []
        for part in parts:
            outputs = torch.cat([part.of(values)[0] for values in values_of_texts])
            vectors.append(outputs.mean(dim=0))
    edits = list(zip(parts, vectors, strict=True))
    changes = []
    for ids in bar(texts, desc="texts"):
        losses = []
        for y in _replaced(run, ids[0], edits, slice(None)):
            losses.append(-log_p(run, y[:, :-1], ids[0, 1:]).mean(dim=-1))
        loss, *losses_without = torch.cat(losses)
        changes.append(torch.stack(losses_without) - loss)
    # (block, sublayer, text)
    values = torch.stack(changes, dim=-1).reshape(run.n_blocks, -1, len(texts)).numpy()
    replaced = "output 0" if missing == "zero" else "the mean output"
    text = f"change of the loss on texts with {replaced} at every token"
    over = ("block", "sublayer")
    return mean_of("loss_change", over, values, text, "nats", share=False)
