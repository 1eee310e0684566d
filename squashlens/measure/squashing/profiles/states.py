"""What the heads and the residual streams of a prompt look like, block by block and layer by layer."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine import anatomy
from squashlens.engine.memory import to_cpu
from squashlens.engine.running.forward import forward
from squashlens.engine.running.streamed import why_not_streamed
from squashlens.errors import UnsoundModelError
from squashlens.measure.session import Session, streams_at
from squashlens.records.results import MODEL_UNITS, Variable
from squashlens.remarks import remark
from squashlens.theory.distances import distance, noise
from squashlens.theory.spread import heads_of, spectrum


def states(session: Session, layers: list[int]) -> dict[str, Variable]:
    """Statistics by (block, head) and by (layer), from three forward passes."""
    seen = _Seen.of(session)
    blocks = range(anatomy.n_blocks(session.model))
    heads = _stack(seen.heads[b] for b in blocks)
    sink, others = (_stack(seen.values[b][which] for b in blocks) for which in (0, 1))
    n, native = session.positions, _windows(session)
    keys = [torch.arange(2, n + 1).clamp(max=native[b] or n) + _has_sink(session.model, b) for b in blocks]
    uniform = [each.double().log().mean().item() for each in keys]
    by_head, by_layer = ("block", "head"), ("layer",)
    spectra = _stack(spectrum(seen.streams[layer][0]) for layer in layers)
    sizes = _stack(seen.streams[layer][0].double().norm(dim=-1) for layer in layers)
    return {
        "sink_rate": (by_head, heads[..., 0], "mean attention of later tokens to the first token", "1"),
        "attention_entropy": (by_head, heads[..., 1], "mean entropy of the attention of later tokens", "nat"),
        "uniform_entropy": (("block",), uniform, "mean entropy of uniform attention of later tokens", "nat"),
        "sink_value_norm": (by_head, sink, "norm of the first token's value vector", MODEL_UNITS),
        "value_norm": (by_head, others, "mean norm of the other tokens' value vectors", MODEL_UNITS),
        "representation_entropy": (by_layer, spectra[:, 0], "entropy of the representations", "nat"),
        "effective_rank": (by_layer, spectra[:, 1], "effective rank of the representations", "1"),
        "first_token_norm": (by_layer, sizes[:, 0], "norm of the first token's residual stream", MODEL_UNITS),
        "stream_norm": (by_layer, sizes[:, 1:].mean(dim=1), "mean norm of the others' residual streams", MODEL_UNITS),
        **_distances(session, seen, layers),
    }


def _has_sink(model: Bridge, block: int) -> bool:
    return anatomy.learned_sink(model, block) is not None


def _windows(session: Session) -> list[int | None]:
    """The attention window of each block; full attention where the configuration has other kinds of blocks."""
    try:
        return anatomy.windows(session.model, session.positions)
    except UnsoundModelError:
        return [None] * anatomy.n_blocks(session.model)


def _stack(parts: Iterable[Tensor]) -> Tensor:
    """Tensors of several layers or blocks, which may be on several devices, as one on the CPU."""
    return torch.stack(to_cpu(list(parts)))


@dataclass(frozen=True)
class _Seen:
    """What one forward pass shows: the streams by layer, and statistics of heads and of value vectors by block."""

    streams: dict[int, Tensor]
    heads: dict[int, Tensor]
    values: dict[int, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, session: Session) -> "_Seen":
        model, heads = session.model, int(session.model.cfg.n_heads)
        blocks, hooks = range(anatomy.n_blocks(model)), model.hook_dict
        nothing = torch.full((heads,), torch.nan, dtype=torch.float64)
        none = torch.stack([nothing, nothing], dim=-1)
        seen = cls({}, dict.fromkeys(blocks, none), dict.fromkeys(blocks, (nothing, nothing)))

        def value(block: int, tensor: Tensor) -> None:
            if tensor.ndim == 4:  # prompt, position, key/value group, coordinate
                sizes = tensor[0].double().norm(dim=-1).repeat_interleave(heads // tensor.shape[2], dim=1)
                seen.values[block] = (sizes[0], sizes[1:].mean(dim=0))

        def stream(layer: int, tensor: Tensor) -> None:
            seen.streams[layer] = tensor.detach().clone()

        watch = [(anatomy.residual_site(at, model), partial(stream, at)) for at in range(anatomy.n_blocks(model) + 1)]
        named = [(b, f"blocks.{b}.attn.hook_v") for b in blocks]
        watch += [(name, partial(value, b)) for b, name in named if name in hooks]

        def attention(block: int, pattern: Any) -> None:
            seen.heads[block] = heads_of(pattern, _has_sink(model, block))

        if why_not_streamed(model, [name for name, _ in watch]) is not None:
            sites = {block: anatomy.pattern_site(block) for block in blocks}
            watch += [(site, partial(attention, block)) for block, site in sites.items() if site in hooks]
        with torch.no_grad():
            forward(model, session.ids.clone(), watch, on_attention=attention)
        return seen


def _distances(session: Session, seen: _Seen, layers: list[int]) -> dict[str, Variable]:
    """‖v_n − v*_{n+1}‖∞ at each layer, where v* has the last token twice, and what to compare it with.

    The noise floor is ‖v − ṽ‖ + ‖v* − ṽ*‖, as that of `collapse`. Token n of both prompts sees the same tokens, so
    that a second pass of the longer prompt has ṽ and ṽ*; it runs two copies, since the same pass rounds alike.
    """
    model, limit = session.model, anatomy.context_length(session.model)
    last = [seen.streams[layer][0, -1] for layer in layers]
    if limit is not None and session.positions + 1 > limit:
        remark("The prompt with its last token repeated is longer than the model's context: no distance D is given.")
        far = floor = torch.full((len(layers),), torch.nan)
    else:
        ids = torch.cat([session.ids, session.ids[:, -1:]], dim=1)
        sites, ends = [anatomy.residual_site(layer, model) for layer in layers], slice(-2, None)
        stars, again = (streams_at(model, ids.repeat(copies, 1), sites, at=ends) for copies in (1, 2))
        pairs = [(v, stars[site][0, 1], again[site][0]) for site, v in zip(sites, last, strict=True)]
        far = _stack(distance(v, star, "linf") for v, star, _ in pairs)
        roundings = anatomy.unseen_roundings(model)
        floor = _stack(
            noise(v, second[0], "linf", roundings) + noise(star, second[1], "linf", roundings)
            for v, star, second in pairs
        )
    sizes = _stack(one.double().square().mean().sqrt() for one in last)
    return {
        "collapse_distance": (("layer",), far, "L∞ distance of v and v*", MODEL_UNITS),
        "collapse_noise": (("layer",), floor, "noise floor of the distance of v and v*", MODEL_UNITS),
        "last_token_rms": (("layer",), sizes, "root mean square of the last token's residual stream", MODEL_UNITS),
    }
