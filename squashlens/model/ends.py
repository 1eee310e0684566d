"""What stands at the last token of many prompts: passes over prompts of one length side by side, never padded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bridge
from squashlens.model.anatomy import device_of
from squashlens.model.branches import Ids
from squashlens.model.budget import pass_bytes
from squashlens.model.forward import forward
from squashlens.model.passes import PASS_MEMORY


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
    alike: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        alike.setdefault(len(prompt), []).append(place)
    found: dict[str, Tensor] = {}
    following = torch.zeros(len(prompts), dtype=torch.long)
    device = device_of(model)

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
        tqdm(total=len(prompts), desc=label, unit="prompt", delay=1, disable=not progress) as bar,
    ):
        for n, places in alike.items():
            size = chunk or max(1, int(PASS_MEMORY / pass_bytes(model, 1, n)))
            for start in range(0, len(places), size):
                part = places[start : start + size]
                ids = torch.tensor([prompts[place] for place in part], device=device)
                logits = forward(model, ids, [(site, keep(site, part)) for site in sites])
                following[part] = logits.argmax(dim=-1).cpu()
                bar.update(len(part))
    return Ends(found, following)
