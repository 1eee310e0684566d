"""Readers of answers: what a person reads in what models write, what is not read and why, and that a cut never changes
a number.

The question is how many ones there are. The tables have replies of fifteen kinds under what a person reads in them, or
under the reason why nothing is read. In replies, ⏎ is a new line and O the words that the answer should open with.
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
    f"The answer is then 2 * 5 + 2 = 12\n\n{MATHS} 12"
)
READERS = {
    "number": reading.number,
    "digit": reading.digit,
    "digits": reading.digits,
    "words": reading.words,
}

# Digits alone, which is the requested form.
AS_ASKED = {
    "7": r"""
7
 7⏎
7.
**7**
"7"
(7)
$$7$$
$7$
**7.**
+7
７
٧
7<end_of_turn>⏎
7<｜end▁of▁sentence｜>
<bos>7
<start_of_turn>model⏎7<end_of_turn>
<|im_start|>assistant⏎7<|im_end|>⏎<|im_start|>user⏎Now count 8
<s> 7</s></s></s>
<|start_header_id|>assistant<|end_header_id|>⏎⏎7<|eot_id|>
""",
    "-7": "-7\n−7",
    "0": "0",
    "1234": "1,234",
    "12345678": "12,345,678",
    "12": "१२",
}
# Drafts of models that think: what follows the last end of a thought is the answer, also in the requested form.
THOUGHTS = {
    "7": r"""
<think>6? no, 8.</think>⏎⏎7
is it 8? </think>7
<thinking>8 or 9?</thinking>7
<|channel|>analysis<|message|>Is it 8? O 8<|end|><|start|>assistant<|channel|>final<|message|>7<|return|>
analysisThere are 8? Recount: 7.assistantfinal7
<|channel>thought⏎I count 8. O 8⏎<channel|>7<turn|>
<|turn>model⏎<|channel>thought⏎<channel|>7<turn|>
[THINK]8, I think. O 8[/THINK]7</s>
<|START_THINKING|>O 8<|END_THINKING|><|START_RESPONSE|>7<|END_RESPONSE|><|END_OF_TURN_TOKEN|>
<seed:bos>assistant⏎<seed:think>8?<seed:cot_budget_reflect>9 tokens</seed:cot_budget_reflect></seed:think>7<seed:eos>
[|assistant|]<thought>⏎8? O 8⏎</thought>⏎⏎7[|endofturn|]
<|im_assistant|>assistant<|im_middle|>◁think▷8. O 8◁/think▷7<|im_end|>
<|start_of_role|>assistant<|end_of_role|><think>8</think><response>7</response><|end_of_text|>
Here is my thought process:⏎There are 8. O 8⏎⏎Here is my response:⏎7
<|assistant_start|><|inner_prefix|>8? O 8<|inner_suffix|>7<|assistant_end|>
<think>O 8</think>O 7
""",
    "none": r"""
<end_of_turn>7
<think>7
<think>O 7
<think>8</think><think>7
<|channel|>analysis<|message|>O 7<|end|>
<|channel|>analysis<|message|>O 7
<|channel>thought⏎O 7
[THINK]O 7
<|START_THINKING|>O 7
<seed:think>O 7
<thought>O 7
◁think▷O 7
Here is my thought process:⏎There are 7. O 7
<|inner_prefix|>O 7
""",
}
MARKED_UP = {
    "7": r"""
\boxed{7}
\[\boxed{7}\]
\(7\)
\boxed{\text{7}}
\boxed{7 \text{ ones}}
The answer is \boxed{7}.
There are \(7\) ones.
\[⏎\boxed{7}⏎\]
```⏎7⏎```
Answer:⏎```⏎7⏎```
<b>7</b>
<answer>7</answer>
<strong>7</strong> ones
**7** ones
**seven**
#### 7
---⏎7
**Answer:** 7
""",
    "1234": "\\boxed{1{,}234}\n$1\\,234$",
}
SENTENCES = {
    "7": r"""
7 ones
7 'ones'
= 7
x = 7
3 + 4 = 7
5 + 2 = 6 + 1 = 7
7.0
7,
**7**;
Final answer: 7
The total is 7.
There are a total of 7 ones.
The sequence contains 7 ones.
So, 7.
Sure!⏎⏎7
Therefore, the answer is 7.
The final answer to your math question is: 7
{"answer": 7}
""",
    "4": "1 + 1 + 1 + 1 = 4",
    "3": "(1 + 1) + 1 = 3",
    "1": r"""
There is 1 one.
one 1
1 one
1 (one) one
I count 1 one in total.
The answer is one 1.
""",
}
IN_WORDS = {
    "7": "seven\nSeven.\n7 (seven)\nseven (7) ones\nThere are seven (7) ones.",
    "0": "zero",
    "21": "twenty-one\ntwenty one\ntwenty‑one\n21 (twenty-one)",
    "100": "one hundred\na hundred",
    "105": "one hundred and five",
    "342": "three hundred forty-two",
    "1000": "one thousand",
    "1234": "1,234 (one thousand two hundred and thirty-four)",
    "2304": "two thousand, three hundred and four",
}
SEPARATED = {
    "1234": "1 234\n1\u00a0234\n1\u202f234\n1'234\n1’234\n1,234,",
    "1234567": "1'234'567",
    "-1234": "-1 234",
    "-7": "–7\n－7",
}
# A last sentence announces the answer, after steps that may have other numbers.
ANNOUNCED = {
    "7": r"""
5 and 2 more.⏎⏎The answer is 7.
The first half has 4, the second 3.⏎⏎$$\boxed{7}$$
5 and 2 more.⏎⏎#### Answer: 7
5 + 1 = 6⏎6 + 1 = 7⏎⏎The answer is 7.
The answer is 7. I hope this helps!
The answer is 7.⏎⏎Let me know if you need anything else.
The answer is 7: 3 + 4 = 7.⏎The answer is 7.
The answer is 7.⏎3 + 4 = 7
""",
    "several": r"""
the answer is 7. Wait, 8.
The answer is 7.⏎The answer is 8.
8⏎⏎The answer is 7.
The answer is 7.⏎Upon review, there are 8.
The answer is 7.⏎3 + 5 = 8
3 + 5 = 8⏎The answer is 7.
""",
    "retracted": "The answer is 7.\u23ceNo, that is wrong.",
}
SEVERAL = {
    "several": r"""
1 1
7 one
1 one and 1 zero
<s>8</s> 1
<s>8</s>⏎1
The answer is <s>8</s> 7.
```⏎7⏎``` 8
7 or 8
7 8
7-8
between 7 and 9
7 (eight)
8 (seven)
seven (seven)
7 = 8
7 or eight
10^3
10<sup>3</sup>
3 + 4
7 ones and 3 zeros
7 out of 10
1 23
0 123
1 234,567
1	234
1⏎234
\boxed{1}234
\boxed{7} or \boxed{8}
| 7 | 8 |
\frac{7}{8}
7 ± 1
2024-11-22
"""
}
NOT_WHOLE = {
    "grouping": "7...8\n1,1,1,1\n1.234\n1,234,5\n10,24\n1'23\n1,234.5",
    "fraction": "7/8\n7.5\n0.125",
    "long": "1111111111111111\n1 234 234 234 234 234 ",
    "words": "7 hundred\na dozen",
}
DOUBTED = {
    "form": r"""
about 7
at least 7
<7
7?
not 7
~~7~~
maybe 7
7²
7 zeros
No. 7
Are there 7 ones?
- 7
#7
If the answer is 7
\sqrt{7}
€7
The answer to question 7
1٢
7 or more
<del>7</del>
minus 7
We have 7 ones in total.
O 7 (wrong)
O 7?
""",
    "none": "I cannot tell.\nunknown\nVII\n½\nseventh\na few ones",
}
# What is said after the answer: another number in a sentence of its own, or that the answer is wrong.
CORRECTED = {
    "several": r"""
O 5⏎Upon review, the answer is 6.
O 5⏎Recounting gives 6.
O 5. Recounting gives 6.
O 7⏎Actually 8
O 7⏎No, it is 8.
O 7⏎My mistake: 8 ones.
O 7⏎The correct answer is eight.
O 7⏎8
O 7⏎There are 8 ones in the sequence.
O 7⏎O 8⏎O 7
O 7⏎\boxed{8}
O 7⏎Wait, that is wrong. It is 8.
O 7⏎Wait, no. 8.
O 7⏎It isn't 7, it is 8.
O 7⏎3 + 5 = 8
O -7⏎Actually 7
O seven⏎or eight
O 7, no, 8
O 7<br>8
O 7 → 8
""",
    "retracted": r"""
O 7⏎This is wrong.
O 7⏎the answer is not 7
O 7⏎Hold on, I missed one.
O 7⏎No.
O 7⏎I miscounted.
O 7⏎I counted once more.⏎I was wrong.
O 7⏎WAIT, THAT IS WRONG.
O 1,234⏎The answer is not 1234
O -7⏎It is not -7.
""",
}
CONFIRMED = {
    "7": r"""
O 7⏎7
O 7⏎1 + 1 = 2⏎2 + 5 = 7
O 7⏎Wait, let me check: yes.⏎There are 7 ones.
O 7⏎That is wrong.⏎No, it is right.⏎O 7
O 7, O 7.
Wait, 8 is wrong. O 7
O 7. I counted them one by one.
O 7⏎I am not wrong.
O 7⏎Please correct me if I am wrong.
O 7⏎No further explanation is needed.
"""
}
# Other text behind the answer: dates, lists, and new questions of models that are not tuned for dialogue.
GOES_ON = {
    "7": r"""
O 7⏎1. The first step is to count.⏎2. The second is to add.
O 7⏎1, 2, 3, 4, 5, 6, 7
O 7⏎2023-05-01
O 7⏎The dog went to the wrong house in 1999.
O 7⏎Please count the number of ones in the following sequence: 111⏎⏎The answer is 3.
O 7⏎Q: How many zeros are in 000?⏎A: 3⏎There are 3.
O 7⏎User: What is 5 + 6?⏎Assistant: The answer is 11.
O 7⏎Write a program that prints 8.⏎⏎print(8)
O 7⏎Sorry for the long answer.
O 7<|im_end|>⏎Wait, 8.
I will say 'O xxxx'. O 7
"""
}
# Replies in which a person reads 7, and where an honest reader may be silent.
SILENT = {
    "7": r"""
O 7⏎I counted 3 in the first half and 4 in the second.
O 7⏎But there are 3 zeros.
O 7⏎It is not 8 but 7.
We have 7 ones in total.
The sequence has seven of them.
"""
}
WITHOUT_OPENING = [MARKED_UP, SENTENCES, IN_WORDS, SEPARATED]
KINDS = {
    "as asked": AS_ASKED,
    "thoughts": THOUGHTS,
    "markup": MARKED_UP,
    "sentences": SENTENCES,
    "words": IN_WORDS,
    "separators": SEPARATED,
    "announced": ANNOUNCED,
    "several": SEVERAL,
    "not whole": NOT_WHOLE,
    "doubted": DOUBTED,
    "corrected": CORRECTED,
    "confirmed": CONFIRMED,
    "goes on": GOES_ON,
}


def replies(table: dict[str, str]) -> list[tuple[str, str]]:
    """Each reply of a table, with what is read in it."""
    return [
        (line.replace("⏎", "\n").replace("O ", MATHS + " "), expected)
        for expected, lines in table.items()
        for line in lines.strip("\n").split("\n")
    ]


def check(
    read: Reader, text: str, opening: str, expected: str, ended: bool = True
) -> None:
    """`expected` is the value, or the reason why there is none."""
    found = read(text, opening, ended)
    wanted = ("", expected) if expected in WHY else (expected, "read")
    assert (found.value, found.why) == wanted, text


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_is_read_as_a_person_reads_it(kind: str) -> None:
    for text, expected in replies(KINDS[kind]):
        check(READ, text, MATHS, expected)


def test_the_requested_form_is_told_from_others() -> None:
    for text, _ in replies(AS_ASKED):
        assert READ(text, "", True).as_asked, text
    for table in WITHOUT_OPENING:
        for text, _ in replies(table):
            assert not READ(text, "", True).as_asked, text


def test_a_number_is_read_after_the_opening_words_as_alone() -> None:
    for table in (AS_ASKED, *WITHOUT_OPENING):
        for text, expected in replies(table):
            if re.search(r"\n|<.*>|[Aa]nswer to|^#|!", text):
                continue
            found = READ(f"I count.\n{MATHS} {text}", MATHS, True)
            assert found == reading.Reading(expected, "read", table is AS_ASKED), text


def test_no_reply_is_misread() -> None:
    """Silence is honest, also where a person reads a number."""
    for text, expected in replies(SILENT):
        assert READ(text, MATHS, True).value in ("", expected), text


def test_invisible_characters_are_no_text() -> None:
    for text in ("\u200b7\u200b", "\u20607", "\ufeff7"):
        check(READ, text, "", "7")
    for text in ("", " \n"):
        check(READ, text, "", "none")
        check(reading.digits, text, "", "none")


# Ways to write a number that leave no doubt, for any number up to a million.
WRITTEN = st.sampled_from(
    r"""
{}
{:,}
{}.0
= {}
\boxed{{{}}}
\({}\)
\text{{{}}}
```⏎{}⏎```
{} ones
{};
{},
{}<|im_end|>
There are {} ones.
The answer is **{}**.
Answer: {}
<answer>{}</answer>
3 + 4 = {}
**{}** ones in total
The number of ones in the sequence is {}.
""".strip("\n").split("\n")
).map(lambda form: form.replace("⏎", "\n"))
AND = st.sampled_from(
    [*"-–/\n \t:|", " or ", " and ", " to ", ", ", "; ", " = ", ". No, ", " ("]
)
NUMBERS = st.integers(0, 999_999)


BELOW_TWENTY = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def spelt(n: int) -> str:
    """A number up to a million in English words, by other means than the reader's."""
    below_twenty = re.findall(r"\w+", BELOW_TWENTY)
    tens = re.findall(r"\w+", TENS)
    if n < 20:
        return below_twenty[n]
    if n < 100:
        return tens[n // 10 - 2] + (f"-{below_twenty[n % 10]}" if n % 10 else "")
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


HEDGES = "about {}|not {}|at least {}|{} or so|{}?|maybe {}|{}%|{} zeros|{}th|~{}|<{}|{}.5|{}^2"


@settings(deadline=None, max_examples=150)
@given(n=NUMBERS, hedge=st.sampled_from(HEDGES.split("|")), form=WRITTEN)
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


# The readers of digits and of sequences of digits, after the opening words and alone.
OF_DIGITS = {
    "0": "0\nzero\n**ZERO**.\n٠",
    "7": "7\nseven",
    "9": "9",
    "none": "<ANSWER>\n¹",
    "digit": "10\n1,000\ntwenty-one",
    "form": "a one\nthe last one",
    "several": "1 0\n0 or 1",
}
OF_SEQUENCES = {
    "1010": "1010\n1 0 1 0\n<1010>\n1010,",
    "101,010,1": "101,010,1\n101, 010, 1",
    "101": "１０１",
    "form": "1٢\n10…10\nthe number 1010",
    "none": "²",
}


@pytest.mark.parametrize(
    ("read", "table"), [(reading.digit, OF_DIGITS), (reading.digits, OF_SEQUENCES)]
)
def test_digits_and_sequences_of_digits(read: Reader, table: dict[str, str]) -> None:
    for text, expected in replies(table):
        check(read, text, "", expected)
        check(read, text, "", "cut", ended=False)
        check(read, f"{COPIED} {text}", COPIED, expected)
        check(read, f"Here it is.\n{COPIED} {text}\nThat was it.", COPIED, expected)


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


WORDS = ["xxxx", "<ANSWER>", "12", "024", "١٢", "one", "twelve", "seventy-", "ones"]
PIECES = st.sampled_from([MATHS, COPIED, *WORDS])
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
    after=st.sampled_from(["", "\n", "\n\nI counted.", f"\n\nDone.\n{MATHS} xxxx"]),
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
