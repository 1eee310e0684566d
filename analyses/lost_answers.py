"""Which answers does a model lose if its weights, its cache or its dtype have fewer bits, and what keeps them?

Four kinds of answers: capitals, after three examples; the first of 16 digits; the value at a name in a list of four
pairs; the number of ones in a list of eight digits. Each has a right answer among choices, and a file for each change
of the model, which is measured once, until deleted. The table has a line for each.

The bundled model knows 99 words, and is asked for digits alone.

    python analyses/lost_answers.py --model gemma-3-270m          # 45 minutes of one CPU core
    python analyses/lost_answers.py --model gemma-3-270m --keep first_digit Q4_0
"""

import argparse
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import squashlens as sl


class Questions(NamedTuple):
    """Prompts of one kind, their right answers, and the choices of each."""

    prompts: list[str]
    answers: list[str]
    choices: list[list[str]]


CAPITALS = {
    "France": " Paris", "Italy": " Rome", "Spain": " Madrid", "Portugal": " Lisbon", "Greece": " Athens",
    "Austria": " Vienna", "Poland": " Warsaw", "Hungary": " Budapest", "Ireland": " Dublin", "Norway": " Oslo",
    "Sweden": " Stockholm", "Denmark": " Copenhagen", "Finland": " Helsinki", "Belgium": " Brussels",
    "Russia": " Moscow", "Ukraine": " Kiev", "Turkey": " Ankara", "Egypt": " Cairo", "Kenya": " Nairobi",
    "Ghana": " Accra", "Morocco": " Rabat", "Iran": " Tehran", "Iraq": " Baghdad", "Syria": " Damascus",
    "Lebanon": " Beirut", "Japan": " Tokyo", "China": " Beijing", "Thailand": " Bangkok", "Vietnam": " Hanoi",
    "Indonesia": " Jakarta", "Nepal": " Kathmandu", "Peru": " Lima", "Chile": " Santiago", "Cuba": " Havana",
    "Colombia": " Bogota", "Canada": " Ottawa", "Scotland": " Edinburgh", "England": " London",
    "Afghanistan": " Kabul", "Malaysia": " Kuala", "Bulgaria": " Sofia", "Romania": " Bucharest",
    "Croatia": " Zagreb", "Switzerland": " Bern", "Qatar": " Doha", "Jordan": " Amman",
}  # fmt: skip
SHOWN = "The capital of Germany is Berlin. The capital of Mexico is Mexico City. The capital of Cyprus is Nicosia. "
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
]
DIGITS = (
    "Digits:407. First:4\nDigits:39. First:3\nDigits:81126. First:8\nDigits:{}. First:"
)
ONES = (
    "Digits:0110. Ones:2\nDigits:111011. Ones:5\nDigits:0010. Ones:1\nDigits:{}. Ones:"
)
OF_TINY = {
    "first_digit": "What is the first digit in this sequence? {} =",
    "counting": "How many ones are in the following sequence? {} =",
}


def asked_of(model: Any, task: str, examples: str) -> str:
    """The form of a question: after three examples, or in the words of the bundled model."""
    is_tiny = Path(model.cfg.model_name).name == "tiny-gemma"
    return OF_TINY[task] if is_tiny else examples


def facts(model: Any, rng: random.Random, n: int) -> Questions:
    """Capitals whose first token no other capital has."""
    first: dict[int, list[str]] = {}
    for capital in CAPITALS.values():
        ids = sl.prompts.tokenize(model, SHOWN.strip() + capital)[0]
        start = len(sl.prompts.tokenize(model, SHOWN.strip())[0])
        first.setdefault(int(ids[start]), []).append(capital)
    apart = [capitals[0] for capitals in first.values() if len(capitals) == 1]
    asked = [(land, capital) for land, capital in CAPITALS.items() if capital in apart][
        :n
    ]
    prompts = [f"{SHOWN}The capital of {land} is" for land, _ in asked]
    return Questions(prompts, [capital for _, capital in asked], [apart] * len(asked))


def first_digit(model: Any, rng: random.Random, n: int) -> Questions:
    form = asked_of(model, "first_digit", DIGITS)
    texts = ["".join(rng.choices("0123456789", k=16)) for _ in range(n)]
    return Questions(
        [form.format(text) for text in texts],
        [text[0] for text in texts],
        [[*"0123456789"]] * n,
    )


def counting(model: Any, rng: random.Random, n: int) -> Questions:
    form = asked_of(model, "counting", ONES)
    texts = ["".join(rng.choices("01", k=8)) for _ in range(n)]
    texts = list(dict.fromkeys(texts))
    counts = [str(text.count("1")) for text in texts]
    return Questions(
        [form.format(text) for text in texts], counts, [[*"012345678"]] * len(texts)
    )


def value_by_name(model: Any, rng: random.Random, n: int) -> Questions:
    prompts = []
    answers = []
    choices = []
    for _ in range(n):
        names = rng.sample(NAMES, 4)
        values = rng.sample(VALUES, 4)
        place = rng.randrange(4)
        lines = [f"{name}:{value}\n" for name, value in zip(names, values, strict=True)]
        prompts.append("".join(lines) + f"{names[place]}:")
        answers.append(values[place])
        choices.append(values)
    return Questions(prompts, answers, choices)


TASKS: dict[str, Callable[..., Questions]] = {
    task.__name__: task for task in (facts, first_digit, value_by_name, counting)
}


def changed(name: str, model: Any, change: str) -> tuple[Any, list[Any]]:
    """The other model, and the hooks under which it runs."""
    if change == "bfloat16":
        return sl.load(name, dtype="bfloat16"), []
    kind, _, form = change.partition(" ")
    if kind == "cache":
        other = sl.load(name)
        return other, [sl.hooks.quantize_keys_values(form)]  # pyright: ignore[reportArgumentType]
    return sl.rounded(model, kind), []  # pyright: ignore[reportArgumentType]


def main() -> None:
    changes = ["bfloat16", "Q8_0", "Q5_0", "Q4_0", "cache q8_0", "cache q4_0"]
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--model",
        default="tiny-gemma",
        help="bundled name, folder or name on the hub (%(default)s)",
    )
    parser.add_argument(
        "--tasks",
        nargs="*",
        choices=TASKS,
        default=[],
        help="kinds of answers, all by default",
    )
    parser.add_argument("--changes", nargs="*", default=changes, help="%(default)s")
    parser.add_argument(
        "--keep",
        nargs=2,
        metavar=("TASK", "CHANGE"),
        help="select blocks to keep",
    )
    parser.add_argument(
        "--n", type=int, default=60, help="number of prompts of a task (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the prompts (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("lost_answers"), help="folder (%(default)s)"
    )
    args = parser.parse_args()
    known = OF_TINY if args.model == "tiny-gemma" else TASKS
    tasks = args.tasks or list(known)
    folder = args.out / f"{Path(args.model).name}-{args.n}-{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    model = sl.load(args.model)
    asked = {}
    for task in {*tasks, *(args.keep or [])} & {*TASKS}:
        asked[task] = TASKS[task](model, random.Random(f"{task} {args.seed}"), args.n)
    if args.keep:
        task, change = args.keep
        other, _ = changed(args.model, model, change)
        prompts, answers, choices = asked[task]
        found = sl.blocks_to_keep(model, other, prompts, answers, choices=choices)
        sl.results.save(found, folder / f"keep_{task}_{change}.nc")
        print(f"{task}, {change}: keeping counts: {found['above_null'].item()}")
        for kept in found["kept"].values:
            row = found.sel(kept=kept)
            units = row["units_kept"].item()
            share = f"{float(row['right']):.0%} right"
            print(f"  {kept}: {units}: {share}, KL {float(row['mean_kl']):.2g}")
        return
    print(
        "task, change: right before, after, change with its 95 % interval; mean KL in nats; same likeliest token"
    )
    drawn = {}
    for change in args.changes:
        other: Any = None
        hooks: list[Any] = []
        for task in tasks:
            file = folder / f"{task}_{change.replace(' ', '_')}.nc"
            if not file.exists():
                if other is None:
                    other, hooks = changed(args.model, model, change)
                prompts, answers, choices = asked[task]
                with sl.applied(other, *hooks) if hooks else nullcontext():
                    found = sl.compare_models(
                        model, other, prompts, answers, choices=choices
                    )
                sl.results.save(found, file)
            found = sl.results.open(file).sel(group="all")
            drawn[f"{task}, {change}"] = found
            before, after = (float(share) for share in found["right"])
            moved = float(found["change"])
            low = float(found["change_low"])
            high = float(found["change_high"])
            kl = float(found["mean_kl"])
            same = float(found["mean_same_top"])
            change_of_share = f"{moved:+.0%} [{low:.0%}, {high:.0%}]"
            shares = f"{before:.0%}, {after:.0%}, {change_of_share}"
            print(f"{task}, {change}: {shares}; {kl:.2g}; {same:.0%}")
    sl.figures.save(sl.figures.of(drawn), folder / "lost_answers.html")


if __name__ == "__main__":
    main()
