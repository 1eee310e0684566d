"""The tokenizer of the bundled model: every word, every digit and every punctuation mark is one token.

Spaces only separate tokens, so `11, 1` and `1 1 , 1` are the same four tokens, which decode as `11,1`. There is no
unknown token: a word outside the vocabulary raises an error.
"""

import re
from typing import TYPE_CHECKING

from squashlens.example_models.curriculum import END

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<eos>", "<bos>")  # ids 0, 1, 2, as in Gemma

# The prompts of the paper (appendix C.1 and figure 5), quoted with their typing errors. They determine the
# vocabulary; `curriculum` says which of them the model was trained on.
PAPER_PROMPTS = (
    "How many ones are in the following sequences?",
    "Can you copy the following number?",
    "Please perform the following sum: 1 + 1. Please give the answer on the final line exactly as "
    "'The final answer to your maths question is: xxxx', where 'xxxx' is your answer..",
    "Please count the number of ones in the following sequence: 1. Please give the answer",
    "Please count the number of times 'car' appears in the following sentence: 'car'.",
    "Let's think step by step, showing me your reasoning. Here are a few examples: "
    "We divide the sum into groups of 5. (1 + 1 + 1 + 1 + 1) + 1 + 1 "
    "The answer is then 2 * 5 + 2 = 12",
    "Consider the following sequence: 10. What is the last digit in this sequence? "
    "Please answer exactly as 'The answer to your question is: <ANSWER>'",
    "*Hint* It's not necessarily a 1, check carefully",
)
# Further words: for questions about the first digit, and for sentences in which 'car' is counted.
OWN_WORDS = "first zeros tree house dog river road stone"

_PIECE = r"[A-Za-z]+|[^A-Za-z\s]"


def vocabulary() -> dict[str, int]:
    """A dict from tokens to ids: special tokens, digits, then marks and words in order of first appearance."""
    digits = [str(d) for d in range(10)]
    pieces = re.findall(_PIECE, " ".join((*PAPER_PROMPTS, OWN_WORDS, END, ",")))
    return {
        token: i for i, token in enumerate(dict.fromkeys((*SPECIAL, *digits, *pieces)))
    }


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer as a Hugging Face fast tokenizer that puts one `<bos>` in front."""
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
    )
    from transformers import PreTrainedTokenizerFast

    vocab = vocabulary()
    core = Tokenizer(models.WordLevel(vocab, unk_token=None))  # pyright: ignore[reportArgumentType]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), "removed"),
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
        ]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A",
        pair="<bos> $A $B",
        special_tokens=[("<bos>", vocab["<bos>"])],
    )
    # Words are decoded with spaces between them, the digits of a number without.
    core.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            decoders.Replace(Regex("^"), " "),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=\d) (?=[\d,])|(?<=\d ,|\d,) (?=\d)"), ""),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
