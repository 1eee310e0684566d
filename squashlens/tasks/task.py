"""Tasks: questions about a sequence of a given length, made of data and small functions, without a model.

A task draws items, puts them into a template, and knows the right answer and how to read a model's answer. Your own
task takes a few lines::

    vowels = Task(
        name="vowels",
        template="How many vowels are in '{sequence}'? Answer with a number.",
        draw=lambda n, rng: rng.choices("abcde", k=n),
        answer=lambda items: str(sum(item in "ae" for item in items)),
    )
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

from squashlens._typing import (
    Mode,
    Modes,
    Template,
    distinct,
    one_of,
    positive,
    several,
)
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.tasks.numerals import unread
from squashlens.tasks.reading import WHY, Reader, Reading, is_number, number
from squashlens.tasks.turns import after_thoughts

PLACE = "{sequence}"
# Appendix C.1, chain of thought: the instruction, and what stands before examples.
STEPS = "Let's think step by step, showing me your reasoning."
EXAMPLES_FOLLOW = "Here are a few examples:"
SHORT = 8  # most items in a short question
FIRST = 5  # as many words of a template begin a question
FEW = 2  # as few do not tell it from an answer
DRAWS = 64  # seeds that show whether a task draws at random
DRAWN_SEEDS = (
    16  # default number of questions at each length, for tasks that draw random items
)
Items = tuple[str, ...]


def seeds_of(seeds: int | Iterable[int] | None, default: int) -> list[int]:
    """Random seeds as a list, given as their number or as the seeds themselves."""
    seeds = default if seeds is None else seeds
    if not isinstance(seeds, int):
        return list(seeds)
    positive(seeds, "seeds", "a number of samples")
    return list(range(seeds))


def require_drawn(task: "Task", questions: Iterable["Question"]) -> None:
    """Raise for several seeds that ask the same: with greedy decoding they would count one answer several times."""
    seeds: set[int] = set()
    lengths: set[int] = set()
    for question in questions:
        seeds.add(question.seed)
        lengths.add(question.length)
    if len(seeds) > 1 and not any(map(task.varies, lengths)):
        raise InputError(
            f"The task {task.name!r} asks one question at each length, whatever the seed, and decoding is greedy, so "
            f"that {len(seeds)} seeds would count one answer several times.",
            "Give seeds=1, a task whose draw= uses its generator, or a temperature above 0 to sample answers.",
        )


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """The form in which questions are put to a model: keywords of `evaluate_task`, which describes them."""

    mode: Modes = "answer_only"
    template: Template = "none"
    prefill: bool = False
    n_examples: int = 0
    n_baseline: int = 16

    def __post_init__(self) -> None:
        """Check the numbers of questions, and that there are no examples beside a chain of thought."""
        positive(self.n_examples, "n_examples", "a number of questions", or_zero=True)
        positive(self.n_baseline, "n_baseline", "a number of questions", or_zero=True)
        if self.n_examples and several(self.mode) != ["answer_only"]:
            raise InputError(
                "The examples of n_examples= are answers alone, and mode= asks for a chain of thought.",
                "Use mode='cot_few_shot', which has worked examples, or leave n_examples out.",
            )


@validated
@dataclass(frozen=True, repr=False)
class Task:
    """A question that can be asked about any number of items.

    Args:
        name: label of the task in results.
        template: the prompt, with ``{sequence}`` once at the place of the items.
        draw: function of a number n and a seeded `random.Random` that returns exactly n items.
        answer: function from the items to the right answer, written as `read` returns it.
        show: function from the items to their text in the prompt; by default they are joined without a separator.
        read: function that reads the model's answer, see `squashlens.tasks.reading`.
        opening: the words that the template asks the answer to open with; empty if it asks for the answer alone.
        examples: worked examples for the mode ``"cot_few_shot"``; without them the task does not have this mode.
        numeric: whether answers are numbers, so that an error is their difference.
        random: whether `draw` uses its random generator; if not, the items are the same for every seed.
        source: the figure or section that the task is taken from.

    Raises:
        InputError: if the template does not contain ``{sequence}`` exactly once, or `opening` has surrounding spaces.
    """

    name: str
    template: str
    draw: Callable[[int, Random], Sequence[str]]
    answer: Callable[[Items], str]
    show: Callable[[Sequence[str]], str] = "".join
    read: Reader = number
    opening: str = ""
    examples: str = ""
    numeric: bool = True
    random: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        """Raise unless the template has one place for the items."""
        n_places = self.template.count(PLACE)
        if n_places != 1:
            raise InputError(
                f"The template of {self.name!r} contains {PLACE} {n_places} times.",
                f"Write {PLACE} exactly once, at the place of the items.",
            )

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    @validated
    def ask(
        self, length: int, *, seed: int = 0, mode: Mode = "answer_only"
    ) -> "Question":
        """The question about `length` items drawn with `seed`, which are the same in every mode and with every joiner.

        Raises:
            InputError: if `draw` returns another number of items, the right answer cannot be read by `read`, or the
                task does not have this mode.

        >>> import squashlens as sl
        >>> question = sl.tasks.find("sum").ask(3)
        >>> question.prompt[:45], question.truth
        ('Please perform the following sum: 1 + 1 + 1. ', '3')
        """
        positive(length, "length", "a number of items")
        items = tuple(self.draw(length, Random(f"{length} {seed}")))
        are_texts = all(isinstance(item, str) and item for item in items)
        if len(items) != length or not are_texts:
            raise InputError(
                f"draw= of {self.name!r} returned {items!r} for {length} items.",
                "It must return exactly that many non-empty texts.",
            )
        return self.about(items, seed=seed, mode=mode)

    def varies(self, length: int) -> bool:
        """Whether any of `DRAWS` random seeds asks another question of this length than the first."""
        first = self.ask(length).items
        others = range(1, DRAWS)
        return any(self.ask(length, seed=seed).items != first for seed in others)

    def about(
        self, items: Sequence[str], *, seed: int = 0, mode: Mode = "answer_only"
    ) -> "Question":
        """The question about given items, whose `seed` is a label; raises as `ask` does."""
        one_of(mode, Mode, "mode")
        truth = self.answer(tuple(items))
        if not isinstance(truth, str) or not truth.strip():
            raise InputError(
                f"answer= of {self.name!r} returned {truth!r} as the right answer.",
                "It must return non-empty text.",
            )
        # The last place is that of the template, which examples precede.
        before, _, after = self._in_mode(mode).rpartition(PLACE)
        prompt = before + self.show(items) + after
        question = Question(
            task=self.name,
            mode=mode,
            length=len(items),
            seed=seed,
            items=tuple(items),
            prompt=prompt,
            truth=truth,
        )
        return self._readable(question)

    def doubled(self, question: "Question") -> "Question":
        """The same question with its last item repeated, after the same examples: the v* of Theorem 4.2 in words."""
        items = question.items + question.items[-1:]
        plain = self.about(question.items, mode=question.mode)
        doubled = self.about(items, seed=question.seed, mode=question.mode)
        # What `after_examples` put before the question.
        examples = question.prompt.removesuffix(plain.prompt)
        return replace(doubled, prompt=examples + doubled.prompt)

    def short(self) -> list["Question"]:
        """Different questions about 1 to 8 items, in turn of their lengths.

        If the task's sequences are fixed, the items are drawn from their symbols, so that right answers vary where they
        can: the last digit of 1…10 is always 0, and a constant answer would always be right.
        """
        different: dict[Items, Question] = {}
        for question in self._short_questions():
            different.setdefault(question.items, question)
        return list(different.values())

    def _short_questions(self) -> list["Question"]:
        """`SHORT` questions about each of 1 to `SHORT` items, in turn of their lengths."""
        asked = []
        symbols: set[str] = set()
        for turn, length in product(range(1, SHORT + 1), repeat=2):
            # Their seeds are negative, unlike the default ones of measured questions.
            question = self.ask(length, seed=-turn)
            asked.append(question)
            symbols.update(question.items)
        if self.random:
            return asked
        drawn = []
        for question in asked:
            rng = Random(f"short {question.length} {question.seed}")
            items = rng.choices(sorted(symbols), k=question.length)
            drawn.append(self.about(items, seed=question.seed))
        return drawn

    def after_examples(self, question: "Question", n: int) -> "Question":
        """The question after `n` short questions about other items with their right answers (few-shot).

        Raises:
            InputError: if there are fewer short questions.

        >>> from squashlens.tasks import find
        >>> task = find("taught_last_random")
        >>> task.after_examples(task.ask(2), 1).prompt.count(task.ask(2).prompt.split("?")[0])
        2
        """
        if not n:
            return question
        # A question v and its pair v* get the same examples, so that none may be about the items of either.
        v = question.items
        v_star = v + v[-1:]
        others = [each for each in self.short() if each.items not in (v, v_star)]
        if n > len(others):
            raise InputError(
                f"The task {self.name!r} has {len(others)} short questions besides this one.",
                "Ask for fewer examples.",
            )
        chosen = Random(f"examples {question.length} {question.seed}").sample(others, n)
        opening = f" {self.opening}" if self.opening else ""
        prompt = ""
        for example in chosen:
            prompt += f"{example.prompt}{opening} {example.truth}\n\n"
        return self._readable(replace(question, prompt=prompt + question.prompt))

    @validated
    def asked(
        self,
        lengths: Iterable[int],
        seeds: Iterable[int] = (0,),
        mode: Mode | Iterable[Mode] = "answer_only",
    ) -> list["Question"]:
        """One question for each mode, then length in ascending order, then seed.

        Raises:
            InputError: if lengths, seeds or mode are empty or repeat a value.
        """
        chosen: dict[str, list[Any]] = {
            "lengths": list(lengths),
            "seeds": list(seeds),
            "mode": several(mode),
        }
        for name, values in chosen.items():
            distinct(values, name)
        questions = []
        for question_mode, length, seed in product(
            chosen["mode"], sorted(chosen["lengths"]), chosen["seeds"]
        ):
            questions.append(self.ask(length, seed=seed, mode=question_mode))
        return questions

    def understood(self, question: "Question", text: str, ended: bool) -> Reading:
        """Read an answer to `question`: the result of `read`, unless it cannot be an answer to this question.

        In a task with numbers, an answer is not accepted if it is not a whole number or if it is an echo of the
        sequence. The right answer is never an echo. Any other number is an echo

        - if it consists of the items' symbols in order, the right answer is a count of the n ≥ 2 items, and the number
          is above n. A number of n digits without a leading zero is at least 10ⁿ⁻¹ > n, so no count is lost;
        - if it is more than ten times as large as n ≥ 2 and as the right answer, and at least three in four of its
          digits occur in the sequence. This covers echoes with errors, cut short, or repeated.

        Numbers up to ten times as large are accepted, even with the sequence's digits ("11" for ten ones). `ended` says
        whether the model ended its answer itself. Text from a new question on is not read.
        """
        text, ended = self.answer_in(question, text, ended)
        reading = self.read(text, self.opening, ended)
        is_right = reading.value == question.truth
        if not self.numeric or not reading.is_read or is_right:
            return reading
        if not is_number(reading.value):
            return Reading("", unread(reading.value))
        if self._is_an_echo(question, reading.value):
            return Reading("", "echo")
        return reading

    def answer_in(
        self, question: "Question", text: str, ended: bool
    ) -> tuple[str, bool]:
        """The text up to a new question of this task, and whether the answer ended, with that question or before.

        `ended` says whether the model ended its answer itself. A new question begins on a new line with the template's
        first words; with two or fewer before the sequence, after a blank line, as among solved examples, with the words
        after the sequence too, or as a line of their own. Without examples a model may repeat its question first, so
        that only what follows the opening words is a new one. A thought may repeat it as well.
        """
        head, _, after = self.template.partition(PLACE)
        beginning = head + self.show(question.items) + after[:1]
        is_without_examples = question.prompt.startswith(beginning)
        searched = after_thoughts(text)  # the end of the text
        if is_without_examples:
            # Only what follows the opening words; without any, nothing is searched.
            searched = searched.partition(self.opening)[2] if self.opening else ""
        new_question = re.search(
            rf"\S(\s*\n\s*(?:{_first_words_of(head, after)}))", searched
        )
        if not new_question:
            return text, ended
        start_of_searched = len(text) - len(searched)
        return text[: start_of_searched + new_question.start(1)], True

    def shown(self, joiner: str) -> "Task":
        """The same task with the text `joiner` between items, for tokenizers that merge items.

        Raises:
            InputError: if the task does more than join its items, as `count_numbered` and `taught_…_commas` do.
        """
        is_joined = isinstance(getattr(self.show, "__self__", None), str)
        if not (is_joined and self.show.__name__ == "join"):
            raise InputError(
                f"{self.name!r} does more than join its items: joined by {joiner!r} it would be another task.",
                f"Leave the joiner out, or make that task: dataclasses.replace(task, name=…, show={joiner!r}.join).",
            )
        return replace(
            self, show=joiner.join, name=f"{self.name}, joined by {joiner!r}"
        )

    def _readable(self, question: "Question") -> "Question":
        """The question; an error if its right answer is not read back unchanged, or is no number in a numeric task."""
        truth = question.truth
        if self.numeric and not is_number(truth):
            raise InputError(
                f"{self.name!r} has {truth!r} as the right answer, which is not a whole number.",
                "Make the task with numeric=False, or let answer= return a number.",
            )
        right_text = f"{self.opening} {truth}".lstrip()
        reading = self.understood(question, right_text, ended=True)
        if reading == Reading(truth, "read"):
            return question
        why = f"does not read it ({WHY[reading.why]})"
        if reading.is_read:
            why = f"reads it as {reading.value!r}"
        raise InputError(
            f"{self.name!r} has {truth!r} as the right answer, but its reader {why}, so no answer would be right.",
            "Let answer= return the text that the reader returns, or give the task another reader by read=. No line of "
            "an answer may begin as the question does.",
        )

    def _is_an_echo(self, question: "Question", answer: str) -> bool:
        """Whether an answer, a whole number that is not the right one, is an echo by the rules of `understood`."""
        n = len(question.items)
        if n < 2 or not is_number(question.truth):
            return False
        truth = int(question.truth)
        sequences = ["".join(question.items), self.show(question.items)]
        # Numbers are read without leading zeros.
        numbers = [symbols(text).lstrip("0") for text in sequences]
        is_in_order = symbols(answer).lstrip("0") in numbers
        if is_in_order and 0 <= truth <= n < int(answer):
            return True
        is_far = abs(int(answer)) > FAR * max(n, abs(truth))
        return is_far and is_echo(answer, sequences)

    def _in_mode(self, mode: Mode) -> str:
        """The template with the request for steps after the question, or with examples before it."""
        if mode == "answer_only":
            return self.template
        if mode == "cot":
            return f"{self.template}\n\n{STEPS}"
        if not self.examples:
            raise InputError(
                f"mode='cot_few_shot': the task {self.name!r} has no examples to show.",
                "Use another mode, or give the task examples=.",
            )
        return f"{STEPS} {EXAMPLES_FOLLOW}\n\n{self.examples}\n\n{self.template}"


@dataclass(frozen=True)
class Question:
    """One `prompt` with its right answer `truth`; `length` is the number of `items`, and `seed` that of their draw."""

    task: str
    mode: Mode
    length: int
    seed: int
    items: Items
    prompt: str
    truth: str


PER_SLIP = 4  # one symbol in 4 may be none of the sequence's
FAR = 10  # up to this multiple of the largest possible count, any number may be a count


def symbols(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    return re.sub(r"[\W_]", "", text).lower()


def is_echo(said: str, sequences: Iterable[str]) -> bool:
    """Whether an answer is made of the letters and digits of one of these sequences, but for one in `PER_SLIP`."""
    symbols_said = symbols(said)
    for sequence in sequences:
        known = set(symbols(sequence))
        n_foreign = sum(symbol not in known for symbol in symbols_said)
        if symbols_said and n_foreign <= len(symbols_said) // PER_SLIP:
            return True
    return False


def _first_words_of(head: str, after: str) -> str:
    """A pattern of the first words of a question, from its template before and after the sequence.

    `answer_in` searches it after a line break. Some words of `head` are enough; up to `FEW` may begin an answer too,
    and so must be followed or preceded by something else.
    """
    begins = _spaced(head)
    if len(head.split()) > FEW:
        return begins
    patterns = [rf"\n\s*{begins}"]  # after a blank line
    if head.strip() and re.search(r"\w", after):  # with the words after the sequence
        patterns.append(rf"{begins}[^\n]*?\s*{_spaced(after)}")
    if re.search(r"\S[ \t]*\n\s*$", head):  # as a line of their own
        patterns.append(rf"{re.escape(head.strip())}[ \t]*\n")
    return "|".join(patterns)


def _spaced(text: str) -> str:
    """A pattern of the first `FIRST` words of a text, with any white space between them."""
    words_of_text = re.split(r"\s+", text.lstrip())[:FIRST]
    return r"\s+".join(re.escape(word) for word in words_of_text)
