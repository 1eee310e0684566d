"""What became of a change of the prompt that changes the right answer: answered, preferred, not used, or lost.

A verdict needs a right answer that changes, and noise that was measured. A model may well ignore an irrelevant word or
the order of summands: that is invariance, and no loss. So a verdict is about two prompts with two right answers.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from squashlens._typing import Bridge, TextsOrPairs, dtype_name, positive
from squashlens.bars import bar
from squashlens.measure.answers.forced_answers import (
    QUICK,
    ForcedAnswers,
    answer_in,
    force,
    force_each,
    tokens_up_to,
    write_freely,
)
from squashlens.measure.answers.placebos import is_mentioned_alone, placebos_of
from squashlens.measure.answers.verdict_evidence import PREFERRED, Evidence
from squashlens.measure.answers.verdict_questions import ComparedPrompts, prepare_pairs
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of, with_y
from squashlens.model.text.context import text_after
from squashlens.run.activations import untrained
from squashlens.run.forward import require_understood
from squashlens.run.groupings import groupings
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence
from squashlens.theory.separation import distance_by_noise, nearer_to_own


@measurement("verdict_odds", "verdict_margins")
def diagnose(
    model: Bridge,
    prompts: TextsOrPairs | GrowingSequence,
    answers: TextsOrPairs | Callable[[tuple[str, ...]], str],
    *,
    lengths: Iterable[int] | None = None,
    n_random_models: int = 1,
) -> xr.Dataset:
    """What the model makes of a change of the prompt that changes the right answer, for pairs of prompts.

    For prompts P and P′ with the right answers a and a′, let ``λ(P) = log p(a | P) − log p(a′ | P)`` be the log-odds of
    the two whole answers, by teacher forcing; an answer that begins the other one, as 9 begins 90, counts unless the
    other one's next token follows. Every prompt is run in three groupings into passes, as in `distinguishable_lengths`:
    ν, the noise of a representation, is how far the other runs are from the first, and the noise of λ is the largest
    difference between runs, at least what rounding the logits does. In this order:

    1. ``"answered"``: greedy decoding writes each prompt's own right answer, and not the other one,
       if that is longer;
    2. ``"lost"``: at y, the two prompts are not further apart than ν + ν′, a run of one is not always nearer to the
       other runs of it than to those of the other prompt, and λ differs by less than 3 noises;
    3. ``"reaches the last token, not used"``: y of the two prompts differ beyond the noise, and λ(P) or λ(P′) has the
       wrong sign beyond its noise. This says that the *change* arrives, and not that a right answer is there: for that
       see `probe`, which reads answers of other prompts;
    4. ``"preferred, not answered"``: each prompt prefers its own answer, λ(P) and −λ(P′) being at least log 2 in all
       runs, the likeliest token is nowhere 1000 times as likely as one of theirs, and this is more than placebos and
       random weights do. Placebos are other words that differ between the prompts in the same places. The lead, the
       smaller of λ(P) and −λ(P′), must be at least log 2 above theirs. If an answer occurs in its own prompt alone, a
       lead may only say that it was mentioned, as the placebos were: then at most 5 % of the placebos of all pairs, the
       answer counted with them, may lead as much, which takes at least 19;
    5. ``"undecided"`` otherwise, with the `reason`.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompts: at least two texts, each of which is compared with the next; or pairs of texts, such as one with a fact
            at some depth and its counterpart with another fact there; or a growing sequence, whose lengths are the
            prompts.
        answers: the right answer of each prompt, as the model would write it, or pairs of them; for a sequence, a
            function from the texts of its content tokens to the text of the answer. If none begins with a space, each
            counts with and without one. The two answers of a pair must differ.
        lengths: for a sequence, numbers of content tokens; all from 1 by default.
        n_random_models: number of models with random weights that are beside preferred answers, without hooks; 1 by
            default. They are run for pairs that nothing else decides. With 0, the architecture alone may do what is
            called preferred.

    Returns:
        Dataset. Over (pair): `log_odds` and `log_odds_after`, λ(P) and λ(P′), in nats; `log_odds_noise`, the larger of
        their two noises; `probability` and `probability_after`, of the right answer after each prompt;
        `gap_to_likeliest`, the largest log ratio of the likeliest token to a token of a right answer, in nats;
        `worst_rank`, the worst one of a token of the first answer, each after those before it; `placebo`, the largest
        min(λ, −λ′) of a placebo, NaN where none was needed; `margin_y`; and the coordinates `verdict` and `reason`,
        `written` and `written_after`, what greedy decoding writes after each prompt, and `last_told_apart`, the last
        layer whose margin is above 1 and that every run recovers, −1 if there is none. Over (pair, layer): `margin`, ‖v
        − v′‖₂ ÷ (ν + ν′); `recovered`, how often a run is nearer to another run of its own prompt than to that of the
        other prompt, with `recovered_y`. Over (random_model, pair): `log_odds_random` and `log_odds_after_random`, NaN
        where they were not needed. The coordinates `answer` and `answer_after` have the two right answers; for a
        sequence `length` and `length_after` its lengths.

    Raises:
        InputError: no pair, not one answer for each prompt, or two prompts or answers of a pair that are the same.
        UnsoundModelError: the logits do not follow from y.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ask = "How many ones are in the following sequence? {} ="
    >>> said = sl.diagnose(model, [ask.format("111"), ask.format("1111")], ["3", "4"])
    >>> said["verdict"].values.tolist()
    ['answered']
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    run = Run.open(model, **this_call())
    asked = prepare_pairs(run, prompts, answers, lengths)
    run = asked.run.knowing(groupings=groupings(asked.run))
    require_understood(run)
    written, forced = _answers_of(run, asked)
    evidence = [_evidence(run, asked, pair, written, forced) for pair in asked.pairs]
    # Only a preferred answer needs to be compared with placebos, and then with random weights.
    if _preferred(evidence):
        _add_placebos(run, asked, evidence)
    preferred = _preferred(evidence)
    random_odds = _odds_in_random_weights(run, asked, preferred, n_random_models)
    for pair in preferred:
        evidence[pair].random = random_odds[:, :, pair]
    table = pd.DataFrame([known.as_row() for known in evidence])
    labels = ("verdict", "reason", "written", "written_after", "last_told_apart")
    coords: dict[str, Any] = {
        "pair": np.arange(len(asked.pairs)),
        "layer": np.arange(run.n_blocks + 1),
        **{name: ("pair", table[name].to_numpy()) for name in labels},
        **asked.labels,
    }
    numbers = table.drop(columns=list(labels))
    by_name = {name: numbers[name].to_numpy() for name in numbers}
    if n_random_models:
        coords["random_model"] = np.arange(n_random_models)
        by_name["log_odds_random"] = random_odds[:, 0]
        by_name["log_odds_after_random"] = random_odds[:, 1]
    layers = {
        "margin": np.stack([known.margins for known in evidence]),
        "recovered": np.stack([known.recovered for known in evidence]),
    }
    variables = variables_of(TABLE, by_name) | with_y(variables_of(TABLE, layers))
    return run.dataset("verdict", coords, variables)


def _preferred(evidence: Sequence[Evidence]) -> list[int]:
    """The numbers of the pairs that are so far preferred, not answered."""
    return [pair for pair, known in enumerate(evidence) if known.verdict == PREFERRED]


def _answers_of(
    run: Run, asked: ComparedPrompts
) -> tuple[list[str], list[ForcedAnswers]]:
    """What greedy decoding writes after each prompt, and each prompt with the answers of its pairs forced on it.

    An answer that is written in other tokens than those expected is one more spelling of it.
    """
    # Both answers of each pair are forced on both of its prompts; in a list of prompts one may be in two pairs.
    forced_texts: list[list[str]] = [[] for _ in asked.prompts]
    for first, second in asked.pairs:
        forced_texts[first] += asked.answers_of(first, second)
        forced_texts[second] += asked.answers_of(first, second)
    spellings = []
    longest = 0  # tokens of a spelling
    for prompt, texts in enumerate(forced_texts):
        of_prompt = asked.spellings(prompt, texts)
        spellings.append(of_prompt)
        for tokens in chain.from_iterable(of_prompt.values()):
            longest = max(longest, len(tokens))
    written_texts = []
    written = write_freely(run, asked.prompts, longest)
    for ids, answer, tokens, of_prompt in zip(
        asked.prompts, asked.right, written, spellings, strict=True
    ):
        text = text_after(run.model.tokenizer, ids, tokens) if tokens else ""
        if answer_in(text, [answer]) == answer:
            as_written = tokens_up_to(run, ids, tokens, answer)
            if as_written not in of_prompt[answer]:
                of_prompt[answer].append(as_written)
        written_texts.append(text)
    return written_texts, force_each(run, asked.prompts, spellings)


def _evidence(
    run: Run,
    asked: ComparedPrompts,
    pair: tuple[int, int],
    written: list[str],
    forced: list[ForcedAnswers],
) -> Evidence:
    """What is known of a pair before placebos and random weights.

    `pair` has the numbers of its two prompts. `written` is what greedy decoding writes after each prompt, and `forced`
    each prompt with answers forced on it.
    """
    first, second = pair
    before = forced[first]
    after = forced[second]
    answers = asked.answers_of(first, second)
    answer, answer_after = answers
    # λ(P) and λ(P′), both of the first prompt's answer against the second's.
    odds, noise = before.log_odds(answer, answer_after)
    odds_after, noise_after = after.log_odds(answer, answer_after)
    margins = distance_by_noise(before.streams, after.streams, run.dtype)
    return Evidence(
        answers=answers,
        said=(written[first], written[second]),
        writes=(
            _writes(answers, answer, written[first], before),
            _writes(answers, answer_after, written[second], after),
        ),
        odds=odds.numpy(),
        odds_after=odds_after.numpy(),
        noise=max(noise, noise_after),
        probabilities=(before.probability(answer), after.probability(answer_after)),
        rank=before.rank(answer),
        behind=max(before.behind(answer), after.behind(answer_after)),
        margins=margins.numpy(),
        recovered=nearer_to_own(before.streams, after.streams).numpy(),
        dtype=dtype_name(run.dtype),
    )


def _writes(
    answers: tuple[str, str], right: str, written: str, forced: ForcedAnswers
) -> bool | None:
    """Whether greedy decoding writes the right one of two answers; None if that depends on the grouping into passes.

    `written` is from one run, and `forced` says in which runs all of the right one's tokens are the likeliest. They may
    be and the text go on, as with 1 where 12 is written: that is another answer.
    """
    is_likeliest = forced.writes(right)  # in each run
    if answer_in(written, answers) == right:
        return True if is_likeliest.all() else None
    return None if is_likeliest.any() and not is_likeliest.all() else False


def _add_placebos(
    run: Run, asked: ComparedPrompts, evidence: Sequence[Evidence]
) -> None:
    """Force placebos on both prompts of every pair, and store their leads in its evidence.

    Placebos are words that differ between the two prompts in the same places.
    """
    for (first, second), known in zip(
        asked.pairs, bar(evidence, desc="placebos", unit="pair"), strict=True
    ):
        texts = asked.texts[first], asked.texts[second]
        known.only_mentioned = is_mentioned_alone(texts, known.answers)
        words = placebos_of(texts, known.answers)
        if not words:
            continue
        by_words = _quick_odds(run, asked, (first, second), words)
        for two_words, (odds, odds_after) in by_words.items():
            known.placebos[two_words] = min(odds, -odds_after)
    leads_of_all: list[float] = []
    for known in evidence:
        leads_of_all += known.placebos.values()
    for known in evidence:
        known.all_placebos = np.array(leads_of_all)


def _odds_in_random_weights(
    run: Run, asked: ComparedPrompts, pairs: Sequence[int], n_random_models: int
) -> np.ndarray:
    """λ(P) and λ(P′) in models with random weights, (model, 2, pair); NaN for other pairs than `pairs`."""
    odds = np.full((n_random_models, 2, len(asked.pairs)), np.nan)
    for seed in range(n_random_models if pairs else 0):
        with untrained(run, seed) as random_run:
            require_understood(random_run)
            for pair in pairs:
                answers = asked.answers_of(*asked.pairs[pair])
                by_words = _quick_odds(random_run, asked, asked.pairs[pair], [answers])
                odds[seed, :, pair] = by_words[answers]
    return odds


def _quick_odds(
    run: Run,
    asked: ComparedPrompts,
    pair: tuple[int, int],
    words: Sequence[tuple[str, str]],
) -> dict[tuple[str, str], tuple[float, float]]:
    """λ(P) and λ(P′) of each two words, the first against the second, after both prompts of a pair, in one grouping."""
    first, second = pair
    texts = list(dict.fromkeys(chain.from_iterable(words)))
    spellings = asked.spellings(first, texts)
    spellings_after = asked.spellings(second, texts)
    forced = force(run, asked.prompts[first], spellings, QUICK)
    forced_after = force(run, asked.prompts[second], spellings_after, QUICK)
    by_words = {}
    for word, other in words:
        odds, _ = forced.log_odds(word, other)
        odds_after, _ = forced_after.log_odds(word, other)
        by_words[word, other] = float(odds[0]), float(odds_after[0])
    return by_words


AFTER = "after the first prompt"
AFTER_SECOND = "after the second prompt"
OF_ODDS = f"log-odds of the two answers {AFTER}"
OF_ODDS_AFTER = f"log-odds of the two answers {AFTER_SECOND}"
RANDOM = "in a model with random weights"
MARGIN = "L2 distance of the two prompts ÷ the sum of their noises"
RECOVERED = "share of runs that are nearer to their own prompt"
GAP = "largest log ratio of the likeliest token to a right answer's"
PLACEBO = "largest log-odds by which placebos are preferred"
TABLE = {
    "margin": ("pair layer", MARGIN, "1"),
    "recovered": ("pair layer", RECOVERED, "1"),
    "log_odds": ("pair", OF_ODDS, "nats"),
    "log_odds_after": ("pair", OF_ODDS_AFTER, "nats"),
    "log_odds_noise": ("pair", "how far rounding moves the log-odds", "nats"),
    "gap_to_likeliest": ("pair", GAP, "nats"),
    "placebo": ("pair", PLACEBO, "nats"),
    "probability": ("pair", f"probability of the first answer {AFTER}", "1"),
    "probability_after": (
        "pair",
        f"probability of the second answer {AFTER_SECOND}",
        "1",
    ),
    "worst_rank": ("pair", f"worst rank of a token of the first answer {AFTER}", "1"),
    "log_odds_random": ("random_model pair", f"{OF_ODDS}, {RANDOM}", "nats"),
    "log_odds_after_random": (
        "random_model pair",
        f"{OF_ODDS_AFTER}, {RANDOM}",
        "nats",
    ),
}
