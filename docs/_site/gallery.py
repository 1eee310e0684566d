"""The gallery: every script of `analyses/` and `hooks/`, run at each build, with what it prints and draws.

What a script gives stands at the end of the page that discusses it, so that each analysis is on one page. The gallery's
own page has a card for each script, which links there, and a live map.

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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from plotly.io import from_json
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from _site.figures import embedded
from _site.scripts import HERE, ROOT, Scripts, listed

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


@cache
def library() -> str:
    """A digest of the library and of what runs the scripts."""
    files = sorted(
        [
            *(ROOT / "squashlens").rglob("*.py"),
            *(ROOT / "analyses" / "tables").glob("*.py"),
            HERE / "running.py",
        ]
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def results(scripts: Scripts) -> dict[tuple[str, str], dict[str, Any]]:
    """What each script printed and drew, in this build or in an earlier one of the same code."""
    BUILT.mkdir(parents=True, exist_ok=True)
    jobs = {
        (folder, name): job(folder, name, about)
        for folder, name, about in each(scripts)
    }
    if new := [
        one
        for one in jobs.values()
        if not (Path(one["file"]).exists() and read(one)["key"] == one["key"])
    ]:
        with ThreadPoolExecutor() as pool:
            list(pool.map(run, [new[::2], new[1::2]]))
    return {key: read(one) for key, one in jobs.items()}


def run(jobs: list[dict[str, str]]) -> None:
    """Run some scripts in a process of their own."""
    if subprocess.run(
        COMMAND, input=json.dumps(jobs), text=True, env=ENVIRONMENT, cwd=ROOT
    ).returncode:
        raise ExtensionError("A script of the gallery failed; its error is above.")


def job(folder: str, name: str, about: Script) -> dict[str, str]:
    """What to run, the file for what it printed and drew, and a digest of all that this depends on."""
    script, options = ROOT / folder / f"{name}.py", about.get("options", "")
    key = hashlib.sha256(
        f"{script.read_text(encoding='utf-8')}{options}{library()}".encode()
    ).hexdigest()
    return {
        "script": str(script),
        "options": options,
        "key": key,
        "file": str(BUILT / f"{folder}-{name}.json"),
    }


def each(scripts: Scripts) -> Iterator[tuple[str, str, Script]]:
    """Folder, name and entry of every script."""
    for folder, group in scripts.items():
        for name, about in group.items():
            yield folder, name, about


def read(one: dict[str, str]) -> dict[str, Any]:
    return json.loads(Path(one["file"]).read_text(encoding="utf-8"))


def claim(folder: str, name: str) -> tuple[str, str]:
    """A script's docstring without its command: the first sentence, and the rest."""
    text = (
        ast.get_docstring(
            ast.parse((ROOT / folder / f"{name}.py").read_text(encoding="utf-8"))
        )
        or ""
    )
    first, *others = text.strip().strip('"').split("\n\n")
    return " ".join(first.split()), "\n\n".join(
        part for part in others if not part.startswith("    ")
    )


def measured(folder: str, name: str, about: Script) -> str:
    """What the numbers of a script are of: its entry `of`, or the bundled model that its code names."""
    if "of" not in about and '"tiny-gemma"' not in (
        ROOT / folder / f"{name}.py"
    ).read_text(encoding="utf-8"):
        raise ExtensionError(
            f"docs/_site/scripts.toml must say with `of` what {folder}/{name}.py measures."
        )
    return f"All numbers and figures of this run are of {about.get('of', 'the bundled toy model `tiny-gemma`')}."


def anchor(folder: str, name: str) -> str:
    """The label of a script on the page that discusses it."""
    return f"run-{folder}-{name}".replace("_", "-")


def section(
    folder: str, name: str, about: Script, found: dict[str, Any], home: str
) -> str:
    """A script and what it gave, at the end of the page `home`, which is a path from the root of the pages."""
    first, rest = claim(folder, name)
    up, options = "../" * (1 + home.count("/")), about.get("options", "")
    command = f"python {folder}/{name}.py {options}".strip()
    size = (
        " The run is small: without options the script takes longer." if options else ""
    )
    drawn = "\n\n".join(
        f"```{{raw}} html\n{embedded(from_json(one['figure']))}\n```"
        for one in found["figures"]
    )
    return f"""({anchor(folder, name)})=
### {about["title"]}

{first}

{rest}

```sh
{command}
```

*{measured(folder, name, about)}* They took {max(1, round(found["seconds"]))} s when this page was built.{size}

{drawn}

::::{{dropdown}} What it prints
```text
{found["printed"].rstrip()}
```
::::

::::{{dropdown}} The script, to download and edit
[Download {name}.py]({up}{folder}/{name}.py)

```{{literalinclude}} {up}{folder}/{name}.py
:language: python
```
::::
"""


def card(folder: str, name: str, about: Script, found: dict[str, Any]) -> str:
    """The card of one script on the gallery's first page."""
    first, _ = claim(folder, name)
    if "picture" in about:
        top, body = (
            f":img-top: ../images/{about['picture']}.png\n:img-alt: The figure that the script draws\n",
            "",
        )
    else:
        lines = html.escape("\n".join(found["printed"].splitlines()[:CARD_LINES]))
        top, body = (
            "",
            f'```{{raw}} html\n<pre class="sl-card" aria-hidden="true">{lines}</pre>\n```\n\n',
        )
    return (
        f"::::{{grid-item-card}} {about['title']}\n:link: {anchor(folder, name)}\n:link-type: ref\n"
        f"{top}\n{body}{re.sub(r'[{}]', '', first)}\n::::"
    )


def index(scripts: Scripts, found: dict[tuple[str, str], dict[str, Any]]) -> str:
    """The gallery's page."""
    parts = [
        "# Gallery\n\nWhat was found, and every script of the project.",
        (HERE / "findings.md").read_text(encoding="utf-8"),
        "## The scripts\n\nThey run each time this site is built, on the bundled toy model "
        "[`tiny-gemma`](../start.md#2-the-bundled-models), so that they take seconds; a few measure `tiny-prose` or "
        "random inputs. A card leads to the page that discusses a script; at its end are the command, the figures, the "
        "printed numbers and the script.",
        "## A live map\n\n[The squash map](../squash_map.md) of a prompt: click a token.\n\n"
        '```{raw} html\n<iframe class="sl-live-map" title="A squash map" src="../_static/map.html"></iframe>\n```',
    ]
    for folder, (heading, words) in FOLDERS.items():
        cards = "\n\n".join(
            card(folder, name, about, found[folder, name])
            for name, about in scripts[folder].items()
        )
        parts.append(
            f"## {heading}\n\n{words}\n\n:::::{{grid}} 1 2 3 3\n:gutter: 3\n\n{cards}\n\n:::::"
        )
    return "\n\n".join(parts) + "\n"


def write(file: Path, text: str) -> None:
    """Write a page if it changed, so that Sphinx reads only what changed."""
    if not (file.exists() and file.read_text(encoding="utf-8") == text):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def build(app: Sphinx) -> None:
    """Run the scripts, and write the gallery's page, the live map and the notebooks of the tutorials."""
    scripts = listed()
    found = results(scripts)
    write(HERE.parent / "gallery" / "index.md", index(scripts, found))
    sections: dict[str, list[str]] = {}
    for folder, name, about in each(scripts):
        sections.setdefault(about["page"], []).append(
            section(folder, name, about, found[folder, name], about["page"])
        )
    RUNS.update(
        {
            page: "\n\n## Run it\n\n" + "\n\n".join(parts)
            for page, parts in sections.items()
        }
    )
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(
        [sys.executable, str(HERE / "live_map.py"), str(folder / "map.html")],
        env=ENVIRONMENT,
    ).returncode:
        raise ExtensionError("The live map could not be made; the error is above.")
    for tutorial in TUTORIALS:
        nbformat.write(notebook(tutorial), str(folder / f"{tutorial}.ipynb"))


RUNS: dict[str, str] = {}  # by page: the scripts that it discusses
TUTORIALS = ("squash", "collapse", "ablation")
FIRST = "# In a new environment, such as Colab: clone squashlens, and install it with `%pip install -q ./squashlens`."


def notebook(tutorial: str) -> Any:
    """A tutorial as a notebook without outputs, with links that leave the site taken out."""
    text = (HERE.parent / "learn" / f"{tutorial}.md").read_text(encoding="utf-8")
    found = read_myst_markdown_notebook(text, config=MdParserConfig())
    for cell in found.cells:
        cell.source = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", cell.source)
    found.cells.insert(1, nbformat.v4.new_code_cell(FIRST))
    return found


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to a page the scripts that it discusses, and to a tutorial or a notebook the link to download it."""
    folder, _, tutorial = name.rpartition("/")
    if folder == "notebooks":
        own = json.loads(source[0])
        own["cells"][0]["source"] += [
            f"\n\n{{download}}`Download this notebook <{tutorial}.ipynb>`"
        ]
        source[0] = json.dumps(own)
        return
    source[0] += RUNS.get(name, "")
    if folder == "learn" and tutorial in TUTORIALS:
        link = f'<a href="../_static/{tutorial}.ipynb" download>Download this tutorial as a notebook</a>'
        source[0] = re.sub(
            r"^(# .*)$", rf"\1\n\n{link}", source[0], count=1, flags=re.MULTILINE
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", build)
    app.connect("source-read", complete)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
