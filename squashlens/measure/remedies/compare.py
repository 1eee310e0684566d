"""A comparison of interventions: what each does to collapse, to the path bound and to the accuracy of the model.

Accuracy is measured with every intervention, because an intervention that reduces collapse but breaks the model is not
a remedy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Method, Scale, positive
from squashlens.bars import bar
from squashlens.engine.anatomy import windows
from squashlens.engine.applied import applied
from squashlens.engine.capturing.pairs import Pairs, SequenceOrCapture, capture_pairs, prepare_run, sequence_of
from squashlens.engine.text.tokens import Prompts
from squashlens.errors import InputError
from squashlens.measure.answers.accuracy import Answer, accuracy, right_answer
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.collapse.metric import Metric
from squashlens.measure.remedies.bench import Bench, Sampling
from squashlens.measure.remedies.named_interventions import Changes, by_name, form_under, hooks_of, stated
from squashlens.measure.session import measurement
from squashlens.measure.squashing.bound import path_bound
from squashlens.records.joining import joined, restated
from squashlens.records.results import as_variable, attributes
from squashlens.sequences import GrowingSequence


@measurement("changes")
def compare(
    model: Bridge,
    sequence: SequenceOrCapture | Mapping[str, GrowingSequence],
    interventions: Changes,
    *,
    answer: Answer | Mapping[str, Answer] | None = None,
    prompt: Prompts | None = None,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    n_samples: int = 16,
    method: Method = "exact",
    noise_lengths: int = 0,
    seed: int = 0,
) -> xr.Dataset:
    """What each intervention does to collapse, to the path bound or the Jacobian, and to the answers of a model.

    For one sequence, it is measured as given. For families of sequences, several sequences of each are drawn; the
    result then has differences to the unchanged model with exact intervals and tests over these samples, and what each
    intervention costs on unrelated text.

    Args:
        model, norm: as in `collapse`.
        sequence: a growing sequence from `squashlens.prompts`; or a `capture` of one, whose sequence and lengths
            are used; or several sequences by the name of their family.
        interventions: interventions by name. Each is one or several hooks as `applied` takes them; or another sequence
            with the same number of content tokens (for example without BOS), or a function that makes it of the given
            sequence, as ``lambda sequence: sequence.every(3, comma)``; or both.
        answer: function from the texts of the content tokens to the text of the right answer, for families also one
            for each; accuracy is not measured by default.
        prompt: for families, texts or token ids that have nothing to do with them, on which the cost is measured. By
            default 16 questions about a first or last digit for the bundled model; the cost is not measured for others.
        lengths: numbers of content tokens. By default those of the capture, or all from 1; for
            families, the largest that all have.
        scale: as in `collapse`; ``"relative"`` by default.
        n_samples: number of sequences of the same form on which accuracy is measured, for families everything, with
            content drawn uniformly from the sequence's alphabet; 16 by default.
        method: for families, way to compute the norms of the Jacobian, as in `jacobian_norms`, ``"exact"`` by default;
            ``"none"`` leaves them out.
        noise_lengths: number of lengths at which D is measured a second time, for the noise floor; 0, no noise floor,
            by default.
        seed: random seed of all that is drawn; 0 by default.

    Returns:
        Dataset, whose first `change` is the unchanged model, named ``"as it is"``. For one sequence, over (change,
        layer, length): `distance`, and over (change, length) `distance_y`, as `collapse` gives them; with
        `noise_lengths` also `noise_floor`. Over (change, length): `same_argmax` and `total_variation` of the next
        token; with `answer` also `accuracy`. Over (change, content): `bound`, the path bound of each content token on
        the longest prompt, from its last token, with the paper's constants. Over (block): `native_window`, the window
        of the model's own attention in tokens, NaN for a block without one; where `hooks.sliding_window` and the block
        both have a window, the narrower one applies.

        For families, over (change, family, length, sample): `distance`, D at the last layer; `right`, whether the
        answer is right; over (…, place, …) `jacobian_norm`, the norm ‖∂y/∂v⁽⁰⁾_i‖ at the first, middle and last
        content token; over (change, family, sample) `noise_floor`; over (change, text) `kl`, the divergence
        ``KL(p ‖ q)`` in nats of the next token, where p is the unchanged model and q the changed one, mean over the
        positions of a text; NaN for a change without hooks, which leaves text as it is.

        Without the last dimension, of `distance` and `jacobian_norm`: `<name>_median`, and `<name>_ratio`, the median
        of the quotient with the unchanged model, each with `_low` and `_high`, the ends of its 95 % interval from order
        statistics (NaN for fewer than 6 samples); `accuracy` with its exact interval (Clopper–Pearson), and
        `accuracy_difference`; `kl_median` with its interval over texts. For the paired differences to the unchanged
        model, `<name>_p` of the exact sign test (for accuracy, McNemar's), and `<name>_p_holm`, corrected for all tests
        in the result. `least_p` and `least_p_holm` are the smallest values that these can take with this number of
        samples.

    Raises:
        InputError: an intervention named ``"as it is"``, one that is neither hooks nor a sequence, or a sequence with
            another number of content tokens; a family whose samples are all equal; `prompt` without families.
        UnsoundModelError: hooks at points that have no effect in this model.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 12, prefix="How many ones are in the following sequence?", suffix="=")
    >>> ds = sl.compare(
    ...     model, ones, {"window of 4": sl.hooks.sliding_window(4)}, answer=lambda digits: str(digits.count("1")),
    ...     lengths=[6, 12],
    ... )
    >>> ds["change"].values.tolist(), ds["accuracy"].dims
    (['as it is', 'window of 4'], ('change', 'length'))
    >>> ds = sl.compare(
    ...     model, {"counting": ones}, {"sharper": sl.hooks.log_scaling("log", 8)}, n_samples=6,
    ... )
    >>> ds["jacobian_norm_ratio"].dims, float(ds["kl_median"][0]), bool(ds["kl_median"][1] > 0)
    (('change', 'family', 'length', 'place'), 0.0, True)
    """
    every, metric = by_name(interventions), Metric(norm, scale)
    if isinstance(sequence, Mapping):
        drawn = Sampling(n_samples, method, noise_lengths, seed)
        return Bench.of(model, sequence, answer, prompt, lengths, metric, drawn).compared(every)
    if prompt is not None or method != "exact" or isinstance(answer, Mapping):
        raise InputError(
            "prompt=, method= and several answers= are for families of sequences, and one sequence is given.",
            'Give the sequence by the name of its family, as {"counting": sequence}, or leave them out.',
        )
    comparison = Comparison(sequence_of(sequence), answer, n_samples, seed)
    chosen = list(prepare_run(model, sequence, lengths, "auto", None).lengths)
    given = {"form": stated(comparison.sequence, drawn=False)}
    found = {
        name: restated(comparison.measured(model, parts, chosen, metric, noise_lengths), given)
        for name, parts in bar(every.items(), desc="interventions")
    }
    native = np.array([np.nan if window is None else window for window in windows(model)], dtype=float)
    labels = attributes("native attention window, including the query", "tokens")
    return restated(joined(found, "change").assign(native_window=("block", native, labels)), {})


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
        self, model: Bridge, parts: tuple[Any, ...], lengths: list[int], metric: Metric, noise_lengths: int
    ) -> xr.Dataset:
        """All quantities under one intervention: with its hooks, and with its sequence if it has one."""
        form = form_under(parts, self.sequence)
        with applied(model, *hooks_of(parts)):
            wanted = Pairs(lengths=lengths, noise_lengths=noise_lengths)
            captured = capture_pairs(model, form, wanted, patterns=False)
            found = collapse(model, captured, **metric.said)
            found = found[[name for name in KEPT if name in found]].drop_vars("before_separator")
            found["bound"] = as_variable(self._bound(model, form, int(found["length"].values[-1])), "bound")
            if self.answer is not None:
                found["accuracy"] = as_variable(self.right(model, form, lengths), "accuracy")
        return found

    def right(self, model: Bridge, form: GrowingSequence, lengths: list[int]) -> xr.DataArray:
        """The accuracy over random sequences of a form; their content is the same for every form."""
        if self.answer is None:
            raise InputError("Accuracy needs the right answers.", "Give answer=.")
        return accuracy(model, self._drawn(form), self.answer, lengths=lengths, n_baseline=0)

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
        bound = path_bound(model, ids)
        places = [form.position(number) for number in range(1, longest + 1)]
        here = bound[places].drop_vars(["position", "token", "token_id"]).rename(position="content")
        return here.assign_coords(content=range(1, longest + 1))


KEPT = ("distance", "distance_y", "same_argmax", "total_variation", "noise_floor", "noise_floor_y")
