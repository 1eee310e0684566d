"""The paper's tasks: copying (figure 2) and counting (figures 3, 4, 6 and 7), with the templates of appendix C.1.

Prompts are quoted verbatim, with their typing errors; `{sequence}` replaces *seq* of the paper. The paper prints
chain-of-thought examples for the sum only; those of the other tasks follow the same scheme and are ours. It does not
say which other words its sentences contain, how frequent 'car' is, or what separates the items. In every sequence of
figure 2 the right answer is 0; with random digits the right answer varies, as a probe requires.

Below them are the tasks that the bundled model was trained on: a short question, the end marker, then the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from random import Random

from squashlens.example_models.curriculum import END, PATTERNS, TASKS, spell
from squashlens.tasks import reading
from squashlens.tasks.reading import counted, digit
from squashlens.tasks.task import PLACE, Items, Task

# Figure 5.
COUNT = "How many ones are in the following sequences?"
COPY = "Can you copy the following number?"

# Appendix C.1, counting.
SUM = (
    "Please perform the following sum: {sequence}. Please give the answer on the final line exactly as "
    "'The final answer to your maths question is: xxxx', where 'xxxx' is your answer.."
)
ONES = (
    "Please count the number of ones in the following sequence:{sequence}. Please give the answer on the final line "
    "exactly as 'The final answer to your maths question is: xxxx', where 'xxxx is your answer."
)
WORD = (
    "Please count the number of times 'car' appears in the following sentence: '{sequence}'. Please give the answer "
    "on the final line exactly as 'The final answer to your maths question is: xxxx', where 'xxxx' is your answer."
)
COUNT_ANSWER = "The final answer to your maths question is:"

# Appendix C.1, copying, and the hint of figure 2 (b).
LAST = (
    "Consider the following sequence: {sequence}. What is the last digit in this sequence? "
    "Please answer exactly as 'The answer to your question is: <ANSWER>'"
)
LAST_ANSWER = "The answer to your question is:"
HINT = "*Hint* It's not necessarily a 1, check carefully"


SHARE = 0.7  # probability of 'car' in a sentence, as of a one in a random sequence
ONE = counted("ones", "1s", "1's", "'1's")  # "7 ones" is 7
Draw = Callable[[int, Random], Sequence[str]]
CAR = "car"
OTHERS = ("tree", "house", "dog", "river", "road", "stone")


@dataclass(frozen=True)
class Example:
    """A worked example of a chain of thought: the items in groups of 5, the sum over groups, and the count."""

    groups: str
    steps: str
    count: int

    @property
    def end(self) -> str:
        """What follows the groups."""
        then = f"The answer is then {self.steps} = {self.count}"
        return f"{then}\n\n{COUNT_ANSWER} {self.count}"


def _worked(kind: str, question: str, first: Example, second: Example) -> str:
    """Two worked examples as they stand before a question: groups of 5 of a `kind` ("sum"), their sum, and the answer.

    `question` asks for the second example; the first follows the words that announce examples.
    """
    divided = f"We divide the {kind} into groups of 5."
    return (
        f"{divided} {first.groups}\n\n{first.end}\n\n{question}\n\n"
        f"{divided}\n\n{second.groups}\n\n{second.end}"
    )


ASK_ONES = "Please count the number of ones in the following sequence:"
SUM_EXAMPLES = _worked(
    "sum",
    "Please perform the following sum: 1 + 1 + 1 + 1 + 1 + 1",
    Example("(1 + 1 + 1 + 1 + 1) + (1 + 1 + 1 + 1 + 1) + 1 + 1", "2 * 5 + 2", 12),
    Example("(1 + 1 + 1 + 1 + 1) + 1", "1 * 5 + 1", 6),
)
ONES_EXAMPLES = _worked(
    "sequence",
    f"{ASK_ONES}111111",
    Example("(11111) (11111) 11", "2 * 5 + 2", 12),
    Example("(11111) 1", "1 * 5 + 1", 6),
)
BERNOULLI_EXAMPLES = _worked(
    "sequence",
    f"{ASK_ONES}110101",
    Example("(11011) (01111) 10", "4 + 4 + 1", 9),
    Example("(11010) 1", "3 + 1", 4),
)
WORD_EXAMPLES = _worked(
    "sentence",
    "Please count the number of times 'car' appears in the following sentence: 'car car river car dog car'",
    Example("(car tree car car dog) (car car road car car) stone car", "3 + 4 + 1", 8),
    Example("(car car river car dog) car", "3 + 1", 4),
)


def _draw(pattern: str) -> Draw:
    """A draw of the digits of one of the bundled model's patterns, of which several are the paper's."""
    return lambda n, rng: list(map(str, PATTERNS[pattern](n, rng)))


ALL_ONES = _draw("repeated")
LAST_ODD = _draw("odd_last")
FIRST_ODD = _draw("odd_first")
BERNOULLI = _draw("bernoulli")


def _sentence(n: int, rng: Random) -> list[str]:
    """Independent words, 'car' with probability 0.7 and otherwise one of six other words."""
    return [CAR if rng.random() < SHARE else rng.choice(OTHERS) for _ in range(n)]


def _even_odds(n: int, rng: Random) -> list[str]:
    """Independent digits, 0 or 1 with equal probability."""
    return [str(rng.randint(0, 1)) for _ in range(n)]


def _ends_in_ten(n: int, rng: Random) -> str:
    """The last digits of …1010."""
    return ("10" * n)[-n:]


def _begins_with_zero(n: int, rng: Random) -> str:
    """The first digits of 0101…."""
    return ("01" * n)[:n]


def _begins_with_one(n: int, rng: Random) -> str:
    """The first digits of 1010…."""
    return ("10" * n)[:n]


def _numbered(items: Sequence[str]) -> str:
    """The items with their numbers, as an explicit positional hint."""
    numbered = [f"digit {place}: {item}" for place, item in enumerate(items, start=1)]
    return ", ".join(numbered)


def _how_many(item: str) -> Callable[[Items], str]:
    """A function that counts how often `item` occurs."""
    return lambda items: str(items.count(item))


def _ones(
    name: str,
    draw: Draw,
    *,
    examples: str = BERNOULLI_EXAMPLES,
    show: Callable[[Sequence[str]], str] = "".join,
    random: bool = False,
    source: str = "appendix C.1",
) -> Task:
    """A task that asks for the number of ones."""
    return Task(
        name=name,
        template=ONES,
        draw=draw,
        answer=_how_many("1"),
        show=show,
        read=ONE,
        opening=COUNT_ANSWER,
        examples=examples,
        random=random,
        source=source,
    )


def _last_digit(
    name: str, draw: Draw, source: str, hint: str = "", random: bool = False
) -> Task:
    """A task that asks for the last digit."""
    return Task(
        name=name,
        template=f"{LAST} {hint}".rstrip(),
        draw=draw,
        answer=itemgetter(-1),
        read=digit,
        opening=LAST_ANSWER,
        random=random,
        source=source,
    )


def _first_digit(
    name: str, draw: Draw, source: str, hint: str = "", random: bool = False
) -> Task:
    """A task that asks for the first digit, in the same words."""
    task = _last_digit(name, draw, source, hint, random)
    template = task.template.replace("the last", "the first")
    return replace(task, template=template, answer=itemgetter(0))


PAPER = (
    _last_digit("copy_last", LAST_ODD, "figure 2 (a)"),
    _first_digit("copy_first", FIRST_ODD, "figure 2 (a)"),
    _last_digit("copy_last_hint", LAST_ODD, "figure 2 (b)", HINT),
    _first_digit("copy_first_hint", FIRST_ODD, "figure 2 (b)", HINT),
    _last_digit("copy_last_alternating", _ends_in_ten, "figure 2 (c)"),
    _first_digit("copy_first_alternating", _begins_with_zero, "figure 2 (c)"),
    _last_digit("copy_last_random", _even_odds, "", random=True),
    _first_digit("copy_first_random", _even_odds, "", random=True),
    Task(
        name="sum",
        template=SUM,
        draw=ALL_ONES,
        answer=_how_many("1"),
        show=" + ".join,
        read=ONE,
        opening=COUNT_ANSWER,
        examples=SUM_EXAMPLES,
        random=False,
        source="figures 3 and 6 (i)",
    ),
    _ones(
        "count_ones", ALL_ONES, examples=ONES_EXAMPLES, source="figures 3 and 6 (ii)"
    ),
    _ones("count_bernoulli", BERNOULLI, random=True, source="figures 3 and 6 (iii)"),
    Task(
        name="count_word",
        template=WORD,
        draw=_sentence,
        answer=_how_many(CAR),
        show=" ".join,
        read=counted("times", "car", "cars", "occurrences", "occurrences of car"),
        opening=COUNT_ANSWER,
        examples=WORD_EXAMPLES,
        source="section 3.2 (iv)",
    ),
    _ones("count_alternating", _begins_with_one),
    _ones("count_numbered", BERNOULLI, show=_numbered, examples="", random=True),
)


DRAWN = ("alternating", "bernoulli", "any_bernoulli", "random")
READERS = {"copy": reading.digits, "first": reading.digit, "last": reading.digit}


def taught(name: str, pattern: str, *, commas: bool = False) -> Task:
    """The task that asks one of the bundled model's questions about one of its patterns
    (`squashlens.example_models.curriculum`).

    `name` is that of a question of the curriculum, such as ``"count"``, and `pattern` that of a pattern of digits. Each
    question uses its first wording. With `commas`, a comma follows every third digit.
    """
    question = TASKS[name].questions[0]

    def grouped(items: Sequence[str]) -> str:
        """The digits with commas."""
        return spell(list(map(int, items)), commas=True)

    show = grouped if commas else "".join

    def right(items: Items) -> str:
        """The right answer: of a copy the digits as they are shown, else what the curriculum answers."""
        if name == "copy":
            return show(items)
        return TASKS[name].answer(list(map(int, items)))

    return Task(
        name=f"taught_{name}_{pattern}{'_commas' if commas else ''}",
        template=f"{question} {PLACE} {END}",
        draw=_draw(pattern),
        answer=right,
        show=show,
        read=READERS.get(name, ONE),
        numeric=name != "copy",
        random=pattern in DRAWN,
        source="the bundled model's card",
    )


TAUGHT = tuple(
    taught(name, pattern, commas=commas)
    for name, task in TASKS.items()
    for pattern in task.patterns
    for commas in (False, True)
)
