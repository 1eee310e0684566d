"""The report: one HTML page that opens from disk and needs no network."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Norm, dtype_name
from squashlens.bars import bar, quiet
from squashlens.errors import InputError, SquashlensError
from squashlens.measure.answers.verdict_evidence import ANSWERED, LOST
from squashlens.measure.registration import measurement
from squashlens.model.anatomy import dtype_of
from squashlens.pages import collapse_sentences, prompt_sentences
from squashlens.pages.first_screen import (
    Answer,
    Evidence,
    compared,
    dependence,
    first_answers,
    sentence,
)
from squashlens.pages.maps.payload import fact_text, load_of
from squashlens.pages.markup import template
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import escape, percent
from squashlens.saving.files import PAGES, require_output, write

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from squashlens.pages.maps.view import SquashMap
    from squashlens.sequences import GrowingSequence

T = TypeVar("T")
WIDTHS = {
    "phone": 3.7,
    "desk": 6.75,
}  # inches that screens of 390 and 680 pixels leave for a figure
COUNT = "How many ones are in the following sequence? {} ="
AROUND: dict[str, Any] = dict(
    zip(("prefix", "suffix"), map(str.strip, COUNT.split("{}")), strict=True)
)
COUNTED = (
    1,
    4,
    8,
    16,
    32,
    47,
    48,
    64,
    80,
    90,
    104,
    120,
)  # numbers of ones; the next number is compared with each
COPIED = 192  # ones, of which a trained model in bfloat16 confuses many lengths
# Parts of a page that are measured one after the other, for the time that it will take.
PARTS = 3
PARTS_OF_LENGTHS = 3
LENGTHS_TAKE = 12  # times as long as another part: 125 s and 9 s on Gemma 3 270M
EVERY = 3  # tokens in a group that ends with a comma


@dataclass(frozen=True)
class Asked:
    """What a page is about: a prompt, and right answers to it and to another prompt, if they are known."""

    prompt: str
    answer: str | None = None
    instead: tuple[str, str] | None = None


@dataclass(frozen=True)
class Section:
    """A part of the page: a figure with a note and sentences, and what the first screen says of it, if anything."""

    title: str
    figure: "go.Figure"
    says: tuple[str, ...] = ()
    note: str = ""
    lead: Answer | None = None


@measurement(
    cheaper="A shorter prompt takes less; with prompt= or a smaller n=, lengths of ones take less too."
)
def report(
    model: str | Path | Bridge = "tiny-gemma",
    *,
    prompt: str | None = None,
    answer: str | None = None,
    instead: tuple[str, str] | None = None,
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
    can; on other models a sentence in words, and which lengths of ones to copy can be told apart.

    Args:
        model: anything that `squashlens.load` takes, or a loaded model.
        prompt: the prompt to measure; a demonstration by default.
        answer: the right answer to the prompt, as the model would write it.
        instead: another prompt, and its own right answer, which differs; together with `answer`. See
            `squashlens.verdict`.
        out: the file to write, with the ending ``.html`` or ``.htm``.
        norm: norm of the Jacobians.
        n: number of ones of the longest sequence in the part on recovery and collapse, at least 6. By default only the
            demonstration of other models has this part, with 192 ones.

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
    from squashlens.measure.answers.accuracy import top_tokens
    from squashlens.measure.squashing.sensitivity import sensitivity
    from squashlens.model.loading.load import load
    from squashlens.pages.maps.view import FEWER, squash_map
    from squashlens.run.captures.capture import capture

    out = require_output(out, PAGES)
    given = _asked(prompt, answer, instead)
    if n is not None and n < 2 * EVERY:
        raise InputError(
            f"n={n} is too small: a curve needs several lengths.",
            f"Give at least {2 * EVERY}.",
        )
    bridge = load(model) if isinstance(model, str | Path) else model
    counts = given is None and _source(bridge) == "tiny-gemma"
    asked = given or _demonstration(counts)
    long = n or (None if given or counts else COPIED)
    answers = int(asked.answer is not None)
    lengths = 0 if long is None else PARTS_OF_LENGTHS * LENGTHS_TAKE
    with bar(total=answers + PARTS + counts + lengths, desc="report") as done:
        judged = _judge(bridge, asked)
        done.update(answers)
        run = capture(bridge, asked.prompt, keep="residuals")
        # A model whose tokens cannot be knocked out has a map without.
        knocked_out = _or_none(
            lambda: squash_map(bridge, run, norm=norm, knockout="attention")
        )
        view = knocked_out or squash_map(bridge, run, norm=norm)
        done.update()
        # With the probes of the map, so that its vector–Jacobian products are used again.
        measured = sensitivity(bridge, run, norm=norm, n_probes=FEWER)
        knockout = knocked_out and knocked_out.result.isel(query=-1)
        done.update()
        helped = _remedies(bridge, asked, judged)
        evidence = Evidence(
            top_tokens(bridge, asked.prompt), measured, knockout, judged, helped
        )
        done.update()
        parts = [_counting(bridge)] if counts else []
        done.update(len(parts))
        if long is not None:
            parts += _growing(bridge, model, long, lambda: done.update(LENGTHS_TAKE))
    return write(
        out,
        render(evidence, parts, view, asked, source=_source(bridge), n=long).encode(
            "utf-8"
        ),
    )


def _asked(
    prompt: str | None, answer: str | None, instead: tuple[str, str] | None
) -> Asked | None:
    if prompt is None:
        if answer is not None or instead is not None:
            raise InputError(
                "answer= and instead= are about a prompt, and prompt= is missing.",
                "Give the prompt too.",
            )
        return None
    if (answer is None) != (instead is None):
        raise InputError(
            "answer= and instead= belong together: a verdict compares two right answers.",
            'Give both, as in answer="90", instead=("another prompt", "91"), or neither; in a shell, '
            '--answer 90 --instead "another prompt" 91.',
        )
    return Asked(prompt, answer, instead)


def _demonstration(counts: bool) -> Asked:
    """What a page is about if its user gave no prompt."""
    if counts:
        return Asked(COUNT.format("1" * 90), "90", (COUNT.format("1" * 91), "91"))
    fact = "The capital of France is Paris. The capital of {} is"
    return Asked(fact.format("Germany"), " Berlin", (fact.format("Italy"), " Rome"))


def _judge(model: Bridge, asked: Asked, n_random_models: int = 1) -> xr.Dataset | None:
    """The verdict on the prompt and the other one; None without right answers."""
    from squashlens.measure.answers.verdict import verdict

    if asked.answer is None or asked.instead is None:
        return None
    prompts, answers = (
        [asked.prompt, asked.instead[0]],
        [asked.answer, asked.instead[1]],
    )
    return verdict(model, prompts, answers, n_random_models=n_random_models)


def _remedies(
    model: Bridge, asked: Asked, judged: xr.Dataset | None
) -> dict[str, xr.Dataset]:
    """The verdicts under changes of the attention, and with commas, where not both right answers are written."""
    from squashlens import hooks
    from squashlens.model.applied import applied

    if judged is None or str(judged["verdict"].values[0]) in (ANSWERED, LOST):
        return {}
    tried = {}
    remedies = {
        "sharper attention (temperature 0.8)": hooks.attention_temperature(0.8),
        "adaptive temperature": hooks.adaptive_temperature(),
    }
    for name, hook in remedies.items():
        with applied(model, hook):
            tried[name] = _or_none(lambda: _judge(model, asked, n_random_models=0))
    tried |= _or_none(lambda: _commas(model, asked)) or {}
    return {name: found for name, found in tried.items() if found is not None}


def _commas(model: Bridge, asked: Asked) -> dict[str, xr.Dataset]:
    """For two numbers of equal tokens to count, n and another one: the verdict on n and n + 3 with commas.

    A comma after every third token tells n from n + 1 by the place in their group alone. Nothing is tried if n and
    n + 3 get their own answers without commas.
    """
    from squashlens import prompts

    instead, other = asked.instead or ("", "")
    ids, others = (
        prompts.tokenize(model, text)[0].tolist() for text in (asked.prompt, instead)
    )
    first, second = (
        [(token, len([*same])) for token, same in groupby(each)]
        for each in (ids, others)
    )
    differ = [
        k
        for k, (one, another) in enumerate(zip(first, second, strict=False))
        if one != another
    ]
    if len(first) != len(second) or len(differ) != 1:
        return {}
    (token, n), (another, m) = first[differ[0]], second[differ[0]]
    if token != another or [str(asked.answer).strip(), other.strip()] != [
        str(n),
        str(m),
    ]:
        return {}
    start = sum(size for _, size in first[: differ[0]])
    form: dict[str, Any] = {"prefix": ids[:start], "suffix": ids[start + n :]}
    content, lengths = [token] * (n + EVERY), [n, n + EVERY]
    without, commas = (
        _count(
            model, prompts.build(model, content, separator=separator, **form), lengths
        )
        for separator in (None, ",")
    )
    said = str(without["verdict"].values[0])
    name = f"a comma after every third token, for {n} and {n + EVERY} (without commas: {said})"
    return {} if said == ANSWERED else {name: commas}


def _count(
    model: Bridge, sequence: "GrowingSequence", lengths: list[int]
) -> xr.Dataset:
    """The verdict on numbers of tokens, which the model is asked for."""
    from squashlens.measure.answers.verdict import verdict

    return verdict(
        model,
        sequence,
        lambda items: str(len(items)),
        lengths=lengths,
        n_random_models=0,
    )


def _counting(model: Bridge) -> Section:
    """Which counts of ones the model can do, and from which on n and n + 1 get one answer."""
    from squashlens import figures, prompts

    ones = prompts.repeated(model, "1", COUNTED[-1] + 1, **AROUND)
    found = _count(model, ones, _lengths_counted())
    found = found.isel(
        pair=[at for at, n in enumerate(found["length"].values) if n in COUNTED]
    )
    answered = [
        n
        for n, said in zip(COUNTED, found["verdict"].values, strict=True)
        if said == ANSWERED
    ]
    first = next(
        n for n in COUNTED if n > max(answered)
    )  # of the bundled model, which cannot do all
    says = f"Of the pairs tried, n and n + 1 ones get their own answers for n = {', '.join(map(str, answered))}."
    verdict = f"Up to {max(answered) + 1}, of the numbers tried: {first + 1} ones do not get their own answer."
    why = str(found["reason"].values[COUNTED.index(first)])
    note = "The right answer is the number of ones. Above each pair of lengths is the verdict on it."
    lead = Answer("How many ones can it count?", verdict, (says,))
    title = "Counts that it can do, and counts that it cannot"
    return Section(
        title, figures.verdict_odds(found), (f"{verdict} {why}",), note, lead
    )


def _lengths_counted() -> list[int]:
    return sorted({m for n in COUNTED for m in (n, n + 1)})


def _growing(
    model: Bridge, source: object, n: int, tick: Callable[[], object]
) -> list[Section]:
    """Ones to copy, with and without commas: which lengths can be told apart, by dtype, and their collapse."""
    from squashlens import figures, prompts
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.collapse.separation import separation
    from squashlens.model.loading.load import load
    from squashlens.run.captures.capture import capture

    panels, models = prompts.figure5(model, n), {dtype_name(dtype_of(model)): model}
    if isinstance(source, str | Path):
        with quiet():
            half = _or_none(lambda: load(source, dtype="bfloat16"))
        models = models if half is None else {"bfloat16": half} | models
    coarse, *_ = models
    apart = {
        dtype: separation(one, panels["c"], n_random_models=int(dtype == coarse))
        for dtype, one in models.items()
    }
    tick()
    thirds = [
        separation(
            models[coarse],
            panels[letter],
            lengths=range(EVERY, n + 1, EVERY),
            n_random_models=0,
        )
        for letter in "cd"
    ]
    tick()
    without, commas = (percent(float(one["recovery_y"])) for one in thirds)
    verdict = "; ".join(
        f"in {dtype} {percent(float(one['recovery_y']))}"
        for dtype, one in apart.items()
    )
    details = (
        *(
            f"In {dtype}, {collapse_sentences.recovers(one)}"
            for dtype, one in apart.items()
        ),
        f"In {coarse}, of every third length, where commas have the same place, {commas} with commas and {without} "
        "without.",
    )
    note = (
        "Ones to copy. Every length is run whole with fused attention, and in pieces of two sizes with written "
        "patterns, which round otherwise. A length is recovered if the "
        "nearest representation of another run is its own."
    )
    lead = Answer(
        f"How many of 1 to {n} ones can it tell apart?",
        f"{sentence(verdict)}.",
        (details[0], details[-1]),
    )
    told = Section(
        "Which lengths can be told apart",
        figures.separation_curve(apart),
        details,
        note,
        lead,
    )
    about = "v is a sequence, and v* the same with its last digit repeated. D is the L∞ distance of their last states."
    commas = "After a whole group of three digits, v* breaks the rhythm of the commas."
    curves = [
        collapse(model, capture(model, panels[letter], baselines=["contrast"]))
        for letter in "cd"
    ]
    tick()
    titles = (
        ("ones to copy (figure 5 c)", about),
        ("ones to copy, with commas (figure 5 d)", f"{about} {commas}"),
    )
    return [told] + [
        Section(
            f"Collapse: {title}",
            figures.collapse_curve(one),
            (collapse_sentences.collapses(one),),
            note,
        )
        for one, (title, note) in zip(curves, titles, strict=True)
    ]


def _or_none(measured: Callable[[], T]) -> T | None:
    """A measurement, or None if it cannot be made on this model."""
    with suppress(SquashlensError):
        return measured()
    return None


def render(
    evidence: Evidence,
    parts: Sequence[Section],
    view: "SquashMap",
    asked: Asked,
    *,
    source: str,
    n: int | None = None,
) -> str:
    """The page for given results, as HTML text; nothing is measured here. `source` is what the model is loaded from.

    The map and figures of the prompt are opened by a click, the map at once if there are no `parts`.
    """
    facts = provenance(evidence.measured)
    library = iter([True])  # plotly's code is included once, with the first figure

    def drawn(sections: Sequence[Section]) -> list[tuple[Section, str]]:
        return [
            (part, _embed(part.figure, with_library=next(library, False)))
            for part in sections
        ]

    return template("template.html.jinja", autoescape=True).render(
        answers=[*(part.lead for part in parts if part.lead), *first_answers(evidence)],
        map=view.section(),
        tokens=_strip(evidence),
        strip=dependence(evidence)[1],
        model=models_of(evidence.measured)[0],
        parts=drawn(parts),
        folded=drawn(_of_the_prompt(evidence)),
        code=_code(
            facts,
            source,
            asked,
            n,
            knockout=evidence.knockout is not None,
            helped=bool(evidence.helped),
        ),
        facts=[
            (escape(name.replace("_", " ")), escape(fact_text(value)))
            for name, value in facts.items()
        ],
    )


def _strip(evidence: Evidence) -> list[tuple[str, int, str]]:
    """Each token with the strength of its colour in per cent, of all probability or of the largest norm, and a text."""
    values, measured = dependence(evidence)[0], evidence.measured
    most = (
        1.0
        if evidence.knockout is not None
        else max(values[compared(measured)].max(initial=0.0), 1e-30)
    )
    tokens = map(str, measured["token"].values)
    return [
        (token, min(100, round(100 * one / most)), f"{one:.3g}")
        for token, one in zip(tokens, values, strict=True)
    ]


def _of_the_prompt(evidence: Evidence) -> list[Section]:
    """The folded sections on the prompt: the two prompts by layer, and the influence of its tokens."""
    from squashlens import figures

    measured, parts = evidence.measured, []
    if evidence.judged is not None:
        note = "Distance of the two prompts at their last tokens, divided by what rounding does to both."
        parts.append(
            Section(
                "The two prompts by layer",
                figures.verdict_margins(evidence.judged),
                (),
                note,
            )
        )
    says = (
        prompt_sentences.sinks(measured),
        prompt_sentences.ranks(measured),
        f"{prompt_sentences.certainty_of_norms(measured)}.",
    )
    title = "Path bound, null and Jacobian by token"
    return [
        *parts,
        Section(title, figures.attribution(measured), tuple(filter(None, says))),
    ]


def _source(model: Bridge) -> str:
    """What the model is loaded from: a name, or the folder of a local model, which results name without its path."""
    given = str(model.cfg.model_name)
    return next(
        (name for name in zoo.bundled() if given == str(zoo.folder(name))), given
    )


def _code(
    facts: dict[str, Any],
    source: str,
    asked: Asked,
    n: int | None,
    *,
    knockout: bool = True,
    helped: bool = False,
) -> str:
    """The lines that measure again what is on the page."""
    loaded, coarse = (
        load_of(facts, source),
        load_of(facts | {"dtype": "bfloat16"}, source),
    )
    stated = {
        "prompt": repr(asked.prompt),
        "norm": repr(facts["call"]["norm"]),
        "dtype": repr(facts["dtype"]),
    }
    stated |= {
        "loaded": loaded,
        "coarse": coarse,
        "probes": facts["call"]["n_probes"],
        "asked": asked,
        "n": n,
    }
    stated |= {
        "form": AROUND,
        "counted": _lengths_counted() if asked == _demonstration(True) else [],
    }
    return (
        template("code.py.jinja")
        .render(stated, knockout=knockout, helped=helped)
        .strip()
    )


def _embed(figure: "go.Figure", *, with_library: bool) -> str:
    """A figure laid out for each screen; the page shows that of its width."""
    from squashlens.figures import styled

    config, drawn = (
        {
            "responsive": True,
            "displaylogo": False,
            "displayModeBar": False,
            "typesetMath": False,
        },
        [],
    )
    for screen, width in WIDTHS.items():
        fitted = styled(figure, title="", width=width)  # the page has its own heading
        fitted.update_layout(
            width=None, autosize=True
        )  # margins fit the screen, and panels are as wide as the page
        library = with_library and not drawn
        html = fitted.to_html(
            full_html=False,
            include_plotlyjs=library,
            config=config,
            default_width="100%",
        )
        drawn.append(f'<div class="{screen}">{html}</div>')
    return "".join(drawn)
