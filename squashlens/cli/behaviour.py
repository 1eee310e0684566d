"""Verbs on what a model answers: copying and counting, and whether a wrong answer is the work of collapse."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from squashlens.cli._app import (
    Device,
    Dtype,
    Job,
    Model,
    Out,
    Quiet,
    app,
    check_outputs,
    opened,
    save_result,
    write_figure,
)
from squashlens.cli.collapse import Figure, Norm, Scale
from squashlens.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from squashlens.tasks import Task

Tasks = Annotated[tuple[str, ...], tyro.conf.arg(help="Names of tasks, as `squashlens tasks` lists them.")]
Lengths = Annotated[tuple[int, ...], tyro.conf.arg(help="Numbers of items to ask about.")]
Seeds = Annotated[int, tyro.conf.arg(help="Draws at each length, of tasks that draw; the others are asked once.")]
Joiner = Annotated[
    str | None,
    tyro.conf.arg(help="What stands between items, such as ', ', of tasks that have no more; the task's if not given."),
]
Template = Annotated[
    Literal["none", "chat"], tyro.conf.arg(help="chat: each prompt as a user's turn in the tokenizer's template.")
]
Resume = Annotated[
    Path | None, tyro.conf.arg(help="A file (SQLite) that keeps every answer, to go on from; one for each task.")
]
SOME = (4, 8, 16, 24, 32, 40, 48, 56, 64)


def _task(name: str, joiner: str | None) -> "Task":
    from squashlens.tasks import find

    task = find(name)
    return task if joiner is None else task.shown(joiner)


def _beside(path: Path | None, name: str, several: bool) -> Path | None:
    """The file of one of several tasks."""
    return path.with_name(f"{path.stem}.{name}{path.suffix}") if path is not None and several else path


@app.command
def tasks() -> Job:
    """The tasks there are: name, where they come from, and the prompt at four items."""

    def job() -> None:
        from squashlens.tasks import find, names

        for name in names():
            task = find(name)
            print(f"{name} ({task.source or 'ours'})\n    {task.ask(4).prompt}")

    return job


@app.command
def behave(
    task: Tasks = ("taught_count_bernoulli",),
    lengths: Lengths = SOME,
    seeds: Seeds = 16,
    modes: Annotated[
        tuple[Literal["answer_only", "cot", "cot_few_shot"], ...], tyro.conf.arg(help="How the answer is asked for.")
    ] = ("answer_only",),
    model: Model = "tiny-gemma",
    template: Template = "none",
    opening: Annotated[bool, tyro.conf.arg(help="Begin each answer with the words it is to open with.")] = False,
    joiner: Joiner = None,
    temperature: Annotated[float, tyro.conf.arg(help="0: greedy; above: drawn.")] = 0.0,
    room: Annotated[
        int | None, tyro.conf.arg(help="Tokens an answer may take; by mode and length if not given.")
    ] = None,
    chunk: Annotated[int | None, tyro.conf.arg(help="Prompts side by side; what fits if not given.")] = None,
    resume: Resume = None,
    out: Out = None,
    figure: Figure = None,
    errors: Annotated[Path | None, tyro.conf.arg(help="Draw the errors into this .html file.")] = None,
    frequencies: Annotated[Path | None, tyro.conf.arg(help="Draw how often what was answered.")] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    quiet: Quiet = False,
) -> Job:
    """What the model answers to copying and counting tasks (figures 2, 3, 4, 6 and 7)."""

    def job() -> None:
        import squashlens as sl

        if not task or not lengths or not modes:
            raise InputError("Nothing to ask.", "Give at least one --task, one of --lengths and one of --modes.")
        asked = {name: _task(name, joiner) for name in task}
        several = len(asked) > 1
        for name in asked:
            check_outputs(_beside(out, name, several), resume=_beside(resume, name, several))
        bridge = opened(model, device, quiet, out, figure, errors, frequencies, dtype=dtype, resume=resume)
        found = {}
        for name, one in asked.items():
            draws = seeds if one.random or temperature > 0 else min(seeds, 1)
            found[name] = sl.behave(
                bridge, one, lengths=lengths, seeds=draws, modes=modes,
                template=template, opened=opening, temperature=temperature, room=room, chunk=chunk,
                resume=_beside(resume, name, several), progress=not quiet,
            )  # fmt: skip
            print(
                f"{name}: share answered rightly (and in the form asked for), errors of what was read, share not read"
            )
            print(_table(found[name]).to_string(float_format=lambda value: f"{value:.3g}"))
            print(_left_out(found[name]) + _repeated(found[name]), end="")
            save_result(found[name], _beside(out, name, several))
        if figure is not None:
            write_figure(sl.figures.accuracy_by_length(found), figure)
        if errors is not None:
            write_figure(sl.figures.error_by_length(found), errors)
        if frequencies is not None:
            shares = {name: sl.answer_frequencies(one) for name, one in found.items()}
            write_figure(sl.figures.answer_frequencies(shares), frequencies)

    return job


def _table(found: "xr.Dataset") -> Any:
    """One row a length, seven columns a mode."""
    names = ["accuracy", "accuracy_strict", "mean_error", "error_q1", "median_error", "error_q3"]
    table = found[names].assign(unread=found["unread"].sum("why"))
    return table.transpose("length", "mode").to_dataframe().unstack("mode")


def _left_out(found: "xr.Dataset") -> str:
    """Why answers were not read, with the share of all, as a line; nothing if all were."""
    from squashlens.tasks.reading import WHY

    shares = found["unread"].mean(["mode", "length"])
    why = [f"{WHY[str(share['why'].item())]} {float(share):.3g}" for share in shares if share > 0]
    return f"not read, with no error (shares of all answers): {', '.join(why)}\n" if why else ""


def _repeated(found: "xr.Dataset") -> str:
    """Where there were fewer prompts than answers, as a line; nothing if there is no such length."""
    prompts, many = found["prompts"].min("mode"), found.sizes["seed"]
    fewer = [f"{int(n)} at {int(n['length'])}" for n in prompts if n < many]
    return f"{many} answers at each length, to fewer different prompts: {', '.join(fewer)}\n" if fewer else ""


@app.command
def readout(
    task: Annotated[
        str, tyro.conf.arg(help="Name of a task, as `squashlens tasks` lists them.")
    ] = "taught_count_bernoulli",
    lengths: Lengths = SOME,
    seeds: Annotated[
        int | None, tyro.conf.arg(help="Draws at each length; 128 if not given and the task draws.")
    ] = None,
    model: Model = "tiny-gemma",
    template: Template = "none",
    joiner: Joiner = None,
    norm: Norm = "linf",
    scale: Scale = "relative",
    decodable: Annotated[float, tyro.conf.arg(help="R² from which on the answer counts as represented.")] = 0.9,
    fit: Annotated[int, tyro.conf.arg(help="Different prompts of a length that each probe is fitted to.")] = 64,
    twins: Annotated[
        int, tyro.conf.arg(help="Models with random weights to compare with; each is run on every prompt.")
    ] = 4,
    chunk: Annotated[int | None, tyro.conf.arg(help="Prompts side by side; what fits if not given.")] = None,
    resume: Annotated[
        Path | None, tyro.conf.arg(help="A file (SQLite) that keeps every answer, to go on from.")
    ] = None,
    out: Out = None,
    figure: Figure = None,
    layers: Annotated[Path | None, tyro.conf.arg(help="Draw the probe by layer into this .html file.")] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    quiet: Quiet = False,
) -> Job:
    """Whether a wrong answer is the work of collapse: answers, collapse and a probe on the very same prompts."""

    def job() -> None:
        import squashlens as sl

        asked = _task(task, joiner)
        bridge = opened(model, device, quiet, out, figure, layers, dtype=dtype, resume=resume)
        found = sl.collapse_vs_readout(
            bridge, asked, lengths=lengths, seeds=seeds, template=template, norm=norm, scale=scale,
            decodable=decodable, fit=fit, twins=twins, chunk=chunk, resume=resume, progress=not quiet,
        )  # fmt: skip
        names = ("accuracy", "same_answer", "same_truth", "r2_y", "r2_twin_y", "r2_control_y", "gain_y", "verdict")
        table = found[[name for name in names if name in found]].assign(D=found["distance"].median("seed"))
        print(table.reset_coords(drop=True).to_dataframe().to_string(float_format=lambda value: f"{value:.3g}"))
        for length, reason in zip(found["length"].values, found["reason"].values, strict=True):
            print(f"{length} items: {reason}")
        save_result(found, out)
        if figure is not None:
            write_figure(sl.figures.collapse_vs_readout(found), figure)
        if layers is not None:
            if "r2" not in found:
                raise InputError(
                    f"There is no probe to draw: {found['reason'].values[-1]}", "Leave --layers out, or see --fit."
                )
            write_figure(sl.figures.probe(found), layers)

    return job
