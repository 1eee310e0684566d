"""The true sensitivity: norms of ∂y_n/∂v⁽⁰⁾_i by automatic differentiation, all positions at once.

One vector–Jacobian product with the k-th unit cotangent at (n, k) gives row k of J_i for every i, so d of
them give every block. They run in batches; the Frobenius norm needs only the running sum of squares, the
spectral norm needs all rows.
"""

import warnings
from collections.abc import Collection, Sequence

import torch
import xarray as xr
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bos, Bridge, Freezable, Method, Norm, Target, one_of, positive
from squashlens.errors import NotBuiltError
from squashlens.measure._session import Session
from squashlens.model.anatomy import device_of, dtype_of, residual_site, width
from squashlens.model.capture import forward
from squashlens.model.freeze import freezing
from squashlens.model.hooks import Hook, Recipe
from squashlens.model.live import applied
from squashlens.model.memory import available, human, require_room
from squashlens.model.tokens import Prompts
from squashlens.theory.norms import spectral_norms, squared_frobenius

BATCH_MEMORY = 1e9  # bytes that one batch of cotangents may take unless chunk= says otherwise


def jacobian_norms(
    model: Bridge,
    prompts: Prompts,
    *,
    norm: Norm = "spectral",
    freeze: Freezable | Collection[Freezable] = (),
    method: Method = "exact",
    query: int = -1,
    source: int = 0,
    target: Target | Sequence[Target] = "y",
    chunk: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.DataArray:
    """‖∂y_n/∂v⁽⁰⁾_i‖ for every token i, exact, from d vector–Jacobian products.

    ``"spectral"`` is the largest singular value of the d × d block J_i, ``"frobenius"`` the root of the sum of
    its squared entries. Dimensionless: change of the target per unit change of the residual stream.

    Args:
        freeze: what is held constant, one name or several: ``"attention"`` (patterns, the theorem's
            assumption), ``"norms"`` (every norm's denominator), ``"gates"`` (MLPs made linear). With all three
            the model is linear at this input, up to its biases.
        query: the position n that is differentiated; counted from the end if negative.
        source: layer ℓ whose residual stream v⁽ℓ⁾ is moved (after any hooks standing there).
        target: ``"y"``, or layer ℓ for v⁽ℓ⁾_n; a list gives a leading `target` dimension.
        chunk: cotangents per batch; chosen to fit in about a gigabyte if not given.

    Returns:
        DataArray (position), or (prompt, position); exactly 0 behind the query. float64, from VJPs in the
        model's dtype.

    Refuses: a spectral norm whose rows do not fit in memory (the message gives the size).

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "How many ones are in the following sequence? 110 ="
    >>> spectral = sl.jacobian_norms(model, prompt, progress=False)
    >>> frobenius = sl.jacobian_norms(model, prompt, norm="frobenius", progress=False)
    >>> bool((spectral <= frobenius).all())
    True
    """
    one_of(norm, Norm, "norm")
    one_of(method, Method, "method")
    if method == "sketch":
        raise NotBuiltError("method='sketch' is not built yet.", "Use method='exact'.")
    if chunk is not None:
        positive(chunk, "chunk", "a batch size")
    hooks = freezing(freeze)
    frozen = [h.name.removeprefix("freeze_") for h in hooks]
    session = Session.start(
        model, prompts, bos, "jacobian_norms",
        norm=norm, freeze=frozen, method=method, query=query, source=source, target=target,
    )  # fmt: skip
    spans = session.spans(source, target)
    if dtype_of(session.model).itemsize < 4:
        warnings.warn(
            "In half precision small Jacobian entries come out several times too large; load in float32.",
            stacklevel=2,
        )
    long_name = f"{norm} norm of the Jacobian" + (f", {' and '.join(frozen)} frozen" if frozen else "")
    found = {}
    for to in spans:
        values = _norms(session, norm, hooks, session.query(query), source, to, chunk, progress)
        found[to] = session.label(values, "jacobian_norm", long_name, "1")
    return session.by_target(target, found)


def _norms(
    session: Session, norm: Norm, hooks: list[Hook | Recipe], query: int,
    source: int, target: Target, chunk: int | None, progress: bool,
) -> Float[Tensor, "prompt position"]:  # fmt: skip
    d, (prompts, positions) = width(session.model), session.ids.shape
    device, dtype = device_of(session.model), dtype_of(session.model)
    reach = query + 1  # causality: nothing behind the query has a derivative
    rows = None
    if norm == "spectral":
        size = prompts * reach * d * d * dtype.itemsize
        remedy = "Use norm='frobenius', which streams, or a shorter prompt."
        require_room(size, device, "All rows of the Jacobian, which a spectral norm needs,", remedy)
        if progress and size > BATCH_MEMORY:
            tqdm.write(f"jacobian: {human(size)} to hold {d} rows of {reach} blocks on {device}")
        rows = torch.empty(prompts, reach, d, d, dtype=dtype, device=device)
    total = torch.zeros(prompts, positions, dtype=torch.float64, device=device)
    chunk = min(d, chunk or _chunk(session))
    output, leaf = _graph(session, hooks, query, source, target)
    steps = tqdm(range(0, d, chunk), desc="jacobian", unit="batch", delay=1, disable=not progress)
    for start in steps:
        size = min(chunk, d - start)
        cotangents = torch.zeros(size, prompts, d, dtype=dtype, device=device)
        cotangents[torch.arange(size), :, torch.arange(start, start + size)] = 1
        # Prompts do not interact, so one backward pass serves all of them.
        (gradient,) = torch.autograd.grad(output, leaf, cotangents, retain_graph=True, is_grads_batched=True)
        if rows is None:
            total += squared_frobenius(gradient)
        else:
            rows[:, :, start : start + size] = rearrange(gradient[:, :, :reach], "k prompt i d -> prompt i k d")
    if rows is None:
        return total.sqrt()
    for prompt in range(prompts):
        for position in tqdm(range(reach), desc="norms", unit="token", delay=1, disable=not progress):
            total[prompt, position] = spectral_norms(rows[prompt, position])
    return total


def _graph(
    session: Session, hooks: list[Hook | Recipe], query: int, source: int, target: Target
) -> tuple[Float[Tensor, "prompt d"], Float[Tensor, "prompt position d"]]:
    """One forward pass with a leaf in place of the source: the target at the query, and that leaf."""
    found: dict[str, Tensor] = {}

    def plant(tensor: Tensor) -> Tensor:
        found["leaf"] = tensor.detach().clone().requires_grad_()
        return found["leaf"]

    def read(tensor: Tensor) -> None:
        found["output"] = tensor[:, query]

    model = session.model
    sites = [(residual_site(source, model), plant), (residual_site(target, model), read)]
    with torch.inference_mode(False), torch.enable_grad(), applied(model, *hooks):
        forward(model, session.ids.clone(), sites)
    return found["output"], found["leaf"]


def _chunk(session: Session) -> int:
    """Cotangents that fit into a batch: each keeps about the activations of one block, several times over."""
    model, (prompts, positions) = session.model, session.ids.shape
    config = model.cfg
    wide = 8 * width(model) + 4 * int(getattr(config, "d_mlp", None) or 4 * width(model))
    each = prompts * positions * (wide + 3 * int(config.n_heads) * positions) * dtype_of(model).itemsize
    return max(1, int(min(BATCH_MEMORY, available(device_of(model)) / 4) / each))
