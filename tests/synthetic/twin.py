"""The slow twin of the synthetic forward: one sequence at a time, whole masks, one query at a time, in numpy."""

import math
from typing import Any

import numpy as np
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from squashlens.synthetic.stack import Drawn


def seen(stack: Any, j: int, i: int) -> bool:
    """Whether query j attends to key i."""
    return i <= j and (stack.window is None or j - i < stack.window)


def sines(p: int, d: int, base: float) -> np.ndarray:
    row = np.empty(d)
    for c in range(d):
        angle = p / base ** (2 * (c // 2) / d)
        row[c] = math.sin(angle) if c % 2 == 0 else math.cos(angle)
    return row


def turned(x: np.ndarray, p: int, base: float) -> np.ndarray:
    """RoPE as a product of complex numbers."""
    half = len(x) // 2
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * p * base ** (-np.arange(half) / half))
    return np.concatenate([z.real, z.imag])


def normed(x: np.ndarray, norm: str) -> np.ndarray:
    if norm == "rms":
        return x / math.sqrt(np.mean(x**2) + 1e-6)
    return (x - x.mean()) / math.sqrt(x.var() + 1e-6) if norm == "layer" else x


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])


def t5_bucket(distance: int) -> int:
    """As Hugging Face's T5 does; its relative position is key minus query."""
    return int(
        T5Attention._relative_position_bucket(torch.tensor([-distance]), False, 32, 128)
    )


def bias(stack: Any, drawn: Drawn, seed: int, head: int, distance: int) -> float:
    if stack.encoding == "alibi":
        return -(2.0 ** (-8 * (head + 1) / stack.heads)) * abs(distance)
    if stack.encoding == "t5":
        return float(drawn.biases[seed, head, t5_bucket(distance)])
    return 0.0


def inputs(stack: Any, drawn: Drawn, seed: int, content: list[int]) -> np.ndarray:
    x = drawn.tokens[seed, content].numpy().copy()
    for p in range(len(content)):
        if stack.encoding == "sinusoidal":
            x[p] += sines(p, stack.width, stack.base)
        if stack.encoding == "learned":
            x[p] += drawn.table[seed, p].numpy()
    return x


def run(
    stack: Any, drawn: Drawn, seed: int, content: list[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What leaves each layer, (n, d), and each layer's patterns, (heads, n, n)."""
    x = None if stack.projections == "direct" else inputs(stack, drawn, seed, content)
    outs, patterns = [], []
    for layer in range(stack.depth):
        if x is None:
            w = None
            q, k, v = (part[seed, content].numpy() for part in drawn.direct)
        else:
            w = {name: m[seed].numpy() for name, m in drawn.layers[layer].items()}
            u = np.stack([normed(row, stack.norm) for row in x])
            q, k, v = u @ w["query"], u @ w["key"], u @ w["value"]
        mixed, pattern = attend(stack, drawn, seed, q, k, v)
        if w is not None:
            x = after(stack, w, x, mixed)
            mixed = x
        outs.append(mixed)
        patterns.append(pattern)
    return outs, patterns


def attend(
    stack: Any, drawn: Drawn, seed: int, q: Any, k: Any, v: Any
) -> tuple[np.ndarray, np.ndarray]:
    n, size = len(q), stack.width // stack.heads
    if stack.encoding == "sinusoidal_qk":
        positions = np.stack([sines(p, stack.width, stack.base) for p in range(n)])
        q, k = q + positions, k + positions
    mixed, pattern = np.zeros((n, stack.width)), np.zeros((stack.heads, n, n))
    for head in range(stack.heads):
        cut = slice(head * size, (head + 1) * size)
        for j in range(n):
            keys = [i for i in range(n) if seen(stack, j, i)]
            scores = []
            for i in keys:
                query, key = q[j, cut], k[i, cut]
                if stack.encoding == "rope":
                    query = turned(query, j, stack.base)
                    key = turned(key, i, stack.base)
                scores.append(
                    query @ key / math.sqrt(size)
                    + bias(stack, drawn, seed, head, j - i)
                )
            weights = np.exp(np.array(scores) - max(scores))
            pattern[head, j, keys] = weights / weights.sum()
            mixed[j, cut] = pattern[head, j] @ v[:, cut]
    return mixed, pattern


def after(
    stack: Any, w: dict[str, Any], x: np.ndarray, mixed: np.ndarray
) -> np.ndarray:
    out = []
    for before, given in zip(x, mixed, strict=True):
        z = given @ w["output"] + (before if stack.residual else 0)
        if stack.mlp:
            z = gelu(normed(z, stack.norm) @ w["up"]) @ w["down"] + (
                z if stack.residual else 0
            )
        out.append(z)
    return np.stack(out)
