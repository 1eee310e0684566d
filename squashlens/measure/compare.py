"""Interventions side by side: what each does to collapse, to the path bound, and to how often the model is right.

A mitigation that keeps representations apart and breaks the model is none, so accuracy stands beside every one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure._pairs import required
from squashlens.measure.accuracy import Answer, accuracy, right_answer
from squashlens.measure.bound import path_bound
from squashlens.measure.collapse import collapse
from squashlens.model.hooks import Hook, Recipe
from squashlens.model.live import applied
from squashlens.model.plain import Pair, is_pair, one_or_several
from squashlens.model.registry import measured
from squashlens.results import joined
from squashlens.sequences import Sequence

AS_IT_IS = "as it is"
Change = Hook | Recipe | Pair | Sequence


@measured
def compare(
    model: Bridge,
    sequence: Sequence,
    changes: Mapping[str, Change | Iterable[Change]],
    *,
    answer: Answer | None = None,
    draws: int = 16,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    seed: int = 0,
    replay: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Collapse, bound and accuracy under each of `changes`, beside the model as it is.

    Args:
        changes: by name, one or several hooks as `applied` takes them, or another form of the sequence (without BOS,
            say), or both.
        answer: from the texts of the content tokens to the right answer; no accuracy if not given.
        draws: sequences of the same form that are asked, their content drawn evenly from the alphabet with `seed`.
        lengths: numbers of content tokens; all if not given.
        norm, scale, replay: as in `collapse`.

    Returns:
        Dataset. Over (change, layer, length): `distance`, with `distance_y`; over (change, length): `same_argmax` and
        `total_variation` of the next token, `accuracy`; over (change, content): `bound`, the path bound of each content
        token on the longest prompt, read at its last token, with the paper's constants. The first change is
        ``"as it is"``.

    Refuses: a change of that name, one that is neither hook nor sequence, a sequence of another length; hooks that do
    nothing wherever they are put.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, prompt="How many ones are in the following sequence?", suffix="=")
    >>> ds = sl.compare(
    ...     model, ones, {"window of 4": sl.sliding_window(4)}, answer=lambda digits: str(digits.count("1")),
    ...     lengths=[6, 12], progress=False,
    ... )
    >>> ds["change"].values.tolist(), ds["accuracy"].dims
    (['as it is', 'window of 4'], ('change', 'length'))
    """
    task = Task(required(sequence), answer, draws, seed)
    every: dict[str, tuple[Change, ...]] = {AS_IT_IS: ()}
    for name, change in changes.items():
        if name in every:
            raise InputError(f"A change is called {name!r}, which is what the model by itself is called.", "Rename it.")
        every[name] = one_or_several(change)
        if not all(is_pair(part) or isinstance(part, Hook | Recipe | Sequence) for part in every[name]):
            raise InputError(f"{name!r} is neither hooks nor a sequence.", "Give a hook, a sequence, or several.")
    chosen = None if lengths is None else list(lengths)
    shown = bar(every.items(), desc="changes", progress=progress)
    found = {name: task.measured(model, parts, chosen, norm, scale, replay) for name, parts in shown}
    return joined(found, "change")


@dataclass(frozen=True)
class Task:
    """A sequence to measure on, and, if there is an answer, others of its form to ask about."""

    sequence: Sequence
    answer: Answer | None
    draws: int
    seed: int

    def __post_init__(self) -> None:
        positive(self.draws, "draws", "a number of sequences")

    def measured(
        self, model: Bridge, parts: Iterable[Change], lengths: list[int] | None, norm: Distance, scale: Scale,
        replay: int,
    ) -> xr.Dataset:  # fmt: skip
        """Everything under one change: its hooks, and its sequence in place of the task's own."""
        parts = list(parts)
        forms = [part for part in parts if isinstance(part, Sequence)] or [self.sequence]
        if len(forms) > 1 or len(forms[0]) != len(self.sequence):
            raise InputError(
                f"One change has {len(forms)} sequences, the first of {len(forms[0])} content tokens.",
                f"Give one, of {len(self.sequence)}.",
            )
        form = forms[0]
        with applied(model, *(part for part in parts if not isinstance(part, Sequence))):
            found = collapse(
                model, form, lengths=lengths, norm=norm, scale=scale, replay=replay, passes="auto", progress=False
            )
            kept = [name for name in KEPT if name in found]
            found = found[kept].drop_vars("before_separator")
            found["bound"] = self._bound(model, form, int(found["length"].values[-1]))
            if self.answer is not None:
                found["accuracy"] = self.right(model, form, lengths)
        return found

    def right(self, model: Bridge, form: Sequence, lengths: list[int] | None) -> xr.DataArray:
        """Accuracy over sequences of a form whose content is the same for every form."""
        if self.answer is None:
            raise InputError("There is no answer to compare with.", "Give answer=.")
        return accuracy(model, self._drawn(form), self.answer, lengths=lengths, progress=False)

    def expected(self, model: Bridge) -> list[str] | None:
        """The right answers at the longest length: what tells one answer function from another."""
        if self.answer is None:
            return None
        return [right_answer(model, form, len(form), self.answer) for form in self._drawn(self.sequence)]

    def _drawn(self, form: Sequence) -> list[Sequence]:
        """The same content whatever stands between it."""
        return [form.unrelated(Random(f"asked {self.seed} {number}")) for number in range(self.draws)]

    def _bound(self, model: Bridge, form: Sequence, longest: int) -> xr.DataArray:
        """The path bound of each content token of the longest prompt."""
        ids = torch.tensor(form.plain(longest).ids(form.trunk))
        bound = path_bound(model, ids, bos=form.bos, progress=False)
        places = [form.position(number) for number in range(1, longest + 1)]
        here = bound[places].drop_vars(["position", "token", "token_id"]).rename(position="content")
        return here.assign_coords(content=range(1, longest + 1))


KEPT = ("distance", "distance_y", "same_argmax", "total_variation", "noise_floor", "noise_floor_y")
