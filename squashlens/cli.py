"""The command line: one verb per measurement, nothing of its own.

`--help` must answer at once, so nothing heavy is imported before a verb runs.
"""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from squashlens.errors import InputError, SquashlensError
from squashlens.zoo import EXAMPLE_PROMPT

if TYPE_CHECKING:
    import xarray as xr

Job = Callable[[], None]
app = tyro.extras.SubcommandApp()

Model = Annotated[str, tyro.conf.arg(help="Bundled name (tiny-gemma), local folder, or Hugging Face name.")]
Prompt = Annotated[str, tyro.conf.arg(help="The text to measure; it is read at its last token.")]
Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda, …; CUDA where there is one if not given.")]
Out = Annotated[Path | None, tyro.conf.arg(help="Also save the result: .nc or .json (lossless), or .csv.")]
Figure = Annotated[Path | None, tyro.conf.arg(help="Also draw bound, null and Jacobian into this .html file.")]
Query = Annotated[int, tyro.conf.arg(help="Position that is read; counted from the end if negative.")]
Norm = Annotated[Literal["spectral", "frobenius"], tyro.conf.arg(help="Matrix norm of each token's Jacobian.")]
Quiet = Annotated[bool, tyro.conf.arg(help="No progress bars and no remarks.")]


@app.command
def report(
    model: Model = "tiny-gemma",
    prompt: Prompt = EXAMPLE_PROMPT,
    out: Annotated[Path, tyro.conf.arg(help="The page to write.")] = Path("report.html"),
    norm: Norm = "spectral",
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """Measure a prompt and write one self-contained HTML page: path bound, null and true Jacobian by token."""

    def job() -> None:
        import squashlens as sl

        path = sl.report(
            sl.load(model, device=device, progress=not quiet), prompt=prompt, out=out, norm=norm, progress=not quiet
        )
        print(f"report: {path.resolve()}")

    return job


@app.command
def bound(
    model: Model = "tiny-gemma",
    prompt: Prompt = EXAMPLE_PROMPT,
    attention: Annotated[
        Literal["model", "uniform"], tyro.conf.arg(help="The model's attention, or the uniform null.")
    ] = "model",
    query: Query = -1,
    beta1: Annotated[float, tyro.conf.arg(help="Effect of the norm before attention, β₁.")] = 1.0,
    beta2: Annotated[float, tyro.conf.arg(help="Effect of the norm before the MLP, β₂.")] = 1.0,
    beta3: Annotated[float, tyro.conf.arg(help="Effect of the final norm, β₃.")] = 1.0,
    sigma_psi: Annotated[float, tyro.conf.arg(help="Lipschitz constant of the MLPs, σ_ψ.")] = 1.0,
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """The path bound of Theorem 5.1 for every token, as a table."""

    def job() -> None:
        import squashlens as sl

        _check_outputs(out, figure)
        bridge = sl.load(model, device=device, progress=not quiet)
        result = sl.path_bound(
            bridge, prompt, attention=attention, query=query,
            beta1=beta1, beta2=beta2, beta3=beta3, sigma_psi=sigma_psi,
        )  # fmt: skip
        _deliver(result, out)
        _draw(bridge, prompt, query, figure, quiet)

    return job


@app.command
def jacobian(
    model: Model = "tiny-gemma",
    prompt: Prompt = EXAMPLE_PROMPT,
    norm: Norm = "spectral",
    freeze: Annotated[
        Literal["none", "attention"], tyro.conf.arg(help="What is held constant while differentiating.")
    ] = "none",
    query: Query = -1,
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """The true sensitivity of the last representation to every token, as a table."""

    def job() -> None:
        import squashlens as sl

        _check_outputs(out, figure)
        bridge = sl.load(model, device=device, progress=not quiet)
        frozen = () if freeze == "none" else (freeze,)
        result = sl.jacobian_norms(bridge, prompt, norm=norm, freeze=frozen, query=query, progress=not quiet)
        _deliver(result, out)
        _draw(bridge, prompt, query, figure, quiet, norm=norm)

    return job


def _check_outputs(out: Path | None, figure: Path | None) -> None:
    """Refuse what cannot be written before anything is computed."""
    for path, endings in ((out, (".nc", ".json", ".csv")), (figure, (".html",))):
        if path is not None and path.suffix not in endings:
            raise InputError(f"Cannot write {path.name!r}.", f"End the name in {', '.join(endings)}.")
        if path is not None and not path.parent.is_dir():
            raise InputError(f"There is no folder {str(path.parent)!r}.", "Make it first.")


def _deliver(result: "xr.DataArray", out: Path | None) -> None:
    from squashlens.results import save

    print(f"# {result.attrs['long_name']}, {result.name} (units: {result.attrs['units']})")
    print("position  value         token")
    for place, token, value in zip(result["position"].values, result["token"].values, result.values, strict=True):
        print(f"{int(place):>8}  {float(value):<12.6g}  {token}")
    if out is not None:
        print(f"saved: {save(result, out).resolve()}")


def _draw(bridge: Any, prompt: str, query: int, figure: Path | None, quiet: bool, **options: Any) -> None:
    if figure is None:
        return
    import squashlens as sl
    from squashlens.results import write_atomically

    measured = sl.sensitivity(bridge, prompt, query=query, progress=not quiet, **options)
    html = sl.figures.attribution(measured).to_html(include_plotlyjs=True)
    write_atomically(figure, lambda partial: partial.write_text(html, encoding="utf-8"))
    print(f"figure: {figure.resolve()}")


def _parse(arguments: Sequence[str]) -> Job:
    """Let tyro read the arguments; what it would say in a box is said in one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return app.cli(
                args=list(arguments),
                prog="squashlens",
                description="Measure how decoder-only transformers lose information on the way to the last token.",
            )
    except SystemExit as stop:
        if stop.code:
            raise InputError(_one_line(complaint.getvalue()), "See squashlens --help.") from None
        raise


def _one_line(box: str) -> str:
    """The message inside a box drawn with lines: what stands above the first rule."""
    rows = [re.sub(r"^[│\s]+|[│\s]+$", "", row) for row in box.splitlines() if not row.startswith(("╭", "╰"))]
    message = []
    for row in rows:
        if set(row) == {"─"}:
            break
        message.append(row)
    return " ".join(message).strip() or "The arguments could not be read."


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `squashlens`: exit code 0, or 2 with one line on standard error."""
    try:
        _parse(sys.argv[1:] if arguments is None else arguments)()
    except SquashlensError as error:
        print(f"squashlens: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
