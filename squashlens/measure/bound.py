"""The path bound of Theorem 5.1 on a real model's attention, its null, and how it is composed by layer."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr

from squashlens._typing import AttentionKind, Bos, Bridge, Constants, Edges, Freezable, Target, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._attention import one_hot, patterns_of
from squashlens.measure._session import Session
from squashlens.measure._unequal import one_by_one
from squashlens.measure.certified import certified_bounds
from squashlens.model.anatomy import n_blocks
from squashlens.model.capture import Given
from squashlens.model.freeze import freezing
from squashlens.model.registry import measured
from squashlens.results import attributes
from squashlens.theory.paths import sweep


@measured
@one_by_one()
def path_bound(
    model: Bridge,
    prompts: Given,
    *,
    constants: Constants = "paper",
    attention: AttentionKind = "model",
    query: int = -1,
    source: int = 0,
    target: Target | Sequence[Target] = "y",
    beta1: float = 1.0,
    beta2: float = 1.0,
    beta3: float = 1.0,
    sigma_psi: float = 1.0,
    freeze: Freezable | Collection[Freezable] = (),
    edges: Edges = "analytic",
    group: int = 1,
    chunk: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.DataArray:
    """How far token i can reach position n: the weighted paths of Theorem 5.1, for every i. Dimensionless.

    ``constants="paper"``: ``C · [ (Ā⁽ᴸ⁻¹⁾) ⋯ (Ā⁽⁰⁾) ]_{n,i}`` with ``ᾱ_ji = mean_h α^h_ji / β₁ + δ_ji`` and
    ``C = (1/β₃) (σ_ψ/β₂ + 1)^L``; the factor 1/β₃ only where the target is y. The β and σ_ψ are the arguments:
    the printed form has no value and output weights, no sum over heads and no softmax derivative, so this is a
    **shape to compare, not a bound** for a real model. ``attention="uniform"`` is the null: the same product with
    every token attending evenly to what its block lets it see (native windows respected). ``"topological"`` sets
    every visible α to 1, so that with the constants 1 and σ_ψ = 0 the result is the *number* of paths from i to n
    (attending to oneself and staying in the residual stream are two edges).

    ``constants="measured"``: ``[ E⁽ᴸ⁻¹⁾ ⋯ E⁽⁰⁾ ]_{n,i}`` with every edge ``e_ji ≥ ‖∂v'_j/∂v_i‖₂`` from the model at
    this input, the final norm in the last one. It certifies the exact derivative of the model with its stored
    weights, and runs in float64 throughout: `jacobian_norms` with the same `freeze` is below it but for the rounding
    of a model that computes in float32. What a block does beyond the form that the edges are derived for is measured
    on every call, against autograd, and added.

    Args:
        prompts: text, texts, token ids, or a `capture` of them by the same model under the same hooks. Prompts of
            unequal lengths are measured one by one and padded: behind a prompt's own tokens (the coordinate `length`
            has their number) values are NaN, the token is "" and the token_id −1.
        query: the position n that is reached; counted from the end if negative.
        source: layer ℓ whose residual stream v⁽ℓ⁾ the paths start from.
        target: ``"y"``, or layer ℓ for v⁽ℓ⁾; a list gives a leading `target` dimension.
        freeze: measured constants only: what is held constant, as in `jacobian_norms`.
        edges: ``"local"`` from norms of single tokens' maps, in memory linear in n, for long prompts; ``"analytic"``
            from value and key terms; ``"attention"`` with the exact norm of what attention does; ``"exact"`` norms of
            the blocks' Jacobians, by autograd where a block is of an unknown form.
        group: with exact edges, blocks composed before the norm is taken, counted from the top; L gives the Jacobian.
        chunk: cotangents per batch, or tokens at a time with local edges; chosen to fit if not given.

    Returns:
        DataArray (position), or (prompt, position) for several prompts; 0 behind the query. float64. With measured
        constants the attributes `rounding`, the allowance that is in the numbers, and `failure_probability`, the chance
        that any of them is too low; the provenance has the whole `certificate`: what is certified, how norms were had,
        what was missing of the derived form.

    Refuses: quantised weights; a block of an unknown form, by name, unless ``edges="exact"``; hooks that let later
    tokens reach earlier ones; logits of which float64 leaves no digit; with local edges, a model that cannot be run
    without patterns or has hooks on it.

    Source: Barbero et al. 2024, Theorem 5.1 / B.5 (ᾱ as the proof has it); docs/bound.md for measured constants.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "How many ones are in the following sequence? 110 ="
    >>> bound = sl.path_bound(model, prompt)
    >>> round(float(bound.sum())), 2**6 * 2**6   # row-stochastic attention: every block doubles twice
    (4096, 4096)
    >>> certified = sl.path_bound(model, prompt, constants="measured", progress=False)
    >>> bool((certified >= sl.jacobian_norms(model, prompt, progress=False)).all())
    True
    """
    one_of(constants, Constants, "constants")
    one_of(attention, AttentionKind, "attention")
    one_of(edges, Edges, "edges")
    positive(group, "group", "a number of blocks")
    if chunk is not None:
        positive(chunk, "chunk", "a batch size")
    frozen = [hook.name.removeprefix("freeze_") for hook in freezing(freeze)]
    betas = {"beta1": beta1, "beta2": beta2, "beta3": beta3, "sigma_psi": sigma_psi}
    for name, value in betas.items():
        if not (np.isfinite(value) and (value > 0 or (name == "sigma_psi" and value == 0))):
            raise InputError(f"{name}={value!r} is not positive.", "Norm effects and Lipschitz constants are.")
    other = {"freeze": bool(frozen), "edges": edges != "analytic", "group": group != 1}
    if constants == "measured":
        other = {name: value != 1 for name, value in betas.items()}
        other |= {"attention": attention != "model"}
    for name, given in other.items():
        if given:
            raise InputError(f"{name} has no meaning with constants={constants!r}.", "Leave it out.")
    if group != 1 and edges != "exact":
        raise InputError(f"group={group} needs the exact norm of several blocks.", "Use edges='exact'.")
    arguments: dict[str, Any] = {"constants": constants, "query": query, "source": source, "target": target}
    arguments |= {"attention": attention} | betas if constants == "paper" else {}
    arguments |= {"freeze": frozen, "edges": edges, "group": group} if constants == "measured" else {}
    session = Session.start(model, prompts, bos, "path_bound", **arguments)
    spans = session.spans(source, target)
    if constants == "measured":
        n = session.query(query)
        rows, certificate = certified_bounds(session, spans, source, n, frozen, edges, group, chunk, progress)
        long_name = f"certified path bound, {edges} edges" + (f", {' and '.join(frozen)} frozen" if frozen else "")
        stated = {name: certificate[name] for name in ("rounding", "failure_probability")}
        labelled: dict[Target, xr.DataArray] = {
            to: session.label(row, "path_bound", long_name, "1", certificate=certificate).assign_attrs(stated)
            for to, row in rows.items()
        }
        return session.by_target(target, labelled)
    return session.by_target(target, _as_printed(session, spans, attention, query, source, betas))


def _as_printed(
    session: Session, spans: Mapping[Target, int], attention: AttentionKind, query: int, source: int,
    betas: Mapping[str, float],
) -> dict[Target, xr.DataArray]:  # fmt: skip
    patterns = patterns_of(session, attention, range(source, max(spans.values())))
    gain = betas["sigma_psi"] / betas["beta2"] + 1
    long_name = {
        "model": "path bound of Theorem 5.1",
        "uniform": "path bound under uniform attention",
        "topological": "path bound with all attention weights 1",
    }[attention]
    found: dict[Target, xr.DataArray] = {}
    for to, top in spans.items():
        stack = [patterns[b] for b in reversed(range(source, top))]
        start = one_hot(session, query)
        *_, row = start, *sweep(start, stack, attention_scale=1 / betas["beta1"], gain=gain)
        row = row / betas["beta3"] if to == "y" else row
        found[to] = session.label(row, "path_bound", long_name, "1")
    return found


@measured
def composition(
    model: Bridge,
    prompts: Given,
    *,
    attention: Literal["model", "uniform"] = "model",
    query: int = -1,
    bos: Bos = "family",
) -> xr.DataArray:
    """How attention composes, layer by layer: the share of paths into position n that start at v⁽ℓ⁾_i.

    Row n of ``∏ ½ (A + I)`` over the blocks above ℓ, A averaged over heads: a probability over positions for
    every layer ℓ = 0…L. Layer L is the query itself; layer 0 is the path bound with all constants 1,
    divided by 4^L.

    Returns:
        DataArray (layer, position), or (layer, prompt, position); every row sums to 1. float64.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> sl.composition(model, "Can you copy the following number? 11 =").sum("position").round(6).values
    array([1., 1., 1., 1., 1., 1., 1.])
    """
    one_of(attention, Literal["model", "uniform"], "attention")
    session = Session.start(model, prompts, bos, "composition", attention=attention, query=query)
    top = n_blocks(session.model)
    patterns = patterns_of(session, attention, range(top))
    row = one_hot(session, query)
    rows = [row, *sweep(row, (patterns[b] for b in reversed(range(top))), gain=0.5)]
    stacked = torch.stack(rows[::-1]).numpy()
    dims, coords = session.coords()
    return xr.DataArray(
        stacked[:, 0] if len(session.ids) == 1 else stacked,
        dims=("layer", *dims),
        coords={"layer": np.arange(top + 1), **coords},
        name="composition",
        attrs=attributes("share of attention paths into the query", "1", session.facts),
    )
