"""Estimate the memory of a run from the shapes of the model, to choose batch sizes and to raise errors early.

Estimates count the floating-point numbers that are alive at once, beyond the weights. Tests compare each estimate with
the allocator's peak. d is the width of the residual stream, m that of the MLP, q and k those of all queries and keys.
"""

from squashlens.model.anatomy import (
    known_windows,
    projected,
    text_config,
)
from squashlens.model.memory import available, require_room
from squashlens.model.snapshot import layout_of
from squashlens.run.run import Run
from squashlens.theory.attention import CELLS, LONGEST, SHORTEST

# Activations that transformers composes of several operations.
STEPWISE = ("gelu_new", "gelu_fast", "quick_gelu")
BATCH_MEMORY = {"cpu": 1e8, "cuda": 8e9}  # bytes for a batch unless its size is given


def pass_bytes(run: Run, prompts: int, n: int) -> int:
    """Bytes of a forward pass without patterns and graph: the larger of what the MLP and what attention needs."""
    d, m, q, k = _widths(run)
    # For one token; `rows` are for all of them together.
    mlp = _mlp_copies(run) * m + 4 * d
    if _by_rows(run):
        attention = d + 3 * q + 3 * k
        rows = _cells(run, prompts, n)
    else:
        attention = d + 5 * q + 3 * k
        rows = 0
    tokens = prompts * n
    return max(tokens * mlp, tokens * attention + rows) * run.dtype.itemsize


def pattern_bytes(run: Run, prompts: int, n: int) -> int:
    """Bytes of one block's patterns: scores and weights in the model's dtype, and a softmax in float32."""
    return prompts * int(run.model.cfg.n_heads) * n**2 * (2 * run.dtype.itemsize + 4)


def queries_and_keys(run: Run, prompts: int, n: int) -> int:
    """Bytes of the queries and keys of one block."""
    return prompts * n * projected(run.model) * run.dtype.itemsize


def products_bytes(run: Run, prompts: int, n: int, vjp_batch_size: int) -> int:
    """Bytes of vector–Jacobian products block by block: the streams, one block's graph, and a batch of cotangents."""
    d, m, q, k = _widths(run)
    # For one token: the streams of all blocks with one block's graph, and then each cotangent, which takes 4 d for
    # input, output and collecting the results, beside what is alive in the MLP or in attention.
    graph = run.n_blocks * d + 4 * m + 4 * (q + k) + 10 * d
    cotangent = 4 * d + max(3 * m, 5 * q + 4 * k)
    numbers = prompts * n * (graph + vjp_batch_size * cotangent)
    return numbers * run.dtype.itemsize + 4 * _cells(run, prompts, n)


def cotangents(run: Run, prompts: int, n: int) -> int:
    """The number of cotangents in a batch that fit; raises an error if not even one fits."""
    without = products_bytes(run, prompts, n, 0)
    with_one = products_bytes(run, prompts, n, 1)
    what = f"One vector–Jacobian product on {prompts} × {n} tokens"
    remedy = "Use a shorter prompt, or fewer prompts at a time."
    require_room(with_one, run.device, what, remedy)
    fitting = int(batch_memory(run) / (with_one - without))
    return min(run.width, max(1, fitting))  # d cotangents give a whole Jacobian


def cotangents_on_graph(run: Run, prompts: int, n: int) -> int:
    """The number of cotangents in a batch that fit if the whole graph with patterns is kept."""
    return min(run.width, max(1, int(batch_memory(run) / graph_bytes(run, prompts, n))))


def graph_bytes(run: Run, prompts: int, n: int) -> int:
    """Bytes of one block's graph with attention patterns, or of one cotangent that goes back through it."""
    d, m, _, _ = _widths(run)
    numbers = 8 * d + 4 * m + 3 * int(run.model.cfg.n_heads) * n  # for one token
    return prompts * n * numbers * run.dtype.itemsize


def batch_memory(run: Run) -> float:
    """Bytes that a batch may need."""
    usual = BATCH_MEMORY["cpu" if run.device.type == "cpu" else "cuda"]
    return min(usual, available(run.device) / 4)


def require_products(run: Run, prompts: int, n: int, vjp_batch_size: int) -> None:
    """Raise an error for a batch size that does not fit."""
    size = products_bytes(run, prompts, n, vjp_batch_size)
    what = f"vjp_batch_size={vjp_batch_size}"
    remedy = "Use a smaller one, or leave it out: it is chosen by the free memory."
    require_room(size, run.device, what, remedy)


def _widths(run: Run) -> tuple[int, int, int, int]:
    """d, m, q and k, as in the module's docstring."""
    config = run.model.cfg
    d = run.width
    m = int(getattr(config, "d_mlp", None) or 4 * d)
    q = int(config.n_heads) * int(config.d_head)
    k = projected(run.model) - q
    return d, m, q, k


def _mlp_copies(run: Run) -> int:
    """How many tensors of the MLP's width are alive at once: gate, value and product; input and output; or more."""
    if "blocks.0.mlp.gate.hook_out" in layout_of(run.model).points:
        return 3
    config = text_config(run.model)
    usual = getattr(config, "hidden_act", None)
    return 5 if getattr(config, "activation_function", usual) in STEPWISE else 2


def _by_rows(run: Run) -> bool:
    """Whether attention is computed in blocks of rows, because no fused kernel supports a cap or a window."""
    capped = getattr(text_config(run.model), "attn_logit_softcapping", None)
    return capped is not None or any(known_windows(run.model))


def _cells(run: Run, prompts: int, n: int) -> int:
    """Numbers in a block of attention rows: logits, weights, and one more copy."""
    heads = prompts * int(run.model.cfg.n_heads)
    most = CELLS["cpu" if run.device.type == "cpu" else "cuda"]
    # As many rows of n keys as `theory.attention` takes together.
    rows = max(SHORTEST, min(LONGEST, n, most // (heads * n)))
    return 3 * heads * n * rows
