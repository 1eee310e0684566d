"""Run chosen tests with the oldest and with the newest dependencies that pyproject.toml allows: `make versions`.

`python -m tests.versions [NAME …]`: names choose environments, all by default. Each is installed by uv
into `runs/versions/NAME` without constraints.txt. pyright then reads the code as each supported Python does. What was
found is kept in `runs/versions/results.json`, and docs/versions.md is written from it: an environment that is not run
again keeps what it had. The exit code is 1 if anything failed.

PyTorch from the package index takes gigabytes on Linux; `UV_TORCH_BACKEND=cpu` lets uv choose the small build where
PyTorch's own index can be reached. Interpreters are those that uv finds, or can download.
"""

import json
import sys
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.programs import ROOT, printed

FOLDER, PAGE = ROOT / "runs" / "versions", ROOT / "docs" / "versions.md"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# A cluster has `make cluster`.
EXTRAS = ("cluster", "eval", "figures", "notebook", "study")
# Always the newest that fit.
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
BIN = ROOT / ".venv" / "bin"
SECONDS = 3600.0  # for each program that is run
HEAD = """# Versions that were tried

`make versions` writes this page; do not edit. It installs squashlens with the oldest and with the newest version of
every dependency that `pyproject.toml` allows, without `constraints.txt`, and runs chosen tests in each environment: a
bound, a Jacobian and a collapse; the recorded numbers of every measurement of the bundled model; results, files and
figures; and what each extra is for. For every other supported Python it runs the first of these with the newest
versions, and pyright reads the code as that Python would.
"""


class Environment(NamedTuple):
    """A Python with dependencies that uv resolves in one way, and the tests that run there."""

    python: str
    resolution: str
    tests: tuple[str, ...]
    extras: tuple[str, ...] = ()


ENVIRONMENTS = {
    "oldest": Environment("3.11", "lowest-direct", CORE),
    "oldest-extras": Environment("3.11", "lowest-direct", OF_EXTRAS, EXTRAS),
    "newest": Environment("3.11", "highest", CORE),
    "newest-extras": Environment("3.11", "highest", OF_EXTRAS, EXTRAS),
    "python-3.12": Environment("3.12", "highest", SMOKE),
    "python-3.13": Environment("3.13", "highest", SMOKE),
    "python-3.14": Environment("3.14", "highest", SMOKE),
}


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    record = FOLDER / "results.json"
    held = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for name in sys.argv[1:] or [*ENVIRONMENTS, "pyright"]:
        held[name] = read_as_each() if name == "pyright" else tried(name)
        print(f"{name}: {held[name]}", flush=True)
        record.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(held), encoding="utf-8")
    has_errors = not all(
        said.startswith("0 errors") for said in held.get("pyright", {}).values()
    )
    failures = [found["failures"] for found in found_in(held).values()]
    return int(has_errors or any(failures))


def found_in(held: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was found in each environment that was tried."""
    return {name: held[name] for name in ENVIRONMENTS if name in held}


def tried(name: str) -> dict[str, Any]:
    """Install an environment and run its tests: the versions and what failed, or why it could not be had."""
    python, resolution, tests, extras = ENVIRONMENTS[name]
    folder = FOLDER / name
    interpreter = str(folder / "bin" / "python")
    uv = [str(BIN / "uv")]
    into = [*uv, "pip", "install", "-q", "--python", interpreter]
    project = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    found: dict[str, Any] = {"python": python, "versions": {}, "failures": []}
    for command in (
        [*uv, "venv", "-q", "--clear", "--python", python, str(folder)],
        [*into, "--resolution", resolution, "-e", project],
        [*into, *TOOLS],
    ):
        lines, reason = printed(command, SECONDS)
        if reason:
            return found | {
                "tests": f"not run: {' / '.join(lines[-4:]) or reason}"[:400]
            }
    lines, _ = printed([interpreter, "--version"], SECONDS)
    found["python"] = lines[-1].split()[-1]
    listed = [*uv, "pip", "list", "--python", interpreter, "--format", "json"]
    lines, _ = printed(listed, SECONDS)
    for package in json.loads(lines[-1]):
        found["versions"][package["name"]] = package["version"]
    chosen = ["-m", "not slow and not cuda and not browser", "-k", CHOSEN]
    pytest = [interpreter, "-m", "pytest", "-q", "-rfE", *chosen, *tests]
    lines, reason = printed(pytest, SECONDS)
    return found | outcome(lines, reason)


def outcome(lines: list[str], reason: str) -> dict[str, Any]:
    """The counts that pytest printed, and a line for each failure. Libraries may print after it."""
    counts = [line for line in lines if " passed" in line or " failed" in line]
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if reason and not failures:
        failures = [f"{reason}: {' / '.join(lines[-4:])}"[:400]]
    last = counts[-1] if counts else "it printed no counts"
    return {"tests": last.strip("= ").partition(" in ")[0], "failures": failures}


def read_as_each() -> dict[str, str]:
    """What pyright says when it takes the code for one of each Python version."""
    said = {}
    for python in PYTHONS:
        pyright = [str(BIN / "pyright"), "--pythonversion", python]
        lines, reason = printed(pyright, SECONDS)
        said[python] = lines[-1] if lines else reason
    return said


def page(held: Mapping[str, Any]) -> str:
    """The page: environments, versions, what failed, and what pyright says."""
    environments = []
    failures = []
    for name, found in found_in(held).items():
        about = {"environment": name, "Python": found["python"]}
        torch = found["versions"].get("torch", "–")
        environments.append(about | {"PyTorch": torch, "tests": found["tests"]})
        failures += [f"- **{name}**, {line}" for line in found["failures"]]
    versions = []
    for name, allowed in sorted(ranges().items()):
        key = canonicalize_name(name)
        installed = [found["versions"].get(key) for found in found_in(held).values()]
        different = ", ".join(filter(None, dict.fromkeys(installed)))
        row = {"dependency": name, "range": allowed or "any", "tried": different}
        versions.append(row)
    pyright = pd.DataFrame(held.get("pyright", {}).items(), columns=["Python", "says"])
    parts = [HEAD.rstrip(), "## Environments", table_of(environments)]
    parts += ["## Versions", table_of(versions)]
    parts += ["## Failures", "\n".join(failures or ["None."])]
    parts += ["## pyright", table_of(pyright)]
    return "\n\n".join(parts) + "\n"


def table_of(rows: Any) -> str:
    return str(pd.DataFrame(rows).to_markdown(index=False))


def ranges() -> dict[str, str]:
    """The range of every dependency, and of those of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = list(project["dependencies"])
    for extra in EXTRAS:
        listed += project["optional-dependencies"][extra]
    found: dict[str, str] = {}
    for requirement in map(Requirement, listed):
        # An extra may ask for more of a dependency than the core.
        parts = [found.get(requirement.name), str(requirement.specifier)]
        found[requirement.name] = ", ".join(filter(None, parts))
    return found


if __name__ == "__main__":
    sys.exit(main())
