"""The true sensitivity: norms of ∂y_n/∂v⁽⁰⁾_i by automatic differentiation, all positions at once.

One vector–Jacobian product with the k-th unit cotangent at (n, k) gives row k of J_i for every i, so d of
them give every block. They run in batches; the Frobenius norm needs only the running sum of squares, the
spectral norm needs all rows.
"""

import warnings
from collections.abc import Callable, Collection, Sequence

import torch
import xarray as xr
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bos, Bridge, Freezable, Method, Norm, Target, one_of, positive
from squashlens.errors import NotBuiltError
from squashlens.measure._session import Session
from squashlens.model.anatomy import device_of, dtype_of, width
from squashlens.model.capture import SAY_ABOVE
from squashlens.model.freeze import freezing
from squashlens.model.memory import human, require_room
from squashlens.model.spans import cotangents_per_batch, differentiable, open_spans, vjps
from squashlens.model.tokens import Prompts
from squashlens.theory.norms import spectral_norms, squared_frobenius


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
    found, n = {}, session.query(query)
    d, batch = width(session.model), chunk or cotangents_per_batch(session.model, *session.ids.shape)
    if norm == "spectral":
        size = len(session.ids) * (n + 1) * d * d * dtype_of(session.model).itemsize
        remedy = "Use norm='frobenius', which streams, or a shorter prompt."
        require_room(size, device_of(session.model), "All rows of the Jacobian, which a spectral norm needs,", remedy)
        if progress and size > SAY_ABOVE:
            tqdm.write(f"jacobian: {human(size)} to hold {d} rows of {n + 1} blocks")
    for to, top in spans.items():
        span = open_spans(session.model, session.ids, hooks, [source], top)[source]
        values = norms_at(span.outputs[to], n, span.leaf, norm, batch, spectral_norms, progress)
        found[to] = session.label(values, "jacobian_norm", long_name, "1")
    return session.by_target(target, found)


def norms_at(
    output: Float[Tensor, "prompt position d"], query: int, leaf: Float[Tensor, "prompt position in"],
    norm: Norm, batch: int, spectral: Callable[[Tensor], Tensor], progress: bool,
) -> Float[Tensor, "prompt position"]:  # fmt: skip
    """Norms of the derivative of `output` at the query by each token of the leaf; 0 behind the query, by causality.

    `spectral` takes the norms of a stack of blocks; d vector–Jacobian products, `batch` at a time.
    """
    prompts, _, d = output.shape
    reach = query + 1
    total = torch.zeros(leaf.shape[:2], dtype=torch.float64, device=leaf.device)
    rows = torch.empty(prompts, reach, d, leaf.shape[-1], dtype=leaf.dtype, device=leaf.device)
    if norm == "frobenius":
        rows = rows[:, :0]
    with differentiable():
        at_query = output[:, query]
    cotangents = torch.eye(d, dtype=output.dtype, device=output.device)[:, None].expand(d, prompts, d)
    bar = tqdm(total=d, desc="jacobian", unit="VJP", delay=1, disable=not progress)
    done = 0
    # Prompts do not interact, so one backward pass serves all of them.
    for (gradient,) in vjps(at_query, [leaf], cotangents, batch):
        if norm == "frobenius":
            total += squared_frobenius(gradient)
        else:
            rows[:, :, done : done + len(gradient)] = rearrange(gradient[:, :, :reach], "k p i d -> p i k d")
        done += len(gradient)
        bar.update(len(gradient))
    bar.close()
    if norm == "frobenius":
        return total.sqrt()
    for prompt in range(prompts):
        for position in tqdm(range(reach), desc="norms", unit="token", delay=1, disable=not progress):
            total[prompt, position] = spectral(rows[prompt, position, None])[0]
    return total
