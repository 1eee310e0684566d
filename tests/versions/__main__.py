"""Run chosen tests with the oldest and with the newest dependencies that pyproject.toml allows: `make versions`.

`python -m tests.versions [NAME …]`: names choose environments, all by default. Each is installed by uv
into `runs/versions/NAME` without constraints.txt. pyright then reads the code as each supported Python does. What was
found is kept in `runs/versions/results.json`, and docs/versions.md is written from it: an environment that is not run
again keeps what it had. The exit code is 1 if anything failed.

PyTorch from the package index takes gigabytes on Linux; `UV_TORCH_BACKEND=cpu` lets uv choose the small build where
PyTorch's own index can be reached. Interpreters are those that uv finds, or can download.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.programs import ROOT, printed

FOLDER, PAGE = ROOT / "runs" / "versions", ROOT / "docs" / "versions.md"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# A cluster has `make cluster`.
EXTRAS = ("cluster", "eval", "figures", "notebook", "study")
TOOLS = ("beartype", "hypothesis", "pytest", "pytest-timeout")
SMOKE = ("tests/test_smoke.py",)
# One family through the measurements (the golden numbers of the bundled model), results, files and figures.
CORE = (
    *SMOKE,
    "tests/golden/test_golden.py",
    "tests/test_results.py",
    "tests/test_files.py",
    "tests/figures/test_figures.py",
)
CHOSEN = "tiny-gemma or not test_golden"
# What each extra is for.
OF_EXTRAS = (
    *SMOKE,
    "tests/test_hosted.py::test_tasks_go_by_name",
    "tests/test_hosted.py::test_a_local_folder_answers_inspect_as_it_answers_behave",
    "tests/study/test_running.py",
    "tests/pages/maps/test_live.py",
)
UV = str(ROOT / ".venv" / "bin" / "uv")
SECONDS = 3600.0  # for each program that is run
HEAD = """# Versions that were tried

`make versions` writes this page; do not edit. It installs squashlens with the oldest and with the newest version of
every dependency that `pyproject.toml` allows, without `constraints.txt`, and runs chosen tests in each environment: a
bound, a Jacobian and a collapse; the recorded numbers of every measurement of the bundled model; results, files and
figures; and what each extra is for. For every other supported Python it runs the first of these with the newest
versions, and pyright reads the code as that Python would.
"""


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
    *(
        Environment(f"python-{python}", python, "highest", SMOKE)
        for python in PYTHONS[1:]
    ),
)


def main() -> int:
    names = [*(one.name for one in ENVIRONMENTS), "pyright"]
    chosen = sys.argv[1:] or names
    if not {*chosen} <= {*names}:
        raise SystemExit(f"Names of environments are {', '.join(names)}.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    record = FOLDER / "results.json"
    held = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for name in chosen:
        environment = next((one for one in ENVIRONMENTS if one.name == name), None)
        held[name] = (
            tried(environment)
            if environment
            else {python: read_as(python) for python in PYTHONS}
        )
        print(f"{name}: {held[name]}", flush=True)
        held = {name: held[name] for name in names if name in held}  # in this order
        record.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(
        page(held, (ROOT / "pyproject.toml").read_text(encoding="utf-8"), EXTRAS),
        encoding="utf-8",
    )
    return int(failed(held))


def tried(environment: Environment) -> dict[str, Any]:
    """Install an environment and run its tests: the versions and what failed, or why it could not be had."""
    for what, command in installation(environment):
        lines, reason = printed(command, SECONDS)
        if reason:
            return {
                "python": environment.python,
                "unavailable": f"{what}: {' / '.join(lines[-4:]) or reason}"[:400],
            }
    listed = [
        UV,
        "pip",
        "list",
        "--python",
        str(environment.interpreter),
        "--format",
        "json",
    ]
    versions = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    python = subprocess.run(
        [environment.interpreter, "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    chosen = ["-m", "not slow and not cuda and not browser", "-k", CHOSEN]
    program = [
        str(environment.interpreter),
        "-m",
        "pytest",
        "-q",
        "-rfEs",
        *chosen,
        *environment.tests,
    ]
    return {
        "python": python.split()[-1],
        "versions": {one["name"]: one["version"] for one in json.loads(versions)},
    } | outcome(*printed(program, SECONDS))


def installation(environment: Environment) -> list[tuple[str, list[str]]]:
    """What is run to install an environment, by name. Tools of the tests are always the newest that fit."""
    made = [
        UV,
        "venv",
        "-q",
        "--clear",
        "--python",
        environment.python,
        str(environment.folder),
    ]
    into = [UV, "pip", "install", "-q", "--python", str(environment.interpreter)]
    own = f"{ROOT}[{','.join(environment.extras)}]" if environment.extras else str(ROOT)
    return [
        (f"Python {environment.python}", made),
        ("squashlens", [*into, "--resolution", environment.resolution, "-e", own]),
        ("tools", [*into, *TOOLS]),
    ]


def outcome(lines: Sequence[str], reason: str) -> dict[str, Any]:
    """What pytest printed last: the counts, with the reasons of what was skipped, and a line for each failure."""
    skipped = [line.split(": ")[-1] for line in lines if line.startswith("SKIPPED")]
    ends = [
        line for line in lines if " passed" in line or " failed" in line
    ]  # libraries may print after it
    counts = (
        [*(lines or ["it printed nothing"]), *ends][-1].strip("= ").partition(" in ")[0]
    )
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        "tests": f"{counts} ({'; '.join(sorted(set(skipped)))})" if skipped else counts,
        "failures": failures
        or [f"{reason}: {' / '.join(lines[-4:])}"[:400]] * bool(reason),
    }


def read_as(python: str) -> str:
    """What pyright says when it takes the code for one of a Python version."""
    lines, _ = printed(
        [str(ROOT / ".venv" / "bin" / "pyright"), "--pythonversion", python], SECONDS
    )
    return lines[-1] if lines else "it printed nothing"


def page(held: Mapping[str, Any], pyproject: str, extras: Sequence[str]) -> str:
    """The page: environments, versions, what failed, and what pyright says."""
    tried = {name: found for name, found in held.items() if name != "pyright"}
    environments = []
    failures = []
    for name, found in tried.items():
        torch = found.get("versions", {}).get("torch", "–")
        said = found.get("tests", f"not run: {found.get('unavailable')}")
        about = {"environment": name, "Python": found["python"]}
        environments.append(about | {"PyTorch": torch, "tests": said})
        failures += [f"- **{name}**, {line}" for line in found.get("failures", [])]
    versions = []
    for name, allowed in sorted(ranges(pyproject, extras).items()):
        installed = []
        for found in tried.values():
            installed.append(found.get("versions", {}).get(canonicalize_name(name)))
        each = ", ".join(filter(None, dict.fromkeys(installed)))
        about = {"dependency": name, "range": allowed or "any", "tried": each}
        versions.append(about)
    pyright = pd.DataFrame(held.get("pyright", {}).items(), columns=["Python", "says"])
    parts = [HEAD.rstrip(), "## Environments", pd.DataFrame(environments)]
    parts += ["## Versions", pd.DataFrame(versions)]
    parts += ["## Failures", "\n".join(failures or ["None."]), "## pyright", pyright]
    texts = []
    for part in parts:
        is_table = isinstance(part, pd.DataFrame)
        texts.append(str(part.to_markdown(index=False)) if is_table else part)
    return "\n\n".join(texts) + "\n"


def failed(held: Mapping[str, Any]) -> bool:
    """Whether any test failed, or pyright found an error. A Python that cannot be had is no failure."""
    said = held.get("pyright", {}).values()
    has_errors = not all(text.startswith("0 errors") for text in said)
    return has_errors or any(found.get("failures") for found in held.values())


def ranges(pyproject: str, extras: Sequence[str]) -> dict[str, str]:
    """The range of every dependency, and of those of the extras."""
    project = tomllib.loads(pyproject)["project"]
    listed = list(project["dependencies"])
    for extra in extras:
        listed += project["optional-dependencies"][extra]
    found: dict[str, str] = {}
    for requirement in map(Requirement, listed):
        # An extra may ask for more of a dependency than the core.
        parts = [found.get(requirement.name), str(requirement.specifier)]
        found[requirement.name] = ", ".join(filter(None, parts))
    return found


if __name__ == "__main__":
    sys.exit(main())
