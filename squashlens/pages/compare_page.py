"""The page of two models: which answers another model loses, and what keeps them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import Bridge, ChoicesOfPrompts, Clusters, PromptsOrItems
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.registration import measurement
from squashlens.pages.page import Section, page_of
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import escape, listed, number, percent, plural, quoted
from squashlens.saving.files import PAGES, require_output, write

NOTHING_LOST = (
    "What keeps them was not tried: no loss beyond chance was found in these prompts."
)
SHOWN = 24  # prompts of which the answers are listed
END = 60  # characters of a prompt


@measurement(
    cheaper="Fewer or shorter prompts take less; n_keep=0 does not look for what to keep."
)
def compare_report(
    reference: Bridge,
    other: Bridge,
    prompts: PromptsOrItems,
    answers: Sequence[str] | None = None,
    *,
    choices: ChoicesOfPrompts = None,
    group: Sequence[str] | None = None,
    clusters: Clusters = None,
    n_keep: int = 2,
    out: str | Path = "compare.html",
) -> Path:
    """Write an HTML page that says which answers another model loses, and which of its blocks keep them.

    Its first screen says how many right answers are lost, by group, and what brings them back: the blocks that half of
    the prompts choose, tested on the other half beside random blocks and beside those that mean KL chooses. Then come
    the leads of all answers, the damage by block, and the answers that were lost. What to keep is looked for only if
    the loss is larger than chance, with 95 %, and if blocks of the two models can take each other's places.

    Args:
        reference, other, prompts, answers, choices, group, clusters: as in `compare_models`.
        n_keep: number of blocks to keep, 2 by default; 0 does not look for them.
        out: the file to write, with the ending ``.html`` or ``.htm``.

    Returns:
        The path of the file, which opens from disk without a network.

    Raises:
        InputError: the cases of `compare_models`; `out` cannot be written.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> four_bits = sl.quantize_weights(model, "Q4_0")
    >>> sl.compare_report(model, four_bits, prompts, [*"0123456789"], out=tmp_path / "compare.html").name
    'compare.html'
    """
    from squashlens.measure.answers.choices import questions_of
    from squashlens.measure.models.blocks_to_keep import blocks_to_keep
    from squashlens.measure.models.compare_models import compare_models
    from squashlens.measure.models.damage_by_block import damage_by_block

    out = require_output(out, PAGES)
    if n_keep < 0:
        raise InputError(
            f"n_keep={n_keep} is negative.", "Give a number of blocks, or 0."
        )
    asked = questions_of(prompts, answers, choices, clusters, group)
    given: Any = (reference, other, asked.prompts, asked.answers)
    options: Any = {"choices": asked.choices, "clusters": asked.clusters}
    damages = None
    kept = None
    with bar(total=3, desc="parts") as parts:
        compared = compare_models(*given, group=asked.group, **options)
        parts.update()
        not_tried = _reason_not_to_try(compared, n_keep)
        if not not_tried:
            try:
                damages = damage_by_block(*given, **options)
                parts.update()
                kept = blocks_to_keep(*given, n_keep=n_keep, **options)
            except InputError as error:
                not_tried = f"What keeps them was not tried: {error.cause}"
    page = render_comparison(compared, damages, kept, asked.prompts, not_tried)
    return write(out, page.encode("utf-8"))


def _reason_not_to_try(compared: xr.Dataset, n_keep: int) -> str:
    """Why no blocks are looked for, in words; empty if they are."""
    if n_keep == 0:
        return "What keeps them was not tried (n_keep = 0)."
    if float(_of_all(compared)["change_high"]) >= 0:
        return NOTHING_LOST
    return ""


def _of_all(compared: xr.Dataset) -> xr.Dataset:
    """The numbers of all prompts together, which is the first group."""
    return compared.isel(group=0)


def render_comparison(
    compared: xr.Dataset,
    damages: xr.Dataset | None,
    kept: xr.Dataset | None,
    prompts: Sequence[str],
    not_tried: str = "",
) -> str:
    """The page for given results, as HTML text; nothing is measured here."""
    from squashlens import figures

    facts = provenance(compared)
    names = models_of(compared)  # one, if both models have the same name
    note = "A mark is a prompt. Below the dotted line through 0, the answer is wrong in the other model."
    sections = [
        Section("Every answer", note=note, figure=figures.lost_answers(compared))
    ]
    if kept is not None:
        note = "Prompts that did not choose the blocks. The first is the other model as it is."
        figure = figures.kept_blocks(kept)
        sections.append(Section("What keeps the answers", note=note, figure=figure))
    if damages is not None:
        note = (
            "The lead of an answer is log p of the right choice minus log p of the likeliest other one. Damages of all "
            "parts add up to the lead that is lost; a block alone may give back another amount."
        )
        figure = figures.damages(damages)
        sections.append(Section("Where the answers are lost", note=note, figure=figure))
    reference = model_in_words(names[0], facts)
    other = model_in_words(names[-1], facts["other"])
    if other == reference:
        is_same = facts["other"]["fingerprint"] == facts["fingerprint"]
        other += ", with the same weights" if is_same else ", with other weights"
    n_lost = int((compared["outcome"] == "lost").sum())
    return page_of(
        "compare.html.jinja",
        sections,
        facts,
        title="What another model loses",
        reference=reference,
        other=other,
        n_lost=n_lost,
        headline=lost_in_words(compared),
        details=loss_details(compared),
        keeping=kept_in_words(kept) if kept is not None else not_tried,
        groups=_group_rows(compared),
        answers=_answer_rows(compared, prompts),
        n_prompts=compared.sizes["prompt"],
    )


def model_in_words(name: str, facts: Mapping[str, Any]) -> str:
    """A model, whose name says what became of its weights, with its dtype, quantization and hooks."""
    parts = [f"{name} in {str(facts['dtype']).removeprefix('torch.')}"]
    if facts.get("quantized"):
        parts.append(f"weights quantized to {facts['quantized']}")
    hooks = [str(hook).partition(": ")[2] for hook in facts.get("ambient_hooks") or []]
    if hooks:
        parts.append(f"with {listed(list(dict.fromkeys(hooks)))}")
    return escape(", ".join(parts))


def lost_in_words(compared: xr.Dataset) -> str:
    """How many right answers are lost, in one sentence, which says so only if the interval excludes no change."""
    total = _of_all(compared)
    before, after = (float(share) for share in total["right"])
    shares = f"{percent(before)} right before, {percent(after)} after"
    count = total["count"]
    n_lost = int(count.sel(outcome_kind="lost"))
    n_clear = n_lost + int(count.sel(outcome_kind="kept"))
    if float(total["change_high"]) < 0:
        return f"{n_lost} of {n_clear} right answers are lost: {shares}."
    if float(total["change_low"]) > 0:
        return f"The other model gives more right answers: {shares}."
    n_prompts = compared.sizes["prompt"]
    return f"No loss of right answers beyond chance in {plural(n_prompts, 'prompt')}: {shares}."


def loss_details(compared: xr.Dataset) -> list[str]:
    """The change with its interval, what is within noise, and what people know: KL and the likeliest token."""
    total = _of_all(compared)
    low = _points(total["change_low"])
    high = _points(total["change_high"])
    details = [
        f"The share of right answers changes by {_points(total['change'])} percentage points, 95 % interval {low} to "
        f"{high}, prompt by prompt."
    ]
    unsure = int(total["count"].sel(outcome_kind="within noise"))
    if unsure:
        verb = "is" if unsure == 1 else "are"
        details.append(
            f"{plural(unsure, 'answer')} {verb} too close to call: another grouping into passes moves the lead as much."
        )
    same = percent(float(total["mean_same_top"]))
    details.append(
        f"Mean KL of the next token: {number(total['mean_kl'])} nats. The likeliest token is the same after {same} of "
        "the prompts."
    )
    return details


def _points(share: xr.DataArray) -> str:
    """A change of a share in percentage points, with its sign."""
    return f"{100 * float(share):+.0f}".replace("-", "−").replace("+0", "0")


def kept_in_words(kept: xr.Dataset) -> str:
    """What keeping the selected blocks gives on the prompts that did not select them, beside random ones and KL."""
    right = kept["right"]
    units = kept["units_kept"]
    n_tested = kept.sizes["prompt"]
    selected = units.sel(kept="selected").item()
    before = percent(float(right.sel(kept="none")))
    after = percent(float(right.sel(kept="selected")))
    tested = f"from {before} to {after} right, on the {n_tested} prompts that did not choose them"
    is_random = [str(name).startswith("random") for name in kept["kept"].values]
    beside = ""
    if any(is_random):
        random = right.values[is_random]
        lowest = percent(random.min())
        highest = percent(random.max())
        reached = lowest if lowest == highest else f"{lowest} to {highest}"
        beside = f" As many random blocks: {reached}."
    by_kl = units.sel(kept="selected by KL").item()
    if by_kl == selected:
        beside += " Mean KL chooses the same."
    else:
        share = percent(float(right.sel(kept="selected by KL")))
        beside += f" Mean KL chooses {by_kl}: {share}."
    answer = kept["above_null"].item()
    if answer == "yes":
        return f"Keep {selected} as in the reference: {tested}.{beside}"
    if answer == "no":
        return (
            f"No blocks were found that keep answers better than random ones. The best on half of the prompts, "
            f"{selected}: {tested}.{beside}"
        )
    return f"Whether blocks keep answers better than random ones was not measured. {selected}: {tested}."


def _group_rows(compared: xr.Dataset) -> list[list[str]]:
    """For each group: its name, prompts, shares right before and after, the change, lost and gained, KL."""
    rows = []
    for label in compared["group"].values:
        numbers = compared.sel(group=label)
        count = numbers["count"]
        interval = (
            f"[{_points(numbers['change_low'])}, {_points(numbers['change_high'])}]"
        )
        rows.append(
            [
                escape(str(label)),
                str(int(count.sum())),
                *(percent(float(share)) for share in numbers["right"]),
                f"{_points(numbers['change'])} {interval}",
                str(int(count.sel(outcome_kind="lost"))),
                str(int(count.sel(outcome_kind="gained"))),
                number(numbers["mean_kl"]),
            ]
        )
    return rows


def _answer_rows(compared: xr.Dataset, prompts: Sequence[str]) -> list[list[str]]:
    """The lost answers with the largest loss of lead first: the end of the prompt, the answer, and what is written."""
    lead = compared["lead"].values
    lost = np.flatnonzero(compared["outcome"].values == "lost")
    order = np.argsort((lead[1] - lead[0])[lost])
    rows = []
    for place in lost[order][:SHOWN]:
        prompt = int(place)
        text = prompts[prompt]
        end = escape(text if len(text) <= END else "…" + text[-END:])
        written = compared["written"].isel(prompt=prompt)
        leads = [number(value) for value in lead[:, prompt]]
        answer = quoted(compared["answer"].values[prompt])
        wrote = str(written.values[1])
        rows.append([end, answer, quoted(wrote) if wrote else "nothing", *leads])
    return rows
