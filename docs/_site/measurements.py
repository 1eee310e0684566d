"""The line `.. measurements:: FOLDER` of a page becomes the reference of the public measurements of that folder."""

import re
from pathlib import Path
from typing import Any

from squashlens.cli._verbs import PACKAGE, measurements

LINE = re.compile(r"^\.\. measurements:: (\S+)$", re.MULTILINE)


def expanded(text: str) -> str:
    """A page with its lines replaced."""
    return LINE.sub(lambda line: "\n\n".join(f".. autofunction:: {name}" for name in in_folder(line[1])), text)


def in_folder(folder: str) -> list[str]:
    """The public measurements in a folder of the package, without those that a module such as `paths` has."""
    home = PACKAGE / Path(folder)
    return [one.name for one in measurements() if home in one.source.parents and not one.where]


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", lambda _, __, source: source.__setitem__(0, expanded(source[0])))
    return {"parallel_read_safe": True}
