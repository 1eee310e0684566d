"""The engine `local`: processes on this machine, one device each. No other package is needed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ERRORS = 4000  # characters of a dead worker's messages that are kept


@dataclass
class _Process:
    process: "subprocess.Popen[bytes]"
    messages: Any


class Local:
    """Workers as programs of their own, so that a script needs no `if __name__ == "__main__"`."""

    def start(self, task: Mapping[str, Any], worker: int) -> _Process:
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
        return _Process(process, messages)

    def state(self, handle: _Process) -> str | None:
        code = handle.process.poll()
        if code is None:
            return None
        handle.messages.seek(0)
        text = handle.messages.read().decode("utf-8", "replace")[-ERRORS:]
        handle.messages.close()
        return "" if code == 0 else text or f"A worker ended with code {code}."

    def stop(self, handles: Sequence[_Process]) -> None:
        for handle in handles:
            handle.process.kill()  # its claim remains, and another worker computes the cell
        for handle in handles:
            handle.process.wait()
            handle.messages.close()


def visible() -> list[str]:
    """The CUDA devices that this process sees, by the names that CUDA_VISIBLE_DEVICES has for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
