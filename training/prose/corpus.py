"""Build the training text of tiny-prose: `python -m training.prose.corpus --out FOLDER`.

The text is the prose of documentation that Debian packages, and the King James Bible. The packages are downloaded with
`apt-get`, unpacked beside the text, and not installed. A document is an HTML page or a chapter. A paragraph that stands
in several documents is kept once, and every 50th document, chosen by the hash of its name, is held out. Fifty
sentences of the held-out documents are written to a file of their own.
"""

import argparse
import hashlib
import itertools
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from training.prose.extract import paragraphs_of

HELD_OUT = 50  # one document in so many is held out
TRAINING, HELD, MANIFEST = "training.jsonl", "held_out.jsonl", "manifest.json"
SENTENCES = "sentences.txt"


@dataclass(frozen=True)
class Source:
    """A Debian package with text: where its pages are, what they are, and on what terms they may be used."""

    package: str
    text: str
    licence: str
    folders: tuple[str, ...] = ()  # below the package's root
    helpers: tuple[str, ...] = ()  # packages that are needed to read this one


_RUST_BOOKS = (
    "book",
    "reference",
    "nomicon",
    "rust-by-example",
    "edition-guide",
    "embedded-book",
)
_RUST_BOOKS += ("unstable-book", "rustc", "rustdoc")
SOURCES = (
    Source(
        "sqlite3-doc",
        "SQLite documentation",
        "public domain",
        ("usr/share/doc/sqlite3",),
    ),
    Source(
        "postgresql-doc-15",
        "PostgreSQL manual",
        "PostgreSQL licence",
        ("usr/share/doc/postgresql-doc-15/html",),
    ),
    Source(
        "python3.11-doc",
        "Python documentation",
        "PSF licence 2",
        ("usr/share/doc/python3.11/html",),
    ),
    Source(
        "rust-doc",
        "the books of Rust",
        "MIT or Apache-2.0",
        tuple(f"usr/share/doc/rust-doc/html/{book}" for book in _RUST_BOOKS),
    ),
    Source(
        "bible-kjv-text", "King James Bible", "public domain", helpers=("bible-kjv",)
    ),
)
_LISTS = re.compile(
    r"print\.html|genindex.*|searchindex.*|py-modindex\.html"
)  # copies and indexes of other pages


@dataclass(frozen=True)
class Document:
    """A page or a chapter: the package it is from, its name in that package, and its paragraphs."""

    package: str
    name: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.paragraphs)

    @property
    def held_out(self) -> bool:
        """Whether the document is kept from training: a function of its name alone."""
        digest = hashlib.sha256(f"{self.package}/{self.name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT == 0


def unpacked(source: Source, folder: Path) -> list[dict[str, str | int]]:
    """Download a package and its helpers into `folder` and unpack them in `folder/root`; say what was unpacked."""
    files = []
    for package in (source.package, *source.helpers):
        found = sorted(folder.glob(f"{package}_*.deb"))
        if not found:
            subprocess.run(  # noqa: S603
                ["apt-get", "download", "-q", package],  # noqa: S607
                cwd=folder,
                check=True,
            )
            found = sorted(folder.glob(f"{package}_*.deb"))
        deb = found[-1]
        subprocess.run(["dpkg", "-x", deb, folder / "root"], check=True)  # noqa: S603, S607
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        files.append({"file": deb.name, "bytes": deb.stat().st_size, "sha256": digest})
    return files


def documents(source: Source, root: Path) -> Iterator[Document]:
    """The documents of an unpacked package, in the order of their names."""
    if source.package == "bible-kjv-text":
        yield from _chapters(root)
    for folder in source.folders:
        for page in sorted((root / folder).rglob("*.html")):
            if not _LISTS.fullmatch(page.name):
                text = page.read_text(encoding="utf-8", errors="replace")
                yield Document(
                    source.package,
                    str(page.relative_to(root)),
                    tuple(paragraphs_of(text)),
                )


def _chapters(root: Path) -> Iterator[Document]:
    """The chapters of the Bible as the package's own program prints them, one paragraph each, without verse numbers."""
    command = [root / "usr/bin/bible", "-f", "-p", root / "usr/lib", "Gen1:1-Rev22:21"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    verses: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if (match := re.fullmatch(r"(\w+):\d+ (.*)", line)) is not None:
            verses.setdefault(match[1], []).append(" ".join(match[2].split()))
    for chapter, text in verses.items():
        yield Document("bible-kjv-text", chapter, (" ".join(text),))


def build(out: Path) -> None:
    """Write the training text, the held-out text and their manifest into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    seen: set[bytes] = set()
    rows = []
    with (
        (out / TRAINING).open("w", encoding="utf-8") as training,
        (out / HELD).open("w", encoding="utf-8") as held,
    ):
        for source in SOURCES:
            files = unpacked(source, out)
            counts = {"documents": 0, "training_bytes": 0, "held_out_bytes": 0}
            for document in tqdm(
                documents(source, out / "root"), desc=source.package, unit="document"
            ):
                text = "\n".join(_new(document.paragraphs, seen))
                if not text:
                    continue
                line = json.dumps(
                    {"package": source.package, "name": document.name, "text": text},
                    ensure_ascii=False,
                )
                print(line, file=held if document.held_out else training)
                counts["documents"] += 1
                counts["held_out_bytes" if document.held_out else "training_bytes"] += (
                    len(text.encode())
                )
            row = {
                "package": source.package,
                "text": source.text,
                "licence": source.licence,
            }
            rows.append({**row, **counts, "files": files})
    digests = {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest()
        for name in (TRAINING, HELD)
    }
    (out / MANIFEST).write_text(
        json.dumps({"sources": rows, "sha256": digests}, indent=2) + "\n",
        encoding="utf-8",
    )
    (out / SENTENCES).write_text(
        "".join(f"{s}\n" for s in sentences(read(out / HELD))), encoding="utf-8"
    )


def sentences(held: Sequence[Document], count: int = 50) -> list[str]:
    """Up to `count` sentences of 60 to 160 characters, the first of each document before the second of any."""
    of_each = [
        [
            s
            for s in re.split(r"(?<=[.!?])\s+(?=[A-Z])", d.text)
            if 60 <= len(s) <= 160 and s.endswith(".")
        ]
        for d in held
    ]
    in_turn = (
        s for turn in itertools.zip_longest(*of_each) for s in turn if s is not None
    )
    return list(dict.fromkeys(in_turn))[:count]


def _new(paragraphs: tuple[str, ...], seen: set[bytes]) -> list[str]:
    """The paragraphs that stand in no earlier document; `seen` holds the digests of all paragraphs so far."""
    new = []
    for paragraph in paragraphs:
        digest = hashlib.sha256(paragraph.encode()).digest()
        if digest not in seen:
            seen.add(digest)
            new.append(paragraph)
    return new


def read(file: Path) -> list[Document]:
    """The documents of a file that `build` wrote."""
    lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [
        Document(line["package"], line["name"], tuple(line["text"].split("\n")))
        for line in lines
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.prose.corpus", description=__doc__
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/prose"),
        help="folder to write (%(default)s)",
    )
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
