"""The scripts of `analyses/` and `hooks/`: of each the title, the page that discusses it, its options and its picture.

`scripts.toml` says what differs from the usual: the title is the file's name in words, the page that of its folder.
"""

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGES = {"analyses": "examples", "hooks": "hooks"}  # of a script that names no other
Scripts = dict[str, dict[str, dict[str, str]]]


def listed() -> Scripts:
    """All scripts, those of `scripts.toml` first and in its order; an error if it has one that is not there."""
    said: Scripts = tomllib.loads((HERE / "scripts.toml").read_text(encoding="utf-8"))
    found: Scripts = {}
    for folder, page in PAGES.items():
        names = sorted(file.stem for file in (ROOT / folder).glob("*.py"))
        if gone := {*said[folder]} - {*names}:
            raise FileNotFoundError(
                f"docs/_site/scripts.toml has scripts that are not in {folder}/: {gone}"
            )
        found[folder] = {
            name: {"title": name.replace("_", " ").capitalize(), "page": page}
            | said[folder].get(name, {})
            for name in dict.fromkeys([*said[folder], *names])
        }
    return found
