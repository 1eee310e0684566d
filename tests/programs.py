"""Programs that the tools of this folder run in processes of their own."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed(command: Sequence[str], seconds: float) -> tuple[list[str], str]:
    """The lines that a program printed in the project's folder, and what went wrong, if anything did."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(
            errors="replace"
        ).strip().splitlines(), "took too long and was stopped"
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return lines, f"ended with code {done.returncode}" if done.returncode else ""
