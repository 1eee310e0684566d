"""What stands at the last token of many prompts: passes over prompts of one length side by side, never padded."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, positive
from squashlens.bars import bar
from squashlens.model.anatomy import device_of
from squashlens.model.branches import Ids
from squashlens.model.budget import pass_bytes
from squashlens.model.forward import forward
from squashlens.model.passes import PASS_MEMORY

Kind = TypeVar("Kind", bound=Hashable)


def side_by_side(kinds: Iterable[Kind], size: Callable[[Kind], int]) -> Iterator[tuple[Kind, list[int]]]:
    """Places of what is of one kind, in batches of `size(kind)` at most, kinds in order of first appearance.

    >>> [(n, places) for n, places in side_by_side([5, 7, 5, 5], lambda n: 2)]
    [(5, [0, 2]), (5, [3]), (7, [1])]
    """
    alike: dict[Kind, list[int]] = {}
    for place, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(place)
    for kind, places in alike.items():
        step = size(kind)
        yield from ((kind, places[start : start + step]) for start in range(0, len(places), step))


@dataclass(frozen=True)
class Ends:
    """Activations at each prompt's last token by site, and the token most likely to come next, on the CPU."""

    values: dict[str, Float[Tensor, "branch ..."]]
    next: Int[Tensor, " branch"]


def ends(
    model: Bridge,
    prompts: Sequence[Ids],
    sites: Sequence[str] = (),
    *,
    chunk: int | None = None,
    progress: bool = True,
    label: str = "prompts",
) -> Ends:
    """Run every prompt whole, under whatever hooks stand, and keep what its last token shows at `sites`.

    `chunk` prompts go side by side, as many as fit in about a gigabyte if not given.
    """
    if chunk is not None:
        positive(chunk, "chunk", "a number of prompts")
    found: dict[str, Tensor] = {}
    following = torch.zeros(len(prompts), dtype=torch.long)
    device = device_of(model)

    def size(n: int) -> int:
        return chunk or max(1, int(PASS_MEMORY / pass_bytes(model, 1, n)))

    def keep(site: str, part: list[int]) -> Callable[[Tensor], None]:
        def look(tensor: Tensor) -> None:
            rows = tensor[:, -1].detach().cpu()
            if site not in found:
                found[site] = rows.new_zeros(len(prompts), *rows.shape[1:])
            found[site][part] = rows

        return look

    with (
        torch.inference_mode(False),
        torch.no_grad(),
        bar(total=len(prompts), desc=label, unit="prompt", progress=progress) as shown,
    ):
        for _, part in side_by_side(map(len, prompts), size):
            ids = torch.tensor([prompts[place] for place in part], device=device)
            logits = forward(model, ids, [(site, keep(site, part)) for site in sites])
            following[part] = logits.argmax(dim=-1).cpu()
            shown.update(len(part))
    return Ends(found, following)
