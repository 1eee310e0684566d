"""The report: one HTML page on the way of a prompt's answer, which opens from disk and needs no network."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import xarray as xr

from squashlens import example_models
from squashlens._typing import Bridge, Norm
from squashlens.bars import bar
from squashlens.errors import InputError, SquashlensError
from squashlens.measure.registration import measurement
from squashlens.model.text.context import text_after, tokenize_after
from squashlens.model.text.tokens import tokenize
from squashlens.pages.maps.payload import load_of
from squashlens.pages.page import Section, page_of, template
from squashlens.pages.prompt_sentences import (
    Changed,
    Evidence,
    helps,
    left_out,
    of_the_pair,
    said,
    way,
)
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import percent
from squashlens.saving.files import PAGES, require_output, write
from squashlens.theory.distances import NOISE_FLOORS

if TYPE_CHECKING:
    from squashlens.pages.maps.view import SquashMap

T = TypeVar("T")
LIKELIEST = (
    8  # next tokens, among which is one that the right answer does not begin with
)
PROBES = 16  # of the map's sketch: half of a map's, since the page has to be quick


@dataclass(frozen=True)
class Asked:
    """What a page is about: a prompt and its right answer, another prompt with its own, and further choices."""

    prompt: str
    answer: str | None = None
    instead: tuple[str, str] | None = None
    choices: tuple[str, ...] = ()

    @property
    def others(self) -> list[str]:
        """The right answers of other prompts, as far as they are known."""
        known = list(self.choices)
        if self.instead is not None:
            known.append(self.instead[1])
        return [text for text in dict.fromkeys(known) if text != self.answer]


# What a page is about if its user gave no prompt. Both answers are there at a layer, and do not win.
COUNT = Asked(
    "How many ones are in the following sequence? "
    "100111011101110100010100111111101110000110101010011010011011 =",
    "35",
    choices=("33", "34", "36", "37"),
)
VALUE = Asked(
    "David: brown\nTom: orange\nJulia: gold\nLaura: silver\nPaul: black\nMaria: green\nEmma: yellow\n"
    "Peter: pink\nEmma:",
    " yellow",
    choices=(" brown", " orange", " gold", " silver", " black", " green", " pink"),
)


@measurement(cheaper="A shorter prompt takes less.")
def report(
    model: str | Path | Bridge = "tiny-gemma",
    *,
    prompt: str | None = None,
    answer: str | None = None,
    instead: tuple[str, str] | None = None,
    choices: Sequence[str] | None = None,
    out: str | Path = "report.html",
    norm: Norm = "spectral",
) -> Path:
    """Measure the way of a prompt's answer to its last token, and write it as an HTML page.

    The page opens with what the model says and whether it is right, and with one picture: the probability of the right
    answer and of the one that wins, layer by layer, and which attention and MLP write for and against it. Above it are
    the tokens by what the answer loses without them. Then come the squash map of the prompt and, if the answer is
    wrong, what helps of some changes tried on this prompt. The page opens from disk without a network.

    Without a prompt, the page is a demonstration: on tiny-gemma a count that goes wrong, on other models a value that
    is asked for by its name. Without a right answer, the page is about the likeliest token and the next.

    Args:
        model: anything that `squashlens.load` takes, or a loaded model.
        prompt: the prompt to measure; a demonstration by default.
        answer: the right answer to the prompt, as the model would write it after the prompt, with its space.
        instead: another prompt, and its own right answer, which differs, for a verdict on the change between the two;
            only with `answer`. See `squashlens.diagnose`.
        choices: right answers of other prompts, which are drawn beside the right one as a control; only with `answer`.
        out: the file to write, with the ending ``.html`` or ``.htm``.
        norm: norm of the Jacobians.

    Returns:
        The path of the file.

    Raises:
        InputError: if `out` cannot be written, or `answer`, `instead` or `choices` are given without what they need.
        UnsoundModelError: the logits do not follow from the last layer by the final norm.

    >>> import squashlens as sl
    >>> ask = "How many ones are in the following sequence? {} ="
    >>> path = sl.report("tiny-gemma", prompt=ask.format("1101"), answer="3", choices=["4", "5"],
    ...                  out=tmp_path / "page.html")
    >>> path.name
    'page.html'
    """
    from squashlens.measure.answers.top_tokens import top_tokens
    from squashlens.model.loading.load import load

    out = require_output(out, PAGES)
    asked = _asked(prompt, answer, instead, tuple(choices or ()))
    bridge = load(model) if isinstance(model, str | Path) else model
    if asked is None:  # a demonstration
        asked = COUNT if _source(bridge) == "tiny-gemma" else VALUE
    with bar(total=3 + bool(asked.instead), desc="report") as done:
        top = top_tokens(bridge, asked.prompt, k=LIKELIEST)
        right, *others = _choices(bridge, asked, top)
        answer_way = _way_of(bridge, asked.prompt, right, others)
        if not asked.others:  # then the other choice is no control
            answer_way = answer_way.drop_sel(scored="other choices")
        goes_on = _goes_on(bridge, asked, answer_way)
        done.update()
        rival = answer_way["rival"].values.item()
        view = _map_of(bridge, asked.prompt, norm, right, rival)
        done.update()
        judged = _judge(bridge, asked)
        done.update(judged is not None)
        is_known = asked.answer is not None
        evidence = Evidence(top, answer_way, is_known, goes_on)
        changes = []
        if is_known and evidence.is_wrong:
            changes = _hooks_tried(bridge, asked.prompt, right, others)
            without = _sublayers_left_out(bridge, asked.prompt, right, rival)
            if without is not None:
                changes.append(left_out(without, evidence.right, evidence.rival))
        done.update()
    page = render(evidence, view, asked, judged, changes, source=_source(bridge))
    return write(out, page.encode("utf-8"))


def _asked(
    prompt: str | None,
    answer: str | None,
    instead: tuple[str, str] | None,
    choices: tuple[str, ...],
) -> Asked | None:
    """What a user asked, or None without a prompt; an error for what is given without the argument it belongs to."""
    if prompt is None and (answer is not None or instead is not None or choices):
        raise InputError(
            "answer=, instead= and choices= are about a prompt, and prompt= is missing.",
            "Give the prompt too.",
        )
    if answer is None and (instead is not None or choices):
        raise InputError(
            "instead= and choices= are compared with the right answer, and answer= is missing.",
            'Give it too, as in answer="90", instead=("another prompt", "91"); in a shell, --answer 90 '
            '--instead "another prompt" 91.',
        )
    return None if prompt is None else Asked(prompt, answer, instead, choices)


def _choices(model: Bridge, asked: Asked, top: xr.DataArray) -> list[str]:
    """The answers to compare, the right one first.

    If it was not given, the likeliest next token is in its place. If no others are known, the other one is the
    likeliest token that neither begins the right answer nor is begun by it; `top` are the likeliest tokens.
    """
    ids = tokenize(model, asked.prompt)[0].tolist()
    likeliest = []
    for token in top["token_id"].values.tolist():
        text = text_after(model.tokenizer, ids, [token])
        # Answers are given as text, so the text of a token has to be tokenized into the same token.
        if _or_none(tokenize_after, model, ids, text) == (token,):
            likeliest.append(text)
    right = asked.answer or likeliest[0]
    if asked.others:
        return [right, *asked.others]
    for text in likeliest:
        if not right.startswith(text) and not text.startswith(right):
            return [right, text]
    return [right]


def _way_of(
    model: Bridge, prompt: str, right: str, others: Sequence[str]
) -> xr.Dataset:
    """The way of an answer. Without random weights: there it is a line at 0, and would take a third of the time."""
    from squashlens.measure.answers.answer_by_layer import answer_by_layer

    choices = [right, *others]
    return answer_by_layer(model, [prompt], [right], choices=choices, n_random_models=0)


def _goes_on(model: Bridge, asked: Asked, found: xr.Dataset) -> bool:
    """Whether the model writes the right answer and then a letter or digit, which makes it another one."""
    from squashlens.measure.answers.top_tokens import top_tokens

    if asked.answer is None or not found["answered"].item():
        return False
    after = top_tokens(model, asked.prompt + asked.answer, k=1)
    return str(after["token"].item())[:1].isalnum()


def _map_of(
    model: Bridge, prompt: str, norm: Norm, right: str, rival: str
) -> "SquashMap":
    """The map of the prompt, with what each token does for the answer if the model's tokens can be knocked out."""
    from squashlens.pages.maps.view import squash_map

    options: Any = {"norm": norm, "n_probes": PROBES}
    view = _or_none(squash_map, model, prompt, target=(right, rival), **options)
    return view or squash_map(model, prompt, **options)


def _judge(model: Bridge, asked: Asked) -> xr.Dataset | None:
    """The verdict on the prompt and the other one; None without another one."""
    from squashlens.measure.answers.diagnose import diagnose

    if asked.answer is None or asked.instead is None:
        return None
    prompt, answer = asked.instead
    return diagnose(model, [asked.prompt, prompt], [asked.answer, answer])


def _hooks_tried(
    model: Bridge, prompt: str, right: str, others: Sequence[str]
) -> list[Changed]:
    """What becomes of the right answer under hooks that may help."""
    from squashlens import hooks
    from squashlens.model.applied import applied

    tried = {
        "With sharper attention (temperature 0.8)": hooks.attention_temperature(0.8),
        "With adaptive temperature": hooks.adaptive_temperature(),
    }
    changes = []
    for name, hook in tried.items():
        with applied(model, hook):
            found = _or_none(_way_of, model, prompt, right, others)
        if found is not None:
            changes.append(helps(name, found))
    return changes


def _sublayers_left_out(
    model: Bridge, prompt: str, right: str, rival: str
) -> xr.Dataset | None:
    """The lead of the right answer without each attention and MLP, at the token where its rival leaves it."""
    from squashlens.measure.answers.sublayer_effects import sublayer_effects

    # What both answers begin with becomes a part of the prompt.
    common = commonprefix([right, rival])  # noqa: RUF071 (texts, not paths)
    if not common.strip():  # a space belongs to the token after it
        common = ""
    texts = [text.removeprefix(common) for text in (right, rival)]
    return _or_none(
        sublayer_effects, model, [prompt + common], texts[:1], choices=texts
    )


def _or_none(measure: Callable[..., T], *given: Any, **options: Any) -> T | None:
    """A measurement, or None if it cannot be made on this model."""
    with suppress(SquashlensError):
        return measure(*given, **options)
    return None


def render(
    evidence: Evidence,
    view: "SquashMap",
    asked: Asked,
    judged: xr.Dataset | None = None,
    changes: Sequence[Changed] = (),
    *,
    source: str,
) -> str:
    """The page for given results, as HTML text; nothing is measured here.

    Args:
        evidence: the likeliest next tokens, and the way of the answer.
        view: the squash map of the prompt.
        asked: what the page is about.
        judged: the result of `diagnose` for the prompt and another one.
        changes: changes that were tried on the prompt.
        source: what the model is loaded from.
    """
    from squashlens import figures

    facts = provenance(evidence.way)
    sentence = way(evidence)
    picture = Section("", figure=figures.answer_way(evidence.way))
    squash = Section("Squash map", html=view.section(sentence))
    sections = [picture, squash, *_details(evidence, asked, judged, changes)]
    return page_of(
        "template.html.jinja",
        sections,
        facts,
        title="The way of an answer",
        said=said(evidence),
        state=evidence.state,
        sentence=sentence,
        ribbon=_ribbon(view, evidence),
        model=models_of(evidence.way)[0],
        code=_code(
            facts,
            source,
            asked,
            evidence,
            has_verdict=judged is not None,
            has_changes=bool(changes),
        ),
    )


def _details(
    evidence: Evidence,
    asked: Asked,
    judged: xr.Dataset | None,
    changes: Sequence[Changed],
) -> list[Section]:
    """What helps, the verdict on two prompts, and the likeliest next tokens, as far as they were measured."""
    from squashlens import figures

    sections = []
    if changes:
        sections.append(
            Section(
                "What helps, of changes tried on this prompt",
                [change.sentence for change in changes],
                "One prompt says nothing of others: what helps here was selected among what was tried.",
            )
        )
    if judged is not None:
        sections.append(
            Section(
                "Beside the other prompt",
                of_the_pair(judged, asked.instead),
                figure=figures.verdict_margins(judged),
                note="Distance of the two prompts at their last tokens, divided by what rounding does to both.",
                folded=True,
            )
        )
    shares = zip(evidence.top["token"].values, evidence.top.values, strict=True)
    likeliest = [f"{token!r}: {percent(share)}" for token, share in shares]
    sections.append(Section("The likeliest next tokens", likeliest, folded=True))
    return sections


def _ribbon(view: "SquashMap", evidence: Evidence) -> dict[str, Any]:
    """What the template's ribbon of tokens shows: each token with its colour from −100, for the right answer, to 100,
    against it, and a hover text; the largest change, in nats; and both answers.

    The colour is 0 for BOS, for changes within the noise, and where no token was knocked out.
    """
    row = view.result.isel(query=-1)
    tokens = row["token"].values.astype(str).tolist()
    if "target_score_change" not in row:
        return {"tokens": [(token, 0, "") for token in tokens], "most": ""}
    changes = row["target_score_change"].values
    is_noise = np.abs(changes) <= NOISE_FLOORS * float(row["target_score_noise"])
    compared = np.where(is_noise, 0.0, changes)
    bos_count = int(provenance(row).get("bos_count", 0))
    compared[:bos_count] = 0.0
    most = np.abs(compared).max(initial=0.0)
    strengths = (100 * compared / (most or 1.0)).round().astype(int).tolist()
    texts = [f"without it {change:+.2g} nats" for change in changes]
    return {
        "tokens": list(zip(tokens, strengths, texts, strict=True)),
        "most": f"{most:.2g}" if most else "",
        "right": evidence.right,
        "rival": evidence.rival,
        "without": " BOS is left out." if bos_count else "",
    }


def _source(model: Bridge) -> str:
    """What the model is loaded from: a name, or the folder of a local model, which results name without its path."""
    given = str(model.cfg.model_name)
    for name in example_models.bundled():
        if given == str(example_models.folder(name)):
            return name
    return given


def _code(
    facts: dict[str, Any],
    source: str,
    asked: Asked,
    evidence: Evidence,
    *,
    has_verdict: bool,
    has_changes: bool,
) -> str:
    """The Python lines that measure again what is on the page, from the `facts` of its provenance."""
    lines = template("code.py.jinja").render(
        asked=asked,
        prompt=repr(asked.prompt),
        loaded=load_of(facts, source),
        right=repr(evidence.way["answer"].values.item()),
        rival=repr(evidence.way["rival"].values.item()),
        choices=repr(facts["call"]["choices"]),
        probes=PROBES,
        judged=has_verdict,
        tried=has_changes,
    )
    return lines.strip()
