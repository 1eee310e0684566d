"""What Gemma 3 270M does of what the paper claims, beside an untrained model of the same architecture.

Each claim gets an effect over words, texts or questions, its 95 % interval and a verdict. Parts that are in the output
folder, by model, are not measured again after an interruption. All takes about 14 minutes of one CPU core.
"""

import argparse
from pathlib import Path

import squashlens as sl
from tables import run_folder
from tables.claims import claims, claims_page, question, read_claims, untrained

WORDS, LENGTHS = ["1", "0", " the", " and", " water", " blue"], [1, 4, 16, 64, 128, 256, 500, 511]
HERE, PARTS = Path(__file__).parent, ("collapse", "sensitivity", "separators", "last", "first", "lifted", "ones")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
either = parser.add_mutually_exclusive_group()
either.add_argument("--model", default="gemma-3-270m", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--quick", action="store_true", help="two words, texts and questions, up to 64 words")
either.add_argument("--saved", action="store_true", help="measure nothing: print what the documentation has")
parser.add_argument("--out", type=Path, default=Path("gemma"), help="folder for results (%(default)s)")
args = parser.parse_args()
few = 2 if args.quick else None
out = HERE.parent / "docs" / "data" if args.saved else run_folder(args.out, args.model, "quick" * args.quick)


def measure(model, part):
    if part in ("last", "first", "ones"):
        asked = {k: question(model, part, seed=k) for k in range(12)[:few]}
        how: dict = {"lengths": [1, 4, 16, 64]}
        return {part: sl.results.concat({k: sl.accuracy(model, *one, **how) for k, one in asked.items()}, "seed")}
    if part == "sensitivity":
        lines = (HERE / "texts.txt").read_text("utf-8").splitlines()
        texts = [" ".join(lines[k : k + 2]) for k in range(0, 16, 2)][:few]
        return {part: sl.sensitivity(model, texts, norm="frobenius", method="sketch")}
    n, comma = (48, ",") if part == "separators" else (LENGTHS[-1], None)
    of = {word: sl.prompts.repeated(model, word, n, separator=comma) for word in WORDS[:few]}
    if part == "separators":
        how = {"lengths": [46, 47, 48], "noise_lengths": 0, "norm": "l2", "scale": "relative"}
        each = {w: sl.separator_ablation(model, s, kinds=["delete_keep_positions"], **how) for w, s in of.items()}
        return {part: sl.results.concat({word: one.isel(layer=-1) for word, one in each.items()}, "word")}
    how = {"lengths": LENGTHS[: few and 4], "noise_lengths": 0, "keep": "residuals"}
    pairs = {word: sl.capture(model, one, **how) for word, one in of.items()}
    ways = {"collapse": {}, "square": {"norm": "l2"}, "rounded": {"round_to": "bfloat16"}, "lifted": {}}
    ways = {n: way for n, way in ways.items() if (n == "lifted") == (part == "lifted")}
    return {
        name: sl.results.concat({w: sl.collapse(model, p, **way).isel(layer=-1) for w, p in pairs.items()}, "word")
        for name, way in ways.items()
    }


for kind in () if args.saved else ("trained", "untrained"):
    model = sl.load(args.model) if kind == "trained" else untrained(sl.load(args.model))
    for part in [part for part in PARTS if not (out / f"{kind}-{part}.nc").exists()]:
        with sl.hooks.lifted_windows(model) if part == "lifted" else sl.quiet():
            for name, found in reversed(measure(model, part).items()):  # the file that says the part is there is last
                sl.results.save(found, out / f"{kind}-{name}.nc")
if not args.saved:
    claims(out).to_csv(out / "gemma_claims.csv", index=False)
print(claims_page(read_claims(out / "gemma_claims.csv"), args.model))
