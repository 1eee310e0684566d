"""Read activations at the last token of many prompts, in batches of equal length without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens.bars import bar
from squashlens.run.budget import pass_bytes
from squashlens.run.forward import next_logits
from squashlens.run.passes import PASS_MEMORY, batches
from squashlens.run.run import Run
from squashlens.sequences import Ids


@dataclass(frozen=True)
class LastTokens:
    """Activations at each prompt's last token by hook point, and the most likely next token, on the CPU."""

    values: dict[str, Float[Tensor, "branch ..."]]
    next: Int[Tensor, " branch"]


def at_last_tokens(
    run: Run,
    prompts: Sequence[Ids],
    sites: Sequence[str] = (),
    *,
    label: str = "prompts",
) -> LastTokens:
    """Run every prompt under the hooks on the model, and keep its last token's activations at `sites`."""
    values: dict[str, Tensor] = {}
    following = torch.zeros(len(prompts), dtype=torch.long)

    def size(n: int) -> int:
        return max(1, int(PASS_MEMORY / pass_bytes(run, 1, n)))

    def keep(site: str, part: list[int], tensor: Tensor) -> None:
        rows = tensor[:, -1].detach().cpu()
        if site not in values:
            values[site] = rows.new_zeros(len(prompts), *rows.shape[1:])
        values[site][part] = rows

    with bar(total=len(prompts), desc=label, unit="prompt") as progress_bar:
        for _, part in batches(map(len, prompts), size):
            ids = torch.tensor([prompts[i] for i in part], device=run.device)
            watch = [(site, partial(keep, site, part)) for site in sites]
            following[part] = next_logits(run, ids, watch).argmax(dim=-1).cpu()
            progress_bar.update(len(part))
    return LastTokens(values, following)
