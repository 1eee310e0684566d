"""The bundled models: small models trained for squashlens, stored as Hugging Face folders.

`squashlens.load(name)` loads one. `bundled()` lists their names, and `folder(name)` is the path, with the model card.
The module `curriculum` has the questions that `tiny-gemma` was taught. How both models were trained is in the folder
`training` of the repository, which is not in the wheel.
"""

from pathlib import Path

from squashlens.checks.arguments import validated
from squashlens.errors import InputError

__all__ = ["EXAMPLE_PROMPT", "bundled", "folder", "trained_length"]

HERE = Path(__file__).parent
# The default prompt of measurements; tiny-gemma answers it correctly.
EXAMPLE_PROMPT = "How many ones are in the following sequence? 110111011101 ="


def __dir__() -> list[str]:
    return [*__all__]


def bundled() -> tuple[str, ...]:
    """The names of the bundled models, in alphabetical order."""
    return tuple(sorted(config.parent.name for config in HERE.glob("*/config.json")))


@validated
def folder(name: str) -> Path:
    """The Hugging Face folder of a bundled model; an `InputError` if there is no bundled model of this name."""
    if name not in bundled():
        raise InputError(
            f"There is no bundled model {name!r}.",
            f"The bundled models are {', '.join(bundled())}.",
        )
    return HERE / name


@validated
def trained_length(name: str) -> int | None:
    """The number of digits in the longest training sequence of a bundled model, `None` for any other model."""
    from squashlens.example_models.curriculum import MAX_TRAINED

    return MAX_TRAINED if name == "tiny-gemma" else None
