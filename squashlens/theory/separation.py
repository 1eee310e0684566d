"""How well prompts can be told apart: their distances beside what rounding alone does to each of them.

v_r(n) is the representation of prompt n in run r; all runs compute the same prompts and round otherwise. In exact
arithmetic they would be equal, so the noise of a prompt is how far the other runs are from the first:

    ν(n) = max_r ‖v_r(n) − v_0(n)‖₂

In exact arithmetic different prompts have different representations for almost all weights, if every token is visible
to the last one (arXiv 2510.15511, under its conditions). Where all L blocks have windows of w tokens, prompts that
differ further back than L(w − 1) tokens have the same one. Whether a reader with finite precision can tell prompts
apart is another question: it can if their distance is above their noise. All distances are L2, in float64, from
differences of coordinates; the expansion of the square would lose the digits that matter here.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens.theory.distances import ulp

Runs = Float[Tensor, "run prompt d"]


def distances(
    v: Float[Tensor, "*many prompt d"], w: Float[Tensor, "*many other d"]
) -> Float[Tensor, "*many prompt other"]:
    """‖v_n − w_m‖₂ for each pair of rows."""
    return torch.cdist(
        v.double(), w.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )


def to_first_run(runs: Runs) -> Float[Tensor, "again prompt other"]:
    """‖v_r(n) − v_0(m)‖₂ for every run r ≥ 1."""
    return torch.stack([distances(again, runs[0]) for again in runs[1:]])


def between_neighbours(runs: Runs) -> Float[Tensor, " pair"]:
    """‖v_0(n+1) − v_0(n)‖₂, the distance of each prompt to the next one, in the first run."""
    return (runs[0, 1:].double() - runs[0, :-1].double()).norm(dim=-1)


def noise_of_runs(runs: Runs) -> Float[Tensor, " prompt"]:
    """ν(n), how far the other runs of a prompt are from its first run."""
    return (runs[1:].double() - runs[0].double()).norm(dim=-1).amax(dim=0)


def ratio(
    size: Float[Tensor, "*many"], noise: Float[Tensor, "*many"]
) -> Float[Tensor, "*many"]:
    """A distance ÷ its noise: infinite if only the noise is 0, and NaN if both are."""
    return torch.where((size == 0) & (noise == 0), torch.nan, size / noise)


def steps(runs: Runs) -> Float[Tensor, " prompt"]:
    """‖v_0(n+1) − v_0(n)‖ ÷ ν(n): how far one step along the prompts moves, in units of noise; NaN for the last."""
    known = ratio(between_neighbours(runs), noise_of_runs(runs)[:-1])
    return torch.cat([known, known.new_full((1,), torch.nan)])


def margin(runs: Runs) -> Float[Tensor, ""]:
    """min over n ≠ m of ‖v_0(n) − v_0(m)‖ ÷ (ν(n) + ν(m)).

    v_r(n) is within ν(n) of v_0(n). So above 1 no run of a prompt is as near to another prompt as to be within that
    one's noise, and above 2 every run is nearest to its own prompt. Pairs that are equal in all runs count as 0.
    """
    noise = noise_of_runs(runs)
    apart = ratio(distances(runs[0], runs[0]), noise[:, None] + noise)
    apart = apart.nan_to_num(nan=0.0, posinf=torch.inf)  # NaN: equal in all runs
    return apart.fill_diagonal_(torch.inf).min()  # without a prompt and itself


def recovered(
    gaps: Float[Tensor, "again prompt other"],
) -> tuple[Float[Tensor, " prompt"], Int[Tensor, " prompt"]]:
    """The share of runs in which the nearest v_0(m) to v_r(n) is that of n itself, and the nearest m in the first run.

    `gaps` are those of `to_first_run`. If k of them tie, n gets 1/k, so that prompts that are all
    equal have the share of chance, 1/N.
    """
    nearest = gaps.amin(dim=-1, keepdim=True)
    tied = gaps == nearest
    to_itself = tied.diagonal(dim1=-2, dim2=-1).double()
    share = to_itself / tied.sum(dim=-1)
    return share.mean(dim=0), gaps[0].argmin(dim=-1)


def distance_by_noise(
    runs: Float[Tensor, "run layer d"],
    other_runs: Float[Tensor, "run layer d"],
    dtype: torch.dtype,
) -> Float[Tensor, " layer"]:
    """‖v_0 − v′_0‖ ÷ (ν + ν′) of two prompts at each layer, in a model of this dtype.

    Runs may round alike by chance, so ν is at least ‖½ ulp(v_0)‖, what rounding v once does.
    """
    distance = (runs[0].double() - other_runs[0].double()).norm(dim=-1)
    noise = _least_noise(runs, dtype) + _least_noise(other_runs, dtype)
    return distance / noise


def _least_noise(
    runs: Float[Tensor, "run layer d"], dtype: torch.dtype
) -> Float[Tensor, " layer"]:
    """max(ν, ‖½ ulp(v_0)‖)."""
    rounding = (ulp(runs[0], dtype) / 2).norm(dim=-1)
    return torch.maximum(noise_of_runs(runs), rounding)


def nearer_to_own(
    runs: Float[Tensor, "run layer d"], other_runs: Float[Tensor, "run layer d"]
) -> Float[Tensor, " layer"]:
    """How often a run of a prompt is nearer to another run of it than to that run of the other prompt, at each layer.

    The share over both prompts and all ordered pairs r ≠ s of ‖v_r − v_s‖ < ‖v_r − v′_s‖. Equal prompts have 0 if they
    round alike, and about ½ if they do not.
    """
    # (prompt, layer, run, d)
    both = torch.stack([runs, other_runs]).double().transpose(1, 2)
    # (prompt, layer, run r, run s)
    to_own_runs = distances(both, both)
    to_other_prompt = distances(both, both.flip(0))
    is_another_run = ~torch.eye(len(runs), dtype=torch.bool)
    is_nearer = (to_own_runs < to_other_prompt)[:, :, is_another_run]
    return is_nearer.double().mean(dim=(0, 2))
