"""What a model does of what the paper claims: an effect, its interval and a verdict for each quantity of each claim.

The numbers are those of a run of `analyses/gemma.py`. Each quantity is measured in several words, texts or questions,
and its interval is over these: Student's t for means (of logarithms, for factors), Clopper and Pearson's for counts,
and for differences of answers the same of gains and of losses, with half of the error for each.
A claim predicts on which side of an edge the quantity lies: it holds if the whole interval is on that side, fails if
none of it is, and is undecided otherwise. It cannot be tested where the model fails in the shortest case already.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Bridge
from squashlens.engine.loading.random_weights import with_random_weights
from squashlens.prompts import bernoulli, digits
from squashlens.records.results import open as open_result
from squashlens.reporting.sentences import number, percent
from squashlens.sequences import GrowingSequence
from squashlens.theory.statistics.ranks import mean_interval, share_interval

Kind = Literal["factor", "share", "rho", "difference"]
MODELS = ("trained", "untrained")
EDGE = {"factor": 1.0, "share": 0.5, "rho": 0.0, "difference": 0.0}
FAR = 256  # words at which collapse is judged: the longest length well inside the windows of Gemma
EDGE_OF_WINDOW = 511  # words with which v, but not v*, still has BOS in a window of 512 tokens
SHORT, LONG = 1, 64  # digits of the questions


@dataclass(frozen=True)
class Quantity:
    """One number for each word, text or question, in one part of a run, and on which side of its edge it should be."""

    text: str  # with {far} for the length at which collapse is judged
    part: str
    of: Callable[[Any], Any]
    unit: str
    kind: Kind
    predicted: Literal["below", "above", ""] = ""
    premise: str = ""  # the quantity that must be above its edge, or there is nothing that could be lost
    needs: int | None = None  # a length that the part must have


# Words of the questions of three tasks, and the answers of their three examples. No space is before a digit: many
# tokenizers make it a token, and the model would answer with that.
ASKED = {"last": ("Last", 7, 9, 6), "first": ("First", 4, 3, 8), "ones": ("Ones", 0, 0, 2)}
EXAMPLES = "Digits:407. {0}:{1}\nDigits:39. {0}:{2}\nDigits:81126. {0}:{3}\nDigits:"
ANSWERS: dict[str, Callable[[tuple[str, ...]], str]] = {
    "last": lambda digits: digits[-1], "first": lambda digits: digits[0], "ones": lambda digits: str(digits.count("1")),
}  # fmt: skip


def question(model: Bridge, asked: str, *, seed: int) -> tuple[GrowingSequence, Callable[[tuple[str, ...]], str]]:
    """Digits after three worked examples, as a base model can answer, and the right answer from the digits.

    Args:
        model: the model whose tokens the sequence has.
        asked: ``"last"`` or ``"first"`` digit of up to 64 random ones, or number of ``"ones"`` among zeros and ones.
        seed: random seed of the digits.
    """
    draw, form = bernoulli if asked == "ones" else digits, EXAMPLES.format(*ASKED[asked])
    return draw(model, LONG, seed=seed, prefix=form, suffix=f". {ASKED[asked][0]}:"), ANSWERS[asked]


def _over_first(name: str) -> Callable[..., xr.DataArray]:
    return lambda ds: ds[name].sel(length=_far(ds)) / ds[name].isel(length=0)


def _far(ds: xr.Dataset | xr.DataArray) -> int:
    """The length at which collapse is judged, or the longest below it."""
    lengths = np.atleast_1d(ds["length"].values)
    return int(lengths[lengths <= FAR].max())


def _last_step(ds: xr.Dataset) -> xr.DataArray:
    """The distance where a window of 512 tokens has just lost BOS over that shortly before."""
    return ds["distance"].sel(length=EDGE_OF_WINDOW) / ds["distance"].sel(length=500)


def _share_of_bos(name: str) -> Callable[..., xr.DataArray]:
    return lambda ds: ds[name].isel(position=0) / ds[name].sum("position")


def _trend(name: str) -> Callable[..., xr.DataArray]:
    return lambda ds: ds["position_trend"].sel(estimate=name)


def _thirds(ds: xr.Dataset, name: str) -> np.ndarray:
    """The medians over the thirds of each text, without sinks, BOS and the last token: (text, third)."""
    found = []
    for text in ds["prompt"].values:
        one = ds.sel(prompt=text)
        inside = (one["sink"].values == 0) & (one["token_id"].values >= 0)
        places = np.flatnonzero(inside)
        places = places[(places > 0) & (places < np.flatnonzero(one["token_id"].values >= 0).max())]
        found.append([np.median(one[name].values[part]) for part in np.array_split(places, 3)])
    return np.array(found)


def _middle(name: str) -> Callable[..., np.ndarray]:
    def ratio(ds: xr.Dataset) -> np.ndarray:
        first, middle, last = _thirds(ds, name).T
        return middle / np.sqrt(first * last)

    return ratio


def _first_over_last(name: str) -> Callable[..., np.ndarray]:
    return lambda ds: _thirds(ds, name)[:, 0] / _thirds(ds, name)[:, 2]


def _right(length: int) -> Callable[..., xr.DataArray]:
    return lambda found: found.sel(length=length)


def _edited(one: str, other: str) -> Callable[..., np.ndarray]:
    """The distance with one edit of the separators over that with another, geometric mean over lengths."""
    return lambda ds: np.exp(np.log(ds["distance"].sel(edit=one) / ds["distance"].sel(edit=other)).mean("length"))


CLAIMS: dict[str, tuple[Quantity, ...]] = {
    "A sequence and the same with its last word repeated get closer with length (Theorem 4.2)": (
        Quantity("largest difference of a coordinate at the last layer, {far} words ÷ 1 word", "collapse",
                 _over_first("distance"), "words", "factor", "below"),
        Quantity("the same of y, after the final norm", "collapse", _over_first("distance_y"), "words", "factor",
                 "below"),
        Quantity("relative difference of the median coordinate, {far} ÷ 1", "collapse", _over_first("relative_median"),
                 "words", "factor", "below"),
        Quantity("total variation of the next token, {far} ÷ 1", "collapse", _over_first("total_variation"), "words",
                 "factor", "below"),
        Quantity("share of the largest coordinate in the squared distance, {far} words", "shares", lambda s: s, "words",
                 "share"),
    ),
    "A float32 run that is rounded to bfloat16 afterwards makes the two identical": (
        Quantity("share of coordinates at the last layer that are identical in bfloat16, {far} words", "rounded",
                 lambda ds: ds["bit_identical"].sel(length=_far(ds)), "words", "share", "above"),
        Quantity("sequences whose coordinates are all identical", "rounded",
                 lambda ds: ds["bit_identical"].sel(length=_far(ds)) == 1, "words", "share", "above"),
        Quantity("difference of the median coordinate in steps of bfloat16 (1/256 of it), {far} words", "collapse",
                 lambda ds: ds["relative_median"].sel(length=_far(ds)) * 256, "words", "factor", "below"),
    ),
    "The distance goes on falling where a window of 512 tokens loses BOS": (
        Quantity("distance at 511 words ÷ at 500", "collapse", _last_step, "words", "factor", "below",
                 needs=EDGE_OF_WINDOW),
        Quantity("the same with the windows lifted", "lifted", _last_step, "words", "factor", "below",
                 needs=EDGE_OF_WINDOW),
    ),
    "Commas keep the two apart (section 4.2)": (
        Quantity("distance with a comma after every third word ÷ without (v* breaks groups)", "separators",
                 _edited("separators", "none"), "words", "factor", "above"),
        Quantity("of it, what the gaps in the positions do", "separators", _edited("delete_keep_positions", "none"),
                 "words", "factor", "above"),
        Quantity("of it, what attention to the commas does", "separators",
                 _edited("separators", "delete_keep_positions"), "words", "factor", "above"),
    ),
    "Earlier tokens have more paths, and more influence (Theorem 5.1)": (
        Quantity("Spearman's ρ of the Jacobian norm with the position", "sensitivity", _trend("jacobian"), "texts",
                 "rho", "below"),
        Quantity("Spearman's ρ of the path bound with the position", "sensitivity", _trend("path_bound"), "texts",
                 "rho", "below"),
        Quantity("Spearman's ρ of the path bound ÷ its null with the position", "sensitivity",
                 _trend("bound_over_null"), "texts", "rho", "below"),
        Quantity("Jacobian norm, first third ÷ last third", "sensitivity", _first_over_last("jacobian"), "texts",
                 "factor", "above"),
        Quantity("Jacobian norm, middle third ÷ mean of the others (U shape)", "sensitivity", _middle("jacobian"),
                 "texts", "factor", "below"),
        Quantity("Spearman's ρ of path bound and Jacobian norm over tokens", "sensitivity",
                 lambda ds: ds["rank_agreement"].sel(estimate="path_bound"), "texts", "rho", "above"),
        Quantity("share of BOS in the path bound", "sensitivity", _share_of_bos("path_bound"), "texts", "share"),
        Quantity("share of BOS in the null", "sensitivity", _share_of_bos("null"), "texts", "share"),
        Quantity("share of BOS in the Jacobian norms", "sensitivity", _share_of_bos("jacobian"), "texts", "share"),
    ),
    "Counting fails with length (section 3)": (
        Quantity("right counts, 1 digit", "ones", _right(SHORT), "questions", "share"),
        Quantity("right counts, 64 digits", "ones", _right(LONG), "questions", "share"),
        Quantity("right at 64 digits minus right at 1", "ones", lambda f: _right(LONG)(f) - _right(SHORT)(f),
                 "questions", "difference", "below", "right counts, 1 digit"),
    ),
    "Copying fails with length, and the last digit before the first (section 3)": (
        Quantity("right last digits, 1 digit", "last", _right(SHORT), "questions", "share"),
        Quantity("right last digits, 64 digits", "last", _right(LONG), "questions", "share"),
        Quantity("right first digits, 1 digit", "first", _right(SHORT), "questions", "share"),
        Quantity("right first digits, 64 digits", "first", _right(LONG), "questions", "share"),
        Quantity("last digit, right at 64 minus right at 1", "last", lambda f: _right(LONG)(f) - _right(SHORT)(f),
                 "questions", "difference", "below", "right last digits, 1 digit"),
        Quantity("first digit, right at 64 minus right at 1", "first", lambda f: _right(LONG)(f) - _right(SHORT)(f),
                 "questions", "difference", "below", "right first digits, 1 digit"),
        Quantity("last minus first at 64 digits", "last_minus_first", _right(LONG), "questions", "difference", "below",
                 "right last digits, 1 digit"),
    ),
}  # fmt: skip


def untrained(model: Bridge) -> Bridge:
    """The same architecture with random weights, and with the tokenizer of the model."""
    twin = with_random_weights(model, seed=0)
    twin.tokenizer = model.tokenizer
    return twin


def claims(folder: str | Path) -> pd.DataFrame:
    """A row for each quantity and model: n, the effect with the ends of its 95 % interval, and the verdict.

    Args:
        folder: where a run saved its parts, as ``trained-collapse.nc`` and the like; a part that is missing, or lacks
            the lengths of a quantity, leaves it out.
    """
    rows, runs = [], {}
    for model in MODELS:
        runs[model] = {file.stem.split("-")[1]: open_result(file) for file in Path(folder).glob(f"{model}-*.nc")}
    for claim, quantities in CLAIMS.items():
        for model, given in runs.items():
            parts = _with_derived(given)
            found = {one: _row(claim, one, model, parts[one.part]) for one in quantities if _measured(one, parts)}
            able = {one.text: row["high"] >= EDGE[one.kind] for one, row in found.items()}
            for one, row in found.items():
                row["verdict"] = row["verdict"] if able.get(one.premise, True) else "untestable"
            rows += found.values()
    return pd.DataFrame(rows)


def _with_derived(parts: Mapping[str, xr.Dataset | xr.DataArray]) -> dict[str, xr.Dataset | xr.DataArray]:
    """The parts, and what follows from two of them."""
    found = dict(parts)
    if {"collapse", "square"} <= set(parts):
        at = {"length": _far(parts["collapse"])}  # pyright: ignore[reportArgumentType]
        found["shares"] = (parts["collapse"]["distance"].sel(at) / parts["square"]["distance"].sel(at)) ** 2
    if {"last", "first"} <= set(parts):
        found["last_minus_first"] = parts["last"] - parts["first"]  # pyright: ignore[reportOperatorIssue]
    return found


def _measured(quantity: Quantity, parts: Mapping[str, xr.Dataset | xr.DataArray]) -> bool:
    part = parts.get(quantity.part)
    return part is not None and (quantity.needs is None or quantity.needs in part["length"].values)


def _row(claim: str, quantity: Quantity, model: str, part: xr.Dataset | xr.DataArray) -> dict[str, Any]:
    values = np.asarray(quantity.of(part), dtype=float)
    values = values[np.isfinite(values)]
    effect, low, high = _estimate(values, quantity.kind)
    text = quantity.text.format(far=_far(part)) if "{far}" in quantity.text else quantity.text
    return {
        "claim": claim, "quantity": text, "model": model, "n": len(values), "unit": quantity.unit,
        "kind": quantity.kind, "effect": effect, "low": low, "high": high,
        "verdict": _verdict(low, high, EDGE[quantity.kind], quantity.predicted),
    }  # fmt: skip


def _estimate(values: np.ndarray, kind: Kind) -> tuple[float, float, float]:
    """The mean over units and the ends of its 95 % interval; of a factor the geometric mean."""
    if kind == "share" and np.isin(values, (0, 1)).all():
        found = share_interval(torch.from_numpy(values))
        return float(found[0]), float(found[1]), float(found[2])
    if kind == "difference" and np.isin(values, (-1, 0, 1)).all():
        return float(values.mean()), *_paired(values)
    used = np.log(values[values > 0]) if kind == "factor" else values
    _, low, high = mean_interval(torch.from_numpy(used))
    ends = (float(used.mean()) if len(used) else np.nan, float(low), float(high))
    if kind in ("share", "rho"):
        return ends[0], max(ends[1], 0.0 if kind == "share" else -1.0), min(ends[2], 1.0)
    return tuple(np.exp(ends).tolist()) if kind == "factor" else ends  # pyright: ignore[reportReturnType]


def _paired(values: np.ndarray) -> tuple[float, float]:
    """The ends of an interval for gains minus losses that has at least 95 %, also where no answer changed."""
    from scipy.stats import binomtest

    gained, lost = (binomtest(int((values == sign).sum()), len(values)).proportion_ci(0.975) for sign in (1, -1))
    return gained.low - lost.high, gained.high - lost.low


def _verdict(low: float, high: float, edge: float, predicted: str) -> str:
    if not predicted:
        return ""
    if predicted == "below":
        low, high, edge = -high, -low, -edge
    return "holds" if low > edge else "fails" if high < edge else "undecided"


def read_claims(file: str | Path) -> pd.DataFrame:
    """The table that a run of the analysis wrote."""
    return pd.read_csv(file, keep_default_na=False, na_values=["nan", "NaN"]).astype({"n": int})


def claims_page(table: pd.DataFrame, model: str) -> str:
    """The table as Markdown: for each claim the verdicts, and all quantities."""
    parts = []
    for claim, rows in table.groupby("claim", sort=False):
        lines = [
            f"### {claim}",
            "",
            _summary(rows, model),
            "",
            f"| quantity | {model} | verdict | untrained | verdict |",
        ]
        lines.append("|---|---:|---|---:|---|")
        for quantity, pair in rows.groupby("quantity", sort=False):
            each = {row["model"]: row for _, row in pair.iterrows()}
            cells = [f"{_said(each[m])} | {each[m]['verdict']}" if m in each else "not measured | " for m in MODELS]
            lines.append(f"| {quantity} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _said(row: Any) -> str:
    """An effect with its interval, in the words of its kind."""
    text = percent if row["kind"] == "share" else number
    low, high = (text(row[end]) if np.isfinite(row[end]) else "?" for end in ("low", "high"))
    sign = "× " if row["kind"] == "factor" else ""
    return f"{sign}{text(row['effect'])} [{low}, {high}]"


def _summary(rows: pd.DataFrame, model: str) -> str:
    """The verdict on the first prediction that can be tested, how all turn out, and the number of sequences."""
    judged = rows[rows["verdict"] != ""]
    parts = []
    for kind, name in zip(MODELS, (model, "The untrained model"), strict=True):
        mine = judged.loc[judged["model"] == kind]
        if not len(mine):
            continue
        tested = mine.loc[mine["verdict"] != "untestable"]
        first = (tested if len(tested) else mine).iloc[0]
        counts = {verdict: int((mine["verdict"] == verdict).sum()) for verdict in VERDICTS}
        each = ", ".join(f"{count} × {verdict}" for verdict, count in counts.items() if count)
        parts.append(f"**{name}: {VERDICTS[first['verdict']]}** ({each}).")
    return " ".join([*parts, f"n = {', '.join(map(str, sorted({*rows['n']})))}."])


VERDICTS = {
    "holds": "the claim holds", "fails": "the claim fails", "undecided": "undecided",
    "untestable": "it fails in the shortest case already, so that no loss can be shown",
}  # fmt: skip
