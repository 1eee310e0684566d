"""What others cite: the paper, its bibliography, CITATION.cff and the package agree."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_the_paper_cites_what_is_in_its_bibliography() -> None:
    text = (ROOT / "paper.md").read_text(encoding="utf-8")
    head, body = text.split("---\n", 2)[1:]
    keys = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"@(\w+)", body)) == keys
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    paper = yaml.safe_load(head)
    assert [one["name"] for one in paper["authors"]] == [one["name"] for one in cited["authors"]]
    assert [one["name"] for one in package["authors"]] == [one["name"] for one in cited["authors"]]
    assert (paper["title"], package["version"]) == (cited["title"], cited["version"])
