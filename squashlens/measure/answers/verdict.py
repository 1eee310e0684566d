"""What became of a change of the prompt that changes the right answer: used, present and not used, or lost.

A verdict needs a right answer that changes, and noise that was measured. A model may well ignore an irrelevant word or
the order of summands: that is invariance, and no loss. So a verdict is about two prompts with two right answers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, positive
from squashlens.bars import bar
from squashlens.engine.anatomy import dtype_of, n_blocks
from squashlens.engine.loading.random_weights import with_random_weights
from squashlens.engine.running.forward import logits_of, require_understood
from squashlens.engine.running.groupings import continued_streams, groupings
from squashlens.engine.text.tokens import tokenize
from squashlens.errors import InputError
from squashlens.measure.answers.accuracy import right_answer
from squashlens.measure.answers.choices import require_an_answer_each
from squashlens.measure.registration import measurement
from squashlens.measure.session import Session
from squashlens.prompts import tokenize_after
from squashlens.records.results import Variable
from squashlens.sequences import GrowingSequence, Ids
from squashlens.theory.distances import NOISE_FLOORS, ulp
from squashlens.theory.separation import between_neighbours, noise_of_runs, ratio, to_first_run

PREFERRED = math.log(2)  # least log-odds of a preferred answer: with random weights λ straddles 0 now and then, barely
# How much less likely than the likeliest token those of an answer may be. λ of two answers that the model would never
# give follows the prompt by chance: of right answers in another order one in ten, all of them e^9.9 behind or more.
POSSIBLE = math.log(1000)
Spellings = Mapping[str, list[Ids]]  # the tokens of each way to write each answer
USED, UNRESOLVED, PRESENT, LOST, UNDECIDED = "used", "not resolved", "present, not used", "lost", "undecided"


@measurement("verdict_odds", "verdict_margins", cheaper="n_random_models=0 takes less.")
def verdict(
    model: Bridge,
    prompts: Sequence[str] | GrowingSequence,
    answers: Sequence[str] | Callable[[tuple[str, ...]], str],
    *,
    lengths: Iterable[int] | None = None,
    n_random_models: int = 1,
) -> xr.Dataset:
    """What the model makes of a change of the prompt that changes the right answer, for each two successive prompts.

    For prompts P and P′ with the right answers a and a′, let ``λ(P) = log p(a | P) − log p(a′ | P)`` be the log-odds of
    the two whole answers, by teacher forcing. Every prompt is run in three groupings into passes, as in `separation`:
    the noise of λ is the largest difference between runs, at least what rounding the logits does. In this order:

    1. ``"not resolved"``: λ(P) and λ(P′) differ by less than 3 noises, in this dtype;
    2. ``"used"``: each prompt prefers its own answer, λ(P) > 0 > λ(P′), and the model might give it: the likeliest
       token is nowhere 1000 times as likely as its token. It is ``"undecided"`` if an own answer is not at least twice
       as likely as the other one in all runs, or if models with random weights do as much: if one prefers both answers
       so, or if λ(P) or −λ(P′) is less than log 2 above twice what the change moves its λ by;
    3. ``"present, not used"``: at y or at some layer, the representations of the last token are further apart than the
       sum of their noises (`margin` > 1), and in all other runs the prompt that was run is the nearer one;
    4. ``"lost"``: at no layer, nor at y, is the prompt that was run the nearer one in all other runs;
    5. ``"undecided"`` otherwise.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompts: at least two texts, each with another right answer than the one before it; or a growing sequence,
            whose lengths are the prompts.
        answers: the right answer of each prompt, as the model would write it; for a sequence, a function from the
            texts of its content tokens to the text of the answer. If none begins with a space, each counts with and
            without one.
        lengths: for a sequence, numbers of content tokens; all from 1 by default.
        n_random_models: number of models with random weights that are measured as well, without hooks; 1 by default.
            With 0, the architecture alone may do what is called used.

    Returns:
        Dataset. Over (pair), with P the prompt of the pair and P′ the next one: `log_odds` and `log_odds_after`, λ(P)
        and λ(P′), in nats; `log_odds_noise`, the larger of their two noises; `probability` and `probability_after`, of
        the right answer after each prompt; `behind`, the largest log ratio of the likeliest token to a token of the
        right answer, in nats; `rank`, the worst one of a token of the first answer, each after those before it, so that
        greedy decoding writes the answer if it is 1; `margin_y`; and the coordinate `verdict`.
        Over (pair, layer): `margin`, ‖v − v′‖₂ ÷ (ν + ν′); `recovered`, the share of runs in which the prompt that was
        run is the nearer one (chance ½), with `recovered_y`; and over (random_model, pair, layer) `margin_random`, with
        `margin_random_y`, and over (random_model, pair) `log_odds_random` and `log_odds_after_random`. The coordinates
        `answer` and `answer_after` have the two right answers; for a sequence `length` and `length_after` its lengths.

    Raises:
        InputError: fewer than two prompts, not one answer for each, or two successive prompts or answers that are
            the same.
        UnsoundModelError: the logits do not follow from y.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ask = "How many ones are in the following sequence? {} ="
    >>> found = sl.verdict(model, [ask.format("111"), ask.format("1111")], ["3", "4"])
    >>> found["verdict"].values.tolist()
    ['used']
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    session, asked, right, labels = _questions(model, prompts, answers, lengths)
    session = session.knowing(groupings=groupings(session.model))
    near = [right[max(0, at - 1) : at + 2] for at in range(len(asked))]
    before = ("",) if any(text != text.lstrip() for text in right) else ("", " ")  # as written, if one has a space
    forms = [
        {t: list(dict.fromkeys(tokenize_after(model, ids, f"{space}{t}") for space in before)) for t in texts}
        for ids, texts in zip(asked, near, strict=True)
    ]
    models = bar([None, *range(n_random_models)], desc="models", unit="model")  # so that one says what all will take
    forced, *random = [_forced(session.model, asked, forms, seed) for seed in models]
    pairs = range(len(asked) - 1)
    chances, noise, behind = np.zeros((2, len(pairs))), *np.zeros((2, len(pairs)))
    (agreeing, clearly), ranks = np.zeros((2, len(pairs)), dtype=bool), np.zeros(len(pairs), dtype=int)
    every = _both(forced, right)
    for pair, both in enumerate(every):
        noise[pair] = max(least for _, least in both)
        own = [one.probability(text) for one, text in zip(forced[pair : pair + 2], right[pair : pair + 2], strict=True)]
        (chances[0, pair], ranks[pair], first), (chances[1, pair], _, second) = own
        behind[pair] = max(first, second)
        agreeing[pair] = both[0][0][0] > 0 > both[1][0][0] and behind[pair] <= POSSIBLE
        clearly[pair] = bool((both[0][0] >= PREFERRED).all() and (both[1][0] <= -PREFERRED).all())
    odds, (margins, shares) = _first(every), _apart(forced)
    alone = np.array([_first(_both(one, right)) for one in random]).reshape(n_random_models, *odds.shape)
    more = clearly & exceeds_random(odds, alone)
    said = [_verdict(*row) for row in zip(odds[0] - odds[1], noise, agreeing, more, margins, shares, strict=True)]
    layers = np.arange(n_blocks(session.model) + 1)
    coords: dict[str, Any] = {"pair": np.array(pairs), "layer": layers, "verdict": ("pair", said), **labels}
    variables: dict[str, Variable] = {
        "log_odds": (("pair",), odds[0], "log-odds of the two answers after the first prompt", "nats"),
        "log_odds_after": (("pair",), odds[1], "log-odds of the two answers after the second prompt", "nats"),
        "probability": (("pair",), chances[0], "probability of the first answer after the first prompt", "1"),
        "rank": (("pair",), ranks, "worst rank of a token of the first answer after the first prompt", "1"),
        "probability_after": (("pair",), chances[1], "probability of the second answer after the second prompt", "1"),
        "behind": (("pair",), behind, "log ratio of the likeliest token to the right answer's, the largest", "nats"),
        "log_odds_noise": (("pair",), noise, "how far rounding moves the log-odds", "nats"),
        **_by_layer("margin", margins, "L2 distance of the two prompts ÷ the sum of their noises"),
        **_by_layer("recovered", shares, "share of runs whose nearer representation is that of their own prompt"),
    }
    if n_random_models:
        coords["random_model"] = np.arange(n_random_models)
        text, dims = "in a model with random weights", ("random_model", "pair")
        variables |= _by_layer("margin_random", np.stack([_apart(one)[0] for one in random]), f"margin {text}")
        for at, name in enumerate(("log_odds", "log_odds_after")):
            variables[f"{name}_random"] = (dims, alone[:, at], f"{variables[name][2]}, {text}", "nats")
    return session.dataset("verdict", coords, variables)


def exceeds_random(odds: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Whether both answers are preferred by more than random weights do; odds are (2, pair) and (model, 2, pair).

    No random model may prefer both itself, and twice what the change moves its λ by must be exceeded by log 2: other
    draws move it further, and from another place. Of 192 pairs in untrained models half of it left 28 used, all of it
    4, and twice of it none.
    """
    own, alone = np.minimum(odds[0], -odds[1]), np.minimum(random[:, 0], -random[:, 1])
    most = 2 * np.abs(random[:, 0] - random[:, 1])
    return ((alone < PREFERRED) & (own >= PREFERRED + most)).all(axis=0)


def _verdict(
    moved: float, noise: float, agreeing: bool, more: bool, margins: np.ndarray, shares: np.ndarray
) -> str:  # fmt: skip
    """The verdict on one pair, in the order of the docstring of `verdict`."""
    if abs(moved) < NOISE_FLOORS * noise:
        return UNRESOLVED
    if agreeing:
        return USED if more else UNDECIDED
    if ((margins > 1) & (shares == 1)).any():
        return PRESENT
    return UNDECIDED if (shares == 1).any() else LOST


def _questions(
    model: Bridge, prompts: Any, answers: Any, lengths: Iterable[int] | None
) -> tuple[Session, list[Ids], list[str], dict[str, Any]]:
    """The session, the ids of every prompt, their right answers, and the coordinates that label the pairs."""
    labels: dict[str, Any] = {}
    asked: list[Ids]
    right: list[Any]
    if isinstance(prompts, GrowingSequence):
        if not callable(answers):
            raise InputError(
                "answers= of a growing sequence is not a function.", "Give one, such as lambda items: str(len(items))."
            )
        chosen = list(range(1, len(prompts) + 1) if lengths is None else lengths)
        asked = [prompts.plain(n).ids(prompts.trunk) for n in chosen]
        right = [right_answer(model, prompts, n, answers) for n in chosen]  # pyright: ignore[reportArgumentType]
        labels = {"length": ("pair", chosen[:-1]), "length_after": ("pair", chosen[1:])}
    else:
        if lengths is not None:
            raise InputError("lengths= is for a growing sequence, and prompts= is a list.", "Leave lengths= out.")
        asked = [tuple(tokenize(model, text)[0].tolist()) for text in prompts]
        right = [] if callable(answers) else [*answers]
    require_an_answer_each(asked, right)
    for text in right:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"answers= has {text!r} as a right answer.", "Give the texts of the answers, not empty.")
    for name, own in (("right answer", [text.strip() for text in right]), ("token ids", asked)):
        same = next((n for n, (a, b) in enumerate(pairwise(own)) if a == b), None)
        if same is not None:
            raise InputError(
                f"Prompts {same} and {same + 1} have the same {name}: {own[same]!r}.",
                "Give prompts that differ, and so do their right answers: only then can something be lost.",
            )
    facts = {"answers": right, "token_ids": [list(ids) for ids in asked]}
    session = Session.without_prompt(model, torch.tensor(max(asked, key=len)), "verdict", **facts)
    labels |= {"answer": ("pair", right[:-1]), "answer_after": ("pair", right[1:])}
    return session, asked, right, labels


@dataclass(frozen=True)
class _Answer:
    """One spelling of an answer: its tokens, log p in every run, ½ ulp of each logit, the worst rank of a token,
    and how far a token is at most behind the likeliest one."""

    tokens: Ids
    log_p: Float[Tensor, "run token"]
    rounding: Float[Tensor, " token"]
    rank: int
    behind: float


@dataclass(frozen=True)
class _Forced:
    """A prompt with answers forced on it: its last token's streams in every run, and the spellings of each answer."""

    streams: Float[Tensor, "run layer d"]
    spellings: Mapping[str, list[_Answer]]

    def log_odds(self, one: str, other: str) -> tuple[Float[Tensor, " run"], float]:
        """log p(one) − log p(other) in every run, and its noise."""
        found = [self._whole(*names) for names in ((one, other), (other, one))]
        runs = found[0][0] - found[1][0]
        return runs, max(float((runs[1:] - runs[0]).abs().max()), found[0][1] + found[1][1])

    def probability(self, text: str) -> tuple[float, int, float]:
        """The probability of an answer, or of a longer one that begins with it, in the first run; the best rank, and
        how far it is behind."""
        spelled = self.spellings[text]
        whole = torch.stack([one.log_p[0].sum() for one in spelled]).logsumexp(dim=0).exp()
        return float(whole), min(one.rank for one in spelled), min(one.behind for one in spelled)

    def _whole(self, text: str, other: str) -> tuple[Float[Tensor, " run"], float]:
        """log p of an answer in every run, over its spellings, and the least that rounding does to it.

        An answer that begins the other one, as 9 begins 90, counts unless the other one's next token follows.
        """
        each = []
        for answer in self.spellings[text]:
            whole, n = answer.log_p.sum(dim=-1), len(answer.tokens)
            longer = (o for o in self.spellings[other] if len(o.tokens) > n and o.tokens[:n] == answer.tokens)
            if (continued := next(longer, None)) is not None:
                whole = whole + torch.log1p(-continued.log_p[:, n].exp())
            each.append(whole)
        together = torch.stack(each)
        likeliest = self.spellings[text][int(together[:, 0].argmax())]
        return together.logsumexp(dim=0), float(likeliest.rounding.sum())


def _forced(model: Bridge, asked: Sequence[Ids], forms: Sequence[Spellings], seed: int | None) -> list[_Forced]:
    """Run each prompt with each spelling of each answer after it; with a seed, in a model with random weights."""
    model, forced = model if seed is None else with_random_weights(model, seed), []
    require_understood(model)
    for ids, spelled in bar([*zip(asked, forms, strict=True)], desc="answers", unit="prompt"):
        every = list(dict.fromkeys(tokens for each in spelled.values() for tokens in each))
        streams, answered = continued_streams(model, ids, every)
        read = {tokens: _read(model, tokens, y) for tokens, y in zip(every, answered, strict=True)}
        forced.append(_Forced(streams, {text: [read[tokens] for tokens in each] for text, each in spelled.items()}))
    return forced


def _both(forced: Sequence[_Forced], right: Sequence[str]) -> list[list[tuple[Float[Tensor, " run"], float]]]:
    """For each pair: the log-odds of its two answers after both prompts."""
    return [[one.log_odds(*texts) for one in forced[at : at + 2]] for at, texts in enumerate(pairwise(right))]


def _first(both: Sequence[Any]) -> Float[np.ndarray, "2 pair"]:
    """λ(P) and λ(P′) of every pair in the first run."""
    return np.array([[float(runs[0]) for runs, _ in pair] for pair in both]).T


def _read(model: Bridge, tokens: Ids, y: Float[Tensor, "run token d"]) -> _Answer:
    logits = torch.stack([logits_of(model, rows).double().cpu() for rows in y])
    said = logits.gather(-1, torch.tensor(tokens).expand(len(y), -1)[..., None])
    log_p = (said - logits.logsumexp(dim=-1, keepdim=True))[..., 0]
    rank = int((logits[0] > said[0]).sum(dim=-1).max()) + 1
    behind = float((logits[0].amax(dim=-1, keepdim=True) - said[0]).max())
    return _Answer(tokens, log_p, ulp(said[0, :, 0], dtype_of(model)) / 2, rank, behind)


def _apart(forced: Sequence[_Forced]) -> tuple[np.ndarray, np.ndarray]:
    """For each pair and layer: the margin of successive prompts, and the share of runs whose own prompt is nearer."""
    margins, shares = [], []
    for runs in torch.stack([one.streams for one in forced], dim=2).transpose(0, 1):
        noise = noise_of_runs(runs)
        margins.append(ratio(between_neighbours(runs), noise[1:] + noise[:-1]).nan_to_num(nan=0.0, posinf=torch.inf))
        apart = to_first_run(runs)
        to_own = apart.diagonal(dim1=-2, dim2=-1)
        right = [(to_own[:, :-1] < apart.diagonal(1, -2, -1)), (to_own[:, 1:] < apart.diagonal(-1, -2, -1))]
        shares.append(torch.stack(right).double().mean(dim=(0, 1)))
    return tuple(torch.stack(parts, dim=1).numpy() for parts in (margins, shares))  # pyright: ignore


def _by_layer(name: str, values: np.ndarray, text: str) -> dict[str, Variable]:
    """Two variables from values whose last axis is layers and then y."""
    dims = ("random_model", "pair")[-values.ndim + 1 :]
    return {
        name: ((*dims, "layer"), values[..., :-1], text, "1"),
        f"{name}_y": (dims, values[..., -1], f"{text}, y", "1"),
    }
