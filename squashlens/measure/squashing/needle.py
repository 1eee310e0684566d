"""Sensitivity of the last token to one token or word of many prompts: for each prompt, and as means of groups."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Candidates, Method, Norm
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.bound import path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import Estimation, resolved
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.model.text.context import texts_in_context
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import Prompts, each_of, require_tokenizer, rows_of
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.run.passes import batches
from squashlens.run.run import Run
from squashlens.theory.statistics.ranks import mean_interval

MEASURES = {
    "jacobian": ("{norm} norm of the Jacobian at the token", "1"),
    "path_bound": ("path bound of Theorem 5.1 at the token, constants 1", "1"),
    "bound_over_null": ("path bound relative to uniform attention at the token", "1"),
    "effect": ("mean distance that y moves when the token is replaced", MODEL_UNITS),
    "kl": ("mean KL divergence of the next token when the token is replaced", "nats"),
}
TOGETHER = 16  # prompts of one length that are measured together


@measurement("needle")
def needle(
    model: Bridge,
    prompt: Prompts,
    positions: Sequence[int] | None = None,
    groups: Sequence[tuple[str, int]] | None = None,
    *,
    find: str | None = None,
    norm: Norm = "frobenius",
    method: Method = "auto",
    candidates: Candidates = None,
    n_replacements: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Sensitivity of the last token's output y to one token or word of each prompt, for each and as group means.

    Args:
        model: as in `path_bound`.
        prompt: texts, or token ids of each prompt, of any lengths; ``sequence.plain(n).ids(sequence.trunk)`` gives
            those of a growing sequence with n content tokens.
        positions: position of the token of interest in each prompt; negative values count from the end.
        groups: group of each prompt: a name, and a number that orders its prompts, such as the needle's place or the
            length, as in ``("zero", 8)``. By default all are in one, ordered by position.
        find: instead of `positions`, the text of interest, such as ``"Lisbon"``: whole tokens, once in each prompt. If
            it has several tokens, they are measured at once, as `spans` are.
        norm, method: as in `jacobian_norms`, without certified bounds; ``"frobenius"`` by default.
        candidates: as in `substitution_effect`; by default the distinct tokens of all prompts of the same length except
            BOS.
        n_replacements: as in `substitution_effect`.
        seed: random seed of the replacements, and of a sketch's directions; 0 by default.

    Returns:
        Dataset. Over (prompt): `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `path_bound`, Theorem 5.1 with constants 1;
        `bound_over_null`, the same divided by its null; `effect` (in the model's units) and `kl` (in nats), as in
        `substitution_effect`. Over (group, at), for each of these: `<name>_mean`, and `<name>_low` and `<name>_high`,
        the ends of its 95 % interval over prompts (NaN for one prompt); `prompts`, their number. All are dimensionless
        unless a unit is stated.

    Raises:
        InputError: lists of different lengths, no prompts, or a position that is outside the prompt or a BOS; a prompt
            that does not have the text of `find`, has it twice, or has it in tokens with other text.

    >>> import squashlens as sl
    >>> model, ask = sl.load("tiny-gemma"), "What is the last digit in this sequence?"
    >>> found = sl.needle(model, [f"{ask} 0111 =", f"{ask} 1110 ="], find="0")
    >>> first, last = found["kl_mean"].sel(group="0").values
    >>> bool(last > 100 * first)   # it is the last that is asked for
    True
    """
    if (positions is None) == (find is None):
        raise InputError(
            "Give either positions= or find=.",
            "find='Lisbon' finds the positions of a word in texts.",
        )
    opened = Run.open(model, "needle")
    prompts = rows_of(opened.model, prompt)
    way = resolved(Estimation(method=method), opened, ("exact", "sketch")).method
    places = _places_of(opened, prompts, positions, find or "")
    if groups is None:
        groups = [(find or "needle", inside[0]) for inside in places]
    if not len(prompts) == len(places) == len(groups):
        raise InputError(
            f"The numbers of prompts, positions and groups are {len(prompts)}, {len(places)} and {len(groups)}.",
            "Give one of each for every prompt.",
        )
    asked = {
        "prompt": each_of(prompt),
        "find": find,
        "norm": norm,
        "method": way,
        "candidates": candidates,
        "n_replacements": n_replacements,
        "seed": seed,
    }
    measured = {name: np.full(len(prompts), np.nan) for name in MEASURES}
    tokens = np.full(len(prompts), "", dtype=object)
    lengths = [len(ids) for ids in prompts]
    parts = list(batches(lengths, _largest_batch))
    if len(parts) > 1:  # one shows its own bars
        parts = bar(parts, desc="needle", unit="batch")
    runs: list[Run] = []
    for length, rows in parts:
        ids = torch.tensor([prompts[row] for row in rows])
        run = opened.with_prompts(ids, **asked)
        runs.append(run)
        needles = [_needle_of(run, places[row], row) for row in rows]
        others = candidates
        if candidates is None:
            alike = [ids for ids in prompts if len(ids) == length]
            others = sorted({*chain.from_iterable(alike)} - {start_of(run.model).bos})
        batch = _Batch(run, needles, seed)
        values = batch.sensitivities(norm, way) | batch.effects(others, n_replacements)
        for name, by_prompt in values.items():
            measured[name][rows] = by_prompt
        for row, inside, texts in zip(
            rows, needles, run.tokens_of(run.ids), strict=True
        ):
            tokens[row] = texts[inside[0]] if len(inside) == 1 else str(find).strip()
    variables, coords = _with_means(measured, groups, norm)
    names, numbers = zip(*groups, strict=True)
    coords |= {
        "prompt": np.arange(len(prompts)),
        "position": ("prompt", [inside[0] for inside in places]),
        "token": ("prompt", tokens),
        "group_of": ("prompt", list(names)),
        "at_of": ("prompt", list(numbers)),
    }
    return runs[0].dataset("sensitivity to one token of each prompt", coords, variables)


def _largest_batch(length: int) -> int:
    """The number of prompts of one length that are measured together."""
    return TOGETHER


def _needle_of(run: Run, places: Sequence[int], row: int) -> list[int]:
    """The positions of interest of prompt `row`, counted from the start. Raises for a BOS."""
    inside = [run.query(place, f"positions[{row}]") for place in places]
    if inside[0] < run.facts["bos_count"]:
        raise InputError(
            f"positions[{row}]={inside[0]} is a BOS token.",
            "Give the position of another token.",
        )
    return inside


def _places_of(
    run: Run,
    prompts: Sequence[Sequence[int]],
    positions: Sequence[int] | None,
    find: str,
) -> list[list[int]]:
    """The given position of each prompt, or its tokens that have the text `find`, with or without white space around
    it."""
    if positions is not None:
        return [[position] for position in positions]
    wanted = find.strip()
    places: list[list[int]] = []
    for number, ids in enumerate(prompts):
        texts = texts_in_context(require_tokenizer(run.model), ids)
        whole = "".join(texts)
        starts = [
            place
            for place in range(len(whole))
            if wanted and whole.startswith(wanted, place)
        ]
        if len(starts) != 1:
            raise InputError(
                f"Prompt {number} has the text find={find!r} {len(starts)} times.",
                "Give a text that every prompt has once, or positions=.",
            )
        # Token k has the characters from ends[k] − its length to before ends[k].
        lengths = np.array([len(text) for text in texts])
        ends = lengths.cumsum()
        is_inside = (ends > starts[0]) & (ends - lengths < starts[0] + len(wanted))
        inside = np.flatnonzero(is_inside).tolist()
        text = "".join(texts[place] for place in inside)
        if text.strip() != wanted:
            raise InputError(
                f"The tokens of prompt {number} that have find={find!r} are {text!r}.",
                f"Give find={text.strip()!r}.",
            )
        places.append(inside)
    return places


@dataclass(frozen=True)
class _Batch:
    """Prompts of one length, each with the positions of its needle."""

    run: Run
    needles: list[list[int]]
    seed: int

    def sensitivities(self, norm: Norm, method: Method) -> dict[str, np.ndarray]:
        """Path bound, its quotient with the null, and norm of the Jacobian at each needle."""
        bound = self._at_needles(path_bound)
        null = self._at_needles(path_bound, attention="uniform")
        norms = self._at_needles(
            jacobian_norms, norm=norm, method=method, seed=self.seed
        )
        return {"path_bound": bound, "bound_over_null": bound / null, "jacobian": norms}

    def _at_needles(
        self, measure: Callable[..., xr.DataArray], **options: Any
    ) -> np.ndarray:
        """A measurement at each needle: of all prompts together, unless a needle has several tokens."""
        if all(len(inside) == 1 for inside in self.needles):
            values = measure(self.run.model, self.run.ids, **options).values
            rows = np.arange(len(self.needles))
            return np.atleast_2d(values)[rows, np.ravel(self.needles)]
        return np.array(
            [
                measure(self.run.model, ids, spans={"needle": inside}, **options).item()
                for ids, inside in zip(self.run.ids, self.needles, strict=True)
            ]
        )

    def effects(
        self, candidates: Candidates, n_replacements: int
    ) -> dict[str, np.ndarray]:
        """What replacing each needle does to y, and to the next token."""
        pairs = list(zip(self.run.ids, self.needles, strict=True))
        effects: list[float] = []
        kl: list[float] = []
        for ids, inside in bar(pairs, desc="replacements", unit="prompt"):
            moved = substitution_effect(
                self.run.model,
                ids,
                spans={"needle": inside},
                seed=self.seed,
                candidates=candidates,
                n_replacements=n_replacements,
            )
            effects.append(moved["effect"].item())
            kl.append(moved["kl"].item())
        return {"effect": np.array(effects), "kl": np.array(kl)}


def _with_means(
    measured: Mapping[str, np.ndarray], groups: Sequence[tuple[str, int]], norm: Norm
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """All values by prompt, with means and intervals of the groups, and the labels of the groups."""
    all_names, all_numbers = zip(*groups, strict=True)
    names = list(dict.fromkeys(all_names))
    numbers = sorted(set(all_numbers))
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (name, number) in enumerate(groups):
        members[names.index(name), numbers.index(number)].append(row)
    counts = np.zeros((len(names), len(numbers)), dtype=int)
    for cell, rows in members.items():
        counts[cell] = len(rows)
    by_group = ("group", "at")
    variables: dict[str, Variable] = {}
    for name, values in measured.items():
        text, units = MEASURES[name]
        text = text.format(norm=norm)
        mean = np.full(counts.shape, np.nan)
        low = mean.copy()
        high = mean.copy()
        for cell, rows in members.items():
            interval = mean_interval(torch.from_numpy(values[rows]))
            mean[cell], low[cell], high[cell] = interval
        interval_text = f"{text}: {{}} end of the 95 % interval of the mean"
        variables |= {
            name: (("prompt",), values, text, units),
            f"{name}_mean": (by_group, mean, f"{text}: mean", units),
            f"{name}_low": (by_group, low, interval_text.format("lower"), units),
            f"{name}_high": (by_group, high, interval_text.format("upper"), units),
        }
    variables["prompts"] = (
        by_group,
        counts,
        "number of prompts in the mean",
        "prompts",
    )
    return variables, {"group": names, "at": numbers}
