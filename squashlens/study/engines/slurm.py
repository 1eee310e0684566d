"""The engine `slurm`: one job for each worker, submitted with submitit. Jobs are workers, not cells.

So the limits of job arrays do not matter, and a time-out or pre-emption costs at most the cell in hand. Before a
time-out Slurm sends a signal, on which submitit puts the job into the queue again.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from squashlens.errors import InputError
from squashlens.study.extras import extra
from squashlens.study.work import outcome

ASK = 5.0  # seconds between two questions to Slurm about a job
REQUEUES = 1000  # times that a job is put into the queue again after a time-out
GRACE = 4  # questions to which Slurm does not know a job, while its result may still appear on a network file system


@dataclass
class _Job:
    job: Any
    asked: float = field(default_factory=time.monotonic)
    unknown: int = 0


class Slurm:
    """Workers as jobs; `parameters` are those of submitit's executor."""

    def __init__(self, parameters: Mapping[str, Any], threads: int) -> None:
        self.submitit = extra("submitit", 'engine="slurm"', "slurm")
        self.parameters = {"name": "squashlens", "cpus_per_task": threads, "timeout_min": 240, **parameters}

    def start(self, task: Mapping[str, Any], worker: int) -> _Job:
        store = str(task["store"])
        folder = Path("slurm") if "://" in store else Path(store) / "slurm"  # seen by all nodes, as the store is
        refusals = (RuntimeError, NameError, TypeError, ValueError, OSError, self.submitit.core.utils.FailedJobError)
        try:
            executor = self.submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=REQUEUES)
            executor.update_parameters(**self.parameters)
            return _Job(executor.submit(Task(dict(task), worker)))
        except refusals as error:
            raise InputError(
                f"Slurm does not take the workers: {' '.join(str(error).split())[:300]}",
                "Run this where sbatch works, and correct resources=.",
            ) from error

    def state(self, handle: _Job) -> str | None:
        if handle.job.paths.result_pickle.exists():
            error = handle.job.exception()
            return str(error)[-4000:] if error is not None else handle.job.result()
        if time.monotonic() - handle.asked < ASK:
            return None
        handle.asked = time.monotonic()
        asked = subprocess.run(  # noqa: S603
            ["squeue", "-h", "-j", str(handle.job.job_id), "-o", "%T"],  # noqa: S607
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        waits = asked.stdout.strip() or (asked.returncode and "Invalid job id" not in asked.stderr)
        handle.unknown = 0 if waits else handle.unknown + 1
        return None if handle.unknown <= GRACE else f"The job {handle.job.job_id} ended without a result."

    def stop(self, handles: Sequence[_Job]) -> None:
        for handle in handles:
            handle.job.cancel(check=False)


class Task:
    """What a job does. `checkpoint` is called by submitit before a time-out, and puts the job into the queue again."""

    def __init__(self, task: Mapping[str, Any], worker: int) -> None:
        self.task, self.worker = task, worker

    def __call__(self) -> str:
        return outcome(self.task, self.worker)

    def checkpoint(self) -> Any:
        return import_module("submitit.helpers").DelayedSubmission(self)
