"""The report: one HTML page that opens from disk and needs no network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Norm, Quantized, choices_of
from squashlens.engine.text.tokens import escape
from squashlens.errors import SquashlensError
from squashlens.maps.payload import fact_text
from squashlens.measure.session import measurement
from squashlens.records.facts import named_models
from squashlens.records.results import provenance
from squashlens.reporting import sentences as say
from squashlens.reporting.collapse_sections import Findings, Section, check_n, sections, try_to_measure
from squashlens.reporting.markup import template
from squashlens.reporting.sentences import short_answer
from squashlens.saving.files import require_output, write

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from squashlens.maps.view import SquashMap


@measurement()
def report(
    model: str | Path | Bridge = "tiny-gemma",
    *,
    prompt: str = zoo.EXAMPLE_PROMPT,
    out: str | Path = "report.html",
    norm: Norm = "spectral",
    n: int = 96,
) -> Path:
    """Measure over-squashing on one prompt and collapse on figure 5's sequences, and write the results as an HTML page.

    The page contains a short answer, the prompt's squash map, the model, figures with sentences about the results, the
    assumptions, the code to reproduce it, and the provenance. It opens from disk without a network.

    Args:
        model: anything that `squashlens.load` takes, or a loaded model.
        prompt: the prompt for path bound and Jacobian.
        out: the file to write, with the ending ``.html`` or ``.htm``.
        norm: norm of the Jacobians.
        n: number of content tokens of the longest of figure 5's sequences, at least 3.

    Returns:
        The path of the file.

    Raises:
        InputError: if `out` cannot be written or `n` is too small.

    >>> import squashlens as sl
    >>> path = sl.report("tiny-gemma", n=8, out=tmp_path / "page.html")
    >>> path.name
    'page.html'
    """
    from squashlens.engine.loading.load import load
    from squashlens.maps.view import squash_map
    from squashlens.measure.answers.accuracy import top_tokens
    from squashlens.measure.squashing.bound import composition
    from squashlens.measure.squashing.sensitivity import sensitivity

    out = require_output(out, (".html", ".htm"))
    check_n(n)
    bridge = load(model) if isinstance(model, str | Path) else model
    measured = sensitivity(bridge, prompt, norm=norm)
    shares = composition(bridge, prompt)
    answer = top_tokens(bridge, prompt)
    view = squash_map(bridge, prompt, norm=norm)
    findings = try_to_measure(bridge, n)
    page = render(measured, shares, answer, findings, view, source=_source(bridge), prompt=prompt, n=n)
    return write(out, page.encode("utf-8"))


def render(
    measured: xr.Dataset,
    shares: xr.DataArray,
    answer: xr.DataArray,
    findings: Findings | SquashlensError,
    view: "SquashMap",
    *,
    source: str,
    prompt: str,
    n: int,
) -> str:
    """The page for given results, as HTML text; nothing is measured here. `source` is what the model is loaded from."""
    facts = provenance(measured)
    parts = [*_of_the_prompt(measured, shares), *sections(findings)]
    library = iter([True])  # plotly's code is included once, with the first figure
    return template("template.html.jinja", autoescape=True).render(
        prompt=prompt,
        answers=short_answer(measured, view.result),
        map=view.section(),
        tokens=[str(t) for t in measured["token"].values],
        summary=say.prompt_summary(measured, answer),
        model_line=model_line(facts),
        sections=[
            (part, "" if part.figure is None else _embed(part.figure, with_library=next(library, False)))
            for part in parts
        ],
        code=_code(facts, source, prompt, n),
        facts=[(escape(name.replace("_", " ")), escape(fact_text(value))) for name, value in facts.items()],
    )


def _of_the_prompt(measured: xr.Dataset, shares: xr.DataArray) -> list[Section]:
    """The sections on one prompt: the influence of its tokens, and the paths to the last token."""
    from squashlens import figures

    return [
        Section(
            "Path bound, null and Jacobian by token",
            figures.attribution(measured),
            (
                *filter(None, [say.beside_sink(measured)]),
                say.agreement(measured),
                say.position(measured),
                say.is_it_a_bound(measured),
                say.freezing(measured),
            ),
        ),
        Section(
            "Paths to the last token, by layer",
            figures.composition(shares),
            (say.spread(shares),),
            "Each row is a probability distribution over tokens: the share of paths to the last token that start at "
            "each token in that layer. Every block counts half through its residual connection and half through its "
            "attention, averaged over heads.",
        ),
    ]


def model_line(facts: dict[str, Any]) -> str:
    """One line about the model: its name, architecture, dtype and device, and how it was verified."""
    about = f" {zoo.summary(facts['model'])}" if facts["model"] in zoo.bundled() else ""
    if facts.get("weights_origin"):
        about = f" Its weights: {facts['weights_origin']['note']}."
    proof = {
        "verified": "the TransformerLens bridge reproduces the Hugging Face model's logits, residual streams and "
        "attention patterns; a hook is tested before it is used",
        "verified as it stands": "the bridge agrees with a plain model of its own weights and configuration (they were "
        "not compared with a checkpoint); a hook is tested before it is used",
        "verified against its own module": "a model of TransformerLens's own: its bridge agrees with the module that "
        "it wraps, run without it; a hook is tested before it is used",
        "unverified": "not verified against the plain model",
    }[facts["proof"]]
    return (
        f"{named_models(facts)[0]}, {facts['architecture']} in {facts['dtype']} on {facts['device']}; {proof}.{about}"
    )


def _source(model: Bridge) -> str:
    """What the model is loaded from: a name, or the folder of a local model, which results name without its path."""
    given = str(model.cfg.model_name)
    return next((name for name in zoo.bundled() if given == str(zoo.folder(name))), given)


def _load_options(facts: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `load` that were not the usual ones, apart from the device."""
    rounded = facts["quantized"]  # in another format if the checkpoint is quantized, which is no argument
    given = {
        "dtype": None if facts["dtype"] == "float32" else facts["dtype"],
        "quantize": rounded if rounded in choices_of(Quantized) else None,
        "revision": facts["revision"],
        "verify": False if facts["proof"] == "unverified" else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _code(facts: dict[str, Any], source: str, prompt: str, n: int) -> str:
    """The lines that make the figures of the page again."""
    loaded = ", ".join([repr(source), *(f"{name}={value!r}" for name, value in _load_options(facts).items())])
    code = template("code.py.jinja")
    return code.render(loaded=loaded, prompt=repr(prompt), norm=repr(facts["call"]["norm"]), n=n).strip()


def _embed(figure: "go.Figure", *, with_library: bool) -> str:
    from squashlens.figures import styled

    figure = styled(figure, title="")  # the page has its own heading
    config = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    return figure.to_html(full_html=False, include_plotlyjs=with_library, config=config, default_width="100%")
