"""Where is the answer lost: from which layer on does it lead, and which attention or MLP helps or hurts it?

Two tasks whose answer is the next token: the first of some digits, after three worked examples, and the value at a name
in a list of pairs. Every file in the output folder is measured once; delete it to measure it anew.

    python analyses/answer_lost.py --model gemma-3-270m --pairs 8      # 15 minutes of one CPU core
"""

import argparse
import random
from pathlib import Path

import squashlens as sl

EXAMPLES = "Digits:407. First:4\nDigits:39. First:3\nDigits:81126. First:8\nDigits:{}. First:"
FORMS = {"tiny-gemma": "What is the first digit in this sequence? {} ="}  # which knows 99 words
NAMES = ["Anna", "Tom", "Maria", "Peter", "Laura", "David", "Sarah", "Paul", "Emma", "Mark", "Julia", "Simon"]
VALUES = [" red", " blue", " green", " black", " white", " yellow", " brown", " pink", " gold", " silver", " orange"]


def digits(n, rng):
    """A question for the first of n digits, its answer, and what is to be chosen from."""
    drawn = "".join(rng.choice("0123456789") for _ in range(n))
    return FORMS.get(args.model, EXAMPLES).format(drawn), drawn[0], [*"0123456789"]


def pairs(n, rng):
    """A list of n pairs that ends with one of its names, the value there, and all values in their order."""
    names, values, asked = rng.sample(NAMES, n), rng.sample(VALUES, n), rng.randrange(n)
    lines = "".join(f"{name}:{value}\n" for name, value in zip(names, values, strict=True))
    return f"{lines}{names[asked]}:", values[asked], values


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--digits", nargs="*", type=int, default=[1, 16, 32, 64, 48], help="numbers of digits")
parser.add_argument("--pairs", nargs="*", type=int, default=[], help="numbers of pairs, none by default")
parser.add_argument("--n", type=int, default=48, help="questions about digits; twice as many about pairs (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="random seed of the questions (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("answer_lost"), help="folder for results (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
texts = (Path(__file__).parent / "texts.txt").read_text("utf-8").splitlines()[:4]

model = sl.load(args.model)
cases = [("digits", digits, n, args.n) for n in args.digits] + [("pairs", pairs, n, 2 * args.n) for n in args.pairs]
curves = {}
for name, make, n, many in cases:
    rng = random.Random(f"{name} {n} {args.seed}")
    prompts, answers, choices = [*map(list, zip(*[make(n, rng) for _ in range(many)], strict=True))]
    layers, sublayers = (args.out / f"{kind}_of_{n}_{name}.nc" for kind in ("layers", "sublayers"))
    if not layers.exists():
        sl.results.save(sl.answer_by_layer(model, prompts, answers, choices=choices), layers)
    if not sublayers.exists():
        prose = texts if make is pairs else ()
        sl.results.save(sl.sublayer_effect(model, prompts, answers, choices=choices, texts=prose), sublayers)
    curves[f"{n} {name}"], found = sl.results.open(layers), sl.results.open(sublayers)
    one = found.sel(half="confirm", block=found["selected_block"], sublayer=found["selected_sublayer"])
    repaired, low, high, broken = (one[k].item() for k in ("repaired", "repaired_low", "repaired_high", "broken"))
    print(
        f"{n} {name}: {int((found['log_odds'] > 0).sum())} of {many} right; without {one['sublayer'].item()} "
        f"{one['block'].item()}, {repaired:.2f} [{low:.2f}, {high:.2f}] of the wrong and {1 - broken:.2f} of the right"
    )
    sl.figures.save(sl.figures.of(found), args.out / "repairs.html")
sl.figures.save(sl.figures.answer_curve(dict([*curves.items()][:4])), args.out / "by_layer.html")
