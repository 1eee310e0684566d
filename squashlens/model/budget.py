"""What a run is going to take in memory, from the shapes of the model: said before it starts, and what it is cut by.

Floating-point numbers alive at once beyond the weights, a token, counted on the models themselves (the tests hold each
estimate against the allocator's own peak). d is the width, m the MLP's, q and k the widths of all queries and all keys.
"""

from squashlens._typing import Bridge
from squashlens.errors import CapacityError, UnsoundModelError
from squashlens.model.anatomy import device_of, dtype_of, n_blocks, projected, text_config, width, windows
from squashlens.model.attention import CELLS, LONGEST, SHORTEST
from squashlens.model.memory import available, human, require_room

STEPWISE = ("gelu_new", "gelu_fast", "quick_gelu")  # activations that transformers puts together from several
BATCH_MEMORY = {"cpu": 1e8, "cuda": 4e9}  # bytes that what runs side by side may take unless chunk= says otherwise


def pass_bytes(model: Bridge, prompts: int, n: int) -> int:
    """A forward pass without patterns and without a graph: the MLP's gate, value and product, or attention's copies."""
    d, m, q, k = _widths(model)
    mlp = _mlp_copies(model) * m + 4 * d
    if _by_rows(model):
        attention, rows = d + 3 * q + 3 * k, _cells(model, prompts, n)
    else:
        attention, rows = d + 5 * q + 3 * k, 0
    tokens = prompts * n
    return max(tokens * mlp, tokens * attention + rows) * dtype_of(model).itemsize


def queries_and_keys(model: Bridge, prompts: int, n: int) -> int:
    """What one block's attention is made of."""
    return prompts * n * projected(model) * dtype_of(model).itemsize


def bound_bytes(model: Bridge, prompts: int, n: int) -> int:
    """A path bound: a forward pass, beside it queries and keys of every block, then rows of attention."""
    kept = n_blocks(model) * queries_and_keys(model, prompts, n)
    return kept + max(pass_bytes(model, prompts, n), 4 * _cells(model, prompts, n))


def products_bytes(model: Bridge, prompts: int, n: int, chunk: int) -> int:
    """Vector–Jacobian products block by block: the streams, one block's graph, and a batch of cotangents in it."""
    d, m, q, k = _widths(model)
    kept = n_blocks(model) * d + 4 * m + 4 * (q + k) + 10 * d
    each = max(3 * m + 4 * d, 4 * d + 5 * q + 4 * k)  # of d: entering and leaving, and as they are gathered
    return prompts * n * (kept + chunk * each) * dtype_of(model).itemsize + 4 * _cells(model, prompts, n)


def cotangents(model: Bridge, prompts: int, n: int) -> int:
    """As many cotangents in a batch as a quarter of the free memory holds, or a set amount; refused if not one."""
    device = device_of(model)
    fixed, one = products_bytes(model, prompts, n, 0), products_bytes(model, prompts, n, 1)
    what = f"One vector–Jacobian product on {prompts} × {n} tokens"
    require_room(one, device, what, "Use a shorter prompt, or fewer prompts at a time.")
    return min(width(model), max(1, int(batch_memory(model) / (one - fixed))))


def cotangents_on_graph(model: Bridge, prompts: int, n: int) -> int:
    """The same where the whole graph is alive and holds patterns: a batch keeps a block's activations several times."""
    wide = 8 * width(model) + 4 * _widths(model)[1] + 3 * int(model.cfg.n_heads) * n
    each = prompts * n * wide * dtype_of(model).itemsize
    return min(width(model), max(1, int(batch_memory(model) / each)))


def tokens_at_a_time(model: Bridge, n: int, vectors: int) -> int:
    """As many tokens as can have their own maps taken side by side, with bases of `vectors` each."""
    return max(1, int(batch_memory(model) / _own_maps(model, n, vectors)))


def local_bytes(model: Bridge, n: int, size: int, vectors: int) -> int:
    """Local edges, which run in float64: the streams, one block's attention, and what is most of four things that take
    turns: the maps of `size` tokens; products of keys' derivatives beside rows of attention, or beside the block's own
    graph."""
    d, m, q, k = _widths(model)
    item = 8  # bytes of float64
    kept = n * (item * (n_blocks(model) * d + q + d) + 8 * (2 * q + 2 * k))
    products = 8 * n * k * (int(model.cfg.d_head) + 1) // 2
    whole = n * item * (7 * m + 5 * (q + k) + 12 * d)
    return kept + max(min(n, size) * _own_maps(model, n, vectors), products + max(whole, 30 * _cells(model, 1, n)))


def _own_maps(model: Bridge, n: int, vectors: int) -> int:
    """Of one token: rows of attention and what softmax does, or a basis and the graph both ways, or rows of maps."""
    d, m, q, k = _widths(model)
    dot = int(model.cfg.d_head)
    graph = 8 * (8 * m + 8 * d + 4 * q)  # that of the last tokens is let go when these have theirs
    each = max(1, q // k)  # query heads of one key/value group
    before = 32 * q * dot + 48 * each * n + graph
    basis = 8 * q * dot + 8 * vectors * max(d, q) + graph
    return max(before, basis, 24 * d * dot + 32 * dot**2)


def batch_memory(model: Bridge) -> float:
    """Bytes that what runs side by side may take."""
    device = device_of(model)
    return min(BATCH_MEMORY["cpu" if device.type == "cpu" else "cuda"], available(device) / 4)


def require_products(model: Bridge, prompts: int, n: int, chunk: int) -> None:
    """Refuse a batch size that does not fit, with one that does."""
    free, size = available(device_of(model)), products_bytes(model, prompts, n, chunk)
    if size > free:
        fits = cotangents(model, prompts, n)
        raise CapacityError(
            f"{chunk} cotangents at a time take {human(size)} and {human(free)} are free.", f"Use chunk={fits}."
        )


def _widths(model: Bridge) -> tuple[int, int, int, int]:
    config, d = model.cfg, width(model)
    q = int(config.n_heads) * int(config.d_head)
    return d, int(getattr(config, "d_mlp", None) or 4 * d), q, projected(model) - q


def _mlp_copies(model: Bridge) -> int:
    """Times the MLP's width that is alive at once: gate, value and product; in and out; or an activation in steps."""
    if "blocks.0.mlp.gate.hook_out" in model.hook_dict:
        return 3
    config = text_config(model)
    name = getattr(config, "activation_function", None) or getattr(config, "hidden_act", None)
    return 5 if name in STEPWISE else 2


def _by_rows(model: Bridge) -> bool:
    """Whether attention goes by blocks of rows: a cap or a window, which no fused kernel takes."""
    try:
        windowed = any(windows(model))
    except UnsoundModelError:  # a kind of attention that is not known here
        windowed = True
    return windowed or getattr(text_config(model), "attn_logit_softcapping", None) is not None


def _cells(model: Bridge, prompts: int, n: int) -> int:
    """Numbers of a block of rows with its copies: logits, weights, and what becomes of them."""
    heads = prompts * int(model.cfg.n_heads)
    most = CELLS["cpu" if device_of(model).type == "cpu" else "cuda"]
    return 3 * heads * n * max(SHORTEST, min(LONGEST, n, most // (heads * n)))
