"""The verb that asks every sensitivity measure what it is worth on a model."""

from pathlib import Path
from typing import Annotated

import tyro

from squashlens.cli._app import Device, Job, Model, Out, Quiet, app, opened, save_result, write_figure
from squashlens.cli.sensitivity import Query


@app.command
def audit(
    model: Model = "tiny-gemma",
    prompts: Annotated[
        tuple[str, ...], tyro.conf.arg(help="One or several texts of equal length; the example prompt if none.")
    ] = (),
    content: Annotated[
        tuple[int, int] | None, tyro.conf.arg(help="First and last position that agreement is taken over.")
    ] = None,
    rungs: Annotated[tuple[str, ...], tyro.conf.arg(help="Only these, by how their names start; all if none.")] = (),
    probes: Annotated[int, tyro.conf.arg(help="Directions of the sketches.")] = 16,
    replacements: Annotated[int, tyro.conf.arg(help="Tokens that each token is swapped for.")] = 8,
    seed: Annotated[int, tyro.conf.arg(help="Of sketches, swaps and the bootstrap.")] = 0,
    query: Query = -1,
    out: Out = None,
    figure: Annotated[Path | None, tyro.conf.arg(help="Also draw the ladder into this .html file.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """Every bound, norm and proxy side by side: how tight, how like the truth, at what cost."""

    def job() -> None:
        import squashlens as sl

        bridge = opened(model, device, quiet, out, figure, prompts=prompts)
        found = sl.audit(
            bridge, list(prompts) or sl.zoo.EXAMPLE_PROMPT, rungs=rungs or None,
            content=None if content is None else range(content[0], content[1] + 1),
            probes=probes, replacements=replacements, seed=seed, query=query, progress=not quiet,
        )  # fmt: skip
        print(sl.audit_table(found).to_string(float_format=lambda v: f"{v:.3g}", na_rep="·"))
        for name, reason in zip(found["rung"].values, found["refused"].values, strict=True):
            if reason:
                print(f"not had: {name}. {reason}")
        save_result(found, out)
        if figure is not None:
            write_figure(sl.figures.ladder(found), figure)

    return job
