"""The page's sections on representational collapse and on separators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Edit, Kind, positive
from squashlens.errors import InputError, SquashlensError
from squashlens.reporting import collapse_sentences as say
from squashlens.reporting.section import Section
from squashlens.results import provenance

T = TypeVar("T")
REPLAYED = 6  # lengths at which D is measured again for the noise floor
# Weights set to zero, and streams wiped or resampled, say little that these do not.
ABLATIONS: tuple[Kind, ...] = (*get_args(Edit), "mask", "zero_value", "mean_resid")


@dataclass(frozen=True)
class Findings:
    """Figure 5's panels by letter, (a) once more by layer and rounded, its mechanism, and the commas of (d) ablated.

    `trends` are the p-values of the panels' trends at the last layer, corrected by Holm.
    """

    panels: dict[str, xr.Dataset]
    trends: dict[str, float]
    relative: xr.Dataset
    rounded: xr.Dataset
    mechanism: xr.Dataset | SquashlensError
    ablation: xr.Dataset


def measure(model: Bridge, digits: int, *, progress: bool) -> Findings:
    """Everything the sections show, for figure 5's sequences of up to `digits` digits."""
    import torch

    from squashlens import prompts
    from squashlens.measure.collapse import collapse
    from squashlens.measure.mechanism import mechanism
    from squashlens.measure.separators import separator_ablation
    from squashlens.theory.trends import holm

    panels = prompts.figure5(model, digits)
    whole = {
        letter: collapse(
            model, sequence, heads="value", beside=("contrast", "unrelated"), replay=REPLAYED, progress=progress
        )
        for letter, sequence in panels.items()
    }
    return Findings(
        panels=whole,
        trends=dict(zip(whole, holm([float(ds["length_trend_p"][-1]) for ds in whole.values()]), strict=True)),
        relative=collapse(model, panels["a"], scale="relative", progress=progress),
        rounded=collapse(model, panels["a"], round_to=torch.bfloat16, progress=progress),
        mechanism=_or_why_not(lambda: mechanism(model, panels["a"], progress=progress)),
        ablation=separator_ablation(model, panels["d"], kinds=ABLATIONS, scale="relative", progress=progress),
    )


def sections(findings: Findings | SquashlensError) -> list[Section]:
    """The sections for results at hand, or one that says why there are none."""
    from squashlens import figures

    if isinstance(findings, SquashlensError):
        return [Section("Representational collapse", None, (f"Not measured for this model. {findings}",))]
    first, ablation = findings.panels["a"], findings.ablation
    named = {f"({k}) {_named(provenance(ds)['sequence'])}": ds for k, ds in findings.panels.items()}
    trained = zoo.trained_length(provenance(first)["model"])
    return [
        Section(
            "Representational collapse, as in figure 5",
            figures.collapse_panels(named, trained=trained),
            tuple(
                " ".join([f"({k})", say.falls(ds, findings.trends[k]), *(one(ds) for one in _OF_A_PANEL)])
                for k, ds in findings.panels.items()
            ),
            "v is a sequence, v* the same with its last digit repeated; D is the L∞ distance of their last "
            "representations, for every number of digits. (a) and (b) ask to count ones, (c) and (d) to copy a number. "
            "The band is D over the outputs of the attention heads of the last block. D can be called "
            "small only beside something: pairs whose last digit differs, sequences with other digits, and the noise "
            "floor, which is how far D moves when each prompt is run by itself.",
            width=680,
        ),
        Section(
            "Collapse, layer by layer",
            figures.collapse_heatmap(findings.relative),
            (say.precision(first, findings.rounded), say.answers(first)),
            "Panel (a). D is divided by the root mean square of v, since streams grow with depth.",
        ),
        _why(findings.mechanism),
        Section(
            "What separators do, layer by layer",
            figures.layer_trace(ablation),
            (say.separators_help(ablation), say.controls(ablation)),
            "Panel (d) and its ablations at equal numbers of digits, the pair always repeating the last digit.",
        ),
        Section(
            "What of a separator it is",
            figures.retained_by_kind(ablation),
            (say.standing_or_reading(ablation),),
            "A dot for every length, the middle half as a bar. Mean streams are those of other digits with separators "
            "at the same places: the same token, having read something else.",
        ),
        Section(
            "From which block on separators matter",
            figures.from_block_map(ablation),
            (say.deepest(ablation, "mask"), say.deepest(ablation, "zero_value")),
            "Each row masks the separators from that block on: 1 where the ablation does nothing, 0 where it does what "
            "deleting them does. Every hook was shown to bite before it was used.",
        ),
    ]


def _named(sequence: Mapping[str, Any]) -> str:
    """A sequence as a panel's title has it."""
    return f"{sequence['name']}, “{sequence['separators']}” between" if sequence["separators"] else sequence["name"]


def _why(mechanism: xr.Dataset | SquashlensError) -> Section:
    """The proof's steps, or why this family does not show them."""
    from squashlens import figures

    title = "Why representations come close"
    if isinstance(mechanism, SquashlensError):
        return Section(title, None, (f"Not measured for this model. {mechanism}",))
    return Section(
        title,
        figures.mechanism(mechanism),
        (say.premises(mechanism), say.tightness(mechanism), say.parts(mechanism)),
        "Panel (a). The proof of Theorem B.3 lets two attention rows differ ever less and the new token weigh ever "
        "less; both are measured here on the real heads, as is the bound that follows from them at block 0.",
        width=680,
    )


_OF_A_PANEL: tuple[Callable[[xr.Dataset], str], ...] = (say.against_contrast, say.above_noise)


def check_digits(digits: int) -> None:
    """Refuse too few digits for a curve, and more than any model takes."""
    positive(digits, "digits", "a number of digits")
    if digits < 3:
        raise InputError(f"digits={digits} are too few.", "Ask for sequences of at least 3.")


def try_to_measure(model: Bridge, digits: int, *, progress: bool) -> Findings | SquashlensError:
    """The findings, or why this model cannot have them (digits that are not one token, say)."""
    check_digits(digits)
    return _or_why_not(lambda: measure(model, digits, progress=progress))


def _or_why_not(measured: Callable[[], T]) -> T | SquashlensError:
    try:
        return measured()
    except SquashlensError as error:
        return error
