"""Forward passes that compute patterns only if a hook needs them, and logits only for those who read them.

Logits are computed from rows of y in pieces, since position × vocabulary may not fit into memory. Scales and soft caps
after the output embedding are read from the configuration, and compared with the model's own logits at the first use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens.errors import UnsoundModelError
from squashlens.model.agreement import agree, has_nan
from squashlens.model.anatomy import (
    FULL,
    SLIDING,
    forget_lengths,
    is_native,
    last_logits,
    n_outcomes,
    pattern_site,
    text_config,
    windows,
)
from squashlens.model.applied import probe_ids
from squashlens.model.hooking.hook import FROZEN_ATTENTION, Watcher
from squashlens.model.hooking.standing import (
    attached,
    needs_the_head,
    standing,
    without_ambient,
)
from squashlens.model.memory import (
    available,
    awaited,
    raise_later,
    require_room,
    to_cpu,
)
from squashlens.model.snapshot import kept_of
from squashlens.run.budget import pass_bytes, pattern_bytes, queries_and_keys
from squashlens.run.run import Run
from squashlens.run.streamed import (
    AttentionObserver,
    streamed,
    why_not_streamed,
)
from squashlens.run.users_hooks import users_hooks_tested
from squashlens.theory.attention import Attention

Watch = Iterable[tuple[str, Callable[[Tensor], Tensor | None]]]


def causal(n: int) -> Bool[Tensor, "query key"]:
    """The causal mask: every token sees itself and earlier tokens."""
    return torch.ones(n, n, dtype=torch.bool).tril()


def context(
    run: Run,
    queries: Int[Tensor, " query"],
    keys: Int[Tensor, " key"],
    visible: Bool[Tensor, "query key"],
) -> dict[str, Any]:
    """Mask and position ids with which every token sees the past of its own prompt, within the block's window.

    They are arguments of the model. `queries` are the position ids of the tokens of a pass, and `keys` those of the
    cached tokens, if any, and these. `visible` says which keys belong to the past of a query's own prompt.
    """
    device = run.device
    dtype = run.dtype
    distance = queries[:, None] - keys

    def mask(window: int | None) -> Tensor:
        """What is added to the logits, (1, 1, query, key): 0, or the lowest number where a key is not seen."""
        is_seen = visible if window is None else visible & (distance < window)
        closed = torch.full(is_seen.shape, torch.finfo(dtype).min, dtype=dtype)
        return closed.masked_fill(is_seen, 0.0)[None, None].to(device)

    masks: dict[str, Tensor] = {}
    for window in set(windows(run.model)):
        masks[SLIDING if window else FULL] = mask(window)
    # A model with several kinds of blocks takes a dict of masks, one with a single kind the mask itself.
    first, *others = masks.values()
    return {
        "attention_mask": masks if others else first,
        "position_ids": queries[None].to(device),
    }


class _ReachedError(BaseException):
    """The pass has come to y, and all that was asked for has been read."""


def forward(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    watch: Watch,
    context: Mapping[str, Any] | None = None,
    on_attention: AttentionObserver | None = None,
    frozen: bool = False,
) -> None:
    """Run the model up to y, unless a hook may need the rest; with patterns only if a hook needs them.

    `watch` has pairs of a hook point and a function of its tensor, which may return a replacement. `context` has
    further arguments of the model. `on_attention` is called with block and `Attention` if patterns are not computed.
    `frozen` holds attention weights constant in derivatives.
    """
    with _prepared(run, ids, watch, context, on_attention, frozen):
        run_to_y(run, ids, context)


def next_logits(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    watch: Watch = (),
    context: Mapping[str, Any] | None = None,
) -> Float[Tensor, "prompt token"]:
    """Run the model as `forward` does, and return the logits at the last position."""
    with _prepared(run, ids, watch, context):
        return whole_pass(run, ids, context)


@contextmanager
def _prepared(
    run: Run,
    ids: Tensor,
    watch: Watch,
    context: Mapping[str, Any] | None,
    on_attention: AttentionObserver | None = None,
    frozen: bool = False,
) -> Iterator[None]:
    """Around a pass: its hooks, attention as it has to be computed, and the test of users' hooks."""
    hooks: list[Watcher] = []
    sites: list[str] = []
    for site, function in watch:
        hooks.append(Watcher(site, function))
        sites.append(site)
    reason = why_not_streamed(run.model, sites)
    with ExitStack() as stack:
        # A pass with a mask or a cache of its own is never the first one of a prompt.
        if context is None:
            stack.enter_context(users_hooks_tested(run, ids, next_logits))
        if reason is None:
            stack.enter_context(streamed(run.model, on_attention, frozen=frozen))
        else:
            require_room(
                pattern_bytes(run, *ids.shape),
                ids.device,
                "A block's attention patterns",
                f"Use a shorter prompt, or fewer at a time. Patterns are computed since {reason}.",
            )
            if frozen:
                stack.enter_context(run.applied(FROZEN_ATTENTION))
        stack.enter_context(attached(run.model, *hooks))
        yield


def whole_pass(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    context: Mapping[str, Any] | None = None,
) -> Tensor:
    """Run the model once with its present hooks; the output head runs only on the last position."""
    forget_lengths(run.model)
    options = {"use_cache": False, **(context or {}), **last_logits(run.model)}
    last = run.model(ids, **options)[:, -1]
    require_numbers(run, last)
    return last


def run_to_y(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    context: Mapping[str, Any] | None = None,
) -> None:
    """Run the model once with its present hooks, without the output head unless a hook on the model may need it.

    The head of a model with 262,144 tokens takes a quarter of a short pass.
    """
    if any(map(needs_the_head, standing(run.model))):
        whole_pass(run, ids, context)
        return

    def stop(y: Tensor) -> None:
        require_numbers(run, y[:, -1])
        raise _ReachedError

    # Added last, so that every other hook at y has been called.
    last = Watcher(run.site("y"), stop)
    with attached(run.model, last), suppress(_ReachedError):
        whole_pass(run, ids, context)


def require_numbers(run: Run, values: Tensor) -> None:
    """Raise an error, which names the hooks on the model, if `values`, y or the logits, have NaN.

    The host does not wait for a device that is still at work on the pass, and the error comes later. It waits if users'
    hooks are on the model, which are tested next.
    """
    names: list[str] = []
    for hook in standing(run.model):
        if hook.is_an_intervention:
            names.append(hook.name)
    is_under_hooks = kept_of(run.model).at_begin is not None
    with awaited() if is_under_hooks else nullcontext():
        raise_later(has_nan(values), partial(_nan, run, names), *names)


def _nan(run: Run, hooks: Sequence[str]) -> UnsoundModelError:
    """The error for NaN in a pass with these hooks."""
    remedy = "Load the model again: its weights may be damaged."
    if run.dtype == torch.float16:
        remedy = "Use float32 or bfloat16, which have a wider range than float16."
    if not hooks:
        return UnsoundModelError("The model computes NaN on this prompt.", remedy)
    return UnsoundModelError(
        f"The model computes NaN on this prompt with the hooks {'; '.join(hooks)}.",
        "Correct the hooks: a row of attention logits with only −∞ gives NaN, for example. "
        + remedy,
    )


def head_mean(
    pattern: Float[Tensor, "prompt head query key"],
) -> Float[Tensor, "prompt query key"]:
    """The pattern averaged over heads, for the path bound, in float32."""
    return pattern.detach().float().mean(dim=1)


def attention_of(
    run: Run, ids: Int[Tensor, "prompt position"], blocks: Iterable[int]
) -> dict[int, Attention | Float[Tensor, "prompt query key"]]:
    """The attention of each block from one forward pass: queries and keys, or mean patterns in float32 on the CPU.

    They stay on the device during the pass, if half of its free memory suffices; otherwise each moves at once.
    """
    if why_not_streamed(run.model) is not None:
        return {**_mean_patterns(run, ids, list(blocks))}
    chosen = set(blocks)
    pass_size = pass_bytes(run, *ids.shape)
    size = len(chosen) * queries_and_keys(run, *ids.shape)
    target = _place_for(run, pass_size, size)
    remedy = "Use a shorter prompt, or fewer prompts at a time."
    require_room(pass_size, run.device, "A forward pass", remedy)
    require_room(size, target, "Queries and keys of every block", remedy)
    attentions: dict[int, Attention | Tensor] = {}

    def keep(block: int, attention: Attention) -> None:
        if block in chosen:
            attentions[block] = attention.to(target)

    forward(run, ids, [], on_attention=keep)
    return attentions


def _mean_patterns(run: Run, ids: Tensor, blocks: list[int]) -> dict[int, Tensor]:
    """The patterns of each block averaged over heads, from a pass that writes them."""
    size = len(blocks) * len(ids) * ids.shape[1] ** 2 * 4  # in float32
    cpu = torch.device("cpu")
    require_room(size, cpu, "The attention patterns", "Use a shorter prompt.")
    pass_size = pass_bytes(run, *ids.shape) + pattern_bytes(run, *ids.shape)
    # They are joined to move together, which takes as much again.
    target = _place_for(run, pass_size, 2 * size)
    patterns: dict[int, Tensor] = {}

    def keep(block: int, pattern: Tensor) -> None:
        patterns[block] = head_mean(pattern).to(target)

    forward(run, ids, [(pattern_site(b), partial(keep, b)) for b in blocks])
    return dict(zip(patterns, to_cpu(list(patterns.values())), strict=True))


def _place_for(run: Run, pass_size: float, size: float) -> torch.device:
    """Where tensors wait for the end of a pass: on the device, if they and the pass fit into half of its memory."""
    if size + pass_size < available(run.device) / 2:
        return run.device
    return torch.device("cpu")


# Bytes that the logits of some rows may take, with copies for a scale or a cap: a vocabulary may have 262,144 tokens.
PIECE = 1e8
# Log-probabilities at a time: on a CPU as many as its cache holds in float64.
CELLS = {"cpu": 2**18, "cuda": 2**23}


def rows_together(run: Run) -> int:
    """The number of rows of log-probabilities that are computed at a time."""
    cells = CELLS["cpu" if run.device.type == "cpu" else "cuda"]
    return max(1, cells // n_outcomes(run.model))


def log_probabilities(
    run: Run, y: Float[Tensor, "branch d"]
) -> Iterator[Float[Tensor, "branch outcome"]]:
    """Log-probabilities of the next token for each row of y, some rows at a time, in float64."""
    require_understood(run)
    # Logits, in at least float32, with two copies.
    bytes_of_row = 3 * max(4, run.dtype.itemsize) * n_outcomes(run.model)
    for rows in y.split(max(1, int(PIECE / bytes_of_row))):
        for logits in logits_of(run, rows).split(rows_together(run)):
            yield logits.double().log_softmax(dim=-1)


def require_understood(run: Run) -> None:
    """Raise an error if the model's logits are not those computed here from y; tested once for each model state."""
    if not run.proof.once("logits from y", lambda: _understood(run)):
        raise UnsoundModelError(
            f"The logits of {run.architecture} do not follow from y as expected.",
            "Use distances, which need no logits; next tokens cannot be compared for this model.",
        )


def _understood(run: Run) -> bool:
    """Whether `logits_of` gives the model's own logits at the last token of the probe prompt."""
    last_y: list[Tensor] = []

    def keep(y: Tensor) -> None:
        last_y.append(y[:, -1])

    with without_ambient(run.model):
        logits = next_logits(run, probe_ids(run.model), [(run.site("y"), keep)])
        return agree(logits_of(run, last_y[0]), logits, run.dtype)


def logits_of(
    run: Run, y: Float[Tensor, "branch d"]
) -> Float[Tensor, "branch outcome"]:
    """The logits of each row of y; `require_understood` tests that the model computes the same."""
    plain = cast(Any, run.model.original_model)
    head = plain.head if is_native(run.model) else plain.get_output_embeddings()
    # One prompt, with the rows as its positions.
    as_batch = y[None].to(run.device, run.dtype)
    return _scaled(run, head(as_batch)[0])


def logits_among(
    run: Run, y: Float[Tensor, "branch d"], tokens: Int[Tensor, " outcome"]
) -> Float[Tensor, "branch outcome"]:
    """The logits of some tokens for each row of y, from their columns of W_U; that saves most of a large vocabulary.

    Whether these columns give what the whole head gives is tested once for each model state; if not, the head is used.
    """
    if run.proof.once("logits of some tokens", lambda: _columns_suffice(run)):
        return _among(run, y, tokens)
    return logits_of(run, y)[:, tokens.to(run.device)]


def _columns_suffice(run: Run) -> bool:
    """Whether `_among` gives the logits of the whole head, for 64 tokens and 4 random rows."""
    tokens = torch.arange(min(64, n_outcomes(run.model)))
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(4, run.width, generator=generator).to(run.device)
    whole = logits_of(run, y)[:, tokens.to(y.device)]
    return agree(_among(run, y, tokens), whole, run.dtype)


def _among(
    run: Run, y: Float[Tensor, "branch d"], tokens: Int[Tensor, " outcome"]
) -> Tensor:
    """The logits of some tokens for each row of y, from TransformerLens's W_U (d, token) and b_U."""
    weight = run.model.W_U.detach()
    bias = run.model.b_U.detach()
    chosen = tokens.to(weight.device)
    return _scaled(run, y.to(weight) @ weight[:, chosen] + bias[chosen])


def _scaled(run: Run, logits: Float[Tensor, "*many"]) -> Float[Tensor, "*many"]:
    """Logits under the scale, divisor or soft cap of the model's head."""
    config = text_config(run.model)
    # Of Cohere, Falcon-H1, Granite and Gemma 2. A factor of 1 would copy all logits.
    for name in ("logit_scale", "lm_head_multiplier"):
        scale = getattr(config, name, None)
        if scale not in (None, 1):
            logits = logits * scale
    divisor = getattr(config, "logits_scaling", None)
    if divisor:
        logits = logits / divisor
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    return logits
