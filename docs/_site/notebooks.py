"""Execute the notebooks of docs/notebooks and keep their outputs: `python docs/_site/notebooks.py [NAME ...]`.

They run on the real Gemma, one after the other, in some minutes. A site that is built without Gemma shows what they
kept. Pictures are PNG, since an interactive figure would bring its program or ask another host for it.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
# No progress bars, and no sizes and paths of this machine.
KERNEL = {"PLOTLY_RENDERER": "png", "SQUASHLENS_PROGRESS": "0", "TQDM_DISABLE": "1"}


def main(names: list[str]) -> None:
    os.environ.update(KERNEL)
    for file in sorted(FOLDER.glob("*.ipynb")):
        if not names or file.stem in names:
            notebook = nbformat.read(file, as_version=4)
            NotebookClient(
                notebook, timeout=600, record_timing=False, coalesce_streams=True
            ).execute()
            for cell in notebook.cells:
                for output in cell.get("outputs", []):
                    if "image/png" in output.get(
                        "data", {}
                    ):  # a browser would prefer plotly's HTML beside it
                        output.data = {"image/png": output.data["image/png"]}
            nbformat.write(notebook, file)
            print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
