"""What a table of estimates says: how well each agrees with measured effects, at what cost, and which one to use."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from squashlens.measure.squashing.audit import pooled
from squashlens.measure.squashing.estimates import CEILING, EXPECTED, KNOCKOUT, LEFT_OUT, NULL, TRUTH
from squashlens.reporting.sentences import number, sentence

EFFECTS = {KNOCKOUT: "knockout", LEFT_OUT: "zero embedding", EXPECTED: "expected replacement"}
DEFAULT, OTHER = "sketch of 64, spectral", "sketch of 64, Frobenius"  # norms of `sensitivity`, at the same cost
NAMES = {"paper form": "path bound as printed", NULL: "its null, uniform attention"}


def estimator_table(audits: xr.Dataset) -> str:
    """A Markdown table of the raw agreement of a `pooled` audit with the three effects, and of seconds a text."""
    effects = [effect for effect in EFFECTS if effect in audits["reference"].values]
    lines = [f"| estimate | {' | '.join(EFFECTS[effect] for effect in effects)} | seconds |", "|---|" + "---:|" * 4]
    # The Jacobian of a large model was sketched, as the default is.
    both = [audits["prompt_agreement"].sel(estimate=name).values for name in (TRUTH, DEFAULT)]
    left_out = [TRUTH] * np.array_equal(*both, equal_nan=True)
    for estimate in audits["estimate"].values:
        if estimate in left_out:
            continue
        cells = [_cell(audits.sel(estimate=estimate, reference=effect, way="raw"), "agreement") for effect in effects]
        seconds = number(audits["seconds"].sel(estimate=estimate).median())
        lines.append(f"| {NAMES.get(estimate, estimate)} | {' | '.join(cells)} | {seconds} |")
    return "\n".join(lines)


def _cell(one: xr.Dataset, name: str) -> str:
    """A mean and its interval with two decimals; 1 for an effect with itself."""
    mean, low, high = (float(one[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if not np.isfinite(mean):
        return "–"
    text = [f"{value:.2f}".replace("-", "−") for value in (mean, low, high)]
    return "1" if low == high == 1 else f"{text[0]} [{text[1]}, {text[2]}]"


def advice(audits: xr.Dataset) -> list[str]:
    """For each effect, the estimate that agrees best with it, and the cheapest that is not clearly worse."""
    return [_advised(audits, effect) for effect in EFFECTS if effect in audits["reference"].values]


def _advised(audits: xr.Dataset, effect: str) -> str:
    own = audits.sel(estimate=[name for name in audits["estimate"].values if name not in (*EFFECTS, NULL, TRUTH)])
    at: dict[str, Any] = {"reference": effect, "way": "raw"}
    best = str(own["estimate"].values[int(own["agreement"].sel(at).values.argmax())])
    behind = pooled([audits], base=best).sel(at).sel(estimate=own["estimate"].values)
    seconds = audits["seconds"].median("prompt")
    close = [str(name) for name in own["estimate"].values if float(behind["gain_high"].sel(estimate=name)) >= 0]
    cheap = min({*close, best}, key=lambda name: float(seconds.sel(estimate=name)))
    ceiling = float(audits[CEILING].sel(reference=effect).mean("prompt"))
    beside = f" (noise ceiling {ceiling:.2f})" if np.isfinite(ceiling) else ""
    says = f"{_cell(audits.sel(estimate=best, **at), 'agreement')}{beside}"
    same = (
        "no cheaper one is as good"
        if cheap == best
        else f"the cheapest that is not clearly worse is {NAMES.get(cheap, cheap)}, "
        f"{_cell(audits.sel(estimate=cheap, **at), 'agreement')}, in {number(seconds.sel(estimate=cheap))} s"
    )
    return (
        f"**{sentence(EFFECTS[effect])}**: {number(seconds.sel(estimate=effect))} s a text. Best estimate: "
        f"{NAMES.get(best, best)}, {says}, in {number(seconds.sel(estimate=best))} s; {same}."
    )


def default_norm(audits: xr.Dataset) -> str:
    """Whether a sketch's Frobenius norm agrees better with the effects than its spectral norm, in the same text."""
    gains = pooled([audits], base=DEFAULT).sel(estimate=OTHER, way="raw")
    effects = [effect for effect in EFFECTS if effect in gains["reference"].values]
    each = [f"{_cell(gains.sel(reference=effect), 'gain')} for {EFFECTS[effect]}" for effect in effects]
    return f"Frobenius norm of the sketch minus its spectral norm: {', '.join(each)}."


def size(audits: xr.Dataset) -> str:
    """How many texts and tokens or spans a table is of."""
    places = audits["places"].values
    return f"{len(places)} texts, {int(places.sum())} places"


def estimators_page(audits: Mapping[str, Any]) -> str:
    """The tables and sentences of several pooled audits by their titles, as Markdown, sentences first."""
    parts = []
    for title, one in audits.items():
        parts += [f"### {sentence(title)}", f"{size(one)}."]
        parts.append("\n".join(f"- {said}" for said in [*advice(one), default_norm(one)]))
        if title.startswith("tokens"):
            parts += ["Spearman's ρ, mean over texts, with its 95 % interval:", estimator_table(one)]
    return "\n\n".join(parts) + "\n"
