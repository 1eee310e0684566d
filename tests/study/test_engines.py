"""The same study on Ray and on Slurm: the files are equal byte for byte to those of this process."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import squashlens as sl
from tests.study.one_node import slurm
from tests.study.test_running import files

ROOT = Path(__file__).parents[2]


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
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
@pytest.mark.ray
def test_ray_goes_on_without_a_node_and_without_a_worker(cluster: Any, tmp_path: Path) -> None:
    import threading

    notes = tmp_path / "notes"
    made = sl.Study(grids(notes, seconds=0.5)[:1], store=tmp_path / "ray")

    def spoil() -> None:
        while made.store.count() < 2:
            time.sleep(0.1)
        actors = [
            one for one in psutil.process_iter(["cmdline"]) if "ray::_Remote" in " ".join(one.info["cmdline"] or [])
        ]
        os.kill(actors[0].pid, signal.SIGKILL)
        cluster.remove_node(cluster.second)

    spoiling = threading.Thread(target=spoil)
    spoiling.start()
    assert made.run(engine="ray", workers=2)["done"].tolist() == [20]
    spoiling.join()
    counts = Counter(notes.read_text().split())
    assert len(counts) == 20
    assert sum(counts.values()) <= 22


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


@pytest.mark.slow
@pytest.mark.slurm
def test_a_job_is_requeued_on_a_signal(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    notes = tmp_path / "notes"
    with slurm(tmp_path / "one-node"):
        made = sl.Study(grids(notes, seconds=1.0)[:1], store=tmp_path / "slurm")
        driver = subprocess.Popen(
            [sys.executable, "-c", "import sys, json, squashlens as sl\n"
             "sl.Study(json.loads(sys.argv[1]), store=sys.argv[2]).run(engine='slurm')",
             __import__("json").dumps(grids(notes, seconds=1.0)[:1]), str(tmp_path / "slurm")],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            end = time.monotonic() + 120
            while made.store.count() < 2 and time.monotonic() < end:
                time.sleep(0.2)
            queue = subprocess.run(["squeue", "-h", "-o", "%i %T %r"], capture_output=True, text=True).stdout
            (line,) = queue.splitlines()  # one worker; what else there is stands in the error
            subprocess.run(["scancel", "--signal=USR2", line.split()[0]], check=True)
            assert driver.wait(timeout=300) == 0
        finally:
            driver.kill()
            driver.wait()
    assert made.status()["done"].tolist() == [20]
    counts = Counter(notes.read_text().split())
    assert sum(counts.values()) <= 21
    assert len(list((tmp_path / "slurm" / "slurm").glob("*_0_log.out"))) == 1  # one job, which ran twice
