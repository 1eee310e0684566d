"""The test files of one shard, so that shards take equally long.

`python -m tests.shards 1 4` prints those of the first of four.

`times.json` has the measured seconds of each file. `python -m tests.shards --measure FILE` makes it anew from what
pytest printed with `--durations=0 --durations-min=0.01`. A file that is not in it counts as an average one.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parent.parent
TIMES = Path(__file__).with_name("times.json")
LINE = re.compile(r"^(\d+\.\d+)s (?:call|setup|teardown)\s+([^:\s]+\.py)", re.MULTILINE)


def files() -> list[str]:
    """All files that have tests or doctests of the default run."""
    tests = (ROOT / "tests").rglob("test_*.py")
    documented = (path for path in (ROOT / "squashlens").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
    return sorted(path.relative_to(ROOT).as_posix() for path in (*tests, *documented))


def shards(count: int, seconds: dict[str, float]) -> list[list[str]]:
    """Files in shards of about equal time: the slowest file first, each to the shard that has the least so far."""
    usual = mean(seconds.values()) if seconds else 1.0
    found: list[list[str]] = [[] for _ in range(count)]
    taken = [0.0] * count
    for path in sorted(files(), key=lambda one: -seconds.get(one, usual)):
        least = taken.index(min(taken))
        found[least].append(path)
        taken[least] += seconds.get(path, usual)
    return found


def measured(printed: str) -> dict[str, float]:
    """The seconds of each file, from pytest's list of durations.

    >>> measured("2.50s call     tests/test_a.py::test_b\\n0.50s setup    tests/test_a.py::test_b")
    {'tests/test_a.py': 3.0}
    """
    total: Counter[str] = Counter()
    for seconds, path in LINE.findall(printed):
        total[path] += float(seconds)
    return {path: round(seconds, 1) for path, seconds in sorted(total.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shard", type=int, nargs="?", help="number of the shard, from 1")
    parser.add_argument("count", type=int, nargs="?", help="number of shards")
    parser.add_argument("--measure", type=Path, help="output of pytest with durations, to make times.json from")
    given = parser.parse_args()
    if given.measure:
        times = measured(given.measure.read_text(encoding="utf-8"))
        TIMES.write_text(json.dumps(times, indent=0) + "\n", encoding="utf-8")
        return
    if given.shard is None or given.count is None or not 1 <= given.shard <= given.count:
        parser.error("give the number of a shard and how many there are, such as 1 4")
    print(*shards(given.count, json.loads(TIMES.read_text(encoding="utf-8")))[given.shard - 1])


if __name__ == "__main__":
    main()
