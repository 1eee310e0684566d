"""A comparison of interventions: what each does to collapse, to the path bound and to the accuracy of the model.

Accuracy is measured with every intervention, because an intervention that reduces collapse but breaks the model is not
a remedy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.bars import bar
from squashlens.engine.capturing.pairs import SequenceOrCapture, capture_pairs, prepare_run, sequence_of
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.engine.hooking.pairs import HookPair, is_pair, one_or_several
from squashlens.engine.proving.effective import applied
from squashlens.engine.proving.registry import measured
from squashlens.errors import InputError
from squashlens.joining import joined
from squashlens.measure.answers.accuracy import Answer, accuracy, right_answer
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.squashing.bound import path_bound
from squashlens.results import as_variable
from squashlens.sequences import GrowingSequence

AS_IT_IS = "as it is"
Change = Hook | Recipe | HookPair | GrowingSequence


# More than ten parameters, since each is an independent option of the measurement; most have defaults.
@measured
def compare(
    model: Bridge,
    sequence: SequenceOrCapture,
    interventions: Mapping[str, Change | Iterable[Change]],
    *,
    answer: Answer | None = None,
    n_samples: int = 16,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    seed: int = 0,
    noise_lengths: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Collapse, path bound and accuracy under each intervention, and for the unchanged model.

    Args:
        model: as in `collapse`.
        sequence: a growing sequence from `squashlens.prompts`; or a `capture` of one, whose sequence and lengths
            are used.
        interventions: interventions by name, each one or several hooks as `applied` takes them, or another sequence
            with the same number of content tokens (for example without BOS), or both.
        answer: function from the texts of the content tokens to the text of the right answer; accuracy is not measured
            by default.
        n_samples: number of sequences of the same form on which accuracy is measured, with content drawn uniformly
            from the sequence's alphabet; 16 by default.
        lengths: numbers of content tokens, in increasing order; by default those of the capture, or all from 1.
        norm: as in `collapse`.
        scale: unit of the distance: ``"relative"`` (the default), the root mean square of v's coordinates, or
            ``"absolute"``, the model's units.
        seed: random seed of the sequences on which accuracy is measured; 0 by default.
        noise_lengths: number of lengths at which D is measured a second time, for the noise floor; 0, no noise floor,
            by default.
        progress: whether to show a progress bar; yes by default.

    Returns:
        Dataset. Over (change, layer, length): `distance`, and over (change, length) `distance_y`, as `collapse` gives
        them; with `noise_lengths` also `noise_floor`. Over (change, length): `same_argmax` and `total_variation` of
        the next token; with `answer` also `accuracy`. Over (change, content): `bound`, the path bound of each content
        token on the longest prompt, from its last token, with the paper's constants. The first `change` is the
        unchanged model, named ``"as it is"``.

    Raises:
        InputError: an intervention named ``"as it is"``, one that is neither hooks nor a sequence, or a sequence with
            another number of content tokens.
        UnsoundModelError: hooks at points that have no effect in this model.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, prefix="How many ones are in the following sequence?", suffix="=")
    >>> ds = sl.compare(
    ...     model, ones, {"window of 4": sl.hooks.sliding_window(4)}, answer=lambda digits: str(digits.count("1")),
    ...     lengths=[6, 12], progress=False,
    ... )
    >>> ds["change"].values.tolist(), ds["accuracy"].dims
    (['as it is', 'window of 4'], ('change', 'length'))
    """
    comparison = Comparison(sequence_of(sequence), answer, n_samples, seed)
    every: dict[str, tuple[Change, ...]] = {AS_IT_IS: ()}
    for name, change in interventions.items():
        if name in every:
            raise InputError(
                f"interventions= has the name {name!r}, which is reserved for the unchanged model.",
                "Give the intervention another name.",
            )
        every[name] = one_or_several(change)
        if not all(is_pair(part) or isinstance(part, Hook | Recipe | GrowingSequence) for part in every[name]):
            raise InputError(
                f"The intervention {name!r} is neither hooks nor a growing sequence.",
                "Give a hook, a sequence, or a list of them.",
            )
    chosen = list(prepare_run(model, sequence, lengths, "auto", None, progress=False).lengths)
    progress_bar = bar(every.items(), desc="interventions", progress=progress)
    found = {
        name: comparison.measured(model, parts, chosen, norm, scale, noise_lengths) for name, parts in progress_bar
    }
    return joined(found, "change")


@dataclass(frozen=True)
class Comparison:
    """A sequence on which interventions are compared, and further sequences of its form for accuracy."""

    sequence: GrowingSequence
    answer: Answer | None
    n_samples: int
    seed: int

    def __post_init__(self) -> None:
        positive(self.n_samples, "n_samples", "a number of sequences")

    def measured(
        self, model: Bridge, parts: Iterable[Change], lengths: list[int], norm: Distance, scale: Scale,
        noise_lengths: int,
    ) -> xr.Dataset:  # fmt: skip
        """All quantities under one intervention: with its hooks, and with its sequence if it has one."""
        parts = list(parts)
        forms = [part for part in parts if isinstance(part, GrowingSequence)] or [self.sequence]
        if len(forms) > 1 or len(forms[0]) != len(self.sequence):
            raise InputError(
                f"An intervention has {len(forms)} sequences, the first with {len(forms[0])} content tokens.",
                f"Give one sequence, with {len(self.sequence)} content tokens.",
            )
        form = forms[0]
        with applied(model, *(part for part in parts if not isinstance(part, GrowingSequence))):
            pairs = capture_pairs(
                model, form, lengths=lengths, patterns=False, noise_lengths=noise_lengths, progress=False
            )
            found = collapse(model, pairs, norm=norm, scale=scale)
            kept = [name for name in KEPT if name in found]
            found = found[kept].drop_vars("before_separator")
            found["bound"] = as_variable(self._bound(model, form, int(found["length"].values[-1])), "bound")
            if self.answer is not None:
                found["accuracy"] = as_variable(self.right(model, form, lengths), "accuracy")
        return found

    def right(self, model: Bridge, form: GrowingSequence, lengths: list[int]) -> xr.DataArray:
        """The accuracy over random sequences of a form; their content is the same for every form."""
        if self.answer is None:
            raise InputError("Accuracy needs the right answers.", "Give answer=.")
        return accuracy(model, self._drawn(form), self.answer, lengths=lengths, progress=False)

    def expected(self, model: Bridge) -> list[str] | None:
        """The right answers at the longest length, which identify the answer function in a resumed search."""
        if self.answer is None:
            return None
        return [right_answer(model, form, len(form), self.answer) for form in self._drawn(self.sequence)]

    def _drawn(self, form: GrowingSequence) -> list[GrowingSequence]:
        """Random sequences of a form. Their content does not depend on the form's separators."""
        return [form.unrelated(Random(f"asked {self.seed} {number}")) for number in range(self.n_samples)]

    def _bound(self, model: Bridge, form: GrowingSequence, longest: int) -> xr.DataArray:
        """The path bound of each content token of the longest prompt."""
        ids = torch.tensor(form.plain(longest).ids(form.trunk))
        bound = path_bound(model, ids, bos=form.bos, progress=False)
        places = [form.position(number) for number in range(1, longest + 1)]
        here = bound[places].drop_vars(["position", "token", "token_id"]).rename(position="content")
        return here.assign_coords(content=range(1, longest + 1))


KEPT = ("distance", "distance_y", "same_argmax", "total_variation", "noise_floor", "noise_floor_y")
