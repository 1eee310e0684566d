"""Cut a block at its attention into token-local maps before and after it, and differentiate each separately.

In every block that is understood here, tokens meet in one place only,

    q_j, k_j, w_j = Q(v_j), K(v_j), W(v_j)      projections, with the norm before and the biases in them
    s_jk          = s(q_j, k_k)                 logits: head norms, rotation, scale, soft-cap, mask
    z_j           = Σ_k softmax(s_j)_k w_k      for every head
    v'_j          = F(v_j, z_j)                 output matrix, norms, MLP, residual stream: sequential or parallel

so that a forward pass with leaves in place of v, q, k, w and z leaves a graph in which Q, K, W, s and F can be
differentiated one by one, for all tokens at once. No weight is read and no family is named: norms, biases, rotations,
post-norms, gates, hooks on the model and frozen parts are in those maps as the model has them. That a model is of
this form is not believed: `measure.squashing.certificates.edges` measures what autograd through the whole block has
beyond it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, Target
from squashlens.engine.differentiating.spans import Span, Watch, leaf_of, open_spans, vjps
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.errors import UnsoundModelError
from squashlens.theory.attention import unmasked

LOOKED_AT = ("hook_attn_scores", "hook_pattern")
CUT = ("hook_q", "hook_k", "hook_v", "hook_z")


@dataclass(frozen=True)
class OpenBlock:
    """The graph of one block on one prompt, cut at q, k, w and z: `seen` holds what arrived, `leaves` what went on."""

    batch: int
    seen: dict[str, Tensor]
    leaves: dict[str, Tensor]
    span: Span

    @property
    def pattern(self) -> Float[Tensor, "head query key"]:
        """α in float64. Where a key is seen, a weight that came out as 0 is not 0 but below the range of its dtype."""
        pattern, scores = (self.seen[name][0].detach() for name in ("hook_pattern", "hook_attn_scores"))
        least = torch.finfo(pattern.dtype).tiny
        return torch.where(unmasked(scores), pattern.double().clamp(min=least), pattern.double())

    @property
    def values(self) -> Float[Tensor, "key head value"]:
        """The values w_k by query head; the query heads of one key/value group have the same values."""
        return self._to_heads(self.leaves["hook_v"][0].detach().double())

    def closing(self, to: Target) -> tuple[Float[Tensor, "query out in"], Float[Tensor, "query out head value"]]:
        """∂F/∂v_j and ∂F/∂z_j of every token, with F ending in the stream above this block or in y."""
        output, leaves = self.span.outputs[to], (self.span.leaf, self.leaves["hook_z"])
        found = list(vjps(output, leaves, every_token(output), self.batch))
        direct, mixed = (torch.cat([part[side] for part in found])[:, 0] for side in (0, 1))
        return rearrange(direct, "out j d -> j out d"), rearrange(mixed, "out j head value -> j out head value")

    def value_map(self) -> Float[Tensor, "key head value in"]:
        """∂w_i/∂v_i of every token."""
        groups = self.seen["hook_v"].shape[2]
        return self._to_heads(rearrange(self._own("hook_v"), "(group value) 1 i d -> i group value d", group=groups))

    def key_rows(self, queries: range) -> Float[Tensor, "query head key in"]:
        """∂s_ji/∂v_i through the key, for several queries j, every head and every i ≤ j."""
        scores, n = self.seen["hook_attn_scores"], len(queries)
        heads = torch.arange(scores.shape[1], device=scores.device)
        cotangents = scores.new_zeros(n, len(heads), *scores.shape)
        for place, j in enumerate(queries):
            cotangents[place, heads, 0, heads, j, : j + 1] = 1
        leaf = self.leaves["hook_k"]
        by_key = torch.cat([part for (part,) in vjps(scores, [leaf], cotangents.flatten(0, 1), self.batch)])
        by_key = rearrange(by_key, "many 1 key ... -> key many (...)")
        return rearrange(by_key @ self._key_map, "key (query head) d -> query head key d", query=n)

    @cached_property
    def _key_map(self) -> Float[Tensor, "key coordinate in"]:
        """∂k_i/∂v_i of every token."""
        return rearrange(self._own("hook_k"), "coordinate 1 key d -> key coordinate d").contiguous()

    def _own(self, name: str) -> Float[Tensor, "coordinate 1 token in"]:
        """The derivative of what arrived at a hook point by the same token's stream."""
        output = self.seen[name]
        return torch.cat([rows for (rows,) in vjps(output, [self.span.leaf], every_token(output), self.batch)])

    def query_rows(self, weights: Float[Tensor, "head query key value"]) -> Float[Tensor, "query head value in"]:
        """Σ_k weights_jk ∂s_jk/∂v_j through the query, for every token j and every coordinate that is weighted."""
        scores = self.seen["hook_attn_scores"]
        found = []
        for head, by_coordinate in enumerate(rearrange(weights, "head j k value -> head value j k")):
            cotangents = scores.new_zeros(len(by_coordinate), *scores.shape)
            cotangents[:, 0, head] = by_coordinate.to(scores.dtype)
            found.append(torch.cat(list(self._through_queries(cotangents))))
        return rearrange(torch.stack(found), "head value j d -> j head value d")

    def _through_queries(self, cotangents: Tensor) -> Iterator[Float[Tensor, "many token in"]]:
        """VJPs of the logits through the queries, the keys held: first to the projection, then to the stream."""
        for (projected,) in vjps(self.seen["hook_attn_scores"], [self.leaves["hook_q"]], cotangents, self.batch):
            yield from (rows[:, 0] for (rows,) in vjps(self.seen["hook_q"], [self.span.leaf], projected, self.batch))

    def _to_heads(self, by_group: Float[Tensor, "key group ..."]) -> Float[Tensor, "key head ..."]:
        """Query head h reads key/value group h // (heads / groups)."""
        each = self.pattern.shape[0] // by_group.shape[1]
        return repeat(by_group, "key group ... -> key (group each) ...", each=each)


def every_token(output: Float[Tensor, "1 token ..."]) -> Float[Tensor, "cotangent 1 token ..."]:
    """One cotangent for each coordinate, standing at all tokens at once: in a token-local map they do not mix."""
    size = output[0, 0].numel()
    eye = torch.eye(size, dtype=output.dtype, device=output.device).view(size, 1, 1, *output.shape[2:])
    return eye.expand(size, 1, output.shape[1], *output.shape[2:])


def open_blocks(
    model: Bridge, ids: Int[Tensor, "1 position"], hooks: Sequence[Hook | Recipe], blocks: range, batch: int
) -> dict[int, OpenBlock]:
    """One forward pass that leaves the graph of each of `blocks`, cut open; `batch` is cotangents at a time."""
    seen: dict[int, dict[str, Tensor]] = {b: {} for b in blocks}
    leaves: dict[int, dict[str, Tensor]] = {b: {} for b in blocks}

    def cut(block: int, name: str) -> Callable[[Tensor], Tensor]:
        def edit(tensor: Tensor) -> Tensor:
            seen[block][name], leaves[block][name] = tensor, leaf_of(tensor)
            return leaves[block][name]

        return edit

    def look(block: int, name: str) -> Callable[[Tensor], None]:
        return lambda tensor: seen[block].update({name: tensor})

    watch: list[Watch] = []
    for b in blocks:
        for name in (*CUT, *LOOKED_AT):
            site = f"blocks.{b}.attn.{name}"
            if site not in model.hook_dict:
                raise not_of_this_form(model, f"there is no {site}")
            watch.append((site, cut(b, name) if name in CUT else look(b, name)))
    spans = open_spans(model, ids, hooks, list(blocks), blocks[-1] + 1, watch)
    for b in blocks:
        _require_shapes(model, b, seen[b])
    return {b: OpenBlock(batch, seen[b], leaves[b], spans[b]) for b in blocks}


def _require_shapes(model: Bridge, block: int, seen: dict[str, Tensor]) -> None:
    silent = [name for name in (*CUT, *LOOKED_AT) if name not in seen]
    if silent:
        raise not_of_this_form(model, f"blocks.{block}.attn.{silent[0]} never fires")
    shapes = {name: tuple(tensor.shape) for name, tensor in seen.items()}
    pattern, values = shapes["hook_pattern"], shapes["hook_v"]
    meeting = len(pattern) == len(values) == 4 and pattern[1] % values[2] == 0
    if not meeting or shapes["hook_z"] != (1, pattern[2], pattern[1], values[3]):
        raise not_of_this_form(model, f"its tensors in block {block} have the shapes {shapes}")


def not_of_this_form(model: Bridge, what: str) -> UnsoundModelError:
    name = type(model.original_model).__name__
    return UnsoundModelError(
        f"{name} cannot be taken apart at its attention: {what}.",
        "Use edges='exact', which differentiates whole blocks and needs no knowledge of them.",
    )
