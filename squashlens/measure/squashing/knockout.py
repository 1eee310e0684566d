"""The knockout effect: how far the output moves when later tokens cannot read a token, or its embedding is zero."""

from collections.abc import Iterable, Sequence

import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, Knockout, SpansOfTokens
from squashlens.errors import UnsoundModelError
from squashlens.hooks.interventions import SCORES, grid
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.substitution import (
    beside_the_first,
    choose_places,
    empty_effects,
    label_effects,
)
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.agreement import agree
from squashlens.model.applied import probe_ids
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import attached, without_ambient
from squashlens.model.premises import require_attention_alone
from squashlens.prompts import answers_after
from squashlens.records.labels import MODEL_UNITS
from squashlens.run.activations import edited_copies, log_p
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import next_logits
from squashlens.run.run import Run
from squashlens.sequences import Ids
from squashlens.theory.distances import distance, divergence, total_variation

EMBEDDING = "embed.hook_out"
WITHOUT = {
    "attention": "when no later token attends to the token",
    "embedding": "when the token's embedding is zero",
}


@measurement("substitution", prompts="equal", cheaper="Fewer positions= takes less.")
def knockout_effect(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    kind: Knockout = "attention",
    positions: Iterable[int] | None = None,
    spans: SpansOfTokens = None,
    target: str | tuple[str, str] | None = None,
    query: int = -1,
) -> xr.Dataset:
    """What the output at the query loses when one token of the prompt is knocked out: a distance, and an answer's lead.

    ``effect_i = ‖y_n(x) − y_n(x without i)‖₂``. With ``kind="attention"``, every attention logit of token i for a later
    token is −∞, in all blocks and heads, and the weights of the other tokens grow to a sum of 1. Nothing of the token
    reaches the query then, and it keeps its place. With ``kind="embedding"`` the embedding of the token is 0, which
    leaves a token of no kind at its place. A derivative describes small changes; these are the largest ones.

    Args:
        model, prompt, query: as in `path_bound`.
        kind: ``"attention"``, the default, or ``"embedding"``.
        positions: positions that are knocked out, one at a time; by default all up to the query.
        spans: as in `jacobian_norms`. All tokens of a span are knocked out at once: each of them attends to itself, and
            no other token does. Cannot be used with `positions`.
        target: a right and another answer as they follow the query's token, such as ``(" Rome", " Berlin")``, whose
            log-odds are followed; or a single text, such as a generated one, of which it is the log-probability. Of
            answers of several tokens all count, by teacher forcing. By default the two likeliest next tokens.

    Returns:
        Dataset over (position), or (prompt, position): `effect`, in the model's units; `kl`, KL(p(x) ‖ p(x without i))
        of the next token, in nats; `total_variation` of the two, from 0 to 2; `log_odds_change`, in nats, negative
        where the token speaks for the first answer. Without a position: `log_odds` of the prompt itself, and
        `log_odds_noise`, how far they are from those of a pass of another shape. The coordinates `target` and `against`
        are the two answers. Positions up to the query that are not
        knocked out are NaN, those after it 0. Padded as in `path_bound`, and with `spans` labelled as in
        `jacobian_norms`.

    Raises:
        InputError: a position after the query; spans of several prompts, or together with positions; a target that is
            empty, or begins the other one.
        UnsoundModelError: something besides attention passes between tokens, for ``kind="attention"``; a token acts by
            its id in other ways too, for ``"embedding"``; or hooks there have no effect.

    Source: Geva et al. 2023, arXiv 2304.14767, attention knockout, which they apply to the last token and a few blocks.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.knockout_effect(model, "What is the last digit in this sequence? 0107 =")
    >>> found["kl"].values[10:14].round(1).tolist()   # the model answers from the last digit alone
    [0.0, 0.0, 0.0, 12.8]
    """
    run = Run.of(
        model,
        prompt,
        "knockout_effect",
        kind=kind,
        positions=None if positions is None else [*positions],
        target=target,
        query=query,
        spans=spans,
    )
    if kind == "attention":
        require_attention_alone(run.model)
    elif not run.proof.once(
        "identity is in embeddings",
        lambda: _only_in_embeddings(run),
    ):
        raise UnsoundModelError(
            f"A token of {run.architecture} whose embedding is zero still acts by its id, "
            "as with embeddings for each layer.",
            "Use kind='attention'.",
        )
    n, (run, groups) = run.query(query), Spans.of(run, spans)
    together = choose_places(positions, groups, 0, n)
    found = empty_effects(
        run,
        groups,
        together,
        n,
        ("effect", "kl", "total_variation", "log_odds_change"),
    )
    found |= {
        name: torch.zeros(len(run.ids), dtype=torch.float64)
        for name in ("log_odds", "log_odds_noise")
    }
    labels: dict[str, list[str]] = {"target": [], "against": []}
    hidden = torch.zeros(
        len(together) + 1, n + 1, dtype=torch.bool
    )  # the first row is the prompt itself
    for row, places in enumerate(together.values(), 1):
        hidden[row, places] = True
    for row, ids in enumerate(run.ids):
        prompt_ids = ids[: n + 1]
        y = _knock_out(run, prompt_ids, hidden, kind)[:, 0]
        found["effect"][row, [*together]] = distance(
            y[1:], y[:1].expand_as(y[1:]), "l2"
        ).cpu()
        answers = [target] if isinstance(target, str) else [*(target or ())]
        tokens = answers_after(run.model, prompt_ids.tolist(), answers)
        parts = []
        for own, logs in beside_the_first(run, y):
            if not tokens:
                tokens = [(token,) for token in own[0].topk(2).indices.tolist()]
                answers = run.tokens_of(torch.tensor(tokens).T)[0]
            moved = (
                divergence(own, logs),
                total_variation(own.exp().expand_as(logs), logs.exp()),
            )
            parts.append(
                torch.stack([*moved, *(logs[:, one[0]] for one in tokens)]).cpu()
            )
        kl, moves, *first = torch.cat(parts, dim=1)
        found["kl"][row, [*together]], found["total_variation"][row, [*together]] = (
            kl[1:],
            moves[1:],
        )
        odds = _lead(run, prompt_ids, tokens, hidden, kind, first)
        found["log_odds_change"][row, [*together]], found["log_odds"][row] = (
            odds[1:] - odds[0],
            odds[0],
        )
        found["log_odds_noise"][row] = (
            (_lead(run, prompt_ids, tokens, None, kind) - odds[0]).abs().max()
        )
        for name, text in zip(labels, [*answers, ""], strict=False):
            labels[name].append(text)
    lead = (
        "log-probability of the answer"
        if isinstance(target, str)
        else "log-odds of the two answers"
    )
    texts = {
        "effect": (f"distance that the output moves {WITHOUT[kind]}", MODEL_UNITS),
        "kl": (f"KL divergence of the next token {WITHOUT[kind]}", "nats"),
        "total_variation": (f"total variation of the next token {WITHOUT[kind]}", "1"),
        "log_odds_change": (f"change of the {lead} {WITHOUT[kind]}", "nats"),
        "log_odds": (f"{lead} after the prompt", "nats"),
        "log_odds_noise": (
            f"difference of this {lead} and that of a pass of another shape",
            "nats",
        ),
    }
    return label_effects("knockout effect", run, found, texts, labels)


def _lead(
    run: Run,
    ids: Tensor,
    answers: Sequence[Ids],
    hidden: Bool[Tensor, "variant position"] | None,
    kind: Knockout,
    first: Sequence[Tensor] | None = None,
) -> Float[Tensor, " variant"]:
    """The log-probability of the first answer, minus that of the second one if there is one, for each variant.

    `first` has those of the answers' first tokens, if they are known. Without `hidden`, of the prompt by itself.
    """
    totals = []
    for number, answer in enumerate(answers):
        if first is not None and len(answer) == 1:
            totals.append(first[number])
            continue
        tokens = ids.new_tensor(answer)
        y = _knock_out(run, torch.cat([ids, tokens[:-1]]), hidden, kind, len(ids) - 1)
        totals.append(log_p(run, y, tokens).sum(dim=-1))
    return totals[0] - totals[1] if len(totals) > 1 else totals[0]


def _knock_out(
    run: Run,
    ids: Tensor,
    hidden: Bool[Tensor, "variant position"] | None,
    kind: Knockout,
    start: int = -1,
) -> Float[Tensor, "variant position d"]:
    """y from position `start` on, with the `hidden` positions of each variant knocked out, or of the prompt itself."""
    if hidden is None:
        return next(edited_copies(run, ids, 1, lambda _: []))[:, start:]
    rows = torch.nn.functional.pad(hidden, (0, len(ids) - hidden.shape[1])).to(
        ids.device
    )
    variants = edited_copies(
        run, ids, len(rows), lambda numbers: [_hook(kind, rows[numbers])]
    )
    return torch.cat([y[:, start:].clone() for y in variants])


def _only_in_embeddings(run: Run) -> bool:
    """Whether two prompts are the same to the model if the only token that differs has an embedding of zero."""
    ids = probe_ids(run.model)[:, :4].repeat(2, 1)
    ids[1, 1] = (ids[1, 1] + 1) % int(run.model.cfg.d_vocab)
    hidden = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    hidden[:, 1] = True
    hook = _hook("embedding", hidden)
    with without_ambient(run.model), attached(run.model, hook):
        one, other = next_logits(run, ids)
    return agree(one, other, run.dtype)


def _hook(kind: Knockout, hidden: Bool[Tensor, "variant position"]) -> Hook:
    """The hook that knocks the `hidden` positions of each prompt of a batch out."""

    def unread(scores: Tensor) -> Tensor:
        query, key = grid(scores)
        return scores.masked_fill(
            hidden.to(scores.device)[:, None, None] & (query > key), -torch.inf
        )

    def zeroed(embeddings: Tensor) -> Tensor:
        return embeddings.masked_fill(hidden[..., None], 0.0)

    site, edit = (SCORES, unread) if kind == "attention" else (EMBEDDING, zeroed)
    name = f"knockout of {kind}"
    return Hook(name, site, edit, positional=True, checked=False)
