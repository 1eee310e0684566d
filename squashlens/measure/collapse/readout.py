"""What the next token says of v and v*: differences of its distribution, against those of two runs of the same prompt.

A distance D of two vectors may be large in a coordinate that no logit reads, and small in one that decides the answer.
The readout has units of its own. Its noise is what two runs of one prompt differ by: by the triangle inequality, the
noise of v plus that of v* bounds how far rounding moves the difference of v and v*.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.anatomy import dtype_of
from squashlens.engine.capturing.pairs import PairCapture
from squashlens.engine.running.forward import log_probabilities
from squashlens.measure.collapse.metric import Metric, next_token_is_known
from squashlens.records.results import Variable
from squashlens.theory.distances import NOISE_FLOORS, divergence, log_odds, total_variation, ulp

Rows = Float[Tensor, "branch d"]
NOISE = {"total_variation": ("total variation", "1"), "log_odds": ("log odds", "nats")}


def next_token(model: Bridge, metric: Metric, pairs: PairCapture) -> dict[str, Variable]:
    """Comparisons of the next token after v and v*; empty, with a warning, if the logits cannot be computed from y."""
    if not next_token_is_known(model):
        return {}
    y, star = (metric.rounded(side.values[-1]) for side in (pairs.v, pairs.star))
    found = compare(model, y, star)
    named = {
        "total_variation": ("total variation of the next token", "1"),
        "kl": ("Kullback–Leibler divergence of the next token, v from v*", "nats"),
        "log_odds": ("largest change of the log odds of two next tokens", "nats"),
        "same_argmax": ("whether the most likely next token is the same", "1"),
    }
    variables: dict[str, Variable] = {
        name: (("length",), found[name], metric.stated(text), units) for name, (text, units) in named.items()
    }
    if pairs.replay is None:
        return variables
    places, own = list(pairs.replay.places), metric.round_to or dtype_of(model)
    both = ((y[places], pairs.replay.v[-1]), (star[places], pairs.replay.star[-1]))
    moved = [_noise(model, one, metric.rounded(again), own) for one, again in both]
    for name, (text, units) in NOISE.items():
        label = metric.stated(f"how far rounding can move the {text} of v and v*")
        variables[f"{name}_noise"] = (("replayed",), moved[0][name] + moved[1][name], label, units)
    floor = variables["total_variation_noise"][1].max()
    text = f"whether the next token tells v from v*: a total variation above {NOISE_FLOORS} noise floors"
    told = (found["total_variation"] > NOISE_FLOORS * floor).double()
    return variables | {"told_apart": (("length",), told, metric.stated(text), "1")}


def compare(model: Bridge, y: Rows, other: Rows) -> dict[str, Tensor]:
    """The differences of the next token's distributions from two representations y, for each row."""
    measures = {
        "total_variation": lambda p, q: total_variation(p.exp(), q.exp()),
        "kl": divergence,
        "log_odds": log_odds,
        "same_argmax": lambda p, q: p.argmax(dim=-1) == q.argmax(dim=-1),
    }
    found: dict[str, list[Tensor]] = {name: [] for name in measures}
    for p, q in zip(log_probabilities(model, y), log_probabilities(model, other), strict=True):
        for name, measure in measures.items():
            found[name].append(measure(p, q).cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def _noise(model: Bridge, y: Rows, again: Rows, dtype: torch.dtype) -> dict[str, Tensor]:
    """How far rounding moves the next token: by a second run, and at least by one unit in the last place of y.

    Two runs can round to the same numbers by chance. The units have alternating signs.
    """
    signs = 1 - 2 * (torch.arange(y.shape[-1], device=y.device) % 2)
    one, two = (compare(model, y, other) for other in (again, y.double() + signs * ulp(y, dtype)))
    return {name: torch.maximum(one[name], two[name]) for name in NOISE}
