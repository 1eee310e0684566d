"""How far one token of each prompt reaches: the asked digit, a needle among others, by group and with intervals."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bos, Bridge, Norm, one_of
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.measure.bound import path_bound
from squashlens.measure.jacobian import jacobian_norms
from squashlens.measure.substitution import substitution_effect
from squashlens.model.registry import measured
from squashlens.model.tokens import bos_id, display_tokens
from squashlens.theory.ranks import bootstrap

MEASURES = {
    "jacobian": ("norm of the Jacobian at the token", "1"),
    "path_bound": ("path bound of Theorem 5.1 at the token, constants 1", "1"),
    "bound_over_null": ("path bound relative to uniform attention at the token", "1"),
    "effect": ("mean distance of y under replacement of the token", "model"),
    "kl": ("mean divergence of the next token under replacement of the token", "nat"),
    "certified": ("certified path bound at the token", "1"),
}

TOGETHER = 16  # prompts in one forward pass


@measured
def needle(
    model: Bridge,
    prompts: Sequence[Sequence[int]],
    positions: Sequence[int],
    groups: Sequence[str],
    at: Sequence[int],
    *,
    norm: Norm = "frobenius",
    certified: bool = False,
    among: Sequence[int] | None = None,
    replacements: int = 8,
    seed: int = 0,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """Sensitivity of y at the last token to one token of each prompt, prompt by prompt and as means over groups.

    Variables over `prompt`: `jacobian` (‖∂y_n/∂v⁽⁰⁾_i‖), `path_bound` and `bound_over_null` (Theorem 5.1), `effect`
    and `kl` (the substitution effect); with ``certified=True`` also `certified`, the measured bound with analytic
    edges. Over (group, at): `<name>_mean`, and `<name>_low`, `<name>_high`, its 95 % bootstrap interval over the
    prompts there (NaN for one; all NaN where there is none). All dimensionless but `effect`, in the model's units,
    and `kl`, in nats.

    Args:
        prompts: token ids, of any lengths; `Sequence.plain(n).ids(sequence.trunk)` gives those of a sequence.
        positions: the token of interest in each prompt.
        groups, at: the kind each prompt is of, and a number in it: the needle's place, the length.
        among, replacements, seed: as in `substitution_effect`; `among` is the distinct tokens of the prompts of one
            length if not given.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 8, prompt="What is the last digit in this sequence?", suffix="=")
    >>> zero = sl.prompts.one_token(model, "0")
    >>> hidden = [ones.replaced(k, zero) for k in (1, 8)]
    >>> ids = [s.plain(8).ids(s.trunk) for s in hidden]
    >>> found = sl.needle(model, ids, [ones.position(k) for k in (1, 8)], ["zero"] * 2, at=[1, 8], progress=False)
    >>> first, last = found["kl_mean"].sel(group="zero").values
    >>> bool(last > 100 * first)   # it is the last that is asked for
    True
    """
    one_of(norm, Norm, "norm")
    counts = [len(given) for given in (prompts, positions, groups, at)]
    if len(set(counts)) != 1 or not counts[0]:
        raise InputError(
            f"There are {counts[0]} prompts, {counts[1]} positions, {counts[2]} groups and {counts[3]} numbers.",
            "Give one of each for every prompt, and at least one prompt.",
        )
    found: dict[str, np.ndarray] = {}
    tokens = [""] * len(prompts)
    counter = bar(total=len(prompts), desc="needle", unit="prompt", progress=progress)
    swaps: dict[str, Any] = {"among": among, "replacements": replacements, "seed": seed}
    sessions = []
    for rows, present in _alike(prompts):
        ids = torch.tensor([list(prompts[k]) for k in rows])
        session = Session.start(model, ids, bos, "needle", norm=norm, certified=certified, **swaps)
        sessions.append(session)
        places = [_checked(session, positions[k]) for k in rows]
        shown = display_tokens(session.model, session.ids)
        every = swaps | {"among": sorted(present - {bos_id(session.model)}) if among is None else among}
        for name, values in _by_position(session, places, norm, certified, every).items():
            found.setdefault(name, np.full(len(prompts), np.nan))[rows] = values
        for place, (k, position) in enumerate(zip(rows, places, strict=True)):
            tokens[k] = shown[place][position]
        counter.update(len(rows))
    counter.close()
    return _grouped(sessions[0], found, groups, at, positions, tokens, seed)


def _alike(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], set[int]]]:
    """Numbers of prompts of one length, a few at a time, with the distinct tokens of all of that length."""
    lengths: dict[int, list[int]] = {}
    for k, ids in enumerate(prompts):
        lengths.setdefault(len(ids), []).append(k)
    for rows in lengths.values():
        present = {token for k in rows for token in prompts[k]}
        yield from ((rows[start : start + TOGETHER], present) for start in range(0, len(rows), TOGETHER))


def _checked(session: Session, position: int) -> int:
    place = session.query(position)
    if place < session.facts["bos_count"]:
        raise InputError(f"position={position} is the BOS.", "Ask for a token of the prompt.")
    return place


def _by_position(
    session: Session, at: list[int], norm: Norm, certified: bool, swaps: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Every measure for prompts of one length, each at its own position."""
    model, ids, rows = session.model, session.ids, np.arange(len(at))

    def here(values: xr.DataArray) -> np.ndarray:
        return np.atleast_2d(values.values)[rows, at]

    read: Any = {"bos": "as-given", "progress": False}
    bound = here(path_bound(model, ids, bos="as-given"))
    null = here(path_bound(model, ids, attention="uniform", bos="as-given"))
    found = {"path_bound": bound, "bound_over_null": bound / null}
    found["jacobian"] = here(jacobian_norms(model, ids, norm=norm, **read))
    if certified:
        found["certified"] = here(path_bound(model, ids, constants="measured", **read))
    effects = [
        substitution_effect(model, row, positions=[place], **swaps, **read) for row, place in zip(ids, at, strict=True)
    ]
    for name in ("effect", "kl"):
        found[name] = np.array([e[name].values[place] for e, place in zip(effects, at, strict=True)])
    return found


def _grouped(
    session: Session, found: dict[str, np.ndarray], groups: Sequence[str], at: Sequence[int],
    positions: Sequence[int], tokens: list[str], seed: int,
) -> xr.Dataset:  # fmt: skip
    names, numbers = list(dict.fromkeys(groups)), sorted(set(at))
    member = np.array([[(np.array(groups) == g) & (np.array(at) == x) for x in numbers] for g in names])
    sides = {"mean": "mean", "low": "2.5 % bootstrap of the mean", "high": "97.5 % bootstrap of the mean"}
    variables: dict[str, Any] = {name: (("prompt",), values, *MEASURES[name]) for name, values in found.items()}
    for name, values in found.items():
        text, units = MEASURES[name]
        table = np.full((3, len(names), len(numbers)), np.nan)
        for i, j in np.argwhere(member.any(axis=-1)):
            part = torch.from_numpy(values[member[i, j]])
            low, high = bootstrap(part, seed)
            table[:, i, j] = part.mean(), low, high
        for (side, told), cells in zip(sides.items(), table, strict=True):
            variables[f"{name}_{side}"] = (("group", "at"), cells, f"{text}: {told}", units)
    variables["prompts"] = (("group", "at"), member.sum(axis=-1), "prompts in the mean", "1")
    coords = {
        "prompt": np.arange(len(positions)), "group": names, "at": numbers, "position": ("prompt", list(positions)),
        "token": ("prompt", np.array(tokens, dtype=object)), "group_of": ("prompt", list(groups)),
        "at_of": ("prompt", list(at)),
    }  # fmt: skip
    return session.dataset("sensitivity to one token of each prompt", coords, variables)
