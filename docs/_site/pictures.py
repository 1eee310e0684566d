"""Draw the pictures of the pages again: `python docs/_site/pictures.py [NAME ...]`.

`pictures.toml` lists them. With names, only these files of `docs/images` are drawn, such as `u_shape`. Each script runs
with the options of its page, which takes up to some minutes; a browser writes the pictures.
"""

import sys
import tomllib
from pathlib import Path

import plotly.graph_objects as go
import plotly.io

import squashlens as sl

sys.path.insert(0, str(Path(__file__).parent))
from running import run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DPI = 144


def main(names: list[str]) -> None:
    wanted = tomllib.loads((HERE / "pictures.toml").read_text(encoding="utf-8"))
    for table, files in wanted.items():
        script, options = table.partition(".")[0], files.pop("options", "")
        if not names or {*files} & {*names}:
            drawn = run(ROOT / "analyses" / f"{script}.py", options)["figures"]
            figures = {one["name"]: one["figure"] for one in drawn}
            for name, figure in files.items():
                if not names or name in names:
                    keep(name, plotly.io.from_json(figures[figure]))


def keep(name: str, figure: go.Figure) -> None:
    """Write a picture and say so."""
    print(
        sl.figures.save(figure, ROOT / "docs" / "images" / f"{name}.png", dpi=DPI),
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
