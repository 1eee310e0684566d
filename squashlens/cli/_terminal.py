"""Tables on the terminal: which variables of a result are shown, by which rows, under labels that a reader understands.

A label is the variable's own `long_name` with its unit. Of a long table some rows are printed, evenly spaced; `--out`
saves all.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from tabulate import tabulate

ROWS, COLUMNS, WIDTH = 24, 8, 18
NO_UNITS = ("1", "text")  # what numbers without a unit, and texts, have as units
# What a coordinate is called in a heading; by default its name and its value.
COORDINATES = {
    "hop": "{} hops", "from_block": "from block {}", "to_layer": "to layer {}",
    **dict.fromkeys(("quantity", "part", "edit", "hook", "format", "run", "mode", "form"), "{}"),
}  # fmt: skip
FRAMES = {"audit": "estimate", "search_separators": "separator, every"}  # of `results.table`, by the name of its rows
EACH = ("prompt", "mode", "separator", "every")  # dimensions with a table for each of their values
# By verb: the dimension of the rows, the variables, and how other dimensions are reduced. The rest are columns.
TABLES = {
    "jacobian": ["position | singular_value |", "position | raised_token | rank=first"],
    "sensitivity": [
        "position | path_bound null bound_over_null jacobian jacobian_frozen |",
        "estimate | rank_agreement rank_agreement_low rank_agreement_high position_trend |",
    ],
    "profile": [
        "distance | influence | layer=first",
        "layer | exponent |",
        "layer | representation_entropy effective_rank first_token_norm stream_norm collapse_distance |",
        "block | sink_rate attention_entropy uniform_entropy sink_value_norm value_norm | head=mean",
    ],
    "strongest_paths": ["path | share over_null position_at | layer=join"],
    "depth_limit": ["block | first_share predicted_rate observed_rate absorbing | depth=last"],
    "collapse": ["length | distance distance_y contrast total_variation same_argmax | layer=last"],
    "mechanism": [
        "length | attention_tv self_weight observed bound | block=mean head=mean",
        "block | share | length=last",
    ],
    "separator_ablation": ["length | distance distance_from | layer=last from_block=first"],
    "tokenization": [
        "repeats | tokens |", "repeats | pair |", "repeats | naive | layer=last", "repeats | distance | layer=last",
    ],
    "precision": [
        "layer | collapsed_from |", "layer | bits_per_coordinate | length=median", "block | distance | length=last",
        "block | enters_as_one | length=last",
    ],
    "precision --runs": ["length | distance | layer=last", "layer | collapsed_from |"],
    "compare": ["change | distance | layer=last length=median", "change | accuracy | length=mean"],
    "evaluate": [
        "length | accuracy accuracy_low accuracy_high accuracy_strict mean_error median_error unread | why=sum"
    ],
    "probe": ["length | r2_y r2_random_model_y r2_control_y gain_y gain_low_y gain_high_y prompts |"],
    "collapse_vs_readout": ["length | accuracy same_answer distance r2_y gain_y verdict | seed=median"],
}  # fmt: skip


def show(name: str, result: Any, label: str = "") -> str:
    """The tables of a verb's result and what else there is to say about it, as text that ends in a line break."""
    lines = [f"== {label}"] if label else []
    if name in FRAMES:
        lines.append(_frame(result, FRAMES[name]))
    data = result.to_dataset() if isinstance(result, xr.DataArray) else result
    each = [dim for dim in EACH if dim in data.dims and name not in FRAMES]
    for places in product(*(range(data.sizes[dim]) for dim in each)):
        chosen = dict(zip(each, places, strict=True))
        several = [_coordinate(dim, data[dim].values[at]) for dim, at in chosen.items() if data.sizes[dim] > 1]
        lines += [f"{', '.join(several)}:"] if several else []
        for table in TABLES.get(name, ()) if name in (*TABLES, *FRAMES) else _usual(data):
            lines += _lines(data.isel(chosen), *(part.split() for part in table.split("|")))
    lines += NOTES[name](result) if name in NOTES else []
    return "".join(f"{line}\n" for line in lines)


def _usual(data: xr.Dataset) -> list[str]:
    """The tables of a measurement without an entry above: by the last dimension of its variables, up to two each."""
    rows = dict.fromkeys(str(one.dims[-1]) for one in data.data_vars.values() if one.ndim in (1, 2))
    names = {
        dim: [str(n) for n, one in data.data_vars.items() if one.dims[-1:] == (dim,) and one.ndim < 3] for dim in rows
    }
    return [f"{dim} | {' '.join(names[dim])} |" for dim in rows]


def _lines(data: xr.Dataset, rows: list[str], variables: list[str], reductions: list[str]) -> Iterator[str]:
    """One table: a title, headings and rows. The title of a single variable is its label."""
    reduced = [_reduce(data[name], reductions) for name in variables if name in data]
    if not reduced:
        return
    (dim,) = rows
    alone = len(reduced) == 1 or all(array.ndim > 1 for array, _ in reduced)  # columns differ by coordinates
    columns: dict[str, Any] = {}
    for array, label in reduced:
        columns |= _columns(array, dim, "" if alone else label)
    shown = {name: columns[name] for name in [*columns][:COLUMNS]}
    size = data.sizes[dim]
    if "token" in data.coords and data["token"].dims == (dim,):
        shown["token"] = data["token"].values
        size = int((data["token"] != "").sum())  # a shorter prompt of several is padded
    places = np.unique(np.linspace(0, size - 1, min(size, ROWS)).round().astype(int))
    corner = f"length ({'items' if 'seed' in data.sizes else 'content tokens'})" if dim == "length" else dim
    yield f"# {reduced[0][1] if alone else data.attrs.get('long_name', '')}"
    yield _grid({corner: data[dim].values[places].astype(str)} | {name: one[places] for name, one in shown.items()})
    counts = ((len(places), size, "rows"), (min(len(columns), COLUMNS), len(columns), "columns"))
    if less := [f"{n} of {of} {what}" for n, of, what in counts if n < of]:
        yield f"({' and '.join(less)}; --out saves all)"


def _reduce(array: xr.DataArray, reductions: list[str]) -> tuple[xr.DataArray, str]:
    """An array without the dimensions that a table reduces, and its label, which says how they were reduced."""
    units = str(array.attrs.get("units", ""))
    label = f"{array.attrs.get('long_name', array.name)}{f' ({units})' if units and units not in NO_UNITS else ''}"
    for dim, how in (reduction.split("=") for reduction in reductions):
        if dim not in array.dims:
            continue
        if how == "first":  # it stays, for the heading
            array = array.isel({dim: [0]})
        elif how == "last":
            array = array.isel({dim: -1})
            label += f", {_coordinate(dim, array[dim].item())}"
        elif how == "join":
            joined = [" ".join(map(str, row)) for row in array.transpose(..., dim).values]
            array = array.isel({dim: 0}, drop=True).copy(data=np.array(joined, dtype=object))
        else:
            array = getattr(array, how)(dim)
            label += "" if how == "sum" else f", {how} over {dim}s"
    return array, label


def _columns(array: xr.DataArray, rows: str, label: str) -> dict[str, Any]:
    """The columns of an array: one for each value of its dimensions other than the rows."""
    others = [str(dim) for dim in array.dims if dim != rows]
    found = {}
    for places in product(*(range(array.sizes[dim]) for dim in others)):
        names = [_coordinate(dim, array[dim].values[place]) for dim, place in zip(others, places, strict=True)]
        column = array.isel(dict(zip(others, places, strict=True))).values
        whether = str(array.attrs.get("long_name")).startswith("whether") and not np.isnan(column).any()
        found[", ".join([label] * bool(label) + names) or "value"] = column == 1 if whether else column
    return found


def _coordinate(dim: str, value: Any) -> str:
    return COORDINATES.get(dim, f"{dim} {{}}").format(value)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    return "-" if np.isnan(value) else f"{float(value):.5g}"


def _grid(columns: dict[str, Any]) -> str:
    """Right-aligned columns below headings that are wrapped onto several lines."""
    cells = {name: [*map(_cell, column)] for name, column in columns.items()}
    form: Any = {"tablefmt": "plain", "stralign": "right", "disable_numparse": True, "maxheadercolwidths": WIDTH}
    return tabulate(cells, headers="keys", **form)


def _frame(result: Any, corner: str) -> str:
    """The table that `squashlens.results.table` makes of a result."""
    import squashlens as sl

    frame = sl.results.table(result)
    index = [", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.index]
    return _grid({corner: index} | {str(name): frame[name] for name in frame})


def _search_notes(found: Any) -> list[str]:
    low, middle, high = (float(found[name]) for name in ("advantage_low", "advantage", "advantage_high"))
    return [
        f"best: {found['best_separator'].item()!r} after every {int(found['best_every'])} content tokens",
        f"separation beyond random placement: {middle:.3g} (95 % interval {low:.3g} to {high:.3g})",
    ]


def _answer_notes(found: Any) -> list[str]:
    from squashlens.tasks.reading import WHY

    shares = found["unread"].mean(["mode", "length"])
    why = [f"{WHY[str(share['why'].item())]} {float(share):.3g}" for share in shares if share > 0]
    prompts, answers = found["prompts"].min("mode"), found.sizes["seed"]
    fewer = [f"{int(n)} at {int(n['length'])}" for n in prompts if n < answers]
    return (
        _ability_notes(found)
        + [f"answers that could not be read, by reason (shares of all): {', '.join(why)}"] * bool(why)
        + [f"{answers} answers at each length, to fewer different prompts: {', '.join(fewer)}"] * bool(fewer)
    )


def _ability_notes(found: Any) -> list[str]:
    """Whether the model can do the task at short lengths, in each mode, and what may help if not."""
    from squashlens.records.results import provenance

    modes, reasons = np.atleast_1d(found["mode"]), np.atleast_1d(found["able_reason"])
    lines = [f"{mode}: {reason}" if len(modes) > 1 else reason for mode, reason in zip(modes, reasons, strict=True)]
    more = "solved examples in the prompt may help: --prompting.n-examples 4"
    examples = provenance(found)["call"].get("n_examples")
    return lines + [more] * (examples == 0 and bool((found["able"] != "yes").any()))


def _reasons(found: Any, rows: str, reasons: str, text: str) -> list[str]:
    each = zip(found[rows].values, found[reasons].values, strict=True)
    return [text.format(name, reason) for name, reason in each if reason]


NOTES: dict[str, Callable[[Any], list[str]]] = {
    "audit": lambda found: _reasons(found, "estimate", "refused", "unavailable: {} ({})"),
    "search_separators": _search_notes,
    "evaluate": _answer_notes,
    "collapse_vs_readout": lambda found: [*_ability_notes(found), *_reasons(found, "length", "reason", "{} items: {}")],
}
