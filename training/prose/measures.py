"""What is measured of tiny-prose: code length, repetition, and small tests of what a language model may know."""

import gzip
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from training.prose.corpus import Document
from training.prose.kneser_ney import KneserNey
from training.prose.tokenizer import CONTEXT, encode

STRIDE = CONTEXT // 2
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 20, 40, 50


@dataclass(frozen=True)
class Reader:
    """A model in evaluation mode with its tokenizer."""

    model: Any
    tokenizer: Any

    @torch.no_grad()
    def nats(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """−ln p of every token but the first of each row, given those before it."""
        found = []
        for row in rows:
            ids = torch.tensor([row])
            logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1]
            found.append(
                F.cross_entropy(logits.float(), ids[0, 1:], reduction="none").numpy()
            )
        return found

    def document(self, ids: Sequence[int]) -> np.ndarray:
        """−ln p of every token of a document but its `<bos>`.

        Each window of the context starts with `<bos>`, as in training, and overlaps half of the one before; a token is
        scored in the first window that has it.
        """
        bos, text = ids[0], list(ids[1:])
        found: list[np.ndarray] = []
        scored = 0
        while scored < len(text):
            start = max(0, scored - STRIDE)
            window = text[start : start + CONTEXT - 1]
            found.append(self.nats([[bos, *window]])[0][scored - start :])
            scored = start + len(window)
        return np.concatenate(found)


def bits_per_byte(nats: Iterable[np.ndarray], documents: Sequence[Document]) -> float:
    """The code length of the documents, ends included, in bits per byte of their UTF-8."""
    return (
        sum(float(n.sum()) for n in nats)
        / math.log(2)
        / sum(len(d.text.encode()) for d in documents)
    )


def code_lengths(
    reader: Reader, baseline: KneserNey, documents: Sequence[Document]
) -> dict[str, dict[str, float]]:
    """Bits per byte of the model, the baseline and gzip, by package and for all documents."""
    ids = [encode(d.text, reader.tokenizer) for d in documents]
    nats = [reader.document(row) for row in ids]
    grams = [-np.log(baseline.probabilities(np.array(row))) for row in ids]
    rows = {}
    for package in (*dict.fromkeys(d.package for d in documents), "all"):
        chosen = [i for i, d in enumerate(documents) if package in (d.package, "all")]
        texts = [documents[i] for i in chosen]
        raw = "\n".join(d.text for d in texts).encode()
        rows[package] = {
            "bytes": sum(len(d.text.encode()) for d in texts),
            "tokens": sum(len(ids[i]) - 1 for i in chosen),
            "model": bits_per_byte([nats[i] for i in chosen], texts),
            "kneser_ney": bits_per_byte([grams[i] for i in chosen], texts),
            "gzip": 8 * len(gzip.compress(raw, 9, mtime=0)) / len(raw),
        }
    return rows


def greedy(
    reader: Reader, prompts: Sequence[Sequence[int]], new: int
) -> list[list[int]]:
    """The most likely continuation of each prompt, token by token."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            told = reader.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
            )
        found.append(told[0, len(prompt) :].tolist())
    return found


def distinct(sequences: Sequence[Sequence[int]], n: int = 2) -> float:
    """Distinct-n: the number of different n-grams over the number of all n-grams (Li et al. 2016)."""
    grams = [tuple(s[i : i + n]) for s in sequences for i in range(len(s) - n + 1)]
    return len(set(grams)) / len(grams)


def openings(documents: Sequence[Document], tokenizer: Any) -> list[list[int]]:
    """The first 40 tokens of 20 documents, taken in turn from the packages, in the order of the documents."""
    queues: dict[str, list[list[int]]] = {}
    for document in documents:
        ids = encode(document.text, tokenizer)
        if len(ids) >= PROMPT_TOKENS + NEW_TOKENS:
            queues.setdefault(document.package, []).append(ids[:PROMPT_TOKENS])
    chosen = []
    while len(chosen) < PROMPTS and any(queues.values()):
        chosen += [queue.pop(0) for queue in queues.values() if queue]
    return chosen[:PROMPTS]


def repetition(reader: Reader, documents: Sequence[Document]) -> dict[str, Any]:
    """Distinct-2 of greedy continuations of held-out openings: of all together, their mean, and each."""
    told = greedy(reader, openings(documents, reader.tokenizer), NEW_TOKENS)
    each = [distinct([s]) for s in told]
    return {"together": distinct(told), "mean": sum(each) / len(each), "each": each}
