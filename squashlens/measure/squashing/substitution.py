"""The substitution effect: how far the output moves when a token is replaced, which a derivative cannot tell you."""

from collections.abc import Callable, Iterable, Sequence

import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, Target, positive
from squashlens.bars import bar
from squashlens.engine.anatomy import residual_site
from squashlens.engine.budget import batch_memory, pass_bytes
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.memory import require_room
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.forward import forward
from squashlens.engine.running.unembed import log_probabilities
from squashlens.engine.text.tokens import bos_id
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.unequal import one_by_one
from squashlens.results import MODEL_UNITS
from squashlens.theory.distances import distance, divergence


# More than ten parameters, since each is an independent option of the measurement; all have defaults.
@measured
@one_by_one()
def substitution_effect(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    candidates: Sequence[int] | None = None,
    n_replacements: int = 8,
    positions: Iterable[int] | None = None,
    query: int = -1,
    to_layer: Target = "y",
    seed: int = 0,
    batch_size: int | None = None,
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
        n_replacements: number of random replacements for each token, 8 by default. If fewer other candidates exist,
            each of them is used once. A token is never replaced by itself.
        positions: positions whose tokens are replaced, as indices up to the query; by default all except a leading BOS.
        query: as in `path_bound`.
        to_layer: layer at which the distance is measured: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output
            of the final norm.
        seed: random seed of the replacements; 0 by default.
        batch_size: number of prompts in a forward pass; chosen to fit in about a gigabyte by default.
        bos: as in `path_bound`.
        progress: as in `path_bound`.

    Returns:
        Dataset over (position), or (prompt, position) for several prompts: `effect` and `effect_std`, mean and
        standard deviation of the distance over replacements, in the model's units; with ``to_layer="y"`` also `kl`,
        the mean of KL(p(x) ‖ p(x′)) of the next token, in nats. Positions up to the query that are not replaced are
        NaN; positions after the query are zero, by causality. Results of prompts of unequal lengths are padded as in
        `path_bound`.

    Raises:
        InputError: positions after the query, or no candidate that differs from a token that is to be replaced.
        CapacityError: a forward pass does not fit into memory.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> digits = sl.tokenize(model, "0123456789")[0, 1:].tolist()
    >>> prompt = "What is the last digit in this sequence? 0107 ="
    >>> effect = sl.substitution_effect(model, prompt, candidates=digits, progress=False)
    >>> effect["kl"].values[10:14].round(1).tolist()   # the model answers from the last digit alone
    [0.0, 0.0, 0.0, 15.0]
    """
    positive(n_replacements, "n_replacements", "a number of tokens")
    if batch_size is not None:
        positive(batch_size, "batch_size", "a number of prompts")
    session = Session.start(
        model, prompt, bos, "substitution_effect",
        candidates=None if candidates is None else list(candidates), n_replacements=n_replacements,
        query=query, to_layer=to_layer, seed=seed,
    )  # fmt: skip
    session.spans(0, to_layer)
    n, first = session.query(query), session.facts["bos_count"]
    chosen = list(range(first, n + 1) if positions is None else dict.fromkeys(positions))  # each once
    if not chosen or any(isinstance(p, bool) or not isinstance(p, int) or not first <= p <= n for p in chosen):
        raise InputError(
            f"positions={chosen!r} has a token that cannot be replaced." if chosen else "positions= is empty.",
            f"Give at least one position from {first} to {n}.",
        )
    choices = require_choices(session, candidates, chosen)
    generator = torch.Generator().manual_seed(seed)
    shape = session.ids.shape
    found = {name: torch.zeros(shape, dtype=torch.float64) for name in ("effect", "effect_std", "kl")}
    for values in found.values():
        values[:, [p for p in range(n + 1) if p not in chosen]] = torch.nan
    drawn = [_variants(ids, chosen, choices, n_replacements, generator) for ids in session.ids.cpu()]
    progress_bar = bar(total=sum(map(len, drawn)), desc="substitution", unit="prompt", progress=progress)
    for row, (ids, variants) in enumerate(zip(session.ids.cpu(), drawn, strict=True)):
        moved = _read(session, ids, variants, n, to_layer, batch_size, progress_bar.update)
        gaps = distance(moved[1:], moved[:1].expand_as(moved[1:]), "l2").cpu()
        apart = _kl(session, moved) if to_layer == "y" else torch.zeros(len(gaps), dtype=torch.float64)
        for place in chosen:
            here = variants[1:, 0] == place
            found["effect"][row, place] = gaps[here].mean()
            found["effect_std"][row, place] = gaps[here].std(correction=0)
            found["kl"][row, place] = apart[here].mean()
    progress_bar.close()
    dims, coords = session.coords()
    texts = {
        "effect": ("mean distance that the output moves when the token is replaced", MODEL_UNITS),
        "effect_std": ("standard deviation of that distance over replacements", MODEL_UNITS),
        "kl": ("mean KL divergence of the next token when the token is replaced", "nats"),
    }
    kept = {name: values[0] if len(session.ids) == 1 else values for name, values in found.items()}
    variables = {name: (dims, kept[name], *text) for name, text in texts.items() if name != "kl" or to_layer == "y"}
    return session.dataset("substitution effect", coords, variables)


def require_choices(session: Session, candidates: Sequence[int] | None, places: Sequence[int]) -> list[int]:
    """The candidate tokens. Raises if the only candidate for one of `places` is the token that is there."""
    choices = _choices(session, candidates, session.facts["bos_count"])
    for ids in session.ids.tolist():
        stuck = [place for place in places if choices == [ids[place]] or not choices]
        if stuck:
            raise InputError(
                f"No candidate differs from the token at position {stuck[0]}.", "Give other token ids in candidates=."
            )
    return choices


def _choices(session: Session, candidates: Sequence[int] | None, first: int) -> list[int]:
    """The candidate tokens: those given, or the distinct tokens of the prompts without BOS."""
    vocabulary = int(session.model.cfg.d_vocab)
    if candidates is None:
        present = set(session.ids[:, first:].flatten().tolist())
        return sorted(present - {bos_id(session.model)})
    wrong = [t for t in candidates if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocabulary]
    if wrong or not candidates:
        raise InputError(
            f"candidates={list(candidates)!r} are not token ids.", f"Give at least one, from 0 to {vocabulary - 1}."
        )
    return sorted(set(candidates))


def _variants(
    ids: Int[Tensor, " position"], positions: list[int], choices: list[int], n_replacements: int,
    generator: torch.Generator,
) -> Int[Tensor, "variant 2"]:  # fmt: skip
    """Each variant of a prompt as a position and the token put there; the first variant is the prompt itself.

    The variants are not written out as prompts, because those of a long prompt would not fit into memory.
    """
    drawn = [torch.tensor([[0, int(ids[0])]])]
    for place in positions:
        others = torch.tensor([t for t in choices if t != int(ids[place])])
        tokens = others[torch.randperm(len(others), generator=generator)[:n_replacements]]
        drawn.append(torch.stack([torch.full_like(tokens, place), tokens], dim=1))
    return torch.cat(drawn)


def _read(
    session: Session, ids: Int[Tensor, " position"], variants: Int[Tensor, "variant 2"], query: int, to_layer: Target,
    batch_size: int | None, done: Callable[[int], object],
) -> Tensor:  # fmt: skip
    """The target at the query for each variant of a prompt, with `batch_size` variants in a forward pass."""
    model, n = session.model, len(ids)
    require_room(pass_bytes(model, 1, n), session.ids.device, "A forward pass", "Use a shorter prompt.")
    size = batch_size or max(1, int(batch_memory(model) / pass_bytes(model, 1, n)))
    kept: list[Tensor] = []
    watch = [(residual_site(to_layer, model), lambda t: kept.append(t[:, query].detach().clone()))]
    with torch.no_grad():
        for part in variants.split(size):
            rows = ids.repeat(len(part), 1)
            rows[torch.arange(len(part)), part[:, 0]] = part[:, 1]
            forward(model, rows.to(session.ids.device), watch)
            done(len(part))
    return torch.cat(kept)


def _kl(session: Session, y: Tensor) -> Tensor:
    """KL divergence of the next token for each variant, from that of the first variant."""
    pieces = log_probabilities(session.model, y)
    own, found = None, []
    for logs in pieces:
        own = logs[:1] if own is None else own
        found.append(divergence(own.expand_as(logs), logs).cpu())
    return torch.cat(found)[1:]
