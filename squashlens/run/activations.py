"""Read activations: of a run's prompts, of the last token of many prompts, and of copies that differ by their hooks.

A text that is forced on a prompt has log-probabilities, which follow from y.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Target, short_repr
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.model.hooking.hook import Hook, watchers
from squashlens.model.loading.random_weights import with_random_weights
from squashlens.model.proof import opened
from squashlens.run.budget import batch_memory, pass_bytes
from squashlens.run.forward import forward, log_probabilities, next_logits
from squashlens.run.passes import PASS_MEMORY, batches
from squashlens.run.run import Run
from squashlens.sequences import Ids


def streams_of(
    run: Run, layers: Sequence[Target], at: Any = slice(None)
) -> list[Tensor]:
    """The residual streams of a run's prompts at some layers: those of its capture, or from one forward pass.

    One tensor (prompt, position, d) for each layer. `at` says which positions, as an index; all by default.
    """
    capture = run.capture
    if capture is not None and capture.y is not None:
        captured = {**capture.residuals, "y": capture.y}
        if captured.keys() >= set(layers):
            return [captured[layer][:, at] for layer in layers]
    sites = [run.site(layer) for layer in layers]
    activations = streams_at(run, run.ids, sites, at=at)
    return [activations[site] for site in sites]


def require_places(positions: Sequence[int], first: int, last: int) -> None:
    """Raise unless there is at least one position, all of them from `first` to `last`."""
    if not positions or not first <= min(positions) <= max(positions) <= last:
        raise InputError(
            f"positions={short_repr(positions)} are not positions from {first} to {last}.",
            f"Give at least one position from {first} to {last}.",
        )


def streams_at(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    sites: Iterable[str],
    context: Mapping[str, Any] | None = None,
    at: Any = slice(None),
) -> dict[str, Tensor]:
    """The activations at some hook points, and positions, in one forward pass, detached.

    `at` says which positions, as an index; all by default. `context` has further arguments of the model.
    """
    activations: dict[str, Tensor] = {}

    def keep(site: str, tensor: Tensor) -> None:
        activations[site] = tensor[:, at].detach().clone()

    forward(run, ids, watchers(sites, keep), context)
    return activations


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
    """Run every prompt under the hooks on the model, and keep its last token's activations at `sites`.

    Prompts of one length run in batches. `label` names the progress bar.
    """
    values: dict[str, Tensor] = {}
    next_tokens = torch.zeros(len(prompts), dtype=torch.long)

    def batch_size(n: int) -> int:
        return max(1, int(PASS_MEMORY / pass_bytes(run, 1, n)))

    def keep(numbers: list[int], site: str, tensor: Tensor) -> None:
        """Keep what the prompts with these numbers, the rows of a batch, have at their last token."""
        rows = tensor[:, -1].detach().cpu()
        if site not in values:
            values[site] = rows.new_zeros(len(prompts), *rows.shape[1:])
        values[site][numbers] = rows

    lengths = [len(prompt) for prompt in prompts]
    with bar(total=len(prompts), desc=label, unit="prompt") as progress_bar:
        for _, numbers in batches(lengths, batch_size):
            ids = torch.tensor([prompts[i] for i in numbers], device=run.device)
            watch = watchers(sites, partial(keep, numbers))
            next_tokens[numbers] = next_logits(run, ids, watch).argmax(dim=-1).cpu()
            progress_bar.update(len(numbers))
    return LastTokens(values, next_tokens)


def edited_copies(
    run: Run,
    ids: Int[Tensor, " position"],
    many: int,
    hooks: Callable[[list[int]], Sequence[Hook]],
    cache: Any = None,
) -> Iterator[Float[Tensor, "some position d"]]:
    """y of `many` copies of a prompt that differ by their hooks: yields (copy, position, d), one batch after another.

    ``hooks([4, 5])`` are the hooks of a pass whose rows are the copies with the numbers 4 and 5. With a cache, `ids`
    follow what is in it.
    """
    n_tokens = len(ids)
    if cache is not None:
        n_tokens += int(cache.get_seq_length())
    size = max(1, int(batch_memory(run) / pass_bytes(run, 1, n_tokens)))
    for numbers in bar(torch.arange(many).split(size), desc="variants", leave=False):
        context = None
        if cache is not None:
            copied = copy.deepcopy(cache)  # a pass appends to it
            copied.batch_repeat_interleave(len(numbers))
            context = {"use_cache": True, "past_key_values": copied}
        copies = ids.expand(len(numbers), -1).clone()
        with run.applied(*hooks(numbers.tolist())):
            yield streams_at(run, copies, [run.site("y")], context)[run.site("y")]


def log_p(
    run: Run, y: Float[Tensor, "branch token d"], tokens: Int[Tensor, " token"]
) -> Float[Tensor, "branch token"]:
    """The log-probability of each token of a text, from the y before it (teacher forcing), in float64 on the CPU."""
    wanted = tokens.cpu().repeat(len(y))  # branch by branch, as the rows of y below
    # Filled in place: results that stay among freed logits would keep the allocator from using that room again.
    of_tokens = torch.empty(len(wanted), dtype=torch.float64)
    start = 0
    for logs in log_probabilities(run, y.flatten(end_dim=1)):
        stop = start + len(logs)
        of_tokens[start:stop] = logs.cpu().gather(1, wanted[start:stop, None])[:, 0]
        start = stop
    return of_tokens.view(y.shape[:2])


@contextmanager
def untrained(run: Run, seed: int) -> Iterator[Run]:
    """The run with a model of the same architecture, whose random weights are drawn from `seed`."""
    model = with_random_weights(run.model, seed)
    with opened(model):
        yield run.of_model(model)
