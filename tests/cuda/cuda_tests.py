"""Which tests need a CUDA device, how they are started, and what pytest said of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OUTCOME = re.compile(r"^(tests/\S+?\.py::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
REASON = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py::.+?) - (.*)$")
COLLECTED = re.compile(r"^(tests/\S+?\.py::\S.*)$")


def files(root: Path) -> list[str]:
    """The files with tests that are marked `cuda`: the others are not imported, which would take a minute."""
    mark = "pytest.mark." + "cuda"
    found = (root / "tests").rglob("test_*.py")
    return sorted(path.relative_to(root).as_posix() for path in found if mark in path.read_text(encoding="utf-8"))


def command(python: str, root: Path, collect: bool) -> list[str]:
    """The call of pytest. A rehearsal collects the tests, since they cannot run."""
    told = ["--collect-only", "-q"] if collect else ["-v", "-rfE", "--tb=line"]
    return [python, "-m", "pytest", "-m", "cuda", "-p", "no:xdist", *told, *files(root)]


def read(lines: Sequence[str], collect: bool) -> dict[str, Any]:
    """The tests that passed, failed (with the reason), were skipped, or were only collected."""
    if collect:
        return {"collected": [m[1] for line in lines if (m := COLLECTED.match(line))], "passed": [], "failed": {},
                "skipped": []}  # fmt: skip
    ended = {m[1]: m[2] for line in lines if (m := OUTCOME.match(line))}
    reasons = {m[1]: m[2] for line in lines if (m := REASON.match(line))}
    failed = {
        name: reasons.get(name, how.lower()) for name, how in ended.items() if how in ("FAILED", "ERROR", "XPASS")
    }
    return {
        "collected": [],
        "passed": [name for name, how in ended.items() if how == "PASSED"],
        "failed": reasons | failed,
        "skipped": [name for name, how in ended.items() if how == "SKIPPED"],
    }
