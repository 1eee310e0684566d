"""A question about a sequence of a given length: data and small functions, no model.

A task draws items, shows them in a template, knows the right answer and how to read a given one. One of your own is a
few lines::

    vowels = Task(
        name="vowels",
        template="How many vowels are in '{sequence}'? Answer with a number.",
        draw=lambda n, rng: rng.choices("abcde", k=n),
        answer=lambda items: str(sum(item in "ae" for item in items)),
    )
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from squashlens._typing import Mode, one_of, positive, whole
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.paper import EXAMPLES, STEPS
from squashlens.tasks.echo import FAR, is_echo, symbols
from squashlens.tasks.numerals import unread
from squashlens.tasks.reading import WHY, Reader, Reading, is_number, number, words

PLACE = "{sequence}"
DRAWN_SEEDS = 16  # questions at each length where they differ and nothing else is said
Items = tuple[str, ...]


def joined(items: Sequence[str]) -> str:
    """Items with nothing between them."""
    return "".join(items)


@validated
@dataclass(frozen=True, repr=False)
class Task:
    """A question about `n` items.

    Args:
        name: what results are labelled with.
        template: the prompt, with ``{sequence}`` once where the items go.
        draw: from a number and a seeded `random.Random` to exactly that many items.
        answer: from the items to the right answer, written as `read` gives it: what it cannot give is refused.
        show: how items are written in the prompt; with nothing between them if not given.
        read: how a given answer is read, see `squashlens.tasks.reading`.
        opening: the words an answer opens with, as the template asks for them; empty if it is asked for alone.
        examples: what the few-shot mode shows; a task without has no such mode.
        numeric: whether answers are numbers, so that an error is their difference.
        random: whether `draw` draws; what does not is the same for every seed.
        source: the figure or section it is taken from.
    """

    name: str
    template: str
    draw: Callable[[int, Random], Sequence[str]]
    answer: Callable[[Items], str]
    show: Callable[[Sequence[str]], str] = joined
    read: Reader = number
    opening: str = ""
    examples: str = ""
    numeric: bool = True
    random: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        if self.template.count(PLACE) != 1:
            raise InputError(
                f"The template of {self.name!r} shows the sequence {self.template.count(PLACE)} times.",
                f"Write {PLACE} where it goes, once.",
            )

        if self.opening != self.opening.strip():
            raise InputError(f"The opening {self.opening!r} of {self.name!r} has space around it.", "Strip it.")

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def ask(self, length: int, *, seed: int = 0, mode: Mode = "answer_only") -> "Question":
        """The question about `length` items drawn with `seed`: the same items in every mode, however they are shown.

        >>> import squashlens as sl
        >>> question = sl.tasks.find("sum").ask(3)
        >>> question.prompt[:45], question.truth
        ('Please perform the following sum: 1 + 1 + 1. ', '3')
        """
        length, seed = whole(length), whole(seed)
        positive(length, "length", "a number of items")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise InputError(f"seed={seed!r} is not a whole number.", "Give one.")
        items = tuple(self.draw(length, Random(f"{length} {seed}")))
        if len(items) != length or not all(isinstance(item, str) and item for item in items):
            raise InputError(f"{self.name!r} drew {items!r} for {length} items.", "Let draw give that many texts.")
        return self.about(items, seed=seed, mode=mode)

    def about(self, items: Sequence[str], *, seed: int = 0, mode: Mode = "answer_only") -> "Question":
        """The question about given items."""
        one_of(mode, Mode, "mode")
        truth = self.answer(tuple(items))
        if not isinstance(truth, str) or not truth.strip():
            raise InputError(f"{self.name!r} has {truth!r} as the right answer.", "Let answer give its text.")
        self._require_readable(truth)
        before, after = self._around(mode)
        return Question(self.name, mode, len(items), seed, tuple(items), before + self.show(items) + after, truth)

    def doubled(self, question: "Question") -> "Question":
        """The same question with its last item once more: Theorem 4.2's v* in words."""
        return self.about((*question.items, question.items[-1]), seed=question.seed, mode=question.mode)

    def asked(
        self, lengths: Iterable[int], seeds: Iterable[int] = (0,), modes: Iterable[Mode] = ("answer_only",)
    ) -> list["Question"]:
        """A question for each mode, length and seed, lengths in ascending order whatever order they come in.

        None of one, or one twice, is refused.
        """
        lengths, seeds, modes = list(map(whole, lengths)), list(map(whole, seeds)), list(modes)
        for name, values in (("lengths", lengths), ("seeds", seeds), ("modes", modes)):
            if not values or len(set(values)) != len(values):
                raise InputError(f"{name}={values!r} are not different values.", "Give at least one, each once.")
        for length in lengths:
            positive(length, "length", "a number of items")
        return [self.ask(n, seed=seed, mode=mode) for mode in modes for n in sorted(lengths) for seed in seeds]

    def understood(self, question: "Question", text: str, ended: bool) -> Reading:
        """What is read in an answer to `question`: what `read` reads, less what is no answer to this one.

        Where answers are numbers, two things that `read` may give are not one: what is no whole number, and an echo of
        the sequence. The right answer is never an echo. Any other number is one

        - if it is the items side by side, or as they are shown but for spaces and signs, the right answer is a count of
          the n ≥ 2 items, and the number is above n: n digits that do not begin with a zero write at least
          10ⁿ⁻¹ > n, so that no count is lost;
        - if it is more than ten times as large as n ≥ 2 and as the right answer, and near a piece of the sequence:
          `squashlens.tasks.echo` says how near. So are echoes with a slip, cut short, or repeated.

        Numbers up to ten times as large stand, also where they have the sequence's digits ("11" to ten ones). What
        writes no number ("1 1 0 1") is called an echo by the same rules; that is only the reason why it is not read.
        """
        found = self.read(text, self.opening, ended)
        if not self.numeric or found.why == "cut" or found.value == question.truth:
            return found
        if found.why == "read" and not is_number(found.value):
            return Reading("", unread(found.value))
        said = found.value if found.why == "read" else words(text, self.opening, ended).value
        return Reading("", "echo") if self._echoed(question, said, found.why == "read") else found

    def shown(self, joiner: str) -> "Task":
        """The same task with `joiner` between items, for tokenizers that merge them.

        Refuses: a task whose items are written with more than something between them (`count_numbered` has their
        places, `taught_…_commas` groups of three), which another joiner would turn into another task.
        """
        if not (self.show is joined or _joins(self.show)):
            raise InputError(
                f"{self.name!r} writes its items in a way of its own, not just with something between them: joined by "
                f"{joiner!r} it would be another task.",
                f"Leave the joiner out, or make that task: dataclasses.replace(task, name=…, show={joiner!r}.join).",
            )
        return replace(self, show=joiner.join, name=f"{self.name}, joined by {joiner!r}")

    def _said(self, answer: str) -> Reading:
        """What is read where `answer` is given just as the task asks for it."""
        return self.read(f"{self.opening} {answer}" if self.opening else answer, self.opening, True)

    def _require_readable(self, truth: str) -> None:
        """Refuse a right answer that nobody could give: one that is not read back as it is, or is no number."""
        found = self._said(truth)
        what = f"reads it as {found.value!r}" if found.why == "read" else f"does not read it ({WHY[found.why]})"
        if self.numeric and not is_number(truth):
            raise InputError(
                f"The right answers of {self.name!r} are not numbers: {truth!r} is none, and its reader {what}.",
                "Write it as a whole number; or give the task numeric=False, and read= for such answers.",
            )
        if found != Reading(truth, "read"):
            raise InputError(
                f"{self.name!r} has {truth!r} as the right answer, and its reader {what}: no answer would be right.",
                "Let answer write it as the reader gives it, or give the task a reader of its own by read=.",
            )

    def _echoed(self, question: "Question", said: str, number: bool) -> bool:
        """Whether what was said is the sequence, by the rules of `understood`; what is no number has its symbols."""
        n, truth = len(question.items), question.truth
        if n < 2 or not is_number(truth):
            return False
        sequences = ("".join(question.items), self.show(question.items))
        most = FAR * max(n, abs(int(truth)))
        again = symbols(said).lstrip("0") in {symbols(each).lstrip("0") for each in sequences}
        if not number:
            return again or (len(symbols(said)) > len(str(most)) and is_echo(said, sequences))
        if again and truth.isdecimal() and int(truth) <= n < int(said):
            return True
        return abs(int(said)) > most and is_echo(said, sequences)

    def _around(self, mode: Mode) -> tuple[str, str]:
        """What stands before and after the items.

        The paper prints the words of its chains of thought and not where they stand: steps are asked for behind the
        question, examples are shown before it.
        """
        before, after = self.template.split(PLACE)
        if mode == "cot":
            return before, f"{after}\n\n{STEPS}"
        if mode == "cot_few_shot":
            if not self.examples:
                raise InputError(f"{self.name!r} has no examples to show.", "Use another mode, or give examples=.")
            return f"{STEPS} {EXAMPLES}\n\n{self.examples}\n\n{before}", after
        return before, after


def _joins(show: Any) -> bool:
    """Whether this is the `join` of some text."""
    return isinstance(getattr(show, "__self__", None), str) and show.__name__ == "join"


@dataclass(frozen=True)
class Question:
    """One prompt with its right answer, and what it is about."""

    task: str
    mode: Mode
    length: int
    seed: int
    items: Items
    prompt: str
    truth: str
