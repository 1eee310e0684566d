"""The paper's tasks: copying (figure 2) and counting (figures 3, 4, 6 and 7), with the templates of appendix C.1.

Prompts are quoted verbatim, with their typing errors; `{sequence}` replaces *seq* of the paper. The paper prints
chain-of-thought examples for the sum only; those of the other tasks follow the same scheme and are ours. It does not
say which other words its sentences contain, how frequent 'car' is, or what separates the items. In every sequence of
figure 2 the right answer is 0; with random digits the right answer varies, as a probe requires.

Below them are the tasks that the bundled model was trained on: a short question, the end marker, then the answer.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from random import Random

from squashlens.tasks import reading
from squashlens.tasks.reading import counted, digit
from squashlens.tasks.task import PLACE, Items, Task
from squashlens.zoo.curriculum import END, PATTERNS, TASKS, spell

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
CAR, OTHERS = "car", ("tree", "house", "dog", "river", "road", "stone")


def _worked(
    kind: str, question: str, first: tuple[str, str, int], second: tuple[str, str, int]
) -> str:
    """Two worked examples of a chain of thought, each of groups, steps and a count; `question` asks for the second."""
    divided = f"We divide the {kind} into groups of 5."
    ends = [
        f"The answer is then {steps} = {count}\n\n{COUNT_ANSWER} {count}"
        for _, steps, count in (first, second)
    ]
    return f"{divided} {first[0]}\n\n{ends[0]}\n\n{question}\n\n{divided}\n\n{second[0]}\n\n{ends[1]}"


ASK_ONES = "Please count the number of ones in the following sequence:"
SUM_EXAMPLES = _worked(
    "sum",
    "Please perform the following sum: 1 + 1 + 1 + 1 + 1 + 1",
    ("(1 + 1 + 1 + 1 + 1) + (1 + 1 + 1 + 1 + 1) + 1 + 1", "2 * 5 + 2", 12),
    ("(1 + 1 + 1 + 1 + 1) + 1", "1 * 5 + 1", 6),
)
ONES_EXAMPLES = _worked(
    "sequence",
    f"{ASK_ONES}111111",
    ("(11111) (11111) 11", "2 * 5 + 2", 12),
    ("(11111) 1", "1 * 5 + 1", 6),
)
BERNOULLI_EXAMPLES = _worked(
    "sequence",
    f"{ASK_ONES}110101",
    ("(11011) (01111) 10", "4 + 4 + 1", 9),
    ("(11010) 1", "3 + 1", 4),
)
WORD_EXAMPLES = _worked(
    "sentence",
    "Please count the number of times 'car' appears in the following sentence: 'car car river car dog car'",
    ("(car tree car car dog) (car car road car car) stone car", "3 + 4 + 1", 8),
    ("(car car river car dog) car", "3 + 1", 4),
)


def _draw(pattern: str) -> Draw:
    """A draw of the digits of one of the bundled model's patterns, of which several are the paper's."""
    return lambda n, rng: list(map(str, PATTERNS[pattern](n, rng)))


ALL_ONES, LAST_ODD, FIRST_ODD, BERNOULLI = map(
    _draw, ("repeated", "odd_last", "odd_first", "bernoulli")
)


def _sentence(n: int, rng: Random) -> list[str]:
    """Independent words, 'car' with probability 0.7 and otherwise one of six other words."""
    return [CAR if rng.random() < SHARE else rng.choice(OTHERS) for _ in range(n)]


def _even_odds(n: int, rng: Random) -> list[str]:
    """Independent digits, 0 or 1 with equal probability."""
    return [str(rng.randint(0, 1)) for _ in range(n)]


def _number(items: Sequence[str]) -> str:
    """The items with their numbers, as an explicit positional hint."""
    return ", ".join(
        f"digit {place}: {item}" for place, item in enumerate(items, start=1)
    )


def _how_many(item: str) -> Callable[[Items], str]:
    """A function that counts how often `item` occurs."""
    return lambda items: str(items.count(item))


def _ones(name: str, draw: Draw, **others: object) -> Task:
    made = {
        "read": ONE,
        "examples": BERNOULLI_EXAMPLES,
        "random": False,
        "source": "appendix C.1",
    } | others
    return Task(name, ONES, draw, _how_many("1"), opening=COUNT_ANSWER, **made)  # pyright: ignore[reportArgumentType]


def _both(
    name: str,
    draws: tuple[Draw, Draw],
    source: str,
    *,
    hint: str = "",
    random: bool = False,
) -> tuple[Task, Task]:
    """The two tasks that ask for the last and for the first digit."""
    asked, kept = (
        f"{LAST} {hint}".rstrip(),
        {"opening": LAST_ANSWER, "random": random, "source": source},
    )
    return (
        Task(f"copy_last{name}", asked, draws[0], itemgetter(-1), read=digit, **kept),
        Task(
            f"copy_first{name}",
            asked.replace("the last", "the first"),
            draws[1],
            itemgetter(0),
            read=digit,
            **kept,
        ),
    )


PAPER = (
    *_both("", (LAST_ODD, FIRST_ODD), "figure 2 (a)"),
    *_both("_hint", (LAST_ODD, FIRST_ODD), "figure 2 (b)", hint=HINT),
    *_both(
        "_alternating",
        (lambda n, _: ("10" * n)[-n:], lambda n, _: ("01" * n)[:n]),
        "figure 2 (c)",
    ),
    *_both("_random", (_even_odds, _even_odds), "", random=True),
    Task(
        "sum",
        SUM,
        ALL_ONES,
        _how_many("1"),
        " + ".join,
        ONE,
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
        "count_word",
        WORD,
        _sentence,
        _how_many(CAR),
        " ".join,
        counted("times", "car", "cars", "occurrences", "occurrences of car"),
        opening=COUNT_ANSWER,
        examples=WORD_EXAMPLES,
        source="section 3.2 (iv)",
    ),
    _ones("count_alternating", lambda n, _: ("10" * n)[:n]),
    _ones("count_numbered", BERNOULLI, show=_number, examples="", random=True),
)


DRAWN = ("alternating", "bernoulli", "any_bernoulli", "random")
READERS = {"copy": reading.digits, "first": reading.digit, "last": reading.digit}


def taught(name: str, pattern: str, *, commas: bool = False) -> Task:
    """The task that asks one of the bundled model's questions about one of its patterns (`squashlens.zoo.curriculum`).

    Each question uses its first wording. With `commas`, a comma follows every third digit.
    """
    question = TASKS[name].questions[0]

    def grouped(items: Sequence[str]) -> str:
        return spell(list(map(int, items)), commas=True)

    show = grouped if commas else "".join

    def right(items: Items) -> str:
        return (
            show(items) if name == "copy" else TASKS[name].answer(list(map(int, items)))
        )

    return Task(
        f"taught_{name}_{pattern}{'_commas' if commas else ''}",
        f"{question} {PLACE} {END}",
        _draw(pattern),
        right,
        show,
        READERS.get(name, ONE),
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
