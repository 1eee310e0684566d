"""The description of a random stack, and two readings of the paper's own stack (appendix C.3, figure 8)."""

from collections.abc import Iterator
from dataclasses import dataclass

from squashlens._typing import Encoding, Mask, Projections, StackNorm, positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError


@validated
@dataclass(frozen=True)
class Stack:
    """A random, untrained decoder.

    A layer has pre-norms without gains, and leaves out every part that is not chosen:

        z = x + W_O concat_h Σ_i α^h_i W_V^h norm(x_i),    α^h = softmax_i(q^h·k^h_i / √(width/heads) + bias^h)
        x' = z + W_down GELU(W_up norm(z))

    Without `residual` the two sums have no first term. No norm follows the last layer.

    Args:
        depth: number of layers.
        heads: number of attention heads, a divisor of `width`.
        width: d, number of coordinates of a token.
        encoding: positional encoding, with positions counted from 0. ``"sinusoidal"`` and ``"learned"`` (a table of
            N(0, 1)) are added to the inputs. ``"sinusoidal_qk"`` is added to the queries and keys of every layer, over
            the concatenated coordinates of all heads. ``"rope"`` rotates coordinates j and j + half of queries and keys
            in each head. ``"alibi"`` adds −2^(−8h/heads)·distance to the scores of head h = 1…heads. ``"t5"`` adds a
            bias from N(0, scale²) for each head and each of 32 ranges of distance, the same in all layers.
        base: base of the wavelengths of sines and rotations.
        table: number of rows of the learned table.
        mask: ``"causal"``; ``"window"``: the last `window` tokens, the query included, and the first `sinks` tokens;
            ``"prefix"``: causal, but the first `prefix` tokens attend to one another; ``"none"``: all attend to all.
        window: number of tokens in the window, for ``mask="window"``.
        sinks: number of first tokens that are always visible, for ``mask="window"``.
        prefix: number of tokens of the prefix, for ``mask="prefix"``.
        residual: whether there are residual connections.
        norm: ``"none"``, ``"rms"`` or ``"layer"``.
        mlp: number of hidden units of the MLP as a multiple of `width`; 0 for no MLP.
        scale: standard deviation of the weights, times the square root of their number of inputs.
        projections: ``"random"``: tokens are N(0, I), the scale of embeddings in the original Transformer (N(0, 1/d)
            times √d), and W_Q, W_K, W_V, W_O have entries from N(0, scale²/width). ``"direct"``, the literal reading of
            the paper: each token's q, k and v are drawn from N(0, scale²/width), and the output is the weighted mean of
            the values; this has one layer of attention and nothing else.

    Raises:
        InputError: if options contradict each other, such as a window without a size.

    >>> Stack(encoding="rope", heads=4).per_head
    16
    """

    depth: int = 1
    heads: int = 1
    width: int = 64
    encoding: Encoding = "none"
    base: float = 10000.0
    table: int = 4096
    mask: Mask = "causal"
    window: int | None = None
    sinks: int = 0
    prefix: int = 0
    residual: bool = False
    norm: StackNorm = "none"
    mlp: int = 0
    scale: float = 1.0
    projections: Projections = "random"

    def __post_init__(self) -> None:
        for name, what in (("depth", "layers"), ("heads", "heads"), ("width", "coordinates"), ("table", "rows")):
            positive(getattr(self, name), name, f"a number of {what}")
        for name in ("sinks", "prefix", "mlp"):
            positive(getattr(self, name), name, "a count", or_zero=True)
        if self.mask == "window":
            positive(self.window, "window", "a number of tokens")
        for wrong, cause, remedy in _contradictions(self):
            if wrong:
                raise InputError(cause, remedy)

    @property
    def per_head(self) -> int:
        """The number of coordinates of one head's queries, keys and values."""
        return self.width // self.heads

    def check_lengths(self, lengths: list[int]) -> None:
        """Raise an error for lengths that exceed the learned table."""
        longest = max(lengths) + 1
        if self.encoding == "learned" and longest > self.table:
            raise InputError(
                f"v* of the longest sequence has {longest} tokens, and the learned table has {self.table} rows.",
                f"Give table={longest} or more, or shorter lengths.",
            )


def _contradictions(stack: Stack) -> Iterator[tuple[object, str, str]]:
    """Whether options contradict each other, with the cause and the remedy of an error."""
    s, sines = stack, stack.encoding in ("sinusoidal", "sinusoidal_qk")
    for name in ("base", "scale"):
        yield getattr(s, name) <= 0, f"{name}={getattr(s, name)!r} is not a positive number.", "Give a positive number."
    yield s.width % s.heads, f"heads={s.heads} does not divide width={s.width}.", "Make width a multiple of heads."
    odd = f"RoPE rotates pairs of coordinates, and a head has {s.per_head}, which is odd."
    yield s.encoding == "rope" and s.per_head % 2, odd, "Make width ÷ heads even."
    yield sines and s.width % 2, f"Sines and cosines come in pairs, and width={s.width}.", "Make the width even."
    idle = f"window={s.window} and sinks={s.sinks} have no effect with mask={s.mask!r}."
    yield s.mask != "window" and (s.window is not None or s.sinks), idle, "Give mask='window' with them."
    apart = f"mask={s.mask!r} and prefix={s.prefix} do not fit together."
    yield (s.mask == "prefix") != bool(s.prefix), apart, "Give both mask='prefix' and a prefix, or neither."
    more = [name for name in ("residual", "mlp") if getattr(s, name)]
    more += [f"depth={s.depth}"] * (s.depth > 1) + [f"norm={s.norm!r}"] * (s.norm != "none")
    more += [f"encoding={s.encoding!r}"] * (s.encoding in ("sinusoidal", "learned"))
    alone = f"projections='direct' is one layer of attention without inputs, so it cannot have {', '.join(more)}."
    yield s.projections == "direct" and more, alone, "Use projections='random', or leave these options out."


PAPER = {
    "queries_keys": Stack(encoding="sinusoidal_qk", projections="direct"),
    "inputs": Stack(encoding="sinusoidal", projections="random"),
}
"""Two readings of the stack of figure 8: sines added to queries and keys, or to the inputs before the projections."""
