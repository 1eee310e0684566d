"""Sensitivity of the last token to one token or word of many prompts: for each prompt, and as means of groups."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Bridge, Candidates, Method, Norm
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.bound import path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import Estimation, resolved
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.model.text.context import texts_in_context
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import Prompts, each_of, require_tokenizer, rows_of
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.run.run import Run
from squashlens.theory.statistics.ranks import mean_interval
from squashlens.theory.statistics.trends import with_ends

PROBES = 16  # of a sketched norm: five prompts of 60 tokens take half a minute on Gemma 3 270M
MEASURES = {
    "jacobian": ("{norm} norm of the Jacobian at the token", "1"),
    "path_bound": ("path bound of Theorem 5.1 at the token, constants 1", "1"),
    "bound_over_null": ("path bound relative to uniform attention at the token", "1"),
    "output_change": (
        "mean distance that y moves when the token is replaced",
        MODEL_UNITS,
    ),
    "kl": ("mean KL divergence of the next token when the token is replaced", "nats"),
}


@measurement(
    "needle_sensitivity",
    cheaper="Fewer prompts, n_probes= or n_replacements= take less.",
)
def needle_sensitivity(
    model: Bridge,
    prompt: Prompts,
    positions: Sequence[int] | None = None,
    groups: Sequence[tuple[str, int]] | None = None,
    *,
    find: str | None = None,
    norm: Norm = "frobenius",
    method: Method = "auto",
    n_probes: int = PROBES,
    candidates: Candidates = None,
    n_replacements: int = 4,
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
        norm, method: as in `jacobian_norms`, without certified bounds; ``"frobenius"`` by default, which few products
            estimate better than the spectral norm.
        n_probes: as in `jacobian_norms`, but 16 by default, with which five prompts of 60 tokens take half a minute on
            Gemma 3 270M; 64 give norms that vary half as much with the seed, in four times the time.
        candidates: as in `substitution_effect`; by default the distinct tokens of all prompts of the same length except
            BOS.
        n_replacements: as in `substitution_effect`.
        seed: random seed of the replacements, and of a sketch's directions; 0 by default.

    Returns:
        Dataset. Over (prompt): `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `path_bound`, Theorem 5.1 with constants 1;
        `bound_over_null`, the same divided by its null; `output_change` (in the model's units) and `kl` (in nats), as
        in `substitution_effect`. Over (group, number), for each of these: `<name>_mean`, and `<name>_low` and
        `<name>_high`, the ends of its 95 % interval over prompts (NaN for one prompt); `prompts`, their number. All are
        dimensionless unless a unit is stated.

    Raises:
        InputError: lists of different lengths, no prompts, or a position that is outside the prompt or a BOS; a prompt
            that does not have the text of `find`, has it twice, or has it in tokens with other text.

    >>> import squashlens as sl
    >>> model, ask = sl.load("tiny-gemma"), "What is the last digit in this sequence?"
    >>> found = sl.needle_sensitivity(model, [f"{ask} 0111 =", f"{ask} 1110 ="], find="0")
    >>> first, last = found["kl_mean"].sel(group="0").values
    >>> bool(last > 100 * first)   # it is the last that is asked for
    True
    """
    if (positions is None) == (find is None):
        raise InputError(
            "Give either positions= or find=.",
            "find='Lisbon' finds the positions of a word in texts.",
        )
    opened = Run.open(model, **this_call())
    prompts = rows_of(opened.model, prompt)
    way = Estimation(method=method, n_probes=n_probes, seed=seed)
    way = resolved(way, opened, ("exact", "sketch"))
    # The positions of the needle in each prompt.
    needles = _positions_of(opened, prompts, positions, find or "")
    if groups is None:
        groups = [(find or "needle", needle[0]) for needle in needles]
    _require_one_each(prompts, needles, groups)
    # Keywords of `jacobian_norms`, and of `substitution_effect`.
    options: dict[str, Any] = {
        "norm": norm,
        "method": way.method,
        "n_probes": n_probes,
        "seed": seed,
    }
    replaced: dict[str, Any] = {
        "candidates": candidates,
        "n_replacements": n_replacements,
        "seed": seed,
    }
    opened = opened.knowing(call=this_call(prompt=each_of(prompt), method=way.method))
    runs = [opened.with_prompts(torch.tensor(ids)) for ids in prompts]
    measured: list[dict[str, float]] = []
    tokens: list[str] = []
    for row, run in enumerate(bar(runs, desc="needle_sensitivity")):
        needle = run.queries(needles[row], f"positions[{row}]")
        if candidates is None:
            replaced["candidates"] = _tokens_of_equal_length(run, prompts)
        measured.append(_sensitivity_to(run, needle, options, replaced))
        name = str(find).strip()
        if len(needle) == 1:
            name = run.tokens_of(run.ids)[0][needle[0]]
        tokens.append(name)
    variables, coords = _with_means(pd.DataFrame(measured), groups, norm)
    coords |= {
        "prompt": np.arange(len(prompts)),
        "position": ("prompt", [needle[0] for needle in needles]),
        "token": ("prompt", np.array(tokens, dtype=object)),
    }
    return runs[0].dataset("sensitivity to one token of each prompt", coords, variables)


def _require_one_each(
    prompts: Sequence[Any], needles: Sequence[Any], groups: Sequence[Any]
) -> None:
    """Raise unless there are as many positions and groups as prompts."""
    if not len(prompts) == len(needles) == len(groups):
        raise InputError(
            f"The numbers of prompts, positions and groups are {len(prompts)}, {len(needles)} and {len(groups)}.",
            "Give one of each for every prompt.",
        )


def _tokens_of_equal_length(run: Run, prompts: Sequence[Sequence[int]]) -> list[int]:
    """The distinct tokens, without BOS, of all prompts that are as long as that of the run."""
    as_long = [ids for ids in prompts if len(ids) == run.positions]
    return sorted(set(chain.from_iterable(as_long)) - {start_of(run.model).bos})


def _sensitivity_to(
    run: Run, needle: list[int], options: dict[str, Any], replaced: dict[str, Any]
) -> dict[str, float]:
    """The sensitivity of the output at the last token of a run's prompt to its needle, by the names in `MEASURES`.

    `needle` has the needle's positions. `options` are keywords of `jacobian_norms`, and `replaced` those of
    `substitution_effect`.
    """
    # As the only span, so that every result has one value.
    needle_alone = {"needle": needle}
    bound = path_bound(run.model, run.ids, spans=needle_alone)
    null = path_bound(run.model, run.ids, spans=needle_alone, attention="uniform")
    norm = jacobian_norms(run.model, run.ids, spans=needle_alone, **options)
    moved = substitution_effect(run.model, run.ids, spans=needle_alone, **replaced)
    return {
        "jacobian": norm.item(),
        "path_bound": bound.item(),
        "bound_over_null": bound.item() / null.item(),
        "output_change": moved["output_change"].item(),
        "kl": moved["kl"].item(),
    }


def _positions_of(
    run: Run,
    prompts: Sequence[Sequence[int]],
    positions: Sequence[int] | None,
    find: str,
) -> list[list[int]]:
    """For each prompt the positions of its needle: the given one, or those of the tokens with the text `find`.

    White space around the text does not count. Raises unless the text occurs once, in tokens without other text.
    """
    if positions is not None:
        return [[position] for position in positions]
    wanted = find.strip()
    needles: list[list[int]] = []
    for number, ids in enumerate(prompts):
        texts = texts_in_context(require_tokenizer(run.model), ids)
        whole = "".join(texts)
        # A lookahead matches overlapping occurrences too.
        matches = re.finditer(f"(?={re.escape(wanted)})", whole) if wanted else ()
        starts = [match.start() for match in matches]
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
        text = "".join(texts[position] for position in inside)
        if text.strip() != wanted:
            raise InputError(
                f"The tokens of prompt {number} that have find={find!r} are {text!r}.",
                f"Give find={text.strip()!r}.",
            )
        needles.append(inside)
    return needles


def _with_means(
    measured: pd.DataFrame, groups: Sequence[tuple[str, int]], norm: Norm
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """All values by prompt, with means and intervals over the prompts of each group, and coordinates of the groups.

    `measured` has a row for each prompt and a column for each of `MEASURES`; `groups` has each prompt's group, as a
    name and a number. Means are over (group, number), with every name and every number.
    """
    names_by_prompt = [name for name, _ in groups]
    numbers_by_prompt = [number for _, number in groups]
    names = list(dict.fromkeys(names_by_prompt))
    numbers = sorted(set(numbers_by_prompt))
    # (group, number, prompt)
    has_name = np.array(names_by_prompt) == np.array(names)[:, None, None]
    has_number = np.array(numbers_by_prompt) == np.array(numbers)[:, None]
    is_member = has_name & has_number
    by_group = ("group", "number")
    variables: dict[str, Variable] = {}
    for name, (text, units) in MEASURES.items():
        values = measured[name].to_numpy()
        text = text.format(norm=norm)
        # Over the last axis, of the prompts; NaN are left out.
        ends = mean_interval(torch.from_numpy(np.where(is_member, values, np.nan)))
        means = with_ends(name, by_group, ends, f"{text}: mean", units)
        # `name` itself is the variable by prompt.
        variables[f"{name}_mean"] = means.pop(name)
        variables |= {name: (("prompt",), values, text, units), **means}
    counts = is_member.sum(axis=-1)
    text = "number of prompts in the mean"
    variables["prompts"] = (by_group, counts, text, "prompts")
    coords = {
        "group": names,
        "number": numbers,
        "group_of": ("prompt", names_by_prompt),
        "number_of": ("prompt", numbers_by_prompt),
    }
    return variables, coords
