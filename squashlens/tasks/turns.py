r"""The final text of a model's turn: without the markers of turns, without thoughts, and without markup.

Models that think write drafts first. What counts is what follows the last end of a thought, or the last beginning of a
final channel; a thought that was opened and has not ended leaves nothing to read.
"""

import re

_THOUGHT = r"(?:seed:)?(?:think|thinking|thoughts?|reasoning)"
# gpt-oss has channels, of which only the final one is not a thought; Gemma 4 has a channel for thoughts alone.
_THOUGHT_BEGINS = re.compile(
    rf"[<\[◁]{_THOUGHT}[>\]▷]|<\|START_THINKING\|>|<\|inner_prefix\|>"
    r"|<\|channel>|<\|channel\|>(?!final)|\bHere(?: is|['’]s) my thought process:",
    re.IGNORECASE,
)
_THOUGHT_ENDS = re.compile(
    rf"[<\[◁]/{_THOUGHT}[>\]▷]|<\|END_THINKING\|>|<\|inner_suffix\|>"
    r"|<channel\|>|<\|channel\|>final[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"|assistantfinal|\bHere(?: is|['’]s) my response:",
    re.IGNORECASE,
)
_TURN_BEGINS = re.compile(
    r"\s*(?:\ufeff|<bos>|<s>|<seed:bos>(?:assistant)?|<start_of_turn>model|<\|turn>model"
    r"|<\|(?:begin_of_text|startoftext|assistant|assistant_start|START_RESPONSE)\|>"
    r"|<\|START_OF_TURN_TOKEN\|><\|CHATBOT_TOKEN\|>"
    r"|<\|(?:start|im_start|im_assistant)\|>assistant(?:<\|im_middle\|>)?"
    r"|<\|start_(?:header_id|of_role)\|>assistant<\|end_(?:header_id|of_role)\|>"
    r"|\[/INST\]|\[\|assistant\|\]|<｜Assistant｜>|<response>)"
)
_TURN_ENDS = re.compile(
    r"<end_of_turn>|<eos>|</s>|<seed:eos>|<turn\|>|\[\|endofturn\|\]|</response>"
    r"|<｜end▁of▁sentence｜>|<\|end\|>(?!\s*<\|start\|>assistant)"
    r"|<\|(?:im_end|eot_id|eot|eom_id|endoftext|end_of_text|end_of_turn|assistant_end"
    r"|return|END_RESPONSE|END_OF_TURN_TOKEN)\|>"
)
# Text that HTML strikes out, as in "<s>8</s> 7". The same two tags may be the markers around a whole turn.
_STRUCK = re.compile(
    r"<s>((?:(?!</s>).)*)</s>(?!\s*(?:</?s>|<pad>|<unk>|<\||\[INST\]|$))", re.DOTALL
)
# What is removed, and what replaces it. A tab is white space and never part of a number, so \boxed{1}2 is not 12.
_MARKUP = {
    r"(?ms)(?:^|[ \t])[ \t]*(```+|~~~+)[A-Za-z]*[ \t]*\n(.*?)\n[ \t]*\1[ \t]*$": r"\t\2\t",
    r"(?m)^[ \t]*(?:-{3,}[ \t]*$|#{1,6}[ \t]+)": "",  # a line, or the sign of a heading
    r"<br\s*/?>": r"\n",
    r"\\,": "\u2009",
    r"\{,\}": ",",
    r"\\(?:text(?:bf|it|rm|tt|sf)?|math(?:bf|rm|it|tt|sf)|mbox|emph)[ \t]*\{([^{}]*)\}": r"\t\1\t",
    r"\\(?:boxed|fbox)[ \t]*\{([^{}]*)\}": r"\tanswer: \1\t",  # a box holds an answer
    r"\\[()\[\]]|\\displaystyle\b|(?<!\\)\$\$": r"\t",
    r"(?<![\\\w])\$([^$\n]+)\$(?!\w)": r"\t\1\t",
    r"(?is)<(b|strong|i|em|p|div|span|code|answer|final|result)(?:\s[^<>]*)?>(.*?)</\1\s*>": r"\t\2\t",
    r"(\*{1,3}|`{1,3})(?=\S)([^*`\n]+?)(?<=\S)\1": r"\t\2\t",
    r"(?<!\w)(_{1,3})(?=\S)([^_\n]+?)(?<=\S)\1(?!\w)": r"\t\2\t",
}


def final_text(text: str, ended: bool) -> tuple[str, bool]:
    """The text of one turn without markers and thoughts, and whether the model ended the turn.

    `ended` says whether generation ended by itself; an end marker in the text says so too.

    >>> final_text("<think>6? No.</think>7<end_of_turn>", False), final_text("<think>6", True)
    (('7', True), ('', True))
    """
    # Struck out in another way, so that its tags are not taken for the markers of a turn.
    text = _STRUCK.sub(r"~~\1~~", text)
    text = _from_beginning(text)
    end = _TURN_ENDS.search(text)
    if end:
        text = text[: end.start()]
        ended = True
    # Markers may stand before thoughts and after them.
    return _from_beginning(after_thoughts(text)), ended


def after_thoughts(text: str) -> str:
    """What follows the last end of a thought; nothing if a thought goes on."""
    final = _THOUGHT_ENDS.split(text)[-1]
    return "" if _THOUGHT_BEGINS.search(final) else final


def without_markup(text: str) -> str:
    """The text without Markdown, LaTeX and HTML."""
    for pattern, replacement in _MARKUP.items():
        text = re.sub(pattern, replacement, text)
    return text


def _from_beginning(text: str) -> str:
    """The text without the markers that begin a turn."""
    marker = _TURN_BEGINS.match(text)
    while marker:
        text = text[marker.end() :]
        marker = _TURN_BEGINS.match(text)
    return text
