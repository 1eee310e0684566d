"""The knockout effect: how far the output moves when later tokens cannot read a token, or its embedding is zero."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, Knockout, SpansOfTokens
from squashlens.errors import UnsoundModelError
from squashlens.hooks.interventions import SCORES, grid
from squashlens.measure.registration import measurement, this_call
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
BY_TOKEN = ("output_change", "kl", "probability_l1", "target_score_change")


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
        Dataset over (position), or (prompt, position): `output_change`, in the model's units; `kl`, KL(p(x) ‖ p(x
        without i)) of the next token, in nats; `probability_l1` of the two, from 0 to 2; `target_score_change`, in
        nats, negative where the token speaks for the first answer. Without a position: `target_score` of the prompt
        itself, and `target_score_noise`, how far they are from those of a pass of another shape. The coordinates
        `target` and `against` are the two answers. Positions up to the query that are not knocked out are NaN, those
        after it 0. Padded as in `path_bound`, and with `spans` labelled as in `jacobian_norms`.

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
    run = Run.of(model, prompt, **this_call())
    _require_possible(run, kind)
    n = run.query(query)
    run, groups = Spans.of(run, spans)
    positions_by_entry = choose_places(positions, groups, 0, n)
    entries = list(positions_by_entry)
    # (variant, position): which positions are knocked out; in variant 0, the prompt itself, none.
    knockouts = torch.zeros(len(entries) + 1, n + 1, dtype=torch.bool)
    for variant, places in enumerate(positions_by_entry.values(), start=1):
        knockouts[variant, places] = True
    effects = empty_effects(run, groups, positions_by_entry, n, BY_TOKEN)
    effects["target_score"] = torch.zeros(len(run.ids), dtype=torch.float64)
    effects["target_score_noise"] = torch.zeros(len(run.ids), dtype=torch.float64)
    labels: dict[str, list[str]] = {"target": [], "against": []}
    for row, ids in enumerate(run.ids):
        variants = _Variants(run, ids[: n + 1], knockouts, kind)
        y = variants.y()[:, 0]  # at the query
        moved = distance(y[1:], y[:1].expand_as(y[1:]), "l2")
        next_token = _next_token(run, y, _given_answers(run, variants.ids, target))
        answers = next_token.answers
        leads = variants.lead(answers, next_token.first_logs)
        lead_of_other_pass = variants.lead_without_hooks(answers)
        effects["output_change"][row, entries] = moved.cpu()
        effects["kl"][row, entries] = next_token.kl[1:]
        effects["probability_l1"][row, entries] = next_token.total_variation[1:]
        effects["target_score_change"][row, entries] = leads[1:] - leads[0]
        effects["target_score"][row] = leads[0]
        effects["target_score_noise"][row] = (lead_of_other_pass - leads[0]).abs().max()
        labels["target"].append(answers[0].text)
        labels["against"].append(answers[1].text if len(answers) > 1 else "")
    texts = _long_names(kind, is_text=isinstance(target, str))
    return label_effects("knockout effect", run, effects, texts, labels)


def _require_possible(run: Run, kind: Knockout) -> None:
    """Raise if a token can influence later ones in a way that a knockout of this kind does not remove."""
    if kind == "attention":
        require_attention_alone(run.model)
        return

    def only_in_embeddings() -> bool:  # run once for each state of the model
        return _only_in_embeddings(run)

    if not run.proof.once("identity is in embeddings", only_in_embeddings):
        raise UnsoundModelError(
            f"A token of {run.architecture} whose embedding is zero still acts by its id, "
            "as with embeddings for each layer.",
            "Use kind='attention'.",
        )


def _long_names(kind: Knockout, is_text: bool) -> dict[str, tuple[str, str]]:
    """The long name and unit of each effect; with `is_text` the target is one text, and not two answers."""
    without = WITHOUT[kind]
    lead = "log-odds of the two answers"
    if is_text:
        lead = "log-probability of the answer"
    return {
        "output_change": (f"distance that the output moves {without}", MODEL_UNITS),
        "kl": (f"KL divergence of the next token {without}", "nats"),
        "probability_l1": (f"total variation of the next token {without}", "1"),
        "target_score_change": (f"change of the {lead} {without}", "nats"),
        "target_score": (f"{lead} after the prompt", "nats"),
        "target_score_noise": (
            f"difference of this {lead} and that of a pass of another shape",
            "nats",
        ),
    }


class _Answer(NamedTuple):
    """An answer whose lead is followed, as text and as tokens after the prompt."""

    text: str
    tokens: Ids


class _NextToken(NamedTuple):
    """What the next token's distribution of each variant is, beside that of variant 0, the prompt itself.

    Attributes:
        first_logs: log-probabilities of the first token of each answer.
        answers: the given answers, or the two likeliest next tokens of the prompt.
    """

    kl: Float[Tensor, " variant"]
    total_variation: Float[Tensor, " variant"]
    first_logs: Float[Tensor, "variant answer"]
    answers: list[_Answer]


def _given_answers(
    run: Run, ids: Tensor, target: str | tuple[str, str] | None
) -> list[_Answer]:
    """The answers that were given, as they follow the prompt; none by default."""
    if target is None:
        return []
    texts = [target] if isinstance(target, str) else list(target)
    tokens = answers_after(run.model, ids.tolist(), texts)
    return [_Answer(text, ids) for text, ids in zip(texts, tokens, strict=True)]


def _likeliest_answers(run: Run, logs: Float[Tensor, " outcome"]) -> list[_Answer]:
    """The two likeliest next tokens."""
    ids = logs.topk(2).indices.cpu()
    texts = run.tokens_of(ids[None])[0]
    return [
        _Answer(text, (token,)) for text, token in zip(texts, ids.tolist(), strict=True)
    ]


def _next_token(
    run: Run, y: Float[Tensor, "variant d"], answers: list[_Answer]
) -> _NextToken:
    """Compare the next token's distribution of each variant with that of variant 0.

    Without given `answers` these are the two likeliest next tokens of variant 0.
    """
    kl: list[Tensor] = []
    variation: list[Tensor] = []
    first_logs: list[Tensor] = []
    for original, logs in beside_the_first(run, y):  # in batches
        if not answers:
            answers = _likeliest_answers(run, original[0])
        first_tokens = [answer.tokens[0] for answer in answers]
        p = original.exp().expand_as(logs)
        kl.append(divergence(original, logs))
        variation.append(total_variation(p, logs.exp()))
        first_logs.append(logs[:, first_tokens])
    return _NextToken(
        torch.cat(kl).cpu(),
        torch.cat(variation).cpu(),
        torch.cat(first_logs).cpu(),
        answers,
    )


class _Variants(NamedTuple):
    """Variants of one prompt up to the query. In each some positions are knocked out, and in the first one none."""

    run: Run
    ids: Tensor
    knocked_out: Bool[Tensor, "variant position"]
    kind: Knockout

    def y(self, answer: Ids = ()) -> Float[Tensor, "variant position d"]:
        """y of each variant followed by an answer, at the query and at each token of the answer."""
        ids = self._followed_by(answer)
        # Padded with False: no token of the answer is knocked out.
        knocked_out = torch.nn.functional.pad(self.knocked_out, (0, len(answer)))
        knocked_out = knocked_out.to(ids.device)

        def hooks(variants: list[int]) -> list[Hook]:
            return [_hook(self.kind, knocked_out[variants])]

        query = len(self.ids) - 1
        parts: list[Tensor] = []
        for y in edited_copies(self.run, ids, len(knocked_out), hooks):
            # Cloned, since a view would keep the whole of y in memory.
            parts.append(y[:, query:].clone())
        return torch.cat(parts)

    def y_without_hooks(self, answer: Ids) -> Float[Tensor, "1 position d"]:
        """y of the prompt itself, as `y` gives it, from a pass with one copy and no hooks, which rounds otherwise."""

        def no_hooks(variants: list[int]) -> list[Hook]:
            return []

        y = next(edited_copies(self.run, self._followed_by(answer), 1, no_hooks))
        return y[:, len(self.ids) - 1 :]

    def _followed_by(self, answer: Ids) -> Tensor:
        """The token ids of the prompt and of an answer."""
        return torch.cat([self.ids, self.ids.new_tensor(answer)])

    def lead(
        self, answers: list[_Answer], first_logs: Float[Tensor, "variant answer"]
    ) -> Float[Tensor, " variant"]:
        """The log-probability of the first answer, minus that of the second one if there is one, for each variant.

        `first_logs` has the log-probabilities of the answers' first tokens.
        """
        logs: list[Tensor] = []
        for number, answer in enumerate(answers):
            if len(answer.tokens) == 1:
                logs.append(first_logs[:, number])
            else:
                # The last token is predicted, and never read.
                y = self.y(answer.tokens[:-1])
                logs.append(self._log_probability(y, answer))
        return _first_minus_second(logs)

    def lead_without_hooks(self, answers: list[_Answer]) -> Float[Tensor, " 1"]:
        """`lead` of the prompt itself in another pass; their difference shows how far rounding moves it."""
        logs: list[Tensor] = []
        for answer in answers:
            y = self.y_without_hooks(answer.tokens[:-1])
            logs.append(self._log_probability(y, answer))
        return _first_minus_second(logs)

    def _log_probability(
        self, y: Float[Tensor, "variant token d"], answer: _Answer
    ) -> Float[Tensor, " variant"]:
        """``Σ_k log p(token k)`` by teacher forcing."""
        return log_p(self.run, y, self.ids.new_tensor(answer.tokens)).sum(dim=-1)


def _first_minus_second(logs: list[Tensor]) -> Tensor:
    return logs[0] - logs[1] if len(logs) > 1 else logs[0]


def _only_in_embeddings(run: Run) -> bool:
    """Whether a token acts by its embedding alone: a probe, since some models also look ids up elsewhere.

    Two prompts that differ in their second token, whose embedding is set to zero, must then have the same logits.
    """
    ids = probe_ids(run.model)[:, :4].repeat(2, 1)
    ids[1, 1] = (ids[1, 1] + 1) % int(run.model.cfg.d_vocab)
    second_token = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    second_token[:, 1] = True
    hook = _hook("embedding", second_token)
    with without_ambient(run.model), attached(run.model, hook):
        first, second = next_logits(run, ids)
    return agree(first, second, run.dtype)


def _hook(kind: Knockout, knocked_out: Bool[Tensor, "variant position"]) -> Hook:
    """The hook that knocks the given positions out, in a batch that has one row for each variant."""

    def mask_for_later(scores: Tensor) -> Tensor:
        """Attention logits (variant, head, query, key), −∞ for knocked-out keys of later queries."""
        query, key = grid(scores)
        is_key_out = knocked_out.to(scores.device)[:, None, None]
        return scores.masked_fill(is_key_out & (query > key), -torch.inf)

    def zero(embeddings: Tensor) -> Tensor:
        return embeddings.masked_fill(knocked_out[..., None], 0.0)

    name = f"knockout of {kind}"
    if kind == "attention":
        return Hook(name, SCORES, mask_for_later, positional=True)
    return Hook(name, EMBEDDING, zero, positional=True)
