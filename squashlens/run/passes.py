"""Run many prompts in few forward passes: a trunk that they share, and branches that leave it.

By causality, a prompt that is a prefix of the trunk needs no pass of its own: its activations are part of the trunk's
pass. Any other prompt is a *branch*: a prefix of the trunk, followed by other tokens. These run on the trunk's cache,
many branches in one pass, and each sees only its own past.

    trunk     t₁ t₂ t₃ t₄ t₅ …            one pass
    branch    t₁ t₂ t₃ b₁ b₂              only b₁ b₂ are run

Passes are not shared if the model's position encoding depends on the length of a pass, or if hooks are on the model,
since these would get positions of other prompts. Otherwise shared passes are compared with one pass for each prompt,
for each trunk: at the shortest prompt, the longest, the longest branch, and up to two between. This finds models that
ignore the mask, and a dependence on length that the configuration does not state.
"""

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from squashlens._typing import Passes, one_of
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.model.agreement import SAME_OPERATIONS, agree
from squashlens.model.anatomy import device_of, dtype_of, why_lengths_differ, width
from squashlens.model.hooking.attached import attached
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import ambient
from squashlens.model.memory import available, require_room, to_cpu
from squashlens.model.native import is_native
from squashlens.model.proof import proof_of
from squashlens.run.budget import batch_memory, pass_bytes
from squashlens.run.forward import causal, context, forward
from squashlens.run.run import Run
from squashlens.run.streamed import (
    FAILURES,
    implementation,
    why_not_streamed,
)
from squashlens.sequences import Branch, Ids

PASS_MEMORY = 1e9  # bytes for the attention of one pass over branches
FEW = 256  # branch tokens whose pass takes little longer than a pass with one token
MASK = 24  # bytes for one query and key while a mask is built


Kind = TypeVar("Kind", bound=Hashable)
OnTrunk = Callable[[int], Sequence[Hook]]


def no_hooks(tokens_of_trunk: int) -> Sequence[Hook]:
    """No hooks, whatever the number of trunk tokens."""
    return ()


@dataclass(frozen=True)
class Readings:
    """The activations of each prompt's last token, `values[site]` (branch, …), and how the prompts were run."""

    values: dict[str, Tensor]
    route: str
    attention: str


@dataclass(frozen=True)
class Plan:
    """What is run: a trunk, the prompts on it, the hook points that are read, and hooks; see `read`.

    `positions` are the trunk's position ids; a branch continues them. ``hooks(k)`` are on the model in a pass that
    starts with k tokens of the trunk, and must not act on later tokens. A separate pass runs `copies` of the prompt and
    reads the first.
    """

    run: Run
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
    run: Run,
    trunk: Ids,
    branches: Sequence[Branch],
    sites: Sequence[str],
    *,
    positions: Ids | None = None,
    hooks: OnTrunk = no_hooks,
    branch_hooks: Sequence[Hook] = (),
    passes: Passes = "auto",
    copies: int = 1,
) -> Readings:
    """Read activations at the last token of every prompt, in as few forward passes as possible.

    `positions` are the trunk's position ids. ``hooks(k)`` are for a pass that starts with k tokens of the trunk,
    `branch_hooks` for those that continue its cache. `passes` is as in `capture`. With another
    number of `copies` in a separate pass, the same terms are added in another order.
    """
    one_of(passes, Passes, "passes")
    branches_on_trunk = [branch.along(trunk, positions) for branch in branches]
    each = tuple(dict.fromkeys(branches_on_trunk))  # equal prompts are run once
    plan = Plan(
        run, trunk, each, tuple(sites), positions, hooks, tuple(branch_hooks), copies
    )
    _require_room(plan, len(branches))
    rows, route = _route(plan, passes)
    if len(each) < len(branches_on_trunk):
        number = {branch: i for i, branch in enumerate(each)}
        rows = {
            site: values[[number[b] for b in branches_on_trunk]]
            for site, values in rows.items()
        }
    return Readings(rows, route, implementation(run.model, sites, plan.longest))


def _route(plan: Plan, passes: Passes) -> tuple[dict[str, Tensor], str]:
    if passes == "separate":
        return _run_separately(plan), "separate"
    rows, reason = _share(plan)
    if rows is not None and reason is None:
        return rows, "shared"
    if passes == "shared":
        raise InputError(
            f"passes='shared' gives wrong numbers here: {reason}.",
            "Use passes='auto' or 'separate'.",
        )
    return _run_separately(plan), f"separate, since {reason}"


def _share(plan: Plan) -> tuple[dict[str, Tensor] | None, str | None]:
    """The rows from shared passes, and the reason if they must not be used."""
    reason = (
        "hooks are on the model"
        if ambient(plan.run.model)
        else why_lengths_differ(plan.run.model, _pass_lengths(plan))
    )
    alone = "its prompts cannot share a pass"
    if reason is None and is_native(plan.run.model):  # native models have no cache
        reason = alone
    if reason is not None:
        return None, reason
    try:
        rows = _run_together(plan)
    except FAILURES:  # a model that does not accept such a mask or cache
        return None, alone
    return rows, _why_wrong(plan, rows)


def _pass_lengths(plan: Plan) -> set[int]:
    """The lengths (largest position + 1) of each prompt's own pass and of the trunk's pass."""
    every = [*plan.branches, Branch(max(b.at for b in plan.branches))]
    return {int(_positions(plan, b)[-1]) + 1 for b in every if len(b)}


def _why_wrong(plan: Plan, rows: dict[str, Tensor]) -> str | None:
    """The reason why shared rows differ from separate passes of a few prompts; `None` if they agree, or did before."""
    chosen = _sample(plan)
    few = replace(plan, branches=tuple(plan.branches[i] for i in chosen))
    known = proof_of(plan.run.model).once("prompts that share a pass", set[Any])
    key = (few.trunk, few.branches, few.sites, few.positions)
    if not chosen or key in known:
        return None
    alone = _run_separately(few)
    same = partial(agree, dtype=plan.run.dtype, tolerance=SAME_OPERATIONS)
    for site, truth in alone.items():
        found = rows[site][chosen][..., : truth.shape[-1]]
        for branch, ours, theirs in zip(few.branches, found, truth, strict=True):
            if not same(ours, theirs, size=truth):
                return f"its numbers depend on what it shares a pass with (at length {len(branch)}, {site})"
    known.add(key)
    return None


def _sample(plan: Plan) -> list[int]:
    """Indices of the shortest prompt, the longest, the longest branch, and those of at most 1/4 and 1/16 of its tokens.

    The two between have twice the shortest one's tokens, or are left out. The whole trunk already had its own pass.
    """
    lengths = [len(branch) for branch in plan.branches]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    trunk = Branch(max(b.at for b in plan.branches))
    chosen = {order[0], order[-1], *[i for i in order if plan.branches[i].tokens][-1:]}
    for part in (4, 16):
        chosen |= set(
            [
                i
                for i in order
                if 2 * lengths[order[0]] <= lengths[i] <= plan.longest / part
            ][-1:]
        )
    return sorted(i for i in chosen if plan.branches[i] != trunk)


def _run_separately(plan: Plan) -> dict[str, Tensor]:
    """Run every prompt as a whole, and those of one length in one batch, unless hooks depend on the trunk."""
    rows = _Rows(plan)
    device = plan.run.device
    with bar(total=len(plan.branches), desc="prompts") as progress_bar:
        for numbers in _of_one_length(plan):
            same = [plan.branches[number] for number in numbers]
            ids = torch.tensor(
                [b.ids(plan.trunk) for b in same for _ in range(plan.copies)],
                device=device,
            )
            extra, length = None, len(same[0])
            if plan.positions is not None:
                place = _positions(plan, same[0])
                extra = context(plan.run, place, place, causal(length))
            keys = torch.arange(length).expand(len(same), -1)
            own = range(0, len(ids), plan.copies)
            with attached(plan.run.model, *plan.hooks(same[0].at)):
                forward(
                    plan.run,
                    ids,
                    rows.watch(numbers, [length - 1] * len(same), keys, own),
                    extra,
                )
            rows.take(numbers)
            progress_bar.update(len(numbers))
    return rows.values


def _of_one_length(plan: Plan) -> Iterator[list[int]]:
    """The prompts of each batch: of one length, the longest first."""
    order = sorted(
        range(len(plan.branches)), key=lambda number: -len(plan.branches[number])
    )
    own = plan.copies > 1 or plan.positions is not None or plan.hooks is not no_hooks

    def size(length: int) -> int:
        return (
            1
            if own
            else max(1, int(batch_memory(plan.run) / pass_bytes(plan.run, 1, length)))
        )

    for _, places in batches([len(plan.branches[number]) for number in order], size):
        yield [order[place] for place in places]


def batches(
    kinds: Iterable[Kind], size: Callable[[Kind], int]
) -> Iterator[tuple[Kind, list[int]]]:
    """Group items of equal kind into batches of at most `size(kind)`: yields each kind with the indices of a batch.

    >>> [(n, places) for n, places in batches([5, 7, 5, 5], lambda n: 2)]
    [(5, [0, 2]), (5, [3]), (7, [1])]
    """
    alike: dict[Kind, list[int]] = {}
    for place, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(place)
    for kind, places in alike.items():
        step = size(kind)
        yield from (
            (kind, places[start : start + step])
            for start in range(0, len(places), step)
        )


def _run_together(plan: Plan) -> dict[str, Tensor]:
    """Run the trunk in one pass, and then the tokens of the branches on its cache."""
    rows, run, device = _Rows(plan), plan.run, plan.run.device
    on_trunk = [i for i, b in enumerate(plan.branches) if not b.tokens]
    leaving = [i for i, b in enumerate(plan.branches) if b.tokens]
    n = max(b.at for b in plan.branches)  # the part of the trunk that is needed
    # A cache without the configuration keeps every key; one that is trimmed to a window would be misread.
    cache = DynamicCache()
    extra: dict[str, Any] = (
        {"use_cache": True, "past_key_values": cache} if leaving else {}
    )
    trunk_positions = _positions(plan, Branch(n))
    if plan.positions is not None:
        extra |= context(run, trunk_positions, trunk_positions, causal(n))
    if n:
        ends = [plan.branches[i].at - 1 for i in on_trunk]
        keys = torch.arange(n).expand(len(ends), n)
        keys = keys.masked_fill(
            keys > torch.tensor(ends, dtype=torch.long)[:, None], -1
        )
        with attached(run.model, *plan.hooks(n)):
            forward(
                run,
                torch.tensor([plan.trunk[:n]], device=device),
                rows.watch(on_trunk, ends, keys),
                extra,
            )
        rows.take(on_trunk)
    groups = list(_groups(plan, leaving, _tokens_per_pass(plan, n)))
    for group in bar(groups, desc="branches", unit="pass"):
        _on_cache(plan, rows, group, cache, trunk_positions)
    return rows.values


def _groups(
    plan: Plan, leaving: list[int], tokens_per_pass: int
) -> Iterator[list[int]]:
    """Groups of branches with at most `tokens_per_pass` tokens together, or a single branch."""
    group, size = [], 0
    for i in leaving:
        if group and size + len(plan.branches[i].tokens) > tokens_per_pass:
            yield group
            group, size = [], 0
        group.append(i)
        size += len(plan.branches[i].tokens)
    if group:
        yield group


def _on_cache(
    plan: Plan, rows: "_Rows", group: list[int], cache: Any, trunk_positions: Tensor
) -> None:
    """Run one pass over the tokens of several branches; each sees its part of the trunk and itself."""
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
    fresh = copy.copy(
        cache
    )  # the pass appends to copies of the layers, which share the tensors
    fresh.layers = [copy.copy(layer) for layer in cache.layers]
    extra = {"use_cache": True, "past_key_values": fresh}
    extra |= context(
        plan.run, position, torch.cat([trunk_positions, position]), visible
    )
    ids = torch.tensor([[t for b in chosen for t in b.tokens]], device=plan.run.device)
    with attached(plan.run.model, *plan.branch_hooks):
        forward(plan.run, ids, rows.watch(group, ends, keys), extra)
    rows.take(group)


def _positions(plan: Plan, branch: Branch) -> Int[Tensor, " position"]:
    """Position ids of a prompt: those of the trunk, then consecutive numbers."""
    trunk = range(branch.at) if plan.positions is None else plan.positions[: branch.at]
    first = trunk[-1] + 1 if len(trunk) else 0
    return torch.tensor(
        [*trunk, *range(first, first + len(branch.tokens))], dtype=torch.long
    )


class _Rows:
    """Collects, pass by pass, the row of every prompt's last token at every site."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: dict[str, Tensor] = {}
        self._read: dict[str, Tensor] = {}

    def watch(
        self,
        numbers: list[int],
        ends: list[int],
        keys: Tensor,
        own: Sequence[int] | None = None,
    ) -> list[tuple[str, Any]]:
        """Hooks for one pass: prompt `numbers[k]` is read in row `own[k]` of the batch, by default the only one, at
        index `ends[k]`, and its positions are `keys[k]`."""
        at = list(own or [0] * len(ends)), ends
        return (
            [
                (site, partial(self._keep, site, numbers, at, keys))
                for site in self.plan.sites
            ]
            if numbers
            else []
        )

    def _keep(
        self,
        site: str,
        numbers: list[int],
        at: tuple[list[int], list[int]],
        keys: Tensor,
        tensor: Tensor,
    ) -> None:
        if site.endswith("hook_pattern"):
            rows = tensor.transpose(1, 2)[at]
            # Reorder the columns of the pass to each prompt's own positions.
            place = (
                keys.clamp(min=0).to(rows.device)[:, None].expand(-1, rows.shape[1], -1)
            )
            rows = rows.gather(-1, place).masked_fill(
                (keys < 0).to(rows.device)[:, None], 0.0
            )
            rows = torch.nn.functional.pad(
                rows, (0, self.plan.longest - rows.shape[-1])
            )
        else:
            rows = tensor[at]
        self._read[site] = rows.detach()
        if site.endswith(
            "hook_pattern"
        ):  # large, so they do not wait for those of other blocks
            self.take(numbers)

    def take(self, numbers: list[int]) -> None:
        """Bring what one pass read to the CPU, all sites together."""
        for site, rows in zip(self._read, to_cpu([*self._read.values()]), strict=True):
            if site not in self.values:
                self.values[site] = rows.new_zeros(
                    len(self.plan.branches), *rows.shape[1:]
                )
            self.values[site][numbers] = rows
        self._read.clear()


def _tokens_per_pass(plan: Plan, n: int) -> int:
    """The number of branch tokens q in a pass.

    Memory limits q by each · q (n + q) = budget, where `each` is for the mask or three patterns. Attention between
    different branches is computed too and then masked, at a cost of q (n + q). So q is also limited to the number of
    trunk tokens, or a few hundred.
    """
    model = plan.run.model
    written = why_not_streamed(model, plan.sites) is not None
    each = 3 * int(model.cfg.n_heads) * dtype_of(model).itemsize if written else MASK
    cells = min(PASS_MEMORY, available(device_of(model)) / 4) / each
    fits = int((math.sqrt(n * n + 4 * cells) - n) / 2)
    return max(1, min(fits, max(n, FEW, *(len(b.tokens) for b in plan.branches))))


def _require_room(plan: Plan, prompts: int) -> None:
    """Raise an error if the rows of all prompts do not fit into CPU memory."""
    heads = int(plan.run.model.cfg.n_heads)
    patterns = sum(site.endswith("hook_pattern") for site in plan.sites)
    each = patterns * heads * plan.longest + (len(plan.sites) - patterns) * width(
        plan.run.model
    )
    size = prompts * each * plan.run.dtype.itemsize
    require_room(
        size,
        torch.device("cpu"),
        "Keeping the activations of every length",
        "Use fewer lengths.",
    )
