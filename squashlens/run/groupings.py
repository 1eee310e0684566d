"""Run the same prompts in other groupings into passes, which round otherwise.

Two runs of one shape round alike, on most hardware to the last bit, and so show no noise. Here a prompt is computed
whole, with fused attention where it can, and again in pieces whose keys and values are cached, with written patterns.
Mathematically all runs are equal, by causality.

Under hooks, with encodings that depend on the length of a pass, and in TransformerLens's own models a piece would be
another computation than the whole prompt. There the other runs write whole patterns, for one copy of the prompt and for
several.
"""

import copy
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.bars import bar
from squashlens.model.hooking.hook import watchers
from squashlens.model.memory import require_room
from squashlens.run.forward import forward
from squashlens.run.generate import empty_cache
from squashlens.run.run import Run
from squashlens.run.streamed import patterns_written
from squashlens.sequences import Ids

PIECES = (7, 64)  # tokens in a pass: few, so that other kernels run, and more
REASON = "a prompt is run again in another grouping"
COPIES = (1, 3)  # copies of a prompt in a batch, where it cannot be cut


def groupings(run: Run) -> list[str]:
    """How the prompts are computed in each run, in words for the provenance."""
    others = [f"in pieces of {size} tokens" for size in PIECES]
    if empty_cache(run) is None:
        others = [f"whole, {n} side by side, with patterns" for n in COPIES]
    return ["whole", *others]


def grouped_streams(
    run: Run,
    rows: Sequence[Ids],
    places: Sequence[Sequence[int]],
    *,
    label: str = "groupings",
) -> Float[Tensor, "run layer prompt d"]:
    """v⁽⁰⁾ … v⁽ᴸ⁾ and y of prompts in every grouping, in float32 or wider, on the CPU.

    Each row of token ids is run once for each grouping, and read at its `places`: a place is the last token of the
    prompt that ends there, whose representation does not depend on what follows. The prompts of all rows follow one
    another.
    """
    sites = run.sites()
    n_runs = 1 + len(PIECES)
    n_prompts = sum(map(len, places))
    numbers = n_runs * len(sites) * n_prompts * run.width
    cpu = torch.device("cpu")
    what = "Keeping the representations of every run"
    require_room(4 * numbers, cpu, what, "Use fewer prompts.")
    of_rows: list[Tensor] = []  # (run, layer, place, d) of each row
    rows_and_places = list(zip(rows, places, strict=True))
    for ids, places_in_row in bar(rows_and_places, desc=label, unit="prompt"):
        runs: list[Tensor] = []
        for streams in _in_each(run, ids, sites):
            runs.append(streams[:, list(places_in_row)].cpu())
        of_rows.append(torch.stack(runs))
    return _wide(torch.cat(of_rows, dim=2))


def continued_streams(
    run: Run,
    ids: Ids,
    continuations: Sequence[Ids],
    sizes: Sequence[int | None] = (None, *PIECES),
) -> tuple[Float[Tensor, "run layer d"], list[Float[Tensor, "run token d"]]]:
    """A prompt's v⁽⁰⁾ … v⁽ᴸ⁾ and y, and y before each token of several continuations, in every grouping, on the CPU.

    `sizes` are the groupings: None for the whole prompt, or the number of tokens in a piece. A piece of the prompt is
    run once, and continuations follow on copies of its cache. Where prompts cannot be cut, all groupings are run.
    """
    # A tail is what precedes the last token of an answer: of all answers of one token, nothing.
    tails = list(dict.fromkeys(tokens[:-1] for tokens in continuations))
    if empty_cache(run) is None:
        last = len(ids) - 1
        rows = [ids + tail for tail in tails]
        places = [range(last, len(row)) for row in rows]
        streams = grouped_streams(run, rows, places, label="answers")
        # Each row begins with the prompt, which is read in the first one.
        of_prompt = streams[:, :, 0]
        ys = streams[:, -1]
    else:
        streams_of_runs: list[Tensor] = []
        ys_of_runs: list[Tensor] = []
        for size in sizes:
            streams, y = _with_tails(run, ids, tails, size)
            streams_of_runs.append(streams)
            ys_of_runs.append(y)
        of_prompt = torch.stack(streams_of_runs)
        ys = torch.stack(ys_of_runs)
    # Each tail has y at the prompt's last token, and at its own tokens.
    lengths = [len(tail) + 1 for tail in tails]
    of_tail = dict(zip(tails, ys.split(lengths, dim=1), strict=True))
    return of_prompt, [of_tail[tokens[:-1]] for tokens in continuations]


def _with_tails(
    run: Run, ids: Ids, tails: Sequence[Ids], size: int | None
) -> tuple[Float[Tensor, "layer d"], Float[Tensor, "token d"]]:
    """The streams at the prompt's last token, and y from there on with each tail in turn, in pieces of `size` tokens.

    Without a size each tail follows the prompt in one pass; else it is run on a copy of the prompt's cache.
    """
    sites = run.sites()
    last = len(ids) - 1
    ys: list[Tensor] = []  # y is the last of the sites
    if size is None:
        passes: list[Tensor] = []
        for tail in tails:
            streams = _read(run, [_row(run, ids + tail)], sites, None)[:, last:]
            passes.append(streams)
            ys.append(streams[-1])
        of_prompt = passes[0][:, 0]
    else:
        with patterns_written(REASON):
            cache = empty_cache(run)
            pieces = _row(run, ids).split(size, dim=1)
            of_prompt = _read(run, pieces, sites, cache)[:, -1]
            for tail in tails:
                ys.append(of_prompt[-1:])
                if tail:
                    on_cache = copy.deepcopy(cache)
                    after = _read(run, [_row(run, tail)], sites[-1:], on_cache)
                    ys.append(after[0])
    return _wide(of_prompt.cpu()), _wide(torch.cat(ys).cpu())


def _row(run: Run, ids: Ids) -> Tensor:
    return torch.tensor([ids], device=run.device)


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _in_each(run: Run, ids: Ids, sites: Sequence[str]) -> Iterator[Tensor]:
    """The streams at all positions, of shape (layer, position, d), in each grouping."""
    row = _row(run, ids)
    yield _read(run, [row], sites, None)
    with patterns_written(REASON):
        if empty_cache(run) is None:
            for copies in COPIES:
                yield _read(run, [row.expand(copies, -1).clone()], sites, None)
        else:
            for size in PIECES:
                yield _read(run, row.split(size, dim=1), sites, empty_cache(run))


def _read(
    run: Run, pieces: Sequence[Tensor], sites: Sequence[str], cache: object
) -> Tensor:
    """The streams of a prompt at all positions, (site, position, d), with its pieces run one after another.

    Pieces are token ids (copy, position), of which the first copy is read. Several need a `cache`, which they fill.
    """
    parts: dict[str, list[Tensor]] = {site: [] for site in sites}

    def keep(site: str, tensor: Tensor) -> None:
        parts[site].append(tensor[0].detach().clone())

    context = None if cache is None else {"use_cache": True, "past_key_values": cache}
    for piece in pieces:
        forward(run, piece, watchers(sites, keep), context)
    last_device = parts[sites[-1]][0].device  # a model may be on several
    streams = [torch.cat(parts[site]).to(last_device) for site in sites]
    return torch.stack(streams)
