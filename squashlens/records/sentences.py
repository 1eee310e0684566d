"""How numbers are said. Intervals are part of the results; nothing is estimated here."""

import unicodedata
from collections.abc import Sequence

import numpy as np
import xarray as xr

from squashlens.records.provenance import facts_of

HIDDEN = {
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
}  # categories of characters that are not seen
UNKNOWN = "\ufffd"  # stands for bytes that are no character
HALF = ("float16", "bfloat16")
LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def number(value: object) -> str:
    """A number with three digits and a true minus sign.

    >>> number(2971.2), number(-0.25), number(1.2e-7)
    ('2,970', '−0.25', '1.2e−07')
    """
    short = f"{float(value):.3g}"  # pyright: ignore[reportArgumentType]
    plain = f"{float(short):,.0f}" if 1000 <= abs(float(short)) < 1e6 else short
    return plain.replace("-", "−")


def plural(count: int, noun: str) -> str:
    """A number of things, as "1 length", "2 lengths" and "2 queries"."""
    several = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count} {noun if count == 1 else several}"


def with_interval(found: xr.Dataset, name: str) -> xr.DataArray:
    """A variable with the ends of its intervals, if there are any, as the coordinates `low` and `high`."""
    ends = {end: f"{name.removesuffix('_mean')}_{end}" for end in ("low", "high")}
    return found[name].assign_coords(
        {end: found[each].variable for end, each in ends.items() if each in found}
    )


def ends_of(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """The ends `low` and `high` of the intervals of values; the values where there are none that contain them all."""
    data, ends = (
        values.values.astype(np.float64),
        [values.coords.get(end, values).values for end in ("low", "high")],
    )
    low, high = (np.where(np.isnan(data + end), data, end) for end in ends)
    return (
        (low, high)
        if np.allclose(np.clip(data, low, high), data, atol=0, equal_nan=True)
        else (data, data)
    )


def open_order(values: xr.DataArray) -> list[tuple[np.ndarray, float, float]]:
    """Which values may be the largest, and its ends, and the same of the smallest, by intervals and shown digits."""
    low, high = (
        np.reshape([float(f"{each:.3g}") for each in end.flat], end.shape)
        for end in ends_of(values)
    )
    top, bottom = ((of(low), of(high)) for of in (np.nanmax, np.nanmin))
    return [(high >= top[0], *top), (low <= bottom[1], *bottom)]


def times(factor: float) -> str:
    """A factor as a reader would say it.

    >>> times(3.2), times(23456), times(367_900_000)
    ('3.2 times', '23,500 times', '370 million times')
    """
    for size, word in LARGE:
        if factor >= size:
            return f"{number(float(f'{factor / size:.2g}'))} {word} times"
    return (
        f"{float(f'{factor:.3g}'):,.0f} times"
        if factor >= 1000
        else f"{factor:.3g} times"
    )


def percent(share: float) -> str:
    """A share between 0 and 1 as a percentage of two digits, without claiming all or nothing.

    >>> percent(0.123), percent(0.9996), percent(0.0004), percent(1)
    ('12 %', 'over 99.9 %', 'under 0.1 %', '100 %')
    """
    if 0.999 < share < 1:
        return "over 99.9 %"
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.3g} %" if share >= 0.99 else f"{100 * share:.2g} %"


def listed(parts: Sequence[str]) -> str:
    """Parts of a sentence, as in "a, b and c"."""
    *others, final = parts
    return f"{', '.join(others)} and {final}" if others else final


def escape(text: str) -> str:
    r"""The text with what cannot be seen escaped: control, format (also of direction), separator and surrogate
    characters, and U+FFFD. What was escaped stays as it is.

    >>> escape("a\n\x00\u200b\u202e\u2028\ufffdé 🙂")
    'a\\n\\x00\\u200b\\u202e\\u2028\\ufffdé 🙂'
    """
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    hidden = character == UNKNOWN or unicodedata.category(character) in HIDDEN
    return character.encode("unicode_escape").decode("ascii") if hidden else character


def sentence(clause: str) -> str:
    """A clause with its first letter large."""
    return clause[:1].upper() + clause[1:]


def quoted(token: object) -> str:
    """A token or an answer in quotation marks, with its spaces visible."""
    return f"“{escape(str(token)).replace(' ', '␣')}”"


def certainty_of_norms(measured: xr.Dataset) -> str:
    """A clause on how far the Jacobian norms may be off: exact, estimated with intervals, or in half precision."""
    dtype = facts_of(measured).get("dtype")
    if dtype in HALF:
        return f"The norms were computed in {dtype}, in which small ones are several times too large"
    if "jacobian_low" not in measured:
        return "The norms are exact to first order, for this prompt and this model"
    low, high = (measured[f"jacobian_{end}"].values for end in ("low", "high"))
    factors = high[low > 0] / low[low > 0]
    apart = (
        f"; the ends of their intervals are up to a factor of {factors.max():.2g} apart"
        if factors.size
        else ""
    )
    return f"The norms are estimates from random products of the Jacobian{apart}"


def beside_random(probed: xr.Dataset) -> str:
    """A clause on R² at y beside random weights, both as medians over lengths."""
    own, random = (
        float(probed[f"{name}_y"].median()) for name in ("r2", "r2_random_model")
    )
    high = (
        "what the probe reads is there without training"
        if random >= own
        else "training adds what the probe reads"
    )
    return f"median R² of y is {number(own)}, and {number(random)} with random weights: {high}"
