"""The report: one HTML page that opens from disk and needs no network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Norm
from squashlens.engine.text.tokens import escape
from squashlens.errors import InputError, SquashlensError
from squashlens.figures import collapse_sentences
from squashlens.maps.payload import fact_text, load_of
from squashlens.measure.answers.verdict import PRESENT, UNRESOLVED
from squashlens.measure.registration import measurement
from squashlens.records.facts import named_models
from squashlens.records.results import provenance
from squashlens.records.sentences import certainty_of_norms
from squashlens.reporting import prompt_sentences
from squashlens.reporting.first_screen import Evidence, compared, decided_by, dependence, first_answers
from squashlens.reporting.markup import template
from squashlens.saving.files import require_output, write

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from squashlens.maps.view import SquashMap

T = TypeVar("T")
PHONE = 3.7  # inches that a screen of 390 pixels leaves for a figure
COUNT = "How many ones are in the following sequence? {} ="
COUNTED = (1, 2, 4, 8, 16, 32, 48, 64, 80, 90, 104, 120)  # numbers of ones; the next number is compared with each


@dataclass(frozen=True)
class Asked:
    """What a page is about: a prompt, and right answers to it and to another prompt, if they are known."""

    prompt: str
    answer: str | None = None
    instead: tuple[str, str] | None = None


@dataclass(frozen=True)
class Section:
    """A part of the page: a figure with a note and sentences."""

    title: str
    figure: "go.Figure | None"
    says: tuple[str, ...] = ()
    note: str = ""


@measurement(cheaper="A shorter prompt takes less.")
def report(
    model: str | Path | Bridge = "tiny-gemma",
    *,
    prompt: str | None = None,
    answer: str | None = None,
    instead: Sequence[str] | None = None,
    out: str | Path = "report.html",
    norm: Norm = "spectral",
    n: int | None = None,
) -> Path:
    """Measure what becomes of a prompt on the way to its last token, and write the results as an HTML page.

    Its first screen says what the model predicts, what became of the right answer, which tokens the prediction depends
    on, and what helps. Then come the prompt's squash map, figures, code to reproduce them, and the provenance. The page
    opens from disk without a network.

    A verdict is about a change that changes the right answer. So it needs the right answer and another prompt with its
    own. Without a prompt, the page is a demonstration: on tiny-gemma, a count that it cannot do beside others that it
    can; on other models a sentence in words, and ones to copy with and without commas.

    Args:
        model: anything that `squashlens.load` takes, or a loaded model.
        prompt: the prompt to measure; a demonstration by default.
        answer: the right answer to the prompt, as the model would write it.
        instead: another prompt, and its own right answer, which differs; together with `answer`. See
            `squashlens.verdict`.
        out: the file to write, with the ending ``.html`` or ``.htm``.
        norm: norm of the Jacobians.
        n: number of ones of the longest sequence in the part on collapse and recovery, at least 4. By default only the
            demonstration of other models has this part, with 48 ones.

    Returns:
        The path of the file.

    Raises:
        InputError: if `out` cannot be written, `n` is too small, or `answer` and `instead` are not given together.

    >>> import squashlens as sl
    >>> ask = "How many ones are in the following sequence? {} ="
    >>> path = sl.report("tiny-gemma", prompt=ask.format("1101"), answer="3", instead=(ask.format("11011"), "4"),
    ...                  out=tmp_path / "page.html")
    >>> path.name
    'page.html'
    """
    from squashlens.engine.capturing.capture import capture
    from squashlens.engine.loading.load import load
    from squashlens.maps.view import squash_map
    from squashlens.measure.answers.accuracy import top_tokens
    from squashlens.measure.squashing.jacobians.sketch import PROBES
    from squashlens.measure.squashing.knockout import knockout_effect
    from squashlens.measure.squashing.sensitivity import sensitivity

    out = require_output(out, (".html", ".htm"))
    given = _asked(prompt, answer, instead)
    if n is not None and n < collapse_sentences.FEWEST:
        raise InputError(f"n={n} is too small: a curve needs several lengths.", "Give at least 4.")
    bridge = load(model) if isinstance(model, str | Path) else model
    counts = given is None and _source(bridge) == "tiny-gemma"
    asked = given or _demonstration(counts)
    judged = _judge(bridge, asked)
    run = capture(bridge, asked.prompt, keep="residuals")
    # First, with the probes of the sensitivity, which uses its vector–Jacobian products again.
    view = squash_map(bridge, run, norm=norm, n_probes=PROBES)
    measured = sensitivity(bridge, run, norm=norm)
    knockout = or_why_not(lambda: knockout_effect(bridge, asked.prompt))
    evidence = Evidence(
        top_tokens(bridge, asked.prompt), measured, None if isinstance(knockout, SquashlensError) else knockout,
        judged, _remedies(bridge, asked, judged),
    )  # fmt: skip
    long = n or (None if given or counts else 48)
    parts = [*([_counting(bridge)] if counts else []), *([] if long is None else _growing(bridge, model, long))]
    return write(out, render(evidence, parts, view, asked, source=_source(bridge), n=long).encode("utf-8"))


def _asked(prompt: str | None, answer: str | None, instead: Sequence[str] | None) -> Asked | None:
    if prompt is None:
        if answer is not None or instead is not None:
            raise InputError("answer= and instead= are about a prompt, and prompt= is missing.", "Give the prompt too.")
        return None
    if (answer is None) != (instead is None):
        raise InputError(
            "answer= and instead= belong together: a verdict compares two right answers.",
            'Give both, as in answer="90", instead=("another prompt", "91"), or neither.',
        )
    if instead is not None and (isinstance(instead, str) or len(instead) != 2):
        raise InputError("instead= is not a prompt and its answer.", 'Give two texts: ("another prompt", "91").')
    return Asked(prompt, answer, None if instead is None else (instead[0], instead[1]))


def _demonstration(counts: bool) -> Asked:
    """What a page is about if its user gave no prompt."""
    if counts:
        return Asked(COUNT.format("1" * 90), "90", (COUNT.format("1" * 91), "91"))
    return Asked("The capital of France is", " Paris", ("The capital of Germany is", " Berlin"))


def _judge(model: Bridge, asked: Asked, n_random_models: int = 1) -> xr.Dataset | None:
    """The verdict on the prompt and the other one; None without right answers."""
    from squashlens.measure.answers.verdict import verdict

    if asked.answer is None or asked.instead is None:
        return None
    prompts, answers = [asked.prompt, asked.instead[0]], [asked.answer, asked.instead[1]]
    return verdict(model, prompts, answers, n_random_models=n_random_models)


def _remedies(model: Bridge, asked: Asked, judged: xr.Dataset | None) -> dict[str, xr.Dataset]:
    """The verdicts under changes of the attention, for a change of the prompt that the model did not use."""
    from squashlens import hooks
    from squashlens.engine.applied import applied

    if judged is None or str(judged["verdict"].values[0]) not in (PRESENT, UNRESOLVED):
        return {}
    tried: dict[str, xr.Dataset] = {}
    remedies = {
        "sharper attention (temperature 0.8)": hooks.attention_temperature(0.8),
        "adaptive temperature": hooks.adaptive_temperature(),
    }
    for name, hook in remedies.items():
        with applied(model, hook):
            found = or_why_not(lambda: _judge(model, asked, n_random_models=0))
        if isinstance(found, xr.Dataset):
            tried[name] = found
    return tried


def _counting(model: Bridge) -> Section:
    """Which counts of ones the model can do, and from which on n and n + 1 get one answer."""
    from squashlens import figures, prompts
    from squashlens.measure.answers.verdict import USED, verdict

    before, after = COUNT.split("{}")
    ones = prompts.repeated(model, "1", COUNTED[-1] + 1, prefix=before.strip(), suffix=after.strip())
    lengths = sorted({m for n in COUNTED for m in (n, n + 1)})
    found = verdict(model, ones, lambda items: str(len(items)), lengths=lengths, n_random_models=0)
    found = found.isel(pair=[at for at, n in enumerate(found["length"].values) if n in COUNTED])
    used = [int(n) for n in found["length"].values[found["verdict"].values == USED]]
    first = next((n for n in COUNTED if n > max(used, default=0)), None)
    says = f"n and n + 1 ones get their own answers for n = {', '.join(map(str, used)) or 'none'}."
    if first is not None:
        last = found.isel(pair=[*found["length"].values].index(first))
        says += f" From n = {first} on they do not: {decided_by(last)}"
    note = "The right answer is the number of ones. Above each pair of lengths is the verdict on it."
    return Section("Counts that it can do, and counts that it cannot", figures.verdict_odds(found), (says,), note)


def _growing(model: Bridge, source: object, n: int) -> list[Section]:
    """Ones to copy, with and without commas: their collapse, and which lengths can be told apart, by dtype."""
    from squashlens import figures, prompts
    from squashlens.engine.capturing.capture import capture
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.collapse.separation import separation

    panels = prompts.figure5(model, n)
    texts = {"c": "ones to copy", "d": "ones to copy, with commas"}
    found = {
        f"({letter}) {texts[letter]}": collapse(model, capture(model, panels[letter], baselines=["contrast"]))
        for letter in texts
    }
    dtypes = ("bfloat16", "float32") if isinstance(source, str | Path) else None
    subject: Any = source if dtypes else model
    apart = separation(subject, panels["c"], runs=dtypes, n_random_models=0)
    return [
        Section(
            "Collapse: ones with and without commas (figure 5 c, d)",
            figures.collapse_curve(found),
            tuple(f"{name}: {collapse_sentences.collapses(one)}" for name, one in found.items()),
            "v is a sequence, and v* the same with its last digit repeated. D is the L∞ distance of their last "
            "representations. After a whole group of three digits, v* breaks the rhythm of the commas.",
        ),
        Section(
            "Which lengths can be told apart",
            figures.separation_curve(apart),
            (collapse_sentences.recovers(apart),),
            "Ones to copy, without commas. Every length is run in three groupings into passes. A length is recovered "
            "if the nearest representation of another run is its own.",
        ),
    ]


def or_why_not(measured: Callable[[], T]) -> T | SquashlensError:
    """A measurement, or the error that says why it cannot be made on this model."""
    try:
        return measured()
    except SquashlensError as error:
        return error


def render(
    evidence: Evidence, parts: Sequence[Section], view: "SquashMap", asked: Asked, *, source: str, n: int | None = None
) -> str:
    """The page for given results, as HTML text; nothing is measured here. `source` is what the model is loaded from.

    The map and figures of the prompt are opened by a click, the map at once if there are no `parts`.
    """
    facts = provenance(evidence.measured)
    library = iter([True])  # plotly's code is included once, with the first figure

    def drawn(sections: Sequence[Section]) -> list[tuple[Section, str]]:
        return [
            (part, "" if part.figure is None else _embed(part.figure, with_library=next(library, False)))
            for part in sections
        ]

    return template("template.html.jinja", autoescape=True).render(
        answers=first_answers(evidence),
        map=view.section(),
        tokens=_strip(evidence),
        strip=dependence(evidence)[1],
        model_line=model_line(facts),
        model=named_models(facts)[0],
        parts=drawn(parts),
        folded=drawn(_of_the_prompt(evidence)),
        code=_code(facts, source, asked, n),
        facts=[(escape(name.replace("_", " ")), escape(fact_text(value))) for name, value in facts.items()],
    )


def _strip(evidence: Evidence) -> list[tuple[str, int, str]]:
    """Each token with the strength of its colour in per cent, of all probability or of the largest norm, and a text."""
    values, measured = dependence(evidence)[0], evidence.measured
    most = 1.0 if evidence.knockout is not None else max(values[compared(measured)].max(initial=0.0), 1e-30)
    tokens = map(str, measured["token"].values)
    return [(token, min(100, round(100 * one / most)), f"{one:.3g}") for token, one in zip(tokens, values, strict=True)]


def _of_the_prompt(evidence: Evidence) -> list[Section]:
    """The folded sections on the prompt: the two prompts by layer, and the influence of its tokens."""
    from squashlens import figures

    measured, parts = evidence.measured, []
    if evidence.judged is not None:
        note = "Distance of the two prompts at their last tokens, divided by what rounding does to both."
        parts.append(Section("The two prompts by layer", figures.verdict_margins(evidence.judged), (), note))
    says = (
        prompt_sentences.is_it_a_bound(measured), prompt_sentences.sinks(measured), prompt_sentences.ranks(measured),
        f"{certainty_of_norms(measured)}.",
    )  # fmt: skip
    title = "Path bound, null and Jacobian by token"
    return [*parts, Section(title, figures.attribution(measured), tuple(filter(None, says)))]


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


def _code(facts: dict[str, Any], source: str, asked: Asked, n: int | None) -> str:
    """The lines that make the figures of the page again."""
    code = template("code.py.jinja")
    return code.render(
        loaded=load_of(facts, source), prompt=repr(asked.prompt), norm=repr(facts["call"]["norm"]), asked=asked, n=n
    ).strip()


def _embed(figure: "go.Figure", *, with_library: bool) -> str:
    from squashlens.figures import styled

    figure = styled(figure, title="", width=PHONE)  # the page has its own heading
    figure.update_layout(width=None, autosize=True)  # margins fit a phone, and panels are as wide as the page
    config = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    return figure.to_html(full_html=False, include_plotlyjs=with_library, config=config, default_width="100%")
