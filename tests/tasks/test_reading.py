"""The strict reader of answers: what is read in what models say, what is not, and that a cut never changes a number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.tasks import reading
from squashlens.tasks.reading import WHY, Reader

MATHS = "The final answer to your maths question is:"
COPIED = "The answer to your question is:"
REASONED = (
    "We divide the sequence into groups of 5. (11111) (11111) 11\n\n"
    "The answer is then 2 * 5 + 2 = 12\n\n"
    "The final answer to your maths question is: 12"
)
UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
READERS = {"number": reading.number, "digit": reading.digit, "digits": reading.digits, "words": reading.words}


def check(read: Reader, text: str, opening: str, expected: str, ended: bool = True) -> None:
    """`expected` is the value, or the reason why there is none."""
    reason, found = expected in WHY, read(text, opening, ended)
    assert (found.value, found.why) == (("", expected) if reason else (expected, "read"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "none"),
        ("I'm sorry, but I can't help with that.", "none"),
        (MATHS, "none"),
        (f"{MATHS} xxxx", "none"),
        ("The answer is 12.", "12"),
        ("There are 12 ones and 3 zeros.", "several"),
        ("1 + 1 + 1 + 1 = 4", "4"),
        ("  **12**\n", "12"),
        (f"{MATHS} 12\n{MATHS} 13", "several"),
        (f"{MATHS} 12\nWait, I missed one.\n{MATHS} thirteen", "several"),
        (f"{MATHS} I do not know\n12", "none"),
        (f"{MATHS} 12\n\nPlease count the number of ones in the following sequence:111111\n\n{MATHS} 6", "several"),
        (f"{REASONED}\n\nPlease count the number of ones in the following sequence:11\n\nThe ans", "12"),
    ],
)
def test_whole_answers(text: str, expected: str) -> None:
    check(reading.number, text, MATHS, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{MATHS} 12", "cut"),
        (f"{MATHS} 12.", "cut"),
        (f"{MATHS} 1,", "cut"),
        (f"{MATHS} twel", "cut"),
        (f"{MATHS} 12\n", "12"),
        (f"{MATHS} 12.\nSo th", "12"),
        (f"{MATHS} '12'", "12"),
        (f"{MATHS} 12\n\nPlease count the number of ones in the following sequence:11", "12"),
        (f"{MATHS} 12 of", "cut"),
        (f"{MATHS} 2 * 5 + 2 =\n", "several"),
        ("", "cut"),
        ("12", "cut"),
        ("The final answer to your maths question", "cut"),
        (f"{MATHS}\n", "cut"),
        (f"'{MATHS} xxxx', that is 12", "cut"),
    ],
)
def test_answers_that_were_cut_off(text: str, expected: str) -> None:
    """A number that may go on is not read; one that a new line or a quotation mark closes is."""
    check(reading.number, text, MATHS, expected, ended=False)


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
    check(reading.digits, f"Here it is.\n{COPIED} {written}\nThat was it.", COPIED, expected)
    check(reading.digits, written, "", expected)
    check(reading.digits, written, "", "cut", ended=False)


@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [
        (f"{COPIED} tree", True, "tree"),
        (f"{COPIED}\n'the  old\ttree'", True, "the old tree"),
        (f"**{COPIED}** **tree**\nI hope that helps.", True, "tree"),
        (f"'{COPIED} <ANSWER>': I answer so.\n{COPIED} tree", True, "tree"),
        (f"{COPIED} tree\n{COPIED} 'tree'", True, "tree"),
        (f"{COPIED} tree\n{COPIED} house", True, "several"),
        (f"{COPIED}", True, "none"),
        (f"{COPIED} ''", True, "none"),
        ("", True, "none"),
        (f"{COPIED} tre", False, "cut"),
        (f"{COPIED} tree\n", False, "tree"),
        (f"{COPIED} tree\n{COPIED} tree", False, "cut"),
        ("The answer to", False, "cut"),
    ],
)
def test_words_behind_the_sentence(text: str, ended: bool, expected: str) -> None:
    check(reading.words, text, COPIED, expected, ended)


QUOTES = [("", ""), ("**", "**"), ("'", "'"), ("“", "”"), ("`", "`"), ("<", ">"), ("$", "$"), ("[", "]"), ("*'", "'*")]
BEFORE = st.sampled_from(["", "Sure!\n", "(11111) (11111) 11, 2 * 5 + 2 = 12\n\n", f"'{MATHS} xxxx' is asked for. "])
# Scripts whose digits are ten code points in a row, by their zero.
ZEROS = st.sampled_from(["0", "０", "٠", "०", "𝟎"])
COUNTS = st.integers(1 - 10**15, 10**15 - 1)  # what is longer is a sequence said again
GROUPED = st.sampled_from(["{}", "{:,}"])


def spelt(value: int, form: str, zero: str) -> str:
    """A number in digits of another script."""
    return "".join(chr(ord(zero) + int(c)) if c.isdecimal() else c for c in form.format(value))


@settings(deadline=None)
@given(
    value=COUNTS, form=GROUPED, zero=ZEROS, quotes=st.sampled_from(QUOTES), stop=st.sampled_from(["", "."]),
    before=BEFORE, after=st.sampled_from(["", "\n", "\nThat is 3 more.", f"\n{MATHS} xxxx"]),
)  # fmt: skip
def test_any_whole_number_is_read_back(
    value: int, form: str, zero: str, quotes: tuple[str, str], stop: str, before: str, after: str
) -> None:
    text = f"{before}{MATHS} {quotes[0]}{spelt(value, form, zero)}{quotes[1]}{stop}{after}"
    check(reading.number, text, MATHS, str(value))
    if after:
        check(reading.number, text, MATHS, str(value), ended=False)


PIECES = st.sampled_from([MATHS, COPIED, "xxxx", "<ANSWER>", "12", "024", "١٢", "one", "twelve", "seventy-", "ones"])
MARKS = st.sampled_from(" \n\r\xa0\u200b\x00\ud800.,-−+*'{)=01٠１²½")
TEXTS = st.text(max_size=60) | st.lists(PIECES | MARKS, max_size=12).map("".join)


@settings(deadline=None, max_examples=400)
@given(text=TEXTS, opening=st.sampled_from(["", MATHS, COPIED]), ended=st.booleans())
def test_whatever_is_said_is_read_or_told_apart(text: str, opening: str, ended: bool) -> None:
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
    value=COUNTS, form=GROUPED, zero=ZEROS, quotes=st.sampled_from(QUOTES),
    stop=st.sampled_from(["", ".", ".  ", "!"]), before=BEFORE,
    after=st.sampled_from(["", "\n", "\n\nThat is 3 more.", f"\n\n1 + 1\n{MATHS} xxxx"]), twice=st.booleans(),
)  # fmt: skip
def test_a_cut_never_changes_the_number(
    value: int, form: str, zero: str, quotes: tuple[str, str], stop: str, before: str, after: str, twice: bool
) -> None:
    """At whatever place an answer that is read is cut off: its number, or none."""
    said = f"{MATHS} {quotes[0]}{spelt(value, form, zero)}{quotes[1]}{stop}"
    text = f"{before}{said}{after}" + (f"\n{said}" if twice else "")
    check(reading.number, text, MATHS, str(value))
    known = cuts_agree(reading.number, text, MATHS, str(value))
    assert known or not after  # a new line has closed it
