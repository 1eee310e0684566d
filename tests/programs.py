"""Programs that the tools of this folder run in processes of their own."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed(
    command: Sequence[str], seconds: float, hear: Callable[[str], None] = lambda line: None
) -> tuple[list[str], str]:
    """The lines that a program printed in the project's folder, and what went wrong; `hear` gets each as it comes."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    lines, late = [], threading.Event()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", process_group=0,
    ) as program:  # fmt: skip

        def stop() -> None:
            late.set()
            os.killpg(program.pid, signal.SIGKILL)  # what it started holds its output too

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            for line in program.stdout or ():
                lines.append(line.rstrip())
                hear(lines[-1])
            program.wait()
        finally:
            timer.cancel()
            if program.poll() is None:
                stop()
    if late.is_set():
        return lines, "took too long and was stopped"
    return lines, f"ended with code {program.returncode}" if program.returncode else ""
