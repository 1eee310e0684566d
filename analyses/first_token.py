"""Is the first token a sink, is it read, and what do path bounds say of it and of the others? Over English sentences.

Shares of attention, of the path bound and of the summed Jacobian norms, the probability of the next token that moves
without the first one, and how far path bounds are from Jacobian norms: means over sentences with Student's 95 %
interval. A sentence is cut after 20 tokens.

    python analyses/first_token.py --model gemma-3-270m --texts 16     # two minutes of one CPU core
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import tyro
from scipy import stats

import squashlens as sl

TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        texts: number of sentences, from 2 to 50.
    """

    model: str = "tiny-prose"
    texts: int = 16


args = tyro.cli(Options, description=__doc__)
model = sl.load(args.model)


def next_token(ids, hook):
    """The distribution of the next token under a hook."""
    with sl.applied(model, hook):
        return model(ids)[0, -1].softmax(-1)


def of_text(text):
    """What is measured of one sentence."""
    ids = sl.prompts.tokenize(model, text)[:, :20]
    unchanged = model(ids)[0, -1].softmax(-1)
    masked = next_token(ids, sl.hooks.mask_tokens([0]))
    emptied = next_token(ids, sl.hooks.zero_values([0]))
    excess = sl.attention_sinks(model, ids)
    bounds = sl.bound_vs_jacobian(model, ids)
    ratio = np.log10(bounds["path_bound"] / bounds["jacobian"])
    agreement = bounds["rank_agreement"].sel(estimate="path_bound")
    later = np.arange(2, ids.shape[1] + 1)
    share = {
        name: float(bounds[name][0] / bounds[name].sum())
        for name in ("path_bound", "null", "jacobian")
    }
    return {
        "the first token is a sink": float(excess["sink"][0]),
        "another token is a sink": float(excess["sink"][1:].any()),
        "blocks in which the first token is above 0.3": float(
            (excess.isel(position=0) > 0.3).mean()
        ),
        "attention to the first token": float(
            sl.head_statistics(model, ids)["sink_rate"].mean()
        ),
        "… if uniform": float((1 / later).mean()),
        "share of the path bound": share["path_bound"],
        "share of its null": share["null"],
        "share of the Jacobian norms": share["jacobian"],
        "probability that moves, attention masked": float(
            (masked - unchanged).abs().sum() / 2
        ),
        "probability that moves, values 0": float(
            (emptied - unchanged).abs().sum() / 2
        ),
        "log10(path bound / Jacobian norm), smallest": float(ratio.min()),
        "… largest": float(ratio.max()),
        "rank correlation of path bound and Jacobian norm": float(agreement),
    }


found = pd.DataFrame([of_text(text) for text in TEXTS[: args.texts]])
reach = stats.t.ppf(0.975, len(found) - 1) * found.sem()
mean = found.mean()
table = pd.DataFrame({"mean": mean, "low": mean - reach, "high": mean + reach})
print(f"{args.model}, {len(found)} sentences")
print(table.assign(min=found.min(), max=found.max()).round(3).to_string())
