"""The gallery: every script of `analyses/` and `hooks/`, run at each build, with what it prints and draws.

The scripts take options and write their figures to files, as a user wants them, so each runs unchanged, as from a
shell, in an empty folder. A build runs only scripts whose code, options or library changed since the last build in
this folder.
"""

import ast
import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from plotly.io import from_json
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from _site.figures import embedded

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDERS = {
    "analyses": (
        "Analyses",
        "One script for each figure or claim. Copy one and change the model: `--model gemma-3-270m`.",
    ),
    "hooks": (
        "Hooks",
        "One script for each kind of intervention, to copy and edit. They print numbers and draw nothing.",
    ),
}
CARD_LINES = 14
COMMAND = [sys.executable, str(HERE / "running.py")]
# One thread: more would take longer, since the bundled model is small.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
BUILT = HERE.parent / "_build" / "gallery"
Script = dict[str, str]
Scripts = dict[str, dict[str, Script]]


@cache
def library() -> str:
    """A digest of the library and of what runs the scripts."""
    files = sorted([*(ROOT / "squashlens").rglob("*.py"), HERE / "running.py"])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def listed() -> Scripts:
    """The scripts in the order of the gallery; an error if one is missing from the list, or from its folder."""
    scripts = tomllib.loads((HERE / "scripts.toml").read_text(encoding="utf-8"))
    for folder in FOLDERS:
        there = {file.stem for file in (ROOT / folder).glob("*.py")}
        if there != set(scripts[folder]):
            raise ExtensionError(f"docs/_site/scripts.toml and {folder}/ differ: {there ^ set(scripts[folder])}")
    return scripts


def results(scripts: Scripts) -> dict[tuple[str, str], dict[str, Any]]:
    """What each script printed and drew, in this build or in an earlier one of the same code."""
    BUILT.mkdir(parents=True, exist_ok=True)
    jobs = {(folder, name): job(folder, name, about) for folder, name, about in each(scripts)}
    if new := [one for one in jobs.values() if not (Path(one["file"]).exists() and read(one)["key"] == one["key"])]:
        with ThreadPoolExecutor() as pool:
            list(pool.map(run, [new[::2], new[1::2]]))
    return {key: read(one) for key, one in jobs.items()}


def run(jobs: list[dict[str, str]]) -> None:
    """Run some scripts in a process of their own."""
    if subprocess.run(COMMAND, input=json.dumps(jobs), text=True, env=ENVIRONMENT, cwd=ROOT).returncode:
        raise ExtensionError("A script of the gallery failed; its error is above.")


def job(folder: str, name: str, about: Script) -> dict[str, str]:
    """What to run, the file for what it printed and drew, and a digest of all that this depends on."""
    script, options = ROOT / folder / f"{name}.py", about.get("options", "")
    key = hashlib.sha256(f"{script.read_text(encoding='utf-8')}{options}{library()}".encode()).hexdigest()
    return {"script": str(script), "options": options, "key": key, "file": str(BUILT / f"{folder}-{name}.json")}


def each(scripts: Scripts) -> Iterator[tuple[str, str, Script]]:
    """Folder, name and entry of every script."""
    for folder, group in scripts.items():
        for name, about in group.items():
            yield folder, name, about


def read(one: dict[str, str]) -> dict[str, Any]:
    return json.loads(Path(one["file"]).read_text(encoding="utf-8"))


def claim(folder: str, name: str) -> tuple[str, str]:
    """A script's docstring without its command: the first sentence, and the rest."""
    text = ast.get_docstring(ast.parse((ROOT / folder / f"{name}.py").read_text(encoding="utf-8"))) or ""
    first, *others = text.strip().strip('"').split("\n\n")
    return " ".join(first.split()), "\n\n".join(part for part in others if not part.startswith("    "))


def measured(folder: str, name: str, about: Script) -> str:
    """What the numbers of a script are of: its entry `of`, or the bundled model that its code names."""
    if "of" not in about and '"tiny-gemma"' not in (ROOT / folder / f"{name}.py").read_text(encoding="utf-8"):
        raise ExtensionError(f"docs/_site/scripts.toml must say with `of` what {folder}/{name}.py measures.")
    return f"All numbers and figures on this page are of {about.get('of', 'the bundled toy model `tiny-gemma`')}."


def page(folder: str, name: str, about: Script, found: dict[str, Any]) -> str:
    """The page of one script."""
    first, rest = claim(folder, name)
    options = about.get("options", "")
    command = f"python {folder}/{name}.py {options}".strip()
    size = " The run is small: without options the script takes longer." if options else ""
    drawn = "\n\n".join(f"```{{raw}} html\n{embedded(from_json(one['figure']))}\n```" for one in found["figures"])
    return f"""# {about["title"]}

*{measured(folder, name, about)}*

{first}

{rest}

```sh
{command}
```

These results were computed in {max(1, round(found["seconds"]))} s when this page was built.{size}
[The discussion](../../{about["page"]}.md) says what they mean.

{drawn}

It prints:

```text
{found["printed"].rstrip()}
```

The script, to [download](../../../{folder}/{name}.py) and edit:

```{{literalinclude}} ../../../{folder}/{name}.py
:language: python
```
"""


def card(folder: str, name: str, about: Script, found: dict[str, Any]) -> str:
    """The card of one script on the gallery's first page."""
    first, _ = claim(folder, name)
    if "picture" in about:
        top, body = f":img-top: ../images/{about['picture']}.png\n:img-alt: The figure that the script draws\n", ""
    else:
        lines = html.escape("\n".join(found["printed"].splitlines()[:CARD_LINES]))
        top, body = "", f'```{{raw}} html\n<pre class="sl-card" aria-hidden="true">{lines}</pre>\n```\n\n'
    return (
        f"::::{{grid-item-card}} {about['title']}\n:link: {folder}/{name}\n:link-type: doc\n"
        f"{top}\n{body}{re.sub(r'[{}]', '', first)}\n::::"
    )


def index(scripts: Scripts, found: dict[tuple[str, str], dict[str, Any]]) -> str:
    """The gallery's first page."""
    parts = [
        "# Gallery\n\nEvery script of the project, run each time this site is built. A page has the claim, the "
        "command, the figures, the printed numbers and the script.\n\n*The scripts run on the bundled toy model "
        "[`tiny-gemma`](../start.md#2-the-bundled-models), so that they take seconds. A few measure `tiny-prose` or "
        "random inputs. Each page says what its numbers are of. None is of [a real Gemma](../gemma.md).*"
    ]
    for folder, (heading, words) in FOLDERS.items():
        cards = "\n\n".join(card(folder, name, about, found[folder, name]) for name, about in scripts[folder].items())
        names = "\n".join(f"{folder}/{name}" for name in scripts[folder])
        parts.append(
            f"## {heading}\n\n{words}\n\n:::::{{grid}} 1 2 3 3\n:gutter: 3\n\n{cards}\n\n:::::\n\n"
            f"```{{toctree}}\n:hidden:\n\n{names}\n```"
        )
    return "\n\n".join(parts) + "\n"


def write(file: Path, text: str) -> None:
    """Write a page if it changed, so that Sphinx reads only what changed."""
    if not (file.exists() and file.read_text(encoding="utf-8") == text):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def build(app: Sphinx) -> None:
    """Run the scripts and write the gallery's pages."""
    scripts = listed()
    found = results(scripts)
    target = HERE.parent / "gallery"
    write(target / "index.md", index(scripts, found))
    for (folder, name), one in found.items():
        write(target / folder / f"{name}.md", page(folder, name, scripts[folder][name], one))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", build)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
