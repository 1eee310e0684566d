"""What separators do to representational collapse, layer by layer: they are ablated in eleven ways.

Edits change the prompt. Hooks leave the prompt unchanged and act from block k on. All are compared at equal numbers of
*content* tokens, and the pair always repeats the last content token. `docs/separators_by_layer.md` lists the kinds.

Two identities hold and are tested: `delete` equals `none`, the sequence without separators; and `mask` in every block
equals `delete_keep_positions`, because no token ever attends to the separators.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from squashlens._typing import Ablation, Bridge, Distance, Edit, Kind, Scale, positive
from squashlens.bars import bar
from squashlens.engine.capturing.pairs import PairRun, SequenceOrCapture, Streams, passes_of, prepare_run
from squashlens.engine.running.streamed import patterns_written
from squashlens.engine.text.tokens import display_tokens
from squashlens.errors import InputError
from squashlens.measure.collapse._ablations import (
    Variant,
    edited,
    hooked,
    makers,
    separators_within,
    substitute_for,
)
from squashlens.measure.collapse.metric import NOISE, Metric, with_y
from squashlens.measure.collapse.pairs import REPLAYED, coords, sequence_session, with_passes
from squashlens.measure.measurement import measurement
from squashlens.prompts import Token
from squashlens.records.results import Variable
from squashlens.sequences import GrowingSequence
from squashlens.theory.distances import NOISE_FLOORS

HOOKED = "distance of v and v* with a hook from a block on"


# More than ten parameters, since each is an independent option of the measurement; all have defaults.
@measurement("layer_trace", "from_block_map", "retained_by_kind")
def separator_ablation(
    model: Bridge,
    sequence: SequenceOrCapture,
    *,
    kinds: Collection[Kind] = get_args(Kind),
    lengths: Iterable[int] | None = None,
    from_blocks: Iterable[int] | None = None,
    substitute: Token | None = None,
    source: Sequence[GrowingSequence] | None = None,
    norm: Distance = "linf",
    scale: Scale = "absolute",
    seed: int = 0,
    noise_lengths: int = REPLAYED,
    progress: bool = True,
) -> xr.Dataset:
    """The distance D of `collapse` with separators, without them, and under each ablation of them.

    Five kinds of ablation edit the prompt: ``"delete"``, ``"delete_keep_positions"``, ``"substitute"``,
    ``"extra_digits"`` and ``"random_places"``. Six are hooks: ``"mask"``, ``"zero_pattern"``, ``"zero_values"``,
    ``"zero_residual"``, ``"mean_residual"`` and ``"resample_residual"``. All are compared at equal numbers of content
    tokens.

    Args:
        model, norm, scale: as in `collapse`.
        sequence: a growing sequence with separators from `squashlens.prompts`; or a `capture` of one, whose
            sequence, lengths and way of running passes are used; each ablation is a run of its own.
        kinds: kinds of ablation to measure; all by default.
        lengths: numbers of content tokens at which D is measured, in increasing order; by default those of the
            capture, or all from 1.
        from_blocks: first blocks of the hooks: a hook acts in that block and all later ones. By default each block in
            turn.
        substitute: token that replaces separators for ``"substitute"``, as text or id; by default a random token that
            is not in the sequence.
        source: growing sequences of the same form, whose residual streams at the separators' positions are used by
            ``"mean_residual"`` and ``"resample_residual"``; by default eight with random content.
        seed: random seed of the random places, the substitute, the source sequences and the choice among them; 0
            by default.
        noise_lengths: number of lengths at which D is measured a second time, with other passes, for the noise floor;
            4 by default. With 0, `noise_floor` and `retained` are NaN.
        progress: whether to show a progress bar; yes by default.

    Returns:
        Dataset. Over (edit, layer, length): `distance`, where `edit` is ``"none"`` (no separators), ``"separators"``
        or an edit. Over (hook, from_block, layer, length): `distance_from`. `retained` and `retained_from` are
        (D_ablated − D_none) / (D_separators − D_none), dimensionless: 1 if the ablation has no effect, 0 if it has the
        effect of deletion, NaN unless the denominator is above three noise floors. Over (layer): `noise_floor`, the
        largest that `collapse` would give over the replayed lengths, with and without separators. Each also has a
        variable with `_y`, for y. Distances are in the model's units, or dimensionless if relative.

    Raises:
        InputError: a sequence without separators, or blocks that do not exist.
        UnsoundModelError: hook points that have no effect in this model; for ``"delete_keep_positions"``, a model that
            does not use position ids (BLOOM, Falcon with ALiBi, MPT).

    Source: Barbero et al. 2024, section 4.2, which names separators as a remedy.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, separator=",", every=3)
    >>> ds = sl.separator_ablation(model, ones, kinds=["mask"], from_blocks=[6 - 1], progress=False)
    >>> below = ds["retained_from"].sel(hook="mask", from_block=5, layer=5)   # nothing has happened yet
    >>> bool(((below == 1) | below.isnull()).all())
    True
    """
    metric = Metric(norm, scale)
    positive(noise_lengths, "noise_lengths", "a number of lengths", or_zero=True)
    run = prepare_run(model, sequence, lengths, *passes_of(sequence), progress=False)
    if not separators_within(run):
        raise InputError(
            "The sequence has no separators to ablate.", "Build it with separators, such as separator=',', every=3."
        )
    found, over, ways, facts = _ablated(
        run, metric, kinds, from_blocks, substitute, source, seed, noise_lengths, progress
    )
    session = sequence_session(
        run.model, run, "separator_ablation", kinds=list(kinds), norm=norm, scale=scale, seed=seed,
        noise_lengths=noise_lengths, source="drawn" if source is None else [other.name for other in source],
        substitute=None if substitute is None else facts.get("substitute", substitute),
    )  # fmt: skip
    return with_passes(session, *ways, **facts).dataset("separator ablation", over, found)


def _ablated(
    run: PairRun, metric: Metric, kinds: Collection[Kind], from_blocks: Iterable[int] | None, substitute: Token | None,
    source: Sequence[GrowingSequence] | None, seed: int, replay: int, progress: bool,
) -> tuple[dict[str, Variable], dict[str, Any], list[Streams], dict[str, Any]]:  # fmt: skip
    """The ablations of the separators of one sequence: variables, coordinates, streams as run, and provenance facts."""
    sequence, blocks = run.sequence, _blocks(run, from_blocks)
    other = substitute_for(run, substitute, seed) if "substitute" in kinds else -1
    inputs = {"none": Variant(sequence.separated((), ())), "separators": Variant(sequence)}
    inputs |= {kind: edited(run, kind, other, seed) for kind in get_args(Edit) if kind in kinds}
    hooks = makers(run, [kind for kind in get_args(Ablation) if kind in kinds], source, seed)
    acting = {(kind, block): hooked(run, kind, block, act) for kind, act in hooks.items() for block in blocks}

    distances, ways, floors = {}, [], []
    for name, variant in bar({**inputs, **acting}.items(), desc="ablations", progress=progress):
        own = replace(run, sequence=variant.sequence)
        with patterns_written("hooks inside attention are compared with none"):
            v, star = own.pairs(**variant.options)
            distances[name] = metric.gap(v.values, star.values)
            if name in ("none", "separators"):
                again = own.replayed((v, star), replay) if replay else None
                floors.append(metric.floor(v, star, again))
        ways.append(v)
    floor = torch.stack(floors).amax(dim=0)

    edits = torch.stack([distances[name] for name in inputs])
    none, separators = distances["none"], distances["separators"]
    found = with_y(
        "distance", edits, metric.distance("distance of v and v*"), metric.units, ("edit", "layer", "length")
    )
    text = metric.derived("share of the separators' effect that remains")
    found |= with_y("retained", _retained(edits, none, separators, floor), text, "1", ("edit", "layer", "length"))
    found |= with_y("noise_floor", floor, metric.derived(NOISE), metric.units, ("layer",))
    if acting:
        from_block = torch.stack([torch.stack([distances[kind, b] for b in blocks]) for kind in hooks])
        dims = ("hook", "from_block", "layer", "length")
        found |= with_y("distance_from", from_block, metric.distance(HOOKED), metric.units, dims)
        found |= with_y("retained_from", _retained(from_block, none, separators, floor), text, "1", dims)
    over = coords(run) | {"edit": list(inputs)} | ({"hook": list(hooks), "from_block": blocks} if acting else {})
    counts = [[len(variant.sequence.plain(n)) for n in run.lengths] for variant in inputs.values()]
    over["tokens"] = (("edit", "length"), np.array(counts))
    facts = {} if other < 0 else {"substitute": display_tokens(run.model, torch.tensor([[other]]))[0][0]}
    return found, over, ways, facts


def _retained(ablated: Tensor, none: Tensor, separators: Tensor, floor: Tensor) -> Tensor:
    """The share of the separators' effect that remains; NaN where the effect may be rounding."""
    effect = separators - none
    clear = effect.abs() > NOISE_FLOORS * floor[:, None]
    return torch.where(clear, (ablated - none) / effect, torch.nan)


def _blocks(run: PairRun, from_blocks: Iterable[int] | None) -> list[int]:
    """The first blocks of the hooks. Raises for blocks that do not exist or are given twice."""
    every = run.layers[:-1]
    chosen = every if from_blocks is None else list(from_blocks)
    if not chosen or not set(chosen) <= set(every):
        raise InputError(f"from_blocks={chosen!r} are not blocks of this model.", f"Use blocks 0 to {every[-1]}.")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"from_blocks={chosen!r} names a block twice.", "Give each block once.")
    return chosen
