"""Many prompts in few forward passes: a trunk that they share, and branches that leave it.

A prompt that is a prefix of the trunk needs no pass of its own, by causality: everything about it stands in
the trunk's. Any other prompt is a *branch*: some of the trunk and then tokens of its own, which run on the
trunk's cache, many branches side by side, each seeing its own past and no other branch.

    trunk     t₁ t₂ t₃ t₄ t₅ …            one pass
    branch    t₁ t₂ t₃ b₁ b₂              only b₁ b₂ are run

Sharing is given up where the model's position encoding depends on the length of a pass, and where a standing hook
edits activations: an edit by position means another token in a shared pass. Otherwise it is proved twice, against a
pass for each prompt: for a model at its first use, on a short trunk; and for each trunk at the lengths asked for, on
the shortest prompt, the longest and two between, so that a dependence that no configuration names is seen.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from squashlens._typing import Bridge, Passes, one_of, positive
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.model.anatomy import device_of, dtype_of, n_blocks, residual_site, width
from squashlens.model.branches import Branch, Ids, causal, context
from squashlens.model.edits import edits
from squashlens.model.forward import forward
from squashlens.model.hooks import Hook, ambient, hung, without_ambient
from squashlens.model.live import probe_ids
from squashlens.model.memory import available, require_room
from squashlens.model.native import is_native
from squashlens.model.positions import why_lengths_differ
from squashlens.model.proof import TOLERANCE, agree
from squashlens.model.registry import proved
from squashlens.model.streamed import implementation, why_not

PASS_MEMORY = 1e9  # bytes that the attention of one pass over branches may take unless chunk= says otherwise
# Largest difference of a shared pass, relative to the largest entry at a hook point. The model is the same in both, so
# less is allowed than between a bridge and the plain model; half precision leaves nothing to choose.
SAME = TOLERANCE | {torch.float64: 1e-6, torch.float32: 2e-5}
FEW = 256  # branch tokens of which a pass costs little more than one of them
MASK = 24  # bytes of one query and key in a mask while it is made


OnTrunk = Callable[[int], Sequence[Hook]]


def no_hooks(tokens_of_trunk: int) -> Sequence[Hook]:
    """Nothing is done to what is run."""
    return ()


@dataclass(frozen=True)
class Readings:
    """What each prompt's last token showed: `values[site]` is (branch, …); `route` and `attention` say how it was run.

    A pattern row, (branch, head, position), is over the prompt's own positions and 0 beyond them.
    """

    values: dict[str, Tensor]
    route: str
    attention: str


@dataclass(frozen=True)
class Plan:
    """What is run: a trunk, prompts along it, where they are read, and what is done to them.

    `positions` are the trunk's position ids, 0, 1, 2 … unless given; a branch counts on from where it leaves.
    `hooks(k)` hang in a pass that starts with k tokens of the trunk, and are to touch no token behind them;
    `branch_hooks` hang in passes that continue the trunk's cache. A pass for one prompt runs `copies` of it side by
    side and reads the first.
    """

    model: Bridge
    trunk: Ids
    branches: tuple[Branch, ...]
    sites: tuple[str, ...]
    positions: Ids | None = None
    hooks: OnTrunk = no_hooks
    branch_hooks: tuple[Hook, ...] = ()
    copies: int = 1

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.branches))


def read(
    model: Bridge,
    trunk: Ids,
    branches: Sequence[Branch],
    sites: Sequence[str],
    *,
    positions: Ids | None = None,
    hooks: OnTrunk = no_hooks,
    branch_hooks: Sequence[Hook] = (),
    passes: Passes = "auto",
    chunk: int | None = None,
    copies: int = 1,
    progress: bool = True,
) -> Readings:
    """Activations at the last token of every prompt, in as few passes as can be.

    ``passes="auto"`` shares passes where that is right and runs prompts one by one where it is not;
    ``"shared"`` refuses instead; ``"separate"`` always runs one by one. `chunk` is the number of branch tokens
    in one pass, by default what fits in about a gigabyte. `copies` of each prompt in a separate pass give the same
    numbers in another order of addition: what they differ by is rounding.
    """
    one_of(passes, Passes, "passes")
    if chunk is not None:
        positive(chunk, "chunk", "a number of tokens")
    late = [branch.along(trunk, positions) for branch in branches]
    each = tuple(dict.fromkeys(late))  # two prompts that are the same are run once
    plan = Plan(model, trunk, each, tuple(sites), positions, hooks, tuple(branch_hooks), copies)
    _require_room(plan, len(branches))
    with torch.inference_mode(False), torch.no_grad():
        rows, route = _route(plan, passes, chunk, progress)
    if len(each) < len(late):
        number = {branch: i for i, branch in enumerate(each)}
        rows = {site: values[[number[b] for b in late]] for site, values in rows.items()}
    return Readings(rows, route, implementation(model, sites))


def _route(plan: Plan, passes: Passes, chunk: int | None, progress: bool) -> tuple[dict[str, Tensor], str]:
    if passes == "separate":
        return _one_by_one(plan, progress), "separate"
    rows, reason = _shared(plan, chunk, progress)
    if rows is not None and reason is None:
        return rows, "shared"
    if passes == "shared":
        raise InputError(f"passes='shared' would be wrong here: {reason}.", "Use passes='auto' or 'separate'.")
    return _one_by_one(plan, progress), f"separate, since {reason}"


def _shared(plan: Plan, chunk: int | None, progress: bool) -> tuple[dict[str, Tensor] | None, str | None]:
    """Rows from shared passes, and, where they are not to be used, why."""
    reason = why_lengths_differ(plan.model, _pass_lengths(plan))
    if reason is None and not _sharing_is_right(plan.model):
        reason = "its prompts cannot share a pass"
    if reason is not None:
        return None, reason
    if not ambient(plan.model):
        rows = _together(plan, chunk, progress)
        return rows, _why_wrong(plan, rows)
    rows = None
    with edits(plan.model) as edited:
        try:
            rows = _together(plan, chunk, progress)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: S110 - a hook by position, where tokens are few; on whole prompts it may say so
            pass
    if edited:
        return None, f"hooks edit at {', '.join(sorted(edited)[:3])}"
    if rows is None:
        return None, "a hook fails in a shared pass"
    return rows, _why_wrong(plan, rows)


def _pass_lengths(plan: Plan) -> set[int]:
    """Largest position + 1, of each prompt by itself and of the trunk that they share."""
    every = [*plan.branches, Branch(max(b.at for b in plan.branches))]
    return {int(_positions(plan, b)[-1]) + 1 for b in every if len(b)}


def _why_wrong(plan: Plan, rows: dict[str, Tensor]) -> str | None:
    """Compare shared rows with a pass for each of a few prompts, from the shortest to the longest; `None` if the same.

    Where those of a trunk agree, they are not run again.
    """
    chosen = _sample(plan)
    few = replace(plan, branches=tuple(plan.branches[i] for i in chosen))
    known = proved(plan.model, "prompts that share a pass", set[Any])
    key = (few.trunk, few.branches, few.sites, few.positions)
    if not chosen or key in known:
        return None
    with without_ambient(plan.model):  # which only look, or nothing would be shared
        alone = _one_by_one(few, progress=False)
    tolerance = SAME[dtype_of(plan.model)]
    for site, truth in alone.items():
        off = (rows[site][chosen][..., : truth.shape[-1]].double() - truth.double()).abs().flatten(1).amax(dim=1)
        allowed = tolerance * truth.double().abs().max()
        wrong = [few.branches[i] for i in range(len(chosen)) if not off[i] <= allowed]
        if wrong:
            return f"its numbers depend on what it shares a pass with (at {len(wrong[0])} tokens, {site})"
    known.add(key)
    return None


def _sample(plan: Plan) -> list[int]:
    """Places of the shortest prompt, the longest, and the longest of at most a quarter and a sixteenth of that.

    The two between have at most a third of its tokens together. A prompt that is the whole trunk was run by itself.
    """
    lengths = [len(branch) for branch in plan.branches]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    trunk = Branch(max(b.at for b in plan.branches))
    chosen = {order[0], order[-1]}
    for part in (4, 16):
        chosen |= set([i for i in order if part * lengths[i] <= plan.longest][-1:])
    return sorted(i for i in chosen if plan.branches[i] != trunk)


def _one_by_one(plan: Plan, progress: bool) -> dict[str, Tensor]:
    """A plain forward pass for every prompt."""
    rows = _Rows(plan)
    device = device_of(plan.model)
    for number, branch in enumerate(bar(plan.branches, desc="prompts", progress=progress)):
        ids = torch.tensor([branch.ids(plan.trunk)] * plan.copies, device=device)
        place = _positions(plan, branch)
        setting = None if plan.positions is None else context(plan.model, place, place, causal(len(branch)))
        keys = torch.arange(len(branch))[None]
        with hung(plan.model, *plan.hooks(branch.at)):
            forward(plan.model, ids, rows.watch([number], [len(branch) - 1], keys), setting)
    return rows.values


def _together(plan: Plan, chunk: int | None, progress: bool) -> dict[str, Tensor]:
    """The trunk in one pass, then the tokens of the branches on its cache."""
    rows, model, device = _Rows(plan), plan.model, device_of(plan.model)
    on_trunk = [i for i, b in enumerate(plan.branches) if not b.tokens]
    leaving = [i for i, b in enumerate(plan.branches) if b.tokens]
    n = max(b.at for b in plan.branches)  # what of the trunk anybody needs
    # A cache built without the configuration keeps every key: trimmed to a window, it would be read askew.
    cache = DynamicCache()
    setting: dict[str, Any] = {"use_cache": True, "past_key_values": cache} if leaving else {}
    trunk_positions = _positions(plan, Branch(n))
    if plan.positions is not None:
        setting |= context(model, trunk_positions, trunk_positions, causal(n))
    if n:
        ends = [plan.branches[i].at - 1 for i in on_trunk]
        keys = torch.arange(n).expand(len(ends), n)
        keys = keys.masked_fill(keys > torch.tensor(ends, dtype=torch.long)[:, None], -1)
        with hung(model, *plan.hooks(n)):
            forward(model, torch.tensor([plan.trunk[:n]], device=device), rows.watch(on_trunk, ends, keys), setting)
    groups = list(_groups(plan, leaving, chunk or _chunk(plan, n)))
    for group in bar(groups, desc="branches", unit="pass", progress=progress):
        _on_cache(plan, rows, group, cache, trunk_positions)
    return rows.values


def _groups(plan: Plan, leaving: list[int], chunk: int) -> Iterator[list[int]]:
    """Branches in turn, as many as have `chunk` tokens together, at least one."""
    group, size = [], 0
    for i in leaving:
        if group and size + len(plan.branches[i].tokens) > chunk:
            yield group
            group, size = [], 0
        group.append(i)
        size += len(plan.branches[i].tokens)
    if group:
        yield group


def _on_cache(plan: Plan, rows: "_Rows", group: list[int], cache: Any, trunk_positions: Tensor) -> None:
    """One pass over the tokens of several branches, each seeing its part of the trunk and itself."""
    n, chosen = len(trunk_positions), [plan.branches[i] for i in group]
    total = sum(len(b.tokens) for b in chosen)
    visible = torch.zeros(total, n + total, dtype=torch.bool)
    keys = torch.full((len(chosen), plan.longest), -1)
    ends, places, start = [], [], 0
    for row, branch in enumerate(chosen):
        stop, own = start + len(branch.tokens), len(branch.tokens)
        visible[start:stop, : branch.at] = True
        visible[start:stop, n + start : n + stop] = causal(own)
        keys[row, : branch.at] = torch.arange(branch.at)
        keys[row, branch.at : branch.at + own] = torch.arange(n + start, n + stop)
        places.append(_positions(plan, branch)[branch.at :])
        ends.append(stop - 1)
        start = stop
    position = torch.cat(places)
    fresh = copy.copy(cache)  # the pass appends to its cache: to copies of the layers, which share the tensors
    fresh.layers = [copy.copy(layer) for layer in cache.layers]
    setting = {"use_cache": True, "past_key_values": fresh}
    setting |= context(plan.model, position, torch.cat([trunk_positions, position]), visible)
    ids = torch.tensor([[t for b in chosen for t in b.tokens]], device=device_of(plan.model))
    with hung(plan.model, *plan.branch_hooks):
        forward(plan.model, ids, rows.watch(group, ends, keys), setting)


def _positions(plan: Plan, branch: Branch) -> Int[Tensor, " position"]:
    """Position ids of a prompt: those of the trunk, then counting on."""
    trunk = range(branch.at) if plan.positions is None else plan.positions[: branch.at]
    first = trunk[-1] + 1 if len(trunk) else 0
    return torch.tensor([*trunk, *range(first, first + len(branch.tokens))], dtype=torch.long)


class _Rows:
    """Collects, pass by pass, the row of every prompt's last token at every site."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: dict[str, Tensor] = {}

    def watch(self, numbers: list[int], ends: list[int], keys: Tensor) -> list[tuple[str, Any]]:
        """Hooks for one pass: prompt `numbers[k]` is read at place `ends[k]`, its positions are `keys[k]`."""
        return [(site, partial(self._keep, site, numbers, ends, keys)) for site in self.plan.sites] if numbers else []

    def _keep(self, site: str, numbers: list[int], ends: list[int], keys: Tensor, tensor: Tensor) -> None:
        if site.endswith("hook_pattern"):
            rows = tensor[0, :, ends].transpose(0, 1)
            # Columns of the pass, put in the order of each prompt's own positions.
            place = keys.clamp(min=0).to(rows.device)[:, None].expand(-1, rows.shape[1], -1)
            rows = rows.gather(-1, place).masked_fill((keys < 0).to(rows.device)[:, None], 0.0)
            rows = torch.nn.functional.pad(rows, (0, self.plan.longest - rows.shape[-1]))
        else:
            rows = tensor[0, ends]
        rows = rows.detach().cpu()
        if site not in self.values:
            self.values[site] = rows.new_zeros(len(self.plan.branches), *rows.shape[1:])
        self.values[site][numbers] = rows


def _chunk(plan: Plan, n: int) -> int:
    """Branch tokens q in a pass: what fits, each · q (n + q) = budget, each of the mask or of three patterns.

    Branches in one pass do not see each other and are computed all the same, at a cost of q (n + q): no more than
    the trunk has tokens, or a few hundred, where a pass for each would cost more.
    """
    model = plan.model
    written = why_not(model, plan.sites) is not None
    each = 3 * int(model.cfg.n_heads) * dtype_of(model).itemsize if written else MASK
    cells = min(PASS_MEMORY, available(device_of(model)) / 4) / each
    fits = int((math.sqrt(n * n + 4 * cells) - n) / 2)
    return max(1, min(fits, max(n, FEW, *(len(b.tokens) for b in plan.branches))))


def _require_room(plan: Plan, prompts: int) -> None:
    """Refuse what would not fit on the CPU, where all rows are kept."""
    heads = int(plan.model.cfg.n_heads)
    patterns = sum(site.endswith("hook_pattern") for site in plan.sites)
    each = patterns * heads * plan.longest + (len(plan.sites) - patterns) * width(plan.model)
    size = prompts * each * dtype_of(plan.model).itemsize
    require_room(size, torch.device("cpu"), "Keeping what every length shows", "Ask for fewer lengths.")


def _sharing_is_right(model: Bridge) -> bool:
    """Whether shared passes give what separate ones give, tried on a short trunk once per stamp."""
    if is_native(model):  # which keeps no cache
        return False
    return proved(model, "shared passes", lambda: _try_sharing(model))


def _try_sharing(model: Bridge) -> bool:
    trunk = tuple(probe_ids(model)[0].tolist())
    crossed = [Branch(3, (trunk[-1],)), Branch(8, trunk[2:5]), Branch(len(trunk), trunk[:1]), Branch(5)]
    sites = tuple(residual_site(layer, model) for layer in (n_blocks(model), "y"))
    plan = Plan(model, trunk, tuple(b.along(trunk) for b in crossed), sites)
    with without_ambient(model):
        truth = _one_by_one(plan, progress=False)
        try:
            found = _together(plan, None, progress=False)
        except (RuntimeError, TypeError, ValueError, AttributeError):  # a model that takes no such mask
            found = {}
    return all(site in found and agree(found[site], rows, dtype_of(model)) for site, rows in truth.items())
