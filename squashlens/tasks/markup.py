r"""Remove everything from a model's answer that is not text: turn markers, thoughts, Markdown, LaTeX and HTML.

Markup is replaced by a tab. A tab is white space and never part of a number, so ``\boxed{1}2`` is not read as 12.
"""

import re

# Turn markers that a decoder may leave in the text. Text after the end of a turn is not part of the answer.
_BEGIN = re.compile(
    r"\s*(?:<bos>|<s>|<\|begin_of_text\|>|<\|startoftext\|>|<\|start\|>assistant|<\|channel\|>final<\|message\|>"
    r"|<start_of_turn>model|<\|im_start\|>assistant|<\|assistant\|>"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>|\[/INST\]|<｜Assistant｜>)"
)
_END = re.compile(
    r"<end_of_turn>|<eos>|</s>|<turn\|>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|eot_id|eot|eom_id|end|endoftext|end_of_text|end_of_turn|return|END_OF_TURN_TOKEN)\|>"
)
_FENCE = re.compile(r"(?:^|[ \t])[ \t]*(```+|~~~+)[A-Za-z]*[ \t]*\n(.*?)\n[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_RULE = re.compile(r"^[ \t]*\|?[ \t]*:?-{3,}:?[ \t|:-]*$", re.MULTILINE)  # a table's second row, or a horizontal line
_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_CELL = re.compile(r"(?<![|\w])\|([^|\n]*)\|(?![|\w])")
_HEADING = re.compile(r"^[ \t]*#{1,6}[ \t]+", re.MULTILINE)
_BOX = re.compile(r"\\(?:boxed|fbox)[ \t]*\{([^{}]*)\}")
_STYLE = re.compile(r"\\(?:text(?:bf|it|rm|tt|sf)?|math(?:bf|rm|it|tt|sf)|mbox|emph)[ \t]*\{([^{}]*)\}")
_MATHS = re.compile(r"\\[()\[\]]|\\displaystyle\b|(?<!\\)\$\$")
_INLINE = re.compile(r"(?<![\\\w])\$([^$\n]+)\$(?!\w)")
_EMPHASIS = (
    re.compile(r"(\*{1,3}|`{1,3})(?=\S)([^*`\n]+?)(?<=\S)\1"),
    re.compile(r"(?<!\w)(_{1,3})(?=\S)([^_\n]+?)(?<=\S)\1(?!\w)"),
)
_TAG = re.compile(
    r"<(b|strong|i|em|u|p|div|span|code|pre|table|tr|td|th|answer|final_answer|final|result|output)"
    r"(?:\s[^<>]*)?>(.*?)</\1\s*>",
    re.IGNORECASE | re.DOTALL,
)


def turn(text: str, ended: bool) -> tuple[str, bool]:
    """The text of one turn, without byte-order mark, markers and thoughts; and whether the model ended the turn itself.

    >>> turn("\\ufeff<think>7 or 8?</think>7<|im_end|>\\n", False)
    ('7', True)
    """
    text = text.removeprefix("\ufeff")
    while begun := _BEGIN.match(text):
        text = text[begun.end() :]
    end = _END.search(text)
    text, ended = (text[: end.start()], True) if end else (text, ended)
    for name in ("think", "thinking"):  # the beginning of a thought may be in the prompt
        text = text.rpartition(f"</{name}>")[2].partition(f"<{name}>")[0]
    return text.removeprefix("\ufeff"), ended


def plain(text: str) -> str:
    r"""The text without markup. A LaTeX box, which usually holds an answer, is replaced by the word "answer:".

    >>> plain("So it is **7**: $\\boxed{\\text{7}}$").split()
    ['So', 'it', 'is', '7', ':', 'answer:', '7']
    """
    text = _HEADING.sub("", _RULE.sub("", _FENCE.sub("\t\\2\t", text)))
    text = _CELL.sub("\t\\1\t", _ROW.sub(lambda row: "\t" + row[1].replace("|", "\t") + "\t", text))
    text = re.sub(r"<br\s*/?>", "\n", text.replace("\\,", "\u2009").replace("{,}", ","))
    text = _MATHS.sub("\t", _repeated(_BOX, "\tanswer: \\1\t", _repeated(_STYLE, "\t\\1\t", text)))
    text = _TAG.sub("\t\\2\t", _INLINE.sub("\t\\1\t", text))
    for emphasis in _EMPHASIS:
        text = emphasis.sub("\t\\2\t", text)
    return text


def _repeated(pattern: re.Pattern[str], by: str, text: str) -> str:
    """The text with every match replaced, from the inside out; at most eight nested levels are replaced."""
    for _ in range(8):
        text, changed = pattern.subn(by, text)
        if not changed:
            break
    return text
