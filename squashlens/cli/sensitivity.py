"""Verbs on one prompt: the report, the path bound, the true Jacobian."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from squashlens.cli._app import Device, Job, Model, Out, Quiet, app, opened, save_result, write_figure
from squashlens.zoo import EXAMPLE_PROMPT

if TYPE_CHECKING:
    import xarray as xr

Prompt = Annotated[str, tyro.conf.arg(help="The text to measure; it is read at its last token.")]
Figure = Annotated[Path | None, tyro.conf.arg(help="Also draw bound, null and Jacobian into this .html file.")]
Query = Annotated[int, tyro.conf.arg(help="Position that is read; counted from the end if negative.")]
Freeze = Annotated[
    tuple[Literal["attention", "norms", "gates"], ...],
    tyro.conf.arg(help="What is held constant while differentiating; nothing if empty."),
]
Norm = Annotated[Literal["spectral", "frobenius"], tyro.conf.arg(help="Matrix norm of each token's Jacobian.")]


@app.command
def report(
    model: Model = "tiny-gemma",
    prompt: Prompt = EXAMPLE_PROMPT,
    out: Annotated[Path, tyro.conf.arg(help="The page to write.")] = Path("report.html"),
    norm: Norm = "spectral",
    digits: Annotated[int, tyro.conf.arg(help="Digits in the longest of figure 5's sequences.")] = 96,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """Write one self-contained HTML page: over-squashing on a prompt, collapse and separators on figure 5's."""

    def job() -> None:
        import squashlens as sl
        from squashlens.files import require_output

        require_output(out, (".html", ".htm"), "--out")
        bridge = opened(model, device, quiet, prompts=[prompt])
        path = sl.report(bridge, prompt=prompt, out=out, norm=norm, digits=digits, progress=not quiet)
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
    constants: Annotated[
        Literal["paper", "measured"],
        tyro.conf.arg(help="The constants above, or those of the model at this input: then the bound is certified."),
    ] = "paper",
    edges: Annotated[
        Literal["local", "analytic", "attention", "exact"],
        tyro.conf.arg(help="Measured constants: how each block is bounded; local is for long prompts."),
    ] = "analytic",
    group: Annotated[int, tyro.conf.arg(help="Exact edges: blocks composed before a norm is taken.")] = 1,
    freeze: Freeze = (),
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """The path bound of Theorem 5.1 for every token, as printed or certified, as a table."""

    def job() -> None:
        import squashlens as sl

        bridge = opened(model, device, quiet, out, figure, prompts=[prompt])
        result = sl.path_bound(
            bridge, prompt, attention=attention, query=query,
            beta1=beta1, beta2=beta2, beta3=beta3, sigma_psi=sigma_psi,
            constants=constants, edges=edges, group=group, freeze=freeze, progress=not quiet,
        )  # fmt: skip
        _deliver(result, out)
        _draw(bridge, prompt, query, figure, quiet)

    return job


@app.command
def jacobian(
    model: Model = "tiny-gemma",
    prompt: Prompt = EXAMPLE_PROMPT,
    norm: Norm = "spectral",
    freeze: Freeze = (),
    rtol: Annotated[
        float | None, tyro.conf.arg(help="Sketch a Frobenius norm until its 95 % interval is ± this part of it.")
    ] = None,
    chunk: Annotated[
        int | None, tyro.conf.arg(help="Vector–Jacobian products at a time; as many as fit if not given.")
    ] = None,
    query: Query = -1,
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """The true sensitivity of the last representation to every token, as a table."""

    def job() -> None:
        import squashlens as sl

        bridge = opened(model, device, quiet, out, figure, prompts=[prompt])
        result = sl.jacobian_norms(
            bridge, prompt, norm=norm, freeze=freeze, query=query, chunk=chunk, progress=not quiet,
            method="exact" if rtol is None else "sketch", rtol=rtol,
        )  # fmt: skip
        _deliver(result, out)
        _draw(bridge, prompt, query, figure, quiet, norm=norm)

    return job


def _deliver(result: "xr.DataArray", out: Path | None) -> None:
    print(f"# {result.attrs['long_name']}, {result.name} (units: {result.attrs['units']})")
    print("position  value         token")
    for place, token, value in zip(result["position"].values, result["token"].values, result.values, strict=True):
        print(f"{int(place):>8}  {float(value):<12.6g}  {token}")
    save_result(result, out)


def _draw(bridge: Any, prompt: str, query: int, figure: Path | None, quiet: bool, **options: Any) -> None:
    if figure is None:
        return
    import squashlens as sl

    measured = sl.sensitivity(bridge, prompt, query=query, progress=not quiet, **options)
    write_figure(sl.figures.attribution(measured), figure)
