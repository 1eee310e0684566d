"""What a swap of one token does, beside what a derivative says: the substitution effect."""

from collections.abc import Callable, Iterable, Sequence

import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, Target, positive
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.measure._unequal import one_by_one
from squashlens.model.anatomy import residual_site
from squashlens.model.budget import batch_memory, pass_bytes
from squashlens.model.capture import Given
from squashlens.model.forward import forward
from squashlens.model.memory import require_room
from squashlens.model.registry import measured
from squashlens.model.tokens import bos_id
from squashlens.model.unembed import log_probabilities
from squashlens.theory.distances import distance, divergence


@measured
@one_by_one()
def substitution_effect(
    model: Bridge,
    prompts: Given,
    *,
    among: Sequence[int] | None = None,
    replacements: int = 8,
    positions: Iterable[int] | None = None,
    query: int = -1,
    target: Target = "y",
    seed: int = 0,
    chunk: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """‖y_n(x) − y_n(x with token i replaced)‖₂ for every i, averaged over seeded replacements; and the next token's KL.

    A derivative is about an infinitesimal move of one residual stream; this is about tokens. Variables over
    (position), or (prompt, position): `effect` and `effect_std` over replacements, in the model's units; with
    ``target="y"`` also `kl`, KL(p(x) ‖ p(x′)) of the next token in nats. A leading BOS is not replaced (NaN); behind
    the query everything is 0, by causality. Prompts of unequal lengths are measured one by one, `among` then being the
    distinct tokens of each by itself if not given, and padded: behind a prompt's own tokens (the coordinate `length`
    has their number) values are NaN, the token is "" and the token_id −1.

    Args:
        among: token ids to replace by; the distinct tokens of all prompts, BOS excepted, if not given. A token is
            never replaced by itself; where there are no more than `replacements` others, each is taken once.
        positions: those whose token is replaced, up to the query; all if not given. The others are NaN.
        chunk: prompts per forward pass; chosen to fit in about a gigabyte if not given.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> digits = sl.tokens(model, "0123456789")[0, 1:].tolist()
    >>> prompt = "What is the last digit in this sequence? 0107 ="
    >>> effect = sl.substitution_effect(model, prompt, among=digits, progress=False)
    >>> effect["kl"].values[10:14].round(1).tolist()   # the model answers from the last digit alone
    [0.0, 0.0, 0.0, 15.0]
    """
    positive(replacements, "replacements", "a number of tokens")
    if chunk is not None:
        positive(chunk, "chunk", "a number of prompts")
    session = Session.start(
        model, prompts, bos, "substitution_effect",
        among=None if among is None else list(among), replacements=replacements, query=query, target=target, seed=seed,
    )  # fmt: skip
    session.spans(0, target)
    n, first = session.query(query), session.facts["bos_count"]
    chosen = list(range(first, n + 1) if positions is None else dict.fromkeys(positions))  # each once
    if not chosen or any(isinstance(p, bool) or not isinstance(p, int) or not first <= p <= n for p in chosen):
        raise InputError(f"positions={chosen!r} cannot be replaced.", f"Give positions from {first} to {n}.")
    choices = require_choices(session, among, chosen)
    generator = torch.Generator().manual_seed(seed)
    shape = session.ids.shape
    found = {name: torch.zeros(shape, dtype=torch.float64) for name in ("effect", "effect_std", "kl")}
    for values in found.values():
        values[:, [p for p in range(n + 1) if p not in chosen]] = torch.nan
    drawn = [_variants(ids, chosen, choices, replacements, generator) for ids in session.ids.cpu()]
    shown = bar(total=sum(map(len, drawn)), desc="substitution", unit="replacement", progress=progress)
    for prompt, (ids, variants) in enumerate(zip(session.ids.cpu(), drawn, strict=True)):
        moved = _read(session, ids, variants, n, target, chunk, shown.update)
        gaps = distance(moved[1:], moved[:1].expand_as(moved[1:]), "l2").cpu()
        apart = _kl(session, moved) if target == "y" else torch.zeros(len(gaps), dtype=torch.float64)
        places = torch.tensor([place for place, _ in variants])
        for place in chosen:
            here = places == place
            found["effect"][prompt, place] = gaps[here].mean()
            found["effect_std"][prompt, place] = gaps[here].std(correction=0)
            found["kl"][prompt, place] = apart[here].mean()
    shown.close()
    dims, coords = session.coords()
    texts = {
        "effect": ("mean distance of the target under replacement of the token", "model"),
        "effect_std": ("standard deviation of that distance over replacements", "model"),
        "kl": ("mean divergence of the next token under replacement of the token", "nat"),
    }
    kept = {name: values[0] if len(session.ids) == 1 else values for name, values in found.items()}
    variables = {name: (dims, kept[name], *text) for name, text in texts.items() if name != "kl" or target == "y"}
    return session.dataset("substitution effect", coords, variables)


def require_choices(session: Session, among: Sequence[int] | None, places: Sequence[int]) -> list[int]:
    """The tokens that stand in for those at `places`; refused where one of these could be replaced only by itself."""
    choices = _choices(session, among, session.facts["bos_count"])
    for ids in session.ids.tolist():
        alone = [place for place in places if choices == [ids[place]] or not choices]
        if alone:
            raise InputError(
                f"There is nothing to replace the token at position {alone[0]} by.", "Name other tokens with among=."
            )
    return choices


def _choices(session: Session, among: Sequence[int] | None, first: int) -> list[int]:
    vocabulary = int(session.model.cfg.d_vocab)
    if among is None:
        present = set(session.ids[:, first:].flatten().tolist())
        return sorted(present - {bos_id(session.model)})
    wrong = [t for t in among if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocabulary]
    if wrong or not among:
        raise InputError(f"among={list(among)!r} are not token ids.", f"Give at least one, from 0 to {vocabulary - 1}.")
    return sorted(set(among))


def _variants(
    ids: Int[Tensor, " position"], positions: list[int], choices: list[int], replacements: int,
    generator: torch.Generator,
) -> list[tuple[int, int]]:  # fmt: skip
    """Positions and what stands there instead: not the prompts, which for long ones do not fit into memory."""
    drawn = []
    for place in positions:
        others = torch.tensor([t for t in choices if t != int(ids[place])])
        tokens = others[torch.randperm(len(others), generator=generator)[:replacements]]
        drawn += [(place, token) for token in tokens.tolist()]
    return drawn


def _read(
    session: Session, ids: Int[Tensor, " position"], variants: list[tuple[int, int]], query: int, target: Target,
    chunk: int | None, done: Callable[[int], object],
) -> Tensor:  # fmt: skip
    """The target at the query for the prompt and each of its variants, by forward passes of `chunk` of them."""
    model, n = session.model, len(ids)
    require_room(pass_bytes(model, 1, n), session.ids.device, "A forward pass", "Use a shorter prompt.")
    size = chunk or max(1, int(batch_memory(model) / pass_bytes(model, 1, n)))
    kept: list[Tensor] = []
    every = [None, *variants]
    with torch.no_grad():
        for start in range(0, len(every), size):
            part = every[start : start + size]
            rows = ids.repeat(len(part), 1)
            for row, variant in zip(rows, part, strict=True):
                if variant is not None:
                    row[variant[0]] = variant[1]
            site = residual_site(target, model)
            forward(model, rows.to(session.ids.device), [(site, lambda t: kept.append(t[:, query].detach().clone()))])
            done(sum(variant is not None for variant in part))
    return torch.cat(kept)


def _kl(session: Session, y: Tensor) -> Tensor:
    pieces = log_probabilities(session.model, y)
    own, found = None, []
    for logs in pieces:
        own = logs[:1] if own is None else own
        found.append(divergence(own.expand_as(logs), logs).cpu())
    return torch.cat(found)[1:]
