"""A real Slurm with one node on this machine, for tests. It needs root and Debian's slurmctld, slurmd and munge."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
    """Slurm's commands work inside the block; the test is skipped, with the reason, where they cannot."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("Slurm's daemons need root")
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    file = folder / "slurm.conf"
    file.write_text(CONFIGURATION.format(host=host, folder=folder, cores=os.cpu_count()))
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
            subprocess.run([daemon, "-f", str(file)], check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"Slurm does not start here: {getattr(error, 'stderr', error)}")
    end = time.monotonic() + 60
    while "idle" not in _states():
        if time.monotonic() > end:
            pytest.skip(f"Slurm does not start here: {(folder / 'slurmctld.log').read_text()[-500:]}")
        time.sleep(0.5)


def _authenticate() -> None:
    """Start munged, which signs Slurm's messages, unless it runs."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge")
    subprocess.run(["runuser", "-u", "munge", "munged"], check=True, capture_output=True, text=True)


def _states() -> str:
    return subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False).stdout
