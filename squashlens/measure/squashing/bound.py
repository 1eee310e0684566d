"""The path bound of Theorem 5.1 for a real model: as printed, under uniform attention, certified, and by layer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import (
    AttentionKind,
    Bridge,
    FrozenParts,
    SpansOfTokens,
    Target,
    Targets,
    positive,
)
from squashlens.checks.arguments import and_frozen
from squashlens.errors import InputError, RangeError
from squashlens.hooks.freeze import frozen_parts
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.certified import certified_rows
from squashlens.measure.squashing.token_spans import Spans
from squashlens.measure.squashing.walks import of_attention, one_hot, top_down
from squashlens.run.captured import PromptOrCapture
from squashlens.run.run import Run
from squashlens.theory.path_sums import Pattern, sweep

# Constants of the printed formula, which are 1 unless given, with their letters in the paper.
LETTERS = {"beta1": "β₁", "beta2": "β₂", "beta3": "β₃", "sigma_psi": "σ_ψ"}


PAPER = dict.fromkeys(LETTERS, 1.0)
BOUNDS: dict[AttentionKind, str] = {
    "model": "path bound of Theorem 5.1",
    "uniform": "path bound under uniform attention",
    "topological": "path bound with all attention weights 1",
}


@measurement("by_token", prompts="equal")
def path_bound(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    attention: AttentionKind = "model",
    query: int = -1,
    from_layer: int = 0,
    to_layer: Targets = "y",
    beta1: float = 1.0,
    beta2: float = 1.0,
    beta3: float = 1.0,
    sigma_psi: float = 1.0,
    spans: SpansOfTokens = None,
) -> xr.DataArray:
    """The weighted path sum of Theorem 5.1, by which each token i can influence position n.

    It is the printed formula ``C · [ Ā⁽ᴸ⁻¹⁾ ⋯ Ā⁽⁰⁾ ]_{n,i}``, where ``ᾱ_ji = mean_h α^h_ji / β₁ + δ_ji`` and
    ``C = (1/β₃) (σ_ψ/β₂ + 1)^L``. The factor 1/β₃ applies only if the target is y. The printed formula omits the value
    and output weights, the sum over heads and the derivative of the softmax. For a real model it is therefore a **shape
    to compare, not a bound**; `certified_bound` is one.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), several prompts as texts or ids of shape
            (prompt, position), what a tokenizer of transformers returns, or a `capture` of them. Prompts of unequal
            lengths are measured one by one.
        attention: attention weights: ``"model"`` (the default), those of the model; ``"uniform"``, the null, in which
            each token attends evenly to all tokens that its block lets it see, and to the block's learned sink if it
            has one; ``"topological"``, weight 1 for each visible token, which with σ_ψ = 0 counts the paths from i to n
            (attending to itself and staying in the residual stream are two different edges).
        query: query position n; negative values count from the end. The last token by default.
        from_layer: layer ℓ whose residual stream v⁽ℓ⁾ is the start, after any hooks at that point; 0, the embeddings,
            by default.
        to_layer: layer at which the paths end: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output of the
            final norm. A list of numbers gives a leading dimension `to_layer`.
        beta1, beta2, beta3: the effects of the norms before attention, before the MLP and at the end; 1 by default.
        sigma_psi: the Lipschitz constant of the MLPs, which may be 0; 1 by default.
        spans: as in `jacobian_norms`. The bound of a span is the root of the sum of squares of its tokens' bounds.

    Returns:
        DataArray (position), or (prompt, position) for several prompts: float64, dimensionless, zero for positions
        after the query. Results of prompts of unequal lengths are padded: after a prompt's own tokens, whose number is
        the coordinate `n_tokens`, values are NaN, `token` is "" and `token_id` is −1.

    Raises:
        InputError: a constant, a query or a layer that does not exist.
        RangeError: the bound with these constants is beyond the range of float64.

    Source: Barbero et al. 2024, Theorem 5.1 (B.5), with ᾱ as in the proof.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> bound = sl.path_bound(model, "How many ones are in the following sequence? 110 =")
    >>> round(float(bound.sum())), 2**6 * 2**6   # row-stochastic attention: every block doubles twice
    (4096, 4096)
    """
    constants = {
        "beta1": beta1,
        "beta2": beta2,
        "beta3": beta3,
        "sigma_psi": sigma_psi,
    }
    for name, value in constants.items():
        may_be_0 = name == "sigma_psi" and value == 0
        if not (value > 0 or may_be_0):
            raise InputError(
                f"{name}={value!r} is not a positive number.",
                "Give one; sigma_psi may also be 0.",
            )
    run = Run.of(model, prompt, **this_call())
    tops = run.spans(from_layer, to_layer)
    run, groups = Spans.of(run, spans)
    highest = max(tops.values())
    patterns = top_down(run, attention, from_layer, highest)
    bounds: dict[Target, xr.DataArray] = {}
    for to, top in tops.items():
        below = patterns[highest - top :]  # the blocks below this target
        bounds[to] = printed(run, groups, attention, below, query, constants, to)
    return run.by_layer(to_layer, bounds)


@measurement(
    "by_token",
    prompts="equal",
    cheaper="`jacobian_norms(method='sketch_upper')` is certified too, and takes less.",
)
def certified_bound(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    freeze: FrozenParts = (),
    query: int = -1,
    from_layer: int = 0,
    to_layer: Targets = "y",
    spans: SpansOfTokens = None,
    vjp_batch_size: int | None = None,
    seed: int = 0,
) -> xr.DataArray:
    """A certified upper bound on ‖∂y_n/∂v⁽⁰⁾_i‖₂ for each token i, as a sum over attention paths.

    It is ``[ E⁽ᴸ⁻¹⁾ ⋯ E⁽⁰⁾ ]_{n,i}``, where every edge ``e_ji ≥ ‖∂v'_j/∂v_i‖₂`` is the norm of a block's Jacobian at
    this input, and the last block includes the final norm: Theorem 5.1 with nothing left out. It bounds the derivative
    of the model with its stored weights in exact arithmetic; all steps run in float64, and an allowance for rounding is
    added, which random probes find. They fail with half of one in a million at most, over all edges of the call. That
    is of the norm of one draw of random changes; that true rounding does no more than this draw is an assumption. An
    edge takes d vector–Jacobian products for each token of each block: ``jacobian_norms(method="sketch_upper")`` is
    certified too, tighter, and far cheaper.

    Args:
        model, prompt, query, from_layer, to_layer: as in `path_bound`.
        freeze: parts of the model held constant, as in `jacobian_norms`.
        spans: as in `path_bound`; it is a certified bound on the norm of the span's blocks side by side.
        vjp_batch_size: number of cotangents per batch; chosen to fit into memory by default.
        seed: random seed of the probes, 0 by default, as in `jacobian_norms`.

    Returns:
        DataArray as of `path_bound`. The attribute `rounding` is the relative allowance for rounding that the values
        include, and `failure_probability` the chance that any value is too low, under the assumption above. The
        provenance has the whole `certificate`, which also says what is certified.

    Raises:
        InputError: a query or layer that does not exist, or quantized weights.
        UnsoundModelError: hooks that let later tokens influence earlier ones, or numbers of which float64 leaves no
            correct digit.
        CapacityError: the rows of one query do not fit into memory.

    Source: Barbero et al. 2024, Theorem 5.1; docs/certificates.md says why it holds.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> certified = sl.certified_bound(model, "110 =")
    >>> bool((certified >= sl.jacobian_norms(model, "110 =")).all())
    True
    """
    if vjp_batch_size is not None:
        positive(vjp_batch_size, "vjp_batch_size", "a batch size")
    parts = frozen_parts(freeze)
    run = Run.of(model, prompt, **this_call(freeze=parts))
    tops = run.spans(from_layer, to_layer)
    run, groups = Spans.of(run, spans)
    n = run.query(query)
    # For each target (prompt, position)
    rows, certificate = certified_rows(
        run, tops, from_layer, n, parts, vjp_batch_size=vjp_batch_size, seed=seed
    )
    long_name = f"certified path bound{and_frozen(parts)}"
    stated = {name: certificate[name] for name in ("rounding", "failure_probability")}
    bounds: dict[Target, xr.DataArray] = {}
    for to, row in rows.items():
        bound = _label(run, groups, row, long_name, certificate=certificate)
        bounds[to] = bound.assign_attrs(stated)
    return run.by_layer(to_layer, bounds)


def printed(
    run: Run,
    groups: Spans | None,
    attention: AttentionKind,
    down: Sequence[Pattern],
    query: int,
    constants: Mapping[str, float] = PAPER,
    to: Target = "y",
) -> xr.DataArray:
    """The path bound as Theorem 5.1 prints it: row n = `query` of ``(1/β₃) ∏ (σ_ψ/β₂ + 1) (A/β₁ + I)``.

    `down` has the patterns A from the top block down. `constants` are β₁, β₂, β₃ and σ_ψ under the names of
    `path_bound`; the factor 1/β₃ applies only if the target is y. `groups` are spans, each with a bound of its own.
    """
    gain = constants["sigma_psi"] / constants["beta2"] + 1
    scale = 1 / constants["beta1"]
    rows = list(sweep(one_hot(run, query), down, attention_scale=scale, gain=gain))
    row = rows[-1].cpu()
    if to == "y":
        row = row / constants["beta3"]
    long_name = BOUNDS[attention]
    for name, value in constants.items():
        if value != 1:
            long_name += f", {LETTERS[name]} = {value:g}"
    bound = _label(run, groups, row, long_name)
    if not np.isfinite(bound.values).all():
        steps = [*rows, row, torch.as_tensor(bound.values)]
        _require_range(steps, attention, constants)
    return bound


def _require_range(
    steps: Iterable[Tensor], attention: AttentionKind, constants: Mapping[str, float]
) -> None:
    """Raise if the first of these `steps` of the computation that is not finite is infinite: it overflowed.

    If it is NaN, that comes from the model itself, and the result keeps it.
    """
    overflown = next(step for step in steps if not bool(step.isfinite().all()))
    if bool(overflown.isinf().any()):
        given = ", ".join(f"{name}={value:g}" for name, value in constants.items())
        raise RangeError(
            f"The bound is beyond the range of float64, {np.finfo(float).max:.2g}, with attention={attention!r} and "
            f"the constants {given}.",
            "Give a larger beta1, beta2 or beta3, or a smaller sigma_psi.",
        )


def _label(
    run: Run,
    groups: Spans | None,
    row: Float[Tensor, "prompt position"],
    long_name: str,
    **extra: Any,
) -> xr.DataArray:
    """The labelled bound of each token; with spans that of each, the root of the sum of squares over its tokens."""
    if groups is not None:
        row = groups.root_sum_squares(row)
        long_name += ", root of the sum of squares over the span"
    return run.label(row, "path_bound", long_name, "1", **extra)


@measurement("composition")
def composition(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    attention: Literal["model", "uniform"] = "model",
    query: int = -1,
) -> xr.DataArray:
    """The share of attention paths into position n that start at v⁽ℓ⁾_i, for every layer ℓ and position i.

    It is row n of ``∏ ½ (A + I)`` over the blocks from ℓ on, with A averaged over heads: a probability distribution
    over positions for each layer ℓ = 0…L. At layer 0 it is the path bound with all constants 1, divided by 4^L.

    Args:
        model, query: as in `path_bound`.
        prompt: as in `path_bound`, several only of equal length.
        attention: ``"model"`` (the default) or ``"uniform"``, as in `path_bound`.

    Returns:
        DataArray (layer, position), or (layer, prompt, position) for several prompts: float64, dimensionless; every
        row sums to 1, or to less in a model with learned sinks, which end paths.

    Raises:
        InputError: a query outside the prompt, or prompts of unequal lengths.

    Source: the path sum of Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> sl.attention_paths.composition(model, "Can you copy the following number? 11 =").sum("position").round(6).values
    array([1., 1., 1., 1., 1., 1., 1.])
    """
    run = Run.of(model, prompt, **this_call())
    top = run.n_blocks
    patterns = top_down(run, attention, 0, top)
    rows = list(sweep(one_hot(run, query), patterns, gain=0.5))
    device = rows[-1].device
    # (layer, prompt, position), from the bottom up
    shares = torch.stack([row.to(device) for row in reversed(rows)]).cpu()
    if len(run.ids) == 1:
        shares = shares[:, 0]
    dims, coords = run.coords()
    coords["layer"] = np.arange(top + 1)
    text = f"share of attention paths into the query{of_attention(attention)}"
    return run.array("composition", coords, (("layer", *dims), shares, text, "1"))
