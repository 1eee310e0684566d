"""Verbs on what is done against collapse: separators that are searched for, windows, precision."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tyro

from squashlens.cli._app import Device, Job, Model, Out, Quiet, app, check_outputs, opened, save_result, write_figure
from squashlens.cli.collapse import Figure, Norm, Of, Scale

COUNT = "How many ones are in the following sequence?"
ASKED, PLAIN = Of(n=48, prompt=COUNT, suffix="="), Of()
Asked = Annotated[
    Literal["none", "count", "first", "last"],
    tyro.conf.arg(help="The right answer, of fresh content: how many are what --repeat says, the first, the last."),
]
Draws = Annotated[int, tyro.conf.arg(help="Sequences of fresh content that are asked about.")]
Lengths = Annotated[
    tuple[int, ...], tyro.conf.arg(help="Numbers of content tokens to measure at; empty: every second one.")
]


def _answer(kind: str, counted: str) -> Callable[[tuple[str, ...]], str] | None:
    rules: dict[str, Callable[[tuple[str, ...]], str]] = {
        "count": lambda content: str(content.count(counted)),
        "first": lambda content: content[0],
        "last": lambda content: content[-1],
    }
    return rules.get(kind)


def _lengths(given: tuple[int, ...], n: int) -> list[int]:
    return list(given) or sorted({*range(2, n + 1, 2), n})


@app.command
def prescribe(
    separators: Annotated[tuple[str, ...], tyro.conf.arg(help="Tokens to try, one each.")] = (",", ".", "?"),
    periods: Annotated[tuple[int, ...], tyro.conf.arg(help="Content tokens between separators to try.")] = (2, 3, 6),
    of: tyro.conf.OmitArgPrefixes[Of] = ASKED,
    model: Model = "tiny-gemma",
    answer: Asked = "none",
    draws: Draws = 16,
    lengths: Lengths = (),
    norm: Norm = "linf",
    scale: Scale = "relative",
    placements: Annotated[int, tyro.conf.arg(help="Random placements of the best's separators.")] = 40,
    resume: Annotated[
        Path | None, tyro.conf.arg(help="A file (SQLite) that keeps what was found, to go on from.")
    ] = None,
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """Which separator, how often, keeps representations farthest apart; beside random placement and accuracy."""

    def job() -> None:
        import squashlens as sl

        bridge = opened(model, device, quiet, out, figure, resume=resume, texts=[*of.texts, *separators])
        found = sl.prescribe(
            bridge, of.build(bridge), separators=separators, every=periods, answer=_answer(answer, of.repeat),
            draws=draws, lengths=_lengths(lengths, of.n), norm=norm, scale=scale, placements=placements, seed=of.seed,
            resume=resume, progress=not quiet,
        )  # fmt: skip
        print(sl.prescription_table(found).to_string(float_format=lambda value: f"{value:.3g}"))
        low, middle, high = (float(found[name]) for name in ("advantage_low", "advantage", "advantage_high"))
        print(f"best: {found['best_separator'].item()!r} after every {int(found['best_every'])}")
        print(f"beyond random places: {middle:.3g} (95 % interval {low:.3g} to {high:.3g})")
        save_result(found, out)
        if figure is not None:
            write_figure(sl.figures.prescription(found), figure)

    return job


@app.command
def windows(
    sizes: Annotated[tuple[int, ...], tyro.conf.arg(help="Windows in tokens, the query included.")] = (4, 8, 16, 32),
    sinks: Annotated[tuple[int, ...], tyro.conf.arg(help="First tokens that stay in sight, each tried.")] = (0, 1),
    of: tyro.conf.OmitArgPrefixes[Of] = ASKED,
    model: Model = "tiny-gemma",
    answer: Asked = "none",
    draws: Draws = 16,
    lengths: Lengths = (),
    norm: Norm = "linf",
    scale: Scale = "relative",
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """What a sliding window on every block does to collapse, to the path bound and to the answers."""

    def job() -> None:
        import squashlens as sl

        bridge = opened(model, device, quiet, out, figure, texts=of.texts)
        found = sl.windows(
            bridge, of.build(bridge), sizes, sinks=sinks, answer=_answer(answer, of.repeat), draws=draws,
            lengths=_lengths(lengths, of.n), norm=norm, scale=scale, seed=of.seed, progress=not quiet,
        )  # fmt: skip
        table = found[["distance"]].isel(layer=-1).median("length")
        table["bound_of_the_first"] = found["bound"].isel(content=0) / found["bound"].sum("content")
        if "accuracy" in found:
            table["accuracy"] = found["accuracy"].mean("length")
        print("medians of D at the last layer over lengths; the longest window is the model as it is")
        print(table.reset_coords(drop=True).to_dataframe().to_string(float_format=lambda value: f"{value:.3g}"))
        save_result(found, out)
        if figure is not None:
            write_figure(sl.figures.windows(found), figure)

    return job


@app.command
def precision(
    of: tyro.conf.OmitArgPrefixes[Of] = PLAIN,
    model: Model = "tiny-gemma",
    runs: Annotated[
        tuple[Literal["float32", "bfloat16", "float16", "fp32", "bf16", "fp16", "int8"], ...],
        tyro.conf.arg(help="Also load and measure in these; int8 needs torchao. Empty: the float32 run alone."),
    ] = (),
    lengths: Lengths = (),
    norm: Norm = "linf",
    scale: Scale = "relative",
    out: Out = None,
    figure: Figure = None,
    runs_out: Annotated[Path | None, tyro.conf.arg(help="Save what the runs show: .nc, .json or .csv.")] = None,
    runs_figure: Annotated[Path | None, tyro.conf.arg(help="Draw the runs into this .html file.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """From which length on v and v* are the same in a format, the bits that tell them apart, other runs beside."""

    def job() -> None:
        import squashlens as sl
        from squashlens.files import require_distinct

        check_outputs(runs_out, runs_figure)
        require_distinct(path for path in (out, figure, runs_out, runs_figure) if path is not None)
        bridge = opened(model, device, quiet, out, figure, texts=of.texts)
        sequence, chosen = of.build(bridge), _lengths(lengths, of.n)
        found = sl.precision(bridge, sequence, lengths=chosen, norm=norm, scale=scale, progress=not quiet)
        print("the length from which v and v* are bit-identical once stored, by layer")
        print(found["collapsed_from"].to_pandas().to_string(na_rep="never"))
        print("mantissa bits that tell them apart, median over lengths, by layer")
        print(found["bits_needed"].median("length").to_pandas().to_frame().T.to_string(index=False, na_rep="same"))
        save_result(found, out)
        if figure is not None:
            write_figure(sl.figures.bits_needed(found), figure)
        if runs:
            beside = sl.precision_by_run(
                model, sequence, runs=runs, lengths=chosen, norm=norm, scale=scale, device=device, progress=not quiet
            )
            print("D at the last layer by length, in runs of their own")
            print(beside["distance"].isel(layer=-1).T.to_pandas().round(4).to_string())
            save_result(beside, runs_out)
            if runs_figure is not None:
                write_figure(sl.figures.runs(beside), runs_figure)

    return job
