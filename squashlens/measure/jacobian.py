"""The true sensitivity: norms of ∂y_n/∂v⁽⁰⁾_i by automatic differentiation, all positions at once.

One vector–Jacobian product with the k-th unit cotangent at (n, k) gives row k of J_i for every i, so d of
them give every block. They run in batches; the Frobenius norm needs only the running sum of squares, the
spectral norm needs all rows.
"""

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import xarray as xr
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bos, Bridge, Freezable, Method, Norm, Target, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.model.anatomy import device_of, dtype_of, width
from squashlens.model.capture import SAY_ABOVE
from squashlens.model.freeze import freezing
from squashlens.model.memory import human, require_room
from squashlens.model.spans import cotangents_per_batch, differentiable, open_spans, vjps
from squashlens.model.tokens import Prompts
from squashlens.theory.norms import sketch_factors, spectral_norms, squared_frobenius

FAILURE = 1e-6  # the chance that any of an upper sketch's values is too low


def jacobian_norms(
    model: Bridge,
    prompts: Prompts,
    *,
    norm: Norm = "spectral",
    freeze: Freezable | Collection[Freezable] = (),
    method: Method = "exact",
    probes: int = 32,
    seed: int = 0,
    query: int = -1,
    source: int = 0,
    target: Target | Sequence[Target] = "y",
    chunk: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.DataArray:
    """‖∂y_n/∂v⁽⁰⁾_i‖ for every token i, exact, from d vector–Jacobian products; or a sketch of it from fewer.

    ``"spectral"`` is the largest singular value of the d × d block J_i, ``"frobenius"`` the root of the sum of
    its squared entries. Dimensionless: change of the target per unit change of the residual stream.

    ``method="sketch"`` takes `probes` products, seeded. Frobenius: ``‖GJ_i‖_F/√k`` with G Gaussian; its square is
    without bias, with a relative standard deviation of at most √(2/k). Spectral: the largest singular value of
    ``QJ_i`` with the rows of Q orthonormal, a **lower** bound. ``"sketch_upper"`` is the first of these raised so
    that it is an **upper** bound on ‖J_i‖_F, and so on ‖J_i‖₂, at every position but for one chance in a million.

    Args:
        freeze: what is held constant, one name or several: ``"attention"`` (patterns, the theorem's
            assumption), ``"norms"`` (every norm's denominator), ``"gates"`` (MLPs made linear). With all three
            the model is linear at this input, up to its biases.
        probes, seed: how many directions a sketch takes, and what draws them. From d on `"exact"` costs no more.
        query: the position n that is differentiated; counted from the end if negative.
        source: layer ℓ whose residual stream v⁽ℓ⁾ is moved (after any hooks standing there).
        target: ``"y"``, or layer ℓ for v⁽ℓ⁾_n; a list gives a leading `target` dimension.
        chunk: cotangents per batch; chosen to fit in about a gigabyte if not given.

    Returns:
        DataArray (position), or (prompt, position); exactly 0 behind the query. float64, from VJPs in the
        model's dtype. The provenance of a sketch says what kind of number it is: a lower bound, an estimate with
        the factors of its 95 % interval, or an upper bound with its failure probability.

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
    positive(probes, "probes", "a number of directions")
    if chunk is not None:
        positive(chunk, "chunk", "a batch size")
    hooks = freezing(freeze)
    frozen = [h.name.removeprefix("freeze_") for h in hooks]
    session = Session.start(
        model, prompts, bos, "jacobian_norms",
        norm=norm, freeze=frozen, method=method, query=query, source=source, target=target,
    )  # fmt: skip
    spans = session.spans(source, target)
    directions, about = _directions(session, len(spans), norm, method, probes, seed)
    if method != "exact":
        about = {"sketch": about | {"probes": probes, "seed": seed}}
    norm = "frobenius" if method == "sketch_upper" else norm
    if dtype_of(session.model).itemsize < 4:
        warnings.warn(
            "In half precision small Jacobian entries come out several times too large; load in float32.",
            stacklevel=2,
        )
    kinds = {"exact": "", "sketch": "sketched ", "sketch_upper": "upper bound on the "}
    long_name = f"{kinds[method]}{norm} norm of the Jacobian" + (f", {' and '.join(frozen)} frozen" if frozen else "")
    found, n = {}, session.query(query)
    d, batch = width(session.model), chunk or cotangents_per_batch(session.model, *session.ids.shape)
    if norm == "spectral":
        size = len(session.ids) * (n + 1) * len(directions) * d * dtype_of(session.model).itemsize
        remedy = "Use norm='frobenius', which streams, or a shorter prompt."
        require_room(size, device_of(session.model), "All rows of the Jacobian, which a spectral norm needs,", remedy)
        if progress and size > SAY_ABOVE:
            tqdm.write(f"jacobian: {human(size)} to hold {len(directions)} rows of {n + 1} blocks")
    for to, top in spans.items():
        span = open_spans(session.model, session.ids, hooks, [source], top)[source]
        values = norms_at(span.outputs[to], n, span.leaf, norm, directions, batch, spectral_norms, progress)
        labelled = session.label(values, "jacobian_norm", long_name, "1", **about)
        found[to] = labelled.assign_attrs({"failure_probability": FAILURE} if method == "sketch_upper" else {})
    return session.by_target(target, found)


def _directions(
    session: Session, targets: int, norm: Norm, method: Method, probes: int, seed: int
) -> tuple[Float[Tensor, "cotangent d"], dict[str, Any]]:
    """The cotangents to take, and what the provenance says of them."""
    d = width(session.model)
    if method == "exact":
        return torch.eye(d, dtype=torch.float64), {}
    drawn = torch.randn(d, probes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if method == "sketch" and norm == "spectral":
        return torch.linalg.qr(drawn).Q.T, {"kind": "lower bound"}
    gaussian = drawn.T / math.sqrt(probes)
    if method == "sketch":
        return gaussian, {"kind": "estimate", "interval_95": sketch_factors(probes, 0.025)}
    if dtype_of(session.model).itemsize < 4:
        raise InputError("An upper bound from half-precision products is none.", "Load in float32.")
    _, factor = sketch_factors(probes, FAILURE / (targets * session.ids.numel()))
    return factor * gaussian, {"kind": "upper bound", "failure_probability": FAILURE, "factor": factor}


def norms_at(
    output: Float[Tensor, "prompt position d"], query: int, leaf: Float[Tensor, "prompt position in"],
    norm: Norm, directions: Float[Tensor, "cotangent d"], batch: int, spectral: Callable[[Tensor], Tensor],
    progress: bool,
) -> Float[Tensor, "prompt position"]:  # fmt: skip
    """Norms of the derivative of `output` at the query by each token of the leaf; 0 behind the query, by causality.

    One vector–Jacobian product for each of `directions`, `batch` at a time; exact where those are the unit vectors.
    `spectral` takes the norms of a stack of blocks.
    """
    prompts, _, d = output.shape
    reach = query + 1
    total = torch.zeros(leaf.shape[:2], dtype=torch.float64, device=leaf.device)
    held = reach if norm == "spectral" else 0
    rows = torch.empty(prompts, held, len(directions), leaf.shape[-1], dtype=leaf.dtype, device=leaf.device)
    with differentiable():
        at_query = output[:, query]
    cotangents = directions.to(output.device, output.dtype)[:, None].expand(-1, prompts, d)
    bar = tqdm(total=len(directions), desc="jacobian", unit="VJP", delay=1, disable=not progress)
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
