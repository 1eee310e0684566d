"""Answers forced on a prompt, token by token, in every grouping of the prompt into passes, and what is written freely.

An answer may be spelled in several ways, as with and without a space before it. Its probability is that of all its
spellings together, by teacher forcing.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens.bars import bar
from squashlens.model.text.context import text_after
from squashlens.run.forward import logits_of
from squashlens.run.generate import Prompt, generate
from squashlens.run.groupings import PIECES, continued_streams
from squashlens.run.run import Run
from squashlens.sequences import Ids
from squashlens.theory.distances import ulp

Spellings = Mapping[str, Sequence[Ids]]  # the tokens of each way to write each text
MORE = 4  # tokens that may be written beside an answer: a space or a line before it, and what shows that it ended
# After a word or number, what makes it another one: "isn't", "twenty-one", "3.14"; marks are seen by their category.
GOES_ON = re.compile(r"\w|[-'’]\w|[.,]\d|\u200d")
QUICK = (PIECES[-1],)  # one grouping alone, for odds whose rounding is not asked for


@dataclass(frozen=True)
class Spelling:
    """One way to write a text, forced on a prompt.

    `log_p` is that of each of its tokens after those before it, `ranks` has the worst rank of a token in each run, 1 if
    all are the likeliest, `rounding` is ½ ulp of each token's logit, and `behind` is how far the likeliest token is at
    most ahead of one of its tokens, in nats, both in the first run.
    """

    tokens: Ids
    log_p: Float[Tensor, "run token"]
    ranks: Int[Tensor, " run"]
    rounding: Float[Tensor, " token"]
    behind: float


@dataclass(frozen=True)
class ForcedAnswers:
    """A prompt with texts forced on it: its last token's streams in every run, and the spellings of each text."""

    streams: Float[Tensor, "run layer d"]
    spellings: Mapping[str, list[Spelling]]

    def log_odds(self, text: str, other: str) -> tuple[Float[Tensor, " run"], float]:
        """log p(text) − log p(other) in every run, and its noise: between runs, at least that of rounded logits."""
        log_p, rounding = self._log_p(text, other)
        other_log_p, other_rounding = self._log_p(other, text)
        odds = log_p - other_log_p  # in each run
        between_runs = float((odds - odds[0]).abs().max())
        return odds, max(between_runs, rounding + other_rounding)

    def probability(self, text: str) -> float:
        """The probability of a text, or of a longer one that begins with it, in the first run."""
        of_spellings = [spelling.log_p[0].sum() for spelling in self.spellings[text]]
        return float(torch.stack(of_spellings).logsumexp(dim=0).exp())

    def rank(self, text: str) -> int:
        """The worst rank of a token, in the first run and for the best spelling."""
        return min(int(spelling.ranks[0]) for spelling in self.spellings[text])

    def behind(self, text: str) -> float:
        """How far the likeliest token is ahead of a token of the text at most, for the best spelling, in nats."""
        return min(spelling.behind for spelling in self.spellings[text])

    def writes(self, text: str) -> Bool[Tensor, " run"]:
        """Whether greedy decoding writes a spelling of the text, in each run: no token is likelier than one of its."""
        ranks = torch.stack([spelling.ranks for spelling in self.spellings[text]])
        return (ranks == 1).any(dim=0)

    def _log_p(self, text: str, other: str) -> tuple[Float[Tensor, " run"], float]:
        """log p of a text in every run, over its spellings, and the least that rounding does to it.

        A text that begins the other one, as 9 begins 90, counts unless the other one's next token follows.
        """
        log_p = []
        for spelling in self.spellings[text]:
            whole = spelling.log_p.sum(dim=-1)
            length = len(spelling.tokens)
            for longer in self.spellings[other]:
                is_longer = len(longer.tokens) > length
                if is_longer and longer.tokens[:length] == spelling.tokens:
                    # × (1 − p of the token with which the other text goes on)
                    whole = whole + torch.log1p(-longer.log_p[:, length].exp())
                    break
            log_p.append(whole)
        by_spelling = torch.stack(log_p)  # (spelling, run)
        likeliest = self.spellings[text][int(by_spelling[:, 0].argmax())]
        return by_spelling.logsumexp(dim=0), float(likeliest.rounding.sum())


def force(
    run: Run,
    ids: Ids,
    spellings: Spellings,
    sizes: Sequence[int | None] = (None, *PIECES),
) -> ForcedAnswers:
    """Run a prompt with every spelling of every text after it, in the groupings of `sizes`.

    A size is the number of tokens in a piece of the prompt, or None for the whole prompt in one pass.
    """
    different = list(dict.fromkeys(chain.from_iterable(spellings.values())))
    streams, y_before_tokens = continued_streams(run, ids, different, sizes)
    by_tokens = {}
    for tokens, y in zip(different, y_before_tokens, strict=True):
        by_tokens[tokens] = _spelling(run, tokens, y)
    by_text = {}
    for text, of_text in spellings.items():
        by_text[text] = [by_tokens[tokens] for tokens in of_text]
    return ForcedAnswers(streams, by_text)


def force_each(
    run: Run,
    prompts: Sequence[Ids],
    spellings: Sequence[Spellings],
    sizes: Sequence[int | None] = (None, *PIECES),
) -> list[ForcedAnswers]:
    """`force` for several prompts, with a progress bar."""
    forced = []
    prompts_with_texts = list(zip(prompts, spellings, strict=True))
    for ids, of_prompt in bar(prompts_with_texts, desc="answers", unit="prompt"):
        forced.append(force(run, ids, of_prompt, sizes))
    return forced


def write_freely(run: Run, prompts: Sequence[Ids], longest: int) -> list[Ids]:
    """The tokens that greedy decoding writes after each prompt: `longest`, and a few more."""
    questions = [Prompt(ids, longest + MORE) for ids in prompts]
    written: list[Ids] = [()] * len(prompts)
    with bar(total=len(prompts), desc="greedy decoding", unit="prompt") as progress_bar:
        for batch in generate(run, questions):
            for place, continuation in batch.items():
                written[place] = continuation.ids
            progress_bar.update(len(batch))
    return written


def answer_in(text: str, answers: Sequence[str]) -> str | None:
    """The answer with which a text begins, white space before it aside; the longest of several, None without one.

    >>> answer_in(" Ann Lee, who", ["Ann", "Ann Lee"]), answer_in("90 ones", ["9"]), answer_in(" 9.\\n", ["9"])
    ('Ann Lee', None, '9')
    """
    text = text.lstrip()
    longest = None
    for answer in sorted(answers, key=len):
        begins = text.startswith(answer.lstrip())
        if begins and not _goes_on(text.removeprefix(answer.lstrip())):
            longest = answer
    return longest


def _goes_on(following: str) -> bool:
    """Whether what follows a word goes on with it: with a letter, a digit, or a mark on its last letter."""
    next_character = following[:1] or " "
    is_mark = unicodedata.category(next_character)[0] == "M"
    return bool(GOES_ON.match(following)) or is_mark


def tokens_up_to(run: Run, prompt: Ids, written: Ids, answer: str) -> Ids:
    """The fewest first tokens of what was written after a prompt whose text has the whole answer."""
    for count in range(1, len(written) + 1):
        text = text_after(run.model.tokenizer, prompt, written[:count])
        if text.lstrip().startswith(answer.lstrip()):
            return written[:count]
    return written


def _spelling(run: Run, tokens: Ids, y: Float[Tensor, "run token d"]) -> Spelling:
    """What is kept of a spelling, from y before each of its tokens in every run."""
    logits = torch.stack([logits_of(run, of_run).double().cpu() for of_run in y])
    index = torch.tensor(tokens).expand(len(y), -1)[..., None]
    token_logits = logits.gather(-1, index)  # (run, token, 1)
    log_p = (token_logits - logits.logsumexp(dim=-1, keepdim=True))[..., 0]
    n_likelier = (logits > token_logits).sum(dim=-1)
    largest = logits[0].amax(dim=-1, keepdim=True)
    return Spelling(
        tokens=tokens,
        log_p=log_p,
        ranks=n_likelier.amax(dim=-1) + 1,
        rounding=ulp(token_logits[0, :, 0], run.dtype) / 2,
        behind=float((largest - token_logits[0]).max()),
    )
