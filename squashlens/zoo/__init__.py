"""The bundled models: small, trained here, opened like any other Hugging Face folder.

`bundled()` lists them, `folder(name)` gives the path and `summary(name)` the first line of the model card;
`squashlens.load(name)` does the rest.
How a model came to be is beside it: `tokenizer` (vocabulary), `curriculum` (what it was taught),
`train` (how), `evaluate` (what it can do, written into its model card).
"""

from pathlib import Path

from squashlens.arguments import validated
from squashlens.errors import InputError

_HERE = Path(__file__).parent
# What is measured unless another prompt is given; the bundled model can answer it.
EXAMPLE_PROMPT = "How many ones are in the following sequence? 110111011101 ="


def bundled() -> tuple[str, ...]:
    """Names of the models in the wheel, in alphabetical order."""
    return tuple(sorted(config.parent.name for config in _HERE.glob("*/config.json")))


@validated
def folder(name: str) -> Path:
    """The Hugging Face folder of a bundled model; a name that is not bundled is refused."""
    if name not in bundled():
        raise InputError(f"There is no bundled model {name!r}.", f"Bundled: {', '.join(bundled())}.")
    return _HERE / name


@validated
def summary(name: str) -> str:
    """What a bundled model is, in the one sentence its card puts first."""
    card = (folder(name) / "README.md").read_text(encoding="utf-8")
    return next(line.removeprefix("> ") for line in card.splitlines() if line.startswith("> "))


@validated
def trained_length(name: str) -> int | None:
    """Digits in the longest sequence a bundled model was trained on; `None` for any other model."""
    from squashlens.zoo.curriculum import MAX_TRAINED

    return MAX_TRAINED if name in bundled() else None
