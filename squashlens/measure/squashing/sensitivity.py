"""Path bound, its null and the true Jacobian norm in one result: of every token, and of one token of many prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import (
    Bridge,
    Candidates,
    FrozenParts,
    Method,
    Norm,
    SpansOfTokens,
)
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.bound import path_bound, printed
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import PROBES, Estimation, resolved
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.measure.squashing.token_spans import Spans
from squashlens.measure.squashing.walks import (
    patterns_of,
    shares_beyond_uniform,
    top_down,
)
from squashlens.model.text.context import texts_in_context
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import Prompts, each_of, require_tokenizer, rows_of
from squashlens.records.labels import (
    MODEL_UNITS,
    Variable,
    arrays_of,
    as_variable,
    attributes,
)
from squashlens.records.provenance import with_provenance
from squashlens.run.captured import PromptOrCapture
from squashlens.run.passes import batches
from squashlens.run.run import Run
from squashlens.theory.spread import are_sinks
from squashlens.theory.statistics.ranks import mean_interval
from squashlens.theory.statistics.trends import association, difference, with_ends

ESTIMATES = ("path_bound", "null", "bound_over_null", "jacobian_frozen", "jacobian")
ENDS = ("low", "high")


@measurement(
    "attribution",
    prompts="one",
    cheaper="A sketch, or one of fewer n_probes=, takes less.",
)
def sensitivity(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    norm: Norm = "spectral",
    query: int = -1,
    spans: SpansOfTokens = None,
    method: Method = "auto",
    n_probes: int = PROBES,
    rtol: float | None = None,
    vjp_batch_size: int | None = None,
    seed: int | None = None,
) -> xr.Dataset:
    """Sensitivity of y_n to each token: the path bound of Theorem 5.1, its null, and the true Jacobian norms.

    The result also says how well the bound and the null rank the tokens, compared with the Jacobian. Several prompts
    are measured one by one.

    Args:
        model, prompt, query: as in `path_bound`.
        norm, n_probes, rtol, vjp_batch_size, seed: as in `jacobian_norms`.
        method: ``"auto"`` (the default), ``"exact"`` or ``"sketch"``, as in `jacobian_norms`.
        spans: as in `jacobian_norms` and `path_bound`; the correlations are then over spans, without any that has the
            query token or BOS.

    Returns:
        Dataset. Over (position) up to the query, all dimensionless: `path_bound`, with the constants 1; `null`, the
        same under uniform attention; `bound_over_null`, their ratio; `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `jacobian_frozen`, the
        same with attention patterns held constant, as the theorem assumes. Sketched ones also have `…_low` and
        `…_high`, intervals that hold for all tokens together with 95 % probability. Over (estimate), with these five as
        coordinate: `rank_agreement`, Spearman's ρ with the Jacobian, and `position_trend`, Spearman's ρ with the
        position. Each has `…_low` and `…_high`, the ends of a 95 % interval, and `…_p`, the p-value of no association,
        Holm-corrected for the estimates tested; both allow for dependence between neighbouring tokens
        (`squashlens.theory.statistics.trends`). Scalars: `agreement_over_null`, ρ of the path bound minus ρ of the
        null, with `_low` and `_high`; `compared_tokens`, the number of tokens in the correlations. Correlations leave
        out the query token, a leading BOS and attention sinks (`sink` is 1, as in `attention_sinks`), whose values are
        of another kind. ρ is NaN for a constant quantity or with fewer than three tokens; intervals need four tokens.
        Several prompts have a leading dimension `prompt`, and are padded as in `path_bound`.

    Raises:
        InputError: a query or span outside the prompt, or spans of several prompts.

    Source: Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ds = sl.sensitivity(model, "How many ones are in the following sequence? 110 =")
    >>> bool((ds["jacobian"] > 0).all()), round(ds["rank_agreement"].sel(estimate="jacobian").item(), 9)
    (True, 1.0)
    """
    run = Run.open(model, "sensitivity")
    way = Estimation(
        method=method,
        n_probes=n_probes,
        rtol=rtol,
        vjp_batch_size=vjp_batch_size,
        seed=seed,
    )
    how = asdict(resolved(way, run, ("exact", "sketch")))
    run = run.given(prompt, norm=norm, query=query, spans=spans, **how)
    n, first, blocks = (
        run.query(query),
        run.facts["bos_count"],
        range(run.n_blocks),
    )
    run, groups = Spans.of(run, spans)
    sizes = [[i] for i in range(run.positions)] if groups is None else groups.positions
    patterns = patterns_of(run, "model", blocks)
    found = {
        "path_bound": printed(run, groups, "model", [*reversed(patterns.values())], n),
        "null": printed(
            run, groups, "uniform", top_down(run, "uniform", 0, len(blocks)), n
        ),
    }
    found["bound_over_null"] = (found["path_bound"] / found["null"]).assign_attrs(
        attributes("path bound relative to uniform attention", "1")
    )
    named = None if groups is None else groups.named()
    derived: dict[str, FrozenParts] = {"jacobian_frozen": "attention", "jacobian": ()}
    for name, freeze in bar(derived.items(), desc="sensitivity", unit="quantity"):
        norms = jacobian_norms(
            run.model,
            run.capture or run.ids,
            norm=norm,
            freeze=freeze,
            query=n,
            spans=named,
            **how,
        ).assign_coords(run.coords()[1])
        found[name] = norms.drop_vars(ENDS, errors="ignore")
        found |= {
            f"{name}_{end}": norms[end].drop_vars(ENDS)
            for end in ENDS
            if end in norms.coords
        }
    dataset = xr.Dataset({n: as_variable(a, n) for n, a in found.items()})
    sinks = are_sinks(shares_beyond_uniform(run, patterns)).tolist()
    kept = [k for k, inside in enumerate(sizes) if min(inside) <= n]
    has_sink = np.array([any(sinks[i] for i in sizes[k]) for k in kept])
    dataset = dataset.isel(position=kept)
    dataset["sink"] = (
        "position",
        has_sink.astype(float),
        attributes("whether the token is an attention sink", "1"),
    )
    compared = [
        at
        for at, k in enumerate(kept)
        if not has_sink[at] and all(first <= i < n for i in sizes[k])
    ]
    dataset = dataset.assign(arrays_of(_ranks(dataset.isel(position=compared), norm)))
    facts = {
        **run.as_run(),
        **({} if groups is None else {"spans": [sizes[k] for k in kept]}),
    }
    dataset = dataset.assign_coords(estimate=list(ESTIMATES))
    return with_provenance(
        dataset.assign_attrs(long_name="sensitivity of the query's representation"),
        facts,
    )


def _ranks(inner: xr.Dataset, norm: Norm) -> dict[str, Variable]:
    """Rank correlations of the estimates with the Jacobian and the position, and the bound's gain over its null."""
    table = torch.tensor(
        np.stack([inner[name].values for name in ESTIMATES]), dtype=torch.float64
    )
    truth, tokens = table[ESTIMATES.index("jacobian")], table.shape[-1]
    agreement = association(table, truth)
    itself = torch.tensor(
        [name == "jacobian" for name in ESTIMATES]
    )  # agrees with itself, so it is not tested
    agreement = agreement._replace(
        p=agreement.p.masked_fill(itself, torch.nan)
    ).corrected()
    trend = association(table, torch.arange(tokens, dtype=torch.float64)).corrected()
    ends = difference(
        table[ESTIMATES.index("path_bound")], table[ESTIMATES.index("null")], truth
    )
    of_jacobian, among = (
        f"the {norm} norm of the Jacobian",
        "the estimates that are tested",
    )
    of_position = "of the estimate with the position"
    over_null = (
        f"rank agreement of the path bound with {of_jacobian} minus that of its null"
    )
    return {
        **agreement.variables(
            "rank_agreement",
            f"Spearman correlation with {of_jacobian}",
            "estimate",
            among=among,
        ),
        **trend.variables(
            "position_trend",
            f"Spearman correlation {of_position}",
            "estimate",
            among=among,
        ),
        **with_ends("agreement_over_null", (), ends, over_null),
        "compared_tokens": ((), tokens, "tokens in the correlations", "1"),
    }


MEASURES = {
    "jacobian": ("{norm} norm of the Jacobian at the token", "1"),
    "path_bound": ("path bound of Theorem 5.1 at the token, constants 1", "1"),
    "bound_over_null": ("path bound relative to uniform attention at the token", "1"),
    "effect": ("mean distance that y moves when the token is replaced", MODEL_UNITS),
    "kl": ("mean KL divergence of the next token when the token is replaced", "nats"),
}

SIDES = {
    "mean": "mean",
    "low": "lower end of the 95 % interval of the mean",
    "high": "upper end of the 95 % interval of the mean",
}
TOGETHER = 16  # prompts of one length that are measured together


@measurement("needle")
def needle(
    model: Bridge,
    prompt: Prompts,
    positions: Sequence[int] | None = None,
    groups: Sequence[tuple[str, int]] | None = None,
    *,
    find: str | None = None,
    norm: Norm = "frobenius",
    method: Method = "auto",
    candidates: Candidates = None,
    n_replacements: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Sensitivity of the last token's output y to one token or word of each prompt, for each and as group means.

    Args:
        model: as in `path_bound`.
        prompt: texts, or token ids of each prompt, of any lengths; ``sequence.plain(n).ids(sequence.trunk)`` gives
            those of a growing sequence with n content tokens.
        positions: position of the token of interest in each prompt; negative values count from the end.
        groups: group of each prompt: a name, and a number that orders its prompts, such as the needle's place or the
            length, as in ``("zero", 8)``. By default all are in one, ordered by position.
        find: instead of `positions`, the text of interest, such as ``"Lisbon"``: whole tokens, once in each prompt. If
            it has several tokens, they are measured at once, as `spans` are.
        norm, method: as in `jacobian_norms`, without certified bounds; ``"frobenius"`` by default.
        candidates: as in `substitution_effect`; by default the distinct tokens of all prompts of the same length except
            BOS.
        n_replacements: as in `substitution_effect`.
        seed: random seed of the replacements, and of a sketch's directions; 0 by default.

    Returns:
        Dataset. Over (prompt): `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `path_bound`, Theorem 5.1 with constants 1;
        `bound_over_null`, the same divided by its null; `effect` (in the model's units) and `kl` (in nats), as in
        `substitution_effect`. Over (group, at), for each of these: `<name>_mean`, and `<name>_low` and `<name>_high`,
        the ends of its 95 % interval over prompts (NaN for one prompt); `prompts`, their number. All are dimensionless
        unless a unit is stated.

    Raises:
        InputError: lists of different lengths, no prompts, or a position that is outside the prompt or a BOS; a prompt
            that does not have the text of `find`, has it twice, or has it in tokens with other text.

    >>> import squashlens as sl
    >>> model, ask = sl.load("tiny-gemma"), "What is the last digit in this sequence?"
    >>> found = sl.needle(model, [f"{ask} 0111 =", f"{ask} 1110 ="], find="0")
    >>> first, last = found["kl_mean"].sel(group="0").values
    >>> bool(last > 100 * first)   # it is the last that is asked for
    True
    """
    if (positions is None) == (find is None):
        raise InputError(
            "Give either positions= or find=.",
            "find='Lisbon' finds the positions of a word in texts.",
        )
    opened = Run.open(model, "needle")
    prompts = rows_of(opened.model, prompt)
    way = resolved(Estimation(method=method), opened, ("exact", "sketch")).method
    places = (
        _places(opened, prompts, find)
        if positions is None
        else [[at] for at in positions]
    )
    groups = [(find or "needle", at) for at, *_ in places] if groups is None else groups
    counts = [len(prompts), len(places), len(groups)]
    if len(set(counts)) != 1:
        raise InputError(
            f"The numbers of prompts, positions and groups are {counts[0]}, {counts[1]} and {counts[2]}.",
            "Give one of each for every prompt.",
        )
    measured: dict[str, np.ndarray] = {}
    tokens = np.full(len(prompts), "", dtype=object)
    asked = {
        "prompt": each_of(prompt),
        "find": find,
        "norm": norm,
        "method": way,
        "candidates": candidates,
        "n_replacements": n_replacements,
        "seed": seed,
    }
    runs = []
    each = [*batches(map(len, prompts), lambda _: TOGETHER)]
    for length, rows in (
        bar(each, desc="needle", unit="batch") if len(each) > 1 else each
    ):  # one shows its own bars
        run = opened.with_prompts(torch.tensor([prompts[k] for k in rows]), **asked)
        runs.append(run)
        inside = [[run.query(at, f"positions[{k}]") for at in places[k]] for k in rows]
        texts = run.tokens_of(run.ids)
        for k, own, text in zip(rows, inside, texts, strict=True):
            if own[0] < run.facts["bos_count"]:
                raise InputError(
                    f"positions[{k}]={own[0]} is a BOS token.",
                    "Give the position of another token.",
                )
            tokens[k] = text[own[0]] if len(own) == 1 else str(find).strip()
        present = {token for ids in prompts if len(ids) == length for token in ids} - {
            start_of(run.model).bos
        }
        swaps = {
            "candidates": sorted(present) if candidates is None else candidates,
            "n_replacements": n_replacements,
        }
        for name, values in _by_place(
            run, inside, {"norm": norm, "method": way, "seed": seed}, swaps
        ).items():
            measured.setdefault(name, np.full(len(prompts), np.nan))[rows] = values
    variables, coords = _with_means(measured, groups, norm)
    of_prompt = {
        "position": [at for at, *_ in places],
        "token": tokens,
        "group_of": [name for name, _ in groups],
        "at_of": [at for _, at in groups],
    }
    coords |= {
        "prompt": np.arange(len(prompts)),
        **{name: ("prompt", each) for name, each in of_prompt.items()},
    }
    return runs[0].dataset("sensitivity to one token of each prompt", coords, variables)


def _places(
    run: Run, prompts: Sequence[Sequence[int]], find: str | None
) -> list[list[int]]:
    """The tokens that have the text `find` in each prompt; white space may stand before or after it."""
    wanted, places = (find or "").strip(), []
    for number, ids in enumerate(prompts):
        texts = texts_in_context(require_tokenizer(run.model), ids)
        whole, ends = "".join(texts), [*accumulate(map(len, texts))]
        starts = [
            at for at in range(len(whole)) if wanted and whole.startswith(wanted, at)
        ]
        if len(starts) != 1:
            raise InputError(
                f"Prompt {number} has the text find={find!r} {len(starts)} times.",
                "Give a text that every prompt has once, or positions=.",
            )
        start, end = starts[0], starts[0] + len(wanted)
        inside = [
            k
            for k, text in enumerate(texts)
            if start < ends[k] and ends[k] - len(text) < end
        ]
        read = "".join(texts[k] for k in inside)
        if read.strip() != wanted:
            raise InputError(
                f"The tokens of prompt {number} that have find={find!r} are {read!r}.",
                f"Give find={read.strip()!r}.",
            )
        places.append(inside)
    return places


def _by_place(
    run: Run,
    places: list[list[int]],
    way: Mapping[str, Any],
    swaps: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """All measures for prompts of one length, each at the token or tokens of interest."""
    model, ids = run.model, run.ids
    spans = [{"needle": inside} for inside in places]

    def here(measure: Callable[..., xr.DataArray], **options: Any) -> np.ndarray:
        if all(len(inside) == 1 for inside in places):
            return np.atleast_2d(measure(model, ids, **options).values)[
                range(len(ids)), [at for (at,) in places]
            ]
        return np.array(
            [
                measure(model, row, spans=own, **options).item()
                for row, own in zip(ids, spans, strict=True)
            ]
        )

    bound, null = (here(path_bound, attention=kind) for kind in ("model", "uniform"))
    measured = {
        "path_bound": bound,
        "bound_over_null": bound / null,
        "jacobian": here(jacobian_norms, **way),
    }
    effects = [
        substitution_effect(model, row, spans=own, seed=way["seed"], **swaps)
        for row, own in bar(
            [*zip(ids, spans, strict=True)], desc="replacements", unit="prompt"
        )
    ]
    return measured | {
        name: np.array([moved[name].item() for moved in effects])
        for name in ("effect", "kl")
    }


def _with_means(
    found: Mapping[str, np.ndarray], groups: Sequence[tuple[str, int]], norm: Norm
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """All values by prompt, with means and intervals of the groups, and the labels of the groups."""
    names, numbers = (
        list(dict.fromkeys(name for name, _ in groups)),
        sorted({at for _, at in groups}),
    )
    members = {
        (i, j): [k for k, group in enumerate(groups) if group == (name, at)]
        for i, name in enumerate(names)
        for j, at in enumerate(numbers)
    }
    shape, variables = (len(names), len(numbers)), dict[str, Variable]()
    for name, values in found.items():
        text, units = MEASURES[name][0].format(norm=norm), MEASURES[name][1]
        variables[name] = (("prompt",), values, text, units)
        table = np.full((len(SIDES), *shape), np.nan)
        for (i, j), rows in members.items():
            if rows:
                part = torch.from_numpy(values[rows])
                table[:, i, j] = part.mean(), *mean_interval(part)[1:]
        for (side, statistic), cells in zip(SIDES.items(), table, strict=True):
            variables[f"{name}_{side}"] = (
                ("group", "at"),
                cells,
                f"{text}: {statistic}",
                units,
            )
    counts = np.array([len(rows) for rows in members.values()]).reshape(shape)
    variables["prompts"] = (
        ("group", "at"),
        counts,
        "number of prompts in the mean",
        "prompts",
    )
    return variables, {"group": names, "at": numbers}
