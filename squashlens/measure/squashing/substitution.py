"""The substitution effect: how far the output moves when a token is replaced, which a derivative cannot tell you."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, Candidates, SpansOfTokens, Target, positive
from squashlens.errors import InputError
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.memory import require_room
from squashlens.model.text.start import start_of
from squashlens.records.labels import MODEL_UNITS
from squashlens.run.activations import require_places, streams_at
from squashlens.run.budget import pass_bytes
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import log_probabilities
from squashlens.run.passes import read
from squashlens.run.run import Run
from squashlens.sequences import Branch
from squashlens.theory.distances import distance, divergence
from squashlens.theory.statistics.ranks import noise_ceiling

CEILINGS = (
    "noise_ceiling",
    "noise_ceiling_kl",
)  # of the effect, and of the KL divergence
CEILING = "rank correlation that the expected effects would have with these means"


# candidates are the tokens of all prompts, and draws go on from one to the next
@measurement(
    "substitution",
    prompts="dependent",
    cheaper="Fewer n_replacements= or positions= takes less.",
)
def substitution_effect(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    candidates: Candidates = None,
    n_replacements: int = 8,
    positions: Iterable[int] | None = None,
    spans: SpansOfTokens = None,
    query: int = -1,
    to_layer: Target = "y",
    seed: int = 0,
) -> xr.Dataset:
    """Mean distance that the output at the query moves when each token i is replaced by other tokens.

    ``effect_i = mean over x′ of ‖y_n(x) − y_n(x′)‖₂``, where x′ is the prompt x with token i replaced. A derivative
    describes infinitesimal changes of one residual stream; this describes changes of tokens.

    Args:
        model, prompt, query: as in `path_bound`.
        candidates: token ids that may replace a token; by default the distinct tokens of the prompts except BOS (of
            each prompt by itself, if the prompts are of unequal lengths). ``"predicted"``: tokens that the model
            expects there, drawn without replacement with p(· | tokens before); the prompt must begin with BOS.
        n_replacements: number of random replacements for each token or span, 8 by default. If fewer other candidates
            exist for a token, each of them is used once. A token is never replaced by itself.
        positions: positions whose tokens are replaced, as indices up to the query; by default all except a leading BOS.
        spans: as in `jacobian_norms`, without BOS. All tokens of a span up to the query are replaced at once, each by a
            random candidate other than itself, independently of the others; a draw that occurs twice counts once.
            Cannot be used with `positions`.
        to_layer: layer at which the distance is measured: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output
            of the final norm.
        seed: random seed of the replacements; 0 by default.

    Returns:
        Dataset over (position), or (prompt, position) for several prompts: `effect` and `effect_std`, mean and
        standard deviation of the distance over replacements, in the model's units; with ``to_layer="y"`` also `kl`,
        the mean of KL(p(x) ‖ p(x′)) of the next token, in nats. Positions up to the query that are not replaced are
        NaN; positions after the query are zero, by causality. Without a position,
        `noise_ceiling`: the Spearman ρ that the expected effects before the query would have with these means over a
        few replacements (`squashlens.theory.statistics.ranks.noise_ceiling`), so that no estimate can be expected to
        have a larger one; with ``to_layer="y"`` also `noise_ceiling_kl`, that of `kl`. Prompts of unequal lengths are
        padded as in `path_bound`; with `spans`, results are labelled as in `jacobian_norms`.

    Raises:
        InputError: positions after the query, no candidate that differs from a token that is to be replaced, or spans
            that have BOS, are of several prompts, or are given with positions.
        CapacityError: a forward pass does not fit into memory.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> digits = sl.prompts.tokenize(model, "0123456789")[0, 1:].tolist()
    >>> prompt = "What is the last digit in this sequence? 0107 ="
    >>> effect = sl.substitution_effect(model, prompt, candidates=digits)
    >>> effect["kl"].values[10:14].round(1).tolist()   # the model answers from the last digit alone
    [0.0, 0.0, 0.0, 15.0]
    """
    positive(n_replacements, "n_replacements", "a number of tokens")
    run = Run.of(
        model,
        prompt,
        "substitution_effect",
        candidates=candidates,
        n_replacements=n_replacements,
        query=query,
        to_layer=to_layer,
        seed=seed,
        spans=spans,
    )
    run.spans(0, to_layer)
    n, natural = run.query(query), isinstance(candidates, str)
    first = max(
        run.facts["bos_count"], 1 if natural else 0
    )  # a prediction needs a token before it
    run, groups = Spans.of(run, spans)
    if groups is None and n < first:
        raise InputError(
            f"The query is at position {n}, and no token up to it can be replaced.",
            "Give a longer prompt, or a later query=.",
        )
    together = choose_places(positions, groups, first, n)
    places = [*chain(*together.values())]
    choices = require_choices(
        run,
        None if isinstance(candidates, str) else candidates,
        [] if natural else places,
    )
    found = empty_effects(run, groups, together, n, ("effect", "effect_std", "kl"))
    ceilings = {
        name: torch.zeros(len(run.ids), dtype=torch.float64) for name in CEILINGS
    }
    drawn = draw_variants(
        run, together, None if natural else choices, n_replacements, n, seed
    )
    for row, (ids, (owners, variants)) in enumerate(
        zip(run.ids.cpu(), drawn, strict=True)
    ):
        moved = _read(run, ids[: n + 1], variants, to_layer)
        gaps = distance(moved[1:], moved[:1].expand_as(moved[1:]), "l2").cpu()
        apart = torch.zeros_like(gaps)
        if to_layer == "y":
            parts = beside_the_first(run, moved)
            apart = torch.cat([divergence(own, logs) for own, logs in parts])[1:].cpu()
        owners = owners[1:]
        before = [k for k, inside in together.items() if max(inside) < n]
        for ceiling, moves in zip(ceilings.values(), (gaps, apart), strict=True):
            ceiling[row] = noise_ceiling([moves[owners == k] for k in before], seed)
        for place in together:
            here = owners == place
            found["effect"][row, place] = gaps[here].mean()
            found["effect_std"][row, place] = gaps[here].std(correction=0)
            found["kl"][row, place] = apart[here].mean()
    what = "the token is" if groups is None else "all tokens of the span are"
    texts = {
        "effect": (
            f"mean distance that the output moves when {what} replaced",
            MODEL_UNITS,
        ),
        "effect_std": (
            "standard deviation of that distance over replacements",
            MODEL_UNITS,
        ),
        "kl": (f"mean KL divergence of the next token when {what} replaced", "nats"),
        **dict.fromkeys(ceilings, (CEILING, "1")),
    }
    kept = {
        name: text
        for name, text in texts.items()
        if to_layer == "y" or not name.endswith("kl")
    }
    return label_effects("substitution effect", run, found | ceilings, kept)


def empty_effects(
    run: Run,
    groups: Spans | None,
    together: Mapping[int, Sequence[int]],
    query: int,
    names: Iterable[str],
) -> dict[str, Float[Tensor, "prompt place"]]:
    """Zeros for every token or span, NaN for tokens up to the query that are not changed."""
    empty = torch.zeros(
        run.ids.shape if groups is None else (1, len(groups.names)),
        dtype=torch.float64,
    )
    if groups is None:
        empty[:, [place for place in range(query + 1) if place not in together]] = (
            torch.nan
        )
    return {name: empty.clone() for name in names}


def label_effects(
    long_name: str,
    run: Run,
    found: Mapping[str, Tensor],
    texts: Mapping[str, tuple[str, str]],
    labels: Mapping[str, Sequence[str]] | None = None,
) -> xr.Dataset:
    """The Dataset of effects per token or span; `texts` has the long name and unit of each, `labels` one per prompt."""
    dims, coords = run.coords()
    for name, each in (labels or {}).items():
        coords[name] = each[0] if len(run.ids) == 1 else ("prompt", list(each))
    kept = {
        name: values[0] if len(run.ids) == 1 else values
        for name, values in found.items()
    }
    return run.dataset(
        long_name,
        coords,
        {
            name: (dims[: kept[name].ndim], kept[name], *text)
            for name, text in texts.items()
        },
    )


def choose_places(
    positions: Iterable[int] | None, groups: Spans | None, first: int, query: int
) -> dict[int, list[int]]:
    """The tokens changed together: each of `positions` by itself, or those of each span up to the query."""
    if groups is None:
        places = list(range(first, query + 1) if positions is None else positions)
        require_places(places, first, query)
        return {place: [place] for place in places}
    if positions is not None:
        raise InputError(
            "positions= and spans= are given, which exclude each other.",
            "Give one of them.",
        )
    if any(place < first for inside in groups.positions for place in inside):
        raise InputError(
            "A span of spans= has the BOS token, which is not replaced.",
            f"Give positions from {first}.",
        )
    found = {
        number: inside
        for number, inside in enumerate(groups.within(query + 1))
        if inside
    }
    if not found:
        raise InputError(
            "All spans= come after the query.",
            "Give spans of tokens up to it, or a later query.",
        )
    return found


def require_choices(
    run: Run, candidates: Sequence[int] | None, places: Sequence[int]
) -> list[int]:
    """The candidates given, or the prompts' tokens without BOS. Raises if one of `places` has no other token."""
    vocabulary = int(run.model.cfg.d_vocab)
    if candidates is None:
        present = run.ids[:, run.facts["bos_count"] :]
        choices = sorted({*present.flatten().tolist()} - {start_of(run.model).bos})
    elif not candidates or not 0 <= min(candidates) <= max(candidates) < vocabulary:
        raise InputError(
            f"candidates={list(candidates)!r} are not token ids.",
            f"Give at least one, from 0 to {vocabulary - 1}.",
        )
    else:
        choices = sorted({*candidates})
    for ids in run.ids.tolist():
        stuck = [place for place in places if choices == [ids[place]] or not choices]
        if stuck:
            raise InputError(
                f"No candidate differs from the token at position {stuck[0]}.",
                "Give other token ids in candidates=.",
            )
    return choices


def draw_variants(
    run: Run,
    together: Mapping[int, Sequence[int]],
    choices: list[int] | None,
    n_replacements: int,
    query: int,
    seed: int,
) -> Iterator[tuple[Int[Tensor, " variant"], list[Branch]]]:
    """For each prompt, variants up to the query that differ from each other, with the place or span that is replaced.

    Tokens come from `choices`, or from what the model expects. The first variant, of place -1, is the prompt itself.
    """
    generator, places = (
        torch.Generator().manual_seed(seed),
        [*chain(*together.values())],
    )
    for ids in run.ids.cpu():
        if choices is None:
            others = _draw_expected(run, ids, places, n_replacements, generator)
        else:
            others = {
                p: torch.tensor([token for token in choices if token != int(ids[p])])
                for p in places
            }
        owners, branches = [-1], [Branch(query + 1, ())]
        for number, inside in together.items():
            if len(inside) == 1:
                each = others[inside[0]]
                rows = each[
                    torch.randperm(len(each), generator=generator)[:n_replacements]
                ][:, None]
            else:
                picked = [
                    torch.randint(
                        len(others[p]), (n_replacements,), generator=generator
                    )
                    for p in inside
                ]
                rows = torch.stack(
                    [others[p][k] for p, k in zip(inside, picked, strict=True)], dim=1
                ).unique(dim=0)
            for row in rows:
                changed = ids[: query + 1].clone()
                changed[inside] = row
                branches.append(Branch(inside[0], tuple(changed[inside[0] :].tolist())))
            owners += [number] * len(rows)
        yield torch.tensor(owners), branches


def _draw_expected(
    run: Run,
    ids: Int[Tensor, " position"],
    places: Sequence[int],
    n_replacements: int,
    generator: torch.Generator,
) -> dict[int, Int[Tensor, " draw"]]:
    """Other tokens for each place, drawn without replacement from what the model expects there.

    The largest of ``log p + g``, with g from Gumbel's distribution, are such a draw (Vieira 2014).
    """
    site, bos = run.site("y"), start_of(run.model).bos
    y = streams_at(run, ids[None].to(run.device), [site], at=torch.tensor(places) - 1)[
        site
    ][0]
    found: list[Tensor] = []
    for logs in log_probabilities(run, y):
        uniform = torch.rand(logs.shape, generator=generator, dtype=torch.float64)
        keys = logs.cpu() - (-uniform.log()).log()
        here = ids[places[len(found) : len(found) + len(logs)]]
        keys[torch.arange(len(logs)), here] = -torch.inf
        if bos is not None:
            keys[:, bos] = -torch.inf
        found += keys.topk(min(n_replacements, keys.shape[-1] - 2)).indices
    return dict(zip(places, found, strict=True))


def _read(
    run: Run,
    ids: Int[Tensor, " position"],
    variants: Sequence[Branch],
    to_layer: Target,
) -> Tensor:
    """The target at the last token for each variant of a prompt; they share the tokens before the first replacement."""
    site = run.site(to_layer)
    require_room(
        pass_bytes(run, 1, len(ids)),
        run.ids.device,
        "A forward pass",
        "Use a shorter prompt.",
    )
    return read(run, tuple(ids.tolist()), variants, [site]).values[site]


def beside_the_first(
    run: Run, y: Float[Tensor, "variant d"]
) -> Iterator[tuple[Float[Tensor, "1 outcome"], Float[Tensor, "some outcome"]]]:
    """Log-probabilities of the next token of some variants after others, each time with those of the first variant."""
    own = None
    for logs in log_probabilities(run, y):
        own = logs[:1] if own is None else own
        yield own, logs
