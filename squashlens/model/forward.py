"""Forward passes: with patterns only where a hook stands on one, without the output head's largest tensor."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import device_of, pattern_site
from squashlens.model.attention import Attention
from squashlens.model.budget import pass_bytes, queries_and_keys
from squashlens.model.freeze import freeze_attention
from squashlens.model.functions import has_nan
from squashlens.model.hooks import Hook, ambient, hung
from squashlens.model.live import applied
from squashlens.model.memory import available, require_room
from squashlens.model.plain import checked
from squashlens.model.positions import forget_lengths
from squashlens.model.streamed import See, streamed, why_not


def forward(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    watch: Iterable[tuple[str, Callable[[Tensor], Tensor | None]]],
    context: Mapping[str, Any] | None = None,
    see: See | None = None,
    frozen: bool = False,
) -> Tensor:
    """Run the model with `watch` (hook point, function) added; returns the logits at the last position.

    `context` is what the tokens stand in, in the model's own words: cache, mask, positions. Attention patterns are
    written down only where a hook stands inside attention, or the model cannot be run otherwise; `see` is shown what
    they are made of where they are not. `frozen` attention has constant weights, either way.
    """
    hooks = [Hook("squashlens", site, function) for site, function in watch]
    reason = why_not(model, [hook.site for hook in hooks])
    if reason is None:
        way: Any = streamed(model, see, frozen=frozen)
    else:
        way = applied(model, freeze_attention()) if frozen else nullcontext()
    with way, hung(model, *hooks):
        return run(model, ids, context)


def run(model: Bridge, ids: Int[Tensor, "prompt position"], context: Mapping[str, Any] | None = None) -> Tensor:
    """One pass of the model as it stands; the output head is run on the last position alone."""
    forget_lengths(model)
    options: dict[str, Any] = {"use_cache": False} | dict(context or {})
    if "logits_to_keep" in inspect.signature(model.original_model.forward).parameters:
        options["logits_to_keep"] = 1  # position × vocabulary is the largest tensor of many models
    with checked(model):
        last = model(ids, **options)[:, -1]
    require_numbers(model, last)
    return last


def require_numbers(model: Bridge, logits: Tensor) -> None:
    """Refuse a pass that ended in NaN, naming the hooks under which it did."""
    if has_nan(logits):
        standing = ambient(model)
        under = f" under the hooks that stand on it ({'; '.join(standing)})" if standing else ""
        raise UnsoundModelError(
            f"The model computes NaN on this prompt{under}.",
            "Correct the hooks: rows of attention logits that are −∞ throughout give NaN too."
            if standing
            else "Use float32 or bfloat16, whose range is wider, if the model was loaded in float16.",
        )


def head_mean(pattern: Float[Tensor, "prompt head query key"]) -> Float[Tensor, "prompt query key"]:
    """A pattern averaged over its heads, as the path bound has it: float32, on the CPU."""
    return pattern.detach().float().mean(dim=1).cpu()


def attention_of(
    model: Bridge, ids: Int[Tensor, "prompt position"], blocks: Iterable[int]
) -> dict[int, Attention | Float[Tensor, "prompt query key"]]:
    """The attention of each block from one forward pass: queries and keys, or, where a model cannot be run without
    patterns or hooks stand on them, patterns averaged over heads, float32 on the CPU.

    Queries and keys stay on the device if they take less than half of what is free there, else on the CPU.
    """
    blocks, (prompts, n) = list(blocks), ids.shape
    device, cpu = device_of(model), torch.device("cpu")
    if why_not(model) is not None:
        require_room(len(blocks) * prompts * n**2 * 4, cpu, "The attention patterns", "Use a shorter prompt.")
        patterns: dict[int, Tensor] = {}

        def keep(block: int) -> Callable[[Tensor], None]:
            return lambda tensor: patterns.update({block: head_mean(tensor)})

        with torch.no_grad():
            forward(model, ids, [(pattern_site(b), keep(b)) for b in blocks])
        return dict(patterns)
    kept, passing = len(blocks) * queries_and_keys(model, prompts, n), pass_bytes(model, prompts, n)
    target = device if kept + passing < available(device) / 2 else cpu
    require_room(passing, device, "A forward pass", "Use a shorter prompt, or fewer prompts at a time.")
    require_room(kept, target, "Queries and keys of every block", "Use a shorter prompt, or fewer prompts at a time.")
    found: dict[int, Attention | Tensor] = {}

    def see(block: int, attention: Attention) -> None:
        if block in blocks:
            found[block] = attention.to(target)

    with torch.no_grad():
        forward(model, ids, [], see=see)
    return found
