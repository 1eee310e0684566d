"""The engine `local`: processes on this machine, one device each. No other package is needed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

ERRORS = 4000  # characters of a dead worker's messages that are kept
Process = tuple["subprocess.Popen[bytes]", Any]  # with the file of its messages


class Local:
    """Workers as programs of their own, so that a script needs no `if __name__ == "__main__"`."""

    def start(self, task: Mapping[str, Any], worker: int) -> Process:
        """Start a worker that sees one CUDA device, if there are any and none was chosen."""
        environment = os.environ | {
            "OMP_NUM_THREADS": str(task["threads"]), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }  # fmt: skip
        if task["device"] is None and (devices := visible()):
            environment["CUDA_VISIBLE_DEVICES"] = devices[worker % len(devices)]
        messages = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the worker)
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "squashlens.study.engines.worker", str(worker)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages, env=environment,
        )  # fmt: skip
        if process.stdin is not None:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.close()
        return process, messages

    def state(self, handle: Process) -> str | None:
        process, messages = handle
        if process.poll() is None:
            return None
        messages.seek(0)
        text = messages.read().decode("utf-8", "replace")[-ERRORS:]
        messages.close()
        return "" if process.returncode == 0 else text or f"A worker ended with code {process.returncode}."

    def stop(self, handles: Sequence[Process]) -> None:
        for process, messages in handles:
            process.kill()  # its claim remains, and another worker computes the cell
            process.wait()
            messages.close()


def visible() -> list[str]:
    """The CUDA devices that this process sees, by the names that CUDA_VISIBLE_DEVICES has for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
