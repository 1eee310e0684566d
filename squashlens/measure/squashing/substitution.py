"""The substitution effect: how far the output moves when a token is replaced, which a derivative cannot tell you."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, Candidates, SpansOfTokens, Target, positive
from squashlens.errors import InputError
from squashlens.measure.registration import measurement, this_call
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


# "dependent": candidates are the tokens of all prompts, and one generator draws for one prompt after the other
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
    n_replacements: int = 4,
    positions: Iterable[int] | None = None,
    spans: SpansOfTokens = None,
    query: int = -1,
    to_layer: Target = "y",
    seed: int = 0,
) -> xr.Dataset:
    """Mean distance that the output at the query moves when each token i is replaced by other tokens.

    ``output_change_i = mean over x′ of ‖y_n(x) − y_n(x′)‖₂``, where x′ is the prompt x with token i replaced. A
    derivative describes infinitesimal changes of one residual stream; this describes changes of tokens.

    Args:
        model, prompt, query: as in `path_bound`.
        candidates: token ids that may replace a token; by default the distinct tokens of the prompts except BOS (of
            each prompt by itself, if the prompts are of unequal lengths). ``"predicted"``: tokens that the model
            expects there, drawn without replacement with p(· | tokens before); the prompt must begin with BOS.
        n_replacements: number of random replacements for each token or span; 4 by default, with which 60 tokens take
            half a minute on Gemma 3 270M. 16 take four times as long, and halve the standard error of the mean. If
            fewer other candidates exist for a token, each is used once. A token is never replaced by itself.
        positions: positions whose tokens are replaced, as indices up to the query; by default all except a leading BOS.
        spans: as in `jacobian_norms`, without BOS. All tokens of a span up to the query are replaced at once, each by a
            random candidate other than itself, independently of the others; a draw that occurs twice counts once.
            Cannot be used with `positions`.
        to_layer: layer at which the distance is measured: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output
            of the final norm.
        seed: random seed of the replacements; 0 by default.

    Returns:
        Dataset over (position), or (prompt, position) for several prompts: `output_change` and `output_change_std`,
        mean and standard deviation of the distance over replacements, in the model's units; with ``to_layer="y"`` also
        `kl`, the mean of KL(p(x) ‖ p(x′)) of the next token, in nats. Positions up to the query that are not replaced
        are NaN; positions after the query are zero, by causality. Prompts of unequal lengths are padded as in
        `path_bound`; with `spans`, results are labelled as in `jacobian_norms`.

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
    run = Run.of(model, prompt, **this_call())
    run.spans(0, to_layer)  # raises for a layer that does not exist
    n = run.query(query)
    run, groups = Spans.of(run, spans)
    first = run.facts["bos_count"]
    if isinstance(candidates, str):
        first = max(first, 1)  # a prediction needs a token before it
    if groups is None and n < first:
        raise InputError(
            f"The query is at position {n}, and no token up to it can be replaced.",
            "Give a longer prompt, or a later query=.",
        )
    replaced = choose_places(positions, groups, first, n)
    if isinstance(candidates, str):
        choices = None
    else:
        places = list(chain.from_iterable(replaced.values()))
        choices = require_choices(run, candidates, places)
    names = ("output_change", "output_change_std", "kl")
    effects = empty_effects(run, groups, replaced, n, names)
    variants_of_prompts = draw_variants(run, replaced, choices, n_replacements, n, seed)
    for row, variants in enumerate(variants_of_prompts):
        moved = _moved_by(run, run.ids[row, : n + 1].cpu(), variants, to_layer)
        for entry in replaced:
            distances, divergences = moved[entry]
            effects["output_change"][row, entry] = distances.mean()
            effects["output_change_std"][row, entry] = distances.std(correction=0)
            effects["kl"][row, entry] = divergences.mean()
    what = "the token is" if groups is None else "all tokens of the span are"
    texts = {
        "output_change": (
            f"mean distance that the output moves when {what} replaced",
            MODEL_UNITS,
        ),
        "output_change_std": (
            "standard deviation of that distance over replacements",
            MODEL_UNITS,
        ),
    }
    if to_layer == "y":
        kl = f"mean KL divergence of the next token when {what} replaced"
        texts["kl"] = (kl, "nats")
    return label_effects("substitution effect", run, effects, texts)


class Moves(NamedTuple):
    """How far each replacement of one token or span moves the output, and the next token's distribution."""

    distances: Float[Tensor, " variant"]
    divergences: Float[Tensor, " variant"]


class Variants(NamedTuple):
    """Prompts up to the query: the prompt itself first, and then those in which tokens are replaced.

    `entries` has for each the entry of the result to which it belongs: the position, or the number of the span, that is
    replaced in it; −1 for the prompt itself.
    """

    entries: Int[Tensor, " variant"]
    branches: list[Branch]


def _moved_by(
    run: Run, ids: Int[Tensor, " position"], variants: Variants, to_layer: Target
) -> dict[int, Moves]:
    """‖y_n(x) − y_n(x′)‖₂ and KL(p(x) ‖ p(x′)) of each variant x′ of a prompt x, by entry of the result.

    The divergences are 0 for another target than y.
    """
    read_out = _at_the_query(run, ids, variants.branches, to_layer)
    replaced = read_out[1:]  # row 0 is the prompt itself
    unchanged = read_out[:1].expand_as(replaced)
    distances = distance(replaced, unchanged, "l2").cpu()
    divergences = torch.zeros_like(distances)
    if to_layer == "y":
        parts: list[Tensor] = []
        for log_p, log_q in beside_the_first(run, read_out):
            parts.append(divergence(log_p, log_q))
        divergences = torch.cat(parts)[1:].cpu()
    entries = variants.entries[1:]
    moves: dict[int, Moves] = {}
    for entry in entries.unique().tolist():
        of_entry = entries == entry
        moves[entry] = Moves(distances[of_entry], divergences[of_entry])
    return moves


def empty_effects(
    run: Run,
    groups: Spans | None,
    changed: Mapping[int, Sequence[int]],
    query: int,
    names: Iterable[str],
) -> dict[str, Float[Tensor, "prompt entry"]]:
    """For each name the tensor that effects are written into, with an entry for each token, or each span.

    It is 0, as is the effect of what comes after the query, and NaN for tokens up to the query that are not `changed`.
    """
    if groups is None:
        empty = torch.zeros(run.ids.shape, dtype=torch.float64)
        is_changed = torch.zeros(run.positions, dtype=torch.bool)
        is_changed[list(changed)] = True
        empty[:, : query + 1].masked_fill_(~is_changed[: query + 1], torch.nan)
    else:
        empty = torch.zeros(1, len(groups.names), dtype=torch.float64)
    return {name: empty.clone() for name in names}


def label_effects(
    long_name: str,
    run: Run,
    effects: Mapping[str, Tensor],
    texts: Mapping[str, tuple[str, str]],
    labels: Mapping[str, Sequence[str]] | None = None,
) -> xr.Dataset:
    """The Dataset of effects (prompt, entry) or (prompt) by name; without the dimension `prompt` for a single prompt.

    `texts` has the long name and unit of each effect that the result has, and `labels` a coordinate's value for each
    prompt.
    """
    is_single = len(run.ids) == 1
    dims, coords = run.coords()
    for name, by_prompt in (labels or {}).items():
        coords[name] = by_prompt[0] if is_single else ("prompt", list(by_prompt))
    variables = {}
    for name, (text, units) in texts.items():
        values = effects[name][0] if is_single else effects[name]
        over = dims[: values.ndim]  # an effect without positions is over prompts alone
        variables[name] = (over, values, text, units)
    return run.dataset(long_name, coords, variables)


def choose_places(
    positions: Iterable[int] | None, groups: Spans | None, first: int, query: int
) -> dict[int, list[int]]:
    """The positions that are changed at once, by the entry of the result that has their effect.

    Each of `positions` is changed by itself, and its entry is the position; by default all from `first` to the query.
    With spans the entry is the span's number, and its positions after the query are left out; {1: [4, 5]} is a second
    span of two tokens.
    """
    if groups is None:
        chosen = range(first, query + 1) if positions is None else positions
        places = list(chosen)
        require_places(places, first, query)
        return {place: [place] for place in places}
    if positions is not None:
        raise InputError(
            "positions= and spans= are given, which exclude each other.",
            "Give one of them.",
        )
    if min(chain.from_iterable(groups.positions)) < first:
        raise InputError(
            "A span of spans= has the BOS token, which is not replaced.",
            f"Give positions from {first}.",
        )
    changed: dict[int, list[int]] = {}
    for number, inside in enumerate(groups.within(query + 1)):
        if inside:
            changed[number] = inside
    if not changed:
        raise InputError(
            "All spans= come after the query.",
            "Give spans of tokens up to it, or a later query.",
        )
    return changed


def require_choices(
    run: Run, candidates: Sequence[int] | None, places: Sequence[int]
) -> list[int]:
    """The given candidates, or by default the tokens of all prompts without BOS, as sorted token ids.

    Raises if in some prompt no candidate differs from the token at one of `places`.
    """
    vocabulary = int(run.model.cfg.d_vocab)
    if candidates is None:
        present = run.ids[:, run.facts["bos_count"] :]
        choices = set(present.flatten().tolist()) - {start_of(run.model).bos}
    elif not candidates or min(candidates) < 0 or max(candidates) >= vocabulary:
        raise InputError(
            f"candidates={list(candidates)!r} are not token ids.",
            f"Give at least one, from 0 to {vocabulary - 1}.",
        )
    else:
        choices = set(candidates)
    for ids in run.ids.tolist():
        for place in places:
            if not choices - {ids[place]}:
                raise InputError(
                    f"No candidate differs from the token at position {place}.",
                    "Give other token ids in candidates=.",
                )
    return sorted(choices)


def draw_variants(
    run: Run,
    replaced: Mapping[int, Sequence[int]],
    choices: list[int] | None,
    n_replacements: int,
    query: int,
    seed: int,
) -> Iterator[Variants]:
    """For each prompt its variants up to the query: at most `n_replacements` different ones for each entry.

    `replaced` is what `choose_places` gives. New tokens are drawn from `choices`, or, if that is None, from what the
    model expects at the place; they differ from the token that they replace.
    """
    generator = torch.Generator().manual_seed(seed)
    places = list(chain.from_iterable(replaced.values()))
    for ids in run.ids.cpu():
        if choices is None:
            others = _draw_expected(run, ids, places, n_replacements, generator)
        else:
            tokens = torch.tensor(choices)
            others = {place: tokens[tokens != ids[place]] for place in places}
        entries = [-1]
        branches = [Branch(query + 1)]  # the prompt itself
        for entry, inside in replaced.items():
            others_of_places = [others[place] for place in inside]
            new_tokens = _draw_rows(others_of_places, n_replacements, generator)
            for row in new_tokens:
                changed = ids[: query + 1].clone()
                changed[inside] = row
                # The tokens before the first replacement are shared with the prompt.
                first = inside[0]
                branches.append(Branch(first, tuple(changed[first:].tolist())))
            entries += [entry] * len(new_tokens)
        yield Variants(torch.tensor(entries), branches)


def _draw_rows(
    others: Sequence[Int[Tensor, " _"]], count: int, generator: torch.Generator
) -> Int[Tensor, "variant place"]:
    """At most `count` different replacements of the tokens at some places, (variant, place).

    `others` has the tokens that may stand at each place. Those of a single place are drawn without replacement; those
    of several places independently of each other, and what is drawn twice is kept once.
    """
    if len(others) == 1:
        (tokens,) = others
        order = torch.randperm(len(tokens), generator=generator)
        return tokens[order[:count]][:, None]
    columns: list[Tensor] = []
    for tokens in others:
        drawn = torch.randint(len(tokens), (count,), generator=generator)
        columns.append(tokens[drawn])
    return torch.stack(columns, dim=1).unique(dim=0)


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
    site = run.site("y")
    bos = start_of(run.model).bos
    before = torch.tensor(places) - 1
    y = streams_at(run, ids[None].to(run.device), [site], at=before)[site][0]
    drawn: list[Tensor] = []
    for logs in log_probabilities(run, y):  # of some places at a time
        uniform = torch.rand(logs.shape, generator=generator, dtype=torch.float64)
        gumbel = -(-uniform.log()).log()
        keys = logs.cpu() + gumbel
        # Neither the token that is replaced nor BOS is drawn.
        replaced_tokens = ids[places[len(drawn) : len(drawn) + len(logs)]]
        keys[torch.arange(len(logs)), replaced_tokens] = -torch.inf
        if bos is not None:
            keys[:, bos] = -torch.inf
        n_possible = keys.shape[-1] - 2
        rows = keys.topk(min(n_replacements, n_possible)).indices
        drawn += rows  # one for each place
    return dict(zip(places, drawn, strict=True))


def _at_the_query(
    run: Run,
    ids: Int[Tensor, " position"],
    variants: Sequence[Branch],
    to_layer: Target,
) -> Float[Tensor, "variant d"]:
    """The stream v⁽ℓ⁾, or y, at the last token of each variant of a prompt with these ids.

    Variants share the tokens before their first replacement, so that `read` can run these once.
    """
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
    """Log-probabilities of the next token in batches of variants, each with those of variant 0 beside them.

    Variant 0 itself is in the first batch.
    """
    of_the_first = None
    for logs in log_probabilities(run, y):
        if of_the_first is None:
            of_the_first = logs[:1]
        yield of_the_first, logs
