"""Verbs on sequences: representational collapse, and the ablation of separators."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from squashlens._typing import full_name
from squashlens.cli._app import Device, Job, Model, Out, Quiet, app, opened, save_result, write_figure
from squashlens.errors import InputError
from squashlens.paper import COPY, COUNT
from squashlens.zoo import trained_length

if TYPE_CHECKING:
    import xarray as xr

    from squashlens.prompts import Sequence

ROWS = 24  # of a table; --out holds all of it

Norm = Annotated[Literal["linf", "l1", "l2"], tyro.conf.arg(help="Norm of the difference.")]
Scale = Annotated[Literal["absolute", "relative"], tyro.conf.arg(help="relative: divided by the rms of v.")]
Replay = Annotated[int, tyro.conf.arg(help="Lengths run again prompt by prompt, for the noise floor; 0: none.")]
Figure = Annotated[Path | None, tyro.conf.arg(help="Also draw it into this .html file.")]


@dataclass(frozen=True)
class Of:
    """The sequence."""

    sequence: Annotated[
        Literal["repeated", "alternating", "bernoulli", "digits", "words"], tyro.conf.arg(help="How content is made.")
    ] = "repeated"
    n: Annotated[int, tyro.conf.arg(help="Content tokens in the longest sequence.")] = 96
    repeat: Annotated[str, tyro.conf.arg(help="What --sequence repeated repeats; one token.")] = "1"
    words: Annotated[tuple[str, ...], tyro.conf.arg(help="What --sequence words draws from.")] = ()
    prompt: Annotated[str, tyro.conf.arg(help="Text before the sequence.")] = COUNT
    suffix: Annotated[str, tyro.conf.arg(help="Text behind it; it is read at the suffix's last token.")] = ""
    separator: Annotated[str, tyro.conf.arg(help="A token between content tokens; empty: none.")] = ""
    every: Annotated[int, tyro.conf.arg(help="Content tokens between separators.")] = 3
    template: Annotated[
        Literal["none", "chat"], tyro.conf.arg(help="chat: as one message in the tokenizer's chat template.")
    ] = "none"
    seed: Annotated[int, tyro.conf.arg(help="Of everything that is drawn.")] = 0

    @property
    def texts(self) -> list[str]:
        """All that is to be tokenized."""
        content = {"repeated": [self.repeat], "words": list(self.words)}.get(self.sequence, [])
        return [self.prompt, self.suffix, self.separator, *content]

    def build(self, model: Any) -> "Sequence":
        """The sequence in the model's tokens."""
        from squashlens import prompts

        form: dict[str, Any] = {"prompt": self.prompt, "suffix": self.suffix, "template": self.template}
        form |= {"separator": self.separator or None, "every": self.every}
        makers = {
            "repeated": lambda: prompts.repeated(model, self.repeat, self.n, **form),
            "alternating": lambda: prompts.alternating(model, self.n, **form),
            "bernoulli": lambda: prompts.bernoulli(model, self.n, seed=self.seed, **form),
            "digits": lambda: prompts.digits(model, self.n, seed=self.seed, **form),
            "words": lambda: prompts.words(model, self.n, self.words, seed=self.seed, **form),
        }
        return makers[self.sequence]()


@app.command
def collapse(
    of: tyro.conf.OmitArgPrefixes[Of] = Of(),
    model: Model = "tiny-gemma",
    norm: Norm = "linf",
    scale: Scale = "absolute",
    heads: Annotated[
        Literal["none", "value", "slice"], tyro.conf.arg(help="Also by head: its output, or its slice of the stream.")
    ] = "value",
    round_to: Annotated[
        Literal["none", "bfloat16", "float16", "float32", "bf16", "fp16", "fp32", "float8_e4m3fn", "float8_e5m2"],
        tyro.conf.arg(help="Round the representations first."),
    ] = "none",
    beside: Annotated[
        tuple[Literal["contrast", "unrelated"], ...], tyro.conf.arg(help="What close is measured against.")
    ] = ("contrast", "unrelated"),
    replay: Replay = 6,
    passes: Annotated[
        Literal["auto", "shared", "separate"], tyro.conf.arg(help="separate: every prompt by itself.")
    ] = "auto",
    out: Out = None,
    figure: Figure = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """How far a sequence and the same with its last token repeated stay apart, by length and layer."""

    def job() -> None:
        import squashlens as sl

        bridge = opened(model, device, quiet, out, figure, texts=of.texts)
        result = sl.collapse(
            bridge, of.build(bridge), norm=norm, scale=scale, heads=None if heads == "none" else heads,
            beside=beside, seed=of.seed, replay=replay, round_to=_dtype(round_to), passes=passes, progress=not quiet,
        )  # fmt: skip
        last = result.isel(layer=-1)
        columns = {"D": last["distance"], "D_y": last["distance_y"]}
        columns |= {name: last[name] for name in ("contrast", "total_variation", "same_argmax") if name in last}
        _table(result, "distance", columns)
        save_result(result, out)
        if figure is not None:
            trained = trained_length(sl.provenance(result)["model"])
            write_figure(sl.figures.collapse_curve(result, trained=trained), figure)

    return job


@app.command
def ablate(
    of: tyro.conf.OmitArgPrefixes[Of] = Of(prompt=COPY, separator=","),
    model: Model = "tiny-gemma",
    kinds: Annotated[
        tuple[
            Literal[
                "delete",
                "delete_keep_positions",
                "substitute",
                "extra_digits",
                "random_places",
                "mask",
                "zero_pattern",
                "zero_value",
                "zero_resid",
                "mean_resid",
                "resample_resid",
            ],
            ...,
        ],
        tyro.conf.arg(help="Ways of taking separators away."),
    ] = ("delete_keep_positions", "substitute", "extra_digits", "random_places", "mask", "zero_value"),
    from_blocks: Annotated[
        tuple[int, ...], tyro.conf.arg(help="Blocks from which hooks act, one after the other; empty: all.")
    ] = (),
    substitute: Annotated[str | None, tyro.conf.arg(help="Token for substitute; drawn if not given.")] = None,
    norm: Norm = "linf",
    scale: Scale = "relative",
    replay: Replay = 4,
    out: Out = None,
    figure: Figure = None,
    map: Annotated[
        Path | None, tyro.conf.arg(help="Also draw from-block × layer for mask into this .html file.")
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> Job:
    """What separators do to collapse, layer by layer: edited in the prompt, masked or zeroed from a block on."""

    def job() -> None:
        import squashlens as sl

        if not kinds:
            raise InputError("--kinds names nothing.", "Name at least one, or leave it out for all.")
        bridge = opened(model, device, quiet, out, figure, map, texts=of.texts)
        result = sl.separator_ablation(
            bridge, of.build(bridge), kinds=kinds, from_blocks=from_blocks or None, substitute=substitute,
            norm=norm, scale=scale, seed=of.seed, replay=replay, progress=not quiet,
        )  # fmt: skip
        last = result.isel(layer=-1)
        columns = {str(name): last["distance"].sel(edit=name) for name in last["edit"].values}
        if "distance_from" in last:
            first = int(last["from_block"].values[0])
            columns |= {
                f"{h}@{first}": last["distance_from"].sel(hook=h, from_block=first) for h in last["hook"].values
            }
        _table(result, "distance", columns)
        save_result(result, out)
        if figure is not None:
            write_figure(sl.figures.layer_trace(result), figure)
        if map is not None:
            write_figure(sl.figures.from_block_map(result), map)

    return job


def _dtype(name: str) -> Any:
    import torch

    return None if name == "none" else getattr(torch, full_name(name))


def _table(result: "xr.Dataset", variable: str, columns: dict[str, "xr.DataArray"]) -> None:
    """Some rows of the last layer, by length."""
    about = result[variable].attrs
    print(f"# {about['long_name']}, layer {int(result['layer'].values[-1])} (units: {about['units']})")
    widths = [max(12, len(name)) for name in columns]
    print("  ".join(["length", *(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True))]))
    lengths = result["length"].values
    chosen = sorted({round(i * (len(lengths) - 1) / (ROWS - 1)) for i in range(ROWS)})
    for place in chosen:
        values = [_cell(column.values[place]) for column in columns.values()]
        print("  ".join([f"{int(lengths[place]):>6}", *(f"{v:>{w}}" for v, w in zip(values, widths, strict=True))]))
    if len(chosen) < len(lengths):
        print(f"({len(chosen)} of {len(lengths)} lengths; --out saves all, at every layer)")


def _cell(value: Any) -> str:
    return {"True": "yes", "False": "no"}.get(str(value)) or f"{float(value):.5g}"
