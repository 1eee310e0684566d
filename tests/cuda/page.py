"""The results as a Markdown page."""

from collections.abc import Mapping
from typing import Any

WORKS = {
    "forward": "plain fused forward pass",
    "bound": "`path_bound`",
    "sketch": "`jacobian_norms`, sketch of 32 probes",
    "exact": "`jacobian_norms`, exact, one query",
    "collapse": "`collapse` at all lengths",
    "profile": "`profile`, bounds of all queries and layers",
}


def page(held: Mapping[str, Any]) -> str:
    """What was run where, what it took, and what failed."""
    about = held.get("about", {})
    kind = "Rehearsal on the CPU with small shapes" if held["rehearsal"] else f"Run on {about.get('device', 'a GPU')}"
    lines = [f"# {kind}", ""]
    if about:
        memory = f" with {size(about['memory'])}" if about.get("memory") else ""
        cuda = f", CUDA {about['cuda']}" if about.get("cuda") else ""
        lines += [
            f"Device: {about['device']}{memory}; PyTorch {about['torch']}{cuda}. {held['seconds']:.0f} s in all.",
            "",
        ]
    lines += ["## Tests", "", held.get("tests", "Not run."), "", "## Times and memory", ""]
    lines += [
        "A ratio is the time beside a plain fused forward pass of as many tokens. Memory is the peak beyond the",
        "weights; the factor is the measured peak over what squashlens expected.", "",
        "| model | what | tokens | time | ratio | peak | expected | factor |", "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [row(part) for part in held["parts"] if "kind" in part]
    attention = [f"- {part['model']}: {part['attention']}" for part in held["parts"] if "attention" in part]
    lines += ["", "Attention in `path_bound`:", "", *attention] if attention else []
    lines += ["", "## Expected memory of the real shapes in bfloat16", "", *expected(held["parts"])]
    lines += ["", "## Failures", ""]
    lines += [f"- **{one['part']}**: {one['reason']}" for one in held["failures"]] or ["None."]
    return "\n".join(lines) + "\n"


def row(part: Mapping[str, Any]) -> str:
    factor = "–" if part["factor"] is None else f"{part['factor']:.2f}"
    cells = [
        part["model"], WORKS[part["kind"]], f"{part['n']:,}", f"{part['seconds']:.3g} s", f"{part['ratio']:.3g}",
        size(part["peak"]), size(part["estimate"]), factor,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def expected(parts: list[Mapping[str, Any]]) -> list[str]:
    """A row for each work of the real shapes, from sizes alone."""
    rows = [
        f"| {part['model']} | {name} | {size(part['estimates']['weights'])} | {size(needed)} |"
        for part in parts
        if "estimates" in part
        for name, needed in part["estimates"]["works"].items()
    ]
    return ["| model | what | weights | beyond them |", "|---|---|---|---|", *rows] if rows else ["No shape was begun."]


def size(number: float | None) -> str:
    """Bytes for readers."""
    if number is None:
        return "–"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"
