"""The page of two models: which answers another model loses, and what keeps them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import (
    Bridge,
    ChoicesOfPrompts,
    Clusters,
    PromptsOrItems,
    dtype_name,
)
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.models.compare_models import GAINED, LOST, UNSURE
from squashlens.measure.registration import measurement
from squashlens.pages.page import Section, page_of
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import escape, listed, number, percent, plural, quoted
from squashlens.saving.files import PAGES, require_output, write

NOTHING_LOST = "What keeps them was not tried: no loss beyond chance was found in all prompts together."
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
        not_tried = _reason_not_to_try(compared)
        if not not_tried:
            try:
                damages = damage_by_block(*given, **options)
                parts.update()
                not_tried = "What keeps them was not tried (n_keep = 0)."
                if n_keep:
                    kept = blocks_to_keep(*given, n_keep=n_keep, **options)
            except InputError as error:
                not_tried = f"What keeps them was not tried: {error.cause}"
    page = render_comparison(compared, damages, kept, asked.prompts, not_tried)
    return write(out, page.encode("utf-8"))


def _reason_not_to_try(compared: xr.Dataset) -> str:
    """Why no blocks are looked for, in words; empty if they are."""
    high = float(_of_all(compared)["change_high"])
    if np.isnan(high):
        return "What keeps them was not tried: one cluster of prompts has no interval."
    return NOTHING_LOST if high >= 0 else ""


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
    """The page for given results, as HTML text; nothing is measured here.

    Args:
        compared: the result of `compare_models`.
        damages: that of `damage_by_block`, if it was measured.
        kept: that of `blocks_to_keep`, if it was measured.
        prompts: the prompts of `compared`.
        not_tried: without `kept`, a sentence that says why.
    """
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
    # Both models in words; two that differ in nothing that is said differ in their weights.
    reference = model_in_words(names[0], facts)
    other = model_in_words(names[-1], facts["other"])
    if other == reference:
        is_same = facts["other"]["fingerprint"] == facts["fingerprint"]
        other += ", with the same weights" if is_same else ", with other weights"
    listed_answers = {}
    for outcome in (LOST, GAINED):
        rows = _answer_rows(compared, prompts, outcome)
        n_all = int((compared["outcome"] == outcome).sum())
        if rows:
            listed_answers[f"{outcome.capitalize()} answers"] = (rows, n_all)
    return page_of(
        "compare.html.jinja",
        sections,
        facts,
        title="What another model loses",
        reference=reference,
        other=other,
        headline=lost_in_words(compared),
        details=loss_details(compared, damages),
        keeping=kept_in_words(kept) if kept is not None else not_tried,
        groups=_group_rows(compared),
        answers=listed_answers,
        n_prompts=compared.sizes["prompt"],
    )


def model_in_words(name: str, facts: Mapping[str, Any]) -> str:
    """A model with its dtype, quantization and hooks, from the facts of the provenance about it.

    It is such as "m in float32, with halve in block 3". The name says what became of its weights.
    """
    parts = [f"{name} in {dtype_name(facts['dtype'])}"]
    if facts.get("quantized"):
        parts.append(f"weights quantized to {facts['quantized']}")
    blocks_of: dict[str, set[int]] = {}
    for hook in facts.get("ambient_hooks") or []:
        # A hook is such as "blocks.3.attn.hook_z: halve"; other points are in no block.
        site, _, hook_name = str(hook).partition(": ")
        blocks = re.findall(r"^blocks\.(\d+)\.", site)
        blocks_of.setdefault(hook_name, set()).update(map(int, blocks))
    for hook_name, blocks in blocks_of.items():
        numbers = ", ".join(map(str, sorted(blocks)))
        if len(blocks) > 2 and max(blocks) - min(blocks) == len(blocks) - 1:
            numbers = f"{min(blocks)} to {max(blocks)}"
        part = f"with {hook_name}"
        if blocks:
            part += f" in {'block' if len(blocks) == 1 else 'blocks'} {numbers}"
        parts.append(part)
    return escape(", ".join(parts))


def lost_in_words(compared: xr.Dataset) -> str:
    """How the share of right answers changes, in one sentence: it rises or falls if the interval excludes no change."""
    total = _of_all(compared)
    before, after = _percents(total["right"])
    n_prompts = plural(compared.sizes["prompt"], "prompt")
    low = float(total["change_low"])
    high = float(total["change_high"])
    if high < 0:
        return f"Right answers fall from {before} to {after} of {n_prompts}."
    if low > 0:
        return f"Right answers rise from {before} to {after} of {n_prompts}."
    shares = f"{before} of {n_prompts} right before, {after} after"
    if np.isnan(high):
        return f"Whether answers are lost was not measured, in one cluster: {shares}."
    return f"No change of right answers beyond chance: {shares}."


def loss_details(compared: xr.Dataset, damages: xr.Dataset | None = None) -> list[str]:
    """The change with its interval, by outcome and group, what is written, where it is lost, and KL.

    `damages` is a result of `damage_by_block`. The first group of `compared` is of all prompts.
    """
    total = _of_all(compared)
    details = []
    if not np.isnan(float(total["change_high"])):
        low = _points(total["change_low"])
        high = _points(total["change_high"])
        details.append(
            f"The share changes by {_points(total['change'])} percentage points, 95 % interval {low} to {high}, prompt "
            "by prompt."
        )
    count = total["count"]
    n_lost = int(count.sel(outcome_kind=LOST))
    n_gained = int(count.sel(outcome_kind=GAINED))
    unsure = int(count.sel(outcome_kind=UNSURE))
    details.append(
        f"{n_lost} are lost and {n_gained} gained beyond noise; {unsure} are too close to call, since "
        "another grouping into passes moves the lead as much."
    )
    falling = _groups_that(compared.isel(group=slice(1, None)))
    if falling:
        details.append(falling)
    before, after = _percents(total["writes"])
    details.append(
        f"Greedy decoding writes the right answer after {before} of the prompts before, and {after} after."
    )
    if damages is not None:
        mean = damages["mean_damage"].isel(
            streams=0
        )  # the reference's, of which alone the page asks
        largest = mean.isel(part=int(mean.values.argmax()))
        details.append(
            f"Of the lead of right answers, {number(mean.sum())} nats are lost, the largest part in "
            f"{largest['part'].item()}: {number(largest)}."
        )
    same = percent(float(total["mean_same_top"]))
    details.append(
        f"Mean KL of the next token: {number(total['mean_kl'])} nats. The likeliest token is the same after {same} of "
        "the prompts."
    )
    return details


def _groups_that(groups: xr.Dataset) -> str:
    """In which groups the share of right answers falls, beyond chance in each by itself; empty if in none."""
    names = groups["group"].values[groups["change_high"].values < 0]
    if not len(names):
        return ""
    named = listed([quoted(name) for name in names])
    return f"In {len(names)} of {groups.sizes['group']} groups they fall by themselves: {named}."


def _percents(shares: xr.DataArray) -> list[str]:
    """The shares of both models as percentages."""
    return [percent(share) for share in shares.values.tolist()]


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
    random = right.values[kept["kept"].astype(str).str.startswith("random")]
    beside = ""
    if len(random):
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
    is_better = kept["above_null"].item()  # "yes", "no", or that it was not measured
    if is_better == "yes":
        return f"Keep {selected} as in the reference: {tested}.{beside}"
    if is_better == "no":
        return (
            f"No blocks were found that keep answers beyond chance. The best on half of the prompts, "
            f"{selected}: {tested}.{beside}"
        )
    return f"Whether blocks keep answers better than random ones was not measured. {selected}: {tested}."


def _group_rows(compared: xr.Dataset) -> list[list[str]]:
    """For each group: its name, prompts, shares right before and after, the change, lost and gained, KL."""
    rows = []
    for label in compared["group"].values:
        numbers = compared.sel(group=label)
        count = numbers["count"]
        change = _points(numbers["change"])
        if not np.isnan(float(numbers["change_high"])):
            low = _points(numbers["change_low"])
            change += f" [{low}, {_points(numbers['change_high'])}]"
        rows.append(
            [
                escape(str(label)),
                str(int(count.sum())),
                *_percents(numbers["right"]),
                change,
                str(int(count.sel(outcome_kind=LOST))),
                str(int(count.sel(outcome_kind=GAINED))),
                number(numbers["mean_kl"]),
            ]
        )
    return rows


def _answer_rows(
    compared: xr.Dataset, prompts: Sequence[str], outcome: str
) -> list[list[str]]:
    """The answers of an outcome, such as "lost", the largest change of lead first; at most 24.

    A row has the end of the prompt, the answer, what the other model writes, and the lead in both models.
    """
    before, after = compared["lead"].values  # (prompt) in the reference and the other
    _, written = compared["written"].values
    of_outcome = np.flatnonzero(compared["outcome"].values == outcome)
    order = np.argsort(-np.abs(after - before)[of_outcome])
    rows = []
    for place in of_outcome[order][:SHOWN]:
        prompt = int(place)
        end = prompts[prompt]
        if len(end) > END:
            end = f"…{end[-END:]}"
        answer = quoted(compared["answer"].values[prompt])
        text = str(written[prompt])
        wrote = quoted(text) if text else "nothing"
        leads = [number(before[prompt]), number(after[prompt])]
        rows.append([escape(end), answer, wrote, *leads])
    return rows
