"""Readers of answers: what is read in what models say, what is not and why, and that a cut never changes a number.

Answers as models write them have their right reading beside them, written by hand. The first tables ask how many ones
there are and have the answer 7 (or another number) wherever a reader of English would have no doubt.
"""

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from squashlens.tasks import find, reading
from squashlens.tasks.numerals import find_stated, value
from squashlens.tasks.reading import WHY, Reader

READ = reading.counted("ones", "1s", "1's")
MATHS = "The final answer to your maths question is:"
COPIED = "The answer to your question is:"
REASONED = (
    "We divide the sequence into groups of 5. (11111) (11111) 11\n\n"
    "The answer is then 2 * 5 + 2 = 12\n\n"
    "The final answer to your maths question is: 12"
)
UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
READERS = {
    "number": reading.number,
    "digit": reading.digit,
    "digits": reading.digits,
    "words": reading.words,
}


def check(
    read: Reader, text: str, opening: str, expected: str, ended: bool = True
) -> None:
    """`expected` is the value, or the reason why there is none."""
    reason, found = expected in WHY, read(text, opening, ended)
    assert (found.value, found.why) == (
        ("", expected) if reason else (expected, "read")
    ), text


# As asked: digits alone.
STRICT = dict.fromkeys(
    [
        "7",
        " 7\n",
        "7.",
        "**7**",
        "_7_",
        "'7'",
        '"7"',
        "«7»",
        "(7)",
        "$$7$$",
        "\u200b7\u200b",
        "\u20607",
        "[7]",
        "<7>",
        "$7$",
        "**7.**",
        "+7",
        "７",
        "٧",
        "\ufeff7",
        "7<end_of_turn>",
        "7<end_of_turn>\n",
        "7<|im_end|>",
        "7<eos>",
        "7<｜end▁of▁sentence｜>",
        "<bos>7",
        "<start_of_turn>model\n7<end_of_turn>",
        "<|im_start|>assistant\n7<|im_end|>\n<|im_start|>user\nNow count 8",
        "<think>6? no, 8.</think>\n\n7",
        "is it 8? </think>7",
        "<s>7</s>",
        "<s> 7</s></s></s>",
        "<s>7</s><pad><pad>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n7<|eot_id|>",
    ],
    "7",
) | {
    "-7": "-7",
    "−7": "-7",
    "0": "0",
    "1,234": "1234",
    "12,345,678": "12345678",
    "१२": "12",
}
# Not as asked, and beyond doubt.
LENIENT = (
    dict.fromkeys(
        [
            r"\boxed{7}",
            r"$\boxed{7}$",
            r"\[\boxed{7}\]",
            r"\(7\)",
            r"\text{7}",
            r"\boxed{\text{7}}",
            r"\boxed{\mathbf{7}}",
            r"\textbf{7}",
            r"\boxed{7 \text{ ones}}",
            r"The answer is \boxed{7}.",
            r"There are \(7\) ones.",
            "\\[\n7\n\\]",
            "\\[\n\\boxed{7}\n\\]",
            r"\fbox{7}",
            "```\n7\n```",
            "```text\n7\n```",
            "Answer:\n```\n7\n```",
            "<b>7</b>",
            "<answer>7</answer>",
            '<span class="a">7</span>',
            "<strong>7</strong> ones",
            "7 ones",
            "**7** ones",
            "7 1's",
            "7 'ones'",
            "seven",
            "Seven.",
            "**seven**",
            "7 (seven)",
            "seven (7) ones",
            "There are seven (7) ones.",
            "= 7",
            ": 7",
            "x = 7",
            "3 + 4 = 7",
            "5 + 2 = 6 + 1 = 7",
            "7.0",
            "7;",
            "7,",
            "**7**;",
            "#### 7",
            "## Answer\n7",
            "---\n7",
            "Answer: 7",
            "**Answer:** 7",
            "Final answer: 7",
            "The answer is 7.",
            "The answer is **7**.",
            "The final answer is: 7",
            "Total: 7",
            "The total is 7.",
            "There are 7 ones.",
            "There are 7 ones in the sequence.",
            "There are exactly 7 ones in the given sequence.",
            "There are a total of 7 ones.",
            "I count 7 ones.",
            "It is 7.",
            "The sequence contains 7 ones.",
            "The number of ones in the sequence is 7.",
            "So, 7.",
            "Sure! There are 7 ones.",
            "Sure!\n\n7",
            "Therefore, the answer is 7.",
            "The answer to your question is 7.",
            "7 ones in total",
            "The final answer to your math question is: 7",
            "The final answer to your maths question is 7",
            '{"answer": 7}',
            '"answer": "7"',
            "5 and 2 more.\n\nThe answer is 7.",
            "The first half has 4, the second 3.\n\n$$\\boxed{7}$$",
            "5 and 2 more.\n\n#### Answer: 7",
            "5 + 1 = 6\n6 + 1 = 7\n\nThe answer is 7.",
        ],
        "7",
    )
    | {
        r"\boxed{1{,}234}": "1234",
        r"$1\,234$": "1234",
        "zero": "0",
        "twenty-one": "21",
        "twenty one": "21",
        "one hundred": "100",
        "a hundred": "100",
        "one hundred and five": "105",
        "three hundred forty-two": "342",
        "one thousand": "1000",
        "two thousand, three hundred and four": "2304",
        "twelve hundred": None,
        "21 (twenty-one)": "21",
        "1,234 (one thousand two hundred and thirty-four)": "1234",
        "1 + 1 + 1 + 1 = 4": "4",
        "(1 + 1) + 1 = 3": "3",
        "1 234": "1234",
        "1\u00a0234": "1234",
        "1\u202f234": "1234",
        "1'234": "1234",
        "1’234": "1234",
        "1'234'567": "1234567",
        "-1 234": "-1234",
        "–7": "-7",
        "－7": "-7",
        "1,234,": "1234",
        "We have 7 ones in total.": None,
        "twenty‑one": "21",
        "There is a single one.": None,
    }
    | {
        text: "1"
        for text in (
            "There is 1 one.",
            "one 1",
            "1 one",
            "1 (one) one",
            "There is one one.",
            "There was only 1 one.",
            "The sequence contains 1 one.",
            "I count 1 one in total.",
            "The answer is one 1.",
        )
    }
)
# What leaves a doubt, and why it is not read.
UNCLEAR = {
    **dict.fromkeys(
        [
            "",
            " \n",
            "I cannot tell.",
            "unknown",
            "<end_of_turn>7",
            "<think>7",
            "VII",
            "½",
            "seventh",
            "a few ones",
        ],
        "none",
    ),
    **dict.fromkeys(
        [
            "1 1",
            "one one",
            "7 one",
            "1 one and 1 zero",
            "<s>8</s> 1",
            "<s>8</s>\n1",
            "The answer is <s>8</s> 7.",
            "```\n7\n``` 8",
            "7 or 8",
            "7 and 8",
            "7, 8",
            "7 8",
            "7\n8",
            "7-8",
            "7 to 8",
            "between 7 and 9",
            "7 (8)",
            "7 (eight)",
            "8 (seven)",
            "seven (seven)",
            "7 = 8",
            "7 or eight",
            "seven or eight",
            "one two",
            "10^3",
            "10<sup>3</sup>",
            "3 + 4",
            "7 ones and 3 zeros",
            "7 out of 10",
            "6 + 1 ones",
            "1 1 1 1",
            "1 23",
            "0 123",
            "1 234,567",
            "1\t234",
            "1\n234",
            r"\boxed{1}234",
            r"\boxed{7} or \boxed{8}",
            "| 7 | 8 |",
            "the answer is 7. Wait, 8.",
            "The answer is 7.\nThe answer is 8.",
            r"\frac{7}{8}",
            "7 ± 1",
            "2024-11-22",
            "8\n\nThe answer is 7.",
        ],
        "several",
    ),
    **dict.fromkeys(
        ["7...8", "1,1,1,1", "1.234", "1,234,5", "10,24", "1'23", "1,234.5"], "grouping"
    ),
    **dict.fromkeys(["7/8", "7.5", "0.125"], "fraction"),
    **dict.fromkeys(
        [
            "about 7",
            "~7",
            "at least 7",
            "> 7",
            "<7",
            "7+",
            "7?",
            "7%",
            "not 7",
            "It isn't 7.",
            "~~7~~",
            "maybe 7",
            "7th",
            "7²",
            "7 zeros",
            "No. 7",
            "Are there 7 ones?",
            "- 7",
            "— 7",
            "#7",
            "If the answer is 7",
            "I do not know if it is 7.",
            r"\sqrt{7}",
            r"\approx 7",
            "€7",
            "step 7",
            "The answer to question 7",
            "1٢",
            "7 or more",
            "<del>7</del>",
            "minus 7",
            "no more than 7",
            "not seven",
        ],
        "form",
    ),
    **dict.fromkeys(["7 hundred", "a dozen"], "words"),
    **dict.fromkeys(["1" * 16, "1 " + "234 " * 5], "long"),
}


@pytest.mark.parametrize(
    ("table", "as_asked"), [(STRICT, True), (LENIENT, False), (UNCLEAR, False)]
)
def test_whole_answers_of_a_number(
    table: dict[str, str | None], as_asked: bool
) -> None:
    """Those marked None are beyond doubt too, and are not read: the vocabulary is closed."""
    for text, expected in table.items():
        found = READ(text, "", True)
        if expected is None:
            assert found.why != "read", text
        elif expected in WHY:
            assert found == reading.Reading("", expected), text  # pyright: ignore[reportArgumentType]
        else:
            assert found == reading.Reading(expected, "read", as_asked), text


# Those that are one line, and stand at the beginning of none.
SAID_ALONE = [
    text
    for text in (*STRICT, *LENIENT)
    if not re.search(r"\n|<.*>|think|[Aa]nswer to|\||^#|5 and 2", text)
]


def test_numbers_behind_the_sentence_that_was_asked_for() -> None:
    for text in SAID_ALONE:
        found = READ(f"I count.\n{MATHS} {text}", MATHS, True)
        assert (found.value, found.as_asked) == (
            STRICT.get(text, LENIENT.get(text)) or "",
            text in STRICT,
        ), text


# Ways to write a number that leave no doubt, for any number up to a million.
WRITTEN = st.sampled_from(
    [
        "{}",
        "{:,}",
        "{}.0",
        "= {}",
        r"\boxed{{{}}}",
        r"\({}\)",
        r"\text{{{}}}",
        "```\n{}\n```",
        "{} ones",
        "{};",
        "{},",
        "\ufeff{}",
        "{}<|im_end|>",
        "There are {} ones.",
        "The answer is **{}**.",
        "Answer: {}",
        "<answer>{}</answer>",
        "3 + 4 = {}",
        "**{}** ones in total",
        "The number of ones in the sequence is {}.",
    ]
)
AND = st.sampled_from(
    [
        " or ",
        " and ",
        " to ",
        "-",
        "–",
        "/",
        ", ",
        "; ",
        "\n",
        " ",
        "\t",
        " = ",
        ". No, ",
        " (",
        ":",
        "|",
    ]
)
NUMBERS = st.integers(0, 999_999)


def spelt(n: int) -> str:
    """A number up to a million in English words, by other means than the reader's."""
    units = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ]
    units += [
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ]
    tens = [
        "-",
        "-",
        "twenty",
        "thirty",
        "forty",
        "fifty",
        "sixty",
        "seventy",
        "eighty",
        "ninety",
    ]
    if n < 20:
        return units[n]
    if n < 100:
        return tens[n // 10] + ("-" + units[n % 10] if n % 10 else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    return f"{spelt(n // size)} {name}" + (
        f" and {spelt(n % size)}" if n % size else ""
    )


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
    assert find_stated(said, ()) == said
    for text in (said, f"{n} ({said})", f"{said} ({n})", f"There are {said} ones."):
        assert READ(text, "", True).value == str(n)
    if n:
        assert READ(f"{n} ({spelt(n - 1)})", "", True).value == ""


@settings(deadline=None, max_examples=150)
@given(
    first=NUMBERS,
    second=NUMBERS,
    one=WRITTEN,
    other=WRITTEN,
    join=AND,
    words=st.sampled_from([0, 1, 2]),
)
@example(first=20, second=1, one="{}", other="{}", join="\n", words=2)
@example(first=0, second=1, one="{}.0", other="\\boxed{{{}}}", join="\n", words=2)
def test_two_numbers_are_never_read(
    first: int, second: int, one: str, other: str, join: str, words: int
) -> None:
    """But for two that write one number: in groups of three, as a turn that goes on, or as a sum and what it gives.

    The last `words` of the two are in words; "twenty-one" and "one hundred and two" are one number again.
    """
    assume(first != second)
    assume(
        "<|im_end|>" not in one
    )  # what follows the end of a turn is not part of the answer
    assume(join != " " or not 100 <= second <= 999)  # in groups of three
    assume(other != "3 + 4 = {}" or join not in "- ")  # 7-3 + 4 = 8
    assume(one != "3 + 4 = {}" or join != " = ")
    assume(words < 2 or join not in (" ", "-", " and ", ", "))
    in_words = [
        not re.search(r":,|\}\.0", form) for form in (one, other)
    ]  # "zero.0" is nothing
    text = one.format(spelt(first) if words == 2 and in_words[0] else first)
    text += join + other.format(spelt(second) if words and in_words[1] else second)
    assert READ(text, "", True).value == "", text
    if "\n" not in text:
        assert READ(f"{MATHS} {text}", MATHS, True).value == "", text


HEDGES = (
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
)


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
        ("count_ones", "There are 7 ones", "7"),
        ("count_ones", "7 cars", ""),
        ("count_word", "7 times", "7"),
        ("count_word", "'car' appears 7 times in the sentence.", "7"),
        ("count_word", "'dog' appears 7 times", ""),
        ("count_word", "7 cars", "7"),
        ("sum", "7 ones", "7"),
        ("copy_last", "There are 7 ones", ""),
        ("copy_last", "The answer is 1.", "1"),
        ("copy_first", "The last digit is 1", ""),
        ("taught_count_repeated", "7 ones", "7"),
    ):
        task = find(name)
        assert task.read(said, task.opening, True).value == expected, (name, said)


@pytest.mark.parametrize(
    "between",
    [", ", "\n", "\n\n", "; ", ". ", ", then ", "<br>", "\n- ", "\n2. ", "\t"],
)
def test_a_step_is_no_answer_while_the_sum_goes_on(between: str) -> None:
    for before in (
        "",
        "We add: ",
        "We add.\n",
        "The answer is ",
        f"{MATHS} ",
        f"{MATHS}\n",
        f"**{MATHS}** ",
    ):
        for behind in (
            "",
            ".",
            ", …",
            "\n…",
            " and so on",
            f" {MATHS}",
            f"\n{MATHS} xxxx",
        ):
            text = (
                before + between.join(["1 + 1 = 2", "2 + 1 = 3", "3 + 1 = 4"]) + behind
            )
            assert READ(text, MATHS, True).value in ("", "4"), text


# What follows an answer of 7. `O` is the sentence that was asked for.
FOLLOWED = {
    **dict.fromkeys(
        [
            "Actually 8",
            "or 8",
            "No, it is 8.",
            "Sorry, I meant 8.",
            "My mistake: 8 ones.",
            "On second thought, 8.",
            "The correct answer is eight.",
            "**Correction:** 8",
            "8",
            "There are 8 ones in the sequence.",
            "O 8\nO 7",
            "No wait, 8",
            "New answer: 8",
            "\\boxed{8}",
            "maybe eight",
            "Wait, that is wrong. It is 8.",
        ],
        "several",
    ),
    **dict.fromkeys(
        [
            "This is wrong.",
            "the answer is not 7",
            "Wait, no. 8.",
            "Hold on, I missed one.",
            "No.",
            "Let me recount: 1, 2.",
            "I miscounted.",
            "It should be 8.",
            "That isn’t right.",
            "7 is wrong.",
            "I change my answer to 8.",
            "I counted once more.\nI was wrong.",
            "It isn't 7, it is 8.",
            "WAIT, THAT IS WRONG.",
        ],
        "retracted",
    ),
    **dict.fromkeys(
        [
            "",
            "Please count the number of ones in the following sequence: 111\n\nThe answer is 3.",
            "Q: How many zeros are in 000?\nA: 3\nThere are 3.",
            "User: What is 5 + 6?\nAssistant: The answer is 11.",
            "### Example 2\n\nAnswer: 8",
            "1. The first step is to count.\n2. The second is to add.",
            "I counted 3 in the first half and 4 in the second.",
            "1 + 1 = 2\n2 + 5 = 7",
            "7",
            "But there are 3 zeros.",
            "It is not 8 but 7.",
            "I am not wrong.",
            "Please correct me if I am wrong.",
            "No further explanation is needed.",
            "The dog went to the wrong house in 1999.",
            "Write a program that prints 8.\n\nprint(8)",
            "2023-05-01",
            "Wait, let me check: yes.\nThere are 7 ones.",
            "That is wrong.\nNo, it is right.\nO 7",
            "x = 8",
            "1, 2, 3, 4, 5, 6, 7",
            "Actually, 7.",
            "Wait for my next message.",
            "Sorry for the long answer.",
        ],
        "7",
    ),
}


BEHIND = {f"O 7\n{text}": expected for text, expected in FOLLOWED.items()} | {
    "O 7. But O 8": "several",
    "O 7, no, 8": "several",
    "O 7<br>8": "several",
    "O 7 (wrong)": "form",
    "'O 7' is wrong.": "form",
    "O 7?": "form",
    "O ~~7~~": "form",
    "O 7 → 8": "several",
    "O 7, O 7.": "7",
    "O 1,234\nThe answer is not 1234": "retracted",
    "O -7\nActually 7": "several",
    "O -7\nIt is not 7.": "-7",
    "O -7\nIt is not -7.": "retracted",
    "O seven\nor eight": "several",
    "Wait, 8 is wrong. O 7": "7",
    "I will say 'O xxxx'. O 7": "7",
    "O 7<|im_end|>\nWait, 8.": "7",
}


@pytest.mark.parametrize("text", BEHIND, ids=ascii)
def test_what_follows_an_answer_may_take_it_back(text: str) -> None:
    check(READ, text.replace("O ", MATHS + " "), MATHS, BEHIND[text])


@pytest.mark.parametrize(
    "read", [reading.number, reading.digit, reading.digits, reading.words]
)
def test_every_reader_knows_what_is_taken_back(read: reading.Reader) -> None:
    for behind in ("Wait, that is wrong.", "I was mistaken.", "This is not 1."):
        assert read(f"{MATHS} 1\n{behind}", MATHS, True).why == "retracted"
        assert read(f"{MATHS} 1\n{behind}", MATHS, False).value == ""
    assert read(f"{MATHS} 1\nDone.", MATHS, True) == reading.Reading("1", "read")


ASKED = "Please count the number of ones in the following sequence:"


# What a reader makes of whole answers, with the opening words. A number that may go on is not read if the answer was
# cut off; one that a new line or a quotation mark closes is.
WHOLE = {
    ("number", MATHS, True): {
        "": "none",
        "I'm sorry, but I can't help with that.": "none",
        MATHS: "none",
        f"{MATHS} xxxx": "none",
        "The answer is 12.": "12",
        "There are 12 ones and 3 zeros.": "several",
        "1 + 1 + 1 + 1 = 4": "4",
        "  **12**\n": "12",
        f"{MATHS} 12\n{MATHS} 13": "several",
        f"{MATHS} I do not know\n12": "none",
        f"{MATHS} 12\nWait, I missed one.\n{MATHS} thirteen": "several",
        f"{MATHS} 12\n\n{ASKED}111111\n\n{MATHS} 6": "12",
        f"{REASONED}\n\n{ASKED}11\n\nThe ans": "12",
    },
    ("number", MATHS, False): {
        f"{MATHS} 12": "cut",
        f"{MATHS} 12.": "cut",
        f"{MATHS} 1,": "cut",
        f"{MATHS} twel": "cut",
        f"{MATHS} 12\n": "12",
        f"{MATHS} 12.\nSo th": "12",
        f"{MATHS} '12'": "12",
        f"{MATHS} 12 of": "cut",
        f"{MATHS} 12\n\n{ASKED}11\n{MATHS} 2": "12",
        f"{MATHS} 2 * 5 + 2 =\n": "several",
        "": "cut",
        "12": "cut",
        MATHS[:-4]: "cut",
        f"{MATHS}\n": "cut",
        f"'{MATHS} xxxx', that is 12": "cut",
    },
    ("words", COPIED, True): {
        f"{COPIED} tree": "tree",
        f"{COPIED}\n'the  old\ttree'": "the old tree",
        "": "none",
        COPIED: "none",
        f"**{COPIED}** **tree**\nI hope that helps.": "tree",
        f"{COPIED} ''": "none",
        f"'{COPIED} <ANSWER>': I answer so.\n{COPIED} tree": "tree",
        f"{COPIED} tree\n{COPIED} 'tree'": "tree",
        f"{COPIED} tree\n{COPIED} house": "several",
    },
    ("words", COPIED, False): {
        f"{COPIED} tre": "cut",
        f"{COPIED} tree\n": "tree",
        "The answer to": "cut",
        f"{COPIED} tree\n{COPIED} tree": "cut",
    },
}


@pytest.mark.parametrize(("reader", "opening", "ended"), WHOLE)
def test_whole_answers(reader: str, opening: str, ended: bool) -> None:
    for text, expected in WHOLE[reader, opening, ended].items():
        check(READERS[reader], text, opening, expected, ended)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *((str(n), str(n)) for n in range(10)),
        *((word, str(n)) for n, word in enumerate(UNITS)),
        ("**ZERO**.", "0"),
        ("<ANSWER>", "none"),
        ("٠", "0"),
        ("¹", "none"),
        ("10", "digit"),
        ("1,000", "digit"),
        ("twenty-one", "digit"),
        ("a one", "form"),
        ("1 0", "several"),
        ("0 or 1", "several"),
        ("the last one", "form"),
    ],
)
def test_digits_and_their_names(written: str, expected: str) -> None:
    check(reading.digit, f"{COPIED} {written}", COPIED, expected)
    check(reading.digit, written, "", expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1010", "1010"),
        ("1 0 1 0", "1010"),
        ("101,010,1", "101,010,1"),
        ("101, 010, 1", "101,010,1"),
        ("<1010>", "1010"),
        ("１０１", "101"),
        ("1٢", "form"),
        ("²", "none"),
        ("10…10", "form"),
        ("1010,", "1010"),
        ("the number 1010", "form"),
        ("", "none"),
    ],
)
def test_sequences_of_digits(written: str, expected: str) -> None:
    check(reading.digits, f"{COPIED} {written}", COPIED, expected)
    check(
        reading.digits,
        f"Here it is.\n{COPIED} {written}\nThat was it.",
        COPIED,
        expected,
    )
    check(reading.digits, written, "", expected)
    check(reading.digits, written, "", "cut", ended=False)


QUOTES = [
    ("", ""),
    ("**", "**"),
    ("'", "'"),
    ("“", "”"),
    ("`", "`"),
    ("<", ">"),
    ("$", "$"),
    ("[", "]"),
    ("*'", "'*"),
]
BEFORE = st.sampled_from(
    [
        "",
        "Sure!\n",
        "(11111) (11111) 11, 2 * 5 + 2 = 12\n\n",
        f"'{MATHS} xxxx' is asked for. ",
    ]
)
# Scripts whose digits are ten code points in a row, by their zero.
ZEROS = st.sampled_from(["0", "０", "٠", "०", "𝟎"])
COUNTS = st.integers(1 - 10**15, 10**15 - 1)  # what is longer is a sequence said again
GROUPED = st.sampled_from(["{}", "{:,}"])


def in_script(value: int, form: str, zero: str) -> str:
    """A number in digits of another script."""
    return "".join(
        chr(ord(zero) + int(c)) if c.isdecimal() else c for c in form.format(value)
    )


PIECES = st.sampled_from(
    [
        MATHS,
        COPIED,
        "xxxx",
        "<ANSWER>",
        "12",
        "024",
        "١٢",
        "one",
        "twelve",
        "seventy-",
        "ones",
    ]
)
MARKS = st.sampled_from(" \n\r\xa0\u200b\x00\ud800.,-−+*'{)=01٠１²½")
TEXTS = st.text(max_size=60) | st.lists(PIECES | MARKS, max_size=12).map("".join)


@settings(deadline=None, max_examples=400)
@given(text=TEXTS, opening=st.sampled_from(["", MATHS, COPIED]), ended=st.booleans())
def test_whatever_is_said_is_read_or_told_apart(
    text: str, opening: str, ended: bool
) -> None:
    """Never an exception, never a value without a reading or the other way round, never a value that is no number."""
    for name, read in READERS.items():
        found = read(text, opening, ended)
        assert found.why in WHY, name
        assert (found.value != "") == (found.why == "read"), name
        if found.value and name in ("number", "digit"):
            assert found.value == str(int(found.value)), name
            assert name == "number" or found.value in set("0123456789")
        if found.value and name == "digits":
            assert set(found.value) <= set("0123456789,")
        assert ended or opening or found.why == "cut", name


def cuts_agree(read: Reader, text: str, opening: str, value: str) -> int:
    """Every beginning of an answer gives its value or none; how many give it."""
    given = [read(text[:end], opening, False) for end in range(len(text) + 1)]
    for end, found in enumerate(given):
        assert found.value in ("", value), (text[:end], found)
    return sum(found.value == value for found in given)


@settings(deadline=None)
@given(
    value=COUNTS,
    form=GROUPED,
    zero=ZEROS,
    quotes=st.sampled_from(QUOTES),
    stop=st.sampled_from(["", ".", ".  ", "!"]),
    before=BEFORE,
    after=st.sampled_from(
        ["", "\n", "\n\nThat is 3 more.", f"\n\n1 + 1\n{MATHS} xxxx"]
    ),
    twice=st.booleans(),
)
def test_a_cut_never_changes_the_number(
    value: int,
    form: str,
    zero: str,
    quotes: tuple[str, str],
    stop: str,
    before: str,
    after: str,
    twice: bool,
) -> None:
    """At whatever place an answer that is read is cut off: its number, or none."""
    said = f"{MATHS} {quotes[0]}{in_script(value, form, zero)}{quotes[1]}{stop}"
    text = f"{before}{said}{after}" + (f"\n{said}" if twice else "")
    check(reading.number, text, MATHS, str(value))
    known = cuts_agree(reading.number, text, MATHS, str(value))
    assert known or not after  # a new line has closed it
