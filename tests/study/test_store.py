"""The files of a store: whole or not at all, checked when they are read, claimed by one worker at a time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.study import places
from squashlens.study.places import Folder, claim_file
from squashlens.study.store import Store, name_of
from tests.study.fakes import square

KEY = "ab" + 30 * "0"


# With moto's server, or a real store: SQUASHLENS_STORE=s3://bucket/new python -m pytest tests/study/test_store.py
REMOTE = os.environ.get("SQUASHLENS_STORE", "memory://new")


@pytest.fixture(params=["folder", REMOTE])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path / "store" if request.param == "folder" else f"{REMOTE}/{tmp_path.name}")


def test_a_study_is_the_same_in_every_place(store: Store, tmp_path: Path) -> None:
    """Cells equal byte for byte, what failed, and rows of a scan."""
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "{text}"}}\n' for text in ("11", "", "101")))
    grids = [
        {"measurement": "tests.study.fakes:broken", "name": "areas", "each": {"x": [2, 3]}},
        {"measurement": "tests.study.fakes:size", "name": "sizes", "over": {"file": str(tmp_path / "prompts.jsonl")}},
    ]
    here, there = sl.Study(grids, store=tmp_path / "here"), sl.Study(grids, store=store.place.url)
    assert there.run().equals(here.run())
    assert there.run(retry=True).equals(here.status())
    for cell in here.cells:
        assert here.store.place.read(name_of(cell.key)) == there.store.place.read(name_of(cell.key))
    for query in ("select x, value from areas order by all", "select prompt, size, error from sizes order by row"):
        assert there.sql(query).equals(here.sql(query))


def test_a_large_result_is_stored_as_netcdf_and_comes_back(store: Store) -> None:
    large = square(2).isel(place=[0] * 200_000).drop_vars("place")
    store.keep(KEY, {}, large)
    assert store.read(KEY).header["ending"] == ".nc"
    assert store.result(KEY).identical(large)


def test_every_changed_byte_is_noticed(store: Store) -> None:
    store.keep(KEY, {"measurement": "square"}, square(3))
    whole = store.place.read(name_of(KEY))
    for place in range(0, len(whole), 7):
        store.place.write(name_of(KEY), whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.read(KEY) is None
    store.place.write(name_of(KEY), whole[:-1])
    assert not store.done([KEY])
    with pytest.raises(InputError, match="no result"):
        store.result(KEY)
    other = "cd" + KEY[2:]
    store.place.write(name_of(other), whole)
    assert store.read(other) is None, "it has the name of another cell"


def test_a_claim_is_granted_once_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "a"
    with claim_file(path) as causes:
        assert causes == []
        with claim_file(path) as other:
            assert other is None
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt), claim_file(path):
        raise KeyboardInterrupt
    assert not path.exists()


HOLDER = """
import sys, time
from pathlib import Path
from squashlens.study import places
from squashlens.study.places import claim_file
with claim_file(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def killed(path: Path, number: int) -> None:
    """A process that holds a claim gets a signal."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, number)
    holder.wait()


def test_crashes_and_memory_count_and_other_kills_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "claims" / "a", []
    kills = places._kills_for_memory() or ["this start", 0]
    for number, more in ((signal.SIGKILL, 0), (signal.SIGABRT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, 1)):
        killed(path, number)
        monkeypatch.setattr(places, "_kills_for_memory", lambda now=kills[1] + more: [kills[0], now])
        with claim_file(path) as causes:
            assert causes is not None
            found.append([cause.partition("\n")[0] for cause in causes])
            left = path.read_bytes()
        path.write_bytes(left)  # as if this process had been killed too
    crash, memory = "Fatal Python error: Aborted", "The system was out of memory and killed the worker."
    assert found == [[], [crash], [crash], [crash, memory]]


def test_a_store_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    study = sl.Study({"measurement": "tests.study.fakes:square", "arguments": {"x": 1}}, store=tmp_path / "file")
    began = time.monotonic()
    with pytest.raises((OutputError, InputError), match="file"):
        study.run()
    assert time.monotonic() - began < 5


def test_file_urls_are_folders(tmp_path: Path) -> None:
    for scheme in ("file", "local"):
        store = Store(f"{scheme}://{tmp_path / scheme}")
        assert isinstance(store.place, Folder)
        assert store.place.root == tmp_path / scheme


def test_a_bucket_is_never_created(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    made: list[str] = []
    monkeypatch.setattr(MemoryFileSystem, "makedirs", lambda _, path, **__: made.append(path))
    store = Store("memory://there/study")
    store.place.write("cells/a", b"1")
    assert made
    made.clear()
    monkeypatch.setattr(store.place, "url", "s3://there/study")
    store.place.write("cells/b", b"2")
    assert (made, store.place.read("cells/b")) == ([], b"2")


def test_what_a_remote_place_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    for method in ("cat_file", "pipe_file", "find"):
        monkeypatch.setattr(MemoryFileSystem, method, refuse)
    store = Store("memory://there/study")
    with pytest.raises(InputError, match="cannot be read: no credentials"):
        store.read(KEY)
    with pytest.raises(InputError, match="cannot be read: no credentials"):
        store.done([KEY])
    with pytest.raises(OutputError, match="no credentials"):
        store.keep(KEY, {}, square(3))


def test_a_record_of_a_failure_ends_with_a_success_and_counts_only_whole(store: Store) -> None:
    store.fail(KEY, {"reason": "why"})
    assert store.failures()[KEY]["reason"] == "why"
    store.keep(KEY, {}, square(3))
    assert store.failure(KEY) is None
    for damaged in (b'{"key": "', b'{"key": "other", "reason": "why"}'):
        store.place.write(f"failures/{KEY}.json", damaged)
        assert (store.failure(KEY), store.failures()) == (None, {})


def test_a_store_in_memory_is_for_one_process() -> None:
    study = sl.Study({"measurement": "tests.study.fakes:square", "arguments": {"x": 1}}, store="memory://one")
    with pytest.raises(InputError, match="this process only"):
        study.run(workers=2)
    assert study.run()["done"].item() == 1
