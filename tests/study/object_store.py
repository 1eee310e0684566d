"""Run studies on an object store, and compare its cells with those of a folder.

    moto_server -p 5555 &                # or a real store; moto is best installed in an environment of its own
    AWS_ENDPOINT_URL=http://127.0.0.1:5555 AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b AWS_DEFAULT_REGION=us-east-1 \\
        python -m tests.study.object_store s3://bucket/new   # needs s3fs; the bucket is created if it is missing

The folder has to be new. This is a script and no test, since the tests do without s3fs and moto.
"""

import argparse
import json
import tempfile
from contextlib import suppress
from pathlib import Path

import fsspec

import squashlens as sl
from squashlens.study.storing.store import name_of

FAKE = "tests.study.fakes:"
COUNTS = ["done", "failed", "left", "failed_rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="place of the stores, such as s3://bucket/new")
    url = parser.parse_args().url.rstrip("/")
    files, root = fsspec.core.url_to_fs(url)
    with suppress(FileExistsError):
        files.mkdir(root.partition("/")[0])
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder, "prompts.jsonl")
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ["11 =", "", *5 * ["101 ="]]))
        grids = [
            {"measurement": FAKE + "square", "name": "areas", "each": {"x": list(range(6))}},
            {"measurement": FAKE + "broken", "each": {"x": [2, 3]}},
            {"measurement": "path_bound", "name": "bounds", "arguments": {"model": "tiny-gemma"},
             "over": {"file": str(prompts), "shard": 3}},
        ]  # fmt: skip
        here = sl.Study(grids, store=folder)
        here.run(progress=False)
        for workers in (1, 2):
            there = sl.Study(grids, store=f"{url}/{workers}")
            table = there.run(workers=workers, progress=False)
            require(table[COUNTS].equals(here.status()[COUNTS]), f"{workers} workers: the status is that of a folder")
            require(_cells(there) == _cells(here), f"{workers} workers: the cells are equal byte for byte")
            whole = there.store.place.read(name_of(there.cells[0].key)) or b""
            there.store.place.write(name_of(there.cells[0].key), whole[:-1])
            require(there.status()["left"].sum() == 1, "a damaged cell is noticed")
            require(there.run(progress=False)[COUNTS].equals(table[COUNTS]), "and computed again")
            require(there.run(retry=True, progress=False)[COUNTS].equals(table[COUNTS]), "what failed is tried again")
            require(there.combine("areas").equals(here.combine("areas")), "combine")
            for query in (
                "select x, value from areas order by all",
                "select row, prompt, error from bounds order by row",
            ):
                require(there.sql(query).equals(here.sql(query)), query)


def require(right: bool, what: str) -> None:
    print("right:" if right else "WRONG:", what, flush=True)
    if not right:
        raise SystemExit(1)


def _cells(study: sl.Study) -> list[bytes | None]:
    return [study.store.place.read(name_of(cell.key)) for cell in study.cells]


if __name__ == "__main__":
    main()
