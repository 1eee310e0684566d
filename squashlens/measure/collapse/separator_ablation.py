"""What separators do to representational collapse, layer by layer: they are ablated in eleven ways.

Edits change the prompt. Hooks leave the prompt unchanged and act from block k on. All are compared at equal numbers of
*content* tokens, and the pair always repeats the last content token. `docs/separators_by_layer.md` lists the kinds.

Two identities hold and are tested: `delete` equals `none`, the sequence without separators; and `mask` in every block
equals `delete_keep_positions`, because no token ever attends to the separators.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

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
from squashlens.bars import bar, write
from squashlens.errors import InputError, SquashlensError, UnsoundModelError
from squashlens.hooks.activations import mean_activations
from squashlens.hooks.interventions import (
    STREAMS,
    mask_tokens,
    zero_pattern,
    zero_residual,
    zero_values,
)
from squashlens.hooks.patches import drawn_from, replacing
from squashlens.measure.collapse.metric import (
    NOISE,
    REPLAYED,
    Metric,
    coords,
    with_passes,
    with_sequence,
    with_y,
)
from squashlens.measure.registration import measurement
from squashlens.model.agreement import agree
from squashlens.model.applied import probe_ids, require_effective
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import without_ambient
from squashlens.model.text.tokens import checked_prompts, require_same_vocabulary
from squashlens.prompts import Token, one_token, stacked
from squashlens.records.labels import Variable
from squashlens.run.captures.pairs import (
    Growing,
    SequenceOrCapture,
    Streams,
    passes_of,
    prepare_growing,
)
from squashlens.run.forward import causal, context, next_logits
from squashlens.run.run import Run
from squashlens.run.streamed import patterns_written
from squashlens.sequences import GrowingSequence
from squashlens.theory.distances import NOISE_FLOORS

ALL: tuple[Kind, ...] = get_args(Kind)
LENGTHS, BLOCKS = 16, 3  # how many are measured by default
GAP: Edit = "delete_keep_positions"
HOOKED = "distance of v and v* with a hook from a block on"


@measurement(
    "retained_by_kind", cheaper="Fewer kinds=, from_blocks= or lengths= takes less."
)
def separator_ablation(
    model: Bridge,
    sequence: SequenceOrCapture,
    *,
    kinds: Kinds = ALL,
    lengths: Iterable[int] | None = None,
    from_blocks: Iterable[int] | None = None,
    substitute: Token | None = None,
    source: Sequence[GrowingSequence] | None = None,
    norm: Distance = "linf",
    scale: Scale = "absolute",
    noise_lengths: int = REPLAYED,
    seed: int = 0,
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
        lengths: numbers of content tokens at which D is measured; by default those of the capture, or at most 16 that
            are evenly spaced up to the last.
        from_blocks: first blocks of the hooks: a hook acts in that block and all later ones. By default at most 3 that
            are evenly spaced from the first, each in turn. Every block and length takes many times longer.
        substitute: token that replaces separators for ``"substitute"``, as text or id; by default a random token that
            is not in the sequence.
        source: growing sequences of the same form, whose residual streams at the separators' positions are used by
            ``"mean_residual"`` and ``"resample_residual"``; by default eight with random content.
        noise_lengths: number of lengths at which D is measured a second time, with other passes, for the noise floor;
            4 by default. With 0, `noise_floor` and `retained` are NaN.
        seed: random seed of the random places, the substitute, the source sequences and the choice among them; 0 by
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
    metric, by_default = Metric(norm, scale), lengths is None or from_blocks is None
    positive(noise_lengths, "noise_lengths", "a number of lengths", or_zero=True)
    if lengths is None and isinstance(sequence, GrowingSequence):
        lengths = range(len(sequence), 0, len(sequence) // -LENGTHS)
    run = Run.open(model, "separator_ablation")
    growing = prepare_growing(run, sequence, lengths, passes_of(sequence))
    if not growing.sequence.separator_places(
        growing.lengths[-1]
    ):  # a separator after the last content token is not within
        raise InputError(
            "The sequence has no separators to ablate.",
            "Build it with separators, such as separator=',', every=3.",
        )
    blocks, every = _blocks(growing, from_blocks), growing.layers[:-1]
    if by_default and (
        len(growing.lengths) < len(growing.sequence) or len(blocks) < len(every)
    ):
        lengths_taken = f"lengths: {len(growing.lengths)} of {len(growing.sequence)}"
        taken = f"{lengths_taken}; from_blocks: {len(blocks)} of {len(every)}"
        write(
            f"separator_ablation: {taken}. The arguments of these names choose others."
        )
    found, over, ways, facts = _ablate(
        growing, metric, kinds, blocks, substitute, source, seed, noise_lengths
    )
    run = with_sequence(
        run,
        growing,
        kinds=list(kinds),
        **metric.said,
        seed=seed,
        noise_lengths=noise_lengths,
        source="drawn" if source is None else [other.name for other in source],
        substitute=None if substitute is None else facts.get("substitute", substitute),
    )
    return with_passes(run, *ways, **facts).dataset("separator ablation", over, found)


def _ablate(
    growing: Growing,
    metric: Metric,
    kinds: Collection[Kind],
    blocks: Sequence[int],
    substitute: Token | None,
    source: Sequence[GrowingSequence] | None,
    seed: int,
    replay: int,
) -> tuple[dict[str, Variable], dict[str, Any], list[Streams], dict[str, Any]]:
    """The ablations of the separators of one sequence: variables, coordinates, streams as run, and provenance facts."""
    sequence = growing.sequence
    other = substitute_for(growing, substitute, seed) if "substitute" in kinds else -1
    inputs = {
        "none": Variant(sequence.separated((), ())),
        "separators": Variant(sequence),
    }
    inputs |= {
        kind: edit(growing, kind, other, seed)
        for kind in get_args(Edit)
        if kind in kinds
    }
    hooks = {
        kind: maker(growing, kind, source, seed)
        for kind in get_args(Ablation)
        if kind in kinds
    }
    acting = {
        (kind, block): hook_separators(growing, kind, block, act)
        for kind, act in hooks.items()
        for block in blocks
    }

    distances, ways, floors = {}, [], []
    for name, variant in bar({**inputs, **acting}.items(), desc="ablations"):
        own = replace(growing, sequence=variant.sequence)
        with patterns_written("hooks inside attention are compared with none"):
            v, star = own.pairs(**variant.options)
            distances[name] = metric.gap(v.values, star.values)
            if name in ("none", "separators"):
                again = own.replayed((v, star), replay) if replay else None
                floors.append(metric.floor(v, star, again))
        ways.append(v)
    floor = torch.stack(floors).amax(dim=0)

    edits, dims = (
        torch.stack([distances[name] for name in inputs]),
        ("edit", "layer", "length"),
    )
    none, separators = distances["none"], distances["separators"]
    effect = separators - none
    found = with_y(
        "distance", edits, metric.distance("distance of v and v*"), metric.units, dims
    )
    share = metric.derived("share of the separators' effect that remains")
    retained = _where_clear(effect.abs(), floor, (edits - none) / effect)
    found |= with_y("retained", retained, share, "1", dims)
    found |= with_y(
        "noise_floor", floor, metric.derived(NOISE), metric.units, ("layer",)
    )
    if GAP in distances:
        gap = distances[GAP]
        factor = _where_clear(torch.minimum(gap, none), floor, gap / none)
        text = metric.derived("D with gaps in the positions ÷ D without separators")
        found |= with_y("gap_factor", factor, text, "1")
        factor = _where_clear(torch.minimum(separators, gap), floor, separators / gap)
        text = metric.derived("D with separators ÷ D with gaps in their place")
        found |= with_y("attention_factor", factor, text, "1")
    if acting:
        from_block = torch.stack(
            [torch.stack([distances[kind, b] for b in blocks]) for kind in hooks]
        )
        dims = ("hook", "from_block", "layer", "length")
        found |= with_y(
            "distance_from", from_block, metric.distance(HOOKED), metric.units, dims
        )
        retained = _where_clear(effect.abs(), floor, (from_block - none) / effect)
        found |= with_y("retained_from", retained, share, "1", dims)
    over = (
        coords(growing)
        | {"edit": list(inputs)}
        | ({"hook": list(hooks), "from_block": blocks} if acting else {})
    )
    counts = [
        [len(variant.sequence.plain(n)) for n in growing.lengths]
        for variant in inputs.values()
    ]
    over["tokens"] = (("edit", "length"), np.array(counts))
    since = [
        n - max((after for after in sequence.breaks if after < n), default=0)
        for n in growing.lengths
    ]
    over["place_in_group"] = ("length", np.array(since))
    facts = (
        {}
        if other < 0
        else {"substitute": growing.run.tokens_of(torch.tensor([[other]]))[0][0]}
    )
    return found, over, ways, facts


def _where_clear(size: Tensor, floor: Tensor, quotient: Tensor) -> Tensor:
    """A quotient; NaN where the size that it rests on may be rounding."""
    return torch.where(size > NOISE_FLOORS * floor[:, None], quotient, torch.nan)


def _blocks(growing: Growing, from_blocks: Iterable[int] | None) -> list[int]:
    """The first blocks of the hooks. Raises for blocks that do not exist or are given twice."""
    every = growing.layers[:-1]
    chosen = list(
        every[:: -(-len(every) // BLOCKS)] if from_blocks is None else from_blocks
    )
    if not chosen or not set(chosen) <= set(every) or len(set(chosen)) < len(chosen):
        raise InputError(
            f"from_blocks={chosen!r} are not different blocks of this model.",
            f"Use blocks 0 to {every[-1]}.",
        )
    return chosen


REFERENCES = 8  # reference sequences to draw when the caller gives none

FACTORIES: dict[str, Callable[..., Hook]] = {
    "mask": mask_tokens,
    "zero_pattern": zero_pattern,
    "zero_values": zero_values,
    "zero_residual": zero_residual,
}
# The hooks that ablate separators, given the positions of the separators and the blocks in which the hooks act.
MakeHooks = Callable[[Sequence[int], tuple[int, ...]], list[Hook]]


class Variant(NamedTuple):
    """One ablation: the sequence to run, and options of `Growing.pairs` such as position ids or hooks."""

    sequence: GrowingSequence
    options: Mapping[str, Any] = MappingProxyType({})


def edit(growing: Growing, kind: Edit, other: int, seed: int) -> Variant:
    """The ablation that edits the separators of the prompt itself; `other` is the token for "substitute"."""
    sequence = growing.sequence
    breaks = sequence.breaks
    removed = set(sequence.separator_places())
    if kind == "delete":  # all remaining tokens after the prefix are content
        left = tuple(
            token for place, token in enumerate(sequence.trunk) if place not in removed
        )
        return Variant(
            replace(
                sequence, content=left[len(sequence.prefix) :], breaks=(), separators=()
            )
        )
    if kind == "substitute":
        return Variant(sequence.separated([other] * len(breaks), breaks))
    if kind == "extra_digits":
        return Variant(
            sequence.separated([sequence.content[b - 1] for b in breaks], breaks)
        )
    if kind == "random_places":
        return Variant(sequence.scattered(f"places {seed}"))
    if sequence.ending is not None:
        raise InputError(
            "delete_keep_positions is not defined for a sequence with an ending: its position after a gap is unclear.",
            "Build the sequence without ending=, or leave 'delete_keep_positions' out of kinds=.",
        )
    require_position_ids(growing.run)
    without = sequence.separated((), ())
    longest = len(without.stem(growing.lengths[-1]))
    kept = [p for p in range(len(sequence.trunk)) if p not in removed][:longest]
    return Variant(without, {"positions": (*kept, kept[-1] + 1)})


def require_position_ids(run: Run) -> None:
    """Raise for a model that does not use the position ids of a forward pass, in which a gap would have no effect."""
    if not run.proof.once("given position ids", lambda: _uses_position_ids(run)):
        raise UnsoundModelError(
            f"{run.architecture} does not take position ids and a mask in a forward pass (models "
            "with ALiBi compute both themselves), so that delete_keep_positions cannot be measured.",
            "Leave 'delete_keep_positions' out of kinds=. The hook 'mask' in every block measures the same.",
        )


def _uses_position_ids(run: Run) -> bool:
    """Whether a token that the mask hides and a token that is missing, with a gap in the position ids, are the same."""
    ids = probe_ids(run.model)[:, :5]
    whole, kept = torch.arange(5), torch.tensor([0, 2, 3, 4])
    hidden = causal(5)
    hidden[2:, 1] = False  # no later token attends to token 1
    try:
        with without_ambient(run.model):
            masked = next_logits(run, ids, context=context(run, whole, whole, hidden))
            missing = next_logits(
                run, ids[:, kept], context=context(run, kept, kept, causal(4))
            )
    except SquashlensError:
        raise
    except (
        RuntimeError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # the model does not take them
        return False
    return agree(missing, masked, run.dtype)


def hook_separators(
    growing: Growing, kind: Ablation, from_block: int, make: MakeHooks
) -> Variant:
    """The unchanged sequence with hooks on its separators in all blocks from `from_block` on.

    Raises if a hook point has no effect on the logits.
    """
    blocks = tuple(growing.layers[from_block:-1])
    places = growing.sequence.separator_places(growing.lengths[-1])
    everywhere = make(places, blocks)
    sites = [
        site for hook in everywhere for site in hook.points(len(growing.layers) - 1)
    ]
    require_effective(growing.run.model, sites)

    def on_trunk(tokens: int) -> list[Hook]:
        inside = [
            p for p in places if p < tokens
        ]  # at later positions a branch has its own tokens
        return make(inside, blocks) if inside else []

    # In a pass on the cache, attention to the separators must still be changed; changed values and residual streams
    # are in the cache already.
    options = {
        "hooks": on_trunk,
        "branch_hooks": everywhere if kind in ("mask", "zero_pattern") else (),
    }
    return Variant(growing.sequence, options)


def maker(
    growing: Growing,
    kind: Ablation,
    source: Sequence[GrowingSequence] | None,
    seed: int,
) -> MakeHooks:
    """The function that makes the hooks of a kind. Of some kinds they insert streams of reference prompts, run here."""
    if kind in FACTORIES:
        return lambda places, blocks: [FACTORIES[kind](places, blocks)]
    rng = Random(f"reference {seed}")
    given = (
        [growing.sequence.unrelated(rng) for _ in range(REFERENCES)]
        if source is None
        else source
    )
    for sequence in given:
        require_same_vocabulary(growing.run.model, sequence)
    ids = checked_prompts(growing.run.model, stacked(given))
    chosen = ids if kind == "mean_residual" else drawn_from(ids, seed)
    inserted = mean_activations(growing.run.model, chosen, STREAMS, growing.layers[:-1])
    name = f"{kind} of {inserted.name}"
    return lambda places, blocks: replacing(
        name, STREAMS, inserted, blocks, tuple(places), tuple(places)
    )


def substitute_for(growing: Growing, token: Token | None, seed: int) -> int:
    """The token that replaces separators: the given one, or a random one that the sequence does not contain."""
    model, sequence = growing.run.model, growing.sequence
    if token is not None:
        return one_token(model, token)
    special = set() if model.tokenizer is None else set(model.tokenizer.all_special_ids)
    used = {*sequence.trunk, *sequence.suffix, *sequence.alphabet, *special}
    free = [t for t in range(int(model.cfg.d_vocab)) if t not in used]
    if not free:
        raise InputError(
            "The sequence contains every token of the vocabulary, so that no token is left as a substitute.",
            "Give substitute=.",
        )
    return Random(f"substitute {seed}").choice(free)
