"""What a verb does: check the outputs, load the model, call the function, print a table, save and draw the result."""

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tyro

import squashlens as sl
from squashlens._typing import short_repr
from squashlens.checks.results import EACH
from squashlens.cli._options import PANELS, SETS, as_typed, flag, options, parameters, values
from squashlens.cli._terminal import show
from squashlens.cli._verbs import Verb
from squashlens.engine.text.vocabulary import refuse_words_of
from squashlens.errors import InputError, SquashlensError
from squashlens.figures.drawing.saving import ENDINGS, require_browser
from squashlens.saving.files import require_distinct, require_output
from squashlens.study.describing.measurements import require_hooks
from squashlens.tasks import find

RESULTS = (".nc", ".json", ".csv")
PAGES = ("report", "squash_map")
# Options whose values are tokenized, so that a misspelt word is reported before the model is loaded.
TEXTS = ("prompt", "prefix", "suffix", "separator", "token", "alphabet", "content", "ending")


def run(verb: Verb, words: list[str]) -> None:
    """Measure what a verb measures, with the options that were typed. Errors name options as they are typed."""
    filled = tyro.cli(parameters(verb), args=words, prog=f"squashlens {verb.name}")
    try:
        _measure(verb, values(filled))
    except SquashlensError as error:
        error.args = (as_typed(str(error), options(verb)),)
        raise


def _measure(verb: Verb, given: dict[str, Any]) -> None:
    names = given.get("task", ("",))
    if not names:
        raise InputError("--task names no task.", "`squashlens tasks` lists them.")
    labels = {name: name if len(names) > 1 else "" for name in names}
    _check_outputs(verb, given, labels.values())
    runs = given.get("runs") is not None
    arguments = _for_runs(verb, given) if runs else _arguments(verb, given, "function")
    joiner = given.get("joiner")
    tasks = {name: {"task": find(name) if joiner is None else find(name).shown(joiner)} for name in names if name}
    if "sequence" in arguments:
        _maker_of(verb, given)  # before the model is loaded
    refuse_words_of(given["model"], _texts(given))
    loading = _arguments(verb, given, "load")
    model = sl.load(given["model"], **{"device": loading["device"]} if runs else loading)
    if verb.name in FILES:
        FILES[verb.name](verb.function(model, **arguments), given)
        return
    if "sequence" in arguments:
        arguments["sequence"] = _sequence(verb, model, given)
    found: dict[str, Any] = {}
    for name, label in labels.items():
        if "resume" in arguments:
            arguments["resume"] = _beside(given["resume"], label)
        found[name] = verb.function(given["model"] if runs else model, **arguments | tasks.get(name, {}))
        print(show(f"{verb.name} --runs" if runs else verb.name, found[name], label), end="")
        if (out := _beside(given["out"], label)) is not None:
            print(f"saved: {sl.results.save(found[name], out).resolve()}")
    for option, figure in verb.drawn.items():
        if given[option] is not None:
            _draw(verb, "runs" if runs else figure, found, given[option], labels)


def _say_written(outcomes: dict[int, Any], _: Any) -> None:
    """Print the file of each figure, or the reason why there is none; raise an error if there is such a reason."""
    for number, outcome in outcomes.items():
        print(f"figure {number}: {outcome.resolve() if isinstance(outcome, Path) else f'not measured. {outcome}'}")
    failed = [str(number) for number, outcome in outcomes.items() if not isinstance(outcome, Path)]
    if failed:
        raise InputError(
            f"{len(failed)} of {len(outcomes)} figures could not be measured on this model: {', '.join(failed)}.",
            "The reasons are above and in README.md of the folder; the other figures were written.",
        )


# Verbs that print no table: what they say of what their function gave.
FILES: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "report": lambda path, _: print(f"report: {path.resolve()}"),
    "paper": _say_written,
    "squash_map": lambda view, given: print(f"map: {view.save(given['out']).resolve()}"),
}


def _for_runs(verb: Verb, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function that loads the model and captures the sequence itself, for each of several runs."""
    for name, option in options(verb).items():
        if option.owners and {*option.owners} <= {"load", "capture"} and given[name] != option.default:
            raise InputError(f"{flag(name)} has no effect with --runs.", "Leave it out.")
    return _grouped({name: given[name] for name, option in options(verb).items() if "function" in option.owners})


def _beside(path: Path | None, label: str) -> Path | None:
    """The file of one of several tasks."""
    return path.with_name(f"{path.stem}.{label}{path.suffix}") if path is not None and label else path


def _check_outputs(verb: Verb, given: dict[str, Any], labels: Iterable[str]) -> None:
    """Refuse files that cannot be written, and one file for two things, before anything is computed."""
    endings: dict[str, Any] = {"out": (".html", ".htm") if verb.name in PAGES else RESULTS, "resume": ()}
    if verb.name == "paper":  # a folder, which the function checks
        del endings["out"]
    for name in verb.drawn:
        endings[name] = ENDINGS
        if given[name] is not None:
            require_browser(given[name])
    beside = ((name, _beside(given.get(name), label)) for name in endings for label in labels)
    asked = {(name, path) for name, path in beside if path is not None}
    require_distinct(require_output(path, endings[name], flag(name)) for name, path in sorted(asked, key=str))


def _texts(given: dict[str, Any]) -> list[str]:
    several = [[value] if isinstance(value, str) else value for value in (given.get(name) for name in TEXTS) if value]
    texts = [text for texts in several for text in texts if isinstance(text, str)]
    return [text for text in texts if text.encode("utf-8", "ignore").decode() == text]  # the function refuses others


def _arguments(verb: Verb, given: dict[str, Any], owner: str) -> dict[str, Any]:
    """The options that are passed to a function, as it takes them."""
    found = {}
    for name, option in options(verb).items():
        if owner not in option.owners:
            continue
        if owner != "function":
            found[name.removeprefix("sequence_") if owner == "sequence" else name] = given[name]
        else:
            found[name] = _value(verb, name, given)
    return _grouped(found)


def _grouped(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function, in which `prompting.mode` is the entry `mode` of the mapping `prompting`."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        outer, dot, inner = name.partition(".")
        if dot:
            found.setdefault(outer, {})[inner] = value
        elif any(other.startswith(f"{name}.") for other in arguments):  # the field with the name of its group
            found.setdefault(name, {})[name] = value
        else:
            found[name] = value
    return found


def _value(verb: Verb, name: str, given: dict[str, Any]) -> Any:
    value = given[name]
    if name == "prompt" and isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    if name == "answer":
        return _answer(value, given.get("token", ""))
    if name == "interventions":
        return interventions(value)
    return dict(value) if name == "separator" and verb.name == "tokenization" else value


def _answer(kind: str, counted: str) -> Callable[[tuple[str, ...]], str] | None:
    """The right answer to the texts of the content tokens."""
    rules: dict[str, Callable[[tuple[str, ...]], str]] = {
        "count": lambda content: str(content.count(counted)),
        "first": lambda content: content[0],
        "last": lambda content: content[-1],
    }
    return rules.get(kind)


def _maker_of(verb: Verb, given: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that makes the growing sequence, and its arguments without the model."""
    chosen = given["sequence"]
    maker = chosen[:-1] if chosen in PANELS else chosen
    function = getattr(sl.prompts, maker)
    taken = set(inspect.signature(function).parameters)
    if "form" in taken:
        taken |= set(inspect.signature(sl.prompts.build).parameters)
    taken -= {*SETS.get(maker, ()), *(["content"] if maker != "build" else [])}
    for name, option in options(verb).items():
        own = name.removeprefix("sequence_").partition(".")[0]
        unused = "sequence" in option.owners and own not in taken and name != "seed"
        if unused and given[name] != option.default:
            cause = f"{flag(name)} has no meaning with --sequence {chosen}."
            raise InputError(cause, "Leave it out, or choose another sequence.")
    known = _arguments(verb, given, "sequence")
    if maker == "words":
        known["alphabet"] = known["alphabet"] or ()
    elif known["alphabet"] is None:  # each function has its own
        del known["alphabet"]
    return function, {name: value for name, value in known.items() if name in taken}


def _sequence(verb: Verb, model: Any, given: dict[str, Any]) -> Any:
    """The growing sequence that the options describe; captured, if the verb measures a capture."""
    function, form = _maker_of(verb, given)
    made, chosen = function(model, **form), given["sequence"]
    sequence = made[chosen[-1]] if chosen in PANELS else made
    if not verb.said("captured") or given.get("runs") is not None:
        return sequence
    patterns = verb.name == "mechanism" or given.get("by_head") == "value"
    keep = ("residuals", "patterns") if patterns else "residuals"
    capturing = {name: value for name, value in _arguments(verb, given, "capture").items() if value is not None}
    return sl.capture(model, sequence, keep=keep, **capturing)


def _draw(verb: Verb, name: str, found: dict[str, Any], path: Path, labels: dict[str, str]) -> None:
    """Write a figure of the result, or of the results of several tasks."""
    figure, more = getattr(sl.figures, name), {}
    if name == "collapse_curve":
        more["trained"] = sl.zoo.trained_length(sl.results.provenance(next(iter(found.values())))["model"])
    if name == "answer_frequencies":
        found = {task: sl.results.answer_frequencies(result) for task, result in found.items()}
    if verb.name == "evaluate":
        drawn = {path: figure(found)}
    else:
        drawn = {
            _beside(path, labels[task]): sl.figures.of(result) if {*EACH} & {*result.dims} else figure(result, **more)
            for task, result in found.items()
        }
    for file, one in drawn.items():
        if file is not None:
            if file.suffix in (".pdf", ".svg"):
                one = sl.figures.styled(one, theme="paper")
            print(f"figure: {sl.figures.save(one, file).resolve()}")


EXAMPLE = "Write for example 'sliding_window(8, sink=1)', or 'sliding_window(8) + mask_tokens([0])'."


def interventions(typed: Iterable[str]) -> dict[str, list[Any]]:
    """The hooks of each intervention, by its text."""
    found: dict[str, list[Any]] = {}
    for text in typed:
        try:
            described = [_describe(call) for call in _calls(ast.parse(f"({text}\n)", mode="eval").body)]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            raise InputError(f"interventions={short_repr(text)} is not a hook with its arguments.", EXAMPLE) from error
        found[" ".join(text.split())] = require_hooks(described)
    return found


def _calls(node: ast.expr) -> Iterator[ast.expr]:
    """The calls that a text joins by +."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _calls(node.left)
        yield from _calls(node.right)
    else:
        yield node


def _describe(node: ast.expr) -> dict[str, dict[str, Any]]:
    """A call as a study describes it: the name of a function, with its arguments by name."""
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name) or any(one.arg is None for one in call.keywords):
        raise ValueError("no call of a function by its name")
    values = [ast.literal_eval(one) for one in call.args]
    named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    function = getattr(sl.hooks, call.func.id, None)
    placed = inspect.signature(function).bind_partial(*values).arguments if inspect.isfunction(function) else {}
    if placed.keys() & named.keys():
        raise ValueError("an argument is given twice")
    return {call.func.id: placed | named}
