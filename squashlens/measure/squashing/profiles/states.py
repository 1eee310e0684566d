"""What the heads of a prompt look like, block by block, and its residual streams, layer by layer."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.measure.registration import measurement
from squashlens.model import anatomy
from squashlens.model.memory import to_cpu
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.remarks import remark
from squashlens.run.activations import streams_at, streams_of
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import forward
from squashlens.run.run import Run
from squashlens.run.streamed import why_not_streamed
from squashlens.theory.distances import distance, noise
from squashlens.theory.spread import heads_of, spectrum


@measurement("attention_heads")
def attention_heads(model: Bridge, prompt: PromptOrCapture) -> xr.Dataset:
    """How much each head attends to the first token of a prompt, how evenly it attends, and how large its values are.

    Means are over all tokens but the first, which sees only itself.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.

    Returns:
        Dataset. Over (block, head): `sink_rate`, attention to the first token; `attention_entropy` in nat, beside
        `uniform_entropy` (block); `sink_value_norm` and `value_norm`, of the first token's value vector and the mean of
        the others', NaN for models without a hook point for values.

    Raises:
        InputError: several prompts, or a prompt of one token.
        UnsoundModelError: the model is not causal.

    >>> import squashlens as sl
    >>> found = sl.attention_heads(sl.load("tiny-gemma"), "110 =")
    >>> bool((found["attention_entropy"].max("head") <= found["uniform_entropy"]).all())
    True
    """
    run = Run.of(model, prompt, "attention_heads")
    run.require_one(tokens=2)
    heads, values = (_stack(by_block.values()) for by_block in _seen(run))
    n, native, over = (
        run.positions,
        anatomy.known_windows(run.model, run.positions),
        ("block", "head"),
    )
    blocks = range(run.n_blocks)
    sinks = [anatomy.learned_sink(run.model, b) is not None for b in blocks]
    keys = [torch.arange(2, n + 1).clamp(max=native[b] or n) + sinks[b] for b in blocks]
    uniform = [each.double().log().mean().item() for each in keys]
    variables: dict[str, Variable] = {
        "sink_rate": (
            over,
            heads[..., 0],
            "mean attention of later tokens to the first token",
            "1",
        ),
        "attention_entropy": (
            over,
            heads[..., 1],
            "mean entropy of the attention of later tokens",
            "nat",
        ),
        "uniform_entropy": (
            ("block",),
            uniform,
            "mean entropy of uniform attention of later tokens",
            "nat",
        ),
        "sink_value_norm": (
            over,
            values[..., 0],
            "norm of the first token's value vector",
            MODEL_UNITS,
        ),
        "value_norm": (
            over,
            values[..., 1],
            "mean norm of the other tokens' value vectors",
            MODEL_UNITS,
        ),
    }
    coords = {"block": np.arange(len(blocks)), "head": np.arange(heads.shape[1])}
    return run.dataset("attention of the heads of a prompt", coords, variables)


def representations(run: Run, layers: list[int]) -> dict[str, Variable]:
    """Statistics of the residual streams by (layer), from three forward passes."""
    sites = [run.site(layer) for layer in layers]
    each = [stream[0] for stream in streams_of(run, layers)]
    spectra = _stack(spectrum(stream) for stream in each)
    sizes = _stack(stream.double().norm(dim=-1) for stream in each)
    over = ("layer",)
    return {
        "representation_entropy": (
            over,
            spectra[:, 0],
            "entropy of the representations",
            "nat",
        ),
        "effective_rank": (
            over,
            spectra[:, 1],
            "effective rank of the representations",
            "1",
        ),
        "first_token_norm": (
            over,
            sizes[:, 0],
            "norm of the first token's residual stream",
            MODEL_UNITS,
        ),
        "stream_norm": (
            over,
            sizes[:, 1:].mean(dim=1),
            "mean norm of the others' residual streams",
            MODEL_UNITS,
        ),
        **_distances(run, sites, [stream[-1] for stream in each]),
    }


def _stack(parts: Iterable[Tensor]) -> Tensor:
    """Tensors of several layers or blocks, which may be on several devices, as one on the CPU."""
    return torch.stack(to_cpu(list(parts)))


def _seen(run: Run) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Statistics by block of what heads attend to, and of value vectors, from one forward pass."""
    model, count = run.model, int(run.model.cfg.n_heads)
    blocks, hooks = range(anatomy.n_blocks(model)), model.hook_dict
    nothing = torch.full((count, 2), torch.nan, dtype=torch.float64)
    heads, values = dict.fromkeys(blocks, nothing), dict.fromkeys(blocks, nothing)

    def value(block: int, tensor: Tensor) -> None:
        if tensor.ndim == 4:  # prompt, position, key/value group, coordinate
            sizes = (
                tensor[0]
                .double()
                .norm(dim=-1)
                .repeat_interleave(count // tensor.shape[2], dim=1)
            )
            values[block] = torch.stack([sizes[0], sizes[1:].mean(dim=0)], dim=-1)

    def attention(block: int, pattern: Any) -> None:
        heads[block] = heads_of(pattern, anatomy.learned_sink(model, block) is not None)

    named = [(b, f"blocks.{b}.attn.hook_v") for b in blocks]
    watch = [(name, partial(value, b)) for b, name in named if name in hooks]
    if why_not_streamed(model, [name for name, _ in watch]) is not None:
        sites = {block: anatomy.pattern_site(block) for block in blocks}
        watch += [
            (site, partial(attention, block))
            for block, site in sites.items()
            if site in hooks
        ]
    forward(run, run.ids.clone(), watch, on_attention=attention)
    return heads, values


def _distances(run: Run, sites: list[str], last: list[Tensor]) -> dict[str, Variable]:
    """‖v_n − v*_{n+1}‖∞ at each layer, where v* has the last token twice, and what to compare it with.

    The noise floor is ‖v − ṽ‖ + ‖v* − ṽ*‖, as that of `collapse`. Token n of both prompts sees the same tokens, so
    that a second pass of the longer prompt has ṽ and ṽ*; it runs two copies, since the same pass rounds alike.
    """
    model, limit = run.model, anatomy.context_length(run.model)
    if limit is not None and run.positions + 1 > limit:
        remark(
            "The prompt with its last token repeated is longer than the model's context: no distance D is given."
        )
        far = floor = torch.full((len(sites),), torch.nan)
    else:
        ids = torch.cat([run.ids, run.ids[:, -1:]], dim=1)
        ends = (
            streams_at(run, ids.repeat(copies, 1), sites, at=slice(-2, None))
            for copies in (1, 2)
        )
        stars, again = (_stack(end[site][0] for site in sites) for end in ends)
        v, star, roundings = _stack(last), stars[:, 1], anatomy.unseen_roundings(model)
        far = distance(v, star, "linf")
        floor = noise(v, again[:, 0], "linf", roundings) + noise(
            star, again[:, 1], "linf", roundings
        )
    sizes = _stack(one.double().square().mean().sqrt() for one in last)
    return {
        "collapse_distance": (("layer",), far, "L∞ distance of v and v*", MODEL_UNITS),
        "collapse_noise": (
            ("layer",),
            floor,
            "noise floor of the distance of v and v*",
            MODEL_UNITS,
        ),
        "last_token_rms": (
            ("layer",),
            sizes,
            "root mean square of the last token's residual stream",
            MODEL_UNITS,
        ),
    }
