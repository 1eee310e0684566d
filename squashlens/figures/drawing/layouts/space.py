"""Space in pixels: how panels share it, and the least that each needs."""

from collections.abc import Iterable, Sequence

LEAST, STRIP = 36.0, 24.0  # pixels of a panel, and of one that is meant to be thin: a quarter of the widest, or less


def least_sizes(weights: Sequence[float]) -> list[float]:
    """The least size of each panel, in pixels."""
    return [STRIP if weight <= max(weights) / 4 else LEAST for weight in weights]


def shared(free: float, weights: Sequence[float], least: Sequence[float]) -> list[float]:
    """`free` pixels by weight; panels that would be too small have their least size, and the others share the rest."""
    fixed: set[int] = set()
    while True:
        rest = free - sum(least[at] for at in fixed)
        total = sum(weight for at, weight in enumerate(weights) if at not in fixed)
        sizes = [least[at] if at in fixed else rest * weight / total for at, weight in enumerate(weights)]
        small = {at for at, size in enumerate(sizes) if size < least[at]} - fixed
        if not small or len(small) + len(fixed) == len(weights):
            return sizes
        fixed |= small


def within(start: float, end: float) -> list[float]:
    """A domain that rounding errors have not moved out of the page."""
    return [min(max(start, 0.0), 1.0), min(max(end, 0.0), 1.0)]


def groups_of(places: Iterable[int]) -> list[list[int]]:
    """The indices with place 0, those with place 1, and so on."""
    each = list(places)
    return [[at for at, place in enumerate(each) if place == wanted] for wanted in range(1 + max(each))]
