"""The tasks: prompts as the paper prints them, sequences that are what they say, answers that follow from them."""

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.tasks import Task, haystack, reading
from training.gemma import curriculum

# Appendix C.1 as it is printed, slips and all: what stands before the sequence and what after it.
SUM = (
    "Please perform the following sum: ",
    ". Please give the answer on the final line exactly as 'The final answer to your maths question is: xxxx', where "
    "'xxxx' is your answer..",
)
ONES = (
    "Please count the number of ones in the following sequence:",
    ". Please give the answer on the final line exactly as 'The final answer to your maths question is: xxxx', where "
    "'xxxx is your answer.",
)
WORD = (
    "Please count the number of times 'car' appears in the following sentence: '",
    "'. Please give the answer on the final line exactly as 'The final answer to your maths question is: xxxx', where "
    "'xxxx' is your answer.",
)
LAST = (
    "Consider the following sequence: ",
    ". What is the last digit in this sequence? Please answer exactly as 'The answer to your question is: <ANSWER>'",
)
FIRST = (LAST[0], LAST[1].replace(" last ", " first "))
HINT = "*Hint* It's not necessarily a 1, check carefully"  # figure 2 (b), section 3.2
STEP = "Let's think step by step, showing me your reasoning."
SHOTS = """Let's think step by step, showing me your reasoning. Here are a few examples:

We divide the sum into groups of 5. (1 + 1 + 1 + 1 + 1) + (1 + 1 + 1 + 1 + 1) + 1 + 1

The answer is then 2 * 5 + 2 = 12

The final answer to your maths question is: 12

Please perform the following sum: 1 + 1 + 1 + 1 + 1 + 1

We divide the sum into groups of 5.

(1 + 1 + 1 + 1 + 1) + 1

The answer is then 1 * 5 + 1 = 6

The final answer to your maths question is: 6"""

LENGTHS = (1, 2, 3, 7, 50, 300)
SHOWN_BY_HAND: dict[str, Callable[[int], str]] = {
    "sum": lambda n: " + ".join("1" for _ in range(n)),
    "count_ones": lambda n: "1" * n,
    "count_alternating": lambda n: ("10" * n)[:n],
    "copy_last": lambda n: "1" * (n - 1) + "0",
    "copy_first": lambda n: "0" + "1" * (n - 1),
    "copy_last_alternating": lambda n: ("10" * n)[-n:],
    "copy_first_alternating": lambda n: ("01" * n)[:n],
}
# What is counted, read off the sequence as it is written: a list of the items that are in it.
WRITTEN: dict[str, Callable[[str], list[str]]] = {
    "sum": lambda text: text.split(" + "),
    "count_word": lambda text: text.split(" "),
    "count_numbered": lambda text: re.findall(r"digit \d+: (\d)(?:, |$)", text),
}
TAUGHT = [name for name in sl.tasks.names() if name.startswith("taught_")]
NAMES = [name for name in sl.tasks.names() if name not in TAUGHT]
find = sl.tasks.find


def sequence_in(name: str, prompt: str) -> str:
    """What stands where the paper writes seq; everything else must be as printed."""
    before, after = {"sum": SUM, "count_word": WORD}.get(name, ONES)
    if name.startswith("copy_"):
        before, after = LAST if "_last" in name else FIRST
    if name.endswith("_hint"):
        after += f" {HINT}"
    assert prompt.startswith(before)
    assert prompt.endswith(after)
    return prompt[len(before) : len(prompt) - len(after)]


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_the_papers(name: str) -> None:
    """Character by character, apart from the sequence, which has as many items as asked for. The answer follows."""
    task, by_hand = find(name), SHOWN_BY_HAND.get(name.removesuffix("_hint"))
    for n in LENGTHS:
        for seed in range(3):
            question = task.ask(n, seed=seed)
            written = sequence_in(name, question.prompt)
            items = WRITTEN.get(name, list)(written)
            assert len(items) == n == question.length
            assert tuple(items) == question.items
            assert (question.task, question.mode, question.seed) == (
                name,
                "answer_only",
                seed,
            )
            assert by_hand is None or written == by_hand(n)
            if name == "sum":
                right = sum(int(term) for term in written.split("+"))
            elif name == "count_word":
                right = len(re.findall(r"\bcar\b", written))
            elif name == "count_numbered":
                right = len(re.findall(r": 1\b", written))
            elif name.startswith("count_"):
                right = written.count("1")
            else:
                right = int(written[-1 if "_last" in name else 0])
            assert question.truth == str(right)


def test_a_chain_of_thought_is_asked_for_in_the_papers_words() -> None:
    for name in NAMES:
        plain, steps = (
            find(name).ask(9, seed=2, mode=mode) for mode in ("answer_only", "cot")
        )
        assert steps.prompt == f"{plain.prompt}\n\n{STEP}"
        assert (steps.items, steps.truth, steps.mode) == (
            plain.items,
            plain.truth,
            "cot",
        )


def test_examples_are_the_papers() -> None:
    """The block as printed, the same question behind it; the other tasks have examples by the same scheme."""
    shots = find("sum").ask(6, mode="cot_few_shot").prompt
    assert shots == f"{SHOTS}\n\n{find('sum').ask(6).prompt}"
    for name in ("count_ones", "count_bernoulli", "count_word", "count_alternating"):
        prompt = find(name).ask(6, mode="cot_few_shot").prompt
        assert prompt.startswith(
            f"{STEP} Here are a few examples:\n\nWe divide the sequence into groups of 5. "
        ) or (
            name == "count_word"
            and "We divide the sentence into groups of 5. " in prompt
        )
        assert prompt.endswith(f"\n\n{find(name).ask(6).prompt}")


@pytest.mark.parametrize("name", sl.tasks.names())
def test_draws_follow_the_seed(name: str) -> None:
    """The same for the same seed and in every mode; other seeds draw others where the task draws, and only there."""
    task = find(name)
    seeds = range(12)
    drawn = [task.ask(40, seed=seed) for seed in seeds]
    assert drawn == [task.ask(40, seed=seed) for seed in seeds]
    assert [q.seed for q in drawn] == [*seeds]
    for mode in ("cot", "cot_few_shot") if task.examples else ("cot",):
        assert [q.items for q in drawn] == [
            task.ask(40, seed=seed, mode=mode).items for seed in seeds
        ]
    different = len({question.items for question in drawn})
    if not task.random:
        assert different == 1
    else:
        assert different == (2 if "alternating" in name else len(seeds))


@pytest.mark.parametrize("name", TAUGHT)
def test_taught_tasks_ask_what_was_taught(name: str) -> None:
    """The prompt and answer of an example of the curriculum with these digits, which are the pattern's."""
    kind, pattern = re.fullmatch(r"taught_([a-z]+)_(.+?)(?:_commas)?", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
    commas, task = name.endswith("_commas"), curriculum.TASKS[kind]
    for n in LENGTHS:
        for seed in range(2):
            question = find(name).ask(n, seed=seed)
            digits = tuple(map(int, question.items))
            example = curriculum.Example(kind, task.questions[0], digits, commas, (n,))
            assert question.prompt == example.prompt(n)
            assert question.truth == example.answer(n)
            if pattern in ("repeated", "odd_last", "odd_first"):
                assert list(digits) == curriculum.PATTERNS[pattern](n, Random(0))
            elif pattern == "alternating":
                assert all(a + b == 1 for a, b in pairwise(digits))
            assert set(digits) <= (set(range(10)) if pattern == "random" else {0, 1})
    assert find(name).numeric == (kind != "copy")


def vowels(**others: Any) -> Task:
    """A task of one's own, as the documentation shows it."""
    own: dict[str, Any] = {
        "name": "vowels",
        "template": "How many vowels are in '{sequence}'? Answer with a number.",
        "draw": lambda n, rng: rng.choices("abcde", k=n),
        "answer": lambda items: str(sum(item in "ae" for item in items)),
    }
    return Task(**own | others)


def test_a_task_of_ones_own() -> None:
    task = vowels()
    question = task.ask(12, seed=3)
    (written,) = re.fullmatch(
        r"How many vowels are in '([a-e]{12})'\? Answer with a number\.",
        question.prompt,
    ).groups()  # pyright: ignore[reportOptionalMemberAccess]
    assert question.truth == str(len(re.findall("[ae]", written)))
    assert question == task.ask(12, seed=3)
    assert question != task.ask(12, seed=4)
    assert task.about("abcde").truth == "2"
    assert task.read("2", task.opening, True).value == "2"
    with_braces = vowels(template="{sequences} {} {{sequence}} {0}")
    assert with_braces.about("ab").prompt == "{sequences} {} {ab} {0}"
    shots = vowels(examples="ab: 1\n\nbb: 0").ask(3, mode="cot_few_shot").prompt
    assert shots.startswith(
        f"{STEP} Here are a few examples:\n\nab: 1\n\nbb: 0\n\nHow many vowels are in '"
    )
    with pytest.raises(FrozenInstanceError):
        task.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


BRIEF = [
    vowels(template=each)
    for each in ("{sequence}:", "Count {sequence}", "Q: {sequence}\nA, in short:")
]
BRIEF.append(vowels(template="The text:\n{sequence}\nVowels:", show="\n".join))


@pytest.mark.parametrize("task", [*map(find, NAMES), vowels(), *BRIEF])
def test_an_answer_ends_where_another_question_begins(task: Task) -> None:
    """However much follows, a right answer is right. Before the answer, a question may be repeated."""
    question, other = task.after_examples(task.ask(4, seed=1), 2), task.ask(6, seed=2)
    said, begun = f" {task.opening} {question.truth}", f"\n\n{other.prompt}"
    for behind in (
        begun[:40],
        begun,
        f"{begun} {task.opening} 77\n\n",
        f"{begun} {said}{begun}",
    ):
        assert task.answer_in(question, said + behind, False) == (said, True)
        assert task.understood(question, said + behind, False) == reading.Reading(
            question.truth, "read"
        )
    if not task.template.startswith(("{", "Count {")):
        assert task.answer_in(question, said + begun[1:], False) == (said, True)
    thought = f"I count.\nCount again.\nThe text: says it.\n{said}"
    assert task.answer_in(question, thought, False) == (thought, False)
    alone = task.ask(4, seed=1)
    text = f"Sure.\n\n{alone.prompt}\n\n{said}"
    assert task.answer_in(alone, text, False) == (text, False)
    assert task.answer_in(alone, text + begun, False) == (
        (text, True) if task.opening else (text + begun, False)
    )


def test_a_thought_may_repeat_the_question() -> None:
    task = find("count_ones")
    question = task.ask(4)
    thought = f"<think>\n{question.prompt}\nIs it 3? {task.opening} 3\n"
    assert task.answer_in(question, thought, False) == (thought, False)
    said = f"{thought}</think>{task.opening} 4"
    assert task.answer_in(question, said, True) == (said, True)
    assert task.understood(question, said, True) == reading.Reading("4", "read")
    other = f"{said}\n\n{task.ask(6).prompt} {task.opening} 6"
    assert task.answer_in(question, other, False) == (said, True)


@pytest.mark.parametrize("name", NAMES)
def test_doubled_has_the_last_item_once_more(name: str) -> None:
    """v* of Theorem 4.2, in words; the answer is that of the longer sequence."""
    task = find(name)
    for n in (1, 2, 7):
        question = task.ask(n, seed=5, mode="cot")
        doubled = task.doubled(question)
        assert doubled.items == (*question.items, question.items[-1])
        assert (doubled.length, doubled.seed, doubled.mode, doubled.task) == (
            n + 1,
            5,
            "cot",
            name,
        )
        assert doubled == task.about(doubled.items, seed=5, mode="cot")
        if name.startswith("copy_"):
            assert doubled.truth == question.truth
        else:
            counted = question.items[-1] in ("1", "car")
            assert int(doubled.truth) == int(question.truth) + counted


def draws(*items: Any) -> Task:
    return vowels(draw=lambda n, rng: [*items])


def answers(truth: Any, **others: Any) -> Task:
    return vowels(answer=lambda items: truth, **others)


def with_question_in_answer() -> Any:
    truth = "a\nHow many vowels are in 'b"
    task = answers(truth, read=reading.words, numeric=False)
    return task.after_examples(task.ask(3), 1)


REFUSED: list[Callable[[], Any]] = [
    *(
        lambda name=name: find(name)
        for name in ("count_one", "copy_lasst", "taught_count_bernouli")
    ),
    *(
        lambda template=template: vowels(template=template)
        for template in ("How many?", "{sequence} and {sequence}", "{Sequence}", "")
    ),
    *(
        lambda items=items: draws(*items).ask(3)
        for items in ([], ["a"], ["a", ""], [1] * 3)
    ),
    *(
        # The last two are right answers that nobody can give: they would be scored 0 %.
        lambda truth=truth: answers(truth).ask(3)
        for truth in ("", "\n", 7, None, "-0", "0.5")
    ),
    lambda: answers("tree", read=reading.words).ask(3),
    lambda: answers("tree", numeric=False).about("abc"),
    with_question_in_answer,
]


@pytest.mark.parametrize("call", REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused_before_anything_is_asked(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        call()


PLAIN = [
    name
    for name in sl.tasks.names()
    if name != "count_numbered" and not name.endswith("_commas")
]


@pytest.mark.parametrize("name", sl.tasks.names())
def test_a_joiner_goes_between_items_and_changes_nothing_else(name: str) -> None:
    """What stands around the items is as it was; where something else stands with them, it is refused."""
    task = find(name)
    if name not in PLAIN:
        with pytest.raises(InputError):
            task.shown(", ")
        return
    before, after = task.template.split("{sequence}")
    question = task.shown(", ").ask(5, seed=1)
    assert question.prompt == before + ", ".join(question.items) + after
    assert (question.items, question.truth) == (
        task.ask(5, seed=1).items,
        task.ask(5, seed=1).truth,
    )
    assert task.shown("; ").shown(", ").ask(5, seed=1).prompt == question.prompt


TEN = "1111111111"


@pytest.mark.parametrize(
    ("items", "said", "expected"),
    [
        ("1" * 10, TEN, "echo"),
        ("1" * 10, "1,111,111,111", "echo"),
        ("1" * 10, "11", "11"),  # too many by one
        ("1" * 10, "111111111", "echo"),  # one left out
        ("1" * 10, "1111011111", "echo"),  # one changed
        ("1" * 10, "419", "419"),  # wrong by far, and nothing like the sequence
        ("11", "11", "echo"),  # of two digits no count can be more than two
        ("1", "1", "1"),  # one item is its own count
        ("01", "1", "1"),  # the right answer
        ("0000000010", "10", "10"),  # may be a count: there are ten
    ],
)
def test_the_sequence_said_again_is_no_count(
    items: str, said: str, expected: str
) -> None:
    """Also with a slip, cut short or repeated; whatever is like a count stands."""
    task = find("count_bernoulli")
    question = task.about(items)
    for text in (said, f"I count.\n{task.opening} **{said}**."):
        found = task.understood(question, text, True)
        assert (found.value or found.why) == expected
    copied = replace(task, numeric=False)
    assert copied.understood(question, said, True) == copied.read(
        said, copied.opening, True
    )


def test_only_counts_have_an_echo() -> None:
    """A sum of digits, or the number they write, may be more than there are items."""
    number = vowels(draw=lambda n, rng: ["1", "8"][:n], answer="".join)
    assert number.understood(number.ask(2), "18", True) == reading.Reading("18", "read")
    sums = vowels(answer=lambda items: str(sum(map(int, items))))
    assert sums.understood(sums.about("18"), "18", True) == reading.Reading(
        "18", "read"
    )
    below = vowels(answer=lambda items: "-3")
    assert below.understood(below.about("18"), "18", True) == reading.Reading(
        "18", "read"
    )


def test_what_is_no_number_is_no_answer_where_numbers_are() -> None:
    task = vowels(read=reading.words)
    question = task.about("abe")
    told = (
        ("2", "2", "read"),
        ("2 of them", "", "form"),
        ("a few", "", "none"),
        ("2 or 3", "", "several"),
    )
    for said, value, why in (*told, ("", "", "none")):
        assert task.understood(question, said, True) == reading.Reading(value, why)
    assert task.understood(question, "2", False).why == "cut"
    assert (
        find("count_bernoulli").understood(task.about("00"), "**", True).why == "none"
    )  # and no echo of zeros
    assert (
        replace(task, numeric=False).understood(question, "2 of them", True).value
        == "2 of them"
    )


FACTS = [
    (f"The code of {name} is {k}.", f"The code of {name} is", f" {k}")
    for k, name in enumerate(("Ann", "Bob", "Cleo"), start=4)
]
FILLER = "The sun shone on the harbour. It was warm! Did anybody speak? Nobody did."


def test_a_haystack_hides_each_fact_at_each_depth() -> None:
    depths, lengths = [0, 0.5, 1], [12, 40]
    items = haystack(FACTS, FILLER, depths=depths, lengths=lengths)
    assert len(items) == len(FACTS) * len(depths) * len(lengths)
    expected = product(lengths, enumerate(FACTS), depths)
    for item, (length, (number, fact), depth) in zip(items, expected, strict=True):
        text, question = item["prompt"].rsplit("\n\n", 1)
        before, after = (part.split() for part in text.split(fact[0]))
        assert (question, item["answer"], item["cluster"]) == (*fact[1:], number)
        assert item["choices"] == [" 4", " 5", " 6"]
        assert item["group"] == f"{length} words, depth {depth:g}"
        # Whole sentences: the longest has six words.
        assert length <= len(before) + len(after) < length + 6
        assert abs(len(before) - depth * length) <= 6
        assert {*before, *after} <= {*FILLER.split()}
    shorter = haystack(FACTS, FILLER, depths=[0.5], lengths=[12])
    assert shorter[0]["group"] == "depth 0.5"


@pytest.mark.parametrize(
    "given",
    [
        {"facts": FACTS[:1]},
        {"filler": ""},
        {"filler": "The sun shone 4 hours. It was warm."},
        {"depths": [1.5]},
    ],
)
def test_what_makes_no_haystack_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        haystack(**{"facts": FACTS, "filler": FILLER} | given)
