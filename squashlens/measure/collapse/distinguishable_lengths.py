"""Separation: which lengths of a growing sequence a model can still tell apart, above rounding.

Theorem 4.2 says that representations get closer, and at working precision "too close" means within rounding. What
rounding does is measured: the same prompts are run in other groupings into passes (`run.groupings`).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, positive
from squashlens.measure.collapse import metric as metrics
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of, with_y
from squashlens.model.memory import require_room
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.run.activations import untrained
from squashlens.run.captures.pairs import Growing, prepare_growing
from squashlens.run.forward import log_probabilities
from squashlens.run.groupings import grouped_streams, groupings
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids
from squashlens.theory import separation as theory
from squashlens.theory.distances import total_variation

RECOVERED = "share of runs in which the nearest representation of the first run is that of the same length"
OF_LENGTHS = "layer length"
NEAREST = "length whose representation in the first run is nearest to the second"
NEXT_NOISE = "how far rounding moves the next token's distribution, L1"
NEXT_STEP = "L1 distance of the next token to that of the next length ÷ noise"
NEXT_RECOVERY = f"{RECOVERED}, by the next token, mean of all lengths"
RANDOM = "recovery in a model with random weights"
TABLE = {
    "noise": (OF_LENGTHS, "how far rounding moves the representation, L2", MODEL_UNITS),
    "step": (OF_LENGTHS, "L2 distance to the next length ÷ noise", "1"),
    "recovered": (OF_LENGTHS, RECOVERED, "1"),
    "nearest": (OF_LENGTHS, NEAREST, "tokens"),
    "recovery": ("layer", f"{RECOVERED}, mean of all lengths", "1"),
    "margin": (
        "layer",
        "smallest distance of two lengths ÷ the sum of their noise",
        "1",
    ),
    "recovery_random": ("random_model layer", RANDOM, "1"),
    "chance": ("", "recovery by chance, 1 ÷ number of lengths", "1"),
    "next_noise": ("length", NEXT_NOISE, "1"),
    "next_step": ("length", NEXT_STEP, "1"),
    "next_recovered": ("length", f"{RECOVERED}, by the next token", "1"),
    "next_recovery": ("", NEXT_RECOVERY, "1"),
}


@measurement(
    "separation_curve", cheaper="Fewer lengths= or n_random_models=0 takes less."
)
def distinguishable_lengths(
    model: Bridge,
    sequence: GrowingSequence,
    *,
    lengths: Iterable[int] | None = None,
    n_random_models: int = 1,
) -> xr.Dataset:
    """Which lengths of a growing sequence the model can still tell apart, above its own rounding.

    The prompts with n content tokens are computed in three runs that round otherwise: whole with fused attention, and
    in pieces of 7 and of 64 tokens with written patterns. ν holds both differences. v_r(n) is the representation of
    the last token in run r. Then, with L2 distances::

        noise     ν(n) = max_r ‖v_r(n) − v_0(n)‖                        what rounding does
        step      ‖v_0(n⁺) − v_0(n)‖ ÷ ν(n), n⁺ the next length         what one more token does, in this unit
        margin    min over n ≠ m of ‖v_0(n) − v_0(m)‖ ÷ (ν(n) + ν(m))   above 2, every run recovers every length
        recovery  share of n such that v_r(n), r ≥ 1, is nearest to v_0(n) among all v_0(m)

    In exact arithmetic all lengths are distinct for almost all weights, and every recovery is 1, if the last token sees
    every token. Where all L blocks have windows of w tokens, lengths of one repeated token beyond L(w − 1) are equal;
    runs that round alike at each position may then still be recovered, by their rounding. With N lengths, a
    representation that says nothing of n has a recovery of 1/N. In half precision the numbers depend on the repeated
    token and on the kernels of the processor. Rounding a *stored* result is another thing: it leaves nearly all
    lengths distinct, since no computation follows.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own. Results of several dtypes join:
            ``sl.results.concat({"bfloat16": half, "float32": full}, dim="run")``.
        sequence: a growing sequence from `squashlens.prompts`.
        lengths: numbers of content tokens, at least two; all from 1 by default, since distant lengths are easier to
            tell apart. 44 lengths take about two minutes of one core on Gemma 3 270M, half of them for random weights.
        n_random_models: number of models with random weights, drawn with the seeds 0, 1, …, whose recovery is measured
            as well, without hooks; 1 by default.

    Returns:
        Dataset. Over (layer, length): `noise`, in the model's units; `step`, NaN at the last length, and infinite or
        NaN where the noise is 0, as of embeddings; `recovered`, the share of runs that recover this length; `nearest`,
        the length that is found instead or is right, seen from the second run. Over (layer): `recovery` and `margin`.
        Over (random_model, layer): `recovery_random`. Each also has a variable with `_y`, for y. Over (length), for the
        distribution of the next token: `next_noise` and `next_step`, total variations on the scale from 0 to 2, and
        `next_recovered`; and the scalar `next_recovery`, for which nearest is by the Hellinger distance. The scalar
        `chance` is 1/N.

        Lengths of one sequence are nested, and are one observation. For an interval, measure several sequences.

    Raises:
        InputError: fewer than two lengths.

    Source: Barbero et al. 2024, section 4; that distinct prompts almost surely stay distinct in exact arithmetic, under
    its conditions: arXiv 2510.15511.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ds = sl.distinguishable_lengths(model, sl.prompts.repeated(model, "1", 16))
    >>> float(ds["recovery_y"]), float(ds["chance"])
    (1.0, 0.0625)
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    run = Run.open(model, **this_call())
    growing = prepare_growing(run, sequence, lengths, "auto")
    run = metrics.with_sequence(run, growing)
    trunk = growing.sequence.trunk
    prompts = [growing.sequence.plain(n).ids(trunk) for n in growing.lengths]
    streams = grouped_streams(run, *rows_of(prompts))  # (run, layer, prompt, d)
    variables = _of_streams(streams, growing.lengths)
    variables |= variables_of(TABLE, {"chance": 1 / len(prompts)})
    if metrics.next_token_is_known(run):
        variables |= _of_next_token(run, streams[:, -1])
    coords = metrics.coords(growing)
    if n_random_models:
        seeds = np.arange(n_random_models)
        coords["random_model"] = seeds
        recoveries = [_random_recovery(growing, prompts, int(seed)) for seed in seeds]
        of_random = {"recovery_random": torch.stack(recoveries)}
        variables |= with_y(variables_of(TABLE, of_random))
    run = run.knowing(groupings=groupings(run))
    return run.dataset("separation", coords, variables)


def rows_of(prompts: Sequence[Ids]) -> tuple[list[Ids], list[list[int]]]:
    """The rows of token ids to run, and for each row the positions at which prompts end and are read.

    If the longest prompt begins with every other one, it is the only row; otherwise each prompt is a row.

    >>> rows_of([(5,), (5, 5)]), rows_of([(5,), (6, 5)])
    (([(5, 5)], [[0, 1]]), ([(5,), (6, 5)], [[0], [1]]))
    """
    longest = max(prompts, key=len)
    last = [len(ids) - 1 for ids in prompts]
    if all(longest[: len(ids)] == ids for ids in prompts):
        return [longest], [last]
    return list(prompts), [[place] for place in last]


def _of_streams(
    streams: Float[Tensor, "run layer prompt d"], lengths: Sequence[int]
) -> dict[str, Variable]:
    """Noise, steps, recovery and margin of the representations, over layers, and for y."""
    by_layer = streams.transpose(0, 1)  # (layer, run, prompt, d)
    shares: list[Tensor] = []
    nearest: list[Tensor] = []
    for runs in by_layer:
        share, nearest_prompt = theory.recovered(theory.to_first_run(runs))
        shares.append(share)
        nearest.append(nearest_prompt)
    recovered = torch.stack(shares)
    found = {
        "noise": metrics.layer_by_layer(theory.noise_of_runs, by_layer),
        "step": metrics.layer_by_layer(theory.steps, by_layer),
        "recovered": recovered,
        "nearest": torch.tensor(lengths)[torch.stack(nearest)],
        "recovery": recovered.mean(dim=-1),
        "margin": metrics.layer_by_layer(theory.margin, by_layer),
    }
    return with_y(variables_of(TABLE, found))


def _random_recovery(
    growing: Growing, prompts: Sequence[Ids], seed: int
) -> Float[Tensor, " layer"]:
    """The mean recovery of all lengths, at each layer and then at y, in a model with random weights."""
    with untrained(growing.run, seed) as other:
        streams = grouped_streams(other, *rows_of(prompts), label="random weights")

    def recovery(runs: Float[Tensor, "run prompt d"]) -> Tensor:
        share, _ = theory.recovered(theory.to_first_run(runs))
        return share.mean()

    return metrics.layer_by_layer(recovery, streams.transpose(0, 1))


def _of_next_token(run: Run, y: Float[Tensor, "run prompt d"]) -> dict[str, Variable]:
    """The variables of the next-token distributions p of the last tokens' y in each run.

    Noise and steps are total variations. For recovery, the distance is ‖√p − √q‖₂, which is √2 × Hellinger's.
    """
    n = y.shape[1]
    bytes_of_all = 8 * n * int(run.model.cfg.d_vocab)
    require_room(
        4 * bytes_of_all,
        torch.device("cpu"),
        "The next-token distributions",
        "Use fewer lengths.",
    )
    first = _distributions(run, y[0])
    roots = first.sqrt()
    noise = torch.zeros(n, dtype=torch.float64)
    gaps: list[Tensor] = []  # (prompt, prompt of the first run) for each other run
    for y_again in y[1:]:
        again = _distributions(run, y_again)
        noise = torch.maximum(noise, total_variation(again, first))
        # ‖√p − √q‖² = 2 − 2 ⟨√p, √q⟩; the root is taken in place to save memory.
        products = again.sqrt_() @ roots.T
        gaps.append((2 - 2 * products).clamp(min=0).sqrt())
    recovered, _ = theory.recovered(torch.stack(gaps))
    moved = total_variation(first[1:], first[:-1])
    step = theory.ratio(moved, noise[:-1])
    step = torch.cat([step, step.new_full((1,), torch.nan)])  # none after the last
    found = {
        "next_noise": noise,
        "next_step": step,
        "next_recovered": recovered,
        "next_recovery": recovered.mean(),
    }
    return variables_of(TABLE, found)


def _distributions(
    run: Run, y: Float[Tensor, "prompt d"]
) -> Float[Tensor, "prompt outcome"]:
    """The distributions of the next token after each prompt."""
    return torch.cat([rows.exp().cpu() for rows in log_probabilities(run, y)])
