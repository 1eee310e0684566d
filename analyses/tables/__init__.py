"""What the longer analyses make of their results: tables, verdicts and pages."""

import re
from pathlib import Path


def run_folder(out: Path, *names: object) -> Path:
    """The folder of one run in `out`, made if it is not there: named by all that its results depend on."""
    folder = out / "-".join(re.sub(r"[^\w.-]+", "_", str(name)).strip("._") for name in names if name != "")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
