"""Right answers among the choices of each prompt, as tokens, for measurements of where an answer is read."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens._typing import listed, short_repr
from squashlens.errors import InputError
from squashlens.model.text.tokens import tokenize
from squashlens.prompts import answers_after
from squashlens.remarks import remark
from squashlens.run.run import Run
from squashlens.sequences import Ids
from squashlens.theory.distances import ulp
from squashlens.theory.statistics import selection
from squashlens.theory.statistics.ranks import mean_interval, share_interval
from squashlens.theory.statistics.trends import Labelled, with_ends

ALL = "all"  # the group of prompts that were given none
QUESTION = ["prompt", "answer", "choices"]  # equal ones are measured once


class Asked(NamedTuple):
    """Prompts with right answers, and perhaps choices, clusters and groups, as the lists that measurements take."""

    prompts: list[str]
    answers: list[str]
    choices: Any
    clusters: Any
    group: list[str] | None


def questions_of(
    prompts: Any, answers: Any, choices: Any, clusters: Any, group: Any
) -> Asked:
    """Prompts as they were given, or those of dictionaries or of a JSONL file, with what these say beside each.

    A single text is the path of a file.
    """
    if isinstance(prompts, str | Path):
        items = _lines_of(Path(prompts))
    elif all(isinstance(prompt, str) for prompt in prompts):
        right = [] if answers is None else list(answers)
        labels = (_as_labels(clusters), _as_labels(group))
        return Asked(list(prompts), right, choices, *labels)
    else:  # dictionaries, or what the next lines refuse
        items = list(prompts)
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict) or not item.keys() >= {"prompt", "answer"}:
            raise InputError(
                f"Item {number} of prompts= is no dictionary with 'prompt' and 'answer': {short_repr(item)}.",
                "Give one for each prompt; 'choices', 'group' and 'cluster' may be beside them.",
            )
    if answers is not None:
        raise InputError(
            "answers= is given beside prompts that have their own.",
            "Leave it out, or give prompts= as texts.",
        )
    table = pd.DataFrame(items, dtype=object)
    unread_keys = set(table) - {"prompt", "answer", "choices", "cluster", "group"}
    if unread_keys:
        remark(f"Of prompts=, {listed(sorted(unread_keys))} are not read.")
    return Asked(
        [item["prompt"] for item in items],
        [_answer_of(item) for item in items],
        _beside(table, "choices", choices),
        _as_labels(_beside(table, "cluster", clusters)),
        _as_labels(_beside(table, "group", group)),
    )


def _as_labels(labels: Iterable[Any] | None) -> list[str] | None:
    """Labels as text, or None for none; the number 1.0 is the label 1."""
    if labels is None:
        return None
    return [_as_label(label) for label in labels]


def _as_label(label: Any) -> str:
    is_whole = isinstance(label, float) and label.is_integer()
    return str(int(label) if is_whole else label)


def _beside(table: Any, key: str, argument: Any) -> Any:
    """What dictionaries, the rows of `table`, say beside each prompt under `key`; the argument if none says it."""
    if key not in table or table[key].isna().all():
        return argument
    n_with = table[key].notna().sum()
    if argument is not None or n_with < len(table):
        raise InputError(
            f"{n_with} of {len(table)} items of prompts= have {key!r}.",
            "Give it to all items, or to none and as an argument.",
        )
    return table[key].tolist()


def _lines_of(path: Path) -> list[Any]:
    """The objects of a JSONL file, which may begin with a byte order mark."""
    remedy = "Write one JSON object in each line, with 'prompt' and 'answer'; give a single prompt as a list."
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        cause = f"prompts= names a file that cannot be read: {path} ({error})."
        raise InputError(cause, remedy) from error
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            items.append(json.loads(line))
        except ValueError as error:
            cause = f"Line {number} of {path} is no JSON: {error}."
            raise InputError(cause, remedy) from error
    return items


def _answer_of(item: dict[str, Any]) -> str:
    """The right answer of a dictionary: its text, or that of the choice with its number."""
    answer = item["answer"]
    if isinstance(answer, int) and 0 <= answer < len(item.get("choices", ())):
        return item["choices"][answer]
    return str(answer)


@dataclass(frozen=True)
class Choices:
    """The different prompts of a call, with their choices, right answers and labels.

    `prompts` and `tokens` are token ids, of each prompt and of each of its choices. `answers` are the right answers as
    texts, and `right` their places among the choices. `clusters` are numbers from 0 on; `groups` are labels, all of
    which are "all" if none were given.
    """

    prompts: tuple[Ids, ...]
    answers: list[str]
    tokens: tuple[tuple[Ids, ...], ...]
    right: Int[np.ndarray, " prompt"]
    clusters: Int[np.ndarray, " prompt"]
    groups: list[str]

    @property
    def many(self) -> int:
        """The number of choices, which all prompts have."""
        return len(self.tokens[0])

    @property
    def right_tokens(self) -> list[Ids]:
        """The tokens of each prompt's right answer."""
        right_tokens = []
        for choices, place in zip(self.tokens, self.right.tolist(), strict=True):
            right_tokens.append(choices[place])
        return right_tokens

    @property
    def continuations(self) -> list[tuple[Ids, Ids]]:
        """Each prompt with each of its choices, one after the other."""
        continuations = []
        for prompt, choices in zip(self.prompts, self.tokens, strict=True):
            continuations += [(prompt, choice) for choice in choices]
        return continuations

    @property
    def is_grouped(self) -> bool:
        """Whether prompts were given groups."""
        return ALL not in self.groups

    @cached_property
    def members(self) -> dict[str, Bool[np.ndarray, " prompt"]]:
        """Which prompts each group has; "all" has all if none were given."""
        groups = np.array(self.groups)
        return {name: groups == name for name in dict.fromkeys(self.groups)}

    @property
    def first_tokens(self) -> Int[Tensor, "prompt outcome"]:
        """The first token of each choice."""
        first = [choice[0] for _, choice in self.continuations]
        return torch.tensor(first).view(-1, self.many)

    def of(self, places: Int[np.ndarray, " some"]) -> "Choices":
        """Some of the prompts with their choices; right answers and labels stay those of all prompts."""
        return replace(
            self,
            prompts=tuple(self.prompts[place] for place in places),
            tokens=tuple(self.tokens[place] for place in places),
        )

    def require_distinct_first_tokens(self) -> None:
        """Raise unless the choices of a prompt begin with different tokens."""
        # Equal ones are neighbours in order.
        if (self.first_tokens.sort(dim=1).values.diff(dim=1) == 0).any():
            raise InputError(
                "Several choices of a prompt begin with the same token, so that the last token does not decide.",
                "Give choices with different first tokens, or write the text that all share at the end of the prompts.",
            )


def in_groups(
    values: Float[np.ndarray, "*some prompt"],
    members: Mapping[str, Bool[np.ndarray, " prompt"]],
) -> Float[np.ndarray, "*some group prompt"]:
    """The values once for each group, with NaN for the prompts of other groups; `members` are those of `Choices`."""
    is_member = np.stack(list(members.values()))  # (group, prompt)
    return np.where(is_member, values[..., None, :], np.nan)


def of_choices(
    run: Run,
    prompts: Sequence[str],
    answers: Sequence[str],
    choices: Any,
    clusters: Any,
    group: Sequence[str] | None = None,
) -> tuple[Run, Choices]:
    """The run and the choices of a measurement, all checked; by default they are the answers of all prompts.

    The arguments are those of `answer_by_layer`. Equal questions become one. By default each different prompt is a
    cluster of its own, and all prompts are in one group.
    """
    require_an_answer_each(prompts, answers)
    labels: dict[str, Any] = {"clusters": prompts, "group": [ALL] * len(prompts)}
    if clusters is not None:
        labels["clusters"] = list(clusters)
    if group is not None:
        labels["group"] = group
    different = _different(
        {
            "prompt": prompts,
            "answer": answers,
            "choices": list(map(tuple, _choices_of_prompts(answers, choices))),
        },
        labels,
    )
    ids = []
    choice_tokens = []
    right_places = []
    for question in different.itertuples():
        row = tuple(tokenize(run.model, question.prompt)[0].tolist())
        ids.append(row)
        choice_tokens.append(tuple(answers_after(run.model, row, question.choices)))
        right_places.append(question.choices.index(question.answer))
    facts = {
        "answers": list(answers),
        "choices": choices,
        "clusters": clusters,
        "token_ids": [list(row) for row in ids],
    }
    # The longest prompt stands for all: if it fits into the context, so do the others.
    run = run.with_prompts(torch.tensor(max(ids, key=len)), **facts)
    cluster_numbers, _ = pd.factorize(different["clusters"], use_na_sentinel=False)
    return run, Choices(
        prompts=tuple(ids),
        answers=different["answer"].tolist(),
        tokens=tuple(choice_tokens),
        right=np.array(right_places),
        clusters=cluster_numbers,
        groups=different["group"].tolist(),
    )


def _different(
    questions: Mapping[str, Sequence[Any]], labels: Mapping[str, Sequence[Any]]
) -> Any:
    """The different questions, as a table with their labels, each once; equal ones must have equal labels.

    `questions` has the columns of `QUESTION`, and `labels` those of the arguments `clusters` and `group`.
    """
    n_prompts = len(questions["prompt"])
    for argument, given in labels.items():
        if len(given) != n_prompts:
            raise InputError(
                f"The numbers of prompts and {argument} are {n_prompts} and {len(given)}.",
                "Give one label for each prompt.",
            )
    table: Any = pd.DataFrame({**questions, **labels}, dtype=object)
    different = table.drop_duplicates(QUESTION)
    for argument in labels:
        labelled = table.drop_duplicates([*QUESTION, argument])
        if len(labelled) > len(different):
            # The first prompt whose label differs from that of an equal prompt before it.
            number = labelled.index[labelled.duplicated(QUESTION)][0]
            raise InputError(
                f"{argument}= gives prompt {number} another label than an equal prompt: {table[argument][number]!r}.",
                "Equal prompts are measured once: give them one label, or leave one of them out.",
            )
    groups = set(different["group"])
    if ALL in groups and len(groups) > 1:
        raise InputError(
            f"A group is named {ALL!r}, which stands for the prompts of all groups.",
            "Give it another name.",
        )
    if len(different) < n_prompts:
        remark(
            f"Equal prompts are measured, and count, once: of {n_prompts}, {len(different)} differ."
        )
    return different


def _choices_of_prompts(right: Sequence[str], choices: Any) -> list[list[str]]:
    """The choices of each prompt; raises unless they are equally many, with the right answer among them.

    `choices` has texts for all prompts, or a list of texts for each prompt; None stands for all different answers.
    """
    if choices is None:
        choices = list(dict.fromkeys(right))
    of_prompts = [list(of_prompt) for of_prompt in choices]
    if choices and isinstance(choices[0], str):
        of_prompts = [list(choices)] * len(right)
    sizes = {len(of_prompt) for of_prompt in of_prompts}
    if len(of_prompts) != len(right) or len(sizes) > 1 or min(sizes) < 2:
        raise InputError(
            "choices=, or else the answers, are not two or more texts for each prompt, and equally many.",
            "Give one list of texts for all prompts, or one list for each prompt, all equally long.",
        )
    for prompt, (answer, of_prompt) in enumerate(zip(right, of_prompts, strict=True)):
        if answer not in of_prompt:
            raise InputError(
                f"The answer to prompt {prompt}, {answer!r}, is not one of its choices: {listed(of_prompt)}.",
                "Write the answers as in choices=, with a space before them where the choices have one.",
            )
    return of_prompts


def require_an_answer_each(prompts: Sequence[Any], answers: Sequence[str]) -> None:
    """Raise unless there are prompts, and one answer for each."""
    if not prompts or len(answers) != len(prompts):
        raise InputError(
            f"The numbers of prompts and right answers are {len(prompts)} and {len(answers)}.",
            "Give one answer for each prompt.",
        )


def others_shares(right: Int[np.ndarray, " prompt"], many: int) -> np.ndarray:
    """For each prompt and choice, the share of the other prompts whose right answer has this place.

    With these weights the mean over choices is that over the other prompts' answers. Of a single prompt all other
    choices have the same share.
    """
    is_right = right[:, None] == np.arange(many)
    if len(right) == 1:
        return ~is_right / (many - 1)
    n_others = is_right.sum(axis=0) - is_right  # without the prompt itself
    return n_others / (len(right) - 1)


def noise_of_leads(
    logits: Float[np.ndarray, "prompt outcome"],
    again: Float[np.ndarray, "prompt outcome"],
    right: Int[np.ndarray, " prompt"],
    dtype: torch.dtype,
) -> Float[np.ndarray, " prompt"]:
    """How far another pass moves the lead of each right choice, but at least what rounding the two logits does.

    `logits` and `again` are those of the two passes. The lead is the right choice's logit minus the largest other one,
    each of which rounding moves by at most half a unit in the last place of `dtype`.
    """
    lead = selection.leads(logits[:, None], right)[:, 0]
    lead_again = selection.leads(again[:, None], right)[:, 0]
    right_logit = logits[np.arange(len(right)), right]
    best_wrong_logit = right_logit - lead
    two_logits = torch.from_numpy(np.stack([right_logit, best_wrong_logit]))
    rounding = ulp(two_logits, dtype).sum(dim=0).numpy() / 2
    return np.maximum(np.abs(lead - lead_again), rounding)


def mean_of(
    name: str,
    dims: Sequence[str],
    values: Float[np.ndarray, "..."],
    text: str,
    units: str = "1",
    *,
    clusters: Int[np.ndarray, " prompt"] | None = None,
    share: bool = True,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Labelled:
    """The mean over the last axis, prompts without NaN, with its 95 % interval over clusters: of a share, or Student's.

    Values are shares if all of an entry of the first axis are 0 or 1, unless `share` is false. The interval ends where
    the quantity does: `within` has the least and the largest value that it can have, such as 0 and 1 for a probability.
    """
    by_prompt = torch.from_numpy(np.asarray(values, dtype=float))
    cluster_numbers = None if clusters is None else torch.from_numpy(clusters)
    is_yes_or_no = (by_prompt == 0) | (by_prompt == 1) | by_prompt.isnan()
    are_shares = is_yes_or_no.flatten(1).all(dim=1) & share
    # One flag for each entry of the first axis; the last axis, of prompts, is averaged away.
    are_shares = are_shares.view(-1, *[1] * (by_prompt.ndim - 2))
    of_share = torch.stack(share_interval(by_prompt, cluster_numbers))
    of_mean = torch.stack(mean_interval(by_prompt, cluster_numbers))
    ends = torch.where(are_shares, of_share, of_mean).clamp(*within)
    return with_ends(name, dims, ends, text, units)
