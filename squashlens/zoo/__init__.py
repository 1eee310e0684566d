"""The bundled models: small, trained here, opened like any other Hugging Face folder.

`bundled()` lists them and `folder(name)` gives the path; `squashlens.load(name)` does the rest.
How a model came to be is beside it: `tokenizer` (vocabulary), `curriculum` (what it was taught),
`train` (how), `evaluate` (what it can do, written into its model card).
"""

from pathlib import Path

_HERE = Path(__file__).parent


def bundled() -> tuple[str, ...]:
    """Names of the models in the wheel, in alphabetical order."""
    return tuple(sorted(config.parent.name for config in _HERE.glob("*/config.json")))


def folder(name: str) -> Path:
    """The Hugging Face folder of a bundled model; `KeyError` for a name that is not bundled."""
    if name not in bundled():
        raise KeyError(name)
    return _HERE / name
