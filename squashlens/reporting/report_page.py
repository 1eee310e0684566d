"""The report: one HTML page that opens from disk and needs no network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Norm
from squashlens.engine.text.tokens import escape
from squashlens.errors import SquashlensError
from squashlens.maps.payload import fact_text, load_of
from squashlens.measure.session import measurement
from squashlens.records.facts import named_models
from squashlens.records.results import provenance
from squashlens.reporting import prompt_sentences as say
from squashlens.reporting.collapse_sections import Findings, Section, check_n, measure, or_why_not, sections
from squashlens.reporting.markup import template
from squashlens.reporting.prompt_sentences import Evidence
from squashlens.reporting.sentences import certainty_of_norms
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
    n: int | None = None,
) -> Path:
    """Measure what is lost on the way to the last token of a prompt, and write the results as an HTML page.

    Its first screen answers four questions: what the model predicts, which tokens that depends on, whether something is
    lost, and what would help. Then come the prompt's squash map, figures with sentences about the results, the
    assumptions, the code to reproduce them, the provenance, and the contents. It opens from disk without a network.

    Args:
        model: anything that `squashlens.load` takes, or a loaded model.
        prompt: the prompt to measure.
        out: the file to write, with the ending ``.html`` or ``.htm``.
        norm: norm of the Jacobians.
        n: number of content tokens of the longest of figure 5's sequences, at least 3; their collapse and the effect of
            separators are then measured too. By default they are not.

    Returns:
        The path of the file.

    Raises:
        InputError: if `out` cannot be written or `n` is too small.

    >>> import squashlens as sl
    >>> path = sl.report("tiny-gemma", out=tmp_path / "page.html")
    >>> path.name
    'page.html'
    """
    from squashlens.engine.loading.load import load
    from squashlens.maps.view import squash_map
    from squashlens.measure.answers.accuracy import top_tokens
    from squashlens.measure.squashing.bound import composition
    from squashlens.measure.squashing.knockout import knockout_effect
    from squashlens.measure.squashing.sensitivity import sensitivity

    out = require_output(out, (".html", ".htm"))
    if n is not None:
        check_n(n)
    bridge = load(model) if isinstance(model, str | Path) else model
    measured = sensitivity(bridge, prompt, norm=norm)
    knockout = or_why_not(lambda: knockout_effect(bridge, prompt))
    tried = or_why_not(lambda: _try_remedies(bridge, prompt))
    changes, predicted = (None, {}) if isinstance(tried, SquashlensError) else tried
    view = squash_map(bridge, prompt, norm=norm, interventions=changes)
    evidence = Evidence(
        top_tokens(bridge, prompt), measured, view.result, None if isinstance(knockout, SquashlensError) else knockout,
        changes, predicted,
    )  # fmt: skip
    shares = composition(bridge, prompt)
    findings = None if n is None else or_why_not(lambda: measure(bridge, n))
    page = render(evidence, shares, findings, view, source=_source(bridge), prompt=prompt, n=n)
    return write(out, page.encode("utf-8"))


def _try_remedies(model: Bridge, prompt: str) -> tuple[xr.Dataset, dict[str, str]]:
    """What changes of the attention do to the prompt and the same with its last token repeated, and to its prediction.

    The prompt is a growing sequence of which only its own length is measured.
    """
    from squashlens import hooks, prompts
    from squashlens.bars import quiet
    from squashlens.engine.applied import applied
    from squashlens.measure.answers.accuracy import top_tokens
    from squashlens.measure.remedies.compare import compare

    remedies = {
        "sharper attention (temperature 0.8)": hooks.attention_temperature(0.8),
        "adaptive temperature": hooks.adaptive_temperature(),
    }
    first, *content = prompts.tokenize(model, prompt)[0].tolist()
    sequence = prompts.build(model, content, prefix=[first])
    with quiet():
        changes = compare(model, sequence, remedies, lengths=[len(content)])
    predicted = {}
    for name, hook in remedies.items():
        with applied(model, hook):
            predicted[name] = str(top_tokens(model, prompt, k=1)["token"].values[0])
    return changes, predicted


def render(
    evidence: Evidence,
    shares: xr.DataArray,
    findings: Findings | SquashlensError | None,
    view: "SquashMap",
    *,
    source: str,
    prompt: str,
    n: int | None,
) -> str:
    """The page for given results, as HTML text; nothing is measured here. `source` is what the model is loaded from."""
    measured = evidence.measured
    facts = provenance(measured)
    parts = [*_of_the_prompt(measured, view.result, shares), *([] if findings is None else sections(findings))]
    library = iter([True])  # plotly's code is included once, with the first figure
    return template("template.html.jinja", autoescape=True).render(
        answers=say.first_answers(evidence),
        map=view.section(),
        tokens=_strip(evidence),
        strip=say.dependence(evidence)[1],
        model_line=model_line(facts),
        model=named_models(facts)[0],
        n=n,
        sections=[
            (part, "" if part.figure is None else _embed(part.figure, with_library=next(library, False)))
            for part in parts
        ],
        code=_code(facts, source, prompt, n),
        facts=[(escape(name.replace("_", " ")), escape(fact_text(value))) for name, value in facts.items()],
    )


def _strip(evidence: Evidence) -> list[tuple[str, int, str]]:
    """Each token with the strength of its colour in per cent of the largest, and its number as text."""
    values = say.dependence(evidence)[0]
    inside = values[say.compared(evidence.measured)]
    most = max(inside.max(initial=0.0), 1e-30)
    tokens = map(str, evidence.measured["token"].values)
    return [(token, min(100, round(100 * one / most)), f"{one:.3g}") for token, one in zip(tokens, values, strict=True)]


def _of_the_prompt(measured: xr.Dataset, found: xr.Dataset, shares: xr.DataArray) -> list[Section]:
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
                f"{certainty_of_norms(measured)}.",
            ),
        ),
        Section(
            "Paths to the last token, by layer",
            figures.composition(shares),
            (say.spread(shares, measured), say.depth(found)),
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


def _code(facts: dict[str, Any], source: str, prompt: str, n: int | None) -> str:
    """The lines that make the figures of the page again."""
    code = template("code.py.jinja")
    return code.render(
        loaded=load_of(facts, source), prompt=repr(prompt), norm=repr(facts["call"]["norm"]), n=n
    ).strip()


def _embed(figure: "go.Figure", *, with_library: bool) -> str:
    from squashlens.figures import styled

    figure = styled(figure, title="")  # the page has its own heading
    config = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    return figure.to_html(full_html=False, include_plotlyjs=with_library, config=config, default_width="100%")
