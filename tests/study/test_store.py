"""The files of a store: whole or not at all, checked when they are read, claimed by one worker at a time."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import squashlens as sl
from squashlens.errors import InputError, OutputError
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


def test_a_result_comes_back(store: Store) -> None:
    assert store.read(KEY) is None
    store.keep(KEY, {"measurement": "square"}, square(3))
    assert store.result(KEY).identical(square(3))
    assert store.read(KEY).header["measurement"] == "square"
    assert store.done([KEY, "other"]) == {KEY}


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


def test_a_success_removes_the_failure(store: Store) -> None:
    store.fail(KEY, {"reason": "why"})
    assert store.failures()[KEY]["reason"] == "why"
    store.keep(KEY, {}, square(3))
    assert store.failure(KEY) is None


def test_a_claim_is_granted_once_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "a"
    with claim_file(path) as deaths:
        assert deaths == 0
        with claim_file(path) as other:
            assert other is None
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt), claim_file(path):
        raise KeyboardInterrupt
    assert not path.exists()


def test_a_killed_holder_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "a"
    holding = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from squashlens.study.places import claim_file
        with claim_file(Path({str(path)!r})):
            print("held", flush=True)
            time.sleep(600)
    """)
    for deaths in (1, 2):
        holder = subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with claim_file(path) as there:
                assert there is None
        finally:
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
        with claim_file(path) as found:
            assert found == deaths
            path_again = path.read_text()
        assert path_again == str(deaths + 1)
        path.write_text(str(deaths))  # as if the last worker had been killed too


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


def test_a_damaged_record_of_a_failure_is_none(store: Store) -> None:
    store.place.write(f"failures/{KEY}.json", b'{"key": "')
    assert (store.failure(KEY), store.failures()) == (None, {})
    store.place.write(f"failures/{KEY}.json", b'{"key": "other", "reason": "why"}')
    assert (store.failure(KEY), store.failures()) == (None, {})


def test_a_store_in_memory_is_for_one_process() -> None:
    study = sl.Study({"measurement": "tests.study.fakes:square", "arguments": {"x": 1}}, store="memory://one")
    with pytest.raises(InputError, match="this process only"):
        study.run(workers=2)
    assert study.run()["done"].item() == 1
