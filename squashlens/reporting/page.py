"""One HTML page that reads as an argument, opens from disk and asks nothing of the network."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Norm
from squashlens.files import require_output, write
from squashlens.model.registry import measured
from squashlens.model.tokens import escape
from squashlens.reporting import sentences as say
from squashlens.reporting.section import Section
from squashlens.results import provenance

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from squashlens.errors import SquashlensError
    from squashlens.reporting import collapse

ASSUMPTIONS = (
    "The path bound has all constants 1 (β₁ = β₂ = β₃ = σ_ψ = 1) and averages attention over heads. It omits "
    "value and output weights, norm gains and the softmax's derivative: a shape to compare, not a bound.",
    "The uniform null is the same product with every token attending evenly to what its block lets it see.",
    "The Jacobian is ∂y_n/∂v⁽⁰⁾_i: the last token after the final norm, with respect to the residual stream "
    "entering block 0, by automatic differentiation, without sampling.",
    "Correlations leave out the last token itself and a leading BOS. Their 95 % intervals allow for neighbouring "
    "tokens that depend on each other. |ρ| is called negligible below 0.1, weak below 0.4, moderate below 0.7, strong "
    "below 0.9, then very strong; where two words stand, they are those of the interval's ends. A direction is named "
    "only where the interval leaves out 0 and the p-value, corrected by Holm for the trends tested together, is below "
    "0.05.",
    "A derivative is not a swap: it says nothing of replacing a token by another.",
    "A pair is two prompts, one with the last digit once more; it is never two neighbouring positions of one prompt, "
    "whose last tokens differ wherever a separator or another digit follows.",
)


@measured
def report(
    model: str | Path | Bridge = "tiny-gemma",
    *,
    prompt: str = zoo.EXAMPLE_PROMPT,
    out: str | Path = "report.html",
    norm: Norm = "spectral",
    digits: int = 96,
    progress: bool = True,
) -> Path:
    """Measure one prompt and figure 5's sequences, and write the page; returns its path.

    `model` is anything `load` takes, or a bridge at hand; `digits` the longest of figure 5's sequences. The
    page holds the question, the model, the figures with sentences under each, the assumptions, how to
    reproduce it, and the provenance.

    >>> import squashlens as sl
    >>> path = sl.report("tiny-gemma", out=tmp_path / "page.html", progress=False)
    >>> path.name
    'page.html'
    """
    from squashlens.measure.bound import composition
    from squashlens.measure.readout import next_token
    from squashlens.measure.sensitivity import sensitivity
    from squashlens.model.load import load
    from squashlens.reporting import collapse

    out = require_output(out, (".html", ".htm"))
    collapse.check_digits(digits)
    bridge = load(model, progress=progress) if isinstance(model, str | Path) else model
    measured = sensitivity(bridge, prompt, norm=norm, progress=progress)
    shares = composition(bridge, prompt)
    answer = next_token(bridge, prompt)
    findings = collapse.try_to_measure(bridge, digits, progress=progress)
    page = render(measured, shares, answer, findings, prompt=prompt, digits=digits)
    return write(out, page.encode("utf-8"))


def render(
    measured: xr.Dataset,
    shares: xr.DataArray,
    answer: xr.DataArray,
    findings: "collapse.Findings | SquashlensError",
    *,
    prompt: str,
    digits: int,
) -> str:
    """The page for results at hand; computes nothing."""
    from jinja2 import Environment

    from squashlens.reporting import collapse

    facts = provenance(measured)
    template = files("squashlens.reporting").joinpath("template.html.jinja").read_text(encoding="utf-8")
    sections = [*_of_the_prompt(measured, shares), *collapse.sections(findings)]
    library = iter([True])  # plotly's code goes in once, with the first figure
    return (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            prompt=prompt,
            tokens=[str(t) for t in measured["token"].values],
            asked=say.asked(measured, answer),
            model_line=model_line(facts),
            sections=[
                (part, "" if part.figure is None else _embed(part.figure, with_library=next(library, False)))
                for part in sections
            ],
            assumptions=ASSUMPTIONS,
            command=_command(
                ["squashlens", "report", "--model", facts["model"], "--prompt", prompt, "--digits", str(digits)]
            ),
            code=_code(facts, prompt, digits),
            facts=_flatten(facts),
        )
    )


def _of_the_prompt(measured: xr.Dataset, shares: xr.DataArray) -> list[Section]:
    """The sections on one prompt: how far its tokens reach, and along which paths."""
    from squashlens import figures

    return [
        Section(
            "Bound, null and Jacobian by token",
            figures.attribution(measured),
            (
                say.agreement(measured),
                say.position(measured),
                say.extremes(measured),
                say.is_it_a_bound(measured),
                say.freezing(measured),
            ),
        ),
        Section(
            "How attention composes, layer by layer",
            figures.composition(shares),
            (say.spread(shares),),
            "Each row is a probability over tokens: the share of paths into the last token that start at that token "
            "in that layer, when every block passes half along its residual and half through its head-averaged "
            "attention.",
        ),
    ]


def model_line(facts: dict[str, Any]) -> str:
    """One line about the model: what it is (a bundled one says so on its card), and whether it was proved."""
    about = f" {zoo.summary(facts['model'])}" if facts["model"] in zoo.bundled() else ""
    proof = {
        "verified": "the TransformerLens bridge reproduces the Hugging Face model's logits, residual streams and "
        "attention patterns, and all hooks were tested and take effect",
        "verified as it stands": "the bridge agrees with a plain model of its own weights and configuration (they were "
        "not compared with a checkpoint), and all hooks were tested and take effect",
        "verified against its own module": "a model of TransformerLens's own: its bridge agrees with the module that "
        "it wraps, run without it, and all hooks were tested and take effect",
        "unverified": "not verified against the plain model",
    }[facts["proof"]]
    return f"{facts['model']}, {facts['architecture']} in {facts['dtype']} on {facts['device']}; {proof}.{about}"


def _code(facts: dict[str, Any], prompt: str, digits: int) -> str:
    norm = facts["call"]["norm"]
    return (
        "import squashlens as sl\n\n"
        f"model = sl.load({facts['model']!r})\n"
        f"ds = sl.sensitivity(model, {prompt!r}, norm={norm!r})\n"
        "sl.figures.attribution(ds)\n\n"
        f"panels = sl.prompts.figure5(model, {digits})\n"
        "collapse = {k: sl.collapse(model, p, beside=['contrast', 'unrelated']) for k, p in panels.items()}\n"
        "sl.figures.collapse_panels(collapse)\n"
        "ablation = sl.separator_ablation(model, panels['d'], scale='relative')\n"
        "sl.figures.layer_trace(ablation)"
    )


def _command(words: list[str]) -> str:
    r"""Words as one line for bash or zsh, in which nothing is hidden: control characters are written out.

    >>> print(_command(["squashlens", "a b", "it's\n\x1b[2J"]))
    squashlens 'a b' $'it\'s\x0a\x1b[2J'
    """
    if any("\0" in word for word in words):
        return "(The prompt has a null character, which no command line can pass. Use the code below.)"
    return " ".join(shlex.quote(word) if escape(word) == word else _written_out(word) for word in words)


def _written_out(word: str) -> str:
    """A word in ANSI-C quotes, ``$'...'``, where ``\\x`` means a byte and ``\\u`` a character."""
    escapes = {"\\": r"\\", "'": r"\'"}
    written = (c if escape(c) == c else f"\\x{ord(c):02x}" if c < "\x80" else f"\\U{ord(c):08x}" for c in word)
    return "$'" + "".join(escapes.get(c, c) for c in written) + "'"


def _embed(figure: "go.Figure", *, with_library: bool) -> str:
    figure.update_layout(title=None, margin_t=figure.layout.margin.t - 32)  # the page's own heading stands above it
    config = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    return figure.to_html(full_html=False, include_plotlyjs=with_library, config=config, default_width="100%")


def _flatten(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, value in facts.items():
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            text = ", ".join(map(str, value)) or "none"
        else:
            text = "none" if value is None else str(value)
        rows.append((escape(key.replace("_", " ")), escape(text)))
    return rows
