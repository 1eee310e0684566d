"""Corollary 6.2: collapse makes counting impossible. Is it why this model miscounts?

Claim: two sequences whose representations have collapsed get one answer, and so at least one wrong. On the very prompts
whose answers are scored stand the distance of such a pair, whether both are answered alike, and whether a linear probe
of the last token finds the right answer better than it does in models with random weights: a count that training has
put there, and that is not said, is not lost to collapse.

    python analyses/collapse_vs_readout.py --model google/gemma-2b --task count_bernoulli --lengths 10 50 100 200
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--task", default="taught_count_bernoulli", help="a name from `squashlens tasks` (%(default)s)")
parser.add_argument("--lengths", type=int, nargs="+", default=[4, *range(8, 97, 8)], help="numbers of items")
parser.add_argument("--seeds", type=int, default=256, help="draws at each length (%(default)s)")
parser.add_argument("--template", default="none", help="chat for instruct models (%(default)s)")
parser.add_argument("--dtype", default="float32", help="in which the model is run (%(default)s)")
parser.add_argument("--device", help="cpu, cuda, …; CUDA where there is one if not given")
parser.add_argument("--fit", type=int, default=64, help="different prompts that each probe is fitted to (%(default)s)")
parser.add_argument("--twins", type=int, default=4, help="models with random weights to compare with (%(default)s)")
parser.add_argument("--resume", action="store_true", help="go on from the answers that the folder holds")
parser.add_argument("--out", type=Path, default=Path("collapse_vs_readout"), help="folder for results (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model, task = sl.load(args.model, device=args.device, dtype=args.dtype), sl.tasks.find(args.task)
found = sl.collapse_vs_readout(
    model, task, lengths=args.lengths, seeds=args.seeds if task.random else 1, template=args.template,
    fit=args.fit, twins=args.twins, resume=args.out / "answers.sqlite" if args.resume else None,
)  # fmt: skip
sl.save(found, args.out / "collapse_vs_readout.nc")
sl.figures.collapse_vs_readout(found).write_html(args.out / "collapse_vs_readout.html")
if "r2" in found:
    sl.figures.probe(found).write_html(args.out / "probe.html")

print("shares of right answers, of pairs with one next token, answered alike, with one right answer; R² of the probe,")
print("with random weights, of the control task; R² less the best baseline's, with the ends of its interval; share of")
print("predictions that are right; D ÷ rms(v) at the last layer, median over draws")
kept = ["accuracy", "same_argmax", "same_answer", "same_truth", "r2_y", "r2_twin_y", "r2_control_y", "gain_y"]
kept += ["gain_low_y", "gain_high_y", "probe_right_y", "verdict"]
table = found[[name for name in kept if name in found]].assign(D=found["distance"].median("seed"))
print(table.reset_coords(drop=True).to_dataframe().round(3).to_string())
for length, reason in zip(found["length"].values, found["reason"].values, strict=True):
    print(f"{length} items: {reason}")
print(f"data and figures in {args.out.resolve()}")
