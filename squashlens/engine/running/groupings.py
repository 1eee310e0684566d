"""Run the same prompts in other groupings into passes, which round otherwise.

Two runs of one shape round alike, on most hardware to the last bit, and so show no noise. Here a prompt is computed
whole, with fused attention where it can, and again in pieces whose keys and values are cached, with written patterns.
Mathematically all runs are equal, by causality.

Under hooks, with encodings that depend on the length of a pass, and in TransformerLens's own models a piece would be
another computation than the whole prompt. There the other runs write whole patterns, for one copy of the prompt and for
several.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.bars import bar
from squashlens.engine.anatomy import device_of, residual_sites
from squashlens.engine.memory import require_room
from squashlens.engine.running.forward import forward
from squashlens.engine.running.generate import empty_cache
from squashlens.engine.running.streamed import patterns_written
from squashlens.sequences import Ids

PIECES = (7, 64)  # tokens in a pass: few, so that other kernels run, and more
REASON = "a prompt is run again in another grouping"
COPIES = (1, 3)  # copies of a prompt in a batch, where it cannot be cut


def groupings(model: Bridge) -> list[str]:
    """How the prompts are computed in each run, in words for the provenance."""
    if empty_cache(model) is None:
        return ["whole", *(f"whole, {copies} side by side, with patterns" for copies in COPIES)]
    return ["whole", *(f"in pieces of {size} tokens" for size in PIECES)]


def grouped_streams(
    model: Bridge, rows: Sequence[Ids], places: Sequence[Sequence[int]], *, label: str = "groupings"
) -> Float[Tensor, "run layer prompt d"]:
    """v⁽⁰⁾ … v⁽ᴸ⁾ and y of prompts in every grouping, in float32 or wider, on the CPU.

    Each row of token ids is run once for each grouping, and read at its `places`: a place is the last token of the
    prompt that ends there, whose representation does not depend on what follows. The prompts of all rows follow one
    another.
    """
    sites, many = residual_sites(model), sum(map(len, places))
    size = (1 + len(PIECES)) * len(sites) * many * int(model.cfg.d_model) * 4
    require_room(size, torch.device("cpu"), "Keeping the representations of every run", "Use fewer prompts.")
    runs: list[list[Tensor]] = [[] for _ in groupings(model)]
    for ids, wanted in bar([*zip(rows, places, strict=True)], desc=label, unit="prompt"):
        tensor = torch.tensor([ids], device=device_of(model))
        for kept, streams in zip(runs, _in_each(model, tensor, sites), strict=True):
            kept.append(streams[:, list(wanted)].cpu())
    return _wide(torch.stack([torch.cat(kept, dim=1) for kept in runs]))


def continued_streams(
    model: Bridge, ids: Ids, continuations: Sequence[Ids]
) -> tuple[Float[Tensor, "run layer d"], list[Float[Tensor, "run token d"]]]:
    """A prompt's v⁽⁰⁾ … v⁽ᴸ⁾ and y, and y before each token of several continuations, in every grouping, on the CPU.

    A piece of the prompt is run once, and continuations follow on copies of its cache.
    """
    sites, last = residual_sites(model), len(ids) - 1
    if empty_cache(model) is None:
        rows = [(*ids, *tokens[:-1]) for tokens in continuations]
        places = [range(last, len(row)) for row in rows]
        found = grouped_streams(model, rows, places, label="answers")
        return found[:, :, 0], list(found[:, -1].split([len(tokens) for tokens in continuations], dim=1))
    prompt, device = torch.tensor([ids], device=device_of(model)), device_of(model)
    tails = list(dict.fromkeys(tokens[:-1] for tokens in continuations))  # none before all answers of one token
    parts = [torch.tensor([tail], dtype=torch.long, device=device) for tail in tails]
    whole = [_read(model, [torch.cat([prompt, part], dim=1)], sites, None)[:, last:] for part in parts]
    streams, answered = [whole[0][:, 0]], [[one[-1]] for one in whole]
    with patterns_written(REASON):
        for size in PIECES:
            cache = empty_cache(model)
            start = _read(model, prompt.split(size, dim=1), sites, cache)[:, -1]
            streams.append(start)
            for kept, part in zip(answered, parts, strict=True):
                after = [_read(model, [part], sites[-1:], copy.deepcopy(cache))[0]] if part.shape[1] else []
                kept.append(torch.cat([start[-1:], *after]))
    found = {tail: _wide(torch.stack(kept).cpu()) for tail, kept in zip(tails, answered, strict=True)}
    return _wide(torch.stack(streams).cpu()), [found[tokens[:-1]] for tokens in continuations]


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _in_each(model: Bridge, ids: Tensor, sites: Sequence[str]) -> Iterator[Tensor]:
    """The streams at all positions, of shape (layer, position, d), in each grouping."""
    yield _read(model, [ids], sites, None)
    with patterns_written(REASON):
        if empty_cache(model) is None:
            for copies in COPIES:
                yield _read(model, [ids.expand(copies, -1).clone()], sites, None)
        else:
            for size in PIECES:
                yield _read(model, ids.split(size, dim=1), sites, empty_cache(model))


def _read(model: Bridge, pieces: Sequence[Tensor], sites: Sequence[str], cache: object) -> Tensor:
    """The streams at all positions, with the pieces run one after another."""
    kept: dict[str, list[Tensor]] = {site: [] for site in sites}

    def keep(site: str, tensor: Tensor) -> None:
        kept[site].append(tensor[0].detach().clone())

    context = None if cache is None else {"use_cache": True, "past_key_values": cache}
    for piece in pieces:
        forward(model, piece, [(site, partial(keep, site)) for site in sites], context)
    there = kept[sites[-1]][0].device  # a model may be on several
    return torch.stack([torch.cat(parts).to(there) for parts in kept.values()])
