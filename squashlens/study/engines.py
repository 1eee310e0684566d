"""Start workers, show their progress, and start others in place of those that died, until every cell is closed.

The engine `local` starts processes on this machine, on its GPUs in turn. No other package is needed. Each engine starts
and stops workers, and says the state of one: None while it runs, "" when it has ended, or the reason why it died.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from squashlens import errors
from squashlens.bars import bar
from squashlens.errors import InputError, OutputError, SquashlensError
from squashlens.study.cells import Cell
from squashlens.study.store import Store, extra
from squashlens.study.work import outcome

LOOK = 0.2  # seconds between two looks at the workers
COUNT = 10  # looks between two counts of the files in the store
ERRORS = 4000  # characters of a dead worker's messages that are kept
Process = tuple["subprocess.Popen[bytes]", Any]  # with the file of its messages


def drive(
    engine: Any,
    task: Mapping[str, Any],
    workers: int,
    store: Store,
    cells: Sequence[Cell],
) -> None:
    """Run a study with some workers. A worker that dies is replaced; starts without any progress end the study."""
    crew, keys = _Crew(engine, task, workers), {cell.key for cell in cells}
    closed, starts, ended = store.named(keys), -workers, True
    try:
        with bar(
            total=len(keys), initial=len(closed), desc="cells", unit="cell"
        ) as shown:
            for turn in itertools.count():
                if turn % COUNT == 0 or ended:
                    before, closed = closed, store.named(keys)
                    shown.update(len(closed) - shown.n)
                    # By its name, a damaged file counts as closed; by its content, before the first and after the last.
                    begun = crew.fill(
                        len(keys - (closed if crew.handles else store.closed(keys)))
                    )
                    starts = begun + (starts if closed == before else 0)
                    if not crew.handles:
                        return
                    if starts > 10 + 3 * workers:
                        raise OutputError(
                            f"The workers die, and no cell gets done: {crew.died[-600:]}",
                            "Run with workers=1 to see the error; `status()` says what is done.",
                        )
                time.sleep(LOOK)
                ended = crew.dismiss()
    finally:
        engine.stop([*crew.handles.values()])


class _Crew:
    """The workers that run."""

    def __init__(self, engine: Any, task: Mapping[str, Any], workers: int) -> None:
        self.engine, self.task, self.workers = engine, task, workers
        self.handles: dict[int, Any] = {}
        self.died = "they end before their cells are done"

    def fill(self, left: int) -> int:
        """Start workers for cells that are not closed, at most one for each; how many were started."""
        missing = sorted({*range(self.workers)} - self.handles.keys())[
            : max(0, left - len(self.handles))
        ]
        self.handles |= {
            worker: self.engine.start(self.task, worker) for worker in missing
        }
        return len(missing)

    def dismiss(self) -> bool:
        """Forget workers that ended; raise the error of one that ended with an error."""
        states = {
            worker: self.engine.state(handle) for worker, handle in self.handles.items()
        }
        ended = {worker: state for worker, state in states.items() if state is not None}
        for worker, state in ended.items():
            del self.handles[worker]
            self.died = state or self.died
            if error := error_in(state):
                raise error
        return bool(ended)


def error_in(text: str) -> SquashlensError | None:
    """The error that a worker printed as its last line."""
    try:
        name, cause, remedy = json.loads(text.strip().splitlines()[-1])
        kind = getattr(errors, name)
    except (ValueError, IndexError, TypeError, AttributeError):
        return None
    return kind(cause, remedy) if name in errors.__all__ else None


class Local:
    """Workers as programs of their own, so that a script needs no `if __name__ == "__main__"`."""

    def __init__(self, device: str | None) -> None:
        self.gpus = gpus_here() if device is None else []

    def start(self, task: Mapping[str, Any], worker: int) -> Process:
        """Start a worker, on one of the GPUs if there are any."""
        environment = os.environ | {
            "OMP_NUM_THREADS": str(task["threads"]),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[worker % len(self.gpus)]
        messages = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the worker)
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "squashlens.study.work", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            env=environment,
        )
        if process.stdin is not None:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()  # and it stays open, so that the worker notices if this process ends
        return process, messages

    def state(self, handle: Process) -> str | None:
        process, messages = handle
        if process.poll() is None:
            return None
        process.communicate()
        messages.seek(0)
        text = messages.read().decode("utf-8", "replace")[-ERRORS:]
        messages.close()
        return (
            ""
            if process.returncode == 0
            else text or f"A worker ended with code {process.returncode}."
        )

    def stop(self, handles: Sequence[Process]) -> None:
        for process, messages in handles:
            process.kill()  # its claim remains, and another worker computes the cell
            process.communicate()
            messages.close()


def gpus_here() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    count = torch.cuda.device_count()
    visible = [
        name
        for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if name.strip()
    ]
    return visible[:count] or [str(number) for number in range(count)]


Actor = tuple[Any, Any]  # with its call


class Ray:
    """Workers as actors, with a GPU each if there are any; `options` are an actor's, such as a part of a GPU."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        self.ray = ray = extra("ray", 'engine="ray"', "ray")
        if (
            not ray.is_initialized()
        ):  # RAY_ADDRESS names a cluster; without it Ray starts on this machine
            try:
                ray.init(include_dashboard=False, log_to_driver=False)
            except Exception as error:  # of Ray, of the system and of gRPC
                address = os.environ.get("RAY_ADDRESS")
                remedy = (
                    f"Check that RAY_ADDRESS={address} is a running cluster"
                    if address
                    else "Free memory and disk"
                )
                reason = " ".join(str(error).split())[:400] or type(error).__name__
                raise InputError(
                    f"Ray does not start: {reason}.",
                    f"{remedy}, or use engine='local'.",
                ) from error
        most = max(
            (
                int(node["Resources"].get("GPU", 0))
                for node in ray.nodes()
                if node["Alive"]
            ),
            default=0,
        )
        usual = {
            "num_cpus": threads,
            "num_gpus": min(most, 1),
        }  # never restarted by Ray, so that `drive` sees deaths
        self.options = usual | dict(options)

    def start(self, task: Mapping[str, Any], worker: int) -> Actor:
        try:
            actor = self.ray.remote(_Remote).options(**self.options).remote()
        except (ValueError, TypeError) as error:
            raise InputError(
                f"resources=: {error}.",
                "Give options of a Ray actor, such as num_gpus.",
            ) from error
        return actor, actor.work.remote(dict(task), worker)

    def state(self, handle: Actor) -> str | None:
        actor, call = handle
        if not self.ray.wait([call], timeout=0)[0]:
            return None
        try:
            text = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            text = f"A Ray actor died: {error}"
        self.ray.kill(actor)
        return text

    def stop(self, handles: Sequence[Actor]) -> None:
        for actor, _ in handles:
            self.ray.kill(actor)


class _Remote:
    """What runs in the process of an actor."""

    def work(self, task: Mapping[str, Any], worker: int) -> str:
        return outcome(task, worker)


ASK = 5.0  # seconds between two questions to Slurm about a job
REQUEUES = 1000  # times that a job is put into the queue again after a time-out
GRACE = 4  # questions to which Slurm does not know a job, while its result may still appear on a network file system


@dataclass
class _Job:
    job: Any
    asked: float = field(default_factory=time.monotonic)
    unknown: int = 0


class Slurm:
    """Workers as jobs; `parameters` are those of submitit's executor, and say which devices a job gets."""

    def __init__(self, parameters: Mapping[str, Any], threads: int) -> None:
        self.submitit = extra("submitit", 'engine="slurm"', "slurm")
        self.parameters = {
            "name": "squashlens",
            "cpus_per_task": threads,
            "timeout_min": 240,
            **parameters,
        }

    def start(self, task: Mapping[str, Any], worker: int) -> _Job:
        folder = Path(task["store"]) / "slurm"  # seen by all nodes, as the store is
        refusals = (
            RuntimeError,
            NameError,
            TypeError,
            ValueError,
            OSError,
            self.submitit.core.utils.FailedJobError,
        )
        try:
            executor = self.submitit.AutoExecutor(
                folder=folder, cluster="slurm", slurm_max_num_timeout=REQUEUES
            )
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
            capture_output=True,
            text=True,
            check=False,
        )
        waits = asked.stdout.strip() or (
            asked.returncode and "Invalid job id" not in asked.stderr
        )
        handle.unknown = 0 if waits else handle.unknown + 1
        return (
            None
            if handle.unknown <= GRACE
            else f"The job {handle.job.job_id} ended without a result."
        )

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
