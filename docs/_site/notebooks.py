"""Execute the notebooks of docs/notebooks and keep their outputs: `python docs/_site/notebooks.py [NAME ...]`.

They run on the real Gemma, one after the other, in some minutes. A site that is built without Gemma shows what they
kept. Pictures are PNG, since an interactive figure would bring its program or ask another host for it. With `--model
smollm2-135m` they run on that model, and nothing is kept.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
KEPT = "gemma-3-270m"
# No progress bars, and no sizes and paths of this machine.
KERNEL = {"PLOTLY_RENDERER": "png", "SQUASHLENS_PROGRESS": "0", "TQDM_DISABLE": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of notebooks, all by default")
    parser.add_argument("--model", default=KEPT, help="(%(default)s)")
    args = parser.parse_args()
    os.environ.update(KERNEL)
    for file in sorted(FOLDER.glob("*.ipynb")):
        if args.names and file.stem not in args.names:
            continue
        notebook = nbformat.read(file, as_version=4)
        if args.model != KEPT:
            set_model(notebook, args.model)
        NotebookClient(
            notebook, timeout=600, record_timing=False, coalesce_streams=True
        ).execute()
        if args.model == KEPT:
            keep(notebook, file)
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB", flush=True)


def set_model(notebook: Any, name: str) -> None:
    """Put another name into the first code cell, where the model is named."""
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if f'model = "{KEPT}"' not in cell.source:
        raise ValueError(f'The first code cell has no line `model = "{KEPT}"`.')
    cell.source = cell.source.replace(f'model = "{KEPT}"', f'model = "{name}"')


def keep(notebook: Any, file: Path) -> None:
    """Write the notebook with its outputs, without what libraries say of this machine."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        outputs[:] = [kept for kept in outputs if kept.get("name") != "stderr"]
        for output in outputs:
            # A browser would prefer plotly's HTML beside it.
            if "image/png" in output.get("data", {}):
                output.data = {"image/png": output.data["image/png"]}
    nbformat.write(notebook, file)


if __name__ == "__main__":
    main()
