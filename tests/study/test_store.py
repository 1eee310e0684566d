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
from squashlens.study.claims import claimed
from squashlens.study.store import Store, name_of
from tests.study.fakes import square

KEY = "ab" + 30 * "0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_large_result_is_stored_as_netcdf_and_comes_back(store: Store) -> None:
    large = square(2).isel(place=[0] * 200_000).drop_vars("place")
    store.keep(KEY, {}, large)
    assert store.read(KEY).header["ending"] == ".nc"
    assert store.result(KEY).identical(large)


def test_every_changed_byte_is_noticed(store: Store) -> None:
    store.keep(KEY, {"measurement": "square"}, square(3))
    file = store.root / name_of(KEY)
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.read(KEY) is None
    file.write_bytes(whole[:-1])
    assert not store.done([KEY])
    with pytest.raises(InputError, match="no result"):
        store.result(KEY)
    other = "cd" + KEY[2:]
    store.write(name_of(other), whole)
    assert store.read(other) is None, "it has the name of another cell"


def test_a_claim_is_granted_once_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "a"
    with claimed(path) as deaths:
        assert deaths == 0
        with claimed(path) as other:
            assert other is None
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt), claimed(path):
        raise KeyboardInterrupt
    assert not path.exists()


HOLDER = """
import sys, time
from pathlib import Path
from squashlens.study.claims import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_workers_that_die_with_a_claim_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claims" / "a"
    for number in (signal.SIGKILL, signal.SIGABRT):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with claimed(path) as deaths:
            assert deaths is None
        os.kill(holder.pid, number)
        holder.wait()
    with claimed(path) as deaths:
        assert deaths == 2
    path.write_bytes(b"..")
    monkeypatch.setattr(
        "squashlens.study.claims.fcntl", None
    )  # then the bytes may be of workers that live
    with claimed(path) as deaths:
        assert deaths == 0


def test_a_store_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no folder")
    study = sl.Study(
        {"measurement": "tests.study.fakes:square", "arguments": {"x": 1}},
        store=tmp_path / "file",
    )
    began = time.monotonic()
    with pytest.raises((OutputError, InputError), match="file"):
        study.run()
    assert time.monotonic() - began < 5


def test_a_record_of_a_failure_ends_with_a_success_and_counts_only_whole(
    store: Store,
) -> None:
    store.fail(KEY, {"reason": "why"})
    assert store.failures()[KEY]["reason"] == "why"
    store.keep(KEY, {}, square(3))
    assert store.failure(KEY) is None
    for damaged in (b'{"key": "', b'{"key": "other", "reason": "why"}'):
        store.write(f"failures/{KEY}.json", damaged)
        assert (store.failure(KEY), store.failures()) == (None, {})


def test_a_url_is_no_store() -> None:
    with pytest.raises(
        InputError, match="is a URL. Give a folder that all workers see"
    ):
        sl.Study(
            {"measurement": "tests.study.fakes:square", "arguments": {"x": 1}},
            store="s3://bucket/study",
        )
