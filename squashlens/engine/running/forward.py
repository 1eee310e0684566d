"""Forward passes that compute patterns only if a hook needs them, and logits only for those who read them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.anatomy import device_of, dtype_of, last_logits, modules_of, pattern_site, residual_site
from squashlens.engine.budget import pass_bytes, queries_and_keys
from squashlens.engine.functions import has_nan
from squashlens.engine.hooking.freeze import freeze_attention
from squashlens.engine.hooking.hook import Hook, Unchecked, ambient, attached, standing
from squashlens.engine.hooking.pairs import checking_results
from squashlens.engine.memory import available, require_room, to_cpu
from squashlens.engine.positions import forget_lengths
from squashlens.engine.proving.effective import applied
from squashlens.engine.running.repeatable import repeatable
from squashlens.engine.running.streamed import AttentionObserver, streamed, why_not_streamed
from squashlens.errors import UnsoundModelError
from squashlens.theory.attention import Attention

Watch = Iterable[tuple[str, Callable[[Tensor], Tensor | None]]]


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
    """Run the model up to y, unless hooks on it or in `watch` need the rest.

    Attention patterns are computed only if a hook inside attention needs them, or the model cannot be run otherwise.

    Args:
        watch: pairs of a hook point and a function, added for this pass.
        context: further arguments of the model: cache, mask, positions.
        on_attention: called with block and `Attention` of every block, if patterns are not computed.
        frozen: hold attention weights constant in derivatives.
    """
    hooks = [Hook("squashlens", site, function) for site, function in watch]
    with _prepared(model, ids, hooks, context, on_attention, frozen):
        run_to_y(model, ids, context, hooks)


def next_logits(
    model: Bridge, ids: Int[Tensor, "prompt position"], watch: Watch = (), context: Mapping[str, Any] | None = None
) -> Float[Tensor, "prompt token"]:
    """Run the model as `forward` does, and return the logits at the last position."""
    hooks = [Hook("squashlens", site, function) for site, function in watch]
    with _prepared(model, ids, hooks, context):
        return run(model, ids, context)


@contextmanager
def _prepared(
    model: Bridge, ids: Tensor, hooks: Sequence[Hook], context: Mapping[str, Any] | None = None,
    on_attention: AttentionObserver | None = None, frozen: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Around a pass: its hooks, attention as it has to be computed, and the test of users' hooks."""
    reason = why_not_streamed(model, [hook.site for hook in hooks])
    if reason is None:
        runner: Any = streamed(model, on_attention, frozen=frozen)
    else:
        runner = applied(model, freeze_attention()) if frozen else nullcontext()
    with repeatable(model, ids, run) if context is None else nullcontext(), runner, attached(model, *hooks):
        yield


def run(model: Bridge, ids: Int[Tensor, "prompt position"], context: Mapping[str, Any] | None = None) -> Tensor:
    """Run the model once with its present hooks; the output head runs only on the last position."""
    forget_lengths(model)
    options: dict[str, Any] = {"use_cache": False, **(context or {}), **last_logits(model)}
    with checking_results(model):
        last = model(ids, **options)[:, -1]
    require_numbers(model, last)
    return last


def run_to_y(
    model: Bridge, ids: Int[Tensor, "prompt position"], context: Mapping[str, Any] | None = None,
    watching: Sequence[Hook] = (),
) -> None:  # fmt: skip
    """The same without the output head, a large part of the weights, unless a hook outside the blocks may need it.

    `watching` are hooks of this pass that are on the model. The head of a model with 262,144 tokens takes a quarter of
    a short pass.
    """
    own, inside = {id(hook.edit) for hook in watching}, {*modules_of(model.blocks)}
    left, others = {hook.site for hook in watching}, [hook for hook in standing(model) if hook.module not in inside]
    if any(id(hook.edit) not in own and not isinstance(hook.function, Unchecked) for hook in others):
        run(model, ids, context)
        return

    def stop(y: Tensor) -> None:
        require_numbers(model, y[:, -1])
        if not left:
            raise _ReachedError

    seen = [Unchecked("seen", site, lambda _, site=site: left.discard(site)) for site in [*left]]
    try:
        with attached(model, *seen, Unchecked("stop", residual_site("y", model), stop)):
            run(model, ids, context)
    except _ReachedError:
        pass


def require_numbers(model: Bridge, values: Tensor) -> None:
    """Raise an error, which names the hooks on the model, if y or the logits have NaN."""
    if has_nan(values):
        names = ambient(model)
        under = f" with the hooks {'; '.join(names)}" if names else ""
        raise UnsoundModelError(
            f"The model computes NaN on this prompt{under}.",
            "Correct the hooks: a row of attention logits with only −∞ gives NaN, for example."
            if names
            else "If the model is in float16, use float32 or bfloat16, which have a wider range.",
        )


def head_mean(pattern: Float[Tensor, "prompt head query key"]) -> Float[Tensor, "prompt query key"]:
    """The pattern averaged over heads, for the path bound, in float32."""
    return pattern.detach().float().mean(dim=1)


def attention_of(
    model: Bridge, ids: Int[Tensor, "prompt position"], blocks: Iterable[int]
) -> dict[int, Attention | Float[Tensor, "prompt query key"]]:
    """The attention of each block from one forward pass, as queries and keys.

    If patterns must be computed (for hooks, or because the model cannot be run without), the result has patterns
    averaged over heads, in float32 on the CPU. Patterns move there when the pass is done, and queries and keys stay on
    the device, if they and the pass need less than half of its free memory. Otherwise each block's move to the CPU at
    once.
    """
    blocks, (prompts, n) = list(blocks), ids.shape
    device, cpu = device_of(model), torch.device("cpu")
    if why_not_streamed(model) is not None:
        size = len(blocks) * prompts * n**2 * 4
        require_room(size, cpu, "The attention patterns", "Use a shorter prompt.")
        # They are joined to move together. Scores, softmax and pattern of every head are in the pass.
        passing = pass_bytes(model, prompts, n) + 4 * int(model.cfg.n_heads) * prompts * n**2 * dtype_of(model).itemsize
        target = device if 2 * size + passing < available(device) / 2 else cpu
        patterns: dict[int, Tensor] = {}

        def keep(block: int) -> Callable[[Tensor], None]:
            return lambda tensor: patterns.update({block: head_mean(tensor).to(target)})

        with torch.no_grad():
            forward(model, ids, [(pattern_site(b), keep(b)) for b in blocks])
        return dict(zip(patterns, to_cpu(list(patterns.values())), strict=True))
    kept, passing = len(blocks) * queries_and_keys(model, prompts, n), pass_bytes(model, prompts, n)
    target = device if kept + passing < available(device) / 2 else cpu
    require_room(passing, device, "A forward pass", "Use a shorter prompt, or fewer prompts at a time.")
    require_room(kept, target, "Queries and keys of every block", "Use a shorter prompt, or fewer prompts at a time.")
    found: dict[int, Attention | Tensor] = {}

    def keep_attention(block: int, attention: Attention) -> None:
        if block in blocks:
            found[block] = attention.to(target)

    with torch.no_grad():
        forward(model, ids, [], on_attention=keep_attention)
    return found
