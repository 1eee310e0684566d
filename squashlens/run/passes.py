"""Run many prompts in few forward passes: a trunk that they share, and branches that leave it.

By causality, a prompt that is a prefix of the trunk needs no pass of its own: its activations are part of the trunk's
pass. Any other prompt is a *branch*: a prefix of the trunk, followed by other tokens. These run on the trunk's cache,
many branches in one pass, and each sees only its own past.

    trunk     t₁ t₂ t₃ t₄ t₅ …            one pass
    branch    t₁ t₂ t₃ b₁ b₂              only b₁ b₂ are run

Passes are not shared if the model's position encoding depends on the length of a pass, or if hooks are on the model,
since these would get positions of other prompts. Otherwise shared passes are compared with one pass for each prompt,
for each trunk: at the shortest prompt, the longest, the longest branch, and one between. This finds models that
ignore the mask, and a dependence on length that the configuration does not state.
"""

import copy
import math
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from squashlens._typing import Passes
from squashlens.bars import bar
from squashlens.errors import FAILURES, InputError
from squashlens.model.agreement import SAME_OPERATIONS, agree
from squashlens.model.anatomy import is_native, why_lengths_differ
from squashlens.model.hooking.hook import Hook, watchers
from squashlens.model.hooking.standing import attached
from squashlens.model.memory import available, require_room, to_cpu
from squashlens.run.budget import batch_memory, pass_bytes
from squashlens.run.forward import causal, context, forward
from squashlens.run.run import Run
from squashlens.run.streamed import (
    implementation,
    why_not_streamed,
)
from squashlens.sequences import Branch, Ids

PASS_MEMORY = 1e9  # bytes for the attention of one pass over branches
FEW = 256  # branch tokens whose pass takes little longer than a pass with one token
MASK = 24  # bytes for one query and key while a mask is built
ALONE = "its prompts cannot share a pass"

Kind = TypeVar("Kind", bound=Hashable)
Rows = dict[str, Tensor]  # by hook point, a row for each prompt
OnTrunk = Callable[[int], Sequence[Hook]]


@dataclass(frozen=True)
class Readings:
    """The activations of each prompt's last token, `values[site]` (branch, …), and how the prompts were run."""

    values: Rows
    route: str
    attention: str


@dataclass(frozen=True)
class Plan:
    """What is run: a trunk, the different prompts, the hook points that are read, and hooks; see `read`."""

    run: Run
    trunk: Ids
    branches: tuple[Branch, ...]
    sites: tuple[str, ...]
    positions: Ids | None = None
    hooks: OnTrunk | None = None
    branch_hooks: tuple[Hook, ...] = ()
    copies: int = 1

    @cached_property
    def longest(self) -> int:
        """The number of tokens of the longest prompt."""
        return max(map(len, self.branches))

    @cached_property
    def needed(self) -> Branch:
        """The part of the trunk that some prompt begins with, as a branch without tokens of its own."""
        return Branch(max(branch.at for branch in self.branches))

    @property
    def in_batches(self) -> bool:
        """Whether prompts of one length may run as a batch: none has hooks or positions of its own."""
        return self.copies == 1 and self.positions is None and self.hooks is None

    def hooks_on(self, tokens_of_trunk: int) -> Sequence[Hook]:
        """The hooks of a pass that starts with this number of tokens of the trunk."""
        return () if self.hooks is None else self.hooks(tokens_of_trunk)

    def places(self, branch: Branch) -> Int[Tensor, " position"]:
        """Position ids of a prompt: those of the trunk, then consecutive numbers."""
        positions = self.positions
        if positions is None:
            return torch.arange(len(branch))
        on_trunk = torch.tensor(positions[: branch.at], dtype=torch.long)
        first_after = positions[branch.at - 1] + 1 if branch.at else 0
        return torch.cat([on_trunk, torch.arange(len(branch.tokens)) + first_after])


def read(
    run: Run,
    trunk: Ids,
    branches: Sequence[Branch],
    sites: Sequence[str],
    *,
    positions: Ids | None = None,
    hooks: OnTrunk | None = None,
    branch_hooks: Sequence[Hook] = (),
    passes: Passes = "auto",
    copies: int = 1,
) -> Readings:
    """Read activations at the last token of every prompt, in as few forward passes as possible.

    `positions` are the trunk's position ids, which a branch continues. ``hooks(k)`` are on the model in a pass that
    starts with k tokens of the trunk, and must not act on later tokens; `branch_hooks` in those that continue its
    cache. `passes` is as in `capture`. A separate pass runs `copies` of its prompt and reads the first: with another
    number of them the same terms are added in another order.
    """
    prompts = [branch.along(trunk, positions) for branch in branches]
    different = dict.fromkeys(prompts)  # equal prompts are run once
    plan = Plan(
        run=run,
        trunk=trunk,
        branches=tuple(different),
        sites=tuple(sites),
        positions=positions,
        hooks=hooks,
        branch_hooks=tuple(branch_hooks),
        copies=copies,
    )
    _require_room(plan, len(prompts))
    rows, route = _route(plan, passes)
    if len(different) < len(prompts):  # equal prompts get the same row
        number_of = {prompt: number for number, prompt in enumerate(different)}
        numbers = [number_of[prompt] for prompt in prompts]
        for site in rows:
            rows[site] = rows[site][numbers]
    return Readings(rows, route, implementation(run.model, sites, plan.longest))


def _route(plan: Plan, passes: Passes) -> tuple[Rows, str]:
    """The rows of all prompts, and how they were run: ``"shared"``, ``"separate"`` or ``"separate, since …"``."""
    if passes == "separate":
        return _run_separately(plan), "separate"
    reason = _why_not_shared(plan)
    if reason is None:
        try:
            rows = _run_together(plan)
        except FAILURES:  # a model that does not accept such a mask or cache
            reason = ALONE
        else:
            reason = _why_wrong(plan, rows)
            if reason is None:
                return rows, "shared"
    if passes == "shared":
        raise InputError(
            f"passes='shared' gives wrong numbers here: {reason}.",
            "Use passes='auto' or 'separate'.",
        )
    return _run_separately(plan), f"separate, since {reason}"


def _why_not_shared(plan: Plan) -> str | None:
    """Why shared passes need not be tried; None if they are worth it."""
    if plan.run.hooks():
        return "hooks are on the model"
    if is_native(plan.run.model):  # which has no cache
        return ALONE
    # The length of a pass, as position encodings see it, is its largest position + 1.
    lengths: set[int] = set()
    for branch in (*plan.branches, plan.needed):
        if len(branch):
            lengths.add(int(plan.places(branch)[-1]) + 1)
    return why_lengths_differ(plan.run.model, lengths)


def _why_wrong(plan: Plan, rows: Rows) -> str | None:
    """The reason why shared rows differ from separate passes of a few prompts; `None` if they agree, or did before."""
    chosen = _sample(plan)
    few = replace(plan, branches=tuple(plan.branches[number] for number in chosen))
    # What agreed before is kept in a set with the proof (`set[Any]()`).
    known = plan.run.proof.once("prompts that share a pass", set[Any])
    key = (few.trunk, few.branches, few.sites, few.positions)
    if not chosen or key in known:
        return None
    for site, truth in _run_separately(few).items():
        # Rows of patterns are padded to the longest prompt of all, or of the few.
        shared = rows[site][chosen][..., : truth.shape[-1]]
        if not agree(shared, truth, plan.run.dtype, tolerance=SAME_OPERATIONS):
            return f"its numbers depend on what it shares a pass with (at {site})"
    known.add(key)
    return None


def _sample(plan: Plan) -> list[int]:
    """Indices of the prompts that are compared with a pass of their own, at most four.

    They are the shortest prompt, the longest, the longest one that leaves the trunk, and the longest of those that have
    between twice the shortest one's tokens and a quarter of the longest one's. The whole trunk is left out, since it
    had a pass of its own.
    """
    lengths = np.array([len(branch) for branch in plan.branches])
    order = lengths.argsort(kind="stable")
    in_order = lengths[order]
    leaves_trunk = np.array([bool(plan.branches[i].tokens) for i in order])
    is_short = (2 * in_order[0] <= in_order) & (in_order <= plan.longest / 4)
    chosen = {int(order[0]), int(order[-1])}
    chosen.update(order[leaves_trunk][-1:].tolist())  # one, or none
    chosen.update(order[is_short][-1:].tolist())
    return sorted(i for i in chosen if plan.branches[i] != plan.needed)


def _run_separately(plan: Plan) -> Rows:
    """Run every prompt as a whole: those of one length in one batch, unless each needs hooks or places of its own."""
    rows = _Rows(plan)

    def batch_size(length: int) -> int:
        if not plan.in_batches:
            return 1
        return max(1, int(batch_memory(plan.run) / pass_bytes(plan.run, 1, length)))

    lengths = [len(branch) for branch in plan.branches]
    longest_first = sorted(batches(lengths, batch_size), reverse=True)
    with bar(total=len(plan.branches), desc="prompts") as progress_bar:
        for length, numbers in longest_first:
            first = plan.branches[numbers[0]]
            prompts = [plan.branches[number].ids(plan.trunk) for number in numbers]
            ids = torch.tensor(prompts, device=plan.run.device)
            ids = ids.repeat_interleave(plan.copies, dim=0)
            # With hooks or positions of its own a prompt is alone in its batch.
            extra = None
            if plan.positions is not None:
                places = plan.places(first)
                extra = context(plan.run, places, places, causal(length))
            first_copies = range(0, len(ids), plan.copies)
            reads = Reads(numbers, first_copies, [length - 1] * len(numbers))
            rows.run(ids, reads, extra, plan.hooks_on(first.at))
            progress_bar.update(len(numbers))
    return rows.values


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
        for start in range(0, len(places), step):
            yield kind, places[start : start + step]


def _run_together(plan: Plan) -> Rows:
    """Run the trunk in one pass, and then the tokens of the branches on its cache."""
    rows = _Rows(plan)
    run = plan.run
    # Numbers of the prompts that are prefixes of the trunk, and of those with tokens of their own.
    on_trunk: list[int] = []
    leaving: list[int] = []
    for number, branch in enumerate(plan.branches):
        if branch.tokens:
            leaving.append(number)
        else:
            on_trunk.append(number)
    n = len(plan.needed)
    places = plan.places(plan.needed)
    # A cache without the configuration keeps every key; one that is trimmed to a window would be misread.
    cache = DynamicCache()
    extra: dict[str, Any] = {}
    if leaving:
        extra |= {"use_cache": True, "past_key_values": cache}
    if plan.positions is not None:
        extra |= context(run, places, places, causal(n))
    if n:
        ids = torch.tensor([plan.trunk[:n]], device=run.device)
        ends = [plan.branches[number].at - 1 for number in on_trunk]
        reads = Reads(on_trunk, [0] * len(ends), ends)
        rows.run(ids, reads, extra, plan.hooks_on(n))
    groups = _groups(plan, leaving, _tokens_per_pass(plan, n))
    for group in bar(groups, desc="branches", unit="pass"):
        _on_cache(plan, rows, group, cache, places)
    return rows.values


def _groups(plan: Plan, leaving: list[int], tokens_per_pass: int) -> list[list[int]]:
    """Groups of branches with at most `tokens_per_pass` tokens together, or a single branch."""
    groups: list[list[int]] = []
    free = 0  # tokens that the last group may still have
    for number in leaving:
        tokens = len(plan.branches[number].tokens)
        if not groups or tokens > free:
            groups.append([])
            free = tokens_per_pass
        groups[-1].append(number)
        free -= tokens
    return groups


def _on_cache(
    plan: Plan, rows: "_Rows", group: list[int], cache: Any, of_trunk: Tensor
) -> None:
    """Run one pass over the tokens of several branches; each sees its part of the trunk and itself.

    The branches stand one after the other in one row. `cache` has the keys of the trunk, whose position ids are
    `of_trunk`; so key k of the pass is position k of the trunk, and key n + k is token k of the row.
    """
    branches = [plan.branches[number] for number in group]
    tokens: list[int] = []
    for branch in branches:
        tokens += branch.tokens
    n = len(of_trunk)  # tokens of the trunk
    # (query, key)
    visible = torch.zeros(len(tokens), n + len(tokens), dtype=torch.bool)
    # The key of each position of a prompt, (branch, position); -1 after its end.
    keys = torch.full((len(branches), plan.longest), -1)
    places: list[Tensor] = []
    ends: list[int] = []
    start = 0
    for row, branch in enumerate(branches):
        stop = start + len(branch.tokens)
        visible[start:stop, : branch.at] = True
        visible[start:stop, n + start : n + stop] = causal(stop - start)
        keys[row, : branch.at] = torch.arange(branch.at)
        keys[row, branch.at : len(branch)] = torch.arange(n + start, n + stop)
        places.append(plan.places(branch)[branch.at :])
        ends.append(stop - 1)
        start = stop
    # The pass appends to the cache: here to copies of its layers, which share the tensors.
    fresh = copy.copy(cache)
    fresh.layers = [copy.copy(layer) for layer in cache.layers]
    position = torch.cat(places)
    extra = context(plan.run, position, torch.cat([of_trunk, position]), visible)
    extra |= {"use_cache": True, "past_key_values": fresh}
    ids = torch.tensor([tokens], device=plan.run.device)
    reads = Reads(group, [0] * len(group), ends, keys)
    rows.run(ids, reads, extra, plan.branch_hooks)


@dataclass(frozen=True)
class Reads:
    """What is read of a pass: prompt `numbers[k]` in row `in_batch[k]` at position `ends[k]`.

    `keys` are the keys of the prompt's positions, (prompt, position), if they are others than these.
    """

    numbers: Sequence[int]
    in_batch: Sequence[int]
    ends: Sequence[int]
    keys: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The rows of the last tokens, for activations of shape (row, position, …)."""
        return tensor[list(self.in_batch), list(self.ends)].detach()

    def of_pattern(self, pattern: Tensor, longest: int) -> Tensor:
        """The last tokens' rows of a pattern, (prompt, head, position), padded with zeros to the longest prompt."""
        by_query = pattern.transpose(1, 2)  # (row, query, head, key)
        rows = self.of(by_query)
        if self.keys is not None:
            # From the keys of the pass to the positions of each prompt.
            keys = self.keys.to(rows.device)[:, None].expand(-1, rows.shape[1], -1)
            rows = rows.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
        return torch.nn.functional.pad(rows, (0, longest - rows.shape[-1]))


class _Rows:
    """The row of every prompt's last token at every site, on the CPU, filled pass by pass."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: Rows = {}

    def run(
        self,
        ids: Int[Tensor, "row position"],
        reads: Reads,
        extra: Mapping[str, Any] | None,
        hooks: Sequence[Hook],
    ) -> None:
        """Run one pass with further arguments of the model and `hooks`, and keep what is read of it."""
        waiting: Rows = {}  # until the end of the pass

        def keep(site: str, tensor: Tensor) -> None:
            """Read the last tokens' rows at a site."""
            if site.endswith("hook_pattern"):
                # They are large, so they do not wait for those of other blocks.
                pattern_rows = reads.of_pattern(tensor, self.plan.longest)
                self._take(reads.numbers, {site: pattern_rows})
            else:
                waiting[site] = reads.of(tensor)

        sites = self.plan.sites if reads.numbers else ()
        with attached(self.plan.run.model, *hooks):
            forward(self.plan.run, ids, watchers(sites, keep), extra)
        self._take(reads.numbers, waiting)

    def _take(self, numbers: Sequence[int], of_sites: Rows) -> None:
        """Bring what one pass read of the prompts with these numbers to the CPU, all sites together."""
        on_cpu = to_cpu(list(of_sites.values()))
        for site, rows in zip(of_sites, on_cpu, strict=True):
            if site not in self.values:
                n_prompts = len(self.plan.branches)
                self.values[site] = rows.new_zeros(n_prompts, *rows.shape[1:])
            self.values[site][list(numbers)] = rows


def _tokens_per_pass(plan: Plan, n: int) -> int:
    """The number of branch tokens q in a pass, on a trunk of n tokens.

    Memory limits the q (n + q) pairs of a query and a key, each of which takes bytes for the mask, or for three
    patterns where these are computed. Attention between different branches is computed too and then masked, at a cost
    of q (n + q). So q is also limited to the number of trunk tokens, or a few hundred.
    """
    bytes_of_pair = MASK
    if why_not_streamed(plan.run.model, plan.sites) is not None:
        bytes_of_pair = 3 * int(plan.run.model.cfg.n_heads) * plan.run.dtype.itemsize
    pairs = min(PASS_MEMORY, available(plan.run.device) / 4) / bytes_of_pair
    # The positive solution of q (n + q) = pairs.
    fits = int((math.sqrt(n * n + 4 * pairs) - n) / 2)
    longest_branch = max(len(branch.tokens) for branch in plan.branches)
    most = max(n, FEW, longest_branch)
    return max(1, min(fits, most))


def _require_room(plan: Plan, prompts: int) -> None:
    """Raise an error if the rows of all prompts do not fit into CPU memory."""
    patterns = sum(site.endswith("hook_pattern") for site in plan.sites)
    numbers = patterns * int(plan.run.model.cfg.n_heads) * plan.longest
    numbers += (len(plan.sites) - patterns) * plan.run.width
    require_room(
        prompts * numbers * plan.run.dtype.itemsize,
        torch.device("cpu"),
        "Keeping the activations of every length",
        "Use fewer lengths.",
    )
