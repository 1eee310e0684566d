"""What remedies for collapse and over-squashing buy, and what they cost, measured on the same prompts.

Windows, sinks, separators, temperatures, and attention scaled with the context or by its entropy are compared with the
unchanged model: D, Jacobian norms, right answers, and the divergence of the next token on unrelated text.

    python analyses/remedies.py --model google/gemma-2b --n 96 --text notes.txt --out remedies
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--n", type=int, default=24, help="digits in the longest sequence (%(default)s)")
parser.add_argument("--trained", type=int, default=24, help="tokens where log n has a factor of 1 (%(default)s)")
parser.add_argument("--window", type=int, default=16, help="tokens of the sliding window (%(default)s)")
parser.add_argument("--n-samples", type=int, default=8, help="sequences of each family (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="random seed of the sequences (%(default)s)")
parser.add_argument("--text", type=Path, help="file of unrelated text, a prompt in each line")
parser.add_argument("--out", type=Path, default=Path("remedies"), help="folder for data and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
comma = sl.prompts.one_token(model, ",")
families = {
    "count ones": sl.prompts.bernoulli(
        model, args.n, seed=args.seed, prefix="How many ones are in the following sequences?", suffix="="
    ),
    "first digit": sl.prompts.digits(
        model, args.n, seed=args.seed, prefix="What is the first digit in this sequence?", suffix="="
    ),
}
remedies = {
    f"window of {args.window}": sl.hooks.sliding_window(args.window),
    f"window of {args.window}, 4 sinks": sl.hooks.sliding_window(args.window, sink=4),
    "a comma after 3 digits": lambda sequence: sequence.every(3, comma),
    "temperature 0.8": sl.hooks.attention_temperature(0.8),
    "log n": sl.hooks.log_scaling("log", args.trained),
    "adaptive temperature": sl.hooks.adaptive_temperature(),
}
found = sl.compare(
    model,
    families,
    remedies,
    lengths=[args.n // 3, args.n],
    n_samples=args.n_samples,
    seed=args.seed,
    noise_lengths=1,
    answer={"count ones": lambda digits: str(digits.count("1")), "first digit": lambda digits: digits[0]},
    prompt=args.text.read_text(encoding="utf-8").splitlines() if args.text else None,
)

sl.results.save(found, args.out / "remedies.nc")
sl.figures.save(sl.figures.remedies(found), args.out / "remedies.html")
print(sl.results.table(found).to_string(float_format=lambda value: f"{value:.3g}"))
print(f"smallest p-value that {args.n_samples} samples can give: {float(found['least_p']):.3g}, ", end="")
print(f"corrected for all tests {float(found['least_p_holm']):.3g}")
print(f"largest noise floor of D: {float(found['noise_floor'].max()):.2g}; data and figure in {args.out.resolve()}")
