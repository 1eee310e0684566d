"""What separators do to representational collapse, layer by layer: take them away in every way there is.

Input edits change the prompt; hooks leave it and act from block k on. All are compared at equal numbers of
*content* tokens, the pair always repeating the last content token.

    delete                  separators taken out of the ids
    delete_keep_positions   the same, a gap left in the position ids
    substitute              another token in their place (the control *another token as separator*)
    extra_digits            the content token before each in its place: as many tokens, none of them foreign
    random_places           at each length as many separators, at places drawn with `seed` for that length
    mask                    later tokens cannot attend to them: logits −∞, their own diagonal spared
    zero_pattern            weights to them become 0 and the others stay, so that rows sum to less
    zero_value              they are attended to and give nothing
    zero_resid              their residual streams are wiped where they enter a block
    mean_resid              the mean of reference prompts' streams stands in their place
    resample_resid          the streams of one reference prompt stand in their place

Two of these must agree with something else, and do: `delete` is the sequence without separators, `none`; `mask`
in every block is `delete_keep_positions`, since nobody ever sees the separators' keys.
"""

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from squashlens._typing import Ablation, Bridge, Distance, Edit, Kind, Passes, Scale, one_of
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure._ablations import Variant, acts, edited, hooked, separators_within, substitute_for
from squashlens.measure._pairs import NOISE, NOISE_FLOORS, Ruler, Runs, check_choices, with_y
from squashlens.model.registry import measured
from squashlens.model.streamed import written
from squashlens.model.tokens import display_tokens
from squashlens.prompts import Token, one_token
from squashlens.results import joined
from squashlens.sequences import Sequence


@measured
def separator_ablation(
    model: Bridge,
    sequence: Sequence,
    *,
    kinds: Collection[Kind] = get_args(Kind),
    lengths: Iterable[int] | None = None,
    from_blocks: Iterable[int] | None = None,
    separators: Iterable[Token] | None = None,
    every: Iterable[int] | None = None,
    substitute: Token | None = None,
    reference: Items[Sequence] | None = None,
    norm: Distance = "linf",
    scale: Scale = "absolute",
    seed: int = 0,
    replay: int = 4,
    passes: Passes = "auto",
    chunk: int | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """D of `collapse` with separators, without, and with each ablation of them, at equal content lengths.

    Args:
        sequence: with separators, from `squashlens.prompts`.
        kinds: which of the edits and hooks above; all if not given.
        from_blocks: the first blocks from which hooks act; all blocks in turn if not given.
        separators, every: try each of these separators, and each of these numbers of content tokens between them, in
            place of the sequence's own; for leading dimensions `separator` and `every`.
        substitute: the token for ``"substitute"``; one drawn with `seed` if not given.
        reference: sequences of the same form, for ``"mean_resid"`` and ``"resample_resid"``: what their streams have
            at the separators' positions is put there. Eight with other content, drawn with `seed`, if not given.
        seed: draws the random places, the substitute, the reference and which of it is put in place.
        replay: at how many lengths D is measured again with other passes, for the noise floor. With 0 there is no noise
            floor, and nothing tells an effect from rounding: `noise_floor` and `retained` are NaN.
        norm, scale, passes, chunk: as in `collapse`.

    Returns:
        Dataset. Over (edit, layer, length): `distance`, where `edit` is ``"none"`` (no separators),
        ``"separators"`` and the input edits asked for; with `_y` the same for y. Over (hook, from_block, layer,
        length): `distance_from`. `retained` and `retained_from` are
        (D_ablated − D_none) / (D_separators − D_none): 1 if the ablation did nothing, 0 if it did what
        deleting does; NaN unless the denominator is above three noise floors. `noise_floor` over (layer): the largest
        that `collapse` would give, over the lengths replayed, with separators and without.

    Refuses: a sequence without separators; hook points at which edits do nothing.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, separator=",", every=3)
    >>> ds = sl.separator_ablation(model, ones, kinds=["mask"], from_blocks=[6 - 1], progress=False)
    >>> below = ds["retained_from"].sel(hook="mask", from_block=5, layer=5)   # nothing has happened yet
    >>> bool(((below == 1) | below.isnull()).all())
    True
    """
    check_choices(norm=norm, scale=scale, passes=passes)
    for kind in kinds:
        one_of(kind, Kind, "kinds")

    def measured(one: Sequence) -> xr.Dataset:
        runs = Runs.start(
            model, one, lengths, "separator_ablation", passes=passes, chunk=chunk, progress=False,
            kinds=list(kinds), norm=norm, scale=scale, seed=seed, replay=replay,
            reference="drawn" if reference is None else [other.name for other in reference],
        )  # fmt: skip
        if not separators_within(runs):
            raise InputError("This sequence has no separators to ablate.", "Build it with separator=',' and every=3.")
        return _ablated(runs, Ruler(norm, scale), kinds, from_blocks, substitute, reference, seed, replay, progress)

    if separators is None and every is None:
        return measured(sequence)
    if reference is not None:
        raise InputError("reference= has separators at one sequence's places.", "Leave out separators= and every=.")
    return _by_design(model, sequence, separators, every, measured)


def _by_design(
    model: Bridge, sequence: Sequence, separators: Iterable[Token] | None, every: Iterable[int] | None,
    measured: Callable[[Sequence], xr.Dataset],
) -> xr.Dataset:  # fmt: skip
    """The ablation for each separator and each period, where given, side by side."""
    periods = None if every is None else list(every)
    if separators is None and len(set(sequence.separators)) != 1:
        raise InputError("every= is given, and no one separator.", "Give separators= too.")
    tokens = {"": sequence.separators[0]} if separators is None else {str(t): one_token(model, t) for t in separators}
    if not tokens or periods == []:
        raise InputError("There is nothing to try.", "Give at least one separator and one period.")

    def by_period(token: int) -> xr.Dataset:
        if periods is None:
            return measured(sequence.separated([token] * len(sequence.breaks), sequence.breaks))
        return joined({period: measured(sequence.every(period, token)) for period in periods}, "every")

    found = {name: by_period(token) for name, token in tokens.items()}
    return found[""] if separators is None else joined(found, "separator")


def _ablated(
    runs: Runs, ruler: Ruler, kinds: Collection[Kind], from_blocks: Iterable[int] | None, substitute: Token | None,
    reference: Items[Sequence] | None, seed: int, replay: int, progress: bool,
) -> xr.Dataset:  # fmt: skip
    """The ablations of one sequence's separators."""
    sequence, blocks = runs.sequence, _blocks(runs, from_blocks)
    other = substitute_for(runs, substitute, seed) if "substitute" in kinds else -1
    inputs = {"none": Variant(sequence.separated((), ())), "separators": Variant(sequence)}
    inputs |= {kind: edited(runs, kind, other, seed) for kind in get_args(Edit) if kind in kinds}
    hooks = acts(runs, [kind for kind in get_args(Ablation) if kind in kinds], reference, seed)
    acting = {(kind, block): hooked(runs, kind, block, act) for kind, act in hooks.items() for block in blocks}

    distances, ways, floors = {}, [], []
    for name, variant in bar({**inputs, **acting}.items(), desc="ablations", progress=progress):
        own = replace(runs, sequence=variant.sequence)
        with written("hooks inside attention are compared with none"):
            pairs = own.pairs(**variant.options)
            distances[name] = ruler.gap(pairs[0].values, pairs[1].values)
            if name in ("none", "separators") and replay:
                floors.append(own.noise(pairs, replay, ruler).floor)
        ways.append(pairs[0])
    unknown = torch.full((len(runs.layers) + 1,), torch.nan, dtype=torch.float64)
    floor = torch.stack(floors).amax(dim=0) if floors else unknown

    edits = torch.stack([distances[name] for name in inputs])
    none, separators = distances["none"], distances["separators"]
    found = with_y("distance", edits, f"{ruler.norm} distance of v and v*", ruler.units, ("edit", "layer", "length"))
    text = "what is left of the separators' effect"
    found |= with_y("retained", _retained(edits, none, separators, floor), text, "1", ("edit", "layer", "length"))
    found |= with_y("noise_floor", floor, NOISE, ruler.units, ("layer",))
    if acting:
        from_block = torch.stack([torch.stack([distances[kind, b] for b in blocks]) for kind in hooks])
        dims = ("hook", "from_block", "layer", "length")
        found |= with_y("distance_from", from_block, "the same with a hook from a block on", ruler.units, dims)
        found |= with_y("retained_from", _retained(from_block, none, separators, floor), text, "1", dims)
    coords = runs.coords() | {"edit": list(inputs)} | ({"hook": list(hooks), "from_block": blocks} if acting else {})
    counts = [[len(variant.sequence.plain(n)) for n in runs.lengths] for variant in inputs.values()]
    coords["tokens"] = (("edit", "length"), np.array(counts))
    facts = {} if other < 0 else {"substitute": display_tokens(runs.session.model, torch.tensor([[other]]))[0][0]}
    session = runs.took(*ways, **facts)
    return session.dataset("separator ablation", coords, found)


def _retained(ablated: Tensor, none: Tensor, separators: Tensor, floor: Tensor) -> Tensor:
    effect = separators - none
    clear = effect.abs() > NOISE_FLOORS * floor[:, None]
    return torch.where(clear, (ablated - none) / effect, torch.nan)


def _blocks(runs: Runs, from_blocks: Iterable[int] | None) -> list[int]:
    every = runs.layers[:-1]
    chosen = every if from_blocks is None else list(from_blocks)
    if not chosen or any(isinstance(b, bool) or b not in every for b in chosen):
        raise InputError(f"from_blocks={chosen!r} are not blocks of this model.", f"Use blocks 0 to {every[-1]}.")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"from_blocks={chosen!r} names a block twice.", "Give each block once.")
    return chosen
