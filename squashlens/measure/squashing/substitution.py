"""The substitution effect: how far the output moves when a token is replaced, which a derivative cannot tell you."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, Pieces, Target, positive
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import dtype_of, residual_site
from squashlens.engine.budget import pass_bytes
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.memory import require_room
from squashlens.engine.running.forward import forward, log_probabilities
from squashlens.engine.running.passes import read
from squashlens.engine.text.tokens import bos_id
from squashlens.errors import InputError
from squashlens.measure.measurement import measurement
from squashlens.measure.session import Session, require_places
from squashlens.measure.squashing.jacobians.rows import not_causal
from squashlens.measure.squashing.spans import Spans, recorded
from squashlens.measure.unequal import one_by_one
from squashlens.records.results import MODEL_UNITS
from squashlens.sequences import Branch
from squashlens.theory.distances import distance, divergence


# More than ten parameters, since each is an independent option of the measurement; all have defaults.
@measurement("substitution")
@one_by_one()
def substitution_effect(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    candidates: Sequence[int] | None = None,
    n_replacements: int = 8,
    positions: Iterable[int] | None = None,
    spans: Pieces | Mapping[str, Sequence[int]] | None = None,
    query: int = -1,
    to_layer: Target = "y",
    seed: int = 0,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """Mean distance that the output at the query moves when each token i is replaced by other tokens.

    ``effect_i = mean over x′ of ‖y_n(x) − y_n(x′)‖₂``, where x′ is the prompt x with token i replaced. A derivative
    describes infinitesimal changes of one residual stream; this describes changes of tokens.

    Args:
        model: as in `path_bound`.
        prompt: as in `path_bound`.
        candidates: token ids that may replace a token; by default the distinct tokens of the prompts except BOS
            (of each prompt by itself, if the prompts are of unequal lengths).
        n_replacements: number of random replacements for each token or span, 8 by default. If fewer other candidates
            exist for a token, each of them is used once. A token is never replaced by itself.
        positions: positions whose tokens are replaced, as indices up to the query; by default all except a leading BOS.
        spans: as in `jacobian_norms`, without BOS. All tokens of a span up to the query are replaced at once, each by a
            random candidate other than itself, independently of the others; a draw that occurs twice counts once.
            Cannot be used with `positions`.
        query: as in `path_bound`.
        to_layer: layer at which the distance is measured: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output
            of the final norm.
        seed: random seed of the replacements; 0 by default.
        bos: as in `path_bound`.
        progress: as in `path_bound`.

    Returns:
        Dataset over (position), or (prompt, position) for several prompts: `effect` and `effect_std`, mean and
        standard deviation of the distance over replacements, in the model's units; with ``to_layer="y"`` also `kl`,
        the mean of KL(p(x) ‖ p(x′)) of the next token, in nats. Positions up to the query that are not replaced are
        NaN; positions after the query are zero, by causality, which one more prompt tests. Results of prompts of
        unequal lengths are padded as in `path_bound`. With `spans` there is one value for each, labelled as in
        `jacobian_norms`.

    Raises:
        InputError: positions after the query, no candidate that differs from a token that is to be replaced, or spans
            that have BOS, are of several prompts, or are given with positions.
        CapacityError: a forward pass does not fit into memory.
        UnsoundModelError: tokens after the query influence it, so that the model is not causal.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> digits = sl.prompts.tokenize(model, "0123456789")[0, 1:].tolist()
    >>> prompt = "What is the last digit in this sequence? 0107 ="
    >>> effect = sl.substitution_effect(model, prompt, candidates=digits, progress=False)
    >>> effect["kl"].values[10:14].round(1).tolist()   # the model answers from the last digit alone
    [0.0, 0.0, 0.0, 15.0]
    """
    positive(n_replacements, "n_replacements", "a number of tokens")
    session = Session.start(
        model, prompt, bos, "substitution_effect",
        candidates=None if candidates is None else list(candidates), n_replacements=n_replacements,
        query=query, to_layer=to_layer, seed=seed, **recorded(spans),
    )  # fmt: skip
    session.spans(0, to_layer)
    n, first = session.query(query), session.facts["bos_count"]
    groups = Spans.of(session, spans)
    together = _positions(positions, first, n) if groups is None else _within(groups, positions, first, n)
    choices = require_choices(session, candidates, list(chain(*together.values())))
    generator = torch.Generator().manual_seed(seed)
    shape = session.ids.shape if groups is None else (1, len(groups.names))
    found = {name: torch.zeros(shape, dtype=torch.float64) for name in ("effect", "effect_std", "kl")}
    for values in found.values():
        values[:, [p for p in range(n + 1) if p not in together] if groups is None else []] = torch.nan
    drawn = [_variants(ids, together, choices, n_replacements, generator) for ids in session.ids.cpu()]
    for row, (ids, variants) in enumerate(zip(session.ids.cpu(), drawn, strict=True)):
        moved = _read(session, ids[: n + 1], variants, to_layer, progress)
        if n + 1 < len(ids):
            _require_causal(session, ids, choices, n, to_layer, moved[:1])
        gaps = distance(moved[1:], moved[:1].expand_as(moved[1:]), "l2").cpu()
        apart = _kl(session, moved) if to_layer == "y" else torch.zeros(len(gaps), dtype=torch.float64)
        owners = torch.tensor([variant.of for variant in variants[1:]])
        for place in together:
            here = owners == place
            found["effect"][row, place] = gaps[here].mean()
            found["effect_std"][row, place] = gaps[here].std(correction=0)
            found["kl"][row, place] = apart[here].mean()
    dims, coords = session.coords() if groups is None else (("position",), groups.coords())
    what = "the token is" if groups is None else "all tokens of the span are"
    texts = {
        "effect": (f"mean distance that the output moves when {what} replaced", MODEL_UNITS),
        "effect_std": ("standard deviation of that distance over replacements", MODEL_UNITS),
        "kl": (f"mean KL divergence of the next token when {what} replaced", "nats"),
    }
    kept = {name: values[0] if len(session.ids) == 1 else values for name, values in found.items()}
    variables = {name: (dims, kept[name], *text) for name, text in texts.items() if name != "kl" or to_layer == "y"}
    return session.knowing(**({} if groups is None else groups.facts())).dataset(
        "substitution effect", coords, variables
    )


def _positions(given: Iterable[int] | None, first: int, query: int) -> dict[int, list[int]]:
    """The positions whose tokens are replaced, each by itself."""
    require_replaceable(first, query)
    chosen = list(range(first, query + 1) if given is None else given)
    require_places(chosen, first, query)
    return {place: [place] for place in chosen}


def require_replaceable(first: int, query: int) -> None:
    """An error for a query that stands before the first token that can be replaced."""
    if query < first:
        raise InputError(
            f"The query is at position {query}, a BOS token, and no token up to it can be replaced.",
            "Give a longer prompt, or a later query=.",
        )


def _within(groups: Spans, positions: Iterable[int] | None, first: int, query: int) -> dict[int, list[int]]:
    """The tokens of each span, by its number, that are replaced together; spans after the query are left out."""
    if positions is not None:
        raise InputError("positions= and spans= are given, which exclude each other.", "Give one of them.")
    if any(place < first for inside in groups.positions for place in inside):
        raise InputError("A span of spans= has the BOS token, which is not replaced.", f"Give positions from {first}.")
    found = {number: inside for number, inside in enumerate(groups.within(query + 1)) if inside}
    if not found:
        raise InputError("All spans= come after the query.", "Give spans of tokens up to it, or a later query.")
    return found


def require_choices(session: Session, candidates: Sequence[int] | None, places: Sequence[int]) -> list[int]:
    """The candidate tokens: those given, or the distinct tokens of the prompts without BOS.

    Raises if the only candidate for one of `places` is the token that is there.
    """
    vocabulary = int(session.model.cfg.d_vocab)
    if candidates is None:
        present = session.ids[:, session.facts["bos_count"] :]
        choices = sorted({*present.flatten().tolist()} - {bos_id(session.model)})
    elif not candidates or not 0 <= min(candidates) <= max(candidates) < vocabulary:
        raise InputError(
            f"candidates={list(candidates)!r} are not token ids.", f"Give at least one, from 0 to {vocabulary - 1}."
        )
    else:
        choices = sorted({*candidates})
    for ids in session.ids.tolist():
        stuck = [place for place in places if choices == [ids[place]] or not choices]
        if stuck:
            raise InputError(
                f"No candidate differs from the token at position {stuck[0]}.", "Give other token ids in candidates=."
            )
    return choices


@dataclass(frozen=True)
class Variant:
    """A prompt with some tokens replaced, for the position or span `of`."""

    of: int
    places: list[int]
    tokens: list[int]


def _variants(
    ids: Int[Tensor, " position"], together: Mapping[int, Sequence[int]], choices: list[int], n_replacements: int,
    generator: torch.Generator,
) -> list[Variant]:  # fmt: skip
    """The variants of a prompt, which differ from each other; the first is the prompt itself.

    The variants are not written out as prompts, because those of a long prompt would not fit into memory.
    """
    drawn = [Variant(-1, [], [])]
    for number, places in together.items():
        others = [torch.tensor([t for t in choices if t != int(ids[place])]) for place in places]
        if len(places) == 1:
            rows = others[0][torch.randperm(len(others[0]), generator=generator)[:n_replacements]][:, None]
        else:
            picked = [each[torch.randint(len(each), (n_replacements,), generator=generator)] for each in others]
            rows = torch.stack(picked, dim=1).unique(dim=0)
        drawn += [Variant(number, list(places), row) for row in rows.tolist()]
    return drawn


def _require_causal(
    session: Session, ids: Int[Tensor, " position"], choices: list[int], query: int, to_layer: Target, found: Tensor
) -> None:
    """Raise an error if the target at the query changes when all tokens after it are replaced."""
    kept: list[Tensor] = []
    later = [next((t for t in choices if t != int(token)), choices[0]) for token in ids[query + 1 :]]
    other = torch.cat([ids[: query + 1], torch.tensor(later, dtype=ids.dtype)])[None].to(session.ids.device)
    with torch.no_grad():
        forward(session.model, other, [(residual_site(to_layer, session.model), lambda t: kept.append(t[:, query]))])
    if not agree(kept[0].cpu(), found, dtype_of(session.model)):
        raise not_causal("The model", query)


def _read(
    session: Session, ids: Int[Tensor, " position"], variants: Sequence[Variant], to_layer: Target, progress: bool
) -> Tensor:
    """The target at the last token for each variant of a prompt; they share the tokens before the first replacement."""
    model, trunk, site = session.model, tuple(ids.tolist()), residual_site(to_layer, session.model)
    require_room(pass_bytes(model, 1, len(trunk)), session.ids.device, "A forward pass", "Use a shorter prompt.")
    branches: list[Branch] = []
    for variant in variants:
        changed = list(trunk)
        for place, token in zip(variant.places, variant.tokens, strict=True):
            changed[place] = token
        first = min(variant.places, default=len(trunk))
        branches.append(Branch(first, tuple(changed[first:])))
    return read(model, trunk, branches, [site], progress=progress).values[site]


def _kl(session: Session, y: Tensor) -> Tensor:
    """KL divergence of the next token for each variant, from that of the first variant."""
    pieces = log_probabilities(session.model, y)
    own, found = None, []
    for logs in pieces:
        own = logs[:1] if own is None else own
        found.append(divergence(own, logs).cpu())
    return torch.cat(found)[1:]
