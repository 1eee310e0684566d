"""The sublayers and heads of a model, and what each writes into the lead of an answer directly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import special
from torch import Tensor

from squashlens._typing import Parts
from squashlens.hooks.interventions import OUTPUTS, SUBLAYERS
from squashlens.measure.collapse.mechanism import output_weights
from squashlens.model.agreement import agree
from squashlens.model.hooking.hook import Hook
from squashlens.run.run import Run

SCALE = "ln_final.hook_scale"
MIXED = "blocks.{block}.attn.hook_out"  # attention's output before a norm of its own


@dataclass(frozen=True)
class Part:
    """A sublayer of a block, named "attention" or "mlp", or one head of its attention, named "head 0" and so on."""

    block: int
    name: str
    head: int | None = None

    @property
    def site(self) -> str:
        """The hook point of its output; heads share one."""
        return (SUBLAYERS.get(self.name) or OUTPUTS).replace("{block}", str(self.block))

    def of(self, values: Mapping[str, Tensor]) -> Float[Tensor, "*many out"]:
        """Its output among activations by hook point; of a head (…, value), of a sublayer (…, d)."""
        output = values[self.site]
        return output if self.head is None else output[..., self.head, :]

    def replaced(self, copied: int, place: Any, vector: Tensor) -> Hook:
        """The hook that puts a vector in place of the output.

        It does so in the batch's copy of the prompt with the number `copied`, at the positions `place`, an index or a
        slice.
        """
        where = (copied, place) if self.head is None else (copied, place, self.head)

        def edit(output: Tensor) -> Tensor:
            changed = output.clone()
            changed[where] = vector.to(output)
            return changed

        return Hook("sublayer_effects", self.site, edit)


Edits = Sequence[
    tuple[Part, Tensor]
]  # parts, and what takes the place of the output of each


def parts_of(run: Run, which: Parts) -> list[Part]:
    """All parts, block by block: attention, MLP, and the heads if they are asked for."""
    n_heads = int(run.model.cfg.n_heads) if which == "heads" else 0
    parts = []
    for block in range(run.n_blocks):
        parts += [Part(block, name) for name in SUBLAYERS]
        parts += [Part(block, f"head {head}", head) for head in range(n_heads)]
    return parts


def sites_of(run: Run, parts: Sequence[Part]) -> list[str]:
    """The hook points of the parts, and those that `written_directly` needs to say what they write."""
    sites = [run.site(0), run.site(run.n_blocks), run.site("y"), SCALE]
    for part in parts:
        sites.append(part.site)
        if part.head is not None:
            sites.append(MIXED.replace("{block}", str(part.block)))
    return list(dict.fromkeys(sites))


CHANCE = 0.05  # of a prompt with an output beyond the limit, if all signs are random


def written_directly(
    run: Run,
    values: Mapping[str, Tensor],
    parts: Sequence[Part],
    pairs: Int[Tensor, "prompt outcome"],
) -> Float[np.ndarray, "prompt variant"]:
    """What each part adds directly to the lead of the first token of each pair over the second.

    `values` are activations by hook point at each prompt's last token. Each output is read by the final norm, with the
    scale that this has on the whole stream, and by the output embedding. All are NaN if the outputs do not add up to
    the stream, or the final norm of the stream is not y.
    """
    last = values[run.site(run.n_blocks)]
    total = values[run.site(0)].double()  # of the embedding and all sublayers
    by_head: dict[int, Tensor] = {}  # of each block
    added = []
    for part in parts:
        if part.head is None:
            added.append(part.of(values).double())
            total = total + added[-1]
        else:  # heads are a part of attention, which is in the total
            if part.block not in by_head:
                by_head[part.block] = _by_head(run, part.block, values)
            added.append(by_head[part.block][part.head])
    scale = values[SCALE].double()
    normed = _normed(run, torch.stack(added), scale)
    written = torch.einsum("vpd,pd->pv", normed, _right_minus_wrong(run, pairs))
    bias = _detached(run.model.ln_final, "bias", 0.0)
    y = _normed(run, last.double(), scale) + bias
    adds_up = agree(total, last, run.dtype)
    is_normed = agree(y, values[run.site("y")], run.dtype)
    return np.where(adds_up and is_normed, written.numpy(), np.nan)


def chance_limit(
    run: Run,
    values: Mapping[str, Tensor],
    parts: Sequence[Part],
    pairs: Int[Tensor, "prompt outcome"],
) -> Float[np.ndarray, "prompt variant"]:
    """What each sublayer writes into a prompt's lead at most if its coordinates had random signs.

    The arguments are those of `written_directly`. ``Σ_i ± x_i w_i`` is about normal with the variance ``Σ_i x_i²
    w_i²``. All sublayers of a prompt are together within these limits with 95 %.
    """
    added = torch.stack([part.of(values).double() for part in parts])
    normed = _normed(run, added, scale=values[SCALE].double())
    deviation = (normed * _right_minus_wrong(run, pairs)).square().sum(dim=-1).sqrt()
    # Two-sided, and for as many outputs as there are parts (Bonferroni).
    quantile = special.ndtri(1 - CHANCE / 2 / len(parts))
    return (quantile * deviation).T.numpy()


def _right_minus_wrong(
    run: Run, pairs: Int[Tensor, "prompt outcome"]
) -> Float[Tensor, "prompt d"]:
    """The direction that leads from the second token of each pair to the first one in the output embedding."""
    towards = run.model.W_U[:, pairs.T.to(run.model.W_U.device)].double().cpu()
    return (towards[:, 0] - towards[:, 1]).T


def _detached(module: Any, name: str, absent: float) -> Tensor:
    """A parameter of a module, in double precision on the CPU; a constant if there is none."""
    parameter = getattr(module, name, None)
    if parameter is None:
        return torch.tensor(absent, dtype=torch.double)
    return parameter.detach().cpu().double()


def _by_head(
    run: Run, block: int, values: Mapping[str, Tensor]
) -> Float[Tensor, "head prompt d"]:
    """What each head of a block adds to the stream; NaN unless W_O and its bias give the attention's output.

    `values` are activations by hook point. A norm that follows attention multiplies each entry of a head's share as it
    multiplies that of the whole output.
    """

    def of_site(site: str) -> Tensor:
        """The activations at a hook point of this block."""
        return values[site.replace("{block}", str(block))].double()

    before_norm = of_site(MIXED)
    output = of_site(SUBLAYERS["attention"])
    # z (prompt, head, value) times W_O (head, value, d)
    by_head = torch.einsum("phe,hed->hpd", of_site(OUTPUTS), output_weights(run, block))
    total = by_head.sum(dim=0) + _detached(run.model.blocks[block].attn, "b_O", 0.0)
    if not agree(total, before_norm, run.dtype):
        return torch.full_like(by_head, torch.nan)
    # Where the output is 0 before the norm, the factor is 0.
    return by_head * (output / before_norm.masked_fill(before_norm == 0, torch.inf))


def _normed(
    run: Run,
    values: Float[Tensor, "*many prompt d"],
    scale: Float[Tensor, "prompt 1"],
) -> Tensor:
    """The final norm of some values as a linear map, with its `scale` on the whole stream, and without its bias."""
    if str(run.model.cfg.normalization_type).startswith("LN"):  # layer norm
        values = values - values.mean(dim=-1, keepdim=True)
    gain = _detached(run.model.ln_final, "weight", 1.0)  # OLMo has none
    if getattr(
        run.model.cfg, "rmsnorm_uses_offset", False
    ):  # weights are stored as differences from 1
        gain = gain + 1
    return values / scale * gain
