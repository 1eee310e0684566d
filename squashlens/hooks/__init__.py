"""Interventions on a model's activations, as values to pass to `squashlens.applied(model, *hooks)`.

- Hold constant: `freeze_attention`, `freeze_norms`, `freeze_gates`.
- Attention: `mask_tokens`, `mask_attention`, `sliding_window`, `scale_attention`, `uniform_attention`,
  `zero_attention`.
- Temperature of attention: `attention_temperature`, `adaptive_temperature`, `log_scaling`.
- Remove or replace: `zero_values`, `zero_heads`, `zero_mlp`, `zero_residual`; `mean_heads`, `mean_mlp`,
  `mean_residual`; `patch_heads`, `patch_mlp`, `patch_residual`, `resample_residual`.
- Precision: `round_activations`.
- The model's own windows: `lift_windows`, a context manager.
- Find the positions of given tokens: `find_positions`.

Only `applied` and `lift_windows` touch a model. `squashlens.hooks.Hook` makes your own hook.
"""

from squashlens.hooks.freeze import freeze_attention, freeze_gates, freeze_norms
from squashlens.hooks.interventions import (
    find_positions,
    lift_windows,
    mask_attention,
    mask_tokens,
    scale_attention,
    sliding_window,
    uniform_attention,
    zero_attention,
    zero_heads,
    zero_mlp,
    zero_residual,
    zero_values,
)
from squashlens.hooks.patches import (
    mean_heads,
    mean_mlp,
    mean_residual,
    patch_heads,
    patch_mlp,
    patch_residual,
    resample_residual,
)
from squashlens.hooks.round_activations import quantize_keys_values, round_activations
from squashlens.hooks.temperatures import (
    adaptive_temperature,
    attention_temperature,
    log_scaling,
)
from squashlens.model.hooking.hook import Hook

__all__ = [
    "Hook",
    "adaptive_temperature",
    "attention_temperature",
    "find_positions",
    "freeze_attention",
    "freeze_gates",
    "freeze_norms",
    "lift_windows",
    "log_scaling",
    "mask_attention",
    "mask_tokens",
    "mean_heads",
    "mean_mlp",
    "mean_residual",
    "patch_heads",
    "patch_mlp",
    "patch_residual",
    "quantize_keys_values",
    "resample_residual",
    "round_activations",
    "scale_attention",
    "sliding_window",
    "uniform_attention",
    "zero_attention",
    "zero_heads",
    "zero_mlp",
    "zero_residual",
    "zero_values",
]


def __dir__() -> list[str]:
    return [*__all__]
