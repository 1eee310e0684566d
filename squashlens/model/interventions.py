"""Interventions on attention, values and streams, each a `Hook`: at which positions, in which heads, from which block.

Masks set logits, so that the weights of a row renormalise over what is left; no row is ever left empty, for a token
always sees itself. Positions count from the prompt's start; those that a prompt does not reach are not there. A pass
that continues a cache is refused where they would count from elsewhere (`squashlens.model.continued`). Query head h
reads key/value group h // (heads / groups).
"""

import math
from collections.abc import Callable, Iterable
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.arguments import validated
from squashlens.errors import InputError, RangeError
from squashlens.model.attention import shown
from squashlens.model.fingerprint import digest
from squashlens.model.hooks import Hook

Blocks = tuple[int, ...] | None
STREAMS = "blocks.{block}.hook_resid_pre"
SCORES, PATTERN, VALUES, OUTPUTS = (
    f"blocks.{{block}}.attn.hook_{name}" for name in ("attn_scores", "pattern", "v", "z")
)


@validated
def mask_tokens(positions: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Keep later tokens from attending to those at `positions`: their attention logits become −∞."""
    places = positions_of(positions, "mask_tokens")
    return _masked(f"mask_tokens{listed(places)}", lambda query, key: _among(key, places), blocks, heads, True)


@validated
def mask_attention(
    queries: Iterable[int], keys: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None
) -> Hook:
    """Keep the tokens at `queries` from attending to those at `keys`, but for themselves."""
    asking, asked = positions_of(queries, "mask_attention"), positions_of(keys, "mask_attention")
    name = f"mask_attention{listed(asking)}→{listed(asked)}"
    return _masked(name, lambda query, key: _among(query, asking) & _among(key, asked), blocks, heads, True)


@validated
def sliding_window(window: int, blocks: Blocks = None, *, sink: int = 0, heads: Iterable[int] | None = None) -> Hook:
    """Let each token see the last `window` ones, itself included, and the first `sink`.

    Query j sees key i ≤ j where ``j − i < window`` or ``i < sink``. The query counts in the window, as in Hugging
    Face's models; a native window that is narrower stays. With a window as long as the prompt no bit changes.
    """
    positive(window, "sliding_window: window", "a number of tokens")
    positive(sink, "sliding_window: sink", "a number of tokens", or_zero=True)
    name = f"sliding_window({window}{f', sink={sink}' if sink else ''})"
    return _masked(name, lambda query, key: (query - key >= window) & (key >= sink), blocks, heads, sink > 0)


@validated
def attention_temperature(temperature: float, blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Divide what enters the softmax by `temperature`: each weight becomes ``α^(1/T)``, over its row's sum."""
    if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
        raise InputError(f"attention_temperature: {temperature!r} is not a temperature.", "Give a positive number.")

    def divided(scores: Tensor) -> Tensor:
        colder = scores / temperature
        if not bool((colder.isfinite() | ~shown(scores)).all()):
            raise RangeError(
                f"attention_temperature: logits ÷ {temperature!r} are beyond the range of {scores.dtype}.",
                "Give a higher temperature.",
            )
        return colder

    return _rescored(f"attention_temperature({temperature!r})", divided, blocks, heads)


@validated
def uniform_attention(blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Let each token attend evenly to all it may see: the path bound's null, made real."""
    return _rescored("uniform_attention", torch.zeros_like, blocks, heads)


@validated
def scale_attention(
    factor: float, positions: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None
) -> Hook:
    """Multiply the weights with which later tokens attend to those at `positions` by `factor`; rows renormalise.

    ``α'_ji = c_ji α_ji / Σ_k c_jk α_jk``, with c_ji = factor where i is in `positions` and i < j, else 1. It is done by
    adding ln(factor) to the logits, so that rows sum to what they did: a factor of 1 changes no bit, one of 0 is
    `mask_tokens`, and factors that follow each other multiply. A token's weight to itself changes by the renormalising
    alone. `zero_pattern` takes weights away without it.
    """
    if isinstance(factor, bool) or not (isinstance(factor, Real) and 0 <= factor < float("inf")):
        raise InputError(f"scale_attention: factor={factor!r} is not a factor.", "Give a number of at least 0.")
    places, added = positions_of(positions, "scale_attention"), math.log(factor) if factor else -math.inf

    def change(scores: Tensor) -> Tensor:
        query, key = _grid(scores)
        return torch.where(_among(key, places) & (query > key) & shown(scores), scores + added, scores)

    name = f"scale_attention({float(factor)!r} at {listed(places)})"
    return _in_heads(name, SCORES, change, blocks, heads, positional=True)


@validated
def zero_pattern(positions: Iterable[int], blocks: Blocks = None, *, heads: Iterable[int] | None = None) -> Hook:
    """Set the weights with which later tokens attend to `positions` to 0; the others stay, so that rows sum to less."""
    places = positions_of(positions, "zero_pattern")

    def change(pattern: Tensor) -> Tensor:
        query, key = _grid(pattern)
        return pattern.masked_fill(_among(key, places) & (query > key), 0.0)

    return _in_heads(f"zero_pattern{listed(places)}", PATTERN, change, blocks, heads, positional=True)


@validated
def zero_values(positions: Iterable[int], blocks: Blocks = None, *, groups: Iterable[int] | None = None) -> Hook:
    """Let the tokens at `positions` be attended to and give nothing: their value vectors, biases included, become 0.

    Attention weights stay as they are. With `groups`, only in those key/value heads.
    """
    places = positions_of(positions, "zero_values")

    def change(values: Tensor) -> Tensor:
        place = torch.arange(values.shape[1], device=values.device)
        return values.masked_fill(_among(place, places)[:, None, None], 0.0)

    return _in_heads(f"zero_values{listed(places)}", VALUES, change, blocks, groups, dim=2, positional=True)


@validated
def zero_heads(heads: Iterable[int], blocks: Blocks = None, *, positions: Iterable[int] | None = None) -> Hook:
    """Take the output of attention heads away: ``z_jh = 0`` for h in `heads`, at `positions` (all if not given).

    z is what a head mixes from values, before the output matrix (TransformerLens's ``hook_z``); the biases of values go
    with it, that of the output stays. `mean_heads` leaves what a head says about every prompt.
    """
    chosen = heads_of(heads, "zero_heads")
    places = None if positions is None else positions_of(positions, "zero_heads")

    def change(outputs: Tensor) -> Tensor:
        if places is None:
            return torch.zeros_like(outputs)
        place = torch.arange(outputs.shape[1], device=outputs.device)
        return outputs.masked_fill(_among(place, places)[:, None, None], 0.0)

    name = f"zero_heads{listed(chosen)}{'' if places is None else f' at {listed(places)}'}"
    return Hook(name, OUTPUTS, in_heads(change, chosen, dim=2), blocks, positional=places is not None)


@validated
def zero_residual(positions: Iterable[int], blocks: Blocks = None) -> Hook:
    """Wipe the residual stream of the tokens at `positions` where it enters each of `blocks`: it becomes 0."""
    places = positions_of(positions, "zero_residual")

    def edit(stream: Tensor) -> Tensor:
        place = torch.arange(stream.shape[1], device=stream.device)
        return stream.masked_fill(_among(place, places)[:, None], 0.0)

    return Hook(f"zero_residual{listed(places)}", STREAMS, edit, blocks, positional=True)


def _masked(
    name: str, hidden: Callable[[Tensor, Tensor], Tensor], blocks: Blocks, heads: Iterable[int] | None, positional: bool
) -> Hook:
    """Logits to −∞ where `hidden` (of query and key position) says so and the key is an earlier token."""

    def change(scores: Tensor) -> Tensor:
        query, key = _grid(scores)
        return scores.masked_fill(hidden(query, key) & (query > key), -torch.inf)

    return _in_heads(name, SCORES, change, blocks, heads, positional=positional)


def _rescored(name: str, to: Callable[[Tensor], Tensor], blocks: Blocks, heads: Iterable[int] | None) -> Hook:
    """Other logits for the keys that are seen; what is hidden stays so."""
    return _in_heads(name, SCORES, lambda scores: torch.where(shown(scores), to(scores), scores), blocks, heads)


def _in_heads(
    name: str, site: str, change: Callable[[Tensor], Tensor], blocks: Blocks, heads: Iterable[int] | None,
    dim: int = 1, positional: bool = False,
) -> Hook:  # fmt: skip
    """A hook that changes the chosen heads, which are axis `dim`, and leaves the others as they were."""
    if heads is None:
        return Hook(name, site, change, blocks, positional)
    chosen = _counted(heads, "", "heads", "counted from 0; leave it out for all")
    name += f" in {'groups' if site == VALUES else 'heads'} {listed(chosen)}"
    return Hook(name, site, in_heads(change, chosen, dim), blocks, positional)


def in_heads(change: Callable[[Tensor], Tensor], chosen: tuple[int, ...], dim: int) -> Callable[[Tensor], Tensor]:
    """An edit of four axes that changes the `chosen` entries of axis `dim`, the heads, and leaves the others."""

    def edit(before: Tensor) -> Tensor:
        if before.ndim != 4:
            raise InputError(
                f"This model shows its heads in one row, as a tensor of shape {tuple(before.shape)}.",
                "Interventions on single heads need them apart.",
            )
        outside = [h for h in chosen if h >= before.shape[dim]]
        if outside:
            raise InputError(f"There is no head {outside[0]}.", f"Here are heads 0 to {before.shape[dim] - 1}.")
        ours = _among(torch.arange(before.shape[dim], device=before.device), chosen)
        return torch.where(ours.view(-1, *[1] * (before.ndim - dim - 1)), change(before), before)

    return edit


def _grid(scores: Float[Tensor, "prompt head query key"]) -> tuple[Tensor, Tensor]:
    """Positions of queries, as a column, and of keys, as a row."""
    queries, keys = scores.shape[-2:]
    place = torch.arange(keys, device=scores.device)
    return place[keys - queries :, None], place


def _among(place: Tensor, places: tuple[int, ...]) -> Tensor:
    return torch.isin(place, torch.tensor(places, device=place.device))


def positions_of(positions: Iterable[int], factory: str) -> tuple[int, ...]:
    """Positions as given to a factory, checked."""
    return _counted(positions, f"{factory}: ", "positions", "counted from 0 at the prompt's start")


def heads_of(heads: Iterable[int], factory: str) -> tuple[int, ...]:
    """Heads as given to a factory, checked, each once."""
    return tuple(dict.fromkeys(_counted(heads, f"{factory}: ", "heads", "counted from 0")))


def _counted(numbers: Iterable[int], where: str, what: str, how: str) -> tuple[int, ...]:
    """At least one whole number from 0 on."""
    chosen = tuple(numbers)
    if not chosen or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in chosen):
        raise InputError(f"{where}{chosen!r} are not {what}.", f"Give at least one, {how}.")
    return chosen


def listed(places: tuple[int, ...]) -> str:
    """Positions as they stand in a hook's name. Of many, the ends, and a digest that other positions do not have."""
    if len(places) <= 6:
        return f"({', '.join(map(str, places))})"
    return f"({places[0]} … {places[-1]}, {len(places)} in all, {digest(places)})"
