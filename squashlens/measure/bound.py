"""The path bound of Theorem 5.1 on a real model's attention, its null, and how it is composed by layer."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import xarray as xr

from squashlens._typing import AttentionKind, Bos, Bridge, Constants, Target, one_of
from squashlens.errors import InputError, NotBuiltError
from squashlens.measure._attention import one_hot, patterns_of
from squashlens.measure._session import Session
from squashlens.model.anatomy import n_blocks
from squashlens.model.capture import Capture
from squashlens.model.tokens import Prompts
from squashlens.results import attributes
from squashlens.theory.paths import sweep


def path_bound(
    model: Bridge,
    prompts: Prompts,
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
    capture: Capture | None = None,
    bos: Bos = "family",
) -> xr.DataArray:
    """How far token i can reach position n: the weighted paths of Theorem 5.1, for every i.

    ``C · [ (Ā⁽ᴸ⁻¹⁾) ⋯ (Ā⁽⁰⁾) ]_{n,i}`` with ``ᾱ_ji = mean_h α^h_ji / β₁ + δ_ji`` and
    ``C = (1/β₃) (σ_ψ/β₂ + 1)^L``; the factor 1/β₃ only where the target is y. Dimensionless.

    With ``constants="paper"`` the β and σ_ψ are the arguments, 1 unless given: the printed form has no value
    and output weights, no sum over heads and no softmax derivative, so this is a **shape to compare, not a
    bound** for a real model. ``attention="uniform"`` is the null: the same product with every token
    attending evenly to what its block lets it see (native windows respected). ``"topological"`` sets every
    visible α to 1, so that with the constants 1 and σ_ψ = 0 the result is the *number* of paths from i to n
    (attending to oneself and staying in the residual stream are two edges).

    Args:
        prompts: text, texts of equal length, or token ids.
        query: the position n that is reached; counted from the end if negative.
        source: layer ℓ whose residual stream v⁽ℓ⁾ the paths start from.
        target: ``"y"``, or layer ℓ for v⁽ℓ⁾; a list gives a leading `target` dimension.
        capture: patterns of an earlier `capture` of the same model, tokens and hooks, to save the forward pass.

    Returns:
        DataArray (position), or (prompt, position) for several prompts; 0 behind the query. float64.

    Source: Barbero et al. 2024, Theorem 5.1 / B.5 (ᾱ as the proof has it).

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> bound = sl.path_bound(model, "How many ones are in the following sequence? 110 =")
    >>> round(float(bound.sum())), 2**6 * 2**6   # row-stochastic attention: every block doubles twice
    (4096, 4096)
    """
    one_of(constants, Constants, "constants")
    one_of(attention, AttentionKind, "attention")
    if constants == "measured":
        raise NotBuiltError("constants='measured' is not built yet.", "Use constants='paper'.")
    betas = {"beta1": beta1, "beta2": beta2, "beta3": beta3, "sigma_psi": sigma_psi}
    for name, value in betas.items():
        if not (np.isfinite(value) and (value > 0 or (name == "sigma_psi" and value == 0))):
            raise InputError(f"{name}={value!r} is not positive.", "Norm effects and Lipschitz constants are.")
    arguments = {"constants": constants, "attention": attention, "query": query, "source": source}
    session = Session.start(model, prompts, bos, "path_bound", target=target, **arguments, **betas)
    spans = session.spans(source, target)
    needed = range(source, max(top for top in spans.values()))
    patterns = patterns_of(session, attention, needed, capture)
    gain = sigma_psi / beta2 + 1
    long_name = {
        "model": "path bound of Theorem 5.1",
        "uniform": "path bound under uniform attention",
        "topological": "path bound with all attention weights 1",
    }[attention]

    def one(to: Target, top: int) -> xr.DataArray:
        stack = [patterns[b] for b in reversed(range(source, top))]
        start = one_hot(session, query)
        *_, row = start, *sweep(start, stack, attention_scale=1 / beta1, gain=gain)
        return session.label(row / beta3 if to == "y" else row, "path_bound", long_name, "1")

    return session.by_target(target, {to: one(to, top) for to, top in spans.items()})


def composition(
    model: Bridge,
    prompts: Prompts,
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
