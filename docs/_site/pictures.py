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

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from running import run

from tests.splitters import splitter

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DPI = 144
README = (
    "Over-squashing: influence of each token on the answer",
    "Collapse: distance of n ones and n + 1 ones",
)


def readme() -> go.Figure:
    """The figure of the README: influence of each token, and collapse of a sequence of ones, on the bundled model."""
    model = sl.load("tiny-gemma", progress=False)
    ones = sl.prompts.repeated(model, "1", 64)
    pairs = sl.capture(model, ones, keep="residuals", baselines=["contrast", "unrelated"])
    parts = (
        sl.figures.attribution(sl.sensitivity(model, sl.zoo.EXAMPLE_PROMPT, progress=False)),
        sl.figures.collapse_curve(sl.collapse(model, pairs), trained=48),
    )
    page = sl.figures.panels(dict(zip(README, parts, strict=True)), columns=2, share="none")
    return sl.figures.styled(page, title="", width=11.0, height=6.5)


def llama3() -> go.Figure:
    """Repeats as Llama 3 splits them, drawn with a small tokenizer that has its rule for digits and spaces."""
    forms = {"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "}
    found = sl.tokenization(splitter("threes"), 8, repeat="1", separator=forms)
    return sl.figures.splits(found, title="Llama 3: how repeats of 1 are tokenized")


OWN = {"readme": readme, "tokenization_llama3": llama3}  # pictures that no script draws


def main(names: list[str]) -> None:
    wanted = tomllib.loads((HERE / "pictures.toml").read_text(encoding="utf-8"))
    for name in OWN:
        if name in names or not names:
            keep(name, OWN[name]())
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
    print(sl.figures.save(figure, ROOT / "docs" / "images" / f"{name}.png", dpi=DPI), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
