"""Where is the answer lost: from which layer on does it lead, and which attention, head or MLP helps or hurts it?

Two tasks whose answer is the next token: the first of some digits, after three worked examples, and the value at a name
in a list of pairs. Each model, number of questions and seed has a folder. A file there is measured once, until deleted.

    python analyses/answer_lost.py --model gemma-3-270m --pairs 8      # 35 minutes of one CPU core
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

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
PEOPLE = "Anna Tom Maria Peter Laura David Sarah Paul Emma Mark Julia Simon"
NAMES = PEOPLE.split()
COLOURS = "red blue green black white yellow brown pink gold silver orange"
VALUES = [f" {colour}" for colour in COLOURS.split()]
PAIRS = {*range(2, 12)}
TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()[:16]


def digits(n, rng):
    """A question for the first of n digits, its answer, and what is to be chosen from."""
    # One at a time: drawn together they would be others than those of the documented numbers.
    drawn = "".join(rng.choice("0123456789") for _ in range(n))
    form = FORMS.get(args.model, EXAMPLES)
    return form.format(drawn), drawn[0], [*"0123456789"]


def pairs(n, rng):
    """A list of n pairs that ends with one of its names, the value there, and all values in their order."""
    names = rng.sample(NAMES, n)
    values = rng.sample(VALUES, n)
    asked = rng.randrange(n)
    lines = [f"{name}:{value}\n" for name, value in zip(names, values, strict=True)]
    others = [place for place in range(n) if place != asked]
    solved = rng.sample(others, min(SOLVED.get(args.model, 0), n - 1))
    if solved:
        lines += ["\n", *[lines[place] for place in solved]]
    return "".join(lines) + f"{names[asked]}:", values[asked], values


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        digits: numbers of digits.
        pairs: numbers of pairs, none by default.
        n: questions about digits; twice as many about pairs.
        parts: each head as well, or not.
        seed: random seed of the questions.
        out: folder; by_layer.html: this run.
    """

    model: str = "tiny-gemma"
    digits: tuple[int, ...] = (1, 16, 32, 64, 48)
    pairs: tuple[int, ...] = ()
    n: int = 48
    parts: Literal["sublayers", "heads"] = "sublayers"
    seed: int = 0
    out: Path = Path("answer_lost")


args = tyro.cli(Options, description=__doc__)
if min(args.digits, default=1) < 1 or args.n < 4 or not {*args.pairs} <= PAIRS:
    raise SystemExit("Give --digits from 1, --pairs from 2 to 11, and --n from 4.")
folder = args.out / f"{args.model.replace('/', '_')}-{args.n}-{args.seed}"
folder.mkdir(parents=True, exist_ok=True)
model = sl.load(args.model)
curves = {}


def measured(kind, name, measure, **options):
    """A result of a task, from its file or measured."""
    file = folder / f"{kind}_of_{name.replace(' ', '_')}.nc"
    if not file.exists():
        sl.results.save(measure(model, **options), file)
    return sl.results.open(file)


def look_at(make, n, many, texts):
    """Measure one task, print what a sublayer repairs, and draw it."""
    name = f"{n} {make.__name__}"
    rng = random.Random(f"{make.__name__} {n} {args.seed}")
    questions = [make(n, rng) for _ in range(many)]
    prompts, answers, choices = (list(part) for part in zip(*questions, strict=True))
    asked = {"prompts": prompts, "answers": answers, "choices": choices}
    curves[name] = measured("layers", name, sl.answer_by_layer, **asked)
    effect = {"parts": args.parts, "texts": texts}
    found = measured(args.parts, name, sl.sublayer_effects, **asked, **effect)
    sublayer = found["selected_sublayer"]
    block = found["selected_block"]
    one = found.sel(half="confirm", block=block, sublayer=sublayer)
    print(f"{name}, held-out half, without {sublayer.item()} {block.item()}:")
    effects = ["wrong", "right", "repaired", "repaired_low", "repaired_high", "broken"]
    print(one[effects].to_pandas().to_string())
    nets = [variable for variable in one if str(variable).startswith("selected_net")]
    print(one[nets].to_pandas().to_string())
    above = one["above_null"].item()
    print(f"above random vectors of the same size, and shuffled answers: {above}")
    title = f"What is repaired, less what is broken, without a sublayer, {name}"
    figure = sl.figures.styled(sl.figures.of(found), title=title)
    sl.figures.save(figure, folder / f"{args.parts}_of_{name.replace(' ', '_')}.html")


for n in args.digits:
    look_at(digits, n, args.n, ())
for n in args.pairs:
    look_at(pairs, n, 2 * args.n, TEXTS)
drawn = dict([*curves.items()][:4])
sl.figures.save(sl.figures.answer_curve(drawn), folder / "by_layer.html")
