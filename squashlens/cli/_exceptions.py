"""All differences between a verb and its function, each with its reason. Nothing else differs; a test compares them."""

from pathlib import Path
from typing import Any, Literal

from squashlens.zoo import EXAMPLE_PROMPT

MAKERS = ("repeated", "alternating", "bernoulli", "digits", "words", "build")
PANELS = ("figure5a", "figure5b", "figure5c", "figure5d")

# Python objects that a command line cannot pass, and what stands there instead: its type, its default, its help.
INSTEAD: dict[str, tuple[Any, Any, str]] = {
    "model": (str, "tiny-gemma", "Bundled model (tiny-gemma), local folder, or Hugging Face name."),
    "prompt": (tuple[str, ...], (EXAMPLE_PROMPT,), "Text to measure. Several texts are measured one by one."),
    "sequence": (Literal[(*MAKERS, *PANELS)], "repeated", "Function of squashlens.prompts that makes the sequence."),
    "task": (tuple[str, ...], ("taught_count_bernoulli",), "Names of tasks; `squashlens tasks` lists them."),
    "joiner": (str | None, None, "Text between two items of a task, such as ', '; the task's own if not given."),
    "answer": (
        Literal["none", "count", "first", "last"], "none",
        "Right answer to a sequence: the number of content tokens equal to --token (count), or the first or the last "
        "content token. With none, accuracy is not measured. --n-samples sequences are asked at every length, which "
        "takes minutes unless --lengths names a few.",
    ),
    "interventions": (
        tuple[str, ...], ("sliding_window(4)", "sliding_window(8)", "sliding_window(8, sink=1)"),
        "Functions of squashlens.hooks with their arguments, such as 'sliding_window(8, sink=1)'. Several that act "
        "together are joined by +.",
    ),
    "alphabet": (tuple[str, ...] | None, None, "Tokens that content is drawn from; those of --sequence if not given."),
    "out": (Path | None, None, "Also save the result to this file: .nc or .json (lossless), or .csv."),
}  # fmt: skip
INSTEAD_OF: dict[tuple[str, str], tuple[Any, Any, str]] = {  # the same for one verb
    ("squash_map", "out"): (Path, Path("map.html"), "Write the map to this .html file."),
    ("tokenization", "separator"): (
        tuple[tuple[str, str], ...], (), "Pairs: the name of a form, and the text between two repeats.",
    ),
}  # fmt: skip
# Values to start with where a function has no default, so that every verb runs without options.
START: dict[str, Any] = {
    "n": 48, "token": "1", "content": (), "separator": (",", ".", "?"), "every": (2, 3, 6),
    "lengths": (4, 8, 16, 24, 32, 40, 48, 56, 64), "seed": 0,
}  # fmt: skip
START_OF = {  # its default and its help; for the options of `load` under its name
    ("separator_ablation", "separator"): (",", "A token to insert after every --every content tokens."),
    ("path_bound", "constants"): (
        "paper",
        "Constants of the bound: paper, the printed formula with all β and σ_ψ 1; or measured, certified "
        "constants of this model at this input. Other values need Python.",
    ),
    ("load", "device"): (
        None,
        "Where the model runs; CUDA if available, else the CPU. auto, balanced, balanced_low_0 or sequential spread "
        "the blocks over several devices, as device_map does in transformers.",
    ),
}
# What --figure draws beside the first figure of a verb.
ALSO = {"bits_needed": " With --runs, draw the distance by length in each run."}
# Parameters that are no options, and why.
LEFT_OUT = {
    ("separator_ablation", "source"): "sequences that only Python can make",
    ("build", "name"): "is made from the other options",
    ("compare", "prompt"): "is for families of sequences, which only Python can give",
    ("compare", "method"): "is for families of sequences, which only Python can give",
    ("search_separators", "sequence_separator"): "the search tries separators of its own",
    ("search_separators", "sequence_every"): "the search tries periods of its own",
    ("capture", "prompt"): "is --sequence",
    ("capture", "keep"): "is what the measurement reads",
    ("squash_map", "interventions"): "is a result of compare, which only Python can pass",
    **{("capture", name): "of a prompt only" for name in ("layers", "out", "bos")},
}
# Parameters of `squashlens.prompts.build` that a function of that module sets itself.
SETS = {"digits": ("alphabet",), "figure5": ("prefix", "separator", "every", "alphabet")}
