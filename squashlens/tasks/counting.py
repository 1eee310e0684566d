"""Counting tasks: figures 3, 4, 6 and 7 with the templates of appendix C.1, and two further tasks.

The paper prints chain-of-thought examples for the sum only; the examples of the other tasks follow the same scheme and
are ours. The paper does not say which other words its sentences contain, how frequent 'car' is, or what separates the
items.
"""

from collections.abc import Callable, Sequence
from random import Random

from squashlens.tasks.quotations import COUNT_ANSWER, ONES, SUM, SUM_EXAMPLES, WORD
from squashlens.tasks.reading import counted
from squashlens.tasks.task import Items, Task

SHARE = 0.7  # probability of a one in a random sequence, and of 'car' in a sentence
ONE = counted("ones", "1s", "1's", "'1's")  # "7 ones" is 7
CAR, OTHERS = "car", ("tree", "house", "dog", "river", "road", "stone")

ONES_EXAMPLES = """We divide the sequence into groups of 5. (11111) (11111) 11

The answer is then 2 * 5 + 2 = 12

The final answer to your maths question is: 12

Please count the number of ones in the following sequence:111111

We divide the sequence into groups of 5.

(11111) 1

The answer is then 1 * 5 + 1 = 6

The final answer to your maths question is: 6"""

BERNOULLI_EXAMPLES = """We divide the sequence into groups of 5. (11011) (01111) 10

The answer is then 4 + 4 + 1 = 9

The final answer to your maths question is: 9

Please count the number of ones in the following sequence:110101

We divide the sequence into groups of 5.

(11010) 1

The answer is then 3 + 1 = 4

The final answer to your maths question is: 4"""

WORD_EXAMPLES = """We divide the sentence into groups of 5. (car tree car car dog) (car car road car car) stone car

The answer is then 3 + 4 + 1 = 8

The final answer to your maths question is: 8

Please count the number of times 'car' appears in the following sentence: 'car car river car dog car'

We divide the sentence into groups of 5.

(car car river car dog) car

The answer is then 3 + 1 = 4

The final answer to your maths question is: 4"""


def ones(n: int, rng: Random) -> list[str]:
    """Only ones: 1 1 1 …"""
    return ["1"] * n


def bernoulli(n: int, rng: Random) -> list[str]:
    """Independent digits, 1 with probability 0.7 and otherwise 0."""
    return [str(int(rng.random() < SHARE)) for _ in range(n)]


def alternating(n: int, rng: Random) -> list[str]:
    """Alternating digits: 1 0 1 0 …"""
    return ["10"[i % 2] for i in range(n)]


def sentence(n: int, rng: Random) -> list[str]:
    """Independent words, 'car' with probability 0.7 and otherwise one of six other words."""
    return [CAR if rng.random() < SHARE else rng.choice(OTHERS) for _ in range(n)]


def numbered(items: Sequence[str]) -> str:
    """The items with their numbers, as an explicit positional hint."""
    return ", ".join(f"digit {place}: {item}" for place, item in enumerate(items, start=1))


def how_many(item: str) -> Callable[[Items], str]:
    """A function that counts how often `item` occurs."""
    return lambda items: str(items.count(item))


def _ones(name: str, draw: Callable[[int, Random], list[str]], **others: object) -> Task:
    made = {"read": ONE, "examples": BERNOULLI_EXAMPLES, "random": False, "source": "appendix C.1"} | others
    return Task(name, ONES, draw, how_many("1"), opening=COUNT_ANSWER, **made)  # pyright: ignore[reportArgumentType]


COUNTING = (
    Task(
        "sum", SUM, ones, how_many("1"), " + ".join, ONE, opening=COUNT_ANSWER, examples=SUM_EXAMPLES, random=False,
        source="figures 3 and 6 (i)",
    ),
    _ones("count_ones", ones, examples=ONES_EXAMPLES, source="figures 3 and 6 (ii)"),
    _ones("count_bernoulli", bernoulli, random=True, source="figures 3 and 6 (iii)"),
    Task(
        "count_word", WORD, sentence, how_many(CAR), " ".join,
        counted("times", "car", "cars", "occurrences", "occurrences of car"), opening=COUNT_ANSWER,
        examples=WORD_EXAMPLES, source="section 3.2 (iv)",
    ),
    _ones("count_alternating", alternating),
    _ones("count_numbered", bernoulli, show=numbered, examples="", random=True),
)  # fmt: skip
