"""When is the bound a bound? Every sensitivity measure on one ladder: how tight, how like the truth, at what cost.

Claim: with measured constants Theorem 5.1 is never below the true Jacobian. Asked as well: which of the cheaper
measures orders the digits as the Jacobian does once their position is held, and what swapping them really does.

    python analyses/theorem51_audit.py --model google/gemma-2b --prompts 20 --out audit
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--question", default="How many ones are in the following sequence?")
parser.add_argument("--n", type=int, default=12, help="digits in each prompt (%(default)s)")
parser.add_argument("--prompts", type=int, default=20, help="prompts, for the intervals (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("audit"), help="folder for data and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
sequences = [
    sl.prompts.bernoulli(model, args.n, p=0.5, seed=seed, prompt=args.question, suffix="=")
    for seed in range(args.prompts)
]
content = [sequences[0].position(k) for k in range(1, args.n + 1)]
audit = sl.audit(model, sl.prompts.stacked(sequences), content=content)

sl.save(audit, args.out / "audit.nc")
sl.figures.ladder(audit).write_html(args.out / "ladder.html")
sl.figures.ladder(audit, reference="substitution effect").write_html(args.out / "ladder_substitution.html")

print(sl.audit_table(audit).to_string(float_format=lambda value: f"{value:.3g}", na_rep="·"))
print(f"data and figures in {args.out.resolve()}")
