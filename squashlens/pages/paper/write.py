"""The paper's figures for one model, written into a folder that a paper can include.

Results in the folder are used again only for the same model and settings. Each file states what its result depends on:
the model, with its weights, hooks and versions, and the settings. A file of another model or other settings raises an
error and is not changed. A file that cannot be read, or whose checksum does not fit, is measured again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import xarray as xr

from squashlens import zoo
from squashlens._typing import Bridge, Modes, Template
from squashlens.bars import bar
from squashlens.errors import InputError, OutputError, SquashlensError
from squashlens.measure.registration import measurement
from squashlens.model.text.tokens import tokenize, tokenizer_digest
from squashlens.pages.maps.payload import fact_text
from squashlens.pages.markup import template
from squashlens.pages.paper.parts import NUMBERS, Part, Settings, parts_of
from squashlens.records.files import open as open_result
from squashlens.records.files import save
from squashlens.records.provenance import versions
from squashlens.records.tables import long_table
from squashlens.remarks import remark
from squashlens.run.run import Run, sources_of_hooks
from squashlens.saving.files import require_folder, write
from squashlens.saving.journal import different
from squashlens.tasks import find
from squashlens.tasks.task import Prompting, seeds_of
from squashlens.theory.statistics.trends import FEWEST

Number = Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
Outcome = Path | SquashlensError
LENGTHS = tuple(range(4, 97, 4))
TEX, PAGE = "figures.tex", "README.md"
STATED = "squashlens_paper"  # attribute of a result: what it depends on, as JSON


@measurement(cheaper="Fewer figures= or lengths= takes less.")
def paper(
    model: Bridge,
    *,
    out: str | Path = "paper",
    figures: Iterable[Number] = NUMBERS,
    prompt: str = zoo.EXAMPLE_PROMPT,
    n: int = 96,
    lengths: Iterable[int] = LENGTHS,
    seeds: int = 4,
    mode: Modes = "answer_only",
    template: Template = "none",
    prefill: bool = False,
    n_examples: int = 0,
    n_baseline: int = 16,
) -> dict[int, Outcome]:
    """Write the paper's figures 1 to 9 for a model: as PDF, with captions, tables as CSV, and LaTeX that includes them.

    The folder gets ``fig1.pdf`` and so on, ``figures.tex`` with a figure environment for each, ``README.md`` with the
    captions and the provenance, and a subfolder ``data`` with the results (``.nc``) and tables (``.csv``). Without a
    browser that draws PDFs, figures are ``.html`` pages, which LaTeX cannot include.

    A second call continues: it uses the results that are in the folder, if they are of the same model and settings,
    and refuses others. A call for some of the figures keeps the others of the folder. `docs/paper.md` says what each
    figure measures, and how it differs from the paper's.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        out: the folder to write to, which is created if it does not exist.
        figures: numbers of the figures to write, 1 to 9; all by default.
        prompt: the prompt for the attention paths of figure 1.
        n: number of content tokens of the longest sequence of figures 1 and 5, at least 3.
        lengths: numbers of items in the questions of figures 2, 3, 4, 6 and 7.
        seeds: number of random samples of the items in figures 3 and 4, and of the answers in figures 6 and 7.
        mode: forms of the questions in figures 3, 4, 6 and 7, as in `evaluate`; in figure 2 always answers only.
        template, prefill, n_examples, n_baseline: as in `evaluate`.

    Returns:
        By number, the file of each figure that was asked for; for a figure that cannot be measured on this model, the
        error that says why.

    Raises:
        InputError: if the folder has results of another model or of other settings, or if the model has a hook that its
            name does not identify.
        OutputError: if the folder cannot be written.

    Source: Barbero et al. 2024, figures 1 to 9.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> files = sl.paper(model, out=tmp_path / "paper", figures=[9])
    >>> sorted(path.name for path in (tmp_path / "paper" / "data").iterdir())
    ['fig9_total_variation.csv', 'total_variation.nc']
    """
    wanted = sorted({*figures})
    form = Prompting(
        mode=mode,
        template=template,
        prefill=prefill,
        n_examples=n_examples,
        n_baseline=n_baseline,
    )
    chosen = Settings(prompt, n, tuple(lengths), seeds, form)
    _check(model, wanted, chosen)
    plan = {number: parts_of(number, model, chosen) for number in NUMBERS}
    folder = require_folder(out)
    kept = Kept(require_folder(folder / "data"), model)
    for number, parts in plan.items():  # before anything is measured
        for part in parts:
            kept.find(part, any_settings=number not in wanted)
    failed: dict[int, SquashlensError] = {}
    ending = _ending()
    with bar(total=len(wanted), unit="figure") as shown:
        for number in wanted:
            shown.set_description(f"figure {number}")
            try:
                _draw(
                    folder,
                    number,
                    {part.name: kept.measured(part) for part in plan[number]},
                    ending,
                )
            except OutputError:
                raise
            except SquashlensError as error:
                failed[number] = error
            shown.update()
    present = {
        number: drawn
        for number, parts in plan.items()
        if number not in failed and (drawn := _find_figure(folder, number, kept, parts))
    }
    write_index(folder, present, failed, kept.facts)
    return {number: failed.get(number) or present[number]["file"] for number in wanted}


def _check(model: Bridge, wanted: Sequence[int], chosen: Settings) -> None:
    """Raise an error for settings that suit no model, and for a given prompt that this model cannot read."""
    if not wanted:
        raise InputError("figures is empty.", "Give numbers of figures, 1 to 9.")
    if chosen.n < FEWEST:
        raise InputError(
            f"n={chosen.n} is too small: a curve needs several lengths.",
            f"Give at least {FEWEST}.",
        )
    find("count_ones").asked(
        chosen.lengths, seeds_of(chosen.seeds, 1), chosen.prompting.mode
    )
    if (
        1 in wanted and chosen.prompt != zoo.EXAMPLE_PROMPT
    ):  # the default need not suit every model
        tokenize(model, chosen.prompt)


def _ending() -> str:
    """The format of the figures: PDF, or HTML, with a warning, if nothing can draw PDFs."""
    from squashlens.figures.drawing.saving import require_browser

    try:
        require_browser(Path("figure.pdf"))
    except OutputError as error:
        remark(f"Figures are written as .html, which LaTeX cannot include. {error}")
        return ".html"
    return ".pdf"


def _draw(folder: Path, number: int, results: Mapping[str, Any], ending: str) -> None:
    """Write the figure and its tables."""
    from squashlens import figures
    from squashlens.pages.paper.pictures import data_of, draw_figure

    for name, table in data_of(number, results).items():
        write(
            _table(folder, number, name), long_table(table).to_csv(index=False).encode()
        )
    figures.save(
        draw_figure(number, results), folder / f"fig{number}{ending}", plotlyjs="file"
    )
    if ending == ".pdf":
        (folder / f"fig{number}.html").unlink(missing_ok=True)


def _find_figure(
    folder: Path, number: int, kept: "Kept", parts: Sequence[Part]
) -> dict[str, Any]:
    """A figure in the folder, also from an earlier call, as the pages state it; nothing if it is of other results."""
    from squashlens.figures.drawing.themes import WIDTHS
    from squashlens.pages.paper.pictures import caption_of, data_of, width_of

    results = {part.name: kept.found[part.name] for part in parts}
    if any(one is None or isinstance(one, SquashlensError) for one in results.values()):
        return {}
    since = max(kept.path(part).stat().st_mtime_ns for part in parts)
    files = [folder / f"fig{number}{ending}" for ending in (".pdf", ".html")]
    file = next(
        (one for one in files if one.exists() and one.stat().st_mtime_ns >= since), None
    )
    if file is None:
        return {}
    tables, width = (
        [_table(folder, number, name) for name in data_of(number, results)],
        width_of(number),
    )
    stated = {
        "number": number,
        "file": file,
        "caption": caption_of(number, results),
        "tables": tables,
    }
    return stated | {"wide": width == "page", "inches": WIDTHS[width]}


def _table(folder: Path, number: int, name: str) -> Path:
    return folder / "data" / f"fig{number}_{name}.csv"


class Kept:
    """The results of one model in a folder.

    `found` has each by the name of its part: None if it is missing, or the error that says why it cannot be measured.
    """

    def __init__(self, folder: Path, model: Bridge) -> None:
        self.folder = folder
        self.found: dict[str, Any] = {}
        run = Run.open(model, "paper").with_prompts(
            torch.zeros((1, 1), dtype=torch.long)
        )
        facts = {
            name: value
            for name, value in run.facts.items()
            if name not in ("call", "bos_count", "versions")
        }
        self.facts = run.facts
        self.model: Mapping[str, Any] = {
            **facts,
            "tokenizer": tokenizer_digest(model),
            "hook_functions": sources_of_hooks(model),
        }

    def path(self, part: Part) -> Path:
        """The file of a result."""
        return self.folder / f"{part.name}.nc"

    def find(self, part: Part, *, any_settings: bool = False) -> None:
        """Read the result of a part, if it is there. `any_settings` accepts those of an earlier call of this model."""
        path = self.path(part)
        self.found[part.name] = None
        if not path.exists():
            return
        try:
            result: Any = open_result(path)
            stated: Any = json.loads(str(result.attrs.get(STATED, "null")))
        except InputError as error:
            remark(f"{error.cause} It is measured again.")
            return
        if stated is None:
            raise InputError(
                f"{str(path)!r} was not written by `paper`.",
                "Choose another folder, or move this file away.",
            )
        wanted = self._depends_on(part)
        if any_settings:
            stated = {**stated, "settings": wanted["settings"]}
        differing = [
            name.removeprefix("settings: ") for name in different(stated, wanted)
        ]
        if differing:
            raise InputError(
                f"{str(path)!r} was measured for a different {', '.join(differing)}.",
                "Choose another folder for this one, or delete the file to measure it again.",
            )
        self.found[part.name] = result

    def measured(self, part: Part) -> xr.Dataset:
        """The result of a part. It is measured if it is missing, and written at once with what it depends on."""
        if self.found[part.name] is None:
            journal = self.path(part).with_suffix(".jsonl")
            try:
                self.found[part.name] = part.measure(journal)
            except OutputError:
                raise
            except SquashlensError as error:
                self.found[part.name] = error  # for other figures with this part
            else:
                stated = json.dumps(self._depends_on(part), sort_keys=True, default=str)
                save(
                    self.found[part.name].assign_attrs({STATED: stated}),
                    self.path(part),
                )
                journal.unlink(missing_ok=True)
        if isinstance(self.found[part.name], SquashlensError):
            raise self.found[part.name]
        return self.found[part.name]

    def _depends_on(self, part: Part) -> dict[str, Any]:
        model = {"model": self.model} if part.of_model else {}
        own = {"settings": dict(part.about), "versions": versions(), **model}
        return json.loads(json.dumps(own, default=str))


def write_index(
    folder: Path,
    drawn: Mapping[int, dict[str, Any]],
    failed: Mapping[int, SquashlensError],
    facts: Mapping[str, Any],
) -> None:
    """Write the LaTeX file that includes the figures, and the page that lists them with captions and provenance."""
    syntax = {
        "block_start_string": "<%",
        "block_end_string": "%>",
        "variable_start_string": "<<",
        "variable_end_string": ">>",
    }
    for name in (TEX, PAGE):
        page = template(f"paper/{name}.jinja", **syntax)
        text = page.render(
            numbers=sorted({*drawn, *failed}),
            drawn=drawn,
            failed=failed,
            facts=facts,
            fact_text=fact_text,
        )
        write(folder / name, text.encode())
