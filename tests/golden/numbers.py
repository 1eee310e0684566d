"""Results as named arrays, how far each entry may move, and the files that keep both.

Sums in another order, as on another processor, move float32 results by about 10⁻⁶ of the largest numbers that are
summed. How far that moves a result depends on the result, so it is measured: when the record is made, every call is
also made on two copies of the model whose weights are moved by a random 10⁻⁵ of their size, some 170 float32 roundings.

- **Numbers** may move by 10⁻⁵ of the largest entry (of the same layer, where there are layers), and by twice as much
  as on those copies, which is more for most: half of all arrays may move by 1 to 8·10⁻⁵ of their largest entry.
- **Distances of two representations** are differences of numbers of nearly the same size, and both move with the
  weights: the copies do not show how rounding moves them. They may move by 5·10⁻⁶ of the *vectors'* size in that norm.
- **Units in the last place** may move by 1000 of them: the coordinate that they are counted at may be far smaller than
  the vector's largest.
- **Quotients by a distance** (`share`, `retained`) may move by 0.2 % of themselves, and by at least 0.002.
- **Probes at layer 1** are left out: the last token's stream has passed one block there and hardly differs between
  prompts, so that a fit (its R² is −10) makes rounding visible. The other layers are compared.
- **Noise floors** are rounding noise themselves: only their order of magnitude is compared (a factor of 30).
- **Discrete entries** (ranks, tokens, flags, texts, whether a number is NaN) must be equal where both copies agree with
  the model, and are left out where one does not: there the margin is too small to say.

What would have to be allowed to move by more than a fifth of the largest entry is left out too. Recording says what is
left out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import squashlens as sl

FOLDER = Path(__file__).parent
MOVED = 1e-5  # of their size, the weights of the copies
COPIES = 2
NUMBER = 1e-5  # of the largest entry, that numbers may move by
DIFFERENCE = 5e-6  # of the vectors' size, that distances may move by
ULPS = 1000.0  # units in the last place
QUOTIENT = 2e-3  # of themselves
FACTOR = 30.0  # of noise floors
MOST = 0.2  # of the largest entry; what may move by more is left out
QUOTIENTS = (("collapse_mechanism", "share"), ("separator_ablation", "retained"))
PROBED = 7  # layers of the bundled model, 0 to 6
KEPT = 160  # entries of an array that are kept one by one; of all others their sum and norm
DISTANCES = (
    "distance",
    "contrast",
    "unrelated",
    "head_",
    "naive",
    "separation",
    "random",
    "advantage",
    "observed",
)
REFUSED = "refused"


@dataclass(frozen=True)
class Named:
    """One array of a result: its dimensions, and the size of the vectors that it is the distance of."""

    values: np.ndarray
    dims: tuple[str, ...] = ()
    size: np.ndarray | float = 0.0

    @property
    def discrete(self) -> bool:
        return self.values.dtype.kind != "f"


def arrays(result: Any) -> dict[str, Named]:
    """Every array of a result by name: variables, and coordinates that are no mere counters."""
    if isinstance(result, str):
        return {REFUSED: Named(np.array(result, dtype=object))}
    if isinstance(result, np.ndarray):
        return {"value": Named(result)}
    if isinstance(result, xr.DataArray):
        result = result.rename("value").to_dataset()
    return {
        str(name): Named(_plain(one.values), tuple(map(str, one.dims)))
        for name, one in result.variables.items()
        if not str(name).startswith("provenance_")
    }


def _plain(values: np.ndarray) -> np.ndarray:
    """Numbers as float64, whole numbers as they are, everything else as text."""
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    return values if values.dtype.kind in "iub" else values.astype(str).astype(object)


def sized(
    name: str, one: Named, result: Any, streams: torch.Tensor
) -> float | np.ndarray:
    """Of a distance the size of the vectors by layer (all layers', if it has none), in its norm and scale."""
    if not name.startswith(DISTANCES) or isinstance(result, str | np.ndarray):
        return 0.0
    call = sl.results.provenance(result).get("call", {})
    call = call[0] if isinstance(call, list) else call
    norm = call.get("norm", "linf")
    norm = norm[0] if isinstance(norm, list) else norm
    scale = call.get("scale", "absolute")
    order = {"linf": float("inf"), "l1": 1, "l2": 2}.get(
        "l1" if name == "observed" else norm, 2
    )
    lengths = torch.linalg.vector_norm(
        streams, ord=order, dim=-1
    )  # (layer and y, position)
    if scale != "absolute":
        lengths = lengths / streams.square().mean(dim=-1).sqrt()
    by_layer = lengths.amax(dim=1).numpy()
    if name.endswith("_y"):
        return float(by_layer[-1])
    if (
        "layer" not in one.dims
        or one.values.shape[one.dims.index("layer")] != len(by_layer) - 1
    ):
        return float(by_layer.max())
    shape = [1] * one.values.ndim
    shape[one.dims.index("layer")] = -1
    return by_layer[:-1].reshape(shape)


def allowed(name: str, one: Named, copies: list[np.ndarray]) -> np.ndarray:
    """How far each entry may move: 0 for not at all, infinity where it is left out, −1 for a noise floor."""
    values = one.values
    if one.discrete:
        same = [copy == values for copy in copies]
        return np.where(np.logical_and.reduce(same), 0.0, np.inf)
    sure = np.logical_and.reduce(
        [np.isfinite(copy) == np.isfinite(values) for copy in copies]
    )
    if name.startswith("noise_floor"):
        return np.where(sure, -1.0, np.inf)
    moved = np.max([_distance(copy, values) for copy in copies], axis=0)
    along = tuple(k for k, dim in enumerate(one.dims) if dim != "layer")
    sizes = np.abs(np.nan_to_num(values, posinf=0, neginf=0))
    largest = np.max(sizes, axis=along, keepdims=True, initial=0.0)
    most = np.max(moved, axis=along, keepdims=True, initial=0.0)
    free = np.maximum(NUMBER * largest, 2 * most)
    free = np.maximum(free, DIFFERENCE * one.size)
    out = (
        (free > MOST * largest)
        & (largest > 0)
        & (free > DIFFERENCE * np.asarray(one.size))
    )
    return np.where(sure & ~out, np.broadcast_to(free, values.shape), np.inf)


def allowed_totals(
    one: Named, copies: list[np.ndarray], free: np.ndarray
) -> list[float]:
    """The same of `totals`, by what they do on the copies; left out where an entry is not sure to be there."""
    found = totals(one.values)
    if not found:
        return []
    if one.discrete or not np.isfinite(free).all() or (free < 0).any():
        return [0.0 if one.discrete and not free.any() else np.inf] * len(found)
    moved = np.max(
        [np.abs(np.subtract(totals(copy), found)) for copy in copies], axis=0
    )
    floor = max(
        NUMBER * found[1], DIFFERENCE * float(np.max(one.size)) * one.values.size**0.5
    )
    return [float(max(2 * each, floor)) for each in moved]


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.abs(a - b), nan=0.0, posinf=0.0)


def sample(values: np.ndarray) -> np.ndarray:
    """The entries that are kept: all of a small array, else some of them, evenly spread."""
    flat = values.reshape(-1)
    if len(flat) <= KEPT:
        return flat
    places = np.linspace(0, len(flat) - 1, KEPT).astype(int)
    return flat[places]


def totals(values: np.ndarray) -> list[float]:
    """Sum and norm of the finite entries, where not every entry is kept."""
    if values.size <= KEPT or values.dtype.kind not in "fiub":
        return []
    finite = np.nan_to_num(values.astype(np.float64), posinf=0, neginf=0)
    return [float(finite.sum()), float(np.linalg.norm(finite))]


def write(
    model: str, record: Mapping[str, tuple[Named, np.ndarray, list[float]]]
) -> Path:
    """One file a model: numbers and what they may move by in a row, and an index in JSON."""
    index, values, moves = {}, [], []
    for name, (one, free, of_totals) in record.items():
        kept = sample(one.values)
        may = sample(free)
        entry: dict[str, Any] = {"shape": list(one.values.shape)}
        if one.values.dtype.kind == "O":
            entry["text"] = [
                str(t) if m == 0 else None for t, m in zip(kept, may, strict=True)
            ]
        else:
            sums = totals(one.values)
            values += [float(v) for v in kept] + sums
            moves += [float(m) for m in may] + of_totals
            entry["count"] = len(kept) + len(sums)
        index[name] = entry
    text = np.frombuffer(json.dumps(index, ensure_ascii=False).encode(), dtype=np.uint8)
    path = FOLDER / f"{model}.npz"
    np.savez_compressed(
        path, index=text, values=_short(values), moves=np.array(moves, dtype=np.float32)
    )
    return path


def _short(values: list[float]) -> np.ndarray:
    """float32 keeps seven digits, which is more than any entry is compared to; what is beyond its range is refused."""
    found = np.array(values, dtype=np.float32)
    if (np.isfinite(values) != np.isfinite(found)).any():
        raise OverflowError("A recorded number is beyond float32.")
    return found


def read(model: str) -> dict[str, dict[str, Any]]:
    """A model's record: of each array its shape, and its texts, or its numbers and how far they may move."""
    with np.load(FOLDER / f"{model}.npz") as file:
        index = json.loads(file["index"].tobytes())
        values = file["values"]
        moves = file["moves"]
    start = 0
    for entry in index.values():
        if "count" in entry:
            stop = start + entry["count"]
            entry["values"] = values[start:stop]
            entry["moves"] = moves[start:stop]
            start = stop
    return index


def allowances(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    """How far each kept number may move: as recorded, and what is known of arrays of that name."""
    measurement, _, variable = name.split("/")
    may = entry["moves"].astype(np.float64)
    values = entry["values"].astype(np.float64)
    shape = entry["shape"]
    entries = min(int(np.prod(shape)), KEPT)  # behind them sum and norm
    if measurement == "represented" and len(shape) == 2 and shape[0] == PROBED:
        may[shape[1] : 2 * shape[1]] = np.inf  # layer 1
    if variable.startswith("ulps"):
        may = np.maximum(may, ULPS)
        may[entries:] = np.inf
    for where, quotient in QUOTIENTS:
        if measurement == where and variable.startswith(quotient):
            least = QUOTIENT * np.maximum(np.abs(np.nan_to_num(values)), 1)
            may = np.maximum(may, least)
            may[entries:] = np.inf
    return may


def differences(name: str, entry: Mapping[str, Any], values: np.ndarray) -> str:
    """What is wrong with an array, in a few words; empty if nothing is."""
    if list(values.shape) != entry["shape"]:
        return f"has shape {list(values.shape)}, recorded {entry['shape']}"
    kept = sample(values)
    if "text" in entry:
        wrong = [
            f"{a!r} ≠ {b!r}"
            for a, b in zip(kept, entry["text"], strict=True)
            if b is not None and str(a) != b
        ]
        return ", ".join(wrong[:3])
    found = np.array([*map(float, kept), *totals(values)])
    old = entry["values"].astype(np.float64)
    may = allowances(name, entry)
    compared = np.isfinite(may)
    same = (np.isnan(found) & np.isnan(old)) | (found == old)
    with np.errstate(invalid="ignore", divide="ignore"):
        rounded = np.abs(old) * 1e-7  # what float32 leaves of the record
        close = np.abs(found - old) <= may + rounded
        ratio = np.abs(np.log(np.abs(found) / np.abs(old)))
    noise = may == -1
    right = same | np.where(noise, ratio <= np.log(FACTOR), close)
    wrong = np.flatnonzero(compared & ~right)
    if not len(wrong):
        return ""
    lines = [f"{found[k]:.8g} ≠ {old[k]:.8g} ± {may[k]:.2g}" for k in wrong[:3]]
    return f"{len(wrong)} of {int(compared.sum())}: {', '.join(lines)}"
