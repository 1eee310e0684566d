"""One way to make pages: a list of sections, each a figure with what is said of it, in a template.

The report is an HTML page of such sections, and the folder of `paper` has a Markdown page and a LaTeX file of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from squashlens.figures.drawing.themes import THEMES, Theme
from squashlens.pages.markup import latex, markdown
from squashlens.records.sentences import escape

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Inches that screens of 390 and 680 pixels leave for a figure.
SCREENS = {"phone": 3.7, "desk": 6.75}
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": False,
    "typesetMath": False,
}
# The marks of templates that write LaTeX and Markdown, which have other uses for braces.
MARKS = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
}


@dataclass(frozen=True)
class Section:
    """A part of a page: a figure with a note and sentences, which are in `says`.

    An HTML page shows the `figure`, or the `html` of a map; a `folded` section is opened by a click. Beside a Markdown
    page is the `file` of a figure, `inches` wide, whose numbers are in the files `tables`; a `wide` one takes both
    columns of a paper.
    """

    title: str
    says: Sequence[str] = ()
    note: str = ""
    figure: "go.Figure | None" = None
    html: str = ""
    folded: bool = False
    file: str = ""
    tables: Sequence[str] = ()
    inches: float = 0.0
    wide: bool = False


def template(name: str, **syntax: Any) -> Any:
    """A Jinja template of this folder, by its path such as "paper/captions.jinja"; `syntax` are options of Jinja's
    environment."""
    from jinja2 import Environment, FunctionLoader

    environment = Environment(  # noqa: S701 (escaping is an option)
        loader=FunctionLoader(_source_of),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **syntax,
    )
    environment.filters |= {"latex": latex, "markdown": markdown}
    return environment.get_template(name)


def _source_of(name: str) -> str:
    """The text of a template."""
    return files("squashlens.pages").joinpath(name).read_text(encoding="utf-8")


def page_of(
    name: str, sections: Sequence[Section], facts: Mapping[str, Any], **contents: Any
) -> str:
    """The text of a page.

    Args:
        name: path of its template; HTML pages have names such as "compare.html.jinja".
        sections: its parts.
        facts: facts of a provenance, which it lists.
        contents: what else the template shows, by the names that it uses.
    """
    texts = {}
    for key, value in facts.items():
        texts[escape(key.replace("_", " "))] = escape(fact_text(value))
    if ".html." not in name:  # Markdown or LaTeX
        page = template(name, **MARKS)
        return page.render(sections=sections, facts=texts, **contents)
    drawn = []
    with_library = True  # plotly's code is included once, with the first figure
    for section in sections:
        if section.figure is not None:
            html = _figure_html(section.figure, with_library=with_library)
            with_library = False
            section = replace(section, html=html)
        drawn.append(section)
    page = template(name, autoescape=True)
    return page.render(
        sections=drawn,
        facts=texts,
        light=_colours(THEMES["notebook"]),
        dark=_colours(THEMES["dark"]),
        **contents,
    )


def _colours(theme: Theme) -> list[str]:
    """The colours of a figure's text, of the lines of its grid, and of its ground."""
    return [theme.ink, theme.faint, theme.paper]


def fact_text(value: Any) -> str:
    """A fact of a provenance as text: lists and dictionaries with commas, None as "none"."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact_text(part)}" for key, part in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(fact_text, value)) or "none"
    return "none" if value is None else str(value)


def _figure_html(figure: "go.Figure", *, with_library: bool) -> str:
    """A figure as HTML, laid out for each screen; the page shows that of its width. `with_library` includes plotly."""
    from squashlens.figures import styled

    parts = []
    for screen, width in SCREENS.items():
        fitted = styled(figure, title="", width=width)  # the page has its own heading
        # Margins fit the screen, and panels are as wide as the page.
        fitted.update_layout(width=None, autosize=True)
        html = fitted.to_html(
            full_html=False,
            include_plotlyjs=with_library and not parts,
            config=CONFIG,
            default_width="100%",
        )
        parts.append(f'<div class="{screen}">{html}</div>')
    return "".join(parts)
