"""What Gemma 3 270M does of what the paper claims, beside an untrained model of the same architecture.

Collapse of repeated words and its precision, separators, path bound and Jacobian along a prompt, counting and copying.
Each claim gets an effect over words, texts or questions, its 95 % interval and a verdict. Parts that are in the output
folder are not measured again, so that a run can be interrupted.

    python analyses/gemma.py --out gemma
"""

import argparse
from pathlib import Path

import squashlens as sl
from squashlens.engine.loading.random_weights import with_random_weights

WORDS = ["1", "0", " the", " and", " water", " blue"]
LENGTHS = [1, 4, 16, 64, 128, 256, 500, 511]
TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()
SHOWN = "Digits: 407. {0}: {1}\nDigits: 39. {0}: {2}\nDigits: 81126. {0}: {3}\nDigits:"
ASKED = {"last": ("Last", 7, 9, 6), "first": ("First", 4, 3, 8), "ones": ("Ones", 0, 0, 2)}
ANSWERS = {"last": lambda d: d[-1], "first": lambda d: d[0], "ones": lambda d: str(d.count("1"))}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="gemma-3-270m", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--quick", action="store_true", help="two words, texts and questions, up to 64 words")
parser.add_argument("--out", type=Path, default=Path("gemma"), help="folder for results and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
few, lengths = 2 if args.quick else None, [n for n in LENGTHS if n <= (64 if args.quick else 511)]


def pairs_of(model, lengths):
    return {w: sl.capture(model, sl.prompts.repeated(model, w, lengths[-1]), lengths=lengths) for w in WORDS[:few]}


def collapsed(model, pairs, **options):
    return sl.results.concat({w: sl.collapse(model, p, **options).isel(layer=-1) for w, p in pairs.items()}, "word")


def separators(model, word):
    commas = sl.prompts.repeated(model, word, 48, separator=",")
    norm = {"norm": "l2", "scale": "relative"}
    return sl.separator_ablation(
        model, commas, kinds=["delete_keep_positions"], lengths=[46, 47, 48], from_blocks=[0], norm=norm
    ).isel(layer=-1)


def answers(model, asked, seed):
    draw = sl.prompts.bernoulli if asked == "ones" else sl.prompts.digits
    form = {"prefix": SHOWN.format(*ASKED[asked]), "suffix": f". {ASKED[asked][0]}:"}
    return sl.accuracy(model, draw(model, 64, seed=seed, **form), ANSWERS[asked], lengths=[1, 4, 16, 64])


def measure(model, name):
    if name in ANSWERS:
        return {name: sl.results.concat({seed: answers(model, name, seed) for seed in range(12)[:few]}, "seed")}
    if name == "sensitivity":
        texts = [" ".join(TEXTS[k : k + 3]) for k in range(0, 24, 3)][:few]
        return {name: sl.sensitivity(model, texts, norm="frobenius", method="sketch")}
    if name == "separators":
        return {name: sl.results.concat({word: separators(model, word) for word in WORDS[:few]}, "word")}
    if name == "lifted":
        with sl.hooks.lifted_windows(model):
            return {name: collapsed(model, pairs_of(model, lengths[-2:]))}
    pairs = pairs_of(model, lengths)
    ways = {"collapse": {}, "square": {"norm": "l2"}, "rounded": {"round_to": "bfloat16"}}
    return {way: collapsed(model, pairs, **options) for way, options in ways.items()}
