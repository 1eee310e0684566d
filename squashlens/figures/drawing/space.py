"""Space in pixels: how blocks of panels, and panels in a block, share the width or the height of a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from squashlens.errors import InputError
from squashlens.figures.drawing.themes import INCH

LEAST, STRIP = 36.0, 24.0  # pixels of a panel, and of one that is meant to be thin: a quarter of the widest, or less
Spans = list[tuple[float, float]]


class NoRoomError(InputError):
    """The text of a figure leaves no room for its panels."""


@dataclass
class Track:
    """The panels of a block in one direction: weights, least sizes, the space for text around each, and all sizes."""

    place: int  # of the block on its page
    weights: Sequence[float]
    least: Sequence[float]
    before: Sequence[float]
    after: Sequence[float]
    wanted: float = 1.0


def least_sizes(weights: Sequence[float]) -> list[float]:
    """The least size of each panel, in pixels."""
    return [STRIP if weight <= max(weights) / 4 else LEAST for weight in weights]


def divided(tracks: Sequence[Track], start: float, length: float | None, side: str) -> tuple[list[Spans], float]:
    """Start and end of each panel of each block, in pixels, and the end of all, with what is after the last.

    Blocks at the same place have the same edges. Panels of a `length` share it; otherwise they have the size wanted.
    """
    groups = [[at for at, one in enumerate(tracks) if one.place == place] for place in {one.place for one in tracks}]
    gaps = [[a + b for a, b in zip(one.after[:-1], one.before[1:], strict=True)] for one in tracks]
    for group in groups:
        if len({len(gaps[at]) for at in group}) == 1:  # as many panels, which are read across: they are aligned
            widest = [max(same) for same in zip(*(gaps[at] for at in group), strict=True)]
            gaps = [widest if at in group else own for at, own in enumerate(gaps)]
    before = [max(tracks[at].before[0] for at in group) for group in groups]
    after = [max(tracks[at].after[-1] for at in group) for group in groups]
    between = [max(sum(gaps[at]) for at in group) for group in groups]
    sizes = [max(tracks[at].wanted for at in group) for group in groups]
    if length is not None:
        scale = (length - start - sum(before) - sum(after) - sum(between)) / sum(sizes)
        places = [next(n for n, group in enumerate(groups) if at in group) for at in range(len(tracks))]
        missing = max(sum(one.least) - scale * sizes[n] for one, n in zip(tracks, places, strict=True))
        if missing > 1e-6:
            needed = (length + missing * sum(sizes) / min(sizes)) / INCH
            raise NoRoomError(
                f"The text of this figure leaves no room for its panels: {side} is {length / INCH:.3g} inches.",
                f"Use {side}={needed + 0.05:.1f} or more, a smaller font_size, or fewer panels.",
            )
        sizes = [scale * one for one in sizes]
    spans: list[Spans] = [[] for _ in tracks]
    for group, first, size, inner, last in zip(groups, before, sizes, between, after, strict=True):
        start += first
        for at in group:
            edge = start
            panels = _shared(size + inner - sum(gaps[at]), tracks[at].weights, tracks[at].least)
            for panel, gap in zip(panels, [*gaps[at], 0.0], strict=True):
                spans[at].append((edge, edge + panel))
                edge += panel + gap
        start += size + inner + last
    return spans, start


def _shared(free: float, weights: Sequence[float], least: Sequence[float]) -> list[float]:
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
