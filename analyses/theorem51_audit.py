"""Theorem 5.1 with measured constants is never below the true Jacobian norm.

The script compares all bounds, norms and proxies: how tight they are, what they cost, and how well they order digits
compared with the Jacobian norm, at equal positions, and with the effect of replacing digits.

    python analyses/theorem51_audit.py --model google/gemma-2b --prompts 20 --out audit
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--question", default="How many ones are in the following sequence?")
parser.add_argument("--n", type=int, default=12, help="digits in each prompt (%(default)s)")
parser.add_argument("--prompts", type=int, default=20, help="number of prompts (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("audit"), help="folder for data and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
sequences = [
    sl.prompts.bernoulli(model, args.n, p=0.5, seed=seed, prefix=args.question, suffix="=")
    for seed in range(args.prompts)
]
content = [sequences[0].position(k) for k in range(1, args.n + 1)]
audit = sl.audit(model, sl.prompts.stacked(sequences), positions=content)

sl.results.save(audit, args.out / "audit.nc")
sl.figures.save(sl.figures.audit(audit), args.out / "audit.html")
sl.figures.save(sl.figures.audit(audit, reference="substitution effect"), args.out / "audit_substitution.html")

print(sl.results.table(audit).to_string(float_format=lambda value: f"{value:.3g}", na_rep="·"))
print(f"data and figures in {args.out.resolve()}")
