"""Sphinx configuration of the documentation site: `make docs` builds it into docs/_build/html."""

import os
import re
import shutil
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for the extensions in docs/_site

# The kernel that executes the notebooks has a profile of its own, in which `_site/startup.py` runs first.
profile = HERE / "_build" / "kernel" / "profile_default" / "startup"
profile.mkdir(parents=True, exist_ok=True)
shutil.copy(HERE / "_site" / "startup.py", profile)
os.environ["IPYTHONDIR"] = str(HERE / "_build" / "kernel")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["OMP_NUM_THREADS"] = (
    "1"  # more threads would take longer, since the bundled model is small
)

project = "squashlens"
author = copyright = "The squashlens developers"
release = version = installed("squashlens")
language = "en"

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "_site.figures",
    "_site.gallery",
    "_site.measurements",
]
exclude_patterns = ["_build", "_site", "data", "images", "**.ipynb_checkpoints"]
templates_path: list[str] = []
nitpicky = True
# References are checked inside squashlens. Other libraries are not linked, since their inventories need a network.
# A single backtick (py:obj) links to a public name if there is one, and is code otherwise.
nitpick_ignore_regex = [(r"py:.*", r"(?!squashlens\.).*"), (r"py:obj", r".*")]

# MyST: Markdown pages, and notebooks as Markdown. Notebooks are executed at each build, and an error is an error.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"  # progress bars; the kernel prints warnings instead
nb_ipywidgets_js = {}  # they would come from another host
nb_merge_streams = True

# Reference: docstrings in Google's form; types are in the text of each argument.
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Pages. No page asks another host for anything: plotly.js is copied from the installed package, fonts are the
# system's, and formulas are written in Unicode.
html_theme = "furo"
html_title = f"squashlens {release}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {
        "code-font-size": "0.75rem",  # 95 characters in a line
        "color-brand-primary": "#0b5c94",
        "color-brand-content": "#0b5c94",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc4f4",
        "color-brand-content": "#7cc4f4",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

suppress_warnings = ["myst.strikethrough"]


def escape_bars(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Keep absolute values such as |x| in docstrings from being read as substitutions."""
    for place, paragraph in enumerate(paragraphs := "\n".join(lines).split("\n\n")):
        if not paragraph.lstrip().startswith(">>>"):
            paragraphs[place] = re.sub(
                r"(``.*?``|`.*?`)|\|",
                lambda m: m[1] or r"\|",
                paragraph,
                flags=re.DOTALL,
            )
    lines[:] = "\n\n".join(paragraphs).split("\n")


def link_to_changelog(app: Any, name: str, source: list[str]) -> None:
    """The changelog is a page of the site; in the repository it is above docs/."""
    source[0] = source[0].replace("](../CHANGELOG.md)", "](changelog.md)")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_to_changelog)
    app.connect("autodoc-process-docstring", escape_bars)
