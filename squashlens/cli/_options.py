"""The options of a verb: the parameters of its function, with the same names, defaults and choices."""

import inspect
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from squashlens._typing import DtypeName, dtype_name
from squashlens.checks.arguments import group_in, options_of
from squashlens.cli._verbs import WRITING, Verb
from squashlens.zoo import EXAMPLE_PROMPT

MAKERS = ("repeated", "alternating", "bernoulli", "digits", "words", "build")
PANELS = ("figure5a", "figure5b", "figure5c", "figure5d")

# Python objects that a command line cannot pass, and what stands there instead: its type, its default, its help.
INSTEAD: dict[str, tuple[Any, Any, str]] = {
    "model": (str, "tiny-gemma", "Bundled model (tiny-gemma), local folder, or Hugging Face name."),
    "prompt": (tuple[str, ...], (EXAMPLE_PROMPT,), "Text to measure. Several texts are measured one by one."),
    "sequence": (Literal[(*MAKERS, *PANELS)], "repeated", "Function of squashlens.prompts that makes the sequence."),
    "task": (tuple[str, ...], ("taught_count_bernoulli",), "Names of tasks; `squashlens tasks` lists them."),
    "joiner": (str | None, None, "Text between two items of a task, such as ', '; the task's own if not given."),
    "answer": (
        Literal["none", "count", "first", "last"],
        "none",
        "Right answer to a sequence: the number of content tokens equal to --token (count), or the first or the last "
        "content token. With none, accuracy is not measured. Several sequences are asked at every length "
        "(--sampling.n-samples), which takes minutes unless --lengths names a few.",
    ),
    "interventions": (
        tuple[str, ...],
        ("sliding_window(4)", "sliding_window(8)", "sliding_window(8, sink=1)"),
        "Functions of squashlens.hooks with their arguments, such as 'sliding_window(8, sink=1)'. Several that act "
        "together are joined by +.",
    ),
    "alphabet": (tuple[str, ...] | None, None, "Tokens that content is drawn from; those of --sequence if not given."),
    "out": (Path | None, None, "Also save the result to this file: .nc or .json (lossless), or .csv."),
}
INSTEAD_OF: dict[tuple[str, str], tuple[Any, Any, str]] = {  # the same for one verb
    ("squash_map", "out"): (Path, Path("map.html"), "Write the map to this .html file."),
    ("tokenization", "separator"): (
        tuple[tuple[str, str], ...],
        (),
        "Pairs: the name of a form, and the text between two repeats.",
    ),
}
# Values to start with where a function has no default, so that every verb runs without options.
START: dict[str, Any] = {
    "n": 48, "token": "1", "content": (),
    "lengths": (4, 8, 16, 24, 32, 40, 48, 56, 64), "seed": 0,
}  # fmt: skip
START_OF = {  # its default and its help; for the options of `load` under its name
    ("separator_ablation", "separator"): (",", "A token to insert after every --separator.every content tokens."),
    ("path_bound", "constants"): (
        "paper",
        "Constants of the bound: paper, the printed formula with all β and σ_ψ 1; or measured, certified "
        "constants of this model at this input. Other values need Python.",
    ),
    ("load", "device"): (
        None,
        "Where the model runs; CUDA if available, else the CPU. auto, balanced, balanced_low_0 or sequential spread "
        "the blocks over several devices, as device_map does in transformers.",
    ),
}
# What --figure draws beside the first figure of a verb.
ALSO = {"bits_needed": " With --runs, draw the distance by length in each run."}
# Parameters that are no options, and why.
LEFT_OUT = {
    ("separator_ablation", "substitute.source"): "sequences that only Python can make",
    ("compare", "prompt"): "is for families of sequences, which only Python can give",
    ("compare", "sampling.method"): "is for families of sequences, which only Python can give",
    ("search_separators", "separator"): "the search tries separators of its own",
    ("search_separators", "separator.every"): "the search tries periods of its own",
    ("capture", "prompt"): "is --sequence",
    ("capture", "keep"): "is what the measurement reads",
    ("squash_map", "interventions"): "is a result of compare, which only Python can pass",
    **{("capture", name): "of a prompt only" for name in ("layers", "out")},
}
# Parameters of `squashlens.prompts.build` that a function of that module sets itself.
SETS = {"digits": ("alphabet",), "figure5": ("prefix", "separator", "separator.every", "alphabet")}


ELSEWHERE = re.compile(r"(?:,\s*)?\b(?:as in|as of|as for|for|see) `(\w+(?:\.\w+)?)`")
NAMED = re.compile(r"(?<![\w'\"`-])((?:[a-z]\w*\.)?[a-z]\w*)=('[^'\n]*'|[-+\w](?:[\w.+-]*\w)?)?")
SECTION = re.compile(r"^(?:\w+:$|Source:|>>> )", re.MULTILINE)


def plain(text: str) -> str:
    """Text without the marks of reStructuredText, each paragraph in one line."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    text = re.sub(r"`+([^`]*)`+", r"\1", "\n\n".join(paragraphs)).replace("**", "")
    return re.sub(r"(?<!\w)\*(\w[^*]*)\*(?!\w)", r"\1", text).strip()


def first_sentence(docstring: str) -> str:
    """The first sentence of a docstring."""
    return re.split(r"(?<=[.?!])\s+(?=[A-Z‖`])", plain(docstring.split("\n\n")[0]))[0]


def about(function: Callable[..., Any]) -> str:
    """What a function measures: its docstring up to the first section."""
    return plain(SECTION.split(inspect.getdoc(function) or "")[0])


def help_for(function: Callable[..., Any], name: str) -> str:
    """The description of a parameter, from the docstring of its function or of the function that it refers to."""
    text = _describe(function, name)
    text = text[:1].upper() + text[1:]  # a name in backticks stays as it is
    return f"{plain(text).rstrip('.')}."


def _describe(function: Callable[..., Any], name: str) -> str:
    """A parameter's description; where it refers to another function, with the description there."""
    text = _arguments(function).get(name, "")
    reference = ELSEWHERE.search(text)
    other = _public(reference[1]) if reference else None
    if other in (None, function):
        return text
    rest = ELSEWHERE.sub("", text, count=1).strip(" .;:,")
    there = (_describe(other, name) or _describe(other, f"{name}s")).rstrip(".")
    if not there or not rest:
        return there or rest
    return f"{there}. {rest if rest[0].isupper() else f'Here: {rest}'}"


@cache
def _arguments(function: Callable[..., Any]) -> dict[str, str]:
    """Descriptions by parameter; one entry may describe several, as in `norm, scale: …`."""
    from docstring_parser import DocstringStyle, parse

    parsed = parse(inspect.getdoc(function) or "", style=DocstringStyle.GOOGLE)
    return {name.strip(): one.description or "" for one in parsed.params for name in one.arg_name.split(",")}


def _public(name: str) -> Any:
    """The public function of this name, or method such as `Study.run`; None if there is none."""
    import squashlens as sl

    kind, _, method = name.rpartition(".")
    found = getattr(sl, kind, None) if kind else None
    places = (sl, sl.paths, sl.prompts) if not kind else (found,) if isinstance(found, type) else ()
    return next((getattr(place, method) for place in places if hasattr(place, method)), None)


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def as_typed(text: str, options: Collection[str]) -> str:
    """The text with parameters and values in the spelling of a command line that has these options."""

    def typed(found: re.Match[str]) -> str:
        name, value = found[1], (found[2] or "").removeprefix("torch.")
        # A parameter for one value may be an option for several.
        names = (name, f"{name}s", f"sequence_{name}", "model" if name == "name" else "")
        grouped = (one for one in options if one.endswith(f".{name}"))
        option = next((one for one in names if one in options), None) or next(grouped, None)
        if option is None:
            return found[0]
        if value in ("True", "False"):
            return flag(option if value == "True" else f"no_{option}")
        plain = value.strip("'")
        return f"{flag(option)} {value if not plain or ' ' in plain else plain}".rstrip()

    return NAMED.sub(typed, text)


@dataclass(frozen=True)
class Option:
    """One option: its type as tyro reads it, its default, its help, and the box of `--help` that it is in.

    One of a group of options (`checks.arguments.options_of`) has the name of the parameter and a dot before its own.
    """

    name: str
    kind: Any
    default: Any
    help: str
    box: str
    owners: tuple[str, ...] = ()  # what its value is passed to


@cache
def options(verb: Verb) -> dict[str, Option]:
    """All options of a verb, by name. One option may be passed to several functions, as `seed` is."""
    found: dict[str, Option] = {}
    for option in _all(verb):
        if any((place, option.name) in LEFT_OUT for place in (verb.name, *option.owners)):
            continue
        first = found.get(option.name)
        found[option.name] = option if first is None else replace(first, owners=tuple({*first.owners, *option.owners}))
    return found


def _all(verb: Verb) -> Iterable[Option]:
    """The options of a verb in the order of `--help`; those that are passed to several functions come several times."""
    import squashlens as sl

    own = inspect.signature(verb.function).parameters
    yield from _parameters(verb, verb.function, "model", "options", "function")
    if "task" in own:
        yield Option("joiner", *INSTEAD["joiner"], "options")
    if "sequence" in own:
        for maker in (*MAKERS, "figure5"):
            yield from _of_sequence(verb, getattr(sl.prompts, maker), set(own))
    if verb.said("captured"):  # it measures a capture
        yield from _parameters(verb, sl.capture, "model", "capture", "capture")
    yield Option("model", *INSTEAD["model"], "load")
    yield from _parameters(verb, sl.load, "name", "load", "load")
    if verb.name not in WRITING:
        yield Option("out", *INSTEAD_OF.get((verb.name, "out"), INSTEAD["out"]), "output")
    for option, figure in verb.drawn.items():
        text = plain((inspect.getdoc(getattr(sl.figures, figure)) or "").split("\n\n")[0]) + ALSO.get(figure, "")
        text = f"Write a figure to this .html, .pdf, .svg, .png or .json file. {text}"
        yield Option(option, Path | None, None, text, "output")


def _of_sequence(verb: Verb, maker: Callable[..., Any], own: set[str]) -> Iterable[Option]:
    """The parameters of a function that makes sequences. One that the verb's function has too is `sequence_…`."""
    for option in _parameters(verb, maker, "model", "growing_sequence", "sequence"):
        name = option.name
        if name != "form":
            clash = (name in own and name != "seed") or (verb.name, f"sequence_{name}") in LEFT_OUT
            yield replace(option, name=f"sequence_{name}") if clash else option


def _parameters(verb: Verb, function: Callable[..., Any], but: str, box: str, owner: str) -> Iterable[Option]:
    """The parameters of a function but one as options: of a group of options, each of them."""
    for name, parameter in inspect.signature(function).parameters.items():
        group = options_of(parameter.annotation)
        if name != but and not group:
            yield _option(verb, function, name, box, owner)
        for inner, one in group.items():
            default = one.default if parameter.default is parameter.empty else getattr(parameter.default, inner)
            option = _option(verb, group_in(parameter.annotation), inner, name, owner, default)
            alone = inner == name  # may be given without the others: `--method`, beside `--method.n-probes`
            yield replace(option, box=box) if alone else replace(option, name=f"{name}.{inner}")


def _option(
    verb: Verb, function: Callable[..., Any], name: str, box: str, owner: str, default: Any = inspect.Parameter.empty
) -> Option:
    """A parameter as an option, with its own default or another."""
    parameter = inspect.signature(function).parameters[name]
    default = parameter.default if default is parameter.empty else default
    replaced = INSTEAD_OF.get((verb.name, name) if owner == "function" else ("", ""), INSTEAD.get(name))
    if replaced is not None and not isinstance(default, str):
        kind, instead, text = replaced
        default = tuple(default.items()) if isinstance(default, Mapping) else instead
    else:
        kind, text = _kind(parameter.annotation), help_for(function, name)
    if default is parameter.empty:
        default = START.get(name)
    default, text = START_OF.get((verb.name, name)) or START_OF.get((owner, name), (default, text))
    if get_origin(kind) is tuple and isinstance(default, str):
        default = (default,)
    elif type(default).__name__ == "dtype":
        default = dtype_name(default)
    elif isinstance(default, Collection) and not isinstance(default, str):
        default = tuple(default)
    elif kind is Path and default is not None:
        default = Path(default)
    return Option(name, kind, default, text, box, (owner,))


def _kind(annotation: Any) -> Any:
    """An annotation as tyro reads it, without what only Python can pass; `None` if nothing is left."""
    annotation = getattr(annotation, "__value__", annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if getattr(annotation, "__name__", "") == "dtype":
        return DtypeName
    if origin in (Union, types.UnionType):
        return _union([_kind(part) for part in parts])
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
        return tuple[_kind(parts[0]), ...]
    known = origin is Literal or annotation in (str, int, float, bool, Path, type(None))
    return annotation if known else None


def _union(kinds: list[Any]) -> Any:
    """Alternatives without those that a command line cannot tell apart: a token's id and its text, one and several."""
    kept = list(dict.fromkeys(kind for kind in kinds if kind is not None))
    if Path in kept or DtypeName in kept:
        kept = [kind for kind in kept if kind is not str]
    if any(get_origin(kind) is Literal and kind != DtypeName for kind in kept):  # which has the names of its dtypes
        kept = [kind for kind in kept if kind != DtypeName]
    if str in kept:
        kept = [kind for kind in kept if kind not in (int, tuple[int, ...])]
    kept = [kind for kind in kept if not (get_origin(kind) is Literal and tuple[kind, ...] in kept)]
    return Union[tuple(kept)] if kept else None  # noqa: UP007


@cache
def parameters(verb: Verb) -> type:
    """A dataclass with a field for each box of `--help`, which tyro fills from a command line."""
    known = options(verb)
    boxes: dict[str, list[Any]] = {}
    for option in known.values():
        text = as_typed(option.help, known)
        name = option.name.rpartition(".")[2]
        boxes.setdefault(option.box, []).append(as_field(name, option.kind, option.default, text))
    groups = {option.box for option in known.values() if "." in option.name}
    fields: list[Any] = boxes.pop("options", [])
    for name, members in boxes.items():
        prefix = f"{name}." if name in groups else ""
        box = make_dataclass(name, members, frozen=True, namespace={"prefix": prefix})
        box.__doc__ = ""
        kind = Annotated[box, tyro.conf.arg(name=name)] if prefix else tyro.conf.OmitArgPrefixes[box]
        fields.append((f"{name}_", kind, field(default_factory=box)))  # an option may have the name of its group
    made = make_dataclass(verb.name, fields, frozen=True)
    made.__doc__ = as_typed(about(verb.function), known)
    return made


def as_field(name: str, kind: Any, default: Any, text: str) -> tuple[str, Any, Any]:
    """An option as a field of a dataclass; where the default is nothing, the help says what happens then."""
    hint = "" if default in (None, ()) else None
    return name, Annotated[kind, tyro.conf.arg(help=text, help_behavior_hint=hint)], field(default=default)


def values(filled: Any) -> dict[str, Any]:
    """The values of all options, whatever box they are in."""
    found: dict[str, Any] = {}
    for name, value in vars(filled).items():
        box: Any = value if is_dataclass(value) else None
        found |= {name: value} if box is None else {f"{box.prefix}{inner}": one for inner, one in vars(box).items()}
    return found
