"""The same study on every engine, under kills at random: files are equal byte for byte to those without."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import squashlens as sl
from tests.study.test_running import files

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SQUASHLENS_KILLS", "40"))  # on each engine
WAIT = 300  # seconds until something must have happened
DRIVER = """
import json, sys, squashlens as sl
from squashlens.study import engines
engines.ASK = 0.5
grids, store, options = map(json.loads, sys.argv[1:])
sl.Study(grids, store=store).run(**options)
"""
Kill = Callable[[random.Random], bool]  # whether there was something to kill


@dataclass
class Killed:
    """A study that runs in a process of its own, what was killed of it, and how."""

    grids: list[dict[str, Any]]
    store: Path
    options: Mapping[str, Any]
    kills: Mapping[str, Kill] = field(
        default_factory=dict
    )  # beside workers and drivers
    workers_are: str = (
        ""  # what their command lines have; otherwise they are the driver's children
    )
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int, seed: int = 0) -> sl.Study:
        """The study after all of its cells are closed: every fourth kill is of the driver, or of another kind."""
        draw, made = random.Random(seed), sl.Study(self.grids, store=self.store)
        keys = {cell.key for cell in made.cells}
        self._start()
        try:
            while self.killed.total() < kills and len(made.store.named(keys)) < len(
                keys
            ):
                before = len(made.store.named(keys))
                self._wait(
                    lambda before=before: (
                        len(made.store.named(keys)) > before or self.driver.poll() == 0
                    )
                )
                number, kinds = self.killed.total(), ["driver", *self.kills]
                kind = kinds[number // 4 % len(kinds)] if number % 4 == 3 else "worker"
                if {
                    "driver": self._kill_driver,
                    "worker": self._kill_worker,
                    **self.kills,
                }[kind](draw):
                    self.killed[kind] += 1
            self._wait(lambda: self.driver.poll() is not None, 10 * WAIT)
            if self.driver.returncode:
                raise RuntimeError("The driver failed.")
        finally:
            for one in [*self._workers(), self.driver]:
                one.kill()
            self.driver.wait()
        return made

    def _start(self) -> None:
        words = [json.dumps(one) for one in (self.grids, str(self.store), self.options)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *words], cwd=ROOT, env=environment
        )

    def _kill_driver(self, _: random.Random) -> bool:
        self.driver.kill()
        self.driver.wait()
        self._start()
        return True

    def _kill_worker(self, draw: random.Random) -> bool:
        workers = self._workers()
        if workers:
            draw.choice(workers).kill()
        return bool(workers)

    def _workers(self) -> list[psutil.Process]:
        if self.workers_are:
            every = psutil.process_iter(["cmdline"])
            return [
                one
                for one in every
                if self.workers_are in " ".join(one.info["cmdline"] or [])
            ]
        try:
            children = psutil.Process(self.driver.pid).children()
            return [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def _wait(self, there: Callable[[], object], seconds: float = WAIT) -> None:
        end = time.monotonic() + seconds
        while not there():
            if self.driver.poll() not in (None, 0) or time.monotonic() > end:
                raise RuntimeError("The driver failed, or nothing gets done.")
            time.sleep(0.02)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, each with one CPU."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv(
        "RAY_worker_niceness", "0"
    )  # by default workers give way to every other program
    from ray.cluster_utils import Cluster

    try:
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False},
        )
    except (OSError, RuntimeError, ValueError) as error:
        pytest.skip(f"Ray does not start here: {error}")
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


PROGRAMS = ("slurmctld", "slurmd", "sinfo", "sbatch", "munged")
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A real Slurm with one node on this machine inside the block; the test is skipped, with the reason, without one.

    It needs root and Debian's slurmctld, slurmd and munge.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("Slurm's daemons need root")
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    file = folder / "slurm.conf"
    file.write_text(
        CONFIGURATION.format(host=host, folder=folder, cores=os.cpu_count())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(file))
        try:
            _start(folder, file)
            yield
        finally:
            for daemon in ("slurmd", "slurmctld"):
                pid = folder / f"{daemon}.pid"
                if pid.exists():
                    subprocess.run(["kill", pid.read_text().strip()], check=False)


def _start(folder: Path, file: Path) -> None:
    try:
        _authenticate()
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run(
                [daemon, "-f", str(file)], check=True, capture_output=True, text=True
            )
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"Slurm does not start here: {getattr(error, 'stderr', error)}")
    end = time.monotonic() + 60
    while "idle" not in _states():
        if time.monotonic() > end:
            pytest.skip(
                f"Slurm does not start here: {(folder / 'slurmctld.log').read_text()[-500:]}"
            )
        time.sleep(0.5)


def _authenticate() -> None:
    """Start munged, which signs Slurm's messages, unless it runs."""
    if (
        subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode
        == 0
    ):
        return
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge")
    subprocess.run(
        ["runuser", "-u", "munge", "munged"], check=True, capture_output=True, text=True
    )


def _states() -> str:
    return subprocess.run(
        ["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False
    ).stdout


def study_to_kill(folder: Path, options: dict[str, Any], **more: Any) -> Killed:
    """A cell that crashes by itself, cells of half a second, one that fails, and cells with a provenance.

    The first cell of half a second was computed in this process.
    """
    grids = [
        {
            "measurement": "tests.study.fakes:deadly",
            "arguments": {"notes": str(folder / "crashes")},
            "each": {"x": [0, 1]},
        },
        {
            "measurement": "tests.study.fakes:noted",
            "arguments": {"notes": str(folder / "notes"), "seconds": 0.5},
            "each": {"x": list(range(3 * KILLS))},
        },
        {"measurement": "tests.study.fakes:broken", "each": {"x": [2, 3]}},
        {
            "measurement": "synthetic.convergence",
            "arguments": {"lengths": [8, 16, 32, 64], "seeds": 2, "tail": 1.0},
            "each": {"stack": [{"encoding": "rope"}, {"depth": 2}]},
        },
    ]
    sl.Study(grids[1] | {"each": {"x": [0]}}, store=folder / "store").run()
    return Killed(grids, folder / "store", options, **more)


def require_nothing_lost(killed: Killed, folder: Path) -> None:
    """All healthy cells are done, and equal byte for byte to those of an undisturbed run; the other one crashed."""
    made = killed.run(KILLS)
    print(dict(killed.killed))
    assert killed.killed.total() == KILLS
    assert made.status()[["done", "failed"]].to_numpy().tolist() == [
        [1, 1],
        [3 * KILLS, 0],
        [1, 1],
        [2, 0],
    ]
    reasons = made.failures()["reason"].tolist()
    assert "5 workers died" in reasons[0]
    assert reasons[1:] == ["RuntimeError: no measurement of 3"]
    begun = Counter((folder / "notes").read_text().split())
    assert len(begun) == 3 * KILLS
    assert (
        begun.total() <= 3 * KILLS + 2 * KILLS + 3
    )  # a kill costs at most the cells in hand, and so does a crash
    undisturbed = sl.Study(
        [killed.grids[0] | {"each": {"x": [0]}}, *killed.grids[1:]],
        store=folder / "undisturbed",
    )
    undisturbed.run(workers=2)
    assert files(folder / "undisturbed") == files(folder / "store")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_local_study_survives_kills(tmp_path: Path) -> None:
    require_nothing_lost(study_to_kill(tmp_path, {"workers": 2}), tmp_path)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(3000)
def test_a_study_on_ray_survives_kills(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of nodes: the second leaves with its worker and its daemon, and another joins."""

    def lose_node(_: Any) -> bool:
        cluster.remove_node(cluster.second, allow_graceful=False)
        cluster.second = cluster.add_node(num_cpus=1)
        return True

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    options = {"engine": "ray", "workers": 2}
    killed = study_to_kill(
        tmp_path, options, kills={"node": lose_node}, workers_are="ray::_Remote"
    )
    require_nothing_lost(killed, tmp_path)


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.timeout(3000)
def test_a_study_on_slurm_survives_kills(tmp_path: Path) -> None:
    """Also jobs that are cancelled, and jobs that are put into the queue again on the signal of a time-out."""
    pytest.importorskip("submitit")

    def running() -> list[str]:
        words = ["squeue", "-h", "-t", "R", "-o", "%i"]
        return subprocess.run(
            words, capture_output=True, text=True, check=True
        ).stdout.split()

    def restarts(job: str) -> str:
        shown = subprocess.run(
            ["scontrol", "show", "job", job], capture_output=True, text=True, check=True
        ).stdout
        return shown.partition("Restarts=")[2].partition(" ")[0]

    def requeue(draw: Any) -> bool:
        if not (jobs := running()):
            return False
        job, end = draw.choice(jobs), time.monotonic() + 60
        before = restarts(job)
        subprocess.run(["scancel", "--signal=USR2", job], check=True)
        while restarts(job) == before and time.monotonic() < end:
            time.sleep(0.2)
        return restarts(job) != before

    def cancel(draw: Any) -> bool:
        jobs = running()
        return (
            bool(jobs)
            and subprocess.run(["scancel", draw.choice(jobs)], check=False).returncode
            == 0
        )

    options = {"engine": "slurm", "workers": 2, "resources": {"timeout_min": 60}}
    kills = {"requeued": requeue, "cancelled": cancel}
    with slurm(tmp_path / "one-node"):
        killed = study_to_kill(
            tmp_path, options, kills=kills, workers_are="submitit.core._submit"
        )
        require_nothing_lost(killed, tmp_path)
