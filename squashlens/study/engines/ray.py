"""The engine `ray`: one actor for each worker, on a laptop, a Ray cluster, Kubernetes or Slurm.

Results go to the store and never through Ray's object store. Ray restarts an actor whose process or node was lost, and
calls it again; the cells that are done are then skipped. Scans use the same actors: Ray Data would read and write the
same Parquet files, but knows nothing of shards that were written before an interruption.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from squashlens.errors import InputError
from squashlens.study.extras import extra
from squashlens.study.work import outcome

Actor = tuple[Any, Any]  # with its call


class Ray:
    """Workers as actors, with one GPU each if the cluster has GPUs; `options` are those of an actor."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        self.ray = ray = extra("ray", 'engine="ray"', "ray")
        if not ray.is_initialized():  # RAY_ADDRESS names a cluster; without it Ray starts on this machine
            ray.init(include_dashboard=False, log_to_driver=False)
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        usual = {"num_cpus": threads, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": -1}
        self.options = usual | dict(options)

    def start(self, task: Mapping[str, Any], worker: int) -> Actor:
        try:
            actor = self.ray.remote(_Remote).options(**self.options).remote()
        except (ValueError, TypeError) as error:
            raise InputError(f"resources=: {error}.", "Give options of a Ray actor, such as num_gpus.") from error
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
