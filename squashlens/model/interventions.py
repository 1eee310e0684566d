"""Interventions on attention, values and streams, each a `Hook`: at which positions, in which heads, from which block.

Masks set logits, so that the weights of a row renormalise over what is left; no row is ever left empty, for a token
always sees itself. Positions count from the prompt's start (in a pass that continues a cache, from the cache's); those
that a prompt does not reach are not there. Query head h reads key/value group h // (heads / groups).
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens.errors import InputError
from squashlens.model.hooks import Hook

Blocks = tuple[int, ...] | None
SCORES, PATTERN, VALUES = (f"blocks.{{block}}.attn.hook_{name}" for name in ("attn_scores", "pattern", "v"))


def mask_tokens(positions: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Keep later tokens from attending to those at `positions`: their attention logits become −∞."""
    places = _places(positions, "mask_tokens")
    return _masked(f"mask_tokens{_shown(places)}", lambda query, key: _among(key, places), blocks, heads)


def mask_attention(
    queries: Iterable[int], keys: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None
) -> Hook:
    """Keep the tokens at `queries` from attending to those at `keys`, but for themselves."""
    asking, asked = _places(queries, "mask_attention"), _places(keys, "mask_attention")
    name = f"mask_attention{_shown(asking)}→{_shown(asked)}"
    return _masked(name, lambda query, key: _among(query, asking) & _among(key, asked), blocks, heads)


def sliding_window(window: int, blocks: Blocks = None, *, sink: int = 0, heads: Iterable[int] | None = None) -> Hook:
    """Let each token see the last `window` ones, itself included, and the first `sink`.

    Query j sees key i ≤ j where ``j − i < window`` or ``i < sink``.
    The query counts in the window, as in Hugging Face's models; a native window that is narrower stays. With a window
    as long as the prompt this is no hook at all, to the last bit.
    """
    _whole(window, "sliding_window", "window", 1)
    _whole(sink, "sliding_window", "sink", 0)
    name = f"sliding_window({window}{f', sink={sink}' if sink else ''})"
    return _masked(name, lambda query, key: (query - key >= window) & (key >= sink), blocks, heads)


def attention_temperature(temperature: float, blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Divide what enters the softmax by `temperature`: each weight becomes ``α^(1/T)``, over its row's sum."""
    if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
        raise InputError(f"attention_temperature: {temperature!r} is not a temperature.", "Give a positive number.")
    chosen = _heads(heads)

    def edit(scores: Tensor) -> Tensor:
        return _in_heads(scores, torch.where(_seen(scores), scores / temperature, scores), chosen, dim=1)

    return Hook(f"attention_temperature({temperature:g})", SCORES, edit, blocks)


def uniform_attention(blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Let each token attend evenly to all it may see: the path bound's null, made real."""
    chosen = _heads(heads)

    def edit(scores: Tensor) -> Tensor:
        return _in_heads(scores, torch.where(_seen(scores), torch.zeros_like(scores), scores), chosen, dim=1)

    return Hook("uniform_attention", SCORES, edit, blocks)


def zero_pattern(positions: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Set the weights with which later tokens attend to `positions` to 0; the others stay, so that rows sum to less."""
    places, chosen = _places(positions, "zero_pattern"), _heads(heads)

    def edit(pattern: Tensor) -> Tensor:
        query, key = _grid(pattern)
        return _in_heads(pattern, pattern.masked_fill(_among(key, places) & (query > key), 0.0), chosen, dim=1)

    return Hook(f"zero_pattern{_shown(places)}", PATTERN, edit, blocks)


def zero_values(positions: Iterable[int], blocks: Blocks = None, *, groups: Iterable[int] | None = None) -> Hook:
    """Let the tokens at `positions` be attended to and give nothing: their value vectors, biases included, become 0.

    Attention weights stay as they are. With `groups`, only in those key/value heads.
    """
    places, chosen = _places(positions, "zero_values"), _heads(groups)

    def edit(values: Tensor) -> Tensor:
        place = torch.arange(values.shape[1], device=values.device)
        return _in_heads(values, values.masked_fill(_among(place, places)[:, None, None], 0.0), chosen, dim=2)

    return Hook(f"zero_values{_shown(places)}", VALUES, edit, blocks)


def zero_residual(positions: Iterable[int], blocks: Blocks = None) -> Hook:
    """Wipe the residual stream of the tokens at `positions` where it enters each of `blocks`: it becomes 0."""
    places = _places(positions, "zero_residual")

    def edit(stream: Tensor) -> Tensor:
        place = torch.arange(stream.shape[1], device=stream.device)
        return stream.masked_fill(_among(place, places)[:, None], 0.0)

    return Hook(f"zero_residual{_shown(places)}", "blocks.{block}.hook_resid_pre", edit, blocks)


def _masked(name: str, hidden: Callable[[Tensor, Tensor], Tensor], blocks: Blocks, heads: Iterable[int] | None) -> Hook:
    """Logits to −∞ where `hidden` (of query and key position) says so and the key is an earlier token."""
    chosen = _heads(heads)

    def edit(scores: Tensor) -> Tensor:
        query, key = _grid(scores)
        return _in_heads(scores, scores.masked_fill(hidden(query, key) & (query > key), -torch.inf), chosen, dim=1)

    return Hook(name, SCORES, edit, blocks)


def _grid(scores: Float[Tensor, "prompt head query key"]) -> tuple[Tensor, Tensor]:
    """Positions of queries, as a column, and of keys, as a row."""
    queries, keys = scores.shape[-2:]
    place = torch.arange(keys, device=scores.device)
    return place[keys - queries :, None], place


def _seen(scores: Float[Tensor, "prompt head query key"]) -> Bool[Tensor, "prompt head query key"]:
    """Which keys are seen: masks, of the model and of hooks before, are the type's lowest number or −∞."""
    return scores > torch.finfo(scores.dtype).min / 2


def _among(place: Tensor, places: tuple[int, ...]) -> Tensor:
    return torch.isin(place, torch.tensor(places, device=place.device))


def _in_heads(before: Tensor, after: Tensor, heads: tuple[int, ...] | None, dim: int) -> Tensor:
    """The edit in the chosen heads, what was there in the others."""
    if heads is None:
        return after
    outside = [h for h in heads if h >= before.shape[dim]]
    if outside:
        raise InputError(f"There is no head {outside[0]}.", f"Here are heads 0 to {before.shape[dim] - 1}.")
    chosen = _among(torch.arange(before.shape[dim], device=before.device), heads)
    return torch.where(chosen.view(-1, *[1] * (before.ndim - dim - 1)), after, before)


def _heads(heads: Iterable[int] | None) -> tuple[int, ...] | None:
    if heads is None:
        return None
    chosen = tuple(heads)
    if not chosen or any(isinstance(h, bool) or not isinstance(h, int) or h < 0 for h in chosen):
        raise InputError(f"{chosen!r} are not heads.", "Give at least one, counted from 0; leave it out for all.")
    return chosen


def _whole(number: object, factory: str, argument: str, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InputError(f"{factory}: {argument}={number!r} is not a number of tokens.", f"Give {least} or more.")


def _places(positions: Iterable[int], factory: str) -> tuple[int, ...]:
    places = tuple(positions)
    if not places or any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in places):
        raise InputError(
            f"{factory}: {places!r} are not positions.", "Give at least one, counted from 0 at the prompt's start."
        )
    return places


def _shown(places: tuple[int, ...]) -> str:
    inner = ", ".join(map(str, places)) if len(places) <= 6 else f"{places[0]} … {places[-1]}, {len(places)} in all"
    return f"({inner})"
