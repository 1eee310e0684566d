"""Which answers does a model lose if its weights, its cache or its dtype have fewer bits, and what keeps them?

Four kinds of answers: capitals, after three examples; the first of 16 digits; the value at a name in a list of four
pairs; the number of ones in a list of eight digits. Each has a right answer among choices, and a file for each change
of the model, which is measured once, until deleted. The table has a line for each. Beside them stands what people know,
the loss on prose: mean −log p of the tokens of 50 texts.

The bundled model knows 99 words, and is asked for digits alone, without prose.

    python analyses/lost_answers.py --model gemma-3-270m          # 45 minutes of one CPU core
    python analyses/lost_answers.py --model gemma-3-270m --keep --tasks first_digit --changes Q4_0
"""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
import xarray as xr
from scipy.stats import t

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
PEOPLE = "Anna Tom Maria Peter Laura David Sarah Paul Emma Mark"
NAMES = PEOPLE.split()
COLOURS = "red blue green black white yellow brown pink gold silver"
VALUES = [f" {colour}" for colour in COLOURS.split()]
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


CHANGES = ("Q4_0", "Q8_0", "bfloat16", "cache q8_0", "cache q4_0")
TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()


def loss(model: Any, text: str) -> float:
    """Mean −log p of the tokens of a text after the first, in nats."""
    ids = sl.prompts.tokenize(model, text)
    with torch.no_grad():
        return float(model(ids.to(model.cfg.device), return_type="loss"))


def prose(model: Any, other: Any, hooks: list[Any]) -> xr.Dataset:
    """Losses of both models on each text, and the mean change with a 95 % interval over texts (Student's)."""
    before = np.array([loss(model, text) for text in TEXTS])
    with sl.applied(other, *hooks) if hooks else nullcontext():
        after = np.array([loss(other, text) for text in TEXTS])
    change = after - before
    half = t.ppf(0.975, len(TEXTS) - 1) * change.std(ddof=1) / len(TEXTS) ** 0.5
    ends = {"low": change.mean() - half, "high": change.mean() + half}
    losses = (("model", "text"), np.stack([before, after]))
    return xr.Dataset({"loss": losses, "change": change.mean(), **ends})


def changed(name: str, model: Any, change: str) -> tuple[Any, list[Any]]:
    """The other model, and the hooks under which it runs."""
    if change == "bfloat16":
        return sl.load(name, dtype="bfloat16"), []
    kind, _, form = change.partition(" ")
    if kind == "cache":
        other = sl.load(name)
        return other, [sl.hooks.quantize_keys_values(form)]  # pyright: ignore[reportArgumentType]
    return sl.quantize_weights(model, kind), []  # pyright: ignore[reportArgumentType]


def answers(folder: Path, task: str, change: str, two: "Two", asked: Questions) -> Any:
    """Which answers of a task a change loses, from its file or measured."""
    file = folder / f"{task}_{change.replace(' ', '_')}.nc"
    if not file.exists():
        reference, other, hooks = two()
        with sl.applied(other, *hooks) if hooks else nullcontext():
            found = sl.compare_models(
                reference, other, asked.prompts, asked.answers, choices=asked.choices
            )
        sl.results.save(found, file)
    return sl.results.open(file).sel(group="all")


def losses(folder: Path, change: str, two: "Two") -> xr.Dataset:
    """The loss on prose under a change, from its file or measured."""
    file = folder / f"prose_{change.replace(' ', '_')}.nc"
    if not file.exists():
        prose(*two()).to_netcdf(file)
    return xr.load_dataset(file)


def keep(folder: Path, task: str, change: str, two: "Two", asked: Questions) -> None:
    """Select blocks to keep on half of the prompts, and print what they give on the other half."""
    file = folder / f"keep_{task}_{change}.nc"
    if not file.exists():
        reference, other, hooks = two()
        if hooks:
            raise SystemExit("Blocks are exchanged between models without hooks.")
        found = sl.blocks_to_keep(
            reference, other, asked.prompts, asked.answers, choices=asked.choices
        )
        sl.results.save(found, file)
    found = sl.results.open(file)
    print(f"{task}, {change}: better than chance: {found['above_null'].item()}")
    for kept in found["kept"].values:
        row = found.sel(kept=kept)
        low = float(row["right_low"])
        high = float(row["right_high"])
        share = f"{float(row['right']):.0%} [{low:.0%}, {high:.0%}] right"
        units = row["units_kept"].item()
        print(f"  {kept}: {units}: {share}, KL {float(row['mean_kl']):.2g}")


Two = Callable[[], tuple[Any, Any, list[Any]]]


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        tasks: kinds of answers, all by default.
        changes: what is done to the model.
        keep: select blocks to keep, in place of the table.
        n: prompts of a task.
        seed: random seed of the prompts.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    tasks: tuple[str, ...] = ()
    changes: tuple[str, ...] = CHANGES
    keep: bool = False
    n: int = 60
    seed: int = 0
    out: Path = Path("lost_answers")


def main() -> None:
    args = tyro.cli(Options, description=__doc__)
    is_tiny = args.model == "tiny-gemma"
    folder = args.out / f"{Path(args.model).name}-{args.n}-{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    model = sl.load(args.model)
    asked = {}
    for task in args.tasks or (OF_TINY if is_tiny else TASKS):
        asked[task] = TASKS[task](model, random.Random(f"{task} {args.seed}"), args.n)
    drawn = {}
    on_prose = {}
    print(
        "task, change: right before, after, change [95 %]; mean KL; same likeliest token"
    )
    for change in args.changes:
        # Made only if something is left to measure.
        made = cache(partial(changed, args.model, model, change))

        def two(made: Any = made) -> tuple[Any, Any, list[Any]]:
            return model, *made()

        for task in asked:
            if args.keep:
                keep(folder, task, change, two, asked[task])
                continue
            found = answers(folder, task, change, two, asked[task])
            drawn[f"{task}, {change}"] = found
            print(f"{task}, {change}: {in_short(found)}", flush=True)
        if not args.keep and not is_tiny:
            on_prose[change] = losses(folder, change, two)
    for change, found in on_prose.items():
        before, after = (float(mean) for mean in found["loss"].mean("text"))
        ends = f"[{float(found['low']):+.3f}, {float(found['high']):+.3f}]"
        moved = f"{float(found['change']):+.3f} {ends}"
        print(f"prose, {change}: loss {before:.3f}, {after:.3f}, {moved} nats a token")
    if drawn:
        sl.figures.save(sl.figures.of(drawn), folder / "lost_answers.html")


def in_short(found: Any) -> str:
    """Right answers in both models and their change, mean KL, and how often the likeliest token is the same."""
    before, after = (float(share) for share in found["right"])
    low = float(found["change_low"])
    high = float(found["change_high"])
    moved = f"{float(found['change']):+.0%} [{low:+.0%}, {high:+.0%}]"
    same = float(found["mean_same_top"])
    return (
        f"{before:.0%}, {after:.0%}, {moved}; {float(found['mean_kl']):.2g}; {same:.0%}"
    )


if __name__ == "__main__":
    main()
