"""Answers in the form that was asked for, and what is said around them: which still stand, and which do not.

Every line was judged by hand. `O` is the sentence that the prompt asks for.
"""

import pytest

from squashlens.tasks import reading

READ = reading.counted("ones", "1s", "1's")
MATHS = "The final answer to your maths question is:"

# Taken back, denied, corrected, doubted, or said again with another number: with the reason.
GONE = {
    "O 7\nWait, that is wrong. It is 8.": "several",
    "O 7\nActually 8": "several",
    "O 7\nor 8": "several",
    "O 7 \nThis is wrong.": "retracted",
    "O 7\n\nthe answer is not 7": "retracted",
    "O 7. But O 8": "several",
    "O 7<br>8": "several",
    "O\n| 7 |\n|---|\n| 8 |": "several",
    "O 7\nWait, no. 8.": "retracted",
    "O 7\nHold on, I missed one.": "retracted",
    "O 7\nNo, it is 8.": "several",
    "O 7\nNo.": "retracted",
    "O 7\nSorry, I meant 8.": "several",
    "O 7\n\nI apologize for the confusion. There are 8 ones.": "several",
    "O 7\nMy mistake: 8 ones.": "several",
    "O 7\n\nLet me recount: 1, 2, 3, 4, 5, 6, 7, 8.": "retracted",
    "O 7\n\nI miscounted.": "retracted",
    "O 7\nOn second thought, 8.": "several",
    "O 7\nScratch that. It's 8.": "several",
    "O 7\nIt should be 8.": "retracted",
    "O 7\nThere are actually 8 ones.": "several",
    "O 7\nActually, there are 8 of them here.": "retracted",
    "O 7\nThe correct answer is eight.": "several",
    "O 7\n\nThat isn’t right.": "retracted",
    "O 7\nPlease ignore my answer.": "retracted",
    "O 7\n**Correction:** 8": "several",
    "O **7**\nWAIT, THAT IS WRONG.": "retracted",
    "O 7\nI counted once more and got it right.\nI was wrong.": "retracted",
    "O 1,234\nThe answer is not 1234": "retracted",
    "O 7\nor is it 8?": "several",
    "O 7\nOr 8, if you count the last one.": "retracted",
    "O 7\n8": "several",
    "O 7\n\nThere are 8 ones in the sequence.": "several",
    "O 7\nO 8\nO 7": "several",
    "O 7, no, 8": "several",
    "O 7 (wrong)": "form",
    "'O 7' is wrong.": "form",
    "O 7?": "form",
    "O 7\nThat's wrong, it's 8.": "retracted",
    "O 7\n> Correction: 8": "several",
    "O 7\nNo wait, 8": "several",
    "O 7\n8, actually.": "several",
    "O 7\n\nNew answer: 8": "several",
    "O 7\nI change my answer to 8.": "retracted",
    "O 7\n7 is wrong.": "retracted",
    "O ~~7~~": "form",
    "O 7 → 8": "several",
    "O 7\n\\boxed{8}": "several",
    "<p>O 7</p><p>or 8</p>": "several",
    "O 7\nIt isn't 7, it is 8.": "retracted",
    "O 7\nmaybe eight": "several",
    "O -7\nActually 7": "several",
    "O -7\nIt is not -7.": "retracted",
    "O seven\nor eight": "several",
}

# What stands: a new question, other text, other numbers, which do not speak of this answer.
KEPT = {
    "O 7": "7",
    "O 7<br>": "7",
    "O 7\n\nPlease count the number of ones in the following sequence: 111\n\nThe answer is 3.": "7",
    "O 7\n\nQ: How many zeros are in 000?\nA: 3\nThere are 3.": "7",
    "O 7\n\nUser: What is 5 + 6?\nAssistant: The answer is 11.": "7",
    "O 7\n\n### Example 2\n\nAnswer: 8": "7",
    "O 7\n\n1. The first step is to count.\n2. The second is to add.": "7",
    "O 7\nI counted 3 in the first half and 4 in the second.": "7",
    "O 7\n1 + 1 = 2\n2 + 5 = 7": "7",
    "O 7\n7": "7",
    "O 7\nThere are 7 ones and 3 zeros.": "7",
    "O 7\nBut there are 3 zeros.": "7",
    "O 7\nIt is not 8 but 7.": "7",
    "O 7\nNot 8.": "7",
    "O 7\nI am not wrong.": "7",
    "O 7\nPlease correct me if I am wrong.": "7",
    "O 7\nI hope that there are no mistakes in my answer.": "7",
    "O 7\nNo further explanation is needed.": "7",
    "O 7\n\nThe dog went to the wrong house in 1999.": "7",
    "O 7\n\nYou can pay 8 or 9 dollars instead.": "7",
    "O 7\n\nWrite a program that prints 8.\n\nprint(8)": "7",
    "O 7\nWait, let me check: yes.\nThere are 7 ones.": "7",
    "O 7\nThat is wrong.\nNo, it is right.\nO 7": "7",
    "O 7, O 7.": "7",
    "Wait, 8 is wrong. O 7": "7",
    "I am not sure, but O 7": "7",
    "I will say 'O xxxx'. O 7": "7",
    "O 7\nThank you! Have a nice day. 10/10": "7",
    "O 7\n\n2023-05-01": "7",
    "O 7\n\nNumber of zeros: 3": "7",
    "O\n| 7 |\n|---|": "7",
    "O 7\n\n1, 2, 3, 4, 5, 6, 7": "7",
    "O 7\n\nActually, 7.": "7",
    "O 7\nThe answer is 7, not 8.": "7",
    "O 7\n\nx = 8": "7",
    "O 7\nConfidence: 95%": "7",
    "O 7\nWait for my next message.": "7",
    "O 7\nSorry for the long answer.": "7",
    "Not counting zeros, O 7": "7",
    "O 7<|im_end|>\nWait, 8.": "7",
    "O -7\nIt is not 7.": "-7",
}


def asked(text: str) -> str:
    return text.replace("O ", MATHS + " ").replace("O\n", MATHS + "\n")


@pytest.mark.parametrize("text", GONE, ids=ascii)
def test_what_does_not_stand(text: str) -> None:
    assert READ(asked(text), MATHS, True) == reading.Reading("", GONE[text])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", KEPT, ids=ascii)
def test_what_stands(text: str) -> None:
    found = READ(asked(text), MATHS, True)
    assert (found.value, found.why) == (KEPT[text], "read")


@pytest.mark.parametrize("read", [reading.number, reading.digit, reading.digits, reading.words])
def test_every_reader_knows_what_is_taken_back(read: reading.Reader) -> None:
    for behind in ("Wait, that is wrong.", "I was mistaken.", "This is not 1."):
        assert read(f"{MATHS} 1\n{behind}", MATHS, True).why == "retracted"
        assert read(f"{MATHS} 1\n{behind}", MATHS, False).value == ""
    assert read(f"{MATHS} 1\nDone.", MATHS, True) == reading.Reading("1", "read")
