"""Sensitivity to one token of each prompt, such as a needle among other digits: by group, with intervals."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bos, Bridge, Norm
from squashlens.bars import bar
from squashlens.engine.text.tokens import bos_id, display_tokens
from squashlens.errors import InputError
from squashlens.measure.measurement import measurement
from squashlens.measure.session import Session
from squashlens.measure.squashing.bound import path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.records.results import MODEL_UNITS
from squashlens.theory.probes import seed_of
from squashlens.theory.statistics.ranks import bootstrap

MEASURES = {
    "jacobian": ("{norm} norm of the Jacobian at the token", "1"),
    "path_bound": ("path bound of Theorem 5.1 at the token, constants 1", "1"),
    "bound_over_null": ("path bound relative to uniform attention at the token", "1"),
    "effect": ("mean distance that y moves when the token is replaced", MODEL_UNITS),
    "kl": ("mean KL divergence of the next token when the token is replaced", "nats"),
    "certified": ("certified path bound at the token", "1"),
}

TOGETHER = 16  # prompts of one length that are measured together


# More than ten parameters, since each is an independent option of the measurement; most have defaults.
@measurement("needle", command=False)
def needle(
    model: Bridge,
    prompt: Sequence[Sequence[int]],
    positions: Sequence[int],
    groups: Sequence[tuple[str, int]],
    *,
    norm: Norm = "frobenius",
    certified: bool = False,
    candidates: Sequence[int] | None = None,
    n_replacements: int = 8,
    seed: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """Sensitivity of the last token's output y to one token of each prompt, for each prompt and as group means.

    Args:
        model: as in `path_bound`.
        prompt: token ids of each prompt, of any lengths; ``sequence.plain(n).ids(sequence.trunk)`` gives those of a
            growing sequence with n content tokens.
        positions: position of the token of interest in each prompt; negative values count from the end.
        groups: group of each prompt: a name, and a number that orders its prompts, such as the needle's place or the
            length, as in ``("zero", 8)``.
        norm: norm of the Jacobian: ``"frobenius"`` (the default), the root of the sum of squares, or ``"spectral"``,
            the largest singular value.
        certified: whether to compute the certified path bound with analytic edges too; no by default.
        candidates: token ids that may replace the token of interest; by default the distinct tokens of all prompts of
            the same length except BOS.
        n_replacements: as in `substitution_effect`.
        seed: random seed of the replacements, the bootstrap and the certificate, as in `profile`.
        bos: as in `path_bound`.
        progress: as in `path_bound`.

    Returns:
        Dataset. Over (prompt): `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `path_bound`, Theorem 5.1 with constants 1;
        `bound_over_null`, the same divided by its null; `effect` (in the model's units) and `kl` (in nats), as in
        `substitution_effect`; with ``certified=True`` also `certified`, the certified bound. Over (group, at), for each
        of these: `<name>_mean`, and `<name>_low` and `<name>_high`, the ends of its 95 % bootstrap interval over
        prompts (NaN for one prompt); `prompts`, their number. All are dimensionless unless a unit is stated.

    Raises:
        InputError: lists of different lengths, no prompts, or a position that is outside the prompt or a BOS.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 8, prefix="What is the last digit in this sequence?", suffix="=")
    >>> zero = sl.prompts.one_token(model, "0")
    >>> hidden = [ones.replaced(k, zero) for k in (1, 8)]
    >>> ids = [s.plain(8).ids(s.trunk) for s in hidden]
    >>> found = sl.needle(model, ids, [ones.position(k) for k in (1, 8)], [("zero", 1), ("zero", 8)], progress=False)
    >>> first, last = found["kl_mean"].sel(group="zero").values
    >>> bool(last > 100 * first)   # it is the last that is asked for
    True
    """
    counts = [len(given) for given in (prompt, positions, groups)]
    if len(set(counts)) != 1 or not counts[0]:
        raise InputError(
            f"There are {counts[0]} prompts, {counts[1]} positions and {counts[2]} groups.",
            "Give one of each for every prompt, and at least one prompt.",
        )
    seed = seed_of(seed, certifies=certified)
    found: dict[str, np.ndarray] = {}
    tokens = [""] * len(prompt)
    counter = bar(total=len(prompt), desc="needle", unit="prompt", progress=progress)
    swaps: dict[str, Any] = {"candidates": candidates, "n_replacements": n_replacements, "seed": seed}
    asked = {"prompt": [list(ids) for ids in prompt], "norm": norm, "certified": certified}
    sessions = []
    for rows, present in _alike(prompt):
        ids = torch.tensor([list(prompt[k]) for k in rows])
        session = Session.without_prompt(model, ids, bos, "needle", **asked, **swaps)
        sessions.append(session)
        places = [_checked(session, positions[k], f"positions[{k}]") for k in rows]
        shown = display_tokens(session.model, session.ids)
        every = swaps | {"candidates": sorted(present - {bos_id(session.model)}) if candidates is None else candidates}
        for name, values in _by_position(session, places, norm, certified, every).items():
            found.setdefault(name, np.full(len(prompt), np.nan))[rows] = values
        for place, (k, position) in enumerate(zip(rows, places, strict=True)):
            tokens[k] = shown[place][position]
        counter.update(len(rows))
    counter.close()
    texts = {name: (text.format(norm=norm), units) for name, (text, units) in MEASURES.items()}
    return _grouped(sessions[0], found, texts, groups, positions, tokens, seed)


def _alike(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], set[int]]]:
    """Batches of prompts of one length, as indices, with the distinct tokens of all prompts of that length."""
    lengths: dict[int, list[int]] = {}
    for k, ids in enumerate(prompts):
        lengths.setdefault(len(ids), []).append(k)
    for rows in lengths.values():
        present = {token for k in rows for token in prompts[k]}
        yield from ((rows[start : start + TOGETHER], present) for start in range(0, len(rows), TOGETHER))


def _checked(session: Session, position: int, argument: str) -> int:
    """A position of interest as an index from the start. Raises for a BOS token."""
    place = session.query(position, argument)
    if place < session.facts["bos_count"]:
        raise InputError(f"{argument}={position} is a BOS token.", "Give the position of another token.")
    return place


def _by_position(
    session: Session, at: list[int], norm: Norm, certified: bool, swaps: dict[str, Any]
) -> dict[str, np.ndarray]:
    """All measures for prompts of one length, each at the position of interest."""
    model, ids, rows = session.model, session.ids, np.arange(len(at))

    def here(values: xr.DataArray) -> np.ndarray:
        return np.atleast_2d(values.values)[rows, at]

    read: Any = {"bos": "as-given", "progress": False}
    bound = here(path_bound(model, ids, bos="as-given"))
    null = here(path_bound(model, ids, attention="uniform", bos="as-given"))
    found = {"path_bound": bound, "bound_over_null": bound / null}
    found["jacobian"] = here(jacobian_norms(model, ids, norm=norm, **read))
    if certified:
        found["certified"] = here(path_bound(model, ids, constants="measured", seed=swaps["seed"], **read))
    effects = [
        substitution_effect(model, row, positions=[place], **swaps, **read) for row, place in zip(ids, at, strict=True)
    ]
    for name in ("effect", "kl"):
        found[name] = np.array([e[name].values[place] for e, place in zip(effects, at, strict=True)])
    return found


def _grouped(
    session: Session, found: dict[str, np.ndarray], texts: dict[str, tuple[str, str]],
    groups: Sequence[tuple[str, int]], positions: Sequence[int], tokens: list[str], seed: int,
) -> xr.Dataset:  # fmt: skip
    """The Dataset of all prompts, with means and intervals of the groups."""
    group_of, at = [name for name, _ in groups], [number for _, number in groups]
    names, numbers = list(dict.fromkeys(group_of)), sorted(set(at))
    member = np.array([[(np.array(group_of) == g) & (np.array(at) == x) for x in numbers] for g in names])
    sides = {"mean": "mean", "low": "2.5 % bootstrap of the mean", "high": "97.5 % bootstrap of the mean"}
    variables: dict[str, Any] = {name: (("prompt",), values, *texts[name]) for name, values in found.items()}
    for name, values in found.items():
        text, units = texts[name]
        table = np.full((3, len(names), len(numbers)), np.nan)
        for i, j in np.argwhere(member.any(axis=-1)):
            part = torch.from_numpy(values[member[i, j]])
            low, high = bootstrap(part, seed)
            table[:, i, j] = part.mean(), low, high
        for (side, statistic), cells in zip(sides.items(), table, strict=True):
            variables[f"{name}_{side}"] = (("group", "at"), cells, f"{text}: {statistic}", units)
    variables["prompts"] = (("group", "at"), member.sum(axis=-1), "number of prompts in the mean", "prompts")
    coords = {
        "prompt": np.arange(len(positions)), "group": names, "at": numbers, "position": ("prompt", list(positions)),
        "token": ("prompt", np.array(tokens, dtype=object)), "group_of": ("prompt", group_of),
        "at_of": ("prompt", at),
    }  # fmt: skip
    return session.dataset("sensitivity to one token of each prompt", coords, variables)
