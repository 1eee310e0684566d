"""Answers as models write them, each with its right reading, written by hand.

The first table asks how many ones there are and has the answer 7 (or another number) wherever a reader of English
would have no doubt; the second has answers that say no one number, with the reason.
"""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from squashlens.tasks import find, reading
from squashlens.tasks.numerals import stated, value

READ = reading.counted("ones", "1s", "1's")
MATHS = "The final answer to your maths question is:"

# As asked: digits alone.
STRICT = dict.fromkeys([
    "7", " 7\n", "7.", "**7**", "_7_", "'7'", '"7"', "«7»", "(7)", "$$7$$", "\u200b7\u200b", "\u20607", "[7]", "<7>",
    "$7$", "**7.**", "+7", "７", "٧", "\ufeff7", "7<end_of_turn>", "7<end_of_turn>\n", "7<|im_end|>", "7<eos>",
    "7<｜end▁of▁sentence｜>", "<bos>7", "<start_of_turn>model\n7<end_of_turn>",
    "<|im_start|>assistant\n7<|im_end|>\n<|im_start|>user\nNow count 8", "<think>6? no, 8.</think>\n\n7",
    "is it 8? </think>7", "<|start_header_id|>assistant<|end_header_id|>\n\n7<|eot_id|>",
], "7") | {
    "-7": "-7", "−7": "-7", "0": "0", "1,234": "1234", "12,345,678": "12345678", "१२": "12",
}  # fmt: skip
# Not as asked, and beyond doubt.
LENIENT = dict.fromkeys([
    r"\boxed{7}", r"$\boxed{7}$", r"\[\boxed{7}\]", r"\(7\)", r"\text{7}", r"\boxed{\text{7}}", r"\boxed{\mathbf{7}}",
    r"\textbf{7}", r"\boxed{7 \text{ ones}}", r"The answer is \boxed{7}.", r"There are \(7\) ones.", "\\[\n7\n\\]",
    "\\[\n\\boxed{7}\n\\]", r"\fbox{7}", "```\n7\n```", "```text\n7\n```", "Answer:\n```\n7\n```", "<b>7</b>",
    "<answer>7</answer>", '<span class="a">7</span>', "<strong>7</strong> ones", "7 ones", "**7** ones", "7 1's",
    "7 'ones'", "seven", "Seven.", "**seven**", "7 (seven)", "seven (7) ones", "There are seven (7) ones.", "= 7",
    ": 7", "x = 7", "3 + 4 = 7", "5 + 2 = 6 + 1 = 7", "7.0", "7;", "7,", "**7**;", "| 7 |",
    "| Answer |\n|---|\n| 7 |", "| Answer | 7 |", "#### 7", "## Answer\n7", "---\n7", "Answer: 7", "**Answer:** 7",
    "Final answer: 7", "The answer is 7.", "The answer is **7**.", "The final answer is: 7", "Total: 7",
    "The total is 7.", "There are 7 ones.", "There are 7 ones in the sequence.",
    "There are exactly 7 ones in the given sequence.", "There are a total of 7 ones.", "I count 7 ones.", "It is 7.",
    "The sequence contains 7 ones.", "The number of ones in the sequence is 7.", "So, 7.", "Sure! There are 7 ones.",
    "Sure!\n\n7", "Therefore, the answer is 7.", "The answer to your question is 7.", "7 ones in total",
    "The final answer to your math question is: 7", "The final answer to your maths question is 7", '{"answer": 7}',
    '"answer": "7"', "5 and 2 more.\n\nThe answer is 7.", "The first half has 4, the second 3.\n\n$$\\boxed{7}$$",
    "5 and 2 more.\n\n#### Answer: 7", "5 + 1 = 6\n6 + 1 = 7\n\nThe answer is 7.",
], "7") | {
    r"\boxed{1{,}234}": "1234", r"$1\,234$": "1234", "zero": "0", "twenty-one": "21", "twenty one": "21",
    "one hundred": "100", "a hundred": "100", "one hundred and five": "105", "three hundred forty-two": "342",
    "one thousand": "1000", "two thousand, three hundred and four": "2304", "twelve hundred": None,
    "21 (twenty-one)": "21", "1,234 (one thousand two hundred and thirty-four)": "1234", "1 + 1 + 1 + 1 = 4": "4",
    "(1 + 1) + 1 = 3": "3", "1 234": "1234", "1\u00a0234": "1234", "1\u202f234": "1234", "1'234": "1234",
    "1’234": "1234", "1'234'567": "1234567", "-1 234": "-1234", "–7": "-7", "－7": "-7", "1,234,": "1234",
    "| ones | 7 |": None, "We have 7 ones in total.": None,
}  # fmt: skip
# What leaves a doubt, and why it is not read.
UNCLEAR = {
    **dict.fromkeys([
        "", " \n", "I cannot tell.", "unknown", "<end_of_turn>7", "<think>7", "VII", "½", "seventh", "a few ones",
    ], "none"),
    **dict.fromkeys([
        "1 one", "```\n7\n``` 8", "7 or 8", "7 and 8", "7, 8", "7 8", "7\n8", "7-8", "7 to 8", "between 7 and 9",
        "7 (8)", "7 (eight)", "8 (seven)", "seven (seven)", "7 = 8", "7 or eight", "seven or eight", "one two",
        "10^3", "10<sup>3</sup>", "3 + 4", "7 ones and 3 zeros", "7 out of 10", "6 + 1 ones", "1 1 1 1", "1 23",
        "0 123", "1 234,567", "1\t234", "1\n234", r"\boxed{1}234", r"\boxed{7} or \boxed{8}", "| 7 | 8 |",
        "the answer is 7. Wait, 8.", "The answer is 7.\nThe answer is 8.", r"\frac{7}{8}", "7 ± 1", "2024-11-22",
        "8\n\nThe answer is 7.",
    ], "several"),
    **dict.fromkeys(["7...8", "1,1,1,1", "1.234", "1,234,5", "10,24", "1'23", "1,234.5"], "grouping"),
    **dict.fromkeys(["7/8", "7.5", "0.125"], "fraction"),
    **dict.fromkeys([
        "about 7", "~7", "at least 7", "> 7", "<7", "7+", "7?", "7%", "not 7", "It isn't 7.", "~~7~~", "maybe 7",
        "7th", "7²", "7 zeros", "No. 7", "Are there 7 ones?", "- 7", "— 7", "#7", "If the answer is 7",
        "I do not know if it is 7.", r"\sqrt{7}", r"\approx 7", "€7", "step 7", "The answer to question 7", "1٢",
        "7 or more", "<del>7</del>", "minus 7", "no more than 7", "not seven",
    ], "form"),
    **dict.fromkeys(["7 hundred", "a dozen"], "words"),
    **dict.fromkeys(["1" * 16, "1 " + "234 " * 5], "long"),
}  # fmt: skip


@pytest.mark.parametrize("text", STRICT, ids=ascii)
def test_as_asked(text: str) -> None:
    assert READ(text, "", True) == reading.Reading(STRICT[text], "read", as_asked=True)


@pytest.mark.parametrize("text", LENIENT, ids=ascii)
def test_beyond_doubt(text: str) -> None:
    """Those marked None are, too, and are not read: the vocabulary is closed, and grows only by what is needed."""
    found = READ(text, "", True)
    if LENIENT[text] is None:
        assert found.why != "read"
        return
    assert found == reading.Reading(LENIENT[text] or "", "read", as_asked=False)


@pytest.mark.parametrize("text", UNCLEAR, ids=ascii)
def test_in_doubt(text: str) -> None:
    assert READ(text, "", True) == reading.Reading("", UNCLEAR[text])  # pyright: ignore[reportArgumentType]


# Those that are one line, and stand at the beginning of none.
SAID_ALONE = [text for text in (*STRICT, *LENIENT) if not re.search(r"\n|<.*>|think|[Aa]nswer to|\||^#|5 and 2", text)]


@pytest.mark.parametrize("text", SAID_ALONE, ids=ascii)
def test_behind_the_sentence_that_was_asked_for(text: str) -> None:
    expected = STRICT.get(text, LENIENT.get(text))
    found = READ(f"I count.\n{MATHS} {text}", MATHS, True)
    assert (found.value, found.as_asked) == (expected or "", text in STRICT)


# Ways to write a number that leave no doubt, for any number up to a million.
WRITTEN = st.sampled_from(
    [
        "{}", "{:,}", "{}.0", "= {}", r"\boxed{{{}}}", r"\({}\)", r"\text{{{}}}", "```\n{}\n```", "{} ones", "{};",
        "{},",
        "| {} |", "\ufeff{}", "{}<|im_end|>", "There are {} ones.", "The answer is **{}**.", "Answer: {}",
        "<answer>{}</answer>",
        "3 + 4 = {}", "**{}** ones in total", "The number of ones in the sequence is {}.",
    ]
)  # fmt: skip
AND = st.sampled_from(
    [" or ", " and ", " to ", "-", "–", "/", ", ", "; ", "\n", " ", "\t", " = ", ". No, ", " (", ":", "|"]
)
NUMBERS = st.integers(0, 999_999)


def spelt(n: int) -> str:
    """A number up to a million in English words, by other means than the reader's."""
    units = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    units += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
    tens = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    if n < 20:
        return units[n]
    if n < 100:
        return tens[n // 10] + ("-" + units[n % 10] if n % 10 else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    return f"{spelt(n // size)} {name}" + (f" and {spelt(n % size)}" if n % size else "")


@settings(deadline=None, max_examples=150)
@given(n=NUMBERS, form=WRITTEN)
def test_any_form_is_read_back(n: int, form: str) -> None:
    assert READ(form.format(n), "", True).value == str(n)
    assert READ(f"{MATHS} {form.format(n)}", MATHS, True).value == str(n)


@settings(deadline=None, max_examples=150)
@given(n=NUMBERS)
def test_words_are_read_back(n: int) -> None:
    said = spelt(n)
    assert value(said) == n
    assert stated(said, ()) == said
    for text in (said, f"{n} ({said})", f"{said} ({n})", f"There are {said} ones."):
        assert READ(text, "", True).value == str(n)
    if n:
        assert READ(f"{n} ({spelt(n - 1)})", "", True).value == ""


@settings(deadline=None, max_examples=150)
@given(first=NUMBERS, second=NUMBERS, one=WRITTEN, other=WRITTEN, join=AND, words=st.booleans())
def test_two_numbers_are_never_read(first: int, second: int, one: str, other: str, join: str, words: bool) -> None:
    """But for two that write one number: in groups of three, as a turn that goes on, or as a sum and what it gives."""
    assume(first != second)
    assume("<|im_end|>" not in one)  # what follows the end of a turn is not part of the answer
    assume(join != " " or not 100 <= second <= 999)  # in groups of three
    assume(other != "3 + 4 = {}" or join not in "- ")  # 7-3 + 4 = 8
    assume(one != "3 + 4 = {}" or join != " = ")
    text = one.format(first) + join + other.format(spelt(second) if words and ":," not in other else second)
    assert READ(text, "", True).value == "", text
    if "\n" not in text:
        assert READ(f"{MATHS} {text}", MATHS, True).value == "", text


HEDGES = [
    "about {}",
    "not {}",
    "at least {}",
    "{} or so",
    "{}?",
    "maybe {}",
    "{}%",
    "{} zeros",
    "{}th",
    "~{}",
    "<{}",
    "{}.5",
    "{}^2",
]


@settings(deadline=None, max_examples=150)
@given(n=NUMBERS, hedge=st.sampled_from(HEDGES), form=WRITTEN)
def test_a_hedge_is_never_read(n: int, hedge: str, form: str) -> None:
    for text in (
        hedge.format(n),
        f"The answer is {hedge.format(n)}",
        form.replace("{:,}", "{}").format(hedge.format(n)),
    ):
        assert READ(text, "", True).value == "", text


def test_each_task_knows_its_own_units() -> None:
    for name, said, expected in (
        ("count_ones", "There are 7 ones", "7"), ("count_ones", "7 cars", ""), ("count_word", "7 times", "7"),
        ("count_word", "'car' appears 7 times in the sentence.", "7"), ("count_word", "'dog' appears 7 times", ""),
        ("count_word", "7 cars", "7"), ("sum", "7 ones", "7"), ("copy_last", "There are 7 ones", ""),
        ("copy_last", "The answer is 1.", "1"), ("copy_first", "The last digit is 1", ""), ("taught_count_repeated",
        "7 ones", "7"),
    ):  # fmt: skip
        task = find(name)
        assert task.read(said, task.opening, True).value == expected, (name, said)
