"""Path bound, its null and the true Jacobian norm in one result: of every token, and of one token of many prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Candidates, FrozenParts, Method, Norm, SpansOfTokens
from squashlens.bars import bar
from squashlens.engine.anatomy import n_blocks
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.running.passes import batches
from squashlens.engine.text.tokens import bos_id, display_tokens
from squashlens.engine.verify import require_sound
from squashlens.errors import InputError
from squashlens.measure.registration import measurement
from squashlens.measure.session import Session
from squashlens.measure.squashing.bound import path_bound, printed
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import PROBES, Estimation, resolved
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.measure.squashing.token_spans import Spans
from squashlens.measure.squashing.walks import patterns_of, shares_beyond_uniform, top_down
from squashlens.records.results import MODEL_UNITS, Variable, as_variable, attributes, sealed
from squashlens.theory.spread import are_sinks
from squashlens.theory.statistics.ranks import mean_interval
from squashlens.theory.statistics.trends import association, difference, with_ends

ESTIMATES = ("path_bound", "null", "bound_over_null", "jacobian_frozen", "jacobian")
ENDS = ("low", "high")


@measurement("attribution", prompts="one", cheaper="method='sketch' or fewer n_probes= takes less.")
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
    model = require_sound(model)
    way = Estimation(method=method, n_probes=n_probes, rtol=rtol, vjp_batch_size=vjp_batch_size, seed=seed)
    how = asdict(resolved(way, model, ("exact", "sketch")))
    session = Session.start(model, prompt, "sensitivity", norm=norm, query=query, spans=spans, **how)
    n, first, blocks = session.query(query), session.facts["bos_count"], range(n_blocks(session.model))
    session, groups = Spans.of(session, spans)
    sizes = [[i] for i in range(session.positions)] if groups is None else groups.positions
    patterns = patterns_of(session, "model", blocks)
    found = {
        "path_bound": printed(session, groups, "model", [*reversed(patterns.values())], n),
        "null": printed(session, groups, "uniform", top_down(session, "uniform", 0, len(blocks)), n),
    }
    found["bound_over_null"] = (found["path_bound"] / found["null"]).assign_attrs(
        attributes("path bound relative to uniform attention", "1")
    )
    named = None if groups is None else groups.named()
    derived: dict[str, FrozenParts] = {"jacobian_frozen": "attention", "jacobian": ()}
    for name, freeze in bar(derived.items(), desc="sensitivity", unit="quantity"):
        norms = jacobian_norms(
            session.model, session.ids, norm=norm, freeze=freeze, query=n, spans=named, **how
        ).assign_coords(session.coords()[1])
        found[name] = norms.drop_vars(ENDS, errors="ignore")
        found |= {f"{name}_{end}": norms[end].drop_vars(ENDS) for end in ENDS if end in norms.coords}
    dataset = xr.Dataset({n: as_variable(a, n) for n, a in found.items()})
    sinks = are_sinks(shares_beyond_uniform(session, patterns)).tolist()
    kept = [k for k, inside in enumerate(sizes) if min(inside) <= n]
    has_sink = np.array([any(sinks[i] for i in sizes[k]) for k in kept])
    dataset = dataset.isel(position=kept)
    dataset["sink"] = ("position", has_sink.astype(float), attributes("whether the token is an attention sink", "1"))
    compared = [at for at, k in enumerate(kept) if not has_sink[at] and all(first <= i < n for i in sizes[k])]
    for name, (dims, values, text, units) in _ranks(dataset.isel(position=compared), norm).items():
        dataset[name] = (dims, np.asarray(values), attributes(text, units))
    facts = session.facts if groups is None else {**session.facts, "spans": [sizes[k] for k in kept]}
    dataset = dataset.assign_coords(estimate=list(ESTIMATES))
    return sealed(dataset.assign_attrs(long_name="sensitivity of the query's representation"), facts)


def _ranks(inner: xr.Dataset, norm: Norm) -> dict[str, Variable]:
    """Rank correlations of the estimates with the Jacobian and the position, and the bound's gain over its null."""
    table = torch.tensor(np.stack([inner[name].values for name in ESTIMATES]), dtype=torch.float64)
    truth, tokens = table[ESTIMATES.index("jacobian")], table.shape[-1]
    agreement = association(table, truth)
    itself = torch.tensor([name == "jacobian" for name in ESTIMATES])  # agrees with itself, so it is not tested
    agreement = agreement._replace(p=agreement.p.masked_fill(itself, torch.nan)).corrected()
    trend = association(table, torch.arange(tokens, dtype=torch.float64)).corrected()
    ends = difference(table[ESTIMATES.index("path_bound")], table[ESTIMATES.index("null")], truth)
    of_jacobian = f"the {norm} norm of the Jacobian"
    over_null = f"rank agreement of the path bound with {of_jacobian} minus that of its null"
    return {
        **agreement.variables("rank_agreement", f"Spearman correlation with {of_jacobian}", "estimate"),
        **trend.variables("position_trend", "Spearman correlation of the estimate with the position", "estimate"),
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
    prompt: Sequence[Sequence[int]],
    positions: Sequence[int],
    groups: Sequence[tuple[str, int]],
    *,
    norm: Norm = "frobenius",
    candidates: Candidates = None,
    n_replacements: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Sensitivity of the last token's output y to one token of each prompt, for each prompt and as group means.

    Args:
        model: as in `path_bound`.
        prompt: token ids of each prompt, of any lengths; ``sequence.plain(n).ids(sequence.trunk)`` gives those of a
            growing sequence with n content tokens.
        positions: position of the token of interest in each prompt; negative values count from the end.
        groups: group of each prompt: a name, and a number that orders its prompts, such as the needle's place or the
            length, as in ``("zero", 8)``.
        norm: as in `jacobian_norms`; ``"frobenius"`` by default.
        candidates: as in `substitution_effect`; by default the distinct tokens of all prompts of the same length except
            BOS.
        n_replacements: as in `substitution_effect`.
        seed: random seed of the replacements; 0 by default.

    Returns:
        Dataset. Over (prompt): `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `path_bound`, Theorem 5.1 with constants 1;
        `bound_over_null`, the same divided by its null; `effect` (in the model's units) and `kl` (in nats), as in
        `substitution_effect`. Over (group, at), for each of these: `<name>_mean`, and `<name>_low` and `<name>_high`,
        the ends of its 95 % interval over prompts (NaN for one prompt); `prompts`, their number. All are dimensionless
        unless a unit is stated.

    Raises:
        InputError: lists of different lengths, no prompts, or a position that is outside the prompt or a BOS.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 8, prefix="What is the last digit in this sequence?", suffix="=")
    >>> zero = sl.prompts.one_token(model, "0")
    >>> hidden = [ones.replaced(k, zero) for k in (1, 8)]
    >>> ids = [s.plain(8).ids(s.trunk) for s in hidden]
    >>> found = sl.needle(model, ids, [ones.position(k) for k in (1, 8)], [("zero", 1), ("zero", 8)])
    >>> first, last = found["kl_mean"].sel(group="zero").values
    >>> bool(last > 100 * first)   # it is the last that is asked for
    True
    """
    counts = [len(given) for given in (prompt, positions, groups)]
    if len(set(counts)) != 1 or not counts[0]:
        raise InputError(
            f"There are {counts[0]} prompts, {counts[1]} positions and {counts[2]} groups.",
            "Give one of each for every prompt, and at least one prompt.",
        )
    found: dict[str, np.ndarray] = {}
    tokens = np.full(len(prompt), "", dtype=object)
    asked = {
        "prompt": [list(ids) for ids in prompt], "norm": norm, "candidates": candidates,
        "n_replacements": n_replacements, "seed": seed,
    }  # fmt: skip
    sessions = []
    for length, rows in bar([*batches(map(len, prompt), lambda _: TOGETHER)], desc="needle", unit="batch"):
        ids = torch.tensor([list(prompt[k]) for k in rows])
        session = Session.without_prompt(model, ids, "needle", **asked)
        sessions.append(session)
        places = [session.query(positions[k], f"positions[{k}]") for k in rows]
        for k, place in zip(rows, places, strict=True):
            if place < session.facts["bos_count"]:
                raise InputError(
                    f"positions[{k}]={positions[k]} is a BOS token.", "Give the position of another token."
                )
        tokens[rows] = np.array(display_tokens(session.model, session.ids), dtype=object)[range(len(rows)), places]
        present = {token for one in prompt if len(one) == length for token in one} - {bos_id(session.model)}
        swaps = {"candidates": sorted(present) if candidates is None else candidates, "n_replacements": n_replacements}
        for name, values in _by_position(session, places, norm, swaps, seed).items():
            found.setdefault(name, np.full(len(prompt), np.nan))[rows] = values
    variables, coords = _with_means(found, groups, norm)
    of_prompt = {
        "position": list(positions), "token": tokens, "group_of": [name for name, _ in groups],
        "at_of": [at for _, at in groups],
    }  # fmt: skip
    coords |= {"prompt": np.arange(len(prompt)), **{name: ("prompt", each) for name, each in of_prompt.items()}}
    return sessions[0].dataset("sensitivity to one token of each prompt", coords, variables)


def _by_position(
    session: Session, at: list[int], norm: Norm, swaps: Mapping[str, Any], seed: int
) -> dict[str, np.ndarray]:
    """All measures for prompts of one length, each at the position of interest."""
    model, ids, rows = session.model, session.ids, np.arange(len(at))

    def here(values: xr.DataArray) -> np.ndarray:
        return np.atleast_2d(values.values)[rows, at]

    bound, null = (here(path_bound(model, ids, attention=kind)) for kind in ("model", "uniform"))
    found = {"path_bound": bound, "bound_over_null": bound / null}
    found["jacobian"] = here(jacobian_norms(model, ids, norm=norm))
    effects = [
        substitution_effect(model, row, positions=[place], seed=seed, **swaps).isel(position=place)
        for row, place in zip(ids, at, strict=True)
    ]
    return found | {name: np.array([one[name].item() for one in effects]) for name in ("effect", "kl")}


def _with_means(
    found: Mapping[str, np.ndarray], groups: Sequence[tuple[str, int]], norm: Norm
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """All values by prompt, with means and intervals of the groups, and the labels of the groups."""
    names, numbers = list(dict.fromkeys(name for name, _ in groups)), sorted({at for _, at in groups})
    members = {
        (i, j): [k for k, group in enumerate(groups) if group == (name, at)]
        for i, name in enumerate(names) for j, at in enumerate(numbers)
    }  # fmt: skip
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
            variables[f"{name}_{side}"] = (("group", "at"), cells, f"{text}: {statistic}", units)
    counts = np.array([len(rows) for rows in members.values()]).reshape(shape)
    variables["prompts"] = (("group", "at"), counts, "number of prompts in the mean", "prompts")
    return variables, {"group": names, "at": numbers}
