"""A comparison of interventions: what each does to collapse, to the path bound and to the accuracy of the model.

Accuracy is measured with every intervention, because an intervention that reduces collapse but breaks the model is not
a remedy.
"""

from collections.abc import Iterable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.bars import bar
from squashlens.measure.answers.frequencies import judge_ability
from squashlens.measure.answers.growing_answers import (
    Answer,
    AskedSequence,
    are_answered,
    short_questions,
)
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.collapse.metric import REPLAYED, evenly_spaced
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.remedies.named_interventions import (
    Changes,
    are_hooks,
    by_name,
    form_under,
)
from squashlens.measure.squashing.bound import path_bound
from squashlens.model.anatomy import windows
from squashlens.model.applied import applied
from squashlens.records.joining import joined
from squashlens.records.labels import as_variable, attributes
from squashlens.records.provenance import facts_of, with_provenance
from squashlens.run.captures.pairs import (
    Pairs,
    SequenceOrCapture,
    capture_pairs,
    prepare_growing,
    sequence_of,
)
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence
from squashlens.theory.statistics.ranks import share_interval

N_BASELINE = 16  # short questions that show whether the model can do the task at all
KEPT = (
    "distance",
    "distance_y",
    "same_argmax",
    "probability_l1",
    "noise_floor",
    "noise_floor_y",
)


@measurement("changes", cheaper="Fewer lengths= or interventions takes less.")
def compare_interventions(
    model: Bridge,
    sequence: SequenceOrCapture,
    interventions: Changes,
    *,
    answer: Answer | None = None,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    n_samples: int = 0,
    noise_lengths: int = REPLAYED,
    seed: int = 0,
) -> xr.Dataset:
    """What each intervention does to collapse, to the path bound, and to the answers of a model, on one sequence.

    One sequence is one observation: for intervals, measure several, as `analyses/remedies.py` does.

    Args:
        model, norm: as in `collapse`.
        sequence: a growing sequence from `squashlens.prompts`; or a `capture` of one, whose sequence and lengths
            are used.
        interventions: interventions by name. Each is one or several hooks as `applied` takes them; or another sequence
            with the same number of content tokens (for example without BOS), or a function that makes it of the given
            sequence, as ``lambda sequence: sequence.every(3, comma)``; or both.
        answer: function from the texts of the content tokens, each with its own space as in ``" one"``, to the text of
            the right answer; the sequence itself is asked, one prompt at each length. None by default. An answer is
            right if greedy decoding writes it, and then no letter or digit: 12 does not count as the answer 1.
        lengths: numbers of content tokens. By default those of the capture, or at most 16 that are evenly spaced up to
            the last. Every length takes a pass, and with `answer` an answer, under each intervention.
        scale: as in `collapse`, but ``"relative"`` by default: an intervention may also change the size of the streams.
        n_samples: number of other sequences of the same form that are asked instead, with content drawn uniformly from
            the alphabet: by default ten digits, also where the sequence is of ones. 0, the sequence itself, by default.
        noise_lengths: number of lengths at which D is measured a second time, for the noise floor; 4 by default. With
            0 there is no noise floor.
        seed: random seed of all that is drawn; 0 by default.

    Returns:
        Dataset, whose first `change` is the unchanged model, named ``"as it is"``. Over (change, layer, length):
        `distance`, and over (change, length) `distance_y`, as `collapse` gives them; `noise_floor` over lengths that
        were run again. Over (change, length): `same_argmax` and `probability_l1` of the next token; with `answer` also
        `accuracy`, the share of right answers, with its exact 95 % interval (Clopper–Pearson) as the coordinates
        `accuracy_low` and `accuracy_high`, NaN where all prompts are equal: that is one answer; and over (change)
        whether the model can do the task at short lengths, from at most 16 different short questions of the sequence's
        form and tokens: `able`, `able_reason`, `baseline`, `chance` and so on, as in `evaluate_task`. Over
        (change, content): `bound`, the path bound of each content token on the longest prompt, from its last token,
        with the paper's constants. Over (block): `native_window`, the window of the model's own attention in tokens,
        NaN for a block without one; where `hooks.sliding_window` and the block both have a window, the narrower one
        applies.

    Raises:
        InputError: an intervention named ``"as it is"``, one that is neither hooks nor a sequence, or a sequence with
            another number of content tokens.
        UnsoundModelError: hooks at points that have no effect in this model.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 12, prefix="How many ones are in the following sequence?", suffix="=")
    >>> ds = sl.compare_interventions(
    ...     model, ones, {"window of 4": sl.hooks.sliding_window(4)}, answer=lambda digits: str(digits.count("1")),
    ...     lengths=[6, 12],
    ... )
    >>> ds["change"].values.tolist(), ds["accuracy"].dims
    (['as it is', 'window of 4'], ('change', 'length'))
    """
    positive(n_samples, "n_samples", "a number of sequences", or_zero=True)
    changes = by_name(interventions)
    unchanged = sequence_of(sequence)
    run = Run.open(model, **this_call())
    if lengths is None and isinstance(sequence, GrowingSequence):
        lengths = evenly_spaced(sequence)
    asked = list(prepare_growing(run, sequence, lengths, "auto").lengths)
    wanted = Pairs(lengths=asked, noise_lengths=noise_lengths)

    def under(parts: tuple[Any, ...]) -> xr.Dataset:
        """All quantities under one intervention: with its hooks, and with its sequence if it has one.

        `parts` are its hooks and sequences; the unchanged model has none.
        """
        form = form_under(parts, unchanged)
        hooks = [part for part in parts if are_hooks(part)]
        with applied(model, *hooks):
            pairs = capture_pairs(run, form, wanted, patterns=False)
            collapsed = collapse(model, pairs, norm=norm, scale=scale)
            kept_names = [name for name in KEPT if name in collapsed]
            # This coordinate differs if an intervention has separators of its own.
            result = collapsed[kept_names].drop_vars("before_separator")
            bound = _content_bound(run, form, asked[-1])
            result["bound"] = as_variable(bound, "bound")
            if answer is not None:
                result["accuracy"] = _accuracy(
                    run, form, answer, asked, n_samples, seed
                )
        # Those of `collapse`, under the name of the function that was called.
        facts = facts_of(result)
        facts["call"] |= {
            "function": "compare_interventions",
            "n_samples": n_samples,
            "seed": seed,
        }
        return with_provenance(result, facts)

    results = {}
    for name, parts in bar(changes.items(), desc="interventions"):
        results[name] = under(parts)
    native = np.array(windows(model), dtype=float)  # None becomes NaN
    labels = attributes("native attention window, including the query", "tokens")
    return joined(results, "change").assign(native_window=("block", native, labels))


def _accuracy(
    run: Run,
    form: GrowingSequence,
    answer: Answer,
    lengths: list[int],
    n_samples: int,
    seed: int,
) -> xr.DataArray:
    """The share of right answers to the sequence itself, or to `n_samples` others of its form, over lengths.

    Its coordinates are the ends of its interval, and whether the model can do the task at short lengths.
    """
    sequences = [form]
    subject = "the sequence itself"
    if n_samples:
        sequences = []
        for number in range(n_samples):
            # Every intervention gets the same content, whatever the form's separators.
            rng = Random(f"asked {seed} {number}")
            sequences.append(form.unrelated(rng))
        subject = f"{n_samples} sequences drawn from the alphabet"
    asked = []
    for sequence, length in product(sequences, lengths):
        asked.append(AskedSequence(sequence, length))
    short = short_questions(sequences, N_BASELINE)
    questions = asked + short
    truths = []
    for question in questions:
        truths.append(question.right_answer(run, answer))
    answered = are_answered(run, questions, truths)
    shape = (len(sequences), len(lengths))
    right = answered[: len(asked)].reshape(shape).T  # (length, sequence)
    share, low, high = share_interval(torch.from_numpy(right).double())
    prompts = np.reshape([str(question.prompt) for question in asked], shape)
    are_equal = (prompts == prompts[0]).all(axis=0)  # one prompt has no interval
    able = judge_ability(answered[len(asked) :], truths[len(asked) :])
    coords = {
        "length": lengths,
        "accuracy_low": ("length", np.where(are_equal, np.nan, low)),
        "accuracy_high": ("length", np.where(are_equal, np.nan, high)),
        **able._asdict(),
    }
    about = attributes(f"share of right answers to {subject}", "1")
    return xr.DataArray(share.numpy(), coords, ["length"], attrs=about)


def _content_bound(run: Run, form: GrowingSequence, length: int) -> xr.DataArray:
    """The path bound of each content token of the prompt with `length` of them, on its last token."""
    numbers = range(1, length + 1)
    bound = path_bound(run.model, torch.tensor(form.plain(length).ids(form.trunk)))
    of_content = bound[list(map(form.position, numbers))]
    # Positions differ between interventions, numbers of content tokens do not.
    of_content = of_content.drop_vars(["position", "token", "token_id"])
    return of_content.rename(position="content").assign_coords(content=numbers)
