"""The line `.. measurements:: FOLDER` of a page becomes the reference of the public measurements of that folder."""

import re
from typing import Any

import squashlens as sl

LINE = re.compile(r"^\.\. measurements:: (\S+)$", re.MULTILINE)


def expanded(text: str) -> str:
    """A page with its lines replaced."""
    return LINE.sub(
        lambda line: "\n\n".join(
            f".. autofunction:: {name}" for name in in_folder(line[1])
        ),
        text,
    )


def in_folder(folder: str) -> list[str]:
    """The public measurements in a folder of the package, without those that a module such as `attention_paths` has."""
    home = f"squashlens.{folder.replace('/', '.')}."
    public = {name: getattr(sl, name) for name in sl.__all__}
    return [
        name
        for name, one in public.items()
        if hasattr(one, "__measures__") and one.__module__.startswith(home)
    ]


def setup(app: Any) -> dict[str, bool]:
    app.connect(
        "source-read", lambda _, __, source: source.__setitem__(0, expanded(source[0]))
    )
    return {"parallel_read_safe": True}
