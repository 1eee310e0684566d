"""The paper's figures for one model, written into a folder that a paper can include.

Results in the folder are used again only for the same model and settings. Each file states what its result depends on:
the model, with its weights, hooks and versions, and the settings. A file of another model or other settings raises an
error and is not changed. A file that cannot be read, or whose checksum does not fit, is measured again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import xarray as xr

from squashlens import example_models
from squashlens._typing import Bridge, Modes, Template
from squashlens.bars import bar
from squashlens.errors import InputError, OutputError, SquashlensError
from squashlens.measure.registration import measurement
from squashlens.model.text.tokens import tokenize, tokenizer_digest
from squashlens.pages.page import Section, page_of
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
STATED = "squashlens_paper"  # attribute of a result: what it depends on, as JSON


@measurement(cheaper="Fewer figures= or lengths= takes less.")
def paper(
    model: Bridge,
    *,
    out: str | Path = "paper",
    figures: Iterable[Number] = NUMBERS,
    prompt: str = example_models.EXAMPLE_PROMPT,
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
        mode: forms of the questions in figures 3, 4, 6 and 7, as in `evaluate_task`; in figure 2 always answers only.
        template, prefill, n_examples, n_baseline: as in `evaluate_task`.

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
    ['fig9.json', 'fig9_total_variation.csv', 'total_variation.nc']
    """
    wanted = sorted(set(figures))
    form = Prompting(
        mode=mode,
        template=template,
        prefill=prefill,
        n_examples=n_examples,
        n_baseline=n_baseline,
    )
    chosen = Settings(prompt, n, tuple(lengths), seeds, form)
    _check(model, wanted, chosen)
    folder = require_folder(out)
    kept = Kept(require_folder(folder / "data"), model)
    plan = {number: parts_of(number, model, chosen) for number in wanted}
    # Before anything is measured: an error for results of another model, or of other settings.
    sections = kept.sections()
    for part in chain.from_iterable(plan.values()):
        kept.find(part)
    outcomes: dict[int, Outcome] = {}
    ending = _ending()
    with bar(total=len(wanted), unit="figure") as shown:
        for number, parts in plan.items():
            shown.set_description(f"figure {number}")
            sections.pop(number, None)
            try:
                results = {part.name: kept.measured(part) for part in parts}
                sections[number] = _draw(folder, number, results, ending)
                outcomes[number] = folder / f"fig{number}{ending}"
            except OutputError:
                raise
            except SquashlensError as error:
                outcomes[number] = error
                sections[number] = Section(f"Figure {number}", [str(error)])
            shown.update()
    kept.keep(sections)
    in_order = dict(sorted(sections.items()))
    write_index(folder, list(in_order.values()), kept.facts)
    return outcomes


def _check(model: Bridge, wanted: Sequence[int], chosen: Settings) -> None:
    """Raise an error for settings that suit no model, and for a given prompt that this model cannot read."""
    if not wanted:
        raise InputError("figures is empty.", "Give numbers of figures, 1 to 9.")
    if chosen.n < FEWEST:
        raise InputError(
            f"n={chosen.n} is too small: a curve needs several lengths.",
            f"Give at least {FEWEST}.",
        )
    seeds = seeds_of(chosen.seeds, 1)
    find("count_ones").asked(chosen.lengths, seeds, chosen.prompting.mode)
    # The default prompt need not suit every model.
    if 1 in wanted and chosen.prompt != example_models.EXAMPLE_PROMPT:
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


def _draw(
    folder: Path, number: int, results: Mapping[str, Any], ending: str
) -> Section:
    """Write the figure and its tables into the folder, and give the section that pages have of it.

    `results` are by the names of their parts, and `ending` is ".pdf" or ".html".
    """
    from squashlens import figures
    from squashlens.figures.drawing.themes import WIDTHS
    from squashlens.pages.paper import pictures

    tables = []
    for name, table in pictures.data_of(number, results).items():
        tables.append(f"fig{number}_{name}.csv")
        rows = long_table(table).to_csv(index=False)
        write(folder / "data" / tables[-1], rows.encode())
    file = f"fig{number}{ending}"
    figure = pictures.draw_figure(number, results)
    figures.save(figure, folder / file, plotlyjs="file")
    if ending == ".pdf":  # of an earlier call without a browser
        (folder / f"fig{number}.html").unlink(missing_ok=True)
    width = pictures.width_of(number)
    return Section(
        f"Figure {number}",
        [pictures.caption_of(number, results)],
        file=file,
        tables=tables,
        inches=WIDTHS[width],
        wide=width == "page",
    )


class Kept:
    """The results of one model in a folder.

    `results` has each by the name of its part: None if it is missing, or the error that says why it cannot be measured.
    `model` has the facts that results of this model depend on, and `facts` is a provenance for the pages.
    """

    def __init__(self, folder: Path, model: Bridge) -> None:
        self.folder = folder
        self.results: dict[str, Any] = {}
        run = Run.open(model, "paper")
        # Facts are those of a call with prompts: any prompt stands for those of all figures.
        run = run.with_prompts(torch.zeros((1, 1), dtype=torch.long))
        self.facts = run.facts
        self.model: dict[str, Any] = {
            **self.facts,
            "tokenizer": tokenizer_digest(model),
            "hook_functions": sources_of_hooks(model),
        }
        for name in ("call", "bos_count", "versions"):
            self.model.pop(name, None)

    def path(self, part: Part) -> Path:
        """The file of a result."""
        return self.folder / f"{part.name}.nc"

    def find(self, part: Part) -> None:
        """Read the result of a part, if it is there; an error if it is of another model or of other settings."""
        path = self.path(part)
        self.results[part.name] = None
        if path.exists():
            try:
                result = open_result(path)
                stated = json.loads(str(result.attrs.get(STATED, "{}")))
            except InputError as error:
                remark(f"{error.cause} It is measured again.")
                return
            self._require_same(path, stated, self._depends_on(part))
            self.results[part.name] = result

    def measured(self, part: Part) -> xr.Dataset:
        """The result of a part. It is measured if it is missing, and written at once with what it depends on.

        `find` has to be called before. An error of the measurement is kept, and raised again for each figure.
        """
        if self.results[part.name] is None:
            journal = self.path(part).with_suffix(".jsonl")
            try:
                result = part.measure(journal)
            except OutputError:
                raise
            except SquashlensError as error:
                self.results[part.name] = error  # for other figures with this part
                raise
            stated = json.dumps(self._depends_on(part), sort_keys=True)
            save(result.assign_attrs({STATED: stated}), self.path(part))
            journal.unlink(missing_ok=True)
            self.results[part.name] = result
        if isinstance(self.results[part.name], SquashlensError):
            raise self.results[part.name]
        return self.results[part.name]

    def sections(self) -> dict[int, Section]:
        """The sections of the figures that earlier calls have written, by number, as far as their files are there; an
        error if they are of another model."""
        sections = {}
        for path in self.folder.glob("fig?.json"):
            written = json.loads(path.read_text())
            model = written.pop("model")
            self._require_same(path, {"model": model}, self._of_model())
            section = Section(**written)
            if (self.folder.parent / str(section.file)).exists():
                sections[int(path.stem[-1])] = section
        return sections

    def keep(self, sections: Mapping[int, Section]) -> None:
        """Write what pages say of figures, for later calls."""
        for number, section in sections.items():
            if section.file:  # a figure that could not be measured has none
                text = json.dumps(vars(section) | self._of_model(), indent=1)
                write(self.folder / f"fig{number}.json", text.encode())

    def _require_same(
        self, path: Path, stated: dict[str, Any], wanted: dict[str, Any]
    ) -> None:
        """Raise an error if a file was measured for another model, or with other settings."""
        names = different(stated, wanted)
        if names:
            differing = ", ".join(name.removeprefix("settings: ") for name in names)
            raise InputError(
                f"{str(path)!r} was measured for a different {differing}.",
                "Choose another folder for this one, or delete the file to measure it again.",
            )

    def _of_model(self) -> dict[str, Any]:
        """The facts of the model as JSON has them, as those of a file."""
        return json.loads(json.dumps({"model": self.model}, default=str))

    def _depends_on(self, part: Part) -> dict[str, Any]:
        """What the result of a part depends on, as JSON has it: its settings, the versions, and the model."""
        stated = {"settings": dict(part.about), "versions": versions()}
        if part.of_model:
            stated |= {"model": self.model}
        return json.loads(json.dumps(stated, default=str))


def write_index(
    folder: Path, sections: Sequence[Section], facts: Mapping[str, Any]
) -> None:
    """Write the LaTeX file that includes the figures, and the page that lists them with captions and provenance."""
    version = facts["versions"]["squashlens"]
    for name in ("figures.tex", "README.md"):
        text = page_of(f"paper/{name}.jinja", sections, facts, version=version)
        write(folder / name, text.encode())
