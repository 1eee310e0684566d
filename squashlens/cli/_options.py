"""The options of a verb: the parameters of its function, with the same names, defaults and choices."""

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from squashlens._typing import DtypeName, dtype_name
from squashlens.cli._exceptions import ALSO, INSTEAD, INSTEAD_OF, LEFT_OUT, MAKERS, START, START_OF
from squashlens.cli._help import about, as_typed, help_for, plain
from squashlens.cli._verbs import WRITING, Verb


@dataclass(frozen=True)
class Option:
    """One option: its type as tyro reads it, its default, its help, and the box of `--help` that it is in."""

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
    yield from (_option(verb, verb.function, name, "options", "function") for name in own if name != "model")
    if "task" in own:
        yield Option("joiner", *INSTEAD["joiner"], "options")
    if "sequence" in own:
        for maker in (*MAKERS, "figure5"):
            yield from _of_sequence(verb, getattr(sl.prompts, maker), set(own))
    if verb.captured:
        captured = inspect.signature(sl.capture).parameters
        yield from (_option(verb, sl.capture, name, "capture", "capture") for name in captured if name != "model")
    yield Option("model", *INSTEAD["model"], "load")
    loads = inspect.signature(sl.load).parameters
    yield from (_option(verb, sl.load, name, "load", "load") for name in loads if name != "name")
    if verb.name not in WRITING:
        yield Option("out", *INSTEAD_OF.get((verb.name, "out"), INSTEAD["out"]), "output")
    for option, figure in verb.drawn.items():
        text = plain((inspect.getdoc(getattr(sl.figures, figure)) or "").split("\n\n")[0]) + ALSO.get(figure, "")
        text = f"Write a figure to this .html, .pdf, .svg, .png or .json file. {text}"
        yield Option(option, Path | None, None, text, "output")


def _of_sequence(verb: Verb, maker: Callable[..., Any], own: set[str]) -> Iterable[Option]:
    """The parameters of a function that makes sequences. One that the verb's function has too is `sequence_…`."""
    for name in inspect.signature(maker).parameters:
        if name not in ("model", "form") and (maker.__name__, name) not in LEFT_OUT:
            option = _option(verb, maker, name, "growing_sequence", "sequence")
            clash = (name in own and name != "seed") or (verb.name, f"sequence_{name}") in LEFT_OUT
            yield replace(option, name=f"sequence_{name}") if clash else option


def _option(verb: Verb, function: Callable[..., Any], name: str, box: str, owner: str) -> Option:
    """A parameter as an option."""
    parameter = inspect.signature(function).parameters[name]
    default = parameter.default
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
        boxes.setdefault(option.box, []).append(as_field(option.name, option.kind, option.default, text))
    fields: list[Any] = boxes.pop("options", [])
    for name, members in boxes.items():
        box = make_dataclass(name, members, frozen=True)
        box.__doc__ = ""
        fields.append((name, tyro.conf.OmitArgPrefixes[box], field(default_factory=box)))
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
        found |= vars(value) if is_dataclass(value) else {name: value}
    return found
