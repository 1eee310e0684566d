"""Forward passes that compute patterns only if a hook needs them, and logits only for those who read them.

Logits are computed from rows of y in pieces, since position × vocabulary may not fit into memory. Scales and soft caps
after the output embedding are read from the configuration, and compared with the model's own logits at the first use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import UnsoundModelError
from squashlens.model.agreement import agree, has_nan
from squashlens.model.anatomy import (
    FULL,
    SLIDING,
    device_of,
    dtype_of,
    forget_lengths,
    last_logits,
    pattern_site,
    residual_site,
    text_config,
    windows,
)
from squashlens.model.applied import applied, probe_ids
from squashlens.model.hooking.hook import (
    FROZEN_ATTENTION,
    Hook,
    Unchecked,
    attached,
    checking_results,
)
from squashlens.model.hooking.standing import Standing, standing, without_ambient
from squashlens.model.layout import kept_of
from squashlens.model.memory import available, awaited, later, require_room, to_cpu
from squashlens.model.native import is_native
from squashlens.model.proof import proof_of
from squashlens.run.budget import pass_bytes, pattern_bytes, queries_and_keys
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
    model: Bridge,
    queries: Int[Tensor, " query"],
    keys: Int[Tensor, " key"],
    visible: Bool[Tensor, "query key"],
) -> dict[str, Any]:
    """Mask and position ids with which every token sees the past of its own prompt, within the block's window."""
    device, dtype = device_of(model), dtype_of(model)
    distance = queries[:, None] - keys

    def mask(window: int | None) -> Tensor:
        seen = visible if window is None else visible & (distance < window)
        closed = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype)
        return closed.masked_fill(seen, 0.0)[None, None].to(device)

    kinds = set(windows(model))
    masks: Any = {SLIDING if w else FULL: mask(w) for w in kinds}
    return {
        "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
        "position_ids": queries[None].to(device),
    }


class _ReachedError(BaseException):
    """The pass has come to y, and all that was asked for has been read."""


def forward(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    watch: Watch,
    context: Mapping[str, Any] | None = None,
    on_attention: AttentionObserver | None = None,
    frozen: bool = False,
) -> None:
    """Run the model up to y, unless hooks on it or in `watch` need the rest; with patterns only if a hook needs them.

    `watch` has pairs of a hook point and a function, and `context` further arguments of the model. `on_attention` is
    called with block and `Attention` if patterns are not computed. `frozen` holds weights constant in derivatives.
    """
    hooks = [Hook("squashlens", site, function) for site, function in watch]
    with _prepare(model, ids, hooks, context, on_attention, frozen):
        run_to_y(model, ids, context, hooks)


def next_logits(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    watch: Watch = (),
    context: Mapping[str, Any] | None = None,
) -> Float[Tensor, "prompt token"]:
    """Run the model as `forward` does, and return the logits at the last position."""
    hooks = [Hook("squashlens", site, function) for site, function in watch]
    with _prepare(model, ids, hooks, context):
        return run(model, ids, context)


@contextmanager
def _prepare(
    model: Bridge,
    ids: Tensor,
    hooks: Sequence[Hook],
    context: Mapping[str, Any] | None = None,
    on_attention: AttentionObserver | None = None,
    frozen: bool = False,
) -> Iterator[None]:
    """Around a pass: its hooks, attention as it has to be computed, and the test of users' hooks."""
    reason = why_not_streamed(model, [hook.site for hook in hooks])
    if reason is None:
        runner: Any = streamed(model, on_attention, frozen=frozen)
    else:
        remedy = f"Use a shorter prompt, or fewer at a time. Patterns are computed since {reason}."
        require_room(
            pattern_bytes(model, *ids.shape),
            ids.device,
            "A block's attention patterns",
            remedy,
        )
        runner = applied(model, FROZEN_ATTENTION) if frozen else nullcontext()
    with (
        users_hooks_tested(model, ids, run) if context is None else nullcontext(),
        runner,
        attached(model, *hooks),
    ):
        yield


def run(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    context: Mapping[str, Any] | None = None,
) -> Tensor:
    """Run the model once with its present hooks; the output head runs only on the last position."""
    forget_lengths(model)
    options: dict[str, Any] = {
        "use_cache": False,
        **(context or {}),
        **last_logits(model),
    }
    with checking_results(model):
        last = model(ids, **options)[:, -1]
    require_numbers(model, last)
    return last


def run_to_y(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    context: Mapping[str, Any] | None = None,
    watching: Sequence[Hook] = (),
) -> None:
    """The same without the output head, a large part of the weights, unless a hook outside the blocks may need it.

    `watching` are hooks of this pass that are on the model. The head of a model with 262,144 tokens takes a quarter of
    a short pass.
    """
    own, left = {id(hook.edit) for hook in watching}, {hook.site for hook in watching}
    others = [
        h
        for h in standing(model)
        if id(h.edit) not in own and not isinstance(h.function, Unchecked)
    ]
    if others and not {hook.module for hook in others} <= {*model.blocks.modules()}:
        run(model, ids, context)
        return

    def stop(y: Tensor) -> None:
        require_numbers(model, y[:, -1])
        if not left:
            raise _ReachedError

    seen = [
        Unchecked("seen", site, lambda _, site=site: left.discard(site))
        for site in [*left]
    ]
    try:
        with attached(model, *seen, Unchecked("stop", residual_site("y", model), stop)):
            run(model, ids, context)
    except _ReachedError:
        pass


def require_numbers(model: Bridge, values: Tensor) -> None:
    """Raise an error, which names the hooks on the model, if y or the logits have NaN.

    A device that is ahead with the pass is not waited for, unless users' hooks are on the model, which are tested next.
    """
    wrong, at_once = (
        has_nan(values),
        values.device.type == "cpu" or kept_of(model).at_begin is not None,
    )
    with awaited() if at_once else nullcontext():
        if not at_once or wrong:
            hooks = [hook for hook in standing(model) if hook.is_an_intervention]
            later(wrong, partial(_nan, model, hooks), *(hook.name for hook in hooks))


def _nan(model: Bridge, hooks: Sequence[Standing]) -> UnsoundModelError:
    under = f" with the hooks {'; '.join(hook.name for hook in hooks)}" if hooks else ""
    remedies = ["Use float32 or bfloat16, which have a wider range than float16."]
    if dtype_of(model) != torch.float16:
        remedies = ["Load the model again: its weights may be damaged."]
    if hooks:
        remedies.insert(
            0,
            "Correct the hooks: a row of attention logits with only −∞ gives NaN, for example.",
        )
    return UnsoundModelError(
        f"The model computes NaN on this prompt{under}.", " ".join(remedies)
    )


def head_mean(
    pattern: Float[Tensor, "prompt head query key"],
) -> Float[Tensor, "prompt query key"]:
    """The pattern averaged over heads, for the path bound, in float32."""
    return pattern.detach().float().mean(dim=1)


def attention_of(
    model: Bridge, ids: Int[Tensor, "prompt position"], blocks: Iterable[int]
) -> dict[int, Attention | Float[Tensor, "prompt query key"]]:
    """The attention of each block from one forward pass: queries and keys, or mean patterns in float32 on the CPU.

    They stay on the device during the pass, if half of its free memory suffices; otherwise each moves at once.
    """
    blocks, (prompts, n) = list(blocks), ids.shape
    device, cpu = device_of(model), torch.device("cpu")
    if why_not_streamed(model) is not None:
        size = len(blocks) * prompts * n**2 * 4
        require_room(size, cpu, "The attention patterns", "Use a shorter prompt.")
        # They are joined to move together.
        passing = pass_bytes(model, prompts, n) + pattern_bytes(model, prompts, n)
        target = device if 2 * size + passing < available(device) / 2 else cpu
        patterns: dict[int, Tensor] = {}

        def keep(block: int) -> Callable[[Tensor], None]:
            return lambda tensor: patterns.update({block: head_mean(tensor).to(target)})

        forward(model, ids, [(pattern_site(b), keep(b)) for b in blocks])
        return dict(zip(patterns, to_cpu(list(patterns.values())), strict=True))
    kept, passing = (
        len(blocks) * queries_and_keys(model, prompts, n),
        pass_bytes(model, prompts, n),
    )
    target = device if kept + passing < available(device) / 2 else cpu
    require_room(
        passing,
        device,
        "A forward pass",
        "Use a shorter prompt, or fewer prompts at a time.",
    )
    require_room(
        kept,
        target,
        "Queries and keys of every block",
        "Use a shorter prompt, or fewer prompts at a time.",
    )
    found: dict[int, Attention | Tensor] = {}

    def keep_attention(block: int, attention: Attention) -> None:
        if block in blocks:
            found[block] = attention.to(target)

    forward(model, ids, [], on_attention=keep_attention)
    return found


MOST, ROOM = (
    256,
    2**28,
)  # rows of logits at a time, and bytes that they may take: a vocabulary may have 262,144 tokens
CELLS = {
    "cpu": 2**18,
    "cuda": 2**23,
}  # log-probabilities at a time: on a CPU as many as its cache holds in float64


def rows_together(model: Bridge) -> int:
    """The number of rows of log-probabilities that are computed at a time."""
    return max(
        1,
        CELLS["cpu" if device_of(model).type == "cpu" else "cuda"]
        // int(model.cfg.d_vocab),
    )


def log_probabilities(
    model: Bridge, y: Float[Tensor, "branch d"]
) -> Iterator[Float[Tensor, "branch outcome"]]:
    """Log-probabilities of the next token for each row of y, some rows at a time, in float64."""
    require_understood(model)
    for rows in y.split(max(1, min(MOST, ROOM // (8 * int(model.cfg.d_vocab))))):
        for some in logits_of(model, rows).split(rows_together(model)):
            yield some.double().log_softmax(dim=-1)


def require_understood(model: Bridge) -> None:
    """Raise an error if the model's logits are not those computed here from y; tested once for each model state."""
    if not proof_of(model).once("logits from y", lambda: _understood(model)):
        raise UnsoundModelError(
            f"The logits of {type(model.original_model).__name__} do not follow from y as expected.",
            "Use distances, which need no logits; next tokens cannot be compared for this model.",
        )


def _understood(model: Bridge) -> bool:
    seen: list[Tensor] = []
    with without_ambient(model):
        truth = next_logits(
            model,
            probe_ids(model),
            [(residual_site("y", model), lambda y: seen.append(y[:, -1]))],
        )
        found = logits_of(model, seen[0])
    return agree(found, truth, dtype_of(model))


def logits_of(
    model: Bridge, y: Float[Tensor, "branch d"]
) -> Float[Tensor, "branch outcome"]:
    """The logits of each row of y; `require_understood` tests that the model computes the same."""
    plain = cast(Any, model.original_model)
    head = plain.head if is_native(model) else plain.get_output_embeddings()
    return _scaled(model, head(y[None].to(device_of(model), dtype_of(model)))[0])


def logits_among(
    model: Bridge, y: Float[Tensor, "branch d"], tokens: Int[Tensor, " outcome"]
) -> Float[Tensor, "branch outcome"]:
    """The logits of some tokens for each row of y, from their columns of W_U; that saves most of a large vocabulary.

    Where these columns do not give what the whole head gives, which is tested once for each model state, it is used.
    """
    if proof_of(model).once("logits of some tokens", lambda: _columns_suffice(model)):
        return _among(model, y, tokens)
    return logits_of(model, y)[:, tokens.to(device_of(model))]


def _columns_suffice(model: Bridge) -> bool:
    tokens = torch.arange(min(64, int(model.cfg.d_vocab)))
    y = torch.randn(
        4, int(model.cfg.d_model), generator=torch.Generator().manual_seed(0)
    ).to(device_of(model))
    return agree(
        _among(model, y, tokens),
        logits_of(model, y)[:, tokens.to(y.device)],
        dtype_of(model),
    )


def _among(
    model: Bridge, y: Float[Tensor, "branch d"], tokens: Int[Tensor, " outcome"]
) -> Tensor:
    weight, bias = model.W_U.detach(), model.b_U.detach()
    chosen = tokens.to(weight.device)
    return _scaled(model, y.to(weight) @ weight[:, chosen] + bias[chosen])


def _scaled(model: Bridge, logits: Float[Tensor, "*many"]) -> Float[Tensor, "*many"]:
    """Logits under the scale, divisor or soft cap of the model's head."""
    config = text_config(model)
    # Of Cohere, Granite and Gemma 2. A factor of 1 would copy all logits.
    names = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    scale, divisor, cap = (getattr(config, name, None) for name in names)
    logits = logits * scale if scale else logits
    logits = logits / divisor if divisor else logits
    return torch.tanh(logits / cap) * cap if cap else logits
