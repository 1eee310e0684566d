"""Attention paths: how the attention of several blocks composes, and which paths have the largest weights.

`composition` gives the share of paths by layer and token, `hops` by the number of attention steps, and
`strongest_paths` lists single paths. `depth_limit` shows where paths start if the attention of a block is repeated.
"""

from squashlens.measure.squashing.bound import composition
from squashlens.measure.squashing.walks import depth_limit, hops, strongest_paths

__all__ = ["composition", "depth_limit", "hops", "strongest_paths"]


def __dir__() -> list[str]:
    return [*__all__]
