"""Interventions on attention, values and the residual stream, each made as a `Hook`; and a model without its windows.

Masks change attention logits, so the weights of a row renormalize over the remaining keys. No row becomes empty,
because a token always attends to itself. In every equation a learned sink (gpt-oss) is one more key, without a value:
the weights of a row, the sink's included, sum to 1. Positions are counted from the first token of the prompt. Those
beyond its end are ignored; if they all are, in every pass of a context, that is an error. A forward pass that continues
a key/value cache raises an error under hooks that count positions. Query head h
reads key/value group h // (heads / kv_heads).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.model.anatomy import text_config, windows
from squashlens.model.digests import digest
from squashlens.model.hooking.hook import Hook
from squashlens.model.proof import require_bridge, without_passes
from squashlens.model.text.context import display_tokens
from squashlens.model.text.tokens import Prompts, require_tokenizer, tokenize
from squashlens.records.sentences import escape
from squashlens.theory.attention import unmasked

Blocks = tuple[int, ...] | None
Heads = Iterable[int] | None
Positional = bool | tuple[int, ...]  # as in `Hook`
Edit = Callable[..., Tensor]  # of a tensor at a hook point
# Rows of attention logits and the positions of their queries to new rows.
Rescale = Callable[[Tensor, Tensor], Tensor]
# Positions of queries, as a column, and of keys, as a row, to what is hidden.
Hidden = Callable[[Tensor, Tensor], Bool[Tensor, "#query key"]]
STREAMS = "blocks.{block}.hook_resid_pre"
SCORES = "blocks.{block}.attn.hook_attn_scores"
PATTERN = "blocks.{block}.attn.hook_pattern"
VALUES = "blocks.{block}.attn.hook_v"
OUTPUTS = "blocks.{block}.attn.hook_z"
SUBLAYERS = {
    "attention": "blocks.{block}.hook_attn_out",
    "mlp": "blocks.{block}.hook_mlp_out",
}
EVERYTHING = 2**30  # more tokens than any prompt has


@validated
def mask_tokens(
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Heads = None,
) -> Hook:
    """Mask the tokens at `positions` for all later tokens, by setting their attention logits to −∞.

    Args:
        positions: positions of the masked tokens, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.

    >>> import squashlens as sl
    >>> sl.hooks.mask_tokens([2, 3], blocks=(0,))
    mask_tokens(2, 3)
    """
    masked = positions_of(positions, "mask_tokens")

    def hidden(query: Tensor, key: Tensor) -> Tensor:
        return among(key, masked)

    name = f"mask_tokens{listed(masked)}"
    return _hiding(name, SCORES, hidden, blocks, heads, masked)


@validated
def mask_attention(
    queries: Iterable[int],
    keys: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Heads = None,
) -> Hook:
    """Mask attention from the query positions `queries` to the key positions `keys`. A token still attends to itself.

    Args:
        queries, keys: query and key positions, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.
    """
    rows = positions_of(queries, "mask_attention")
    columns = positions_of(keys, "mask_attention")

    def hidden(query: Tensor, key: Tensor) -> Tensor:
        return among(query, rows) & among(key, columns)

    name = f"mask_attention{listed(rows)}→{listed(columns)}"
    return _hiding(name, SCORES, hidden, blocks, heads, rows)


@validated
def sliding_window(
    window: int,
    blocks: Blocks = None,
    *,
    sink: int = 0,
    heads: Heads = None,
) -> Hook:
    """Restrict attention to the last `window` tokens, the query included, and to the first `sink` tokens.

    Query j attends to key i ≤ j where ``j − i < window`` or ``i < sink``. If the model already has a narrower window,
    that one remains in force. A window as long as the prompt changes no bit.

    Args:
        window: number of tokens in the window, at least 1, as Hugging Face counts it.
        blocks, heads: blocks and query heads to act in; all by default.
        sink: number of first tokens that every query may attend to.
    """
    positive(window, "sliding_window: window", "a number of tokens")
    positive(sink, "sliding_window: sink", "a number of tokens", or_zero=True)

    def hidden(query: Tensor, key: Tensor) -> Tensor:
        return (query - key >= window) & (key >= sink)

    with_sink = f", sink={sink}" if sink else ""
    name = f"sliding_window({window}{with_sink})"
    return _hiding(name, SCORES, hidden, blocks, heads, sink > 0)


@validated
def uniform_attention(blocks: Blocks = None, *, heads: Heads = None) -> Hook:
    """Make all attention weights of a row equal: 1 over the number of keys that the query may attend to.

    A learned sink counts as one of these keys. Under this hook the model has the attention pattern that `path_bound`
    assumes with ``attention="uniform"``.

    Args:
        blocks, heads: blocks and query heads to act in; all by default.
    """

    def change(rows: Tensor, queries: Tensor) -> Tensor:
        return torch.zeros_like(rows)

    return rescored("uniform_attention", change, blocks, heads)


@validated
def scale_attention(
    factor: float,
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Heads = None,
) -> Hook:
    """Multiply the weights with which later tokens attend to `positions` by `factor`, and renormalize the rows.

    ``α'_ji = c_ji α_ji / Σ_k c_jk α_jk``, with c_ji = factor where i is in `positions` and i < j, and 1 elsewhere:
    ln(factor) is added to the logits. A factor of 1 changes no bit, a factor of 0 equals `mask_tokens`, and the factors
    of several such hooks multiply. `zero_attention` removes weights without renormalization.

    Args:
        factor: at least 0.
        positions: key positions, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.
    """
    if factor < 0:
        raise InputError(
            f"scale_attention: factor={factor!r} is not a factor.",
            "Give a number of at least 0.",
        )
    scaled = positions_of(positions, "scale_attention")
    added = math.log(factor) if factor else -math.inf

    def change(rows: Tensor, queries: Tensor) -> Tensor:
        key = torch.arange(rows.shape[-1], device=rows.device)
        return torch.where(among(key, scaled) & (queries > key), rows + added, rows)

    name = f"scale_attention({float(factor)!r} at {listed(scaled)})"
    return rescored(name, change, blocks, heads, scaled)


@validated
def zero_attention(
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Heads = None,
) -> Hook:
    """Set the weights with which later tokens attend to `positions` to 0, without renormalization: rows sum to less
    than 1.

    Args:
        positions: key positions, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.
    """
    zeroed = positions_of(positions, "zero_attention")

    def hidden(query: Tensor, key: Tensor) -> Tensor:
        return among(key, zeroed)

    name = f"zero_attention{listed(zeroed)}"
    return _hiding(name, PATTERN, hidden, blocks, heads, zeroed)


@validated
def zero_values(
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    kv_heads: Iterable[int] | None = None,
) -> Hook:
    """Set the value vectors of the tokens at `positions` to 0, biases included. Attention weights do not change.

    Args:
        positions: positions counted from 0.
        blocks, kv_heads: blocks and key/value heads to act in; all by default.
    """
    return _zeroing("zero_values", VALUES, blocks, positions, kv_heads)


@validated
def zero_heads(
    heads: Iterable[int],
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
) -> Hook:
    """Set the output of attention heads to 0: ``z_jh = 0`` for each h in `heads`, at `positions`.

    z is a head's weighted sum of values, before the output matrix (TransformerLens's ``hook_z``). It includes the
    biases of the values; the bias of the output matrix remains.

    Args:
        heads: query heads, counted from 0.
        blocks: blocks to act in; all by default.
        positions: positions counted from 0; all by default.
    """
    return _zeroing("zero_heads", OUTPUTS, blocks, positions, heads)


@validated
def zero_mlp(blocks: Blocks = None, *, positions: Iterable[int] | None = None) -> Hook:
    """Set what MLPs add to the residual stream to 0 at `positions`, biases and a norm after the MLP included.

    Args:
        blocks: blocks to act in; all by default.
        positions: positions counted from 0; all by default.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> with sl.applied(model, sl.hooks.zero_mlp((0,))):  # the right answer is 2
    ...     str(sl.top_tokens(model, "How many ones are in the following sequence? 110 =")["token"].values[0])
    '1'
    """
    return _zeroing("zero_mlp", SUBLAYERS["mlp"], blocks, positions)


@validated
def zero_residual(positions: Iterable[int], blocks: Blocks = None) -> Hook:
    """Set the residual stream of the tokens at `positions` to 0 at the input of each of `blocks`.

    Args:
        positions: positions counted from 0.
        blocks: blocks to act in; all by default.
    """
    return _zeroing("zero_residual", STREAMS, blocks, positions)


def _zeroing(
    factory: str,
    site: str,
    blocks: Blocks,
    positions: Iterable[int] | None,
    heads: Heads = None,
) -> Hook:
    """A hook that sets activations to 0: those of all positions and heads, or of the chosen ones."""
    place = Place.of(factory, site, positions, heads)

    def edit(tensor: Tensor) -> Tensor:
        """Zeros at the chosen positions of the prompt, in all heads."""
        if place.positions is None:
            return torch.zeros_like(tensor)
        every = torch.arange(tensor.shape[1], device=tensor.device)
        zeroed = among(every, place.positions)
        return tensor.masked_fill(_before_axes(zeroed, tensor.ndim - 2), 0.0)

    return place.hook(place.name, edit, blocks)


@dataclass(frozen=True)
class Place:
    """Where activations are replaced: at a hook point, at some positions, in some heads; None means all.

    `name` is the function that was called, with these positions and heads, for the name of the hook.
    """

    factory: str
    site: str
    positions: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    name: str

    @classmethod
    def of(
        cls,
        factory: str,
        site: str,
        positions: Iterable[int] | None,
        heads: Heads = None,
    ) -> "Place":
        """The place that the function `factory` was asked for."""
        name = factory
        chosen_heads = None
        chosen_positions = None
        if heads is not None:
            in_order = positions_of(heads, factory, "heads")
            chosen_heads = tuple(dict.fromkeys(in_order))  # each once
            name += listed(chosen_heads)
        if positions is not None:
            chosen_positions = positions_of(positions, factory)
            name += f" at {listed(chosen_positions)}"
        return cls(factory, site, chosen_positions, chosen_heads, name)

    def hook(
        self, name: str, edit: Edit, blocks: Blocks, positional: bool = False
    ) -> Hook:
        """A hook with this edit; `positional` says whether it counts positions even where none are chosen."""
        if self.heads is not None:
            edit = in_heads(edit, self.heads, dim=2)
        return Hook(name, self.site, edit, blocks, self.positions or positional)


def _hiding(
    name: str,
    site: str,
    hidden: Hidden,
    blocks: Blocks,
    heads: Heads,
    positional: Positional,
) -> Hook:
    """A hook that sets logits to −∞, or weights to 0, where `hidden` is true and the key is earlier than the query.

    `site` is `SCORES` or `PATTERN`, and `positional` as in `Hook`.
    """
    no_attention = -torch.inf if site == SCORES else 0.0

    def change(rows: Tensor) -> Tensor:
        query, key = grid(rows)
        return rows.masked_fill(hidden(query, key) & (query > key), no_attention)

    return _of_attention(name, site, change, blocks, heads, positional)


def rescored(
    name: str,
    to: Rescale,
    blocks: Blocks,
    heads: Heads,
    positional: Positional = False,
) -> Hook:
    """A hook that replaces the logits of visible keys by ``to(rows, queries)``; masked keys remain masked.

    A learned sink is the last key of the rows. The model adds its logit itself, so all other logits move by what this
    one changes, which gives the same weights.
    """

    def change(scores: Tensor, sink: Float[Tensor, " head"] | None = None) -> Tensor:
        """The new logits, with −∞ where the old ones had it."""
        queries, _ = grid(scores)
        if sink is None:
            changed = to(scores, queries)
        else:
            # (head) → (prompt, head, query, 1)
            sinks = sink.detach().to(scores.dtype)[:, None, None]
            sinks = sinks.expand(*scores.shape[:-1], 1)
            with_sink = to(torch.cat([scores, sinks], dim=-1), queries)
            changed = with_sink[..., :-1] + (sinks - with_sink[..., -1:])
        return torch.where(unmasked(scores), changed, scores)

    return _of_attention(
        name, SCORES, change, blocks, heads, positional, takes_sink=True
    )


def _of_attention(
    name: str,
    site: str,
    change: Edit,
    blocks: Blocks,
    heads: Heads,
    positional: Positional,
    *,
    takes_sink: bool = False,
) -> Hook:
    """A hook that changes attention logits or weights, (prompt, head, query, key), in some heads or in all."""
    if heads is not None:
        chosen = positions_of(heads, name, "heads")
        change = in_heads(change, chosen, dim=1)
        name += f" in heads {listed(chosen)}"
    return Hook(name, site, change, blocks, positional, takes_sink)


def in_heads(change: Edit, chosen: tuple[int, ...], dim: int) -> Edit:
    """An edit of a tensor with four axes that changes only the `chosen` entries of axis `dim`, the heads."""

    def edit(before: Tensor, sink: Tensor | None = None) -> Tensor:
        """The changed tensor in the chosen heads, and the given one in the others."""
        if before.ndim != 4:
            raise InputError(
                f"This hook point has no axis for heads: its tensor has shape {tuple(before.shape)}.",
                "Leave heads= and kv_heads= out: interventions on single heads need a separate axis.",
            )
        n_heads = before.shape[dim]
        if max(chosen) >= n_heads:
            raise InputError(
                f"There is no head {max(chosen)}.",
                f"The heads here are 0 to {n_heads - 1}.",
            )
        selected = among(torch.arange(n_heads, device=before.device), chosen)
        selected = _before_axes(selected, before.ndim - dim - 1)
        after = change(before) if sink is None else change(before, sink)
        return torch.where(selected, after, before)

    return edit


def _before_axes(row: Tensor, n_axes: int) -> Tensor:
    """A row of entries with axes of size 1 after it."""
    return row.view(-1, *[1] * n_axes)


def grid(scores: Float[Tensor, "prompt head query key"]) -> tuple[Tensor, Tensor]:
    """Query positions as a column, and key positions as a row."""
    queries, keys = scores.shape[-2:]
    place = torch.arange(keys, device=scores.device)
    return place[keys - queries :, None], place  # queries are the last positions


def among(place: Tensor, places: tuple[int, ...]) -> Bool[Tensor, "..."]:
    """Whether each entry is one of `places`."""
    return torch.isin(place, torch.tensor(places, device=place.device))


def positions_of(
    numbers: Iterable[int], factory: str, what: str = "positions"
) -> tuple[int, ...]:
    """The positions, or `what` else is counted, that the function `factory` got; an error unless all are at least 0."""
    chosen = tuple(numbers)
    if not chosen or min(chosen) < 0:
        raise InputError(
            f"{factory}: {chosen!r} are not {what}.",
            "Give at least one, counted from 0.",
        )
    return chosen


def listed(places: tuple[int, ...]) -> str:
    """Positions as text for a hook's name; of more than six, the first, the last, their number and a digest."""
    if len(places) <= 6:
        return f"({', '.join(map(str, places))})"
    return f"({places[0]} … {places[-1]}, {len(places)} in all, {digest(places)})"


@without_passes
def find_positions(
    model: Bridge, prompt: Prompts, token: str | Callable[[str], bool]
) -> tuple[int, ...]:
    """Positions of the tokens of a prompt that equal a given text, or for which a given function is true.

    Args:
        model: a model with a tokenizer.
        prompt: one prompt, as text or token ids.
        token: the text of a token, compared without surrounding spaces; or a function from a token's text to True or
            False. The text of a token is the one in the `token` coordinate of every result.

    Returns:
        The positions, counted from 0, in ascending order.

    Raises:
        InputError: if no token fits, or if there are several prompts.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompt = "Can you copy the following number? 110 ="
    >>> sl.hooks.find_positions(model, prompt, "1"), sl.hooks.find_positions(model, prompt, str.isdigit)
    ((8, 9), (8, 9, 10))
    """
    require_tokenizer(model)
    ids = tokenize(model, prompt)
    if len(ids) != 1:
        raise InputError(
            f"find_positions takes one prompt, and there are {len(ids)}.",
            "Call it once for each prompt.",
        )
    (texts,) = display_tokens(model, ids)
    if callable(token):
        fits = [bool(token(text)) for text in texts]
        wanted = "one for which token= is true"
    else:
        fits = [text.strip() == escape(token).strip() for text in texts]
        wanted = repr(token)
    if not any(fits):
        raise InputError(
            f"No token of this prompt is {wanted}.",
            f"Its tokens are {', '.join(map(repr, texts))}.",
        )
    return tuple(place for place, fit in enumerate(fits) if fit)


@validated
@contextmanager
def lift_windows(model: Bridge) -> Iterator[Bridge]:
    """Let every block of a model attend to the whole prompt within a `with` block, and restore its windows after it.

    Positions are encoded as before, also at distances that the block has not seen in training. The model is another one
    in the meantime: it is verified anew, and results have another fingerprint.

    Args:
        model: a model with blocks that have a sliding window.

    Raises:
        InputError: the model has no sliding windows.

    >>> import squashlens as sl
    >>> with sl.hooks.lift_windows(sl.load("tiny-gemma")):
    ...     pass
    Traceback (most recent call last):
    squashlens.errors.InputError: This model has no sliding windows. Leave lift_windows out.
    """
    require_bridge(model)
    config = text_config(model)
    window = getattr(config, "sliding_window", None)
    if window is None or not any(windows(model)):
        raise InputError(
            "This model has no sliding windows.", "Leave lift_windows out."
        )
    # A module of attention may have its own copy of the window.
    holders = [config]
    for module in model.original_model.modules():
        if vars(module).get("sliding_window") == window:
            holders.append(module)
    try:
        for holder in holders:
            holder.sliding_window = EVERYTHING
        yield model
    finally:
        for holder in holders:
            holder.sliding_window = window
