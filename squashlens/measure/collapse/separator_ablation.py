"""What separators do to representational collapse, layer by layer: they are ablated in eleven ways.

Edits change the prompt. Hooks leave the prompt unchanged and act from block k on. All are compared at equal numbers of
*content* tokens, and the pair always repeats the last content token. `docs/separators_by_layer.md` lists the kinds.

Two identities hold and are tested: `delete` equals `none`, the sequence without separators; and `mask` in every block
equals `delete_keep_positions`, because no token ever attends to the separators.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens import hooks
from squashlens._typing import (
    Ablation,
    Bridge,
    Distance,
    Edit,
    Kind,
    Kinds,
    Scale,
    positive,
)
from squashlens.bars import bar
from squashlens.errors import InputError, SquashlensError, UnsoundModelError
from squashlens.hooks.activations import mean_activations
from squashlens.hooks.interventions import STREAMS, Place
from squashlens.hooks.patches import Insertion, drawn_from
from squashlens.measure.collapse import metric as metrics
from squashlens.measure.collapse.metric import REPLAYED, Metric, evenly_spaced
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import Table, variables_of, with_y
from squashlens.model.agreement import agree
from squashlens.model.applied import probe_ids, require_effective
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import without_ambient
from squashlens.model.text.tokens import checked_prompts
from squashlens.prompts import Token, one_token, stacked
from squashlens.records.labels import Variable
from squashlens.run.captures import pairs as captures
from squashlens.run.captures.pairs import Growing, Streams
from squashlens.run.forward import causal, context, next_logits
from squashlens.run.run import Run
from squashlens.run.streamed import patterns_written
from squashlens.sequences import GrowingSequence
from squashlens.theory.distances import NOISE_FLOORS

ALL: tuple[Kind, ...] = get_args(Kind)
BLOCKS = 3
REFERENCES = 8  # sequences whose streams are inserted
FACTORIES: dict[str, Callable[..., Hook]] = {
    "mask": hooks.mask_tokens,
    "zero_attention": hooks.zero_attention,
    "zero_values": hooks.zero_values,
    "zero_residual": hooks.zero_residual,
}
# The hooks that ablate separators, given their positions and the blocks in which the hooks act.
MakeHooks = Callable[[Sequence[int], tuple[int, ...]], list[Hook]]
Gaps = Float[Tensor, "*many layer length"]


class Variant(NamedTuple):
    """One ablation: the sequence to run, and options of `Growing.pairs` such as position ids or hooks."""

    sequence: GrowingSequence
    options: Mapping[str, Any] = MappingProxyType({})


@measurement(
    "retained_by_kind", cheaper="Fewer kinds=, from_blocks= or lengths= takes less."
)
def separator_ablation(
    model: Bridge,
    sequence: captures.SequenceOrCapture,
    *,
    kinds: Kinds = ALL,
    lengths: Iterable[int] | None = None,
    from_blocks: Iterable[int] | None = None,
    substitute: Token | None = None,
    norm: Distance = "linf",
    scale: Scale = "absolute",
    noise_lengths: int = REPLAYED,
    seed: int = 0,
) -> xr.Dataset:
    """The distance D of `collapse` with separators, without them, and under each ablation of them.

    Five kinds of ablation edit the prompt: ``"delete"``, ``"delete_keep_positions"``, ``"substitute"``,
    ``"extra_digits"`` and ``"random_places"``. Six are hooks: ``"mask"``, ``"zero_attention"``, ``"zero_values"``,
    ``"zero_residual"``, ``"mean_residual"`` and ``"resample_residual"``. All are compared at equal numbers of content
    tokens.

    Args:
        model, norm, scale: as in `collapse`.
        sequence: a growing sequence with separators from `squashlens.prompts`; or a `capture` of one, whose
            sequence, lengths and way of running passes are used; each ablation is a run of its own.
        kinds: kinds of ablation to measure; all by default.
        lengths: numbers of content tokens at which D is measured; by default those of the capture, or at most 16 that
            are evenly spaced up to the last.
        from_blocks: first blocks of the hooks: a hook acts in that block and all later ones. By default at most 3 that
            are evenly spaced from the first, each in turn. Every block and length takes many times longer.
        substitute: token that replaces separators for ``"substitute"``, as text or id; by default a random token that
            is not in the sequence.
        noise_lengths: number of lengths at which D is measured a second time, with other passes, for the noise floor;
            4 by default. With 0, `noise_floor` and `retained` are NaN.
        seed: random seed of the random places, the substitute, the eight sequences of the same form and random content
            whose streams ``"mean_residual"`` and ``"resample_residual"`` insert, and the choice among them; 0 by
            default.

    Returns:
        Dataset. Over (edit, layer, length): `distance`, where `edit` is ``"none"`` (no separators), ``"separators"``
        or an edit. Over (hook, from_block, layer, length): `distance_from`. `retained` and `retained_from` are
        (D_ablated − D_none) / (D_separators − D_none), dimensionless: 1 if the ablation has no effect, 0 if it has the
        effect of deletion, NaN unless the denominator is above three noise floors. With the kind
        ``"delete_keep_positions"``: `gap_factor` and `attention_factor` over (layer, length), whose product is D with
        separators ÷ D without: what the gaps in the positions multiply D by, and what attention to the separators does
        beyond them; NaN where a distance is at most three noise floors. The coordinate `place_in_group` is the number
        of content tokens since the last separator: v* lengthens that group, so compare equal places. Over (layer):
        `noise_floor`, the largest that `collapse` would give over the replayed lengths, with and without separators.
        Each also has a variable with `_y`, for y. Distances are in the model's units, or dimensionless if relative.

    Raises:
        InputError: a sequence without separators, or blocks that do not exist.
        UnsoundModelError: hook points that have no effect in this model; for ``"delete_keep_positions"``, a model that
            does not use position ids (BLOOM, Falcon with ALiBi, MPT).

    Source: Barbero et al. 2024, section 4.2, which names separators as a remedy.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 12, separator=",")
    >>> ds = sl.separator_ablation(model, ones, kinds=["mask"], from_blocks=[6 - 1])
    >>> below = ds["retained_from"].sel(hook="mask", from_block=5, layer=5)   # nothing has happened yet
    >>> bool(((below == 1) | below.isnull()).all())
    True
    """
    positive(noise_lengths, "noise_lengths", "a number of lengths", or_zero=True)
    metric = Metric(norm, scale)
    if lengths is None and isinstance(sequence, GrowingSequence):
        lengths = evenly_spaced(sequence)
    run = Run.open(model, **this_call(kinds=list(kinds)))
    passes = captures.passes_of(sequence)
    growing = captures.prepare_growing(run, sequence, lengths, passes)
    # A separator after the last content token is in no prompt.
    if not growing.sequence.separator_places(growing.lengths[-1]):
        raise InputError(
            "The sequence has no separators to ablate.",
            "Build it with separators, such as separator=',', every=3.",
        )
    blocks = _first_blocks(growing, from_blocks)

    facts: dict[str, Any] = {}
    new_token = -1  # the substitute, if there is one
    if "substitute" in kinds:
        new_token = substitute_for(growing, substitute, seed)
        facts["substitute"] = run.tokens_of(torch.tensor([[new_token]]))[0][0]
    # The ablations: edits of the prompt by kind, and hooks by kind and first block.
    prompts = _edited_prompts(growing, kinds, new_token, seed)
    hooked = _hooked(growing, kinds, blocks, seed)
    measured = _measured(growing, metric, {**prompts, **hooked}, noise_lengths)
    variables = _of_edits(metric, measured, list(prompts))
    tokens: list[np.ndarray] = []
    for variant in prompts.values():
        tokens.append(metrics.n_tokens(variant.sequence, growing.lengths))
    coords = metrics.coords(growing) | {
        "edit": list(prompts),
        "tokens": (("edit", "length"), np.array(tokens)),
        "place_in_group": ("length", _place_in_group(growing)),
    }
    if hooked:
        kinds_of_hooks = list(dict.fromkeys(kind for kind, _ in hooked))
        variables |= _of_hooks(metric, measured, kinds_of_hooks, blocks)
        coords |= {"hook": kinds_of_hooks, "from_block": blocks}
    run = metrics.with_sequence(run, growing)
    run = metrics.with_passes(run, *measured.streams, **facts)
    return run.dataset("separator ablation", coords, variables)


class MeasuredVariants(NamedTuple):
    """The distances D under each ablation, the noise floor of all, and the streams of v, for the provenance.

    Attributes:
        distances: by the kind of an edit, or by (kind of hook, first block).
    """

    distances: dict[Any, Gaps]
    floor: Float[Tensor, " layer"]
    streams: list[Streams]


def _measured(
    growing: Growing,
    metric: Metric,
    variants: Mapping[Any, Variant],
    noise_lengths: int,
) -> MeasuredVariants:
    """The distance D under each of these ablations; the noise floor is the larger of those with and without separators.

    `noise_lengths` lengths are run again for it.
    """
    distances: dict[Any, Gaps] = {}
    floors: list[Float[Tensor, " layer"]] = []
    streams: list[Streams] = []
    for name, variant in bar(variants.items(), desc="ablations"):
        varied = replace(growing, sequence=variant.sequence)
        # Hooks inside attention need written patterns. All variants have them, so that they round alike.
        with patterns_written("hooks inside attention are compared with none"):
            v, star = varied.pairs(**variant.options)
            distances[name] = metric.gap(v.values, star.values)
            streams.append(v)
            if name in ("none", "separators"):
                replay = None
                if noise_lengths:
                    replay = varied.replayed((v, star), noise_lengths)
                floors.append(metric.floor(v, star, replay))
    return MeasuredVariants(distances, torch.stack(floors).amax(dim=0), streams)


def _first_blocks(growing: Growing, from_blocks: Iterable[int] | None) -> list[int]:
    """The first blocks of the hooks. Raises for blocks that do not exist or are given twice."""
    blocks = growing.layers[:-1]
    if from_blocks is None:
        step = -(-len(blocks) // BLOCKS)  # rounded up
        return blocks[::step]
    chosen = list(from_blocks)
    if not chosen or not set(chosen) <= set(blocks) or len(set(chosen)) < len(chosen):
        raise InputError(
            f"from_blocks={chosen!r} are not different blocks of this model.",
            f"Use blocks 0 to {blocks[-1]}.",
        )
    return chosen


def _place_in_group(growing: Growing) -> np.ndarray:
    """The number of content tokens after the last separator that precedes the last content token, at each length."""
    breaks = np.array([0, *growing.sequence.breaks])  # in content tokens
    lengths = np.array(growing.lengths)
    last_break = np.searchsorted(breaks, lengths) - 1  # the last one below the length
    return lengths - breaks[last_break]


def _of_edits(
    metric: Metric, measured: MeasuredVariants, edits: Sequence[str]
) -> dict[str, Variable]:
    """The variables over edits of the prompt, the noise floor, and the factors of gaps and of attention."""
    distances = measured.distances
    floor = measured.floor
    none = distances["none"]
    separators = distances["separators"]
    edited = torch.stack([distances[name] for name in edits])
    found = {
        "distance": edited,
        "retained": _retained(edited, none, separators, floor),
        "noise_floor": floor,
    }
    if "delete_keep_positions" in distances:
        with_gaps = distances["delete_keep_positions"]
        # A quotient is clear if the smaller of its two distances is.
        least = torch.minimum(with_gaps, none)
        found["gap_factor"] = _where_clear(least, floor, with_gaps / none)
        least = torch.minimum(separators, with_gaps)
        found["attention_factor"] = _where_clear(least, floor, separators / with_gaps)
    return with_y(variables_of(_table(metric), found))


def _table(metric: Metric) -> Table:
    """The dimensions of each variable, its long name and its units."""
    by_edit = "edit layer length"
    by_hook = "hook from_block layer length"
    of_hook = metric.distance("distance of v and v* with a hook from a block on")
    retained = metric.derived("share of the separators' effect that remains")
    gaps = metric.derived("D with gaps in the positions ÷ D without separators")
    attention = metric.derived("D with separators ÷ D with gaps in their place")
    return {
        "distance": (by_edit, metric.distance("distance of v and v*"), metric.units),
        "distance_from": (by_hook, of_hook, metric.units),
        "retained": (by_edit, retained, "1"),
        "retained_from": (by_hook, retained, "1"),
        "noise_floor": ("layer", metric.derived(metrics.NOISE), metric.units),
        "gap_factor": ("layer length", gaps, "1"),
        "attention_factor": ("layer length", attention, "1"),
    }


def _of_hooks(
    metric: Metric,
    measured: MeasuredVariants,
    kinds: Sequence[str],
    blocks: Sequence[int],
) -> dict[str, Variable]:
    """The variables over hooks and the block from which they act."""
    distances = measured.distances
    cases = product(kinds, blocks)
    hooked = torch.stack([distances[kind, block] for kind, block in cases])
    hooked = hooked.unflatten(0, (len(kinds), len(blocks)))
    retained = _retained(
        hooked, distances["none"], distances["separators"], measured.floor
    )
    of_hooks = {"distance_from": hooked, "retained_from": retained}
    return with_y(variables_of(_table(metric), of_hooks))


def _retained(ablated: Gaps, none: Gaps, separators: Gaps, floor: Tensor) -> Gaps:
    """(D_ablated − D_none) ÷ (D_separators − D_none)."""
    effect = separators - none
    return _where_clear(effect.abs(), floor, (ablated - none) / effect)


def _where_clear(size: Tensor, floor: Tensor, quotient: Tensor) -> Tensor:
    """A quotient; NaN where the size that it rests on may be rounding."""
    return torch.where(size > NOISE_FLOORS * floor[:, None], quotient, torch.nan)


def _edited_prompts(
    growing: Growing, kinds: Collection[Kind], new_token: int, seed: int
) -> dict[str, Variant]:
    """By name the sequence without separators, as it is, and with each edit of its separators that is in `kinds`."""
    variants = {
        "none": Variant(growing.sequence.separated((), ())),
        "separators": Variant(growing.sequence),
    }
    for kind in get_args(Edit):
        if kind in kinds:
            variants[kind] = edit(growing, kind, new_token, seed)
    return variants


def edit(growing: Growing, kind: Edit, new_token: int, seed: int) -> Variant:
    """The ablation that edits the separators of the prompt itself; `new_token` replaces them for "substitute"."""
    sequence = growing.sequence
    breaks = sequence.breaks
    if kind == "delete":
        return Variant(_without_separators(sequence))
    if kind == "substitute":
        return Variant(sequence.separated([new_token] * len(breaks), breaks))
    if kind == "extra_digits":
        # In place of each separator the digit before it again.
        digits_before = [sequence.content[after - 1] for after in breaks]
        return Variant(sequence.separated(digits_before, breaks))
    if kind == "random_places":
        return Variant(sequence.scattered(f"places {seed}"))
    return _with_gaps(growing)


def _without_separators(sequence: GrowingSequence) -> GrowingSequence:
    """The trunk without the separators' tokens; all that remains after the prefix is content.

    `separated((), ())` makes the same sequence in another way, so that "delete" is a test of "none".
    """
    remaining = np.delete(sequence.trunk, sequence.separator_places()).tolist()
    content = tuple(remaining[len(sequence.prefix) :])
    return replace(sequence, content=content, breaks=(), separators=())


def _with_gaps(growing: Growing) -> Variant:
    """The sequence without separators, whose tokens keep the position ids that they have with separators."""
    sequence = growing.sequence
    if sequence.ending is not None:
        raise InputError(
            "delete_keep_positions is not defined for a sequence with an ending: its position after a gap is unclear.",
            "Build the sequence without ending=, or leave 'delete_keep_positions' out of kinds=.",
        )
    require_position_ids(growing.run)
    without = sequence.separated((), ())
    longest = len(without.stem(growing.lengths[-1]))
    positions = np.arange(len(sequence.trunk))
    positions = np.delete(positions, sequence.separator_places())[:longest]
    # The trunk of `Growing` ends with the last token repeated.
    positions = np.append(positions, positions[-1] + 1)
    return Variant(without, {"positions": tuple(positions.tolist())})


def require_position_ids(run: Run) -> None:
    """Raise for a model that does not use the position ids of a forward pass, in which a gap would have no effect."""
    if not run.proof.once("given position ids", lambda: _uses_position_ids(run)):
        raise UnsoundModelError(
            f"{run.architecture} does not take position ids and a mask in a forward pass (models "
            "with ALiBi compute both themselves), so that delete_keep_positions cannot be measured.",
            "Leave 'delete_keep_positions' out of kinds=. The hook 'mask' in every block measures the same.",
        )


def _uses_position_ids(run: Run) -> bool:
    """Whether the model uses the position ids of a forward pass: a probe of five tokens.

    To all later tokens, a token that the mask hides must then be the same as one that is missing, with a gap in the
    position ids.
    """
    ids = probe_ids(run.model)[:, :5]
    all_places = torch.arange(5)
    without_1 = torch.tensor([0, 2, 3, 4])
    visible = causal(5)
    visible[2:, 1] = False  # no later token attends to token 1
    try:
        masked_context = context(run, all_places, all_places, visible)
        missing_context = context(run, without_1, without_1, causal(4))
        with without_ambient(run.model):
            masked = next_logits(run, ids, context=masked_context)
            missing = next_logits(run, ids[:, without_1], context=missing_context)
    except SquashlensError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False  # the model does not take position ids or the mask
    return agree(missing, masked, run.dtype)


def _hooked(
    growing: Growing,
    kinds: Collection[Kind],
    blocks: Sequence[int],
    seed: int,
) -> dict[tuple[str, int], Variant]:
    """The sequence under each kind of hook in `kinds`, from each of `blocks` on, by kind and block."""
    variants: dict[tuple[str, int], Variant] = {}
    for kind in get_args(Ablation):
        if kind in kinds:
            make = maker(growing, kind, seed)
            for block in blocks:
                variants[kind, block] = hook_separators(growing, kind, block, make)
    return variants


def hook_separators(
    growing: Growing, kind: Ablation, from_block: int, make: MakeHooks
) -> Variant:
    """The unchanged sequence with the hooks that `make` gives on its separators, in all blocks from `from_block` on.

    One pass runs the trunk, the tokens that all prompts share. A second one runs the branches, each prompt's own
    ending, on the cache of the trunk; it needs hooks of its own. Raises if a hook point has no effect on the logits.
    """
    blocks = tuple(
        growing.layers[from_block:-1]
    )  # the last layer is y, above the last block
    places = growing.sequence.separator_places(growing.lengths[-1])
    on_all_separators = make(places, blocks)
    sites: list[str] = []
    for hook in on_all_separators:
        sites += hook.points(len(growing.layers) - 1)
    require_effective(growing.run.model, sites)

    def on_trunk(tokens: int) -> list[Hook]:
        """The hooks for a pass that starts with this number of tokens of the trunk."""
        # At later positions a branch has its own tokens.
        inside = [place for place in places if place < tokens]
        return make(inside, blocks) if inside else []

    # A second pass runs the branches on the cache of the trunk. There attention to the separators must still be
    # changed; changed values and residual streams are in the cache already.
    changes_attention = kind in ("mask", "zero_attention")
    branch_hooks = on_all_separators if changes_attention else ()
    options = {"hooks": on_trunk, "branch_hooks": branch_hooks}
    return Variant(growing.sequence, options)


def maker(growing: Growing, kind: Ablation, seed: int) -> MakeHooks:
    """The function that makes the hooks of a kind, given the separators' positions and the blocks.

    The hooks of "mean_residual" and "resample_residual" insert the streams of reference prompts at the separators: the
    means of several, or those of one that is drawn. The prompts are run here, once for all blocks.
    """
    if kind in FACTORIES:

        def make_one(places: Sequence[int], blocks: tuple[int, ...]) -> list[Hook]:
            return [FACTORIES[kind](places, blocks)]

        return make_one
    rng = Random(f"reference {seed}")
    references = [growing.sequence.unrelated(rng) for _ in range(REFERENCES)]
    model = growing.run.model
    ids = checked_prompts(model, stacked(references))
    if kind == "resample_residual":
        ids = drawn_from(ids, seed)  # a single row, whose mean is itself
    inserted = mean_activations(model, ids, STREAMS, growing.layers[:-1])

    def make_insertions(places: Sequence[int], blocks: tuple[int, ...]) -> list[Hook]:
        positions = tuple(places)
        place = Place(kind, STREAMS, positions, None, name=kind)
        # From the same positions of the reference prompts.
        return Insertion(place, positions).hooks(inserted, blocks)

    return make_insertions


def substitute_for(growing: Growing, token: Token | None, seed: int) -> int:
    """The token that replaces separators: the given one, or a random one that the sequence does not contain.

    Special tokens of the tokenizer are not drawn.
    """
    model = growing.run.model
    sequence = growing.sequence
    if token is not None:
        return one_token(model, token)
    used = {*sequence.trunk, *sequence.suffix, *sequence.alphabet}
    if model.tokenizer is not None:
        used |= set(model.tokenizer.all_special_ids)
    free = sorted(set(range(int(model.cfg.d_vocab))) - used)
    if not free:
        raise InputError(
            "The sequence contains every token of the vocabulary, so that no token is left as a substitute.",
            "Give substitute=.",
        )
    return Random(f"substitute {seed}").choice(free)
