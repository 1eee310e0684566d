"""What the heads of a prompt look like, block by block, and its residual streams, layer by layer."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.walks import has_sink
from squashlens.measure.variables import variables_of
from squashlens.model import anatomy
from squashlens.model.memory import to_cpu
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.remarks import remark
from squashlens.run.activations import streams_at, streams_of
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import forward
from squashlens.run.run import Run
from squashlens.run.streamed import why_not_streamed
from squashlens.theory.distances import distance, noise, rms
from squashlens.theory.spread import heads_of, spectrum

HEADS = "block head"
UNIFORM = "mean entropy of uniform attention of later tokens"
FIRST_NORM = "norm of the first token's residual stream"
OTHER_NORMS = "mean norm of the others' residual streams"
FLOOR = "noise floor of the distance of v and v*"
LAST_RMS = "rms of the last token's residual stream"
TABLE = {
    "sink_rate": (HEADS, "mean attention of later tokens to the first token", "1"),
    "attention_entropy": (
        HEADS,
        "mean entropy of the attention of later tokens",
        "nat",
    ),
    "uniform_entropy": ("block", UNIFORM, "nat"),
    "sink_value_norm": (HEADS, "norm of the first token's value vector", MODEL_UNITS),
    "value_norm": (HEADS, "mean norm of the other tokens' value vectors", MODEL_UNITS),
    "representation_entropy": ("layer", "entropy of the representations", "nat"),
    "effective_rank": ("layer", "effective rank of the representations", "1"),
    "first_token_norm": ("layer", FIRST_NORM, MODEL_UNITS),
    "stream_norm": ("layer", OTHER_NORMS, MODEL_UNITS),
    "collapse_distance": ("layer", "L∞ distance of v and v*", MODEL_UNITS),
    "collapse_noise": ("layer", FLOOR, MODEL_UNITS),
    "last_token_rms": ("layer", LAST_RMS, MODEL_UNITS),
}


@measurement("head_statistics")
def head_statistics(model: Bridge, prompt: PromptOrCapture) -> xr.Dataset:
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
    >>> found = sl.head_statistics(sl.load("tiny-gemma"), "110 =")
    >>> bool((found["attention_entropy"].max("head") <= found["uniform_entropy"]).all())
    True
    """
    run = Run.of(model, prompt, **this_call())
    run.require_one(tokens=2)
    heads = _Heads(run)
    heads.read()
    # (block, head) each
    sink_rate, entropies = _stack(heads.attention.values()).unbind(dim=-1)
    of_first, of_others = _stack(heads.value_norms.values()).unbind(dim=-1)
    reach = anatomy.known_windows(run.model, run.positions)
    uniform: list[float] = []
    for block in range(run.n_blocks):
        learned_sink = has_sink(run, block)
        uniform.append(_uniform_entropy(run.positions, reach[block], learned_sink))
    found = {
        "sink_rate": sink_rate,
        "attention_entropy": entropies,
        "uniform_entropy": uniform,
        "sink_value_norm": of_first,
        "value_norm": of_others,
    }
    n_blocks, n_heads = sink_rate.shape
    coords = {"block": np.arange(n_blocks), "head": np.arange(n_heads)}
    about = "attention of the heads of a prompt"
    return run.dataset(about, coords, variables_of(TABLE, found))


def _uniform_entropy(n: int, window: int | None, learned_sink: bool) -> float:
    """The mean over queries 1 … n − 1 of the logarithm of the number of keys that they see, a learned sink included."""
    keys = torch.arange(2, n + 1).clamp(max=window or n) + learned_sink
    return keys.double().log().mean().item()


def representations(run: Run, layers: list[int]) -> dict[str, Variable]:
    """Statistics of the residual streams over (layer), as `token_influence` describes them; three forward passes."""
    streams = [stream[0] for stream in streams_of(run, layers)]  # (position, d) each
    spectra = _stack(spectrum(stream) for stream in streams)
    sizes = _stack(stream.double().norm(dim=-1) for stream in streams)
    values = {
        "representation_entropy": spectra[:, 0],
        "effective_rank": spectra[:, 1],
        "first_token_norm": sizes[:, 0],
        "stream_norm": sizes[:, 1:].mean(dim=1),
        **_distances(run, layers, _stack(stream[-1] for stream in streams)),
    }
    return variables_of(TABLE, values)


def _stack(parts: Iterable[Tensor]) -> Tensor:
    """Tensors of several layers or blocks, which may be on several devices, as one on the CPU."""
    return torch.stack(to_cpu(list(parts)))


class _Heads:
    """Statistics of the heads of each block from one forward pass, as tensors (head, 2); NaN where nothing was read.

    Attributes:
        attention: by block, the attention to the first token, and the entropy of attention.
        value_norms: by block, the norm of the first token's value vector, and the mean of those of the others.
    """

    def __init__(self, run: Run) -> None:
        """All statistics are NaN until `read`."""
        self.run = run
        self.n_heads = int(run.model.cfg.n_heads)
        unknown = torch.full((self.n_heads, 2), torch.nan, dtype=torch.float64)
        # One tensor stands for all blocks; `read` replaces it, and never writes into it.
        self.attention = dict.fromkeys(range(run.n_blocks), unknown)
        self.value_norms = dict.fromkeys(range(run.n_blocks), unknown)

    def read(self) -> None:
        """Run the prompt once, and read values and attention of every block.

        Attention comes as queries and keys, without a written pattern; if the model cannot do that, from the hook
        points of patterns.
        """
        model = self.run.model
        hook_points = model.hook_dict
        watch: list[Any] = []
        for block in self.value_norms:
            site = f"blocks.{block}.attn.hook_v"
            if site in hook_points:
                watch.append((site, partial(self._see_values, block)))
        if why_not_streamed(model, [site for site, _ in watch]) is not None:
            for block in self.attention:
                site = anatomy.pattern_site(block)
                if site in hook_points:
                    watch.append((site, partial(self._see_attention, block)))
        ids = self.run.ids.clone()
        forward(self.run, ids, watch, on_attention=self._see_attention)

    def _see_values(self, block: int, values: Tensor) -> None:
        """Keep the norm of each head's value vector of the first token, and the mean norm of the others'."""
        if (
            values.ndim != 4
        ):  # as with latent attention, where the point has another shape
            return
        # (position, key/value group) → one for each head
        norms = values[0].double().norm(dim=-1)
        norms = norms.repeat_interleave(self.n_heads // norms.shape[1], dim=1)
        both = [norms[0], norms[1:].mean(dim=0)]
        self.value_norms[block] = torch.stack(both, dim=-1)

    def _see_attention(self, block: int, pattern: Any) -> None:
        """Keep each head's mean attention to the first token, and its mean entropy."""
        self.attention[block] = heads_of(pattern, has_sink(self.run, block))


def _distances(
    run: Run, layers: list[int], v: Float[Tensor, "layer d"]
) -> dict[str, Float[Tensor, " layer"]]:
    """‖v_n − v*_{n+1}‖∞ at each layer, where v* has the last token twice, with its noise floor and the rms of v_n.

    `v` has the last token's stream at each layer. The noise floor is ‖v − ṽ‖ + ‖v* − ṽ*‖, as that of `collapse`. Token
    n of both prompts sees the same tokens, so that a second pass of the longer prompt has ṽ and ṽ*; it runs two copies,
    since the same pass rounds alike.
    """
    limit = anatomy.context_length(run.model)
    if limit is not None and run.positions + 1 > limit:
        remark(
            "The prompt with its last token repeated is longer than the model's context: no distance D is given."
        )
        gap = floor = torch.full((len(layers),), torch.nan)
    else:
        # Roundings to float32 that a float64 model does alike in every pass.
        roundings = anatomy.unseen_roundings(run.model)
        v_again, star_again = _last_two(run, layers, copies=2).unbind(dim=1)
        star = _last_two(run, layers, copies=1)[:, 1]
        gap = distance(v, star, "linf")
        floor = noise(v, v_again, "linf", roundings)
        floor = floor + noise(star, star_again, "linf", roundings)
    return {
        "collapse_distance": gap,
        "collapse_noise": floor,
        "last_token_rms": rms(v),
    }


def _last_two(run: Run, layers: list[int], copies: int) -> Float[Tensor, "layer 2 d"]:
    """The streams of the prompt with its last token repeated, at its last two tokens, from a pass of equal copies."""
    sites = [run.site(layer) for layer in layers]
    ids = torch.cat([run.ids, run.ids[:, -1:]], dim=1).repeat(copies, 1)
    streams = streams_at(run, ids, sites, at=slice(-2, None))
    return _stack(streams[site][0] for site in sites)
