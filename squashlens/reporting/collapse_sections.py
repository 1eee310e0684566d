"""The sections of the report on representational collapse and on separators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Edit, Kind, positive
from squashlens.errors import InputError, SquashlensError
from squashlens.records.results import provenance
from squashlens.reporting import collapse_sentences as say

if TYPE_CHECKING:
    import plotly.graph_objects as go

T = TypeVar("T")
BLOCKS = 6  # first blocks of the hooks at most: each costs as much as `collapse` does
REPLAYED = 6  # lengths at which D is measured again for the noise floor
# Zeroed attention weights, and zeroed or resampled residual streams, would add little to these ablations.
ABLATIONS: tuple[Kind, ...] = (*get_args(Edit), "mask", "zero_values", "mean_residual")


@dataclass(frozen=True)
class Section:
    """One section of the report. Without a figure, the sentences say why."""

    title: str
    figure: "go.Figure | None"
    says: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """Results of all measurements in these sections.

    `panels` are the four panels of figure 5 by letter, and `trends` the p-values of their trends at the last layer,
    corrected by Holm. `rounded` and `mechanism` are about panel (a), `ablation` about the commas of (d).
    """

    panels: dict[str, xr.Dataset]
    trends: dict[str, float]
    rounded: xr.Dataset
    mechanism: xr.Dataset | SquashlensError
    ablation: xr.Dataset | SquashlensError


def measure(model: Bridge, n: int) -> Findings:
    """Measure everything in these sections, for figure 5's sequences of up to `n` content tokens."""
    import torch

    from squashlens import prompts
    from squashlens.engine.anatomy import n_blocks
    from squashlens.engine.capturing.capture import capture
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.collapse.mechanism import mechanism
    from squashlens.measure.collapse.separator_ablation import separator_ablation
    from squashlens.theory.statistics.trends import holm

    panels, every = prompts.figure5(model, n), n_blocks(model)
    pairs = {
        letter: capture(model, sequence, baselines=("contrast", "unrelated"), noise_lengths=REPLAYED)
        for letter, sequence in panels.items()
    }
    whole = {letter: collapse(model, one, by_head="value") for letter, one in pairs.items()}
    return Findings(
        panels=whole,
        trends=dict(zip(whole, holm([float(ds["length_trend_p"][-1]) for ds in whole.values()]), strict=True)),
        rounded=collapse(model, pairs["a"], round_to=torch.bfloat16),
        mechanism=or_why_not(lambda: mechanism(model, pairs["a"])),
        ablation=or_why_not(
            lambda: separator_ablation(
                model,
                panels["d"],
                kinds=ABLATIONS,
                scale="relative",
                from_blocks=range(0, every, -(-every // BLOCKS)),
            )
        ),
    )


def sections(findings: Findings | SquashlensError) -> list[Section]:
    """The sections for given results, or one section that says why there are none."""
    from squashlens import figures

    if isinstance(findings, SquashlensError):
        return [Section("Representational collapse", None, (f"Not measured for this model. {findings}",))]
    first = findings.panels["a"]
    named = {f"({k}) {_name_of(provenance(ds)['sequence'])}": ds for k, ds in findings.panels.items()}
    trained = zoo.trained_length(provenance(first)["model"])
    return [
        Section(
            "Representational collapse, as in figure 5",
            figures.collapse_curve(named, trained=trained),
            tuple(
                f"({k}) {say.falls(ds, findings.trends[k])} {say.against_contrast(ds)} {say.above_noise(ds)}"
                for k, ds in findings.panels.items()
            ),
            "v is a sequence, and v* is the same sequence with its last digit repeated. D is the L∞ distance of their "
            "last representations, for every number of digits. (a) and (b) ask to count ones, (c) and (d) to copy a "
            "number. The band shows D for the outputs of the attention heads of the last block. The baselines say what "
            "a small D is: pairs whose last digit differs (contrast), sequences with other digits (unrelated), and the "
            "noise floor, which is the change of D when each prompt is run separately.",
        ),
        Section(
            "Collapse by layer",
            figures.collapse_heatmap(first),
            (say.precision(first, findings.rounded), say.answers(first)),
            "Panel (a). D is divided by the root mean square of v, because the norm of the residual stream grows from "
            "layer to layer.",
        ),
        _mechanism_section(findings.mechanism),
        *_ablation_sections(findings.ablation),
    ]


def _ablation_sections(ablation: xr.Dataset | SquashlensError) -> list[Section]:
    """What separators do, in three sections, or the reason why it was not measured."""
    from squashlens import figures

    if isinstance(ablation, SquashlensError):
        return [Section("Effect of separators by layer", None, (f"Not measured. {ablation}",))]
    return [
        Section(
            "Effect of separators by layer",
            figures.layer_trace(ablation),
            (say.separators_help(ablation), say.controls(ablation)),
            "Panel (d) and its ablations, compared at equal numbers of digits. The pair always repeats the last digit.",
        ),
        Section(
            "Presence and content of separators",
            figures.retained_by_kind(ablation),
            (say.presence_or_content(ablation),),
            "The retained effect is 1 if an ablation changes nothing, and 0 if it has the effect of deleting the "
            "separators. Each dot is one length, and bars span the middle half of the lengths. Mean residual streams "
            "are taken over prompts with other digits and separators at the same places: the same token after other "
            "digits.",
        ),
        Section(
            "Blocks in which separators matter",
            figures.from_block_map(ablation),
            (say.last_block_that_matters(ablation, "mask"), say.last_block_that_matters(ablation, "zero_values")),
            "In each row the separators are masked from that block on. The retained effect is 1 if this changes "
            "nothing, and 0 if it has the effect of deleting the separators. Every hook was tested before use and "
            "takes effect.",
        ),
    ]


def _name_of(sequence: Mapping[str, Any]) -> str:
    """A sequence as text for the title of its panel."""
    return f"{sequence['name']}, with “{sequence['separators']}”" if sequence["separators"] else sequence["name"]


def _mechanism_section(mechanism: xr.Dataset | SquashlensError) -> Section:
    """The quantities of the proof, or the reason why they were not measured for this model."""
    from squashlens import figures

    title = "Why representations become similar"
    if isinstance(mechanism, SquashlensError):
        return Section(title, None, (f"Not measured for this model. {mechanism}",))
    return Section(
        title,
        figures.mechanism(mechanism),
        (say.premises(mechanism), say.tightness(mechanism), say.parts(mechanism)),
        "Panel (a). The proof of Theorem B.3 assumes that the attention rows of v and v* become equal, and that the "
        "weight of the new token on itself goes to 0. Both are measured here on the model's heads, with the bound that "
        "follows from them at block 0.",
    )


def check_n(n: int) -> None:
    """Raise an error if there are too few tokens for a curve, or more than any model takes."""
    positive(n, "n", "a number of content tokens")
    if n < 3:
        raise InputError(f"n={n} is too small: a curve needs several lengths.", "Give at least 3.")


def or_why_not(measured: Callable[[], T]) -> T | SquashlensError:
    """A measurement, or the error that says why it cannot be made on this model."""
    try:
        return measured()
    except SquashlensError as error:
        return error
