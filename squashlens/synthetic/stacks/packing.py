"""Pack a growing sequence and every repeated last token into one forward pass.

If tokens do not attend to later tokens, the first n tokens of v* equal those of v at every layer. So one pass over the
longest sequence, the trunk, gives every v. Each v* adds one token, a branch, which attends to the first n tokens of the
trunk and to itself. If tokens attend to later ones, v and v* need separate passes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from squashlens.synthetic.stacks.stack import Stack


@dataclass(frozen=True)
class Pack:
    """The tokens of one pass in the order of their positions, with their content, position and visible keys."""

    stack: Stack
    content: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    branch: Bool[Tensor, " token"]
    open: bool = False

    def __len__(self) -> int:
        return len(self.content)

    def reach(self, rows: Int[Tensor, " row"]) -> int:
        """The number of first tokens that include everything these rows attend to."""
        return len(self) if self.open else max(int(rows.max()) + 1, min(self.stack.prefix, len(self)))

    def distance(self, rows: Int[Tensor, " row"], reach: int) -> Int[Tensor, "row key"]:
        """The position of the query minus that of the key."""
        return self.position[rows, None] - self.position[:reach]

    def visible(self, rows: Int[Tensor, " row"], reach: int) -> Bool[Tensor, "row key"]:
        """A mask of the first `reach` tokens that each row attends to; a branch attends to the trunk and to itself."""
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
    """The passes that compute v and v*, which are often the same, and the rows of their last tokens."""

    plain: Pack
    doubled: Pack
    v: Int[Tensor, " length"]
    star: Int[Tensor, " length"]

    @property
    def shared(self) -> bool:
        """Whether one pass gives both v and v*."""
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
    """A pass over one sequence in which every token attends to every other."""
    n = len(content)
    return Pack(
        stack,
        content=torch.tensor(content, device=device),
        position=torch.arange(n, device=device),
        branch=torch.zeros(n, dtype=torch.bool, device=device),
        open=True,
    )


def _shared(stack: Stack, lengths: Sequence[int], device: torch.device) -> Pair:
    """Trunk and branches in one pass, ordered by position; no token attends to a later one."""
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
