"""Run scripts one after the other in this process, and write what each printed and drew.

The jobs come as JSON on standard input. Importing what the scripts use takes longer than most of them, so they share a
process. Sphinx starts it, and stays free of what the scripts import.
"""

import contextlib
import io
import json
import os
import runpy
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from squashlens import figures as library


def run(script: Path, options: str) -> dict[str, Any]:
    """What a script prints, and the figures that it saves, in order."""
    figures: list[dict[str, str]] = []

    def note(figure: go.Figure, path: Path) -> None:
        figures.append({"name": path.stem, "figure": str(figure.to_json())})

    printed, start = io.StringIO(), time.perf_counter()
    save, arguments, folder = library.save, sys.argv, Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        sys.argv = [str(script), *shlex.split(options)]
        sys.path.insert(0, str(script.parent))
        library.save = note  # type: ignore[assignment]
        try:
            with (
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(io.StringIO()),
            ):  # progress bars
                runpy.run_path(str(script), run_name="__main__")
        finally:
            library.save, sys.argv = save, arguments
            sys.path.remove(str(script.parent))
            os.chdir(folder)
        text = printed.getvalue().replace(f"{Path(empty).resolve()}/", "")
    return {
        "printed": text,
        "figures": figures,
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Run each job: it names its script, its options, and the file to write."""
    for job in json.load(sys.stdin):
        print(f"running {Path(job['script']).name} {job['options']}", flush=True)
        found = run(Path(job["script"]), job["options"])
        target = Path(job["file"])
        target.with_suffix(".part").write_text(
            json.dumps({**found, "key": job["key"]}), encoding="utf-8"
        )
        os.replace(target.with_suffix(".part"), target)


if __name__ == "__main__":
    main()
