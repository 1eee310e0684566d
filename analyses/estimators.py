"""Which estimate says best what a token does? Estimates against knockouts and replacements, on short texts.

Spearman's ρ of each with what the output loses if no later token attends to a token, if its embedding is zero, or if
another likely token stands there, over the first 20 tokens of a text without BOS, attention sinks and the last token;
mean over texts, and the reach of Student's 95 % interval. Where captum is installed, also its integrated gradients.

    python analyses/estimators.py --model gemma-3-270m --texts 12
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from scipy import stats

import squashlens as sl

TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()
EFFECTS = ["knockout", "zero embedding", "expected replacement"]


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        texts: number of texts, from 2 to 50.
    """

    model: str = "tiny-prose"
    texts: int = 50


args = tyro.cli(Options, description=__doc__)
model = sl.load(args.model)
plain: Any = model.original_model


def agreement(ids):
    best = sl.top_tokens(model, ids, k=1)["token_id"].item()
    score = lambda embeddings: plain(inputs_embeds=embeddings).logits[:, -1, best]  # noqa: E731
    embeddings = plain.get_input_embeddings()(ids[None]).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(score(embeddings), embeddings)
    rows = [
        pattern[0, :, -1].mean(dim=0)
        for pattern in sl.capture(model, ids).patterns.values()
    ]
    values = {
        "path bound as printed": sl.path_bound(model, ids),
        "its null, uniform attention": sl.path_bound(model, ids, attention="uniform"),
        "mean attention row": torch.stack(rows).mean(dim=0),
        "top-logit gradient": gradient[0].norm(dim=-1),
        "Jacobian norm, sketched": sl.jacobian_norms(model, ids, method="sketch"),
        "its Frobenius norm": sl.jacobian_norms(
            model, ids, method="sketch", norm="frobenius"
        ),
        "knockout": sl.knockout_effect(model, ids)["kl"],
        "zero embedding": sl.knockout_effect(model, ids, kind="embedding")["kl"],
        "expected replacement": sl.substitution_effect(
            model, ids, candidates="predicted", n_replacements=8
        )["kl"],
    }
    if find_spec("captum"):
        from captum.attr import IntegratedGradients

        values["integrated gradients"] = (
            IntegratedGradients(score).attribute(embeddings).detach()[0].norm(dim=-1)
        )
    kept = [
        k
        for k in range(1, len(ids) - 1)
        if not sl.attention_sinks(model, ids)["sink"][k]
    ]
    return pd.DataFrame(
        {name: np.asarray(value)[kept] for name, value in values.items()}
    ).corr("spearman")[EFFECTS]


each = [
    agreement(sl.prompts.tokenize(model, text)[0, :20]) for text in TEXTS[: args.texts]
]
by_estimate: Any = pd.concat(each).groupby(level=0, sort=False)
reach = float(stats.t.ppf(0.975, len(each) - 1)) * by_estimate.sem()
print(
    pd.concat([by_estimate.mean(), reach], axis=1, keys=["mean", "±"])
    .round(2)
    .to_string()
)
