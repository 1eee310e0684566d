"""Run chosen tests with the oldest and with the newest dependencies that pyproject.toml allows: `make versions`.

`python -m tests.versions [--page-only] [NAME …]`: names choose environments, all by default. Each is installed by uv
into `runs/versions/NAME` without constraints.txt. pyright then reads the code as each supported Python does. What was
found is kept in `runs/versions/results.json`, and docs/versions.md is written from it: an environment that is not run
again keeps what it had. The exit code is 1 if anything failed.

PyTorch from the package index takes gigabytes on Linux; `UV_TORCH_BACKEND=cpu` lets uv choose the small build where
PyTorch's own index can be reached. Interpreters are those that uv finds, or can download.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.versions import page

ROOT = Path(__file__).parents[2]
FOLDER, PAGE = ROOT / "runs" / "versions", ROOT / "docs" / "versions.md"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# `lxt`, which comes with a torchvision, has `make compare`; a cluster has `make engines`.
EXTRAS = ("eval", "figures", "notebook", "quant", "ray", "slurm", "study", "viewers")
TOOLS = ("beartype", "hypothesis", "pytest", "pytest-timeout")
SMOKE = ("tests/test_smoke.py",)
# One family through the measurements (the golden numbers of the bundled model), results, files and figures.
CORE = (
    *SMOKE, "tests/golden/test_golden.py", "tests/test_results.py", "tests/test_files.py",
    "tests/figures/test_figures.py",
)  # fmt: skip
CHOSEN = "tiny-gemma or not test_golden"
# What each extra is for.
OF_EXTRAS = (
    *SMOKE, "tests/test_export.py", "tests/test_hosted.py::test_tasks_go_by_name",
    "tests/test_hosted.py::test_a_local_folder_answers_inspect_as_it_answers_behave",
    "tests/engine/test_quantized.py::test_measurements_equal_those_of_rounded_weights[capture]",
    "tests/study/test_store.py", "tests/maps/test_live.py",
)  # fmt: skip
INSTALLING, TESTING, READING = 1800.0, 3600.0, 3600.0  # seconds


@dataclass(frozen=True)
class Environment:
    """A Python with dependencies that uv resolves in one way, and the tests that run there."""

    name: str
    python: str
    resolution: str
    tests: tuple[str, ...]
    extras: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"


ENVIRONMENTS = (
    Environment("oldest", PYTHONS[0], "lowest-direct", CORE),
    Environment("oldest-extras", PYTHONS[0], "lowest-direct", OF_EXTRAS, EXTRAS),
    Environment("newest", PYTHONS[0], "highest", CORE),
    Environment("newest-extras", PYTHONS[0], "highest", OF_EXTRAS, EXTRAS),
    *(Environment(f"python-{python}", python, "highest", SMOKE) for python in PYTHONS[1:]),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [one.name for one in ENVIRONMENTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"environments, or pyright: {', '.join(names)}")
    parser.add_argument("--page-only", action="store_true", help="write the page from what was found before")
    options = parser.parse_args(arguments)
    unknown = sorted({*options.names} - {*names, "pyright"})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(names)}, pyright")
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [] if options.page_only else options.names or [*names, "pyright"]
    for environment in ENVIRONMENTS:
        if environment.name in chosen:
            found = {"python": environment.python} | tried(environment)
            say(environment.name, found)
            keep({environment.name: found})
    if "pyright" in chosen:
        said = {python: read_as(python) for python in PYTHONS}
        print(f"pyright: {said}", flush=True)
        keep({"pyright": said})
    held = keep({})
    PAGE.write_text(page.page(held, (ROOT / "pyproject.toml").read_text(encoding="utf-8"), EXTRAS), encoding="utf-8")
    return int(page.failed(held))


def keep(found: Mapping[str, Any]) -> dict[str, Any]:
    """Add to what was found before, in the order of the environments, and return all of it."""
    record = FOLDER / "results.json"
    held = (json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}) | found
    held = {name: held[name] for name in [*(one.name for one in ENVIRONMENTS), "pyright"] if name in held}
    record.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return held


def tried(environment: Environment) -> dict[str, Any]:
    """Install an environment and run its tests: the versions and what failed, or why it could not be had."""
    began = time.monotonic()
    for what, command in installation(environment):
        reason = run(command, INSTALLING)
        if reason:
            if what.startswith("Python"):
                print(f"  {reason}", flush=True)
                reason = "no interpreter was found, and none could be downloaded"
            return {"unavailable": f"{what}: {reason}"}
    installed = time.monotonic() - began
    listed = [uv(), "pip", "list", "--python", str(environment.interpreter), "--format", "json"]
    listed_by_uv = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    code = "import platform; print(platform.python_version())"
    python = subprocess.run([environment.interpreter, "-c", code], capture_output=True, text=True, check=True).stdout
    return {
        "python": python.strip(),
        "versions": {one["name"]: one["version"] for one in json.loads(listed_by_uv)},
        "installing": installed,
    } | tested(environment)


def installation(environment: Environment) -> list[tuple[str, list[str]]]:
    """What is run to install an environment, by name. Tools of the tests are always the newest that fit."""
    made = [uv(), "venv", "-q", "--clear", "--python", environment.python, str(environment.folder)]
    into = [uv(), "pip", "install", "-q", "--python", str(environment.interpreter)]
    own = f"{ROOT}[{','.join(environment.extras)}]" if environment.extras else str(ROOT)
    return [
        (f"Python {environment.python}", made),
        ("squashlens", [*into, "--resolution", environment.resolution, "-e", own]),
        ("tools", [*into, *TOOLS]),
    ]


def tested(environment: Environment) -> dict[str, Any]:
    """Run the tests of an environment: how many passed, what failed and why, what was skipped and why."""
    report = environment.folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(environment.interpreter), "-m", "pytest", "-q", "-m", "not slow and not cuda and not browser"]
    command += ["-k", CHOSEN, "--junit-xml", str(report), *environment.tests]
    began = time.monotonic()
    reason = run(command, TESTING, accept=(0, 1))
    seconds = time.monotonic() - began
    found = (
        outcome(report.read_text(encoding="utf-8")) if report.exists() else {"passed": 0, "failed": {}, "skipped": {}}
    )
    if reason:
        found["failed"]["pytest"] = reason
    return found | {"testing": seconds}


def outcome(xml: str) -> dict[str, Any]:
    """What pytest's report says: the number of tests that passed, the others by name with their reason."""
    passed, failed, skipped = 0, {}, {}
    for case in ElementTree.fromstring(xml).iter("testcase"):  # noqa: S314 (pytest wrote it just now)
        name = f"{case.get('classname', '')}::{case.get('name', '')}".strip(":")
        wrong, left = case.find("failure"), case.find("skipped")
        wrong = case.find("error") if wrong is None else wrong
        if wrong is not None:
            failed[name] = (wrong.get("message") or "").splitlines()[0][:200]
        elif left is not None:
            skipped[name] = left.get("message") or ""
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


def read_as(python: str) -> str:
    """What pyright says when it takes the code for one of a Python version."""
    command = [str(ROOT / ".venv" / "bin" / "pyright"), "--pythonversion", python]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=READING, check=False)
    except subprocess.TimeoutExpired:
        return f"took longer than {READING:.0f} s"
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]


def run(command: Sequence[str], seconds: float, accept: tuple[int, ...] = (0,)) -> str | None:
    """Run a program of the project's folder; `None` if it ends well, else the end of what it said."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {seconds:.0f} s"
    if done.returncode in accept:
        return None
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return " / ".join(line.strip() for line in lines[-4:])[:400] or f"exit code {done.returncode}"


def say(name: str, found: dict[str, Any]) -> None:
    print(f"{name}: {page.result(found)}", flush=True)
    for test, reason in found.get("failed", {}).items():
        print(f"  FAILED {test}: {reason}", flush=True)


def uv() -> str:
    return str(ROOT / ".venv" / "bin" / "uv")


if __name__ == "__main__":
    sys.exit(main())
