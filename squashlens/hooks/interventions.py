"""Interventions on attention, values and the residual stream, each made as a `Hook`; and a model without its windows.

Masks change attention logits, so the weights of a row renormalize over the remaining keys. No row becomes empty,
because a token always attends to itself. In every equation a learned sink (gpt-oss) is one more key, without a value:
the weights of a row, the sink's included, sum to 1. Positions are counted from the first token of the prompt. Those
beyond its end are ignored; if they all are, in every pass of a context, that is an error. A forward pass that continues
a key/value cache raises an error where positions would be counted from another token (`WholePassesOnly`). Query head h
reads key/value group h // (heads / kv_heads).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
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
Positional = bool | tuple[int, ...]  # as in `Hook`
Rescale = Callable[
    [Tensor, Tensor], Tensor
]  # rows of attention logits and the positions of their queries to new rows
STREAMS = "blocks.{block}.hook_resid_pre"
SCORES, PATTERN, VALUES, OUTPUTS = (
    f"blocks.{{block}}.attn.hook_{name}"
    for name in ("attn_scores", "pattern", "v", "z")
)
SUBLAYERS = {
    "attention": "blocks.{block}.hook_attn_out",
    "mlp": "blocks.{block}.hook_mlp_out",
}


@validated
def mask_tokens(
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Iterable[int] | None = None,
) -> Hook:
    """Mask the tokens at `positions` for all later tokens, by setting their attention logits to −∞.

    Args:
        positions: positions of the masked tokens, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.

    >>> import squashlens as sl
    >>> sl.hooks.mask_tokens([2, 3], blocks=(0,))
    mask_tokens(2, 3)
    """
    places = positions_of(positions, "mask_tokens")
    return _mask(
        f"mask_tokens{listed(places)}",
        lambda query, key: _among(key, places),
        blocks,
        heads,
        places,
    )


@validated
def mask_attention(
    queries: Iterable[int],
    keys: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Iterable[int] | None = None,
) -> Hook:
    """Mask attention from the query positions `queries` to the key positions `keys`. A token still attends to itself.

    Args:
        queries, keys: query and key positions, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.
    """
    rows, columns = (
        positions_of(queries, "mask_attention"),
        positions_of(keys, "mask_attention"),
    )
    name = f"mask_attention{listed(rows)}→{listed(columns)}"
    return _mask(
        name,
        lambda query, key: _among(query, rows) & _among(key, columns),
        blocks,
        heads,
        rows,
    )


@validated
def sliding_window(
    window: int,
    blocks: Blocks = None,
    *,
    sink: int = 0,
    heads: Iterable[int] | None = None,
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
    name = f"sliding_window({window}{f', sink={sink}' if sink else ''})"
    return _mask(
        name,
        lambda query, key: (query - key >= window) & (key >= sink),
        blocks,
        heads,
        sink > 0,
    )


@validated
def uniform_attention(
    blocks: Blocks = None, *, heads: Iterable[int] | None = None
) -> Hook:
    """Make all attention weights of a row equal: 1 over the number of keys that the query may attend to.

    A learned sink counts as one of these keys. Under this hook the model has the attention pattern that `path_bound`
    assumes with ``attention="uniform"``.

    Args:
        blocks, heads: blocks and query heads to act in; all by default.
    """
    return rescored(
        "uniform_attention", lambda rows, _: torch.zeros_like(rows), blocks, heads
    )


@validated
def scale_attention(
    factor: float,
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Iterable[int] | None = None,
) -> Hook:
    """Multiply the weights with which later tokens attend to `positions` by `factor`, and renormalize the rows.

    ``α'_ji = c_ji α_ji / Σ_k c_jk α_jk``, with c_ji = factor where i is in `positions` and i < j, and 1 elsewhere:
    ln(factor) is added to the logits. A factor of 1 changes no bit, a factor of 0 equals `mask_tokens`, and the factors
    of several such hooks multiply. `zero_pattern` removes weights without renormalization.

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
    places, added = (
        positions_of(positions, "scale_attention"),
        math.log(factor) if factor else -math.inf,
    )

    def change(rows: Tensor, query: Tensor) -> Tensor:
        key = torch.arange(rows.shape[-1], device=rows.device)
        return torch.where(_among(key, places) & (query > key), rows + added, rows)

    name = f"scale_attention({float(factor)!r} at {listed(places)})"
    return rescored(name, change, blocks, heads, places)


@validated
def zero_pattern(
    positions: Iterable[int],
    blocks: Blocks = None,
    *,
    heads: Iterable[int] | None = None,
) -> Hook:
    """Set the weights with which later tokens attend to `positions` to 0, without renormalization: rows sum to less
    than 1.

    Args:
        positions: key positions, counted from 0.
        blocks, heads: blocks and query heads to act in; all by default.
    """
    places = positions_of(positions, "zero_pattern")
    return _mask(
        f"zero_pattern{listed(places)}",
        lambda query, key: _among(key, places),
        blocks,
        heads,
        places,
        PATTERN,
    )


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
    places = positions_of(positions, "zero_values")
    name, change = f"zero_values{listed(places)}", partial(_zero, places=places)
    return _in_heads(name, VALUES, change, blocks, kv_heads, dim=2, positional=places)


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
    return _zeroing(
        "zero_heads", OUTPUTS, blocks, positions, heads_of(heads, "zero_heads")
    )


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
    name: str,
    site: str,
    blocks: Blocks,
    positions: Iterable[int] | None,
    heads: tuple[int, ...] = (),
) -> Hook:
    """A hook that sets a tensor, or some heads of it, to 0 at some positions, or everywhere."""
    places = () if positions is None else positions_of(positions, name)
    change = partial(_zero, places=places) if places else torch.zeros_like
    name += (
        f"{listed(heads) if heads else ''}{f' at {listed(places)}' if places else ''}"
    )
    return Hook(
        name,
        site,
        in_heads(change, heads, dim=2) if heads else change,
        blocks,
        places or False,
    )


def _zero(
    tensor: Float[Tensor, "prompt position ..."], places: tuple[int, ...]
) -> Float[Tensor, "prompt position ..."]:
    """The tensor with 0 at the positions `places`."""
    hidden = _among(torch.arange(tensor.shape[1], device=tensor.device), places)
    return tensor.masked_fill(hidden.view(-1, *[1] * (tensor.ndim - 2)), 0.0)


def _mask(
    name: str,
    hidden: Callable[[Tensor, Tensor], Tensor],
    blocks: Blocks,
    heads: Iterable[int] | None,
    positional: Positional,
    site: str = SCORES,
) -> Hook:
    """A hook that sets logits to −∞, or weights to 0, where `hidden(query, key)` is true and the key is earlier."""

    def change(scores: Tensor) -> Tensor:
        query, key = grid(scores)
        return scores.masked_fill(
            hidden(query, key) & (query > key), -torch.inf if site == SCORES else 0.0
        )

    return _in_heads(name, site, change, blocks, heads, positional=positional)


def rescored(
    name: str,
    to: Rescale,
    blocks: Blocks,
    heads: Iterable[int] | None,
    positional: Positional = False,
) -> Hook:
    """A hook that replaces the logits of visible keys by ``to(rows, queries)``; masked keys remain masked.

    A learned sink is the last key of the rows. The model adds its logit itself, so all other logits move by what this
    one changes, which gives the same weights.
    """
    chosen = None if heads is None else positions_of(heads, name, "heads")

    def change(scores: Tensor, sink: Tensor | None) -> Tensor:
        queries = grid(scores)[0]
        if sink is None:
            return torch.where(unmasked(scores), to(scores, queries), scores)
        column = (
            sink.detach().to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        )
        changed = to(torch.cat([scores, column], dim=-1), queries)
        return torch.where(
            unmasked(scores), changed[..., :-1] + (column - changed[..., -1:]), scores
        )

    def edit(scores: Tensor, sink: Float[Tensor, " head"] | None = None) -> Tensor:
        within = partial(change, sink=sink)
        return (
            within(scores)
            if chosen is None
            else in_heads(within, chosen, dim=1)(scores)
        )

    return Hook(
        name if chosen is None else f"{name} in heads {listed(chosen)}",
        SCORES,
        edit,
        blocks,
        positional,
        takes_sink=True,
    )


def _in_heads(
    name: str,
    site: str,
    change: Callable[[Tensor], Tensor],
    blocks: Blocks,
    heads: Iterable[int] | None,
    dim: int = 1,
    positional: Positional = False,
) -> Hook:
    """A hook that changes only the chosen heads, which are axis `dim`."""
    if heads is None:
        return Hook(name, site, change, blocks, positional)
    chosen = positions_of(heads, name, "heads")
    name += f" in {'key/value heads' if site == VALUES else 'heads'} {listed(chosen)}"
    return Hook(name, site, in_heads(change, chosen, dim), blocks, positional)


def in_heads(
    change: Callable[[Tensor], Tensor], chosen: tuple[int, ...], dim: int
) -> Callable[[Tensor], Tensor]:
    """An edit of a tensor with four axes that changes only the `chosen` entries of axis `dim`, the heads."""

    def edit(before: Tensor) -> Tensor:
        if before.ndim != 4:
            raise InputError(
                f"This hook point has no axis for heads: its tensor has shape {tuple(before.shape)}.",
                "Leave heads= and kv_heads= out: interventions on single heads need a separate axis.",
            )
        outside = [h for h in chosen if h >= before.shape[dim]]
        if outside:
            raise InputError(
                f"There is no head {outside[0]}.",
                f"The heads here are 0 to {before.shape[dim] - 1}.",
            )
        selected = _among(torch.arange(before.shape[dim], device=before.device), chosen)
        return torch.where(
            selected.view(-1, *[1] * (before.ndim - dim - 1)), change(before), before
        )

    return edit


def grid(scores: Float[Tensor, "prompt head query key"]) -> tuple[Tensor, Tensor]:
    """Query positions as a column, and key positions as a row."""
    queries, keys = scores.shape[-2:]
    place = torch.arange(keys, device=scores.device)
    return place[keys - queries :, None], place


def _among(place: Tensor, places: tuple[int, ...]) -> Tensor:
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


def heads_of(heads: Iterable[int], factory: str) -> tuple[int, ...]:
    """The heads that the function `factory` got, each once."""
    return tuple(dict.fromkeys(positions_of(heads, factory, "heads")))


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
    texts = display_tokens(model, ids)[0]
    wanted = (
        token if callable(token) else lambda text: text.strip() == escape(token).strip()
    )
    found = tuple(place for place, text in enumerate(texts) if wanted(text))
    if not found:
        wanted_text = "one for which token= is true" if callable(token) else repr(token)
        raise InputError(
            f"No token of this prompt is {wanted_text}.",
            f"Its tokens are {', '.join(map(repr, texts))}.",
        )
    return found


EVERYTHING = 2**30  # more tokens than any prompt has


@validated
@contextmanager
def lifted_windows(model: Bridge) -> Iterator[Bridge]:
    """Let every block of a model attend to the whole prompt within a `with` block, and restore its windows after it.

    Positions are encoded as before, also at distances that the block has not seen in training. The model is another one
    in the meantime: it is verified anew, and results have another fingerprint.

    Args:
        model: a model with blocks that have a sliding window.

    Raises:
        InputError: the model has no sliding windows.

    >>> import squashlens as sl
    >>> with sl.hooks.lifted_windows(sl.load("tiny-gemma")):
    ...     pass
    Traceback (most recent call last):
    squashlens.errors.InputError: This model has no sliding windows. Leave lifted_windows out.
    """
    require_bridge(model)
    config = text_config(model)
    own = getattr(config, "sliding_window", None)
    if own is None or not any(windows(model)):
        raise InputError(
            "This model has no sliding windows.", "Leave lifted_windows out."
        )
    holders = [
        config,
        *(
            m
            for m in model.original_model.modules()
            if vars(m).get("sliding_window") == own
        ),
    ]
    try:
        for holder in holders:
            holder.sliding_window = EVERYTHING
        yield model
    finally:
        for holder in holders:
            holder.sliding_window = own
