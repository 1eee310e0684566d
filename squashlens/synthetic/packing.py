"""Which tokens one pass holds and what they see: a growing sequence with every repeated last token beside it.

Under a mask that hides what comes later, the first n tokens of v* are those of v, at every layer. So one pass over the
longest sequence, the trunk, gives every v; each v* adds one token of its own, a branch, that sees the first n tokens of
the trunk and itself. Where tokens see later ones, v and v* are passes of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from squashlens.synthetic.stack import Stack


@dataclass(frozen=True)
class Pack:
    """The tokens of one pass, in the order of their positions: what each is, where it stands, what it may see."""

    stack: Stack
    content: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    branch: Bool[Tensor, " token"]
    open: bool = False

    def __len__(self) -> int:
        return len(self.content)

    def reach(self, rows: Int[Tensor, " row"]) -> int:
        """How many tokens from the first on hold all that these rows see."""
        return len(self) if self.open else max(int(rows.max()) + 1, min(self.stack.prefix, len(self)))

    def distance(self, rows: Int[Tensor, " row"], reach: int) -> Int[Tensor, "row key"]:
        """Position of the query minus that of the key."""
        return self.position[rows, None] - self.position[:reach]

    def visible(self, rows: Int[Tensor, " row"], reach: int) -> Bool[Tensor, "row key"]:
        """Which of the first `reach` tokens each row attends to. A branch sees the trunk before it, and itself."""
        distance = self.distance(rows, reach)
        if self.open:
            return torch.ones_like(distance, dtype=torch.bool)
        own = rows[:, None] == torch.arange(reach, device=rows.device)
        seen = distance > 0
        if self.stack.window is not None:
            seen &= (distance < self.stack.window) | (self.position[:reach] < self.stack.sinks)
        if self.stack.mask == "prefix":
            first = self.position < self.stack.prefix
            seen |= first[rows, None] & first[:reach]
        return own | (seen & ~self.branch[:reach])


@dataclass(frozen=True)
class Pair:
    """Where the last tokens of v and of v* are computed: the pass of each, often the same, and their rows in it."""

    plain: Pack
    doubled: Pack
    v: Int[Tensor, " length"]
    star: Int[Tensor, " length"]

    @property
    def shared(self) -> bool:
        """Whether one pass gives both."""
        return self.plain is self.doubled


def pairs(stack: Stack, lengths: Sequence[int], device: torch.device) -> Iterator[Pair]:
    """The passes that give v and v* at all lengths, in ascending order."""
    alone = [n for n in lengths if stack.mask == "none" or n < stack.prefix]
    for n in alone:
        plain, doubled = _whole(stack, range(n), device), _whole(stack, [*range(n), n - 1], device)
        yield Pair(plain, doubled, torch.tensor([n - 1], device=device), torch.tensor([n], device=device))
    together = [n for n in lengths if n not in set(alone)]
    if together:
        yield _shared(stack, together, device)


def _whole(stack: Stack, content: Sequence[int], device: torch.device) -> Pack:
    """One sequence in which every token sees every other."""
    n = len(content)
    return Pack(
        stack,
        content=torch.tensor(content, device=device),
        position=torch.arange(n, device=device),
        branch=torch.zeros(n, dtype=torch.bool, device=device),
        open=True,
    )


def _shared(stack: Stack, lengths: Sequence[int], device: torch.device) -> Pair:
    """Trunk and branches in one pass; ordered by position, no token sees one that comes after it."""
    trunk, n = torch.arange(lengths[-1]), torch.tensor(lengths)
    position = torch.cat((trunk, n))
    order = position.argsort(stable=True)  # at one position the trunk's token comes first
    place = order.argsort()
    pack = Pack(
        stack,
        content=torch.cat((trunk, n - 1))[order].to(device),
        position=position[order].to(device),
        branch=(order >= len(trunk)).to(device),
    )
    return Pair(pack, pack, place[n - 1].to(device), place[len(trunk) :].to(device))
