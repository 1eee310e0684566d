"""What was found, as a Markdown page."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAD = """# Versions that were tried

`make versions` writes this page; do not edit. It installs squashlens with the oldest and with the newest version of
every dependency that `pyproject.toml` allows, without `constraints.txt`, and runs chosen tests in each environment: a
bound, a Jacobian and a collapse; the recorded numbers of every measurement of the bundled model; results, files and
figures; and what each extra is for. For every other supported Python it runs the first of these with the newest
versions, and pyright reads the code as that Python would.
"""


def page(held: Mapping[str, Any], pyproject: str, extras: Sequence[str]) -> str:
    """The page: environments, versions, what failed, and what pyright says."""
    tried = {name: found for name, found in held.items() if name != "pyright"}
    lines = [HEAD, "## Environments", "", "| environment | Python | PyTorch | tests |", "|---|---|---|---|"]
    for name, found in tried.items():
        torch = found.get("versions", {}).get("torch", "–")
        lines.append(f"| {name} | {found['python']} | {torch} | {result(found)} |")
    lines += ["", "## Versions", "", *versions(tried, pyproject, extras)]
    lines += ["", "## Failures", ""]
    failures = [
        f"- **{name}**, `{test}`: {reason}" for name, found in tried.items() for test, reason in failures_of(found)
    ]
    lines += failures or ["None."]
    lines += ["", "## pyright", "", "| Python | what it says |", "|---|---|"]
    lines += [f"| {python} | {said} |" for python, said in held.get("pyright", {"all": "not run yet"}).items()]
    return "\n".join(lines) + "\n"


def result(found: Mapping[str, Any]) -> str:
    """The outcome of one environment in a few words."""
    if "unavailable" in found:
        return f"not run: {found['unavailable']}"
    counts = [f"{found['passed']} passed", f"{len(found['failed'])} failed"]
    reasons = sorted({reason.split(": ")[-1] for reason in found["skipped"].values()})
    if reasons:
        counts.append(f"{len(found['skipped'])} skipped ({'; '.join(reasons)})")
    return ", ".join(counts)


def failures_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(test, reason.replace("|", "\\|")) for test, reason in found.get("failed", {}).items()]


def failed(held: Mapping[str, Any]) -> bool:
    """Whether any test failed, or pyright found an error. A Python that cannot be had is no failure."""
    read = held.get("pyright", {}).values()
    tried = [found for name, found in held.items() if name != "pyright" and "unavailable" not in found]
    return any(found["failed"] or not found["passed"] for found in tried) or any(
        not said.startswith("0 errors") for said in read
    )


def ranges(pyproject: str, extras: Sequence[str]) -> dict[str, str]:
    """The range of every dependency, and of those of the extras."""
    project = tomllib.loads(pyproject)["project"]
    listed = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    found: dict[str, str] = {}
    for one in map(Requirement, listed):  # an extra may ask for more of a dependency than the core
        found[one.name] = ", ".join(filter(None, (found.get(one.name), str(one.specifier))))
    return found


def versions(tried: Mapping[str, Any], pyproject: str, extras: Sequence[str]) -> list[str]:
    """A row for each dependency: its range, and the version that each environment had."""
    had = {name: found["versions"] for name, found in tried.items() if "versions" in found}
    rows = [f"| dependency | range | {' | '.join(had)} |", f"|---|---|{'---|' * len(had)}"]
    for name, allowed in sorted(ranges(pyproject, extras).items()):
        each = [listed.get(canonicalize_name(name), "–") for listed in had.values()]
        rows.append(f"| {name} | {allowed or 'any'} | {' | '.join(each)} |")
    return rows
