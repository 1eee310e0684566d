"""The path bound of Theorem 5.1 for a real model: as printed, under uniform attention, certified, and by layer."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import (
    AttentionKind,
    Bridge,
    Constants,
    Edges,
    Freezable,
    Pieces,
    Target,
    positive,
)
from squashlens.checks.arguments import and_frozen
from squashlens.engine.anatomy import n_blocks
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.hooking.freeze import frozen_parts
from squashlens.errors import InputError, RangeError
from squashlens.measure.session import Session, measurement, one_by_one
from squashlens.measure.squashing.certificates.certified import certified_bounds
from squashlens.measure.squashing.token_spans import Spans, recorded
from squashlens.measure.squashing.walks import of_attention, one_hot, patterns_of
from squashlens.theory.bounds.paths import sweep
from squashlens.theory.probes import seed_of

# Constants of the printed formula, which are 1 unless given, with their letters in the paper.
LETTERS = {"beta1": "β₁", "beta2": "β₂", "beta3": "β₃", "sigma_psi": "σ_ψ"}


# More than ten parameters, since each is an independent option of the measurement; all have defaults.
@measurement("by_token")
@one_by_one()
def path_bound(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    constants: Constants | Mapping[str, float] = "paper",
    attention: AttentionKind = "model",
    query: int = -1,
    from_layer: int = 0,
    to_layer: Target | Sequence[Target] = "y",
    freeze: Freezable | Collection[Freezable] = (),
    edges: Edges = "analytic",
    n_composed: int = 1,
    spans: Pieces | Mapping[str, Sequence[int]] | None = None,
    vjp_batch_size: int | None = None,
    seed: int | None = None,
) -> xr.DataArray:
    """An upper bound on how much each token i influences position n: the weighted path sum of Theorem 5.1.

    Unless ``constants="measured"``, it is the printed formula ``C · [ Ā⁽ᴸ⁻¹⁾ ⋯ Ā⁽⁰⁾ ]_{n,i}``, where
    ``ᾱ_ji = mean_h α^h_ji / β₁ + δ_ji`` and ``C = (1/β₃) (σ_ψ/β₂ + 1)^L``. The factor 1/β₃ applies only if the target
    is y. The printed formula omits the value and output weights, the sum over heads and the derivative of the softmax.
    For a real model it is therefore a **shape to compare, not a bound**.

    With ``constants="measured"`` it is ``[ E⁽ᴸ⁻¹⁾ ⋯ E⁽⁰⁾ ]_{n,i}``, where every edge ``e_ji ≥ ‖∂v'_j/∂v_i‖₂`` is
    computed from the model at this input, and the last block includes the final norm. This is a certified upper bound
    on the derivative of the model with its stored weights in exact arithmetic; all steps run in float64. It is at
    least `jacobian_norms` with the same `freeze`, apart from the rounding of a model that computes in float32. On
    every call, random probes compare each block with autograd, and whatever the derived edges do not cover is added.
    Probes and Lanczos each fail with half of one in a million at most, over all edges of the call.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), several prompts as texts or ids of shape
            (prompt, position), or a `capture` of them. Prompts of unequal lengths are measured one by one.
        constants: the constants of the bound: ``"paper"`` (the default) for the printed formula with all β and σ_ψ 1;
            a dict with some of ``"beta1"`` (β₁, the effect of the norm before attention), ``"beta2"`` (β₂, that of the
            norm before the MLP), ``"beta3"`` (β₃, that of the final norm) and ``"sigma_psi"`` (σ_ψ, the Lipschitz
            constant of the MLPs, which may be 0) for other values; or ``"measured"`` for certified constants of this
            model at this input.
        attention: attention weights of the printed formula: ``"model"`` (the default), those of the model;
            ``"uniform"``, the null, in which each token attends evenly to all tokens that its block lets it see;
            ``"topological"``, weight 1 for each visible token, which with σ_ψ = 0 counts the paths from i to n
            (attending to itself and staying in the residual stream are two different edges).
        query: query position n, an index into the tokens; negative values count from the end. The last token by
            default.
        from_layer: layer ℓ whose residual stream v⁽ℓ⁾ is the start of the paths; 0, the embeddings, by default.
        to_layer: layer at which the paths end: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output of the
            final norm. A list of them gives a leading dimension `to_layer`, whose labels are text: ``"3"``, ``"y"``.
        freeze: parts of the model held constant, one or several: ``"attention"``, the attention patterns; ``"norms"``,
            the denominators of all norms; ``"gates"``, the nonlinearities of the MLPs. Nothing by default. Only with
            measured constants.
        edges: method for the measured edges, from loosest to tightest: ``"local"`` uses norms of the maps of single
            tokens and memory linear in the prompt length, for long prompts; ``"analytic"`` (the default) uses norms of
            value and key terms; ``"attention"`` uses the exact norm of the attention's derivative; ``"exact"`` uses the
            norm of each block's Jacobian, by autograd for blocks of an unknown form.
        n_composed: number of consecutive blocks whose Jacobians are multiplied before the norm is taken, counted from
            the top; 1 by default. Only with exact edges; all L blocks give the norm of the Jacobian itself.
        spans: as in `jacobian_norms`. The bound of a span is the root of the sum of squares of its tokens' bounds;
            with measured constants it is a certified bound on the norm of the span's blocks side by side.
        vjp_batch_size: number of cotangents per batch, or of tokens per batch with local edges; chosen to fit into
            memory by default.
        seed: random seed of the probes and of Lanczos iteration, with measured constants only. By default it is drawn
            from the system's entropy, since no model can be built to avoid such probes; the provenance has it (`call`).

    Returns:
        DataArray (position), or (prompt, position) for several prompts: float64, dimensionless, zero for positions
        after the query. Results of prompts of unequal lengths are padded: after a prompt's own tokens, whose number is
        the coordinate `length`, values are NaN, `token` is "" and `token_id` is −1. With measured constants, the
        attribute `rounding` is the relative allowance for rounding that the values include, and
        `failure_probability` the chance that any value is too low. The provenance has the whole `certificate`: what is
        certified, how norms were computed, and how much the derived edges did not cover. With `spans`, one
        value for each, labelled as in `jacobian_norms`.

    Raises:
        InputError: an argument that has no effect with these `constants`, a query or layer that does not exist, or,
            with measured constants, quantized weights.
        RangeError: the printed formula with these constants is beyond the range of float64.
        UnsoundModelError: with measured constants, a block of an unknown form (unless ``edges="exact"``), hooks that
            let later tokens influence earlier ones, attention logits so large or terms that cancel so far that float64
            leaves no correct digit; with local edges also a model that has hooks, or cannot run without materialised
            attention patterns.
        CapacityError: the matrices do not fit into memory; the message states their size.

    Source: Barbero et al. 2024, Theorem 5.1 (B.5), with ᾱ as in the proof; measured constants: docs/certificates.md.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompt = "How many ones are in the following sequence? 110 ="
    >>> bound = sl.path_bound(model, prompt)
    >>> round(float(bound.sum())), 2**6 * 2**6   # row-stochastic attention: every block doubles twice
    (4096, 4096)
    >>> certified = sl.path_bound(model, prompt, constants="measured")
    >>> bool((certified >= sl.jacobian_norms(model, prompt)).all())
    True
    """
    betas = _constants(constants)
    positive(n_composed, "n_composed", "a number of blocks")
    if vjp_batch_size is not None:
        positive(vjp_batch_size, "vjp_batch_size", "a batch size")
    parts = frozen_parts(freeze)
    unused = {"freeze": bool(parts), "edges": edges != "analytic", "n_composed": n_composed != 1}
    unused |= {"seed": seed is not None}
    if constants == "measured":
        unused = {"attention": attention != "model"}
    for name, given in unused.items():
        if given:
            raise InputError(f"{name}= has no effect with constants={constants!r}.", f"Leave {name}= out.")
    if n_composed != 1 and edges != "exact":
        raise InputError(
            f"n_composed={n_composed} is possible only with exact edges.", "Use edges='exact', or leave it out."
        )
    kind = constants if isinstance(constants, str) else "paper"
    arguments: dict[str, Any] = {"constants": kind, "query": query, "from_layer": from_layer, "to_layer": to_layer}
    arguments |= {"attention": attention} | betas if constants != "measured" else {}
    arguments |= recorded(spans)
    drawn = seed_of(seed)
    if constants == "measured":
        arguments |= {"freeze": parts, "edges": edges, "n_composed": n_composed, "seed": drawn}
    session = Session.start(model, prompt, "path_bound", **arguments)
    layers, groups = session.spans(from_layer, to_layer), Spans.of(session, spans)
    if constants == "measured":
        n = session.query(query)
        rows, certificate = certified_bounds(
            session, layers, from_layer, n, parts, edges, n_composed, vjp_batch_size, drawn
        )
        composed = f" of {n_composed} composed blocks" if n_composed != 1 else ""
        long_name = f"certified path bound, {edges} edges{composed}"
        long_name += and_frozen(parts)
        stated = {name: certificate[name] for name in ("rounding", "failure_probability")}
        labelled: dict[Target, xr.DataArray] = {
            to: _label(session, groups, row, long_name, certificate=certificate).assign_attrs(stated)
            for to, row in rows.items()
        }
        return session.by_layer(to_layer, labelled)
    return session.by_layer(to_layer, _as_printed(session, layers, attention, query, from_layer, betas, groups))


def _constants(given: str | Mapping[str, float]) -> dict[str, float]:
    """The constants of the printed formula. Raises for an unknown name or an impossible value."""
    betas: dict[str, float] = {name: 1.0 for name in LETTERS}
    if isinstance(given, str):
        return betas
    for name, value in given.items():
        if name not in betas:
            raise InputError(f"constants= has the unknown name {name!r}.", f"Use some of {', '.join(LETTERS)}.")
        if not (np.isfinite(value) and (value > 0 or (name == "sigma_psi" and value == 0))):
            raise InputError(
                f"constants= has {name}={value!r}, which is not a positive finite number.",
                "Give a positive number; sigma_psi may also be 0.",
            )
    return betas | dict(given)


def _as_printed(
    session: Session, layers: Mapping[Target, int], attention: AttentionKind, query: int, from_layer: int,
    betas: Mapping[str, float], groups: Spans | None,
) -> dict[Target, xr.DataArray]:  # fmt: skip
    """The printed formula of Theorem 5.1 for each target."""
    patterns = patterns_of(session, attention, range(from_layer, max(layers.values())))
    gain = betas["sigma_psi"] / betas["beta2"] + 1
    long_name = {
        "model": "path bound of Theorem 5.1",
        "uniform": "path bound under uniform attention",
        "topological": "path bound with all attention weights 1",
    }[attention]
    other = [f"{LETTERS[name]} = {value:g}" for name, value in betas.items() if value != 1]
    long_name = ", ".join([long_name, *other])
    found: dict[Target, xr.DataArray] = {}
    for to, top in layers.items():
        stack = [patterns[b] for b in reversed(range(from_layer, top))]
        start = one_hot(session, query)
        rows = [start, *sweep(start, stack, attention_scale=1 / betas["beta1"], gain=gain)]
        row = rows[-1].cpu()
        row = row / betas["beta3"] if to == "y" else row
        found[to] = _label(session, groups, row, long_name)
        if not np.isfinite(found[to].values).all():
            require_range([*rows, row, torch.as_tensor(found[to].values)], betas, attention)
    return found


def require_range(rows: Iterable[Tensor], betas: Mapping[str, float], attention: AttentionKind) -> None:
    """Raise an error if a row overflowed. NaN without infinity before it is the model's own."""
    first = next(row for row in rows if not bool(row.isfinite().all()))
    if bool(first.isinf().any()):
        given = ", ".join(f"{name}={value:g}" for name, value in betas.items())
        raise RangeError(
            f"The bound is beyond the range of float64, {np.finfo(float).max:.2g}, with attention={attention!r} and "
            f"the constants {given}.",
            "Give constants= with a larger beta1, beta2 or beta3, or a smaller sigma_psi.",
        )


def _label(
    session: Session, groups: Spans | None, row: Float[Tensor, "prompt position"], long_name: str, **extra: Any
) -> xr.DataArray:
    """A bound for each token, or for each span: the root of the sum of squares of its tokens' bounds."""
    if groups is None:
        return session.label(row, "path_bound", long_name, "1", **extra)
    long_name += ", root of the sum of squares over the span"
    return groups.label(session, groups.root_sum_squares(row), "path_bound", long_name, "1", **extra)


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
    over positions for each layer ℓ = 0…L. At layer L all of it is at the query. At layer 0 it is the path bound with
    all constants 1, divided by 4^L.

    Args:
        model, query: as in `path_bound`.
        prompt: the prompt as text or token ids of shape (position), several of equal length, or a `capture` of them.
        attention: attention weights to compose: ``"model"`` (the default), those of the model, or ``"uniform"``, in
            which each token attends evenly to all tokens that its block lets it see.

    Returns:
        DataArray (layer, position), or (layer, prompt, position) for several prompts: float64, dimensionless; every
        row sums to 1.

    Raises:
        InputError: a query outside the prompt, or prompts of unequal lengths.

    Source: the path sum of Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> sl.paths.composition(model, "Can you copy the following number? 11 =").sum("position").round(6).values
    array([1., 1., 1., 1., 1., 1., 1.])
    """
    session = Session.start(model, prompt, "composition", attention=attention, query=query)
    top = n_blocks(session.model)
    patterns = patterns_of(session, attention, range(top))
    row = one_hot(session, query)
    rows = [row, *sweep(row, (patterns[b] for b in reversed(range(top))), gain=0.5)]
    stacked = torch.stack([each.to(rows[-1].device) for each in rows[::-1]]).cpu().numpy()
    dims, coords = session.coords()
    shares = stacked[:, 0] if len(session.ids) == 1 else stacked
    text = f"share of attention paths into the query{of_attention(attention)}"
    coords["layer"] = np.arange(top + 1)
    return session.array("composition", coords, (("layer", *dims), shares, text, "1"))
