"""What squashlens finds in a small model of natural text, beside an untrained model of the same architecture.

Sinks by block and head, influence by distance, what removing BOS costs, how well the path bound and its null order
tokens by influence, and the collapse of repeated words. `make card-prose` makes a file of held-out sentences.

    python analyses/tiny_prose.py --sentences runs/prose/sentences.txt --out tiny_prose
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

import squashlens as sl
from squashlens.model.loading.random_weights import with_random_weights

OWN = [
    "The old ferry left the island at noon, and nobody on the shore saw it again until spring.",
    "A query that reads the whole table is slow, even if it returns a single row, unless an index helps.",
    "The king sent two servants to the city, and they asked the people of the city for bread and water.",
    "If the file does not exist, the function returns an empty list, and the caller decides.",
]


@dataclass
class Options:
    """Command-line options.

    Args:
        sentences: text file with a sentence in each line; by default four are made.
        queries: last tokens whose influences are measured.
        n: repetitions of the words that are repeated.
        out: folder for data and figures.
    """

    sentences: Path | None = None
    queries: int = 12
    n: int = 128
    out: Path = Path("tiny_prose")


args = tyro.cli(Options, description=__doc__)

args.out.mkdir(parents=True, exist_ok=True)
lines = args.sentences.read_text("utf-8").splitlines() if args.sentences else OWN
model = sl.load("tiny-prose")
models = {"trained": model, "untrained": with_random_weights(model, seed=0)}

whole = sl.influence_by_distance(
    model,
    " ".join(OWN),
    queries=range(-args.queries, 0),
    method="auto",
    norm="frobenius",
)
heads = sl.head_statistics(model, " ".join(OWN))
sl.results.save(whole, args.out / "influence_by_distance.nc")
both = sl.figures.panels(
    {"(a)": whole, "(b)": heads},
    columns=1,
    title="Influence by distance, and attention to <bos>",
)
sl.figures.save(both, args.out / "influence.html")
print(
    "mean attention of later tokens to BOS\n",
    heads["sink_rate"].to_pandas().round(3).to_string(),
)
print(
    whole[["exponent", "exponent_low", "exponent_high"]]
    .isel(layer=0, drop=True)
    .to_dataframe()
    .round(2)
)
agreement = {}
losses = {}
for line in lines:
    for name, one in models.items():
        ids = sl.prompts.tokenize(model, line)
        norms = sl.jacobian_norms(
            one, ids, norm="frobenius", method="sketch", n_probes=64
        )
        truth = (
            norms.to_series().reset_index(drop=True).iloc[1:-1]
        )  # without BOS and the last token itself
        for kind in ("model", "uniform"):
            bound = (
                sl.path_bound(one, ids, attention=kind)
                .to_series()
                .reset_index(drop=True)
            )
            agreement.setdefault(f"{name}, {kind} attention", []).append(
                bound.corr(truth, method="spearman")
            )
    for bos in (
        "family",
        "none",
    ):  # the loss of the tokens from the second on, which are predicted in both cases
        ids = sl.prompts.tokenize(model, line, bos=bos)
        nats = -model(ids)[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])
        losses.setdefault(f"BOS {bos}", []).append(
            nats[int(bos == "family") :].mean().item()
        )
for name, values in {
    **agreement,
    **losses,
}.items():  # Spearman's ρ of the path bound with the Jacobian; nat per token
    mean = sum(values) / len(values)
    print(
        name,
        f"{mean:.3f} ± {(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)) ** 0.5:.3f}",
    )
pairs = (
    (" and", " or"),
    (" the", " a"),
    ("1", "0"),
)  # a word that is repeated, and another as contrast
words = {
    w: sl.prompts.repeated(model, w, args.n, alphabet=(w, other)) for w, other in pairs
}
found = {
    w: sl.collapse(model, sl.capture(model, s, baselines=["contrast"]))
    for w, s in words.items()
}
sl.figures.save(sl.figures.collapse_curve(found), args.out / "collapse.html")
for word, ds in found.items():
    shown = ds[["distance", "contrast"]].isel(layer=-1, length=[0, 7, -1], drop=True)
    print(repr(word), shown.to_dataframe(), sep="\n")
