"""From which layer on the right answer leads, as the model's own final norm and output embedding read it."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, ChoicesOfPrompts, Clusters, positive
from squashlens.errors import UnsoundModelError
from squashlens.measure.answers.choices import (
    Choices,
    mean_of,
    of_choices,
    others_shares,
)
from squashlens.measure.registration import measurement
from squashlens.model.agreement import agree
from squashlens.model.applied import probe_ids
from squashlens.model.hooking.standing import without_ambient
from squashlens.records.labels import Variable
from squashlens.run.activations import at_last_tokens, untrained
from squashlens.run.forward import next_logits
from squashlens.run.run import Run
from squashlens.sequences import Ids

TEXTS = {
    "rank": ("share of the other choices that the readout finds less likely", "1"),
    "first": ("whether the readout finds no choice likelier", "1"),
    "log_odds": (
        "log-odds of the answer and the likeliest other choice in the readout",
        "nats",
    ),
}


@measurement("answer_curve")
def answer_by_layer(
    model: Bridge,
    prompts: Sequence[str],
    answers: Sequence[str],
    *,
    choices: ChoicesOfPrompts = None,
    clusters: Clusters = None,
    n_random_models: int = 1,
) -> xr.Dataset:
    """How the right answer stands among the choices if the model is read out at each layer, with controls.

    The readout of layer ℓ is ``z_ℓ = W_U · norm(v_ℓ)`` of the last token, with the model's final norm, and its scale or
    soft cap; z_L are the logits. An answer is as likely as all of its tokens together, each read at ℓ after those
    before it (teacher forcing). For answers of one token, log-odds are differences of logits.

    A layer from which the right answer leads means nothing alone: a model that answers a constant is right now and
    then. So every number is also given for the right answers of the *other* prompts, which is chance (½ for `rank`,
    `chance` for `first`) unless the prompts have answers in common, and for random weights.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompts: texts of at least two prompts.
        answers: the right answer to each prompt, as the model would write it after the prompt, with its space.
        choices: texts among which an answer is ranked: a list for all prompts, by default all answers; or a list for
            each prompt, whose places then take the part of the answers in the control. None may begin another.
        clusters: one label for each prompt, the same for prompts that are not independent, such as those that share
            examples, a country or a template; by default each different prompt is a cluster of its own. Intervals are
            over clusters; use 20 or more.
        n_random_models: number of models with random weights that are read out as well, without hooks; 1 by default.

    Returns:
        Dataset over (scored, prompt, layer), with `scored` one of ``"right answer"``, ``"other prompts' answers"`` (a
        mean over them) and ``"random weights 0"``, …: `rank`, the share of the other choices that are less likely, from
        0 to 1; `first`, 1 if none is likelier; and `log_odds` against the likeliest other choice, in nats. Over
        (scored, layer) their means over prompts, `mean_rank`, `mean_first` and `mean_log_odds`, each with the ends
        `…_low` and `…_high` of a 95 % interval over clusters. Layer L is the model's answer. `chance` is 1 ÷ number
        of choices.

    Raises:
        InputError: not one answer for each prompt, an answer that is no choice, or a choice that begins another one.
        UnsoundModelError: the logits do not follow from the last layer by the final norm.

    Source: nostalgebraist 2020, the logit lens; the readout is TransformerLens's `logit_readout`.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> found = sl.answer_by_layer(model, prompts, [*"0123456789"])
    >>> found["mean_first"].sel(layer=6).values.round(1).tolist()
    [1.0, 0.0, 0.1]
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    run, asked = of_choices(
        Run.open(model, "answer_by_layer"),
        prompts,
        answers,
        choices,
        clusters,
        n_random_models=n_random_models,
    )
    rows = np.arange(len(asked.prompts))
    standing = _standing(_scores(run, asked))
    shares = others_shares(asked.right, asked.many)
    scored = {
        "right answer": {
            name: values[rows, asked.right] for name, values in standing.items()
        },
        "other prompts' answers": {
            name: np.einsum("pcl,pc->pl", values, shares)
            for name, values in standing.items()
        },
    }
    for seed in range(n_random_models):
        with untrained(run, seed) as other:
            standing = _standing(_scores(other, asked))
        scored[f"random weights {seed}"] = {
            name: values[rows, asked.right] for name, values in standing.items()
        }
    variables: dict[str, Variable] = {
        "chance": ((), 1 / asked.many, "share of first places by chance", "1")
    }
    for name, (text, units) in TEXTS.items():
        values = np.stack([of_scored[name] for of_scored in scored.values()])
        variables[name] = (("scored", "prompt", "layer"), values, text, units)
        variables |= mean_of(
            f"mean_{name}",
            ("scored", "layer"),
            values.swapaxes(1, 2),
            f"mean over prompts: {text}",
            units,
            clusters=asked.clusters,
        )
    layers = np.arange(run.n_blocks + 1)
    labels = {
        "answer": ("prompt", asked.answers),
        "cluster": ("prompt", asked.clusters),
    }
    over = {"scored": [*scored], "prompt": rows, "layer": layers, **labels}
    return run.dataset("answer by layer", over, variables)


def _standing(
    scores: Float[np.ndarray, "prompt outcome layer"],
) -> dict[str, np.ndarray]:
    """For every choice of each prompt, how it stands among the others at each layer."""
    many = scores.shape[1]
    itself = np.eye(many, dtype=bool)[:, :, None]
    # (prompt, choice, other choice, layer)
    lead = scores[:, :, None] - scores[:, None]
    below = ((lead > 0) + (lead == 0) / 2).sum(axis=2) - 0.5
    best_other = np.where(itself, -np.inf, scores[:, None]).max(axis=2)
    return {
        "rank": below / (many - 1),
        "first": (scores >= best_other).astype(float),
        "log_odds": scores - best_other,
    }


def _scores(run: Run, asked: Choices) -> Float[np.ndarray, "prompt outcome layer"]:
    """The log-probability of each prompt's choices, token by token, in the readout of each layer."""
    # Every token is read after the prompt and the tokens of the choice before it.
    row_of: dict[Ids, int] = {}
    for prompt, choices in zip(asked.prompts, asked.tokens, strict=True):
        for choice in choices:
            for k in range(len(choice)):
                row_of.setdefault((*prompt, *choice[:k]), len(row_of))
    sites = run.sites()[:-1]
    last = at_last_tokens(run, list(row_of), sites)
    streams = torch.stack([last.values[site] for site in sites])
    all_choices = chain.from_iterable(asked.tokens)
    vocabulary = sorted(set(chain.from_iterable(all_choices)))
    log_p = readout(run, streams, vocabulary).double().numpy()  # (layer, row, token)
    scores = np.zeros((len(asked.prompts), asked.many, len(sites)))
    for number, (prompt, choices) in enumerate(
        zip(asked.prompts, asked.tokens, strict=True)
    ):
        for place, choice in enumerate(choices):
            for k, token in enumerate(choice):
                row = row_of[*prompt, *choice[:k]]
                scores[number, place] += log_p[:, row, vocabulary.index(token)]
    return scores


def readout(
    run: Run,
    streams: Float[Tensor, "*many d"],
    vocabulary: Sequence[int] | None = None,
) -> Float[Tensor, "*many outcome"]:
    """Log-probabilities of some tokens if residual streams are read by the final norm and the output embedding.

    Tested once for each state of the model: read at the last layer, they are those of the model's own logits. Hooks do
    not act on the readout itself.
    """
    if not run.proof.once("readout of streams", lambda: _reads_out(run)):
        raise UnsoundModelError(
            f"The logits of {run.architecture} do not follow from its last residual stream by the "
            "final norm and the output embedding.",
            "Measure where the answer is with `verdict`, which reads whole passes only.",
        )
    with without_ambient(run.model):
        return _read(run, streams, vocabulary)


def _read(run: Run, streams: Tensor, vocabulary: Sequence[int] | None) -> Tensor:
    from transformer_lens.tools.analysis import (
        logit_readout,
    )  # takes a second to import

    given = streams.clone().to(run.device)
    norm = getattr(run.model, "ln_final", None)
    if norm:  # applied here, since it may be on another device than W_U
        given = norm(given.reshape(1, -1, given.shape[-1])).reshape(given.shape)
    return logit_readout(
        run.model, given, apply_ln=False, vocab=vocabulary, return_type="log_probs"
    ).values.cpu()


def _reads_out(run: Run) -> bool:
    last: list[Tensor] = []

    def keep_last(stream: Tensor) -> None:
        last.append(stream[:, -1].clone())

    with without_ambient(run.model):
        watch = [(run.site(run.n_blocks), keep_last)]
        truth = next_logits(run, probe_ids(run.model), watch)
        try:
            found = _read(run, last[0], None)
        except (NotImplementedError, TypeError, ValueError):
            return False  # TransformerLens has no readout of this model
    return agree(found, truth.float().log_softmax(dim=-1).cpu(), run.dtype)
