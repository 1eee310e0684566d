"""Which of many prompts lose information? A study of a file of prompts: squashing, the nearest collapse, and a remedy.

For each prompt the script reports the token that influences the last one least, as a share of the one with the most
(Jacobian norms), the relative distance between the prompt and the prompt with its last token repeated, and the remedy
that raises that least share most. The study can be interrupted and continued, and shared by workers.

    python analyses/scan.py --prompts prompts.jsonl --column text --model google/gemma-2b --workers 4
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        prompts: JSONL file; by default eight prompts are made.
        column: name of the column with the prompts.
        windows: sliding windows to try.
        worst: prompts on the page.
        workers: number of processes.
        out: folder for the store, table and page.
    """

    model: str = "tiny-gemma"
    prompts: Path | None = None
    column: str = "prompt"
    windows: tuple[int, ...] = (4, 8)
    worst: int = 100
    workers: int = 1
    out: Path = Path("scan")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

if args.prompts is None:
    args.prompts = args.out / "prompts.jsonl"
    lines = [
        f'{{"{args.column}": "How many ones are in the following sequence? {n:b} ="}}\n'
        for n in range(9, 73, 8)
    ]
    args.prompts.write_text("".join(lines), encoding="utf-8")
over = {"file": str(args.prompts), "column": args.column}
remedies = {
    "none": [],
    "temperature 0.5": [{"attention_temperature": {"temperature": 0.5}}],
}
remedies |= {f"window {n}": [{"sliding_window": {"window": n}}] for n in args.windows}
shared = {"arguments": {"model": args.model}, "over": over}
squashing = {
    "measurement": "jacobian_norms",
    "name": "squashing",
    **shared,
    "each": {"hooks": remedies},
}
collapse = {
    "measurement": "collapse",
    "name": "distances",
    "over": over,
    "arguments": {"model": args.model, "scale": "relative"},
}
if __name__ == "__main__":  # each worker imports this script
    study = sl.Study([squashing, collapse], store=args.out / "store")
    print(study.run(workers=args.workers).to_string(index=False))

    shares = study.rows("squashing")
    norms = shares["jacobian_norm"]
    shares["share"] = [None if row is None else min(row) / max(row) for row in norms]
    shares["least_token"] = [
        None if n is None else t[n.argmin()]
        for n, t in zip(norms, shares["token"], strict=True)
    ]
    best = (
        shares.sort_values("share")
        .groupby("row")
        .last()[["hooks", "share"]]
        .add_prefix("best_")
    )
    ends = (
        study.rows("distances")
        .set_index("row")["distance_y"]
        .map(lambda row: row[-1], "ignore")
        .to_frame("distance")
    )
    found = (
        shares[shares["hooks"] == "none"]
        .set_index("row")
        .join([best, ends])
        .sort_values("share")
    )
    found = found[
        [
            "prompt",
            "least_token",
            "share",
            "best_hooks",
            "best_share",
            "distance",
            "error",
        ]
    ]
    found.to_csv(args.out / "scan.csv", index=False)
    page = f"<meta charset='utf-8'><title>Scan</title><h1>{len(found)} prompts, most squashed first</h1>"
    (args.out / "worst.html").write_text(
        page + found.head(args.worst).to_html(index=False), encoding="utf-8"
    )
    print(found.head(10).to_string(index=False))
    print(f"table and page in {args.out.resolve()}")
