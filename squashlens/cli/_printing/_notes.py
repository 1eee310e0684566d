"""The lines that are printed below the tables of a result."""

from collections.abc import Callable
from typing import Any


def _audit_notes(found: Any) -> list[str]:
    reasons = zip(found["estimate"].values, found["refused"].values, strict=True)
    return [f"unavailable: {estimate} ({reason})" for estimate, reason in reasons if reason]


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
    return [f"answers that could not be read, by reason (shares of all): {', '.join(why)}"] * bool(why) + [
        f"{answers} answers at each length, to fewer different prompts: {', '.join(fewer)}"
    ] * bool(fewer)


def _verdict_notes(found: Any) -> list[str]:
    return [f"{n} items: {why}" for n, why in zip(found["length"].values, found["reason"].values, strict=True)]


NOTES: dict[str, Callable[[Any], list[str]]] = {
    "audit": _audit_notes,
    "search_separators": _search_notes,
    "evaluate": _answer_notes,
    "collapse_vs_readout": _verdict_notes,
}
