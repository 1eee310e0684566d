"""What the report says of one prompt: the four answers of its first screen, and the sentences beside its evidence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import xarray as xr

from squashlens.records.results import facts_of
from squashlens.reporting import sentences
from squashlens.reporting.sentences import EQUAL, Rank, among, beside, near_edge, number, percent, sentence, times
from squashlens.theory.distances import NOISE_FLOORS
from squashlens.theory.statistics.trends import association

ESTIMATES = ("jacobian", "path_bound", "null", "bound_over_null")
STEP = 2.0**-8  # of bfloat16: half of the relative distance of neighbouring numbers
FEW = 0.25  # share of the tokens that are called a few
SHOWN = 3  # tokens that are named


@dataclass(frozen=True)
class Evidence:
    """The results that the first screen is about.

    `top` has the next tokens, `measured` is the result of `sensitivity`, and `found` that of the map. `knockout` is
    None where tokens cannot be knocked out. `changes` is the result of `compare` for this prompt, None if it cannot be
    measured, and `predicted` the next token under each of them.
    """

    top: xr.DataArray
    measured: xr.Dataset
    found: xr.Dataset
    knockout: xr.Dataset | None = None
    changes: xr.Dataset | None = None
    predicted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One of the four questions with its answer: the verdict in one sentence, and what it rests on."""

    question: str
    verdict: str
    details: tuple[str, ...]


def first_answers(given: Evidence) -> tuple[Answer, ...]:
    """The four answers of the first screen."""
    return (
        Answer("What did the model predict?", *_predicted(given.top)),
        Answer("Which tokens did that depend on, and how sure is that?", *_depended(given)),
        Answer("Is something lost or close to it, and where?", *_lost(given)),
        Answer("What would help?", *_help(given)),
    )


def dependence(given: Evidence) -> tuple[np.ndarray, str]:
    """How much each token matters, and what the numbers are: what its knockout moves, or its Jacobian norm."""
    if given.knockout is None:
        return given.measured["jacobian"].values, "Jacobian norm"
    return given.knockout["total_variation"].values / 2, "share of the probability that moves without the token"


def compared(ds: xr.Dataset) -> slice:
    """The tokens that comparisons are about: without BOS and the last one."""
    last = ds.sizes["position"] - 1
    return slice(last - int(ds["compared_tokens"]), last)


def _predicted(top: xr.DataArray) -> tuple[str, tuple[str, ...]]:
    (first, *others), (share, *shares) = top["token"].values, map(float, top.values)
    verdict = f"{_quoted(first)}, with a probability of {percent(share)}."
    next_ones = ", ".join(f"{_quoted(token)} {percent(one)}" for token, one in zip(others, shares, strict=True))
    certainty = (
        "It is nearly sure." if share > 0.9 else "No token has a majority." if share < 0.5 else "It has the majority."
    )
    return verdict, (f"{certainty} Next: {next_ones}." if next_ones else certainty,)


def _depended(given: Evidence) -> tuple[str, tuple[str, ...]]:
    """The tokens with half of the dependence, the next ones, the first token apart, and how sure that is."""
    values, ds = dependence(given)[0], given.measured
    inside = compared(ds)
    own, knocked = values[inside], given.knockout is not None
    said, of, size = ("Probability that moves", "without", percent) if knocked else ("Jacobian norm", "for", number)
    apart = ", ".join(f"{size(float(values[at]))} {of} {_name(ds, at)}" for at in range(inside.start))
    if not own.sum() > 0:
        if not values[: inside.start].sum() > 0:
            return "It depends on no token before the last one.", (_certainty(given),)
        return "Of the tokens before the last one, only on the first.", (f"{said}: {apart}.", _certainty(given))
    order = np.argsort(own)[::-1]
    half = int(np.searchsorted(np.cumsum(own[order]), own.sum() / 2) + 1)
    names = [_name(ds, inside.start + int(at)) for at in order[:SHOWN]]
    if half == 1:
        moved = (
            f": if no later token can read it, {percent(float(own[order[0]]))} of the probability moves to other tokens"
        )
        verdict = f"Mostly on {names[0]}{moved if knocked else ''}."
    else:
        many = "a few tokens" if half <= max(2, FEW * len(own)) else "many tokens"
        verdict = f"On {many}: {half} of {len(own)} have half of the dependence, {names[0]} the most."
    each = ", ".join(f"{size(float(own[at]))} {of} {name}" for name, at in zip(names, order, strict=False))
    beside_it = f" Apart, because every prompt begins with it: {apart}." if apart else ""
    return verdict, (f"{said}: {each}.{beside_it}", _certainty(given))


def _certainty(given: Evidence) -> str:
    """How sure the dependence is: what was measured, and whether a second measure ranks the tokens alike."""
    norms = sentences.certainty_of_norms(given.measured)
    if given.knockout is None:
        return f"How sure: tokens cannot be knocked out of this model, so that these are derivatives. {norms}."
    inside = compared(given.measured)
    pair = (given.knockout["total_variation"].values[inside], given.measured["jacobian"].values[inside])
    rank = Rank(*(float(one) for one in association(*map(torch.from_numpy, pair))))
    return (
        "How sure: each knockout was measured, on this prompt. "
        f"{sentence(rank.agreement('knockouts and small changes (Jacobian norms)'))}."
    )


def _lost(given: Evidence) -> tuple[str, tuple[str, ...]]:
    """Whether a token has no influence left, and whether one more last token can be told, with where and how much."""
    states = {_token_state(given.measured), _end_state(given.found)}
    whole = "" if math.isfinite(_end(given.found)[0]) else " among the tokens"
    verdict = (
        "Yes: something is lost."
        if "lost" in states
        else "Nothing is lost, but something is close to it."
        if "close" in states
        else f"Nothing is lost{whole}, and nothing is close to it."
    )
    return verdict, (_of_tokens(given.measured), _of_the_end(given))


def _token_state(ds: xr.Dataset) -> str:
    norms = ds["jacobian"].values
    return "lost" if norms.min() == 0 else "close" if norms.min() < STEP * norms.max() else ""


def _of_tokens(ds: xr.Dataset) -> str:
    """The token with the least influence, and how influence differs along the prompt."""
    norms = ds["jacobian"].values
    least, most = int(norms.argmin()), int(norms.argmax())
    if norms[least] == 0:
        return f"Tokens: the last representation does not depend on {_name(ds, least)} at all."
    factor = norms[most] / norms[least]
    near = "more than" if factor > 1 / STEP else "far from"
    inside, n = compared(ds), int(ds["compared_tokens"])
    along = ""
    if n >= 3:
        names = ("first third", "middle third", "last third")
        parts = np.array_split(norms[inside], 3)
        medians = {name: float(np.median(part)) for name, part in zip(names, parts, strict=True)}
        along = f" The median sensitivity by third of the prompt is {among(medians)}."
    return (
        f"Tokens: the last representation is {times(factor)} less sensitive to {_name(ds, least)} than to "
        f"{_name(ds, most)}, {near} the {1 / STEP:.0f} times at which bfloat16 may lose a token.{along}"
    )


def _end_state(found: xr.Dataset) -> str:
    far, noise, size = _end(found)
    return "lost" if far <= NOISE_FLOORS * noise else "close" if far < STEP * size else ""


def _end(found: xr.Dataset) -> tuple[float, float, float]:
    """D of the prompt at the last layer, its noise floor, and the root mean square of v. D is NaN if there is none."""
    top = found.isel(layer=-1)
    far, noise, size = (float(top[name]) for name in ("collapse_distance", "collapse_noise", "last_token_rms"))
    return far, noise, size


def _of_the_end(given: Evidence) -> str:
    """Whether the prompt can be told from itself with its last token repeated."""
    far, noise, size = _end(given.found)
    if not math.isfinite(far):
        return (
            "End: with its last token repeated the prompt is longer than the model's context, so it was not measured."
        )
    layer, token = int(given.found["layer"].values[-1]), _quoted(given.measured["token"].values[-1])
    moved = f"End: one more {token} moves the last representation by D = {number(far)}"
    if far <= NOISE_FLOORS * noise:
        return f"{moved} at layer {layer}, at most {NOISE_FLOORS} noise floors: rounding alone may cause it."
    judged = "less than a step of bfloat16: half precision may lose it" if far < STEP * size else "far from lost"
    return (
        f"{moved} at layer {layer}: {times(far / size)} its root mean square, and {times(far / noise)} what rounding "
        f"changes, {judged}."
    )


def _help(given: Evidence) -> tuple[str, tuple[str, ...]]:
    """What helps, as far as it was tried on this prompt."""
    states = (_token_state(given.measured), _end_state(given.found))
    tried = {} if given.changes is None else _tried(given.changes)
    helping = [name for name, ratio in tried.items() if ratio > EQUAL and _keeps(given, name)]
    if not any(states):
        verdict = "Nothing has to: nothing is lost on this prompt."
    elif facts_of(given.measured).get("dtype") in sentences.HALF:
        verdict = "First measure in float32: half precision may be the loss."
    elif states[1] and helping:
        verdict = f"{sentence(helping[0])}: it moves the two prompts apart and keeps the prediction."
    elif states[1]:
        verdict = "Nothing that was tried here. Separators between repeated tokens help some models."
    else:
        weak = _name(given.measured, int(given.measured["jacobian"].values.argmin()))
        verdict = f"Float32 keeps it. If {weak} matters, put it nearer to the end; this was not tried."
    each = "; ".join(
        f"with {name} D is {beside(ratio, 1.0)}, and {_next(given, name)}" for name, ratio in tried.items()
    )
    details = [f"Tried on this prompt: {each}."] if each else []
    return verdict, (*details, "Try your own with sl.compare. What longer sequences lose: n=96, or --n 96.")


def _next(given: Evidence, name: str) -> str:
    return "the prediction stays" if _keeps(given, name) else f"the prediction becomes {_quoted(given.predicted[name])}"


def _tried(changes: xr.Dataset) -> dict[str, float]:
    """By change, D at the last layer over that of the unchanged model."""
    last = changes["distance"].isel(layer=-1, length=-1)
    plain = float(last[0])
    return {str(name): float(last.sel(change=name)) / plain for name in last["change"].values[1:]} if plain > 0 else {}


def _keeps(given: Evidence, name: str) -> bool:
    return given.predicted[name] == str(given.top["token"].values[0])


def agreement(ds: xr.Dataset) -> str:
    """How well the path bound ranks tokens as the true Jacobian does, and whether it does so better than the null."""
    n, rank = int(ds["compared_tokens"]), Rank.of(ds, "rank_agreement", estimate="path_bound")
    said = sentence(rank.agreement("path bound and true Jacobian"))
    return f"{said}; tokens compared: {n}. {_agreement_over_null(ds)}".rstrip()


def _agreement_over_null(ds: xr.Dataset) -> str:
    null = float(ds["rank_agreement"].sel(estimate="null"))
    gap, low, high = (float(ds[f"agreement_over_null{side}"]) for side in ("", "_low", "_high"))
    if not (math.isfinite(null) and math.isfinite(low) and math.isfinite(high)):
        return ""
    gap_text, *ends = (near_edge(value, 0.0, 2) for value in (gap, low, high))
    agrees = "agrees better" if low > 0 else "agrees worse" if high < 0 else ""
    of_null = f"The uniform null, which does not use this model's attention, reaches ρ = {near_edge(null, 0.0, 2)}"
    if low == high == 0:  # both rank the tokens in the same order, or agree equally at each
        return f"{of_null}; the path bound agrees exactly as well."
    return (
        f"{of_null}; "
        f"{f'the path bound {agrees}' if agrees else 'whether the path bound agrees better is undecided'} "
        f"(difference {gap_text}, 95 % interval {ends[0]} to {ends[1]})."
    )


def position(ds: xr.Dataset) -> str:
    """How Jacobian, path bound and null change along the prompt, and whether attention favours early or late tokens."""
    n, inside = int(ds["compared_tokens"]), compared(ds)
    if n < 3:
        return f"Along the prompt no trend can be computed (tokens compared: {n})."
    trends = {name: Rank.of(ds, "position_trend", estimate=name) for name in ESTIMATES}
    truth, bound, null, ratio = (trends[name].trend(ends=_ends_of(ds[name].values[inside])) for name in ESTIMATES)
    return (
        f"From the first to the last of {n} compared tokens, without BOS and the last token, the true sensitivity "
        f"{truth} and the path bound {bound}. The null, with uniform attention, {null}. The path bound divided by the "
        f"null {ratio}: {_beyond_null(trends['bound_over_null'])}"
    )


def _ends_of(values: np.ndarray) -> tuple[float, float]:
    """The medians of the first and the last third, since single tokens differ."""
    third = -(-len(values) // 3)
    return float(np.median(values[:third])), float(np.median(values[len(values) - third :]))


def _beyond_null(rank: Rank) -> str:
    if math.isnan(rank.rho) or rank.absent:
        return "on this prompt attention favours neither early nor late tokens beyond what causality does."
    if not rank.decided:
        return "whether attention favours early or late tokens beyond what causality does is undecided on this prompt."
    favours = "early" if rank.rho < 0 else "late"
    return f"on this prompt attention favours {favours} tokens beyond what causality alone does."


def is_it_a_bound(ds: xr.Dataset) -> str:
    """Whether the path bound with all constants 1 lies above the Jacobian here, and what that means."""
    bound, truth = ds["path_bound"].values, ds["jacobian"].values
    n, below = len(truth), int((bound < truth).sum())
    ratios = bound[truth > 0] / truth[truth > 0]
    if not len(ratios):
        return "The true Jacobian is zero at every token, so bound and truth cannot be compared."
    least, most, middle = map(times, (ratios.min(), ratios.max(), np.median(ratios)))
    spread = f"it is {least} to {most} the Jacobian norm, median {middle}"
    if below:
        return (
            f"With all constants set to 1, the path bound is not a bound for this model: it lies below the true "
            f"Jacobian norm at {below} of {n} tokens ({spread})."
        )
    return (
        f"With all constants set to 1, the path bound lies above the true Jacobian norm at all {n} tokens ({spread}). "
        "Nothing guarantees that, because it leaves out value and output weights, norm gains and the softmax."
    )


def freezing(ds: xr.Dataset) -> str:
    """How the theorem's assumption that attention does not depend on the input changes the Jacobian."""
    frozen, truth = ds["jacobian_frozen"].values, ds["jacobian"].values
    both = (frozen > 0) & (truth > 0)
    if not both.any():
        return "No token has a positive sensitivity both with and without frozen attention."
    factors = frozen[both] / truth[both]
    return (
        "With attention held constant, as the theorem assumes, the typical token's sensitivity is "
        f"{beside(float(np.median(factors)), 1.0)} ({number(factors.min())} to {number(factors.max())} times by token)."
    )


def spread(shares: xr.DataArray, ds: xr.Dataset) -> str:
    """Where the paths to the query start, at layer 0: first at the sinks of `ds`, then at the other tokens."""
    bottom, sinks = shares.sel(layer=0).values, _sinks(ds)
    others = np.delete(bottom, sinks) / np.delete(bottom, sinks).sum()
    places = np.delete(np.arange(len(bottom)), sinks)
    most = int(others.argmax())
    holders = int(np.searchsorted(np.cumsum(np.sort(others)[::-1]), 0.9 - 1e-12) + 1)  # those that have 90 %
    at_sinks = f"{100 * bottom[sinks].sum():.4g} % of the paths start at {_names(ds, sinks)}. Of the other paths, "
    return (
        f"Composed over all blocks, {at_sinks if len(sinks) else ''}{100 * others[most]:.3g} % "
        f"{'' if len(sinks) else 'of the paths '}start at {_name(shares, int(places[most]))} and "
        f"{100 * others[-1]:.3g} % never leave the last token; 90 % start at {holders} of the {len(others)} "
        f"{'other ' if len(sinks) else ''}tokens."
    )


def _sinks(ds: xr.Dataset) -> np.ndarray:
    """The places of the attention sinks."""
    return np.flatnonzero(ds["sink"].values == 1) if "sink" in ds else np.zeros(0, int)


def _names(ds: xr.Dataset, places: np.ndarray) -> str:
    return ", ".join(_name(ds, int(place)) for place in places)


def depth(found: xr.Dataset) -> str:
    """From which layer on the last token's own stream has more than half of the sensitivity."""
    rows = found["jacobian"].isel(query=-1)
    layers, own = rows["layer"].values, rows.values[:, -1]
    sums = rows.sum("position").values
    if not (sums > 0).all():
        return "The Jacobian is 0 at some layer, so that layers cannot be compared."
    shares = own / sums
    # At layer L only the final norm follows, so that the last token has all of it in every model.
    beyond = [int(layer) for layer, share in zip(layers[:-1], shares[:-1], strict=True) if share > 0.5]
    start = f"The last token's own stream has {100 * shares[0]:.3g} % of the summed sensitivity at layer {layers[0]}"
    if not beyond or beyond[0] == layers[0]:
        return f"{start}, and {100 * shares[-2]:.3g} % at layer {layers[-2]}, before the last block."
    return (
        f"{start}, and more than half from layer {beyond[0]} of {layers[-1]} on: what reaches the answer from earlier "
        f"tokens has mostly been read by block {beyond[0] - 1}."
    )


def beside_sink(ds: xr.Dataset) -> str:
    """The sinks and their shares, and what trends and agreement leave out; empty without a sink or a leading BOS."""
    sinks = _sinks(ds)
    if not len(sinks):
        left = ds.sizes["position"] - 1 - int(ds["compared_tokens"])
        out = f"Trends and agreement leave out {_name(ds, 0)} and the last token." if left == 1 else ""
        return f"No token is an attention sink. {out}" if out else ""
    values = {name: ds[name].values for name in ("path_bound", "null", "jacobian")}
    shares = [100 * each[sinks].sum() / each.sum() if each.sum() > 0 else math.nan for each in values.values()]
    are = "is an attention sink: it has" if len(sinks) == 1 else "are attention sinks: they have"
    return (
        f"{_names(ds, sinks)} {are} {shares[0]:.4g} % of the summed path bound, {shares[1]:.3g} % of the null, and "
        f"{shares[2]:.3g} % of the summed Jacobian norms. "
        f"Trends and agreement are those of the other tokens before the last, {int(ds['compared_tokens'])} in all."
    )


def _name(result: xr.Dataset | xr.DataArray, place: int) -> str:
    return f"{_quoted(result['token'].values[place])} at position {int(result['position'].values[place])}"


def _quoted(token: str) -> str:
    """A token in quotation marks, with its spaces visible."""
    return f"“{str(token).replace(' ', '␣')}”"
