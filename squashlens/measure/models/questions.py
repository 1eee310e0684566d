"""Prompts with right answers for two models, and how a model stands to them at the last token."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, short_repr
from squashlens.errors import InputError
from squashlens.measure.answers.choices import Choices, of_choices
from squashlens.model.anatomy import n_outcomes
from squashlens.model.proof import opened
from squashlens.model.text.tokens import tokenize
from squashlens.records.provenance import Facts
from squashlens.run.forward import logits_of, require_understood
from squashlens.run.run import Run
from squashlens.sequences import Ids

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
PIECE = 2.5e7  # logits that are computed at a time


@dataclass(frozen=True)
class TwoModels:
    """The runs of a reference and another model, and the same prompts with their choices for both.

    Attributes:
        first_tokens: the first token of each choice, by which leads are read.
        places: the place among the choices of each prompt's right answer.
        group: the label of each prompt's group.
    """

    reference: Run
    other: Run
    asked: Choices
    first_tokens: Int[Tensor, "prompt outcome"]
    places: Int[np.ndarray, " prompt"]
    group: list[str]

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
    function: str,
    reference: Bridge,
    other: Bridge,
    prompts: Sequence[str],
    answers: Sequence[str],
    choices: Any,
    group: Sequence[str] | None,
    clusters: Any,
    **arguments: Any,
) -> Iterator[TwoModels]:
    """Both models opened, and the prompts, answers and choices checked for both."""
    run = Run.open(reference, function)
    run, asked = of_choices(run, prompts, answers, choices, clusters, **arguments)
    require_understood(run)
    labels = _groups(run, prompts, answers, group, asked)
    with opened(other):
        second = Run.open(other, function)
        _require_one_tokenizer(run, second, prompts, _texts_of(answers, choices))
        second = second.with_prompts(torch.tensor(max(asked.prompts, key=len)))
        require_understood(second)
        facts: Facts = {name: second.facts[name] for name in STATED}
        yield TwoModels(
            run.knowing(other=facts, group=labels),
            second,
            asked,
            _first_tokens(asked),
            asked.right,
            labels,
        )


def _groups(
    run: Run,
    prompts: Sequence[str],
    answers: Sequence[str],
    group: Sequence[str] | None,
    asked: Choices,
) -> list[str]:
    """The group of each different prompt."""
    if group is None:
        return ["all"] * len(asked.prompts)
    if len(group) != len(prompts):
        raise InputError(
            f"The numbers of prompts and groups are {len(prompts)} and {len(group)}.",
            "Give one label for each prompt.",
        )
    known: dict[tuple[Ids, str], str] = {}
    for prompt, answer, label in zip(prompts, answers, group, strict=True):
        ids = tuple(tokenize(run.model, prompt)[0].tolist())
        known[ids, answer] = str(label)
    asked_for = zip(asked.prompts, asked.answers, strict=True)
    return [known[ids, answer] for ids, answer in asked_for]


def _require_one_tokenizer(
    reference: Run, other: Run, prompts: Sequence[str], texts: Iterable[str]
) -> None:
    """Raise an error unless both models read the same token ids for every prompt, with each answer and choice after it.

    Each text follows the first prompt.
    """
    written = [*prompts, *(prompts[0] + text for text in texts)]
    for text in written:
        ids = tokenize(reference.model, text)
        theirs = tokenize(other.model, text)
        if ids.tolist() != theirs.tolist():
            raise InputError(
                f"The two models have other token ids for the same text: {short_repr(text)}.",
                "Compare models of one tokenizer. For others, compare the answers that `evaluate` reads.",
            )


def _texts_of(answers: Sequence[str], choices: Any) -> list[str]:
    """All texts of answers and choices, each once."""
    texts = list(answers)
    for choice in choices or ():
        texts += [choice] if isinstance(choice, str) else list(choice)
    return list(dict.fromkeys(texts))


def _first_tokens(asked: Choices) -> Int[Tensor, "prompt outcome"]:
    """The first token of each choice; an error where another choice begins like the right one."""
    first = torch.tensor([[tokens[0] for tokens in row] for row in asked.tokens])
    right = first.gather(1, torch.from_numpy(asked.right)[:, None])
    alike = (first == right).sum(dim=1)
    if bool((alike > 1).any()):
        number = int((alike > 1).nonzero()[0])
        raise InputError(
            f"Another choice of prompt {number} begins with the token of the right answer, {asked.answers[number]!r}.",
            "Give choices that differ in their first token, or write the text that they share at the end of the "
            "prompt.",
        )
    return first


@dataclass(frozen=True)
class Reading:
    """The last token of some prompts: log p of each choice's first token, and of all tokens of both vocabularies."""

    choices: Float[Tensor, "row outcome"]
    log_p: Float[Tensor, "row token"]

    def divergence_from(self, reference: "Reading") -> Float[Tensor, " row"]:
        """KL(reference ‖ this) of the next token, Σ p (log p − log q), in nats."""
        p = reference.log_p.exp()
        return (p * (reference.log_p - self.log_p)).sum(dim=-1)

    @property
    def top(self) -> Int[Tensor, " row"]:
        """The likeliest token."""
        return self.log_p.argmax(dim=-1)


def readings(
    run: Run,
    y: Float[Tensor, "row d"],
    first_tokens: Int[Tensor, "row outcome"],
    n_outcomes: int,
) -> Reading:
    """What a model predicts from y of the last tokens, in float64 on the CPU."""
    rows = max(1, int(PIECE / n_outcomes))
    logits = torch.cat(
        [logits_of(run, part)[:, :n_outcomes].double().cpu() for part in y.split(rows)]
    )
    log_p = logits.log_softmax(dim=-1)
    return Reading(log_p.gather(1, first_tokens), log_p)


def leads_of(
    log_p: Float[np.ndarray, "*many outcome"], right: Int[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """log p of the right choice minus that of the likeliest other one; ``right`` has the places of the right ones."""
    places = np.broadcast_to(right, log_p.shape[:-1])[..., None]
    right_log_p = np.take_along_axis(log_p, places, axis=-1)[..., 0]
    others = log_p.copy()
    np.put_along_axis(others, places, -np.inf, axis=-1)
    return right_log_p - others.max(axis=-1)
