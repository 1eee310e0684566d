"""How the text is put together: paragraphs once, whole documents held out, and a manifest that is right."""

import hashlib
import json
from pathlib import Path

import pytest

from training.prose import corpus
from training.prose.corpus import Source, build, read

PAGES = {
    f"page{k}.html": f"<p>This is the sentence of page number {k}, which has enough words.</p>" for k in range(300)
}
SHARED = "<p>This sentence stands on every page, and it is to be kept only once.</p>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose one package is unpacked already."""
    source = Source("tiny-doc", "a manual", "public domain", ("usr/share/doc/tiny",))
    place = tmp_path / "root" / source.folders[0]
    place.mkdir(parents=True)
    for name, text in PAGES.items():
        (place / name).write_text(text + SHARED, encoding="utf-8")
    (place / "genindex-A.html").write_text(SHARED.replace("page", "index"), encoding="utf-8")
    (tmp_path / "tiny-doc_1_all.deb").write_bytes(b"package")
    monkeypatch.setattr(corpus, "SOURCES", (source,))
    monkeypatch.setattr(corpus.subprocess, "run", lambda *args, **kwargs: None)
    return tmp_path


def test_documents_are_held_out_whole_and_paragraphs_kept_once(folder: Path) -> None:
    build(folder)
    training, held = read(folder / corpus.TRAINING), read(folder / corpus.HELD)
    assert {d.held_out for d in held} == {True}
    assert {d.held_out for d in training} == {False}
    assert len(training) + len(held) == len(PAGES)
    paragraphs = [p for d in (*training, *held) for p in d.paragraphs]
    assert len(paragraphs) == len(set(paragraphs)) == len(PAGES) + 1


def test_the_manifest_has_sizes_and_digests(folder: Path) -> None:
    build(folder)
    manifest = json.loads((folder / corpus.MANIFEST).read_text())
    row = manifest["sources"][0]
    assert row["files"] == [
        {"file": "tiny-doc_1_all.deb", "bytes": 7, "sha256": hashlib.sha256(b"package").hexdigest()}
    ]
    held = read(folder / corpus.HELD)
    assert row["held_out_bytes"] == sum(len(d.text) for d in held)
    assert row["documents"] == len(PAGES)
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
