"""The command line: `squashlens report`, `lengths`, `compare`, `paper`, `squash_map`, `study` and `families`.

Arguments are read before anything heavy is imported, so that help and a wrong option are answered at once. Each command
is a function here, and tyro reads its parameters and docstring.
"""

import csv
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import tyro
from tyro.conf import Positional, arg

from squashlens._typing import DtypeName, Mode, Norm, Template, full_name
from squashlens.errors import InputError, SquashlensError
from squashlens.example_models import EXAMPLE_PROMPT
from squashlens.records.sentences import escape
from squashlens.saving.files import PAGES, require_output

__all__ = ["main"]

PaperFigure = Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
Text = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")]
TwoTexts = Annotated[
    tuple[str, str] | None, arg(metavar="PROMPT ANSWER", help_behavior_hint="")
]
Described = Annotated[Positional[Path], arg(help="YAML file that describes the study.")]
Store = Annotated[Text, arg(help="store folder, by default that of the file.")]


@dataclass(frozen=True)
class Loading:
    """How the model is loaded.

    Args:
        model: name of a bundled model or of one on the Hugging Face hub, a local folder, or a GGUF file.
        device: where the model runs, CUDA if available by default; auto spreads the blocks over several devices.
        dtype: dtype of the run.
        revision: branch, tag or commit of a model on the hub.
    """

    model: str = "tiny-gemma"
    device: Text = None
    dtype: DtypeName = "float32"
    revision: Text = None

    def load(self) -> Any:
        """The model."""
        import squashlens as sl

        form = {"device": self.device, "dtype": self.dtype, "revision": self.revision}
        return sl.load(self.model, **form)


def report(
    *,
    prompt: Text = None,
    answer: Text = None,
    instead: TwoTexts = None,
    choices: tuple[str, ...] = (),
    out: Path = Path("report.html"),
    norm: Norm = "spectral",
    loading: Loading = Loading(),
) -> None:
    """Write a page on the way of a prompt's answer: what the model says, from which layer on, and what helps.

    Args:
        prompt: prompt to measure; a demonstration by default.
        answer: right answer to the prompt, with the space before it.
        instead: another prompt, and its own right answer, for a verdict.
        choices: right answers of other prompts, drawn as a control.
        out: the .html file to write.
        norm: norm of the Jacobians.
    """
    import squashlens as sl

    require_output(out, PAGES)  # before anything heavy is imported
    path = sl.report(
        loading.load(),
        prompt=prompt,
        answer=answer,
        instead=instead,
        choices=choices,
        out=out,
        norm=norm,
    )
    print(f"report: {path.resolve()}")


def compare(
    reference: Positional[str],
    other: Positional[str],
    *,
    prompts: Path,
    out: Path = Path("compare.html"),
    n_keep: int = 2,
    device: Text = None,
    dtype: DtypeName = "float32",
) -> None:
    """Write a page: which right answers another model loses, and which of its blocks keep them.

    Args:
        reference: name of a bundled model or of one on the Hugging Face hub, a local folder, or a GGUF file.
        other: the same for the other model; or what is done to the reference: bfloat16 or float16, or weights rounded
            to Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1.
        prompts: JSONL file; a line has "prompt" and "answer", and may have "choices", "group" and "cluster".
        out: the .html file to write.
        n_keep: number of blocks to keep as in the reference; 0 does not look for them.
        device: where the models run, CUDA if available by default.
        dtype: dtype of both models, if the other one has none of its own.
    """
    require_output(out, PAGES)  # before anything heavy is imported
    import squashlens as sl
    from squashlens.model.gguf_formats import GgufFormat

    model = sl.load(reference, device=device, dtype=dtype)
    changed: Any
    if other.upper() in get_args(GgufFormat):
        changed = sl.quantize_weights(model, cast(GgufFormat, other.upper()))
    elif full_name(other) in ("bfloat16", "float16"):
        changed = sl.load(reference, device=device, dtype=other)
    else:
        changed = sl.load(other, device=device, dtype=dtype)
    path = sl.compare_report(model, changed, prompts, n_keep=n_keep, out=out)
    print(f"comparison: {path.resolve()}")


def lengths(
    *,
    n: int = 192,
    out: Path = Path("lengths.html"),
    loading: Loading = Loading(),
) -> None:
    """Write a page on lengths: which numbers of ones to copy can be told apart at the last token, by layer and dtype.

    Args:
        n: number of ones of the longest sequence.
        out: the .html file to write.
    """
    import squashlens as sl

    require_output(out, PAGES)
    # Given by its name alone, the model is also loaded in bfloat16. With other options it is loaded here.
    model: Any = loading.model
    if loading != Loading(loading.model):
        model = loading.load()
    print(f"lengths: {sl.lengths(model, n=n, out=out).resolve()}")


def paper(
    *,
    figures: tuple[PaperFigure, ...] = get_args(PaperFigure),
    out: Path = Path("paper"),
    prompt: str = EXAMPLE_PROMPT,
    n: int = 96,
    lengths: tuple[int, ...] = tuple(range(4, 97, 4)),
    seeds: int = 4,
    mode: tuple[Mode, ...] = ("answer_only",),
    template: Template = "none",
    n_examples: int = 0,
    loading: Loading = Loading(),
) -> None:
    """Write the paper's figures for a model, with captions and LaTeX that includes them.

    Args:
        figures: numbers of the figures.
        out: folder to write to.
        prompt: prompt for the attention paths of figure 1.
        n: number of content tokens of the longest sequence of figures 1 and 5.
        lengths: numbers of items in the questions of figures 2, 3, 4, 6 and 7.
        seeds: number of random samples of the items and answers.
        mode: forms of the questions: answer_only, cot (chain of thought) or cot_few_shot.
        template: format of the questions: plain text, or a turn in the tokenizer's chat template.
        n_examples: number of solved examples before each question.
    """
    import squashlens as sl

    written = sl.paper(
        loading.load(),
        out=out,
        figures=figures,
        prompt=prompt,
        n=n,
        lengths=lengths,
        seeds=seeds,
        mode=mode,
        template=template,
        n_examples=n_examples,
    )
    failed = []
    for number, outcome in written.items():
        if isinstance(outcome, Path):
            print(f"figure {number}: {outcome.resolve()}")
        else:
            print(f"figure {number}: not measured. {outcome}")
            failed.append(str(number))
    if failed:
        raise InputError(
            f"{len(failed)} of {len(written)} figures could not be measured on this model: {', '.join(failed)}.",
            "The reasons are above and in README.md of the folder; the other figures were written.",
        )


def squash_map(
    *,
    prompt: str = EXAMPLE_PROMPT,
    out: Path = Path("map.html"),
    query: int = -1,
    method: Literal["auto", "exact", "sketch", "none"] = "auto",
    norm: Norm = "spectral",
    loading: Loading = Loading(),
) -> None:
    """Write an interactive map of a prompt: how much each token influences every later one.

    Args:
        prompt: prompt to measure.
        out: the .html file to write.
        query: position that the map opens at; negative values count from the end.
        method: way to compute the norms of the Jacobian; none leaves them out.
        norm: norm of the Jacobian.
    """
    import squashlens as sl

    require_output(out, PAGES)  # before anything heavy is imported
    made = sl.squash_map(loading.load(), prompt, query=query, method=method, norm=norm)
    print(f"map: {made.save(out).resolve()}")


def study() -> None:
    """Run or look at the study that a YAML file describes: run, status or failures."""


def families() -> None:
    """List the types of decoders in transformers, with what works for each, what is refused, and why."""
    table = Path(__file__).with_name("families.csv").read_text(encoding="utf-8")
    for family in csv.DictReader(table.splitlines()):
        works = [name for name, entry in family.items() if entry == "yes"]
        print(f"{family['type']} ({family['class']})")
        print(f"    works: {', '.join(works) or 'nothing'}")
        if family["why not"]:
            print(f"    {family['why not']}")


def run(
    file: Described,
    *,
    store: Store = None,
    workers: int = 1,
    scheduler: Text = None,
    device: Text = None,
    retry: bool = False,
) -> None:
    """Compute all cells that are neither done nor failed.

    Args:
        workers: processes on this machine, with a GPU each if there are any.
        scheduler: address of a Dask scheduler whose workers compute the cells, such as tcp://10.0.0.1:8786.
        device: device of all workers, CUDA if available by default.
        retry: also compute the cells, and the prompts of scans, that have failed before.
    """
    table = _open(file, store).run(
        workers=workers, client=scheduler, device=device, retry=retry
    )
    _print(table)


def status(file: Described, *, store: Store = None) -> None:
    """Say for each grid how many cells are done, failed and left."""
    _print(_open(file, store).status())


def failures(file: Described, *, store: Store = None) -> None:
    """List the cells that could not be computed, and the prompts that could not be measured, with the reasons."""
    _print(_open(file, store).failures())


COMMANDS = {
    "report": report,
    "compare": compare,
    "lengths": lengths,
    "paper": paper,
    "squash_map": squash_map,
    "study": study,
    "families": families,
}
FORMS = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
ACTIONS = {"run": run, "status": status, "failures": failures}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `squashlens`: exit code 0, or 2 with a message on standard error."""
    if arguments is None:
        arguments = sys.argv[1:]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal lacks is printed as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _command(list(arguments))
    except SquashlensError as error:
        _say(error)
        raise SystemExit(2) from None
    except KeyboardInterrupt as stopped:
        if str(stopped):  # how far a study came
            _say(str(stopped))
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The program that reads the output, such as `head`, has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def _command(words: list[str]) -> None:
    """Do what a command line says."""
    if words == ["--version"]:
        print(f"squashlens {version('squashlens')}")
    elif words[:1] == ["study"]:
        _call(ACTIONS, words[1:], "squashlens study")
    else:
        _call(COMMANDS, words, "squashlens")


def _call(
    commands: dict[str, Callable[..., None]], words: list[str], program: str
) -> None:
    """Call one of several commands, whose name is the first of the words; without words, print help.

    A name may have - in place of _. `program` stands before it in help and errors.
    """
    words = words or ["--help"]
    name = words[0].replace("-", "_")
    if name in commands:
        tyro.cli(commands[name], prog=f"{program} {name}", args=words[1:], config=FORMS)
    else:  # help, or an error that lists the commands
        tyro.extras.subcommand_cli_from_dict(
            commands, prog=program, args=words, config=FORMS
        )


def _open(file: Path, store: str | None) -> Any:
    """A study, which may use measurements in modules of the current folder."""
    import squashlens as sl

    if not file.is_file():
        cause = f"There is no file {str(file)!r}."
        raise InputError(cause, "Give the name of a YAML file.")
    if os.getcwd() not in sys.path:  # a program's path has only its own folder
        sys.path.append(os.getcwd())
    return sl.Study(file, store)


def _print(table: Any) -> None:
    print(table.to_string(index=False) if len(table) else "none")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(message)


def _say(message: Warning | SquashlensError | str) -> None:
    """Print a message in one line on standard error, with what cannot be seen as escapes."""
    line = escape(" ".join(str(message).split()))
    print(f"squashlens: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
