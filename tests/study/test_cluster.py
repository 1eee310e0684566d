"""Studies in several processes: kills with −9, cells that kill their workers, two runs at once, lost schedulers."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

import squashlens as sl
from squashlens.errors import InputError, SquashlensError
from squashlens.study import cluster
from squashlens.study.work import Worker
from tests.study.fakes import square, study_of

ROOT = Path(__file__).parents[2]
KILLS = 4  # a worker that starts again imports torch, which takes ten seconds
CELLS = 16
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport squashlens as sl\n"


def results(store: Path) -> dict[str, Any]:
    """The results as plain values, which compare equal if all numbers and labels do."""
    files = store.glob("results/*.nc")
    return {file.name: sl.results.open(file).to_dict() for file in files}


def slow_cells(folder: Path, n: int, seconds: float) -> dict[str, Any]:
    """A grid of n cells that take some time, and are noted in a file when they begin."""
    return {
        "measurement": "tests.study.fakes:noted",
        "arguments": {"notes": str(folder / "notes"), "seconds": seconds},
        "each": {"x": list(range(n))},
    }


def begun(folder: Path) -> list[str]:
    """The cells that have begun."""
    notes = folder / "notes"
    return notes.read_text().split() if notes.exists() else []


def wait_for(folder: Path, n: int) -> None:
    while len(begun(folder)) < n:
        time.sleep(0.05)


def in_background(function: Any, *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The processes that compute cells: multiprocessing starts them, and one that tracks what they share."""
    workers = []
    for child in process.children():
        with suppress(psutil.Error):  # it has just ended
            if "spawn_main" in " ".join(child.cmdline()):
                workers.append(child)
    return workers


def kill_now_and_then(folder: Path, kills: list[int]) -> None:
    """Kill a worker each time that two more cells have begun."""
    n_seen = 0
    while len(kills) < KILLS:
        wait_for(folder, n_seen + 2)
        workers = workers_of(psutil.Process())
        if workers:
            victim = workers[len(kills) % len(workers)]
            with suppress(psutil.Error):
                victim.kill()
                kills.append(victim.pid)
                n_seen = len(begun(folder))


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path: Path) -> None:
    """All results are equal to those of a run in this process, and a kill costs at most its cell."""
    kills: list[int] = []
    grid = slow_cells(tmp_path, CELLS, 0.3)
    study = sl.Study(grid, store=tmp_path / "killed")
    in_background(kill_now_and_then, tmp_path, kills)
    table = study.run(workers=2)
    assert len(kills) == KILLS
    assert table[["done", "failed"]].to_numpy().tolist() == [[CELLS, 0]]
    assert len(begun(tmp_path)) <= CELLS + KILLS
    sl.Study(grid, store=tmp_path / "here").run()
    assert results(tmp_path / "killed") == results(tmp_path / "here")
    assert len(results(tmp_path / "here")) == CELLS


@pytest.mark.slow
def test_a_cell_that_kills_its_workers_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "DEATHS", 1)
    notes = str(tmp_path / "notes")
    study = study_of("deadly", tmp_path / "store", {"x": range(6)}, notes=notes)
    table = study.run(workers=2)
    assert table[["done", "failed", "left"]].to_numpy().tolist() == [[5, 1, 0]]
    assert study.failures()["x"].tolist() == [1]
    deaths = len(begun(tmp_path))
    assert deaths == cluster.DEATHS + 1


SCRIPT = """
{head}
def halve(z, hook):
    return z / 2
def half(model, prompt: str, share: float):
    return sl.path_bound(model, prompt) * share
hooks = {{"none": [], "mask": sl.hooks.mask_tokens([2]), "own": ("blocks.3.attn.hook_z", halve)}}
grids = [{{"measurement": sl.path_bound, "arguments": {{"model": "tiny-gemma"}},
           "each": {{"prompt": ["11 =", "1101 ="], "hooks": hooks}}}},
         {{"measurement": half, "arguments": {{"model": "tiny-gemma", "prompt": "11 ="}},
           "each": {{"share": [0.5, 1.0]}}}}]
if __name__ == "__main__":
    study = sl.Study(grids, store={store!r})
    print(study.run(workers={workers})["done"].tolist())
"""


def script(folder: Path, workers: int) -> subprocess.CompletedProcess[str]:
    """A user's script with a hook and a measurement of their own."""
    file = folder / "script.py"
    file.write_text(
        SCRIPT.format(
            head=PROGRAM,
            store=str(folder / f"store{workers}"),
            workers=workers,
        )
    )
    return subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, cwd=folder
    )


@pytest.mark.slow
def test_hooks_and_measurements_of_a_script_are_the_same_here_and_in_workers(
    tmp_path: Path,
) -> None:
    for workers in (1, 2):
        done = script(tmp_path, workers)
        assert done.stdout.splitlines()[-1] == "[6, 2]", done.stderr
    assert results(tmp_path / "store1") == results(tmp_path / "store2")
    assert len(results(tmp_path / "store1")) == 8


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_in_one_line(tmp_path: Path) -> None:
    """A terminal sends it to all processes."""
    grid = slow_cells(tmp_path, 60, 0.5)
    run = f"sl.Study({grid!r}, store={str(tmp_path / 'store')!r}).run(workers=2)"
    file = tmp_path / "script.py"
    file.write_text(f"{PROGRAM}if __name__ == '__main__':\n    {run}\n")
    process = subprocess.Popen(
        [sys.executable, str(file)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(tmp_path, 4)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 1
    last = said.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ of 60 computed; run again to go on", last), said
    assert "Traceback" not in said
    left = sl.Study(grid, store=tmp_path / "store")
    assert left.status()["failed"].item() == 0


def started(program: str, *words: str) -> subprocess.Popen[str]:
    """A scheduler or a worker of Dask."""
    code = f"from distributed.cli.dask_{program} import main; main({[*words, '--no-dashboard']!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_a_lost_scheduler_ends_the_run_in_words_and_loses_nothing(
    tmp_path: Path,
) -> None:
    scheduler = started("scheduler", "--host", "127.0.0.1", "--port", "0")
    assert scheduler.stderr is not None
    lines = (line for line in scheduler.stderr if "Scheduler at:" in line)
    address = next(lines).split()[-1]
    worker = started("worker", address, "--nthreads", "1")
    study = sl.Study(slow_cells(tmp_path, 20, 0.5), store=tmp_path / "store")

    def kill() -> None:
        wait_for(tmp_path, 4)
        scheduler.kill()

    in_background(kill)
    try:
        with pytest.raises(SquashlensError):
            study.run(client=address)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert 3 <= study.status()["done"].item() < 20
    assert study.run()["done"].item() == 20


def test_a_worker_that_does_not_see_the_folder_or_has_other_code_is_refused(
    tmp_path: Path,
) -> None:
    def own(x: int) -> Any:
        return square(x * factor[0])

    factor = [1]
    study = study_of(own, tmp_path / "store", {"x": [1, 2]})
    worker = Worker(study.store)
    with pytest.raises(InputError):
        cluster._work(cloudpickle.dumps((worker, study.cells[0])))
    study.store.prepare()
    cluster._work(cloudpickle.dumps((worker, study.cells[0])))
    factor[0] = 3  # as if the code on the worker's machine were another
    with pytest.raises(InputError):
        worker.attempt(study.cells[1])
    assert study.status()["done"].item() == 1


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("slurmctld") is None or os.geteuid() != 0,
    reason="needs Slurm's daemons, and root",
)
def test_a_study_on_slurm_survives_a_cancelled_job(tmp_path: Path) -> None:
    """Where `sinfo` shows an idle node: `make cluster` says how one is started."""
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    nodes = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
    if "idle" not in nodes.stdout:
        pytest.skip("no node of Slurm is idle")
    study = sl.Study(slow_cells(tmp_path, 20, 0.5), store=tmp_path / "store")

    def cancel() -> None:
        wait_for(tmp_path, 4)
        running = ["squeue", "-h", "-t", "R", "-o", "%i"]
        jobs = subprocess.run(running, capture_output=True, text=True).stdout.split()
        subprocess.run(["scancel", jobs[0]], check=True)

    in_background(cancel)
    with (
        SLURMCluster(
            cores=1,
            processes=1,
            memory="1GB",
            job_cpu=1,
            job_extra_directives=["--mem=1000"],
            interface="lo",
            job_script_prologue=[f"export PYTHONPATH={ROOT}"],
            log_directory=str(tmp_path / "logs"),
        ) as made,
        Client(made) as client,
    ):
        made.adapt(minimum=2, maximum=2)
        assert study.run(client=client)["done"].item() == 20
