"""Shards of the tests: every file in exactly one, and about equally long."""

import json

from tests.shards import TIMES, files, measured, shards


def test_every_file_is_in_one_shard() -> None:
    times = json.loads(TIMES.read_text(encoding="utf-8"))
    for count in (1, 4, 7):
        found = shards(count, times)
        assert sorted(path for shard in found for path in shard) == files()
        assert all(found)


def test_shards_take_equally_long() -> None:
    times = {path: 1.0 + number % 7 for number, path in enumerate(files())}
    sums = [sum(times[path] for path in shard) for shard in shards(4, times)]
    assert max(sums) - min(sums) <= max(times.values())


def test_seconds_are_added_up_by_file() -> None:
    lines = ["12.00s call     tests/a.py::test_x[1::2]", "0.25s setup    tests/a.py::test_y", "3.00s call  b/b.py::b"]
    printed = "\n".join(lines)
    assert measured(printed) == {"b/b.py": 3.0, "tests/a.py": 12.2}
