"""The same study on every engine, also under kills: files are equal byte for byte to those of this process."""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import squashlens as sl
from tests.study.faults import Killed
from tests.study.one_node import slurm
from tests.study.test_running import files

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SQUASHLENS_KILLS", "40"))  # on each engine


def grids(notes: Path, seconds: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"measurement": "tests.study.fakes:noted", "arguments": {"notes": str(notes), "seconds": seconds}, "each": {
            "x": list(range(20))}},
        {"measurement": "tests.study.fakes:broken", "each": {"x": [2, 3]}},
        {"measurement": "synthetic.convergence", "arguments": {"lengths": [8, 16, 32, 64], "seeds": 2, "tail": 1.0},
         "each": {"stack": [{"encoding": "rope"}, {"depth": 2}]}},
    ]  # fmt: skip


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, each with one CPU."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default workers give way to every other program
    from ray.cluster_utils import Cluster

    try:
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    except (OSError, RuntimeError, ValueError) as error:
        pytest.skip(f"Ray does not start here: {error}")
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.ray
def test_ray_writes_the_same_files(cluster: Any, tmp_path: Path) -> None:
    """Begun by Ray, and one worker killed: its actor is restarted, and its cell is computed again."""
    notes = tmp_path / "notes"
    made = sl.Study(grids(notes), store=tmp_path / "ray")
    table = made.run(engine="ray", workers=2)
    assert table[["done", "failed"]].to_numpy().tolist() == [[20, 0], [1, 1], [2, 0]]
    assert Counter(notes.read_text().split()).most_common(1)[0][1] == 1
    here = sl.Study(grids(notes), store=tmp_path / "here")
    here.run()
    assert files(tmp_path / "here") == files(tmp_path / "ray")


@pytest.mark.slow
@pytest.mark.slurm
def test_slurm_writes_the_same_files(tmp_path: Path) -> None:
    """A study that was begun in this process is continued by a job, and a job that is killed is replaced."""
    pytest.importorskip("submitit")
    notes = tmp_path / "notes"
    with slurm(tmp_path / "one-node"):
        begun = grids(notes)
        begun[0]["each"] = {"x": [0, 1, 2]}
        sl.Study(begun, store=tmp_path / "slurm").run()
        made = sl.Study(grids(notes), store=tmp_path / "slurm")
        table = made.run(engine="slurm", workers=1, resources={"timeout_min": 5})
    assert table[["done", "failed"]].to_numpy().tolist() == [[20, 0], [1, 1], [2, 0]]
    assert set(Counter(notes.read_text().split()).values()) == {1}
    here = sl.Study(grids(notes), store=tmp_path / "here")
    here.run()
    assert files(tmp_path / "here") == files(tmp_path / "slurm")


def study_to_kill(folder: Path, options: dict[str, Any], **more: Any) -> Killed:
    """Cells of half a second, cells with a provenance, and one that crashes by itself."""
    crashing = {"measurement": "tests.study.fakes:deadly", "arguments": {"notes": str(folder / "crashes")}, "each": {
        "x": [0, 1]}}  # fmt: skip
    noted, _, convergence = grids(folder / "notes", seconds=0.5)
    noted["each"] = {"x": list(range(3 * KILLS))}
    return Killed([crashing, noted, convergence], folder / "store", options, **more)


def require_nothing_lost(killed: Killed, folder: Path) -> None:
    """All healthy cells are done, and equal byte for byte to those of an undisturbed run; the other one crashed."""
    made = killed.run(KILLS)
    print(dict(killed.killed))
    assert killed.killed.total() == KILLS
    assert made.status()[["done", "failed"]].to_numpy().tolist() == [[1, 1], [3 * KILLS, 0], [2, 0]]
    assert "Segmentation fault" in made.failures()["reason"].item()
    begun = Counter((folder / "notes").read_text().split())
    assert len(begun) == 3 * KILLS
    assert begun.total() <= 3 * KILLS + 2 * KILLS + 3  # a kill costs at most the cells in hand, and so does a crash
    undisturbed = sl.Study([killed.grids[0] | {"each": {"x": [0]}}, *killed.grids[1:]], store=folder / "undisturbed")
    undisturbed.run(workers=2)
    assert files(folder / "undisturbed") == files(folder / "store")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_local_study_survives_kills(tmp_path: Path) -> None:
    require_nothing_lost(study_to_kill(tmp_path, {"workers": 2}), tmp_path)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(3000)
def test_a_study_on_ray_survives_kills(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of nodes: the second leaves with its worker and its daemon, and another joins."""

    def lose_node(_: Any) -> bool:
        cluster.remove_node(cluster.second, allow_graceful=False)
        cluster.second = cluster.add_node(num_cpus=1)
        return True

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    options = {"engine": "ray", "workers": 2}
    killed = study_to_kill(tmp_path, options, kills={"node": lose_node}, workers_are="ray::_Remote")
    require_nothing_lost(killed, tmp_path)


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.timeout(3000)
def test_a_study_on_slurm_survives_kills(tmp_path: Path) -> None:
    """Also jobs that are cancelled, and jobs that are put into the queue again on the signal of a time-out."""
    pytest.importorskip("submitit")

    def running() -> list[str]:
        words = ["squeue", "-h", "-t", "R", "-o", "%i"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    def restarts(job: str) -> str:
        shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
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
        return bool(jobs) and subprocess.run(["scancel", draw.choice(jobs)], check=False).returncode == 0

    options = {"engine": "slurm", "workers": 2, "resources": {"timeout_min": 60}}
    kills = {"requeued": requeue, "cancelled": cancel}
    with slurm(tmp_path / "one-node"):
        killed = study_to_kill(tmp_path, options, kills=kills, workers_are="submitit.core._submit")
        require_nothing_lost(killed, tmp_path)
