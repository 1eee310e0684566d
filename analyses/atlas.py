"""An atlas of models: one battery of measurements for each, beside the same architecture with random weights.

Collapse by length with commas and windows, the fall of influence with distance, attention to the first token, agreement
of estimates with attention knockout, and rounding. `docs/studies.md` describes the data set and how to share it.

    python analyses/atlas.py --models analyses/models.yaml --workers 2
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--models", type=Path, help="manifest; by default one of tiny-gemma is written")
parser.add_argument("--compare", default="tiny-gemma", help="label of the model to compare (%(default)s)")
parser.add_argument("--workers", type=int, default=1, help="number of processes (%(default)s)")
parser.add_argument("--engine", default="local", help="local, ray or slurm (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("atlas"), help="folder of the atlas (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

manifest = args.models or args.out / "models.yaml"
if not args.models:
    manifest.write_text("models:\n  tiny-gemma: {model: tiny-gemma, licence: MIT}\n", encoding="utf-8")
print(sl.Atlas(args.out, manifest).pin().to_string(index=False))
atlas = sl.Atlas(args.out, manifest)
print(atlas.run(engine=args.engine, workers=args.workers).to_string(index=False))
print(atlas.compare(args.compare).round(3).to_string(index=False))
atlas.page(args.out / "atlas.html", args.compare)
sl.figures.save(atlas.figure(), args.out / "figure.html")
print(f"page and data set in {args.out.resolve()}")
