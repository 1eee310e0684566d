"""The report: one HTML page that opens from disk and needs no network."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Norm, dtype_name
from squashlens.bars import bar, quiet
from squashlens.errors import InputError, SquashlensError
from squashlens.measure.answers.verdict_evidence import ANSWERED, LOST
from squashlens.measure.registration import measurement
from squashlens.model.anatomy import dtype_of
from squashlens.pages import collapse_sentences, prompt_sentences
from squashlens.pages.maps.payload import load_of
from squashlens.pages.page import Answer, Section, page_of, template
from squashlens.pages.prompt_sentences import Evidence, first_answers
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import percent
from squashlens.saving.files import PAGES, require_output, write

if TYPE_CHECKING:
    from squashlens.pages.maps.view import SquashMap

T = TypeVar("T")
COUNT = "How many ones are in the following sequence? {} ="
AROUND: Any = {
    "prefix": "How many ones are in the following sequence?",
    "suffix": "=",
}
# Numbers of ones to count; the next number is compared with each.
COUNTED = np.array([1, 4, 8, 16, 32, 47, 48, 64, 80, 90, 104, 120])
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
    if n is None and given is None and not counts:
        n = COPIED
    judges = asked.answer is not None
    lengths = PARTS_OF_LENGTHS * LENGTHS_TAKE if n else 0
    with bar(total=judges + PARTS + counts + lengths, desc="report") as done:
        judged = _judge(bridge, asked)
        done.update(judges)
        run = capture(bridge, asked.prompt, keep="residuals")
        knockout = None
        # A model whose tokens cannot be knocked out has a map without.
        view = _or_none(squash_map, bridge, run, norm=norm, knockout="attention")
        if view is None:
            view = squash_map(bridge, run, norm=norm)
        else:
            knockout = view.result.isel(query=-1)
        done.update()
        # With the probes of the map, so that its vector–Jacobian products are used again.
        measured = sensitivity(bridge, run, norm=norm, n_probes=FEWER)
        done.update()
        helped = _remedies(bridge, asked, judged)
        top = top_tokens(bridge, asked.prompt)
        evidence = Evidence(top, measured, knockout, judged, helped)
        done.update()
        sections = []
        if counts:
            sections.append(_counting(bridge))
            done.update()
        if n:
            source = model if isinstance(model, str | Path) else None
            sections += _growing(bridge, source, n, lambda: done.update(LENGTHS_TAKE))
    page = render(evidence, sections, view, asked, source=_source(bridge), n=n)
    return write(out, page.encode("utf-8"))


def _asked(
    prompt: str | None, answer: str | None, instead: tuple[str, str] | None
) -> Asked | None:
    if prompt is None and (answer is not None or instead is not None):
        raise InputError(
            "answer= and instead= are about a prompt, and prompt= is missing.",
            "Give the prompt too.",
        )
    if (answer is None) != (instead is None):
        raise InputError(
            "answer= and instead= belong together: a verdict compares two right answers.",
            'Give both, as in answer="90", instead=("another prompt", "91"), or neither; in a shell, '
            '--answer 90 --instead "another prompt" 91.',
        )
    return None if prompt is None else Asked(prompt, answer, instead)


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
    prompt, answer = asked.instead
    both = [asked.prompt, prompt], [asked.answer, answer]
    return verdict(model, *both, n_random_models=n_random_models)


def _remedies(
    model: Bridge, asked: Asked, judged: xr.Dataset | None
) -> dict[str, xr.Dataset]:
    """The verdicts under changes that may help, where both prompts do not get their own answers; by name."""
    from squashlens import hooks
    from squashlens.model.applied import applied

    if judged is None or judged["verdict"].values[0] in (ANSWERED, LOST):
        return {}
    remedies = {
        "sharper attention (temperature 0.8)": hooks.attention_temperature(0.8),
        "adaptive temperature": hooks.adaptive_temperature(),
    }
    tried = {}
    for name, hook in remedies.items():
        with applied(model, hook):
            found = _or_none(_judge, model, asked, n_random_models=0)
        if found is not None:
            tried[name] = found
    commas = _or_none(_commas, model, asked)
    return tried | commas if commas else tried


def _commas(model: Bridge, asked: Asked) -> dict[str, xr.Dataset]:
    """For two numbers of equal tokens to count, n and another one: the verdict on n and n + 3 with commas.

    A comma after every third token tells n from n + 1 by the place in their group alone. Nothing is tried if n and
    n + 3 get their own answers without commas.
    """
    from squashlens import prompts

    other_prompt, other_answer = asked.instead or ("", "")
    ids = prompts.tokenize(model, asked.prompt)[0].tolist()
    first = _runs(ids)
    second = _runs(prompts.tokenize(model, other_prompt)[0].tolist())
    if len(first) != len(second):
        return {}
    differing = [at for at in range(len(first)) if first[at] != second[at]]
    if len(differing) != 1:
        return {}
    token, n = first[differing[0]]
    other_token, other_n = second[differing[0]]
    answers = [str(asked.answer).strip(), other_answer.strip()]
    if token != other_token or answers != [str(n), str(other_n)]:
        return {}
    start = sum(size for _, size in first[: differing[0]])
    form: dict[str, Any] = {"prefix": ids[:start], "suffix": ids[start + n :]}
    content = [token] * (n + EVERY)
    lengths = [n, n + EVERY]
    without = _count(model, prompts.build(model, content, **form), lengths)
    said = without["verdict"].values[0]
    if said == ANSWERED:
        return {}
    name = f"a comma after every third token, for {n} and {n + EVERY} (without commas: {said})"
    commas = prompts.build(model, content, separator=",", **form)
    return {name: _count(model, commas, lengths)}


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Each token with the number of times that it is repeated."""
    return [(token, len(list(same))) for token, same in groupby(ids)]


def _count(model: Bridge, sequence: Any, lengths: list[int]) -> xr.Dataset:
    """The verdict on numbers of tokens, which the model is asked for."""
    from squashlens.measure.answers.verdict import verdict

    def number_of(items: tuple[str, ...]) -> str:
        return str(len(items))

    return verdict(model, sequence, number_of, lengths=lengths, n_random_models=0)


def _lengths_counted() -> list[int]:
    return np.union1d(COUNTED, COUNTED + 1).tolist()


def _counting(model: Bridge) -> Section:
    """Which counts of ones the model can do, and from which on n and n + 1 get one answer."""
    from squashlens import figures, prompts

    ones = prompts.repeated(model, "1", int(COUNTED[-1]) + 1, **AROUND)
    found = _count(model, ones, _lengths_counted())
    found = found.isel(pair=np.isin(found["length"], COUNTED))
    is_answered = found["verdict"].values == ANSWERED
    answered = COUNTED[is_answered]
    last = int(answered[-1])
    failed = int(COUNTED[np.searchsorted(COUNTED, last) + 1])  # it cannot do all
    pairs = ", ".join(map(str, answered))
    tried = (
        f"Of the pairs tried, n and n + 1 ones get their own answers for n = {pairs}."
    )
    verdict = f"Up to {last + 1}, of the numbers tried: {failed + 1} ones do not get their own answer."
    why = found.isel(pair=int(np.searchsorted(COUNTED, failed)))["reason"].item()
    return Section(
        "Counts that it can do, and counts that it cannot",
        says=[f"{verdict} {why}"],
        note="The right answer is the number of ones. Above each pair of lengths is the verdict on it.",
        figure=figures.verdict_odds(found),
        lead=Answer("How many ones can it count?", verdict, [tried]),
    )


def _growing(
    model: Bridge, source: str | Path | None, n: int, tick: Callable[[], object]
) -> list[Section]:
    """Ones to copy, with and without commas: which lengths can be told apart, by dtype, and their collapse."""
    from squashlens import figures, prompts
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.collapse.separation import separation
    from squashlens.model.loading.load import load
    from squashlens.run.captures.capture import capture

    panels = prompts.figure5(model, n)
    models = {dtype_name(dtype_of(model)): model}
    if source is not None:
        with quiet():
            half = _or_none(load, source, dtype="bfloat16")
        if half is not None:
            models = {"bfloat16": half} | models
    coarse = next(iter(models))
    apart = {}
    for dtype, bridge in models.items():
        random = 1 if dtype == coarse else 0
        apart[dtype] = separation(bridge, panels["c"], n_random_models=random)
    tick()
    shares = []
    for letter in "cd":
        thirds: Any = {"lengths": range(EVERY, n + 1, EVERY), "n_random_models": 0}
        found = separation(models[coarse], panels[letter], **thirds)
        shares.append(percent(found["recovery_y"].item()))
    tick()
    verdicts = []
    details = []
    for dtype, found in apart.items():
        verdicts.append(f"in {dtype} {percent(found['recovery_y'].item())}")
        details.append(f"In {dtype}, {collapse_sentences.recovers(found)}")
    details.append(
        f"In {coarse}, of every third length, where commas have the same place, {shares[1]} with commas and "
        f"{shares[0]} without."
    )
    verdict = f"{'; '.join(verdicts).capitalize()}."
    told = Section(
        "Which lengths can be told apart",
        says=details,
        note="Ones to copy. Every length is run whole with fused attention, and in pieces of two sizes with written "
        "patterns, which round otherwise. A length is recovered if the nearest representation of another run is its "
        "own.",
        figure=figures.separation_curve(apart),
        lead=Answer(
            f"How many of 1 to {n} ones can it tell apart?",
            verdict,
            [details[0], details[-1]],
        ),
    )
    about = "v is a sequence, and v* the same with its last digit repeated. D is the L∞ distance of their last states."
    commas = "After a whole group of three digits, v* breaks the rhythm of the commas."
    notes = {
        "c": ("ones to copy (figure 5 c)", about),
        "d": ("ones to copy, with commas (figure 5 d)", f"{about} {commas}"),
    }
    sections = [told]
    for letter, (title, note) in notes.items():
        found = collapse(model, capture(model, panels[letter], baselines=["contrast"]))
        said = [collapse_sentences.collapses(found)]
        figure = figures.collapse_curve(found)
        sections.append(Section(f"Collapse: {title}", said, note, figure))
    tick()
    return sections


def _or_none(measure: Callable[..., T], *given: Any, **options: Any) -> T | None:
    """A measurement, or None if it cannot be made on this model."""
    with suppress(SquashlensError):
        return measure(*given, **options)
    return None


def render(
    evidence: Evidence,
    sections: list[Section],
    view: "SquashMap",
    asked: Asked,
    *,
    source: str,
    n: int | None = None,
) -> str:
    """The page for given results, as HTML text; nothing is measured here. `source` is what the model is loaded from.

    The map and figures of the prompt are opened by a click, the map at once if there are no other sections.
    """
    facts = provenance(evidence.measured)
    leads = [section.lead for section in sections if section.lead]
    shown = Section("Every token and layer", html=view.section(), folded=bool(sections))
    meaning = "Jacobian norm"
    if evidence.knockout is not None:
        meaning = "share of the probability that moves without the token"
    return page_of(
        "template.html.jinja",
        [*sections, shown, *_of_the_prompt(evidence)],
        facts,
        answers=[*leads, *first_answers(evidence)],
        tokens=_strip(evidence),
        strip=meaning,
        model=models_of(evidence.measured)[0],
        code=_code(
            facts,
            source,
            asked,
            n,
            knockout=evidence.knockout is not None,
            helped=bool(evidence.helped),
        ),
    )


def _strip(evidence: Evidence) -> list[tuple[str, int, str]]:
    """Each token with the strength of its colour in per cent, of all probability or of the largest norm, and a text."""
    values = evidence.dependence
    most = 1.0
    if evidence.knockout is None:
        most = values[evidence.compared].max(initial=1e-30)
    strengths = np.clip(100 * values / most, 0, 100).round().astype(int).tolist()
    texts = [f"{value:.3g}" for value in values]
    tokens = evidence.measured["token"].values.astype(str).tolist()
    return list(zip(tokens, strengths, texts, strict=True))


def _of_the_prompt(evidence: Evidence) -> list[Section]:
    """The folded sections on the prompt: the two prompts by layer, and the influence of its tokens."""
    from squashlens import figures

    sections = []
    if evidence.judged is not None:
        note = "Distance of the two prompts at their last tokens, divided by what rounding does to both."
        figure = figures.verdict_margins(evidence.judged)
        title = "The two prompts by layer"
        sections.append(Section(title, note=note, figure=figure, folded=True))
    measured = evidence.measured
    said = [
        prompt_sentences.sinks(measured),
        prompt_sentences.ranks(measured),
        prompt_sentences.certainty_of_norms(measured),
    ]
    title = "Path bound, null and Jacobian by token"
    figure = figures.attribution(measured)
    sections.append(Section(title, said, figure=figure, folded=True))
    return sections


def _source(model: Bridge) -> str:
    """What the model is loaded from: a name, or the folder of a local model, which results name without its path."""
    given = str(model.cfg.model_name)
    for name in zoo.bundled():
        if given == str(zoo.folder(name)):
            return name
    return given


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
    counts = asked == _demonstration(counts=True)
    lines = template("code.py.jinja").render(
        asked=asked,
        prompt=repr(asked.prompt),
        dtype=facts["dtype"],
        call=facts["call"],
        loaded=load_of(facts, source),
        coarse=load_of(facts | {"dtype": "bfloat16"}, source),
        n=n,
        form=AROUND,
        counted=_lengths_counted() if counts else [],
        knockout=knockout,
        helped=helped,
    )
    return lines.strip()
