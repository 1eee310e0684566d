"""Small tests of what tiny-prose can do, with sentences written for them; no corpus is needed."""

import math
from random import Random

import numpy as np

from training.prose.measures import Reader, greedy

# The first of each pair is right; both have the same words before the one that differs.
AGREEMENT = (
    ("The keys to the old house", " are", " is"),
    ("The key to the old houses", " is", " are"),
    ("The functions of this module", " return", " returns"),
    ("The function in these modules", " returns", " return"),
    ("These columns in the table", " have", " has"),
    ("This column of the tables", " has", " have"),
    ("The servants of the king", " were", " was"),
    ("The king of the cities", " was", " were"),
    ("Several options in the file", " are", " is"),
    ("One of the options", " is", " are"),
    ("The values that the query finds", " are", " is"),
    ("The value that the queries find", " is", " are"),
    ("Two processes", " are", " is"),
    ("The process", " is", " are"),
    ("They", " were", " was"),
    ("She", " was", " were"),
)
PRONOUNS = (
    ("The queen took the crown and put it on", " her", " his"),
    ("The king took the sword and put it in", " his", " her"),
    ("My mother said that", " she", " he"),
    ("My father said that", " he", " she"),
    ("The boy fell, and the old man lifted", " him", " her"),
    ("The girl fell, and the old man lifted", " her", " him"),
    ("The tables are large, but", " they", " it"),
    ("The table is large, but", " it", " they"),
)
BRACKETS = (
    ('He wrote the word "table', '"', ")"),
    ("The result (see the next section", ")", '"'),
    ("It has a name (for example, the number of rows", ")", '"'),
    ('The message was "file not found', '"', ")"),
)
LANGUAGES = {
    "English": "The ferry left the island before the storm, and nobody on the shore saw it again until spring.",
    "German": "Die Fähre verließ die Insel vor dem Sturm, und niemand am Ufer sah sie vor dem Frühling wieder.",
    "French": "Le bac a quitté l'île avant la tempête, et personne sur la rive ne l'a revu avant le printemps.",
    "Chinese": "渡船在暴风雨之前离开了小岛，直到春天岸上才有人再次看到它。",
}


def _share_right(reader: Reader, pairs: tuple[tuple[str, str, str], ...]) -> float:
    """The share of pairs whose right ending is the more likely one."""

    def nats(text: str, ending: str) -> float:
        ids, whole = (reader.tokenizer(t)["input_ids"] for t in (text, text + ending))
        return float(reader.nats([whole])[0][len(ids) - 1 :].sum())

    return sum(
        nats(text, right) < nats(text, wrong) for text, right, wrong in pairs
    ) / len(pairs)


def _copying(
    reader: Reader, gap: int, length: int = 24, rows: int = 20
) -> tuple[float, float]:
    """Nats per token of random tokens, and of the same tokens when they come again after `gap` others."""
    rng, size = Random(f"copy:{gap}"), reader.model.config.vocab_size
    first, again = [], []
    for _ in range(rows):
        segment, others = (
            [rng.randrange(300, size) for _ in range(n)] for n in (length, gap)
        )
        found = reader.nats(
            [[reader.tokenizer.bos_token_id, *segment, *others, *segment]]
        )[0]
        first.append(found[1:length].mean())
        again.append(found[length + gap + 1 :].mean())
    return float(np.mean(first)), float(np.mean(again))


def _answers(reader: Reader, question: str, answer: str) -> float:
    """The share of twenty sequences of up to twelve binary digits about which the greedy answer is right."""
    rng, right = Random(question), 0
    for _ in range(20):
        digits = "".join(rng.choices("01", k=rng.randint(2, 12)))
        ids = reader.tokenizer(f"{question} {digits} =")["input_ids"]
        told = reader.tokenizer.decode(greedy(reader, [ids], 3)[0]).split()
        right += bool(told) and told[0] == (
            str(digits.count("1")) if answer == "count" else digits[-1]
        )
    return right / 20


def abilities(reader: Reader) -> dict[str, float]:
    """Every test's outcome: shares of right answers, nats per token, or bits per byte."""
    found = {
        "agreement": _share_right(reader, AGREEMENT),
        "pronouns": _share_right(reader, PRONOUNS),
        "brackets": _share_right(reader, BRACKETS),
    }
    for gap in (0, 100):
        found[f"random_{gap}"], found[f"repeated_{gap}"] = _copying(reader, gap)
    found["counting"] = _answers(
        reader, "How many ones are in the following sequence?", "count"
    )
    found["last_digit"] = _answers(
        reader, "What is the last digit in this sequence?", "last"
    )
    for language, text in LANGUAGES.items():
        nats = reader.nats([reader.tokenizer(text)["input_ids"]])[0].sum()
        found[language] = float(nats) / math.log(2) / len(text.encode())
    return found
