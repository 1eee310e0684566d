"""The application, the options that verbs share, and what they do with their results."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from squashlens.results import Result

Job = Callable[[], None]
RESULTS, PAGES = (".nc", ".json", ".csv"), (".html",)
app = tyro.extras.SubcommandApp()

Model = Annotated[str, tyro.conf.arg(help="Bundled name (tiny-gemma), local folder, or Hugging Face name.")]
Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda, …; CUDA where there is one if not given.")]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "float64", "fp32", "bf16", "fp16", "fp64"],
    tyro.conf.arg(help="In which the model is run."),
]
Out = Annotated[Path | None, tyro.conf.arg(help="Also save the result: .nc or .json (lossless), or .csv.")]
Quiet = Annotated[bool, tyro.conf.arg(help="No progress bars and no remarks.")]


def check_outputs(out: Path | None, *figures: Path | None, resume: Path | None = None) -> None:
    """Refuse what cannot be written, and one file for two things, before anything is computed."""
    from squashlens.files import require_distinct, require_output

    asked = [
        (out, ("--out", RESULTS)),
        (resume, ("--resume", ())),
        *((figure, ("figure", PAGES)) for figure in figures),
    ]
    given = [require_output(path, endings, name) for path, (name, endings) in asked if path is not None]
    require_distinct(given)


def opened(
    model: str, device: str | None, quiet: bool, out: Path | None = None, *figures: Path | None, dtype: str = "float32",
    resume: Path | None = None, texts: Iterable[str] = (), prompts: Iterable[str] = (),
) -> Any:  # fmt: skip
    """The model, loaded once it is sure that results can be written, that `texts` and `prompts` are of its words, and
    that no prompt is empty."""
    import squashlens as sl
    from squashlens.errors import InputError
    from squashlens.model.vocabulary import refuse_words_of

    check_outputs(out, *figures, resume=resume)
    prompts = list(prompts)
    if not all(prompt.strip() for prompt in prompts):
        raise InputError("The prompt is empty.", "Pass some text.")
    refuse_words_of(model, [*texts, *prompts])
    return sl.load(model, device=device, dtype=dtype, progress=not quiet)


def save_result(result: "Result", out: Path | None) -> None:
    """Save a result where one is asked for, and say where it is."""
    if out is not None:
        from squashlens.results import save

        print(f"saved: {save(result, out).resolve()}")


def write_figure(figure: "go.Figure", path: Path | None) -> None:
    """Write a figure into one file that needs no network, and say where it is."""
    if path is None:
        return
    from squashlens.files import write

    print(f"figure: {write(path, figure.to_html(include_plotlyjs=True).encode('utf-8')).resolve()}")
