"""What separators do to representational collapse, layer by layer: take them away in every way there is.

Input edits change the prompt; hooks leave it and act from block k on. All are compared at equal numbers of
*content* tokens, the pair always repeating the last content token.

    delete                  separators taken out of the ids
    delete_keep_positions   the same, a gap left in the position ids
    substitute              another token in their place (the control *another token as separator*)
    extra_digits            the content token before each in its place: as many tokens, none of them foreign
    random_places           as many separators, at places drawn with `seed`
    mask                    later tokens cannot attend to them: logits −∞, their own diagonal spared
    zero_value              they are attended to and give nothing

Two of these must agree with something else, and do: `delete` is the sequence without separators, `none`; `mask`
in every block is `delete_keep_positions`, since nobody ever sees the separators' keys.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Ablation, Bridge, Distance, Edit, Kind, Passes, Scale, one_of
from squashlens.errors import InputError
from squashlens.measure._pairs import Ruler, Runs, check_choices, with_y
from squashlens.model.hooks import Hook
from squashlens.model.interventions import mask_tokens, zero_values
from squashlens.model.live import require_live
from squashlens.model.streamed import written
from squashlens.model.tokens import display_tokens
from squashlens.prompts import Token, one_token
from squashlens.sequences import Sequence

NOISE_FLOORS = 3  # a difference smaller than this many noise floors is no denominator


def separator_ablation(
    model: Bridge,
    sequence: Sequence,
    *,
    kinds: Collection[Kind] = get_args(Kind),
    lengths: Iterable[int] | None = None,
    from_blocks: Iterable[int] | None = None,
    substitute: Token | None = None,
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
        substitute: the token for ``"substitute"``; one drawn with `seed` if not given.
        seed: draws the random places and the substitute.
        replay: lengths at which D is measured again with a pass for each prompt, for the noise floor.
        norm, scale, passes, chunk: as in `collapse`.

    Returns:
        Dataset. Over (edit, layer, length): `distance`, where `edit` is ``"none"`` (no separators),
        ``"separators"`` and the input edits asked for; with `_y` the same for y. Over (hook, from_block, layer,
        length): `distance_from`. `retained` and `retained_from` are
        (D_ablated − D_none) / (D_separators − D_none): 1 if the ablation did nothing, 0 if it did what
        deleting does; NaN where the denominator is under three noise floors. `noise_floor` over (layer).

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
    ruler = Ruler(norm, scale)
    for kind in kinds:
        one_of(kind, Kind, "kinds")
    runs = Runs.start(
        model, sequence, lengths, "separator_ablation", passes=passes, chunk=chunk, progress=False,
        kinds=list(kinds), norm=norm, scale=scale, seed=seed, replay=replay,
    )  # fmt: skip
    if not sequence.breaks:
        raise InputError("This sequence has no separators to ablate.", "Build it with separator=',' and every=3.")
    blocks = _blocks(runs, from_blocks)
    other = _substitute(runs, substitute, seed) if "substitute" in kinds else -1
    inputs = {"none": _Variant(sequence.separated((), ())), "separators": _Variant(sequence)}
    inputs |= {kind: _edited(runs, kind, other, seed) for kind in get_args(Edit) if kind in kinds}
    hooks = [kind for kind in get_args(Ablation) if kind in kinds]
    acting = {(kind, block): _hooked(runs, kind, block) for kind in hooks for block in blocks}

    distances, ways, floors = {}, [], []
    for name, variant in tqdm({**inputs, **acting}.items(), desc="ablations", delay=1, disable=not progress):
        own = replace(runs, sequence=variant.sequence)
        with written("hooks inside attention are compared with none"):
            pairs = own.pairs(**variant.options)
            distances[name] = ruler.gap(pairs[0].values, pairs[1].values)
            if name in ("none", "separators") and replay:
                floors.append(own.noise(pairs, replay, ruler).values.amax(dim=-1))
        ways.append(pairs[0])
    floor = torch.stack(floors).amax(dim=0) if floors else torch.zeros(len(runs.layers) + 1, dtype=torch.float64)

    edits = torch.stack([distances[name] for name in inputs])
    none, separators = distances["none"], distances["separators"]
    found = with_y("distance", edits, f"{norm} distance of v and v*", ruler.units, ("edit", "layer", "length"))
    text = "what is left of the separators' effect"
    found |= with_y("retained", _retained(edits, none, separators, floor), text, "1", ("edit", "layer", "length"))
    found |= with_y("noise_floor", floor, "difference of D between shared and separate passes", ruler.units, ("layer",))
    if acting:
        from_block = torch.stack([torch.stack([distances[kind, b] for b in blocks]) for kind in hooks])
        dims = ("hook", "from_block", "layer", "length")
        found |= with_y("distance_from", from_block, "the same with a hook from a block on", ruler.units, dims)
        found |= with_y("retained_from", _retained(from_block, none, separators, floor), text, "1", dims)
    coords = runs.coords() | {"edit": list(inputs)} | ({"hook": hooks, "from_block": blocks} if acting else {})
    counts = [[len(variant.sequence.plain(n)) for n in runs.lengths] for variant in inputs.values()]
    coords["tokens"] = (("edit", "length"), np.array(counts))
    facts = {} if other < 0 else {"substitute": display_tokens(runs.session.model, torch.tensor([[other]]))[0][0]}
    session = runs.took(*ways, **facts)
    return session.dataset("separator ablation", coords, found)


@dataclass(frozen=True)
class _Variant:
    """One way of taking separators away: another sequence, other positions, or hooks."""

    sequence: Sequence
    options: dict[str, Any] = field(default_factory=dict)


def _edited(runs: Runs, kind: Edit, other: int, seed: int) -> _Variant:
    """The sequence with its separators edited in the prompt."""
    sequence = runs.sequence
    breaks = sequence.breaks
    if kind == "delete":
        return _Variant(_deleted(sequence))
    if kind == "substitute":
        return _Variant(sequence.separated([other] * len(breaks), breaks))
    if kind == "extra_digits":
        return _Variant(sequence.separated([sequence.content[b - 1] for b in breaks], breaks))
    if kind == "random_places":
        places = sorted(Random(f"places {seed}").sample(range(1, len(sequence) + 1), len(breaks)))
        return _Variant(sequence.separated(sequence.separators, places))
    if sequence.ending is not None:
        raise InputError(
            "delete_keep_positions does not know where an `ending` stands behind a gap.", "Build it without ending=."
        )
    without = sequence.separated((), ())
    longest = len(without.stem(runs.lengths[-1]))
    kept = [p for p in range(len(sequence.trunk)) if p not in set(sequence.separator_places())][:longest]
    return _Variant(without, {"positions": (*kept, kept[-1] + 1)})


def _deleted(sequence: Sequence) -> Sequence:
    """What is left of the ids when the separators are struck out of them: all of it content."""
    gone = set(sequence.separator_places())
    left = [token for place, token in enumerate(sequence.trunk) if place not in gone]
    return replace(sequence, content=tuple(left[len(sequence.prefix) :]), breaks=(), separators=())


def _hooked(runs: Runs, kind: Ablation, from_block: int) -> _Variant:
    """The sequence as it is, with a hook on its separators from a block on; the hook is proved live."""
    blocks = tuple(runs.layers[from_block:-1])
    factory = mask_tokens if kind == "mask" else zero_values
    places = runs.sequence.separator_places()
    everywhere = factory(places, blocks)
    require_live(runs.session.model, everywhere.points(len(runs.layers) - 1), kind)

    def on_trunk(tokens: int) -> list[Hook]:
        inside = [p for p in places if p < tokens]  # behind the trunk, a branch has tokens of its own there
        return [factory(inside, blocks)] if inside else []

    # On a cache, keys are still to be masked; zeroed values stand in it already.
    return _Variant(runs.sequence, {"hooks": on_trunk, "branch_hooks": (everywhere,) if kind == "mask" else ()})


def _retained(ablated: Tensor, none: Tensor, separators: Tensor, floor: Tensor) -> Tensor:
    effect = separators - none
    clear = effect.abs() > NOISE_FLOORS * floor[:, None]
    return torch.where(clear, (ablated - none) / effect, torch.nan)


def _blocks(runs: Runs, from_blocks: Iterable[int] | None) -> list[int]:
    every = runs.layers[:-1]
    chosen = every if from_blocks is None else list(from_blocks)
    if not chosen or any(isinstance(b, bool) or b not in every for b in chosen):
        raise InputError(f"from_blocks={chosen!r} are not blocks of this model.", f"Use blocks 0 to {every[-1]}.")
    return chosen


def _substitute(runs: Runs, token: Token | None, seed: int) -> int:
    """The token that stands in for separators: as given, or any that has no part in the sequence."""
    model, sequence = runs.session.model, runs.sequence
    if token is not None:
        return one_token(model, token)
    special = set() if model.tokenizer is None else set(model.tokenizer.all_special_ids)
    used = {*sequence.trunk, *sequence.suffix, *sequence.alphabet, *special}
    free = [t for t in range(int(model.cfg.d_vocab)) if t not in used]
    if not free:
        raise InputError("Every token of the vocabulary has a part in the sequence.", "Give substitute=.")
    return Random(f"substitute {seed}").choice(free)
