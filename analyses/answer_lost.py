"""Where is the answer lost: from which layer on does it lead, and which attention, head or MLP helps or hurts it?

Two tasks whose answer is the next token: the first of some digits, after three worked examples, and the value at a name
in a list of pairs. Each model, number of questions and seed has a folder. A file there is measured once, until deleted.

    python analyses/answer_lost.py --model gemma-3-270m --pairs 8      # 35 minutes of one CPU core
"""

import argparse
import random
from pathlib import Path

import squashlens as sl

EXAMPLES = (
    "Digits:407. First:4\nDigits:39. First:3\nDigits:81126. First:8\nDigits:{}. First:"
)
FORMS = {
    # which knows 99 words
    "tiny-gemma": "What is the first digit in this sequence? {} =",
    # which copies, and does not choose the first
    "smollm2-135m": "Digits:407. Copy:407\nDigits:39. Copy:39\nDigits:81126. Copy:81126\nDigits:{}. Copy:",
}
SOLVED = {"smollm2-135m": 3}  # lookups that are shown after the list, before the name
NAMES = [
    "Anna",
    "Tom",
    "Maria",
    "Peter",
    "Laura",
    "David",
    "Sarah",
    "Paul",
    "Emma",
    "Mark",
    "Julia",
    "Simon",
]
VALUES = [
    " red",
    " blue",
    " green",
    " black",
    " white",
    " yellow",
    " brown",
    " pink",
    " gold",
    " silver",
    " orange",
]
TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()[:16]


def digits(
    n, rng
):  # a question for the first of n digits, its answer, and what is to be chosen from
    drawn = "".join(rng.choice("0123456789") for _ in range(n))
    return FORMS.get(args.model, EXAMPLES).format(drawn), drawn[0], [*"0123456789"]


def pairs(
    n, rng
):  # a list of n pairs that ends with one of its names, the value there, and all values in their order
    names, values, asked = rng.sample(NAMES, n), rng.sample(VALUES, n), rng.randrange(n)
    lines = [f"{a}:{b}\n" for a, b in zip(names, values, strict=True)]
    others = [place for place in range(n) if place != asked]
    solved = rng.sample(others, min(SOLVED.get(args.model, 0), n - 1))
    if solved:
        lines += ["\n", *[lines[place] for place in solved]]
    return "".join(lines) + f"{names[asked]}:", values[asked], values


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--model",
    default="tiny-gemma",
    help="bundled name, folder or Hugging Face name (%(default)s)",
)
parser.add_argument(
    "--digits",
    nargs="*",
    type=int,
    default=[1, 16, 32, 64, 48],
    help="numbers of digits",
)
parser.add_argument(
    "--pairs", nargs="*", type=int, default=[], help="numbers of pairs, none by default"
)
parser.add_argument(
    "--n",
    type=int,
    default=48,
    help="questions about digits; twice as many about pairs (%(default)s)",
)
parser.add_argument(
    "--parts",
    choices=["sublayers", "heads"],
    default="sublayers",
    help="each head as well, or not",
)
parser.add_argument(
    "--seed", type=int, default=0, help="random seed of the questions (%(default)s)"
)
parser.add_argument(
    "--out",
    type=Path,
    default="answer_lost",
    help="folder; by_layer.html: this run (%(default)s)",
)
args = parser.parse_args()
cases = [(digits, n, args.n, ()) for n in args.digits] + [
    (pairs, n, 2 * args.n, TEXTS) for n in args.pairs
]
if (
    not cases
    or min(args.digits, default=1) < 1
    or not {*args.pairs} <= {*range(2, 12)}
    or args.n < 4
):
    parser.error(
        "give numbers of --digits from 1, of --pairs from 2 to 11, or both, and --n from 4"
    )
(out := args.out / f"{args.model.replace('/', '_')}-{args.n}-{args.seed}").mkdir(
    parents=True, exist_ok=True
)
model, curves = sl.load(args.model), {}
for make, n, many, texts in cases:
    name, rng = (
        f"{n} {make.__name__}",
        random.Random(f"{make.__name__} {n} {args.seed}"),
    )
    prompts, answers, choices = [
        *map(list, zip(*[make(n, rng) for _ in range(many)], strict=True))
    ]
    effect = {"parts": args.parts, "texts": texts}
    for kind, measure, options in (
        ("layers", sl.answer_by_layer, {}),
        (args.parts, sl.sublayer_effects, effect),
    ):
        file = out / f"{kind}_of_{name.replace(' ', '_')}.nc"
        if not file.exists():
            sl.results.save(
                measure(model, prompts, answers, choices=choices, **options), file
            )
        curves.setdefault(name, found := sl.results.open(file))
    one = found.sel(
        half="confirm",
        block=found["selected_block"],
        sublayer=found["selected_sublayer"],
    )
    print(
        f"{name}, held-out half, without {one['sublayer'].item()} {one['block'].item()}:"
    )
    print(
        one[["wrong", "right", "repaired", "repaired_low", "repaired_high", "broken"]]
        .to_pandas()
        .to_string()
    )
    print(
        one[[each for each in one if str(each).startswith("selected_net")]]
        .to_pandas()
        .to_string()
    )
    print(
        f"above random vectors of the same size, and above shuffled answers: {one['above_null'].item()}"
    )
    title = f"What is repaired, less what is broken, without a sublayer, {name}"
    sl.figures.save(
        sl.figures.styled(sl.figures.of(found), title=title), file.with_suffix(".html")
    )
sl.figures.save(
    sl.figures.answer_curve(dict([*curves.items()][:4])), out / "by_layer.html"
)
