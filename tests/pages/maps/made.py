"""Maps that are made up, so that a page can be looked at without measuring: any tokens, and any number of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.records.labels import dataset_of

# What a careless page would run, follow, reverse or drown in.
HOSTILE = (
    "</script><script>document.title = 'broken'</script>",
    "<img src=x onerror=\"document.title = 'broken'\">",
    "\u202ereversed",
    "😀",
    "x" * 10_000,
    "'\"&amp;",
    "<!--",
    "\u2028",
    "\x00",
    "=1+1",
    "עברית",
    "-->",
    "${x}",
    "]]>",
)


def made(
    tokens: Sequence[str],
    *,
    layers: int = 3,
    queries: Sequence[int] | None = None,
    seed: int = 0,
    size: float = 1,
) -> xr.Dataset:
    """A map's Dataset with random numbers; the Jacobian of the last query only."""
    n, rng = len(tokens), np.random.default_rng(seed)
    kept = list(range(n)) if queries is None else list(queries)
    shape = (len(kept), layers, n)
    later = np.arange(n)[None, None] > np.array(kept)[:, None, None]
    bound, null = (np.where(later, 0.0, rng.lognormal(size=shape)) for _ in range(2))
    with np.errstate(invalid="ignore", divide="ignore"):
        over = np.where(later, np.nan, bound / null)
    jacobian = np.full(shape, np.nan)
    jacobian[-1] = np.where(later[-1], 0.0, rng.lognormal(size=shape[1:]))
    dims = ("query", "layer", "position")
    variables: dict[str, Any] = {
        "path_bound": (dims, bound * size, "path bound", "1"),
        "null": (dims, null, "null", "1"),
        "bound_over_null": (dims, over, "path bound over null", "1"),
        "jacobian": (dims, jacobian, "spectral norm of the Jacobian", "1"),
        "collapse_distance": (
            ("layer",),
            rng.lognormal(size=layers),
            "L∞ distance of v and v*",
            "model units",
        ),
    }
    coords = {
        "query": kept,
        "layer": np.arange(layers),
        "position": np.arange(n),
        "token": ("position", np.array(tokens, dtype=object)),
        "token_id": ("position", np.arange(n)),
    }
    facts = {
        "model": "made </script> up",
        "call": {
            "function": "squash_map",
            "prompt": "</script>\u202e",
            "query": -1,
            "norm": "spectral",
        },
    }
    return dataset_of("squash map of a prompt", coords, variables, facts)
