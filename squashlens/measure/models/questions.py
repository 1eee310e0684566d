"""Prompts with right answers for two models, and how a model stands to them at the last token."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, short_repr
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.answers.choices import (
    Choices,
    mean_of,
    of_choices,
    questions_of,
)
from squashlens.model.anatomy import n_outcomes
from squashlens.model.proof import opened, require_bridge
from squashlens.model.text.tokens import tokenize
from squashlens.records.provenance import Facts
from squashlens.run.budget import batch_memory, pass_bytes
from squashlens.run.exchange import Pair, recorded_pair
from squashlens.run.forward import (
    log_probabilities,
    logits_among,
    require_understood,
)
from squashlens.run.passes import batches
from squashlens.run.run import Run
from squashlens.theory.statistics import selection
from squashlens.theory.statistics.trends import Labelled

# What results state of the other model, beside the facts of the reference.
STATED = (
    "model",
    "revision",
    "fingerprint",
    "proof",
    "dtype",
    "quantized",
    "weights_origin",
    "ambient_hooks",
)
LEAD = "lead of the right answer over the likeliest other choice"
# Prompts whose next tokens are kept at a time: a vocabulary may have 262,144 tokens.
TOGETHER = 16


@dataclass(frozen=True)
class TwoModels:
    """The runs of a reference and another model, and the same prompts with their choices for both.

    Attributes:
        first_tokens: the first token of each choice, by which leads are read.
    """

    reference: Run
    other: Run
    asked: Choices
    first_tokens: Int[Tensor, "prompt outcome"]

    @property
    def runs(self) -> dict[str, Run]:
        """Both runs by the label of results."""
        return {"reference": self.reference, "other": self.other}

    @property
    def n_outcomes(self) -> int:
        """The tokens that both models have logits of; the larger one may pad its vocabulary."""
        return min(n_outcomes(run.model) for run in self.runs.values())


@contextmanager
def two_models(
    reference: Bridge, other: Bridge, call: Mapping[str, Any], *asked_for: Any
) -> Iterator[TwoModels]:
    """Both models opened in the body, and the prompts, answers and choices of a call checked for both.

    `asked_for` are the prompts, answers, choices, clusters and groups, in this order.
    """
    run = Run.open(reference, **call)
    given = questions_of(*asked_for)
    run, asked = of_choices(run, *given)
    require_understood(run)
    require_bridge(other)
    with opened(other):
        second = Run.open(other, run.function)
        texts = _texts_of(given.answers, given.choices)
        _require_one_tokenizer(run, second, given.prompts, texts)
        # The longest prompt stands for all, as in the run of the reference.
        second = second.with_prompts(torch.tensor(max(asked.prompts, key=len)))
        require_understood(second)
        _require_right_apart(asked)
        facts: Facts = {name: second.facts[name] for name in STATED}
        yield TwoModels(
            reference=run.knowing(other=facts, group=asked.groups),
            other=second,
            asked=asked,
            first_tokens=asked.first_tokens,
        )


def _require_one_tokenizer(
    reference: Run, other: Run, prompts: Sequence[str], texts: Iterable[str]
) -> None:
    """Raise an error unless both models read the same token ids, for every prompt and for each text after a prompt.

    `texts` are the answers and choices, each of which is tokenized after the first prompt.
    """
    tokenized = list(prompts)
    tokenized += [prompts[0] + text for text in texts]
    for text in tokenized:
        ids = tokenize(reference.model, text)
        theirs = tokenize(other.model, text)
        if ids.tolist() != theirs.tolist():
            raise InputError(
                f"The two models have other token ids for the same text: {short_repr(text)}.",
                "Compare models of one tokenizer. For others, compare the answers that `evaluate_task` reads.",
            )


def _texts_of(answers: Sequence[str], choices: Any) -> list[str]:
    """All texts of answers and choices, each once; `choices` are texts for all prompts, or lists of texts for each."""
    texts = list(answers)
    for choice in choices or ():
        texts += [choice] if isinstance(choice, str) else list(choice)
    return list(dict.fromkeys(texts))


def _require_right_apart(asked: Choices) -> None:
    """Raise an error if another choice of a prompt begins with the token of the right one: then there is no lead."""
    first = asked.first_tokens  # (prompt, choice)
    first_of_right = first.gather(1, torch.from_numpy(asked.right)[:, None])
    # The right one is always one of them.
    is_shared = (first == first_of_right).sum(dim=1) > 1
    if bool(is_shared.any()):
        number = int(is_shared.nonzero()[0])
        raise InputError(
            f"Another choice of prompt {number} begins with the token of the right answer, {asked.answers[number]!r}.",
            "Give choices that differ in their first token, or write the text that they share at the end of the "
            "prompt.",
        )


def choice_logits(
    two: TwoModels, run: Run, places: Sequence[int], y: Float[Tensor, "row d"]
) -> Float[np.ndarray, "row outcome"]:
    """The logits of the first token of each choice of some prompts, from y of their last tokens in one of the models.

    `places` are the numbers of these prompts, a row of y each.
    """
    first_tokens = two.first_tokens[list(places)]
    # Only the columns of the output matrix that some prompt needs, in ascending order.
    tokens = first_tokens.unique()
    logits = logits_among(run, y, tokens).double().cpu()
    columns = torch.searchsorted(tokens, first_tokens)
    return logits.gather(1, columns).numpy()


def leads_at(
    two: TwoModels, run: Run, places: Sequence[int], y: Float[Tensor, "row d"]
) -> Float[np.ndarray, " row"]:
    """The leads of the right answers of some prompts, read from y by the head of one of the models."""
    logits = choice_logits(two, run, places, y)
    right = two.asked.right[list(places)]
    # `selection.leads` takes several runs of each prompt, (prompt, run, choice); here there is one.
    return selection.leads(logits[:, None], right)[:, 0]


def mean_kl_of(
    dims: tuple[str, ...],
    kl: Float[np.ndarray, "*many prompt"],
    text: str,
    clusters: Int[np.ndarray, " prompt"],
) -> Labelled:
    """The mean KL over prompts as `mean_kl` over `dims`, with its interval, of which no end is below 0, as no KL is."""
    name = "mean_kl"
    means = mean_of(name, dims, kl, text, "nats", clusters=clusters, share=False)
    over, low, text_of_low, units = means[f"{name}_low"]
    means[f"{name}_low"] = (over, low.clamp(min=0), text_of_low, units)
    return means


def next_tokens(
    two: TwoModels, run: Run, y: Float[Tensor, "row d"]
) -> Float[Tensor, "row outcome"]:
    """log p of the next token over the tokens that both models have, in float64 on the CPU."""
    log_p = torch.cat([part.cpu() for part in log_probabilities(run, y)])
    # Normalized again, without the tokens that only one of them has.
    return log_p[:, : two.n_outcomes].log_softmax(dim=-1)


def recorded_batches(
    two: TwoModels, chosen: Sequence[int]
) -> Iterator[tuple[list[int], Pair]]:
    """Batches of prompts of one length, with both models recorded on them: the prompts' numbers, and the pair.

    `chosen` has the numbers of the prompts that are run.
    """
    run = two.reference
    prompts = [two.asked.prompts[place] for place in chosen]

    def size(n: int) -> int:
        """The number of prompts of n tokens in a batch."""
        # There must be room for four passes of each.
        fitting = int(batch_memory(run) / (4 * pass_bytes(run, 1, n)))
        return min(TOGETHER, max(1, fitting))

    with bar(total=len(prompts), desc="prompts", unit="prompt") as progress_bar:
        for _, rows in batches(map(len, prompts), size):
            ids = torch.tensor([prompts[row] for row in rows])
            places = [chosen[row] for row in rows]
            yield places, recorded_pair(two.reference, two.other, ids)
            progress_bar.update(len(rows))
