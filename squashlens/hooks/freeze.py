"""Hold parts of the model constant while differentiating: attention, norm denominators, gates of the MLPs.

Each hook keeps the forward pass and removes one derivative. With all three frozen and no biases, the model is a linear
map at this input: Σ_i J_i v⁽⁰⁾_i = y_n. Tests check this identity. The path bound and the Jacobians use the same hooks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge, FrozenParts, several
from squashlens.checks.arguments import validated
from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import n_blocks, text_config
from squashlens.model.hooking.hook import FROZEN_ATTENTION, Hook, Recipe
from squashlens.model.snapshot import layout_of

LEAVE_OUT_GATES = "Leave 'gates' out of freeze."


def frozen_parts(freeze: FrozenParts) -> list[str]:
    """The names of the parts to hold constant, in one order."""
    return [name for name in FACTORIES if name in several(freeze)]


def freezing(parts: Iterable[str]) -> list[Hook | Recipe]:
    """The hooks that hold these parts constant."""
    return [FACTORIES[part]() for part in parts]


@validated
def freeze_attention(blocks: tuple[int, ...] | None = None) -> Hook:
    """Hold attention patterns constant: gradients flow through the values, and not through the softmax.

    The forward pass is unchanged. Equation: ``∂(Σ_k α_jk x_k) = Σ_k α_jk ∂x_k``, which Theorem 5.1 assumes.

    Args:
        blocks: the blocks whose attention is frozen; all by default.

    Returns:
        A hook for `squashlens.applied`.
    """
    return replace(FROZEN_ATTENTION, blocks=blocks)


@validated
def freeze_norms(blocks: tuple[int, ...] | None = None) -> Recipe:
    """Hold the denominator of every norm constant: the RMS or standard deviation, also in norms of queries and keys.

    Equation: ``∂(γ v/ρ(v)) = γ ∂v/ρ``; LayerNorm still subtracts the mean, which is linear. The forward pass changes by
    rounding if the bridge recomputes a norm (at most about 1e-6 relative in float32).

    Args:
        blocks: freeze only norms inside these blocks; by default, all norms and the final norm.

    Returns:
        A recipe for `squashlens.applied`.

    Raises:
        UnsoundModelError: a norm of the model has no hook point for its denominator, or no weights, as in OLMo 1.
    """

    def make(model: Bridge) -> list[Hook]:
        """A hook for each denominator, in the chosen blocks."""
        _require_known_norms(model)
        names = sorted(layout_of(model).distinct)
        names = [name for name in names if name.endswith("hook_scale")]
        if blocks is not None:
            inside = tuple(f"blocks.{block}." for block in blocks)
            names = [name for name in names if name.startswith(inside)]
        return [Hook("freeze_norms", name, torch.detach) for name in names]

    return Recipe("freeze_norms", make)


def _require_known_norms(model: Bridge) -> None:
    """Raise if the denominator of some norm, known by the name of its class, cannot be held constant."""
    plain = model.original_model
    # The module of TransformerLens around each norm that has a hook point for its denominator, by that norm.
    wrappers: dict[Any, Any] = {}
    for module in plain.modules():
        if "hook_scale" in module._modules:
            wrappers[module._modules.get("_original_component")] = module
    for name, module in plain.named_modules():
        is_norm = "norm" in type(module).__name__.lower()
        if not is_norm or module in wrappers.values():
            continue
        lack = ""
        if module not in wrappers:
            lack = "hook point for its denominator"
        elif (
            "w" in wrappers[module].property_aliases
            and getattr(module, "weight", None) is None
        ):
            lack = "weights, and TransformerLens cannot compute such a norm from an edited denominator"
        if lack:
            which = name.replace("._original_component", "")
            raise UnsoundModelError(
                f"{which} of {type(plain).__name__} has no {lack}.",
                "Leave norms as they are: 'norms' out of freeze, or this hook.",
            )


@validated
def freeze_gates(blocks: tuple[int, ...] | None = None) -> Recipe:
    """Hold the gates of the MLPs constant, so that each MLP is linear in its input.

    In a gated MLP (``act(g) · u``) the gate is detached. In an ungated MLP, ``act(x)`` becomes ``x · (act(x)/x)`` with
    a constant ratio, which is act′(0) at 0; detaching the activation itself would cut the path. The forward pass is
    unchanged.

    Args:
        blocks: the blocks whose MLPs are frozen; all by default.

    Returns:
        A recipe for `squashlens.applied`.

    Raises:
        UnsoundModelError: an MLP is neither gated nor ungated, such as a mixture of experts.
    """

    def make(model: Bridge) -> list[Hook]:
        """One hook for each gated MLP, two for one that is not gated, and none for a block without an MLP."""
        known = layout_of(model).distinct
        hooks: list[Hook] = []
        for block in range(n_blocks(model)) if blocks is None else blocks:
            mlp = f"blocks.{block}.mlp"
            gate = f"{mlp}.gate.hook_out"
            argument = f"{mlp}.in.hook_out"
            activation = f"{mlp}.out.hook_in"
            if {gate, argument} <= known.keys():
                hooks.append(Hook("freeze_gates", gate, torch.detach))
            elif {argument, activation} <= known.keys():
                ratio = ConstantRatio(slope_at_zero(model))
                hooks.append(Hook("freeze_gates", argument, ratio.look))
                hooks.append(Hook("freeze_gates", activation, ratio.linear))
            elif any(name.startswith(f"{mlp}.") for name in known):
                raise UnsoundModelError(
                    f"The MLP of block {block} of {type(model.original_model).__name__} is neither gated nor plain.",
                    LEAVE_OUT_GATES,
                )
        return hooks

    return Recipe("freeze_gates", make)


FACTORIES: dict[str, Callable[[], Hook | Recipe]] = {
    "attention": freeze_attention,
    "norms": freeze_norms,
    "gates": freeze_gates,
}


@dataclass
class ConstantRatio:
    """An activation as a constant multiple of its argument; one for each block, set anew by every forward pass."""

    slope: float
    argument: Tensor | None = None

    def look(self, argument: Tensor) -> None:
        """Keep the argument for `linear`, which is called later in the same forward pass."""
        self.argument = argument

    def linear(self, activation: Tensor) -> Tensor:
        """The same value, a(x) at the argument x₀, with another derivative: a(x₀) + (x − x₀) a(x₀)/x₀."""
        argument = self.argument
        self.argument = None
        if argument is None or argument.shape != activation.shape:
            raise UnsoundModelError(
                "The input of this MLP's output projection is not its activation.",
                LEAVE_OUT_GATES,
            )
        value = activation.detach()
        constant = argument.detach()
        ratio = torch.where(constant == 0, self.slope, value / constant)
        return value + (argument - constant) * ratio


def slope_at_zero(model: Bridge) -> float:
    """act′(0) of the model's activation function, the limit of act(x)/x at 0."""
    from transformers.activations import ACT2FN

    config = text_config(model)
    attributes = ("hidden_activation", "hidden_act", "activation_function")
    values = [getattr(config, attribute, None) for attribute in attributes]
    name = next((value for value in values if isinstance(value, str)), None)
    if name is None or name not in ACT2FN:
        raise UnsoundModelError(
            f"The activation function of {config.model_type} is not known.",
            LEAVE_OUT_GATES,
        )
    with torch.enable_grad():
        at_zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(ACT2FN[name](at_zero), at_zero)
    return float(slope)
