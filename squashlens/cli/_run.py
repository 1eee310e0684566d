"""What a verb does: check the outputs, load the model, call the function, print a table, save and draw the result."""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from squashlens.checks.results import EACH
from squashlens.cli._reading._before import check
from squashlens.cli._reading._exceptions import PANELS, SETS
from squashlens.cli._reading._interventions import interventions
from squashlens.cli._reading._options import options
from squashlens.cli._reading._spelling import flag
from squashlens.cli._verbs import Verb
from squashlens.errors import InputError

RESULTS = (".nc", ".json", ".csv")
OF_RUNS = ("device", "lengths", "noise_lengths")  # without --runs, these are for `load` and `capture` alone
# Options whose values are tokenized, so that a misspelt word is reported before the model is loaded.
TEXTS = ("prompt", "prefix", "suffix", "separator", "token", "alphabet", "content", "ending")


def run(verb: Verb, given: dict[str, Any]) -> None:
    """Measure what a verb measures, with the values of its options."""
    import squashlens as sl
    from squashlens.cli._printing._tables import show
    from squashlens.engine.text.vocabulary import refuse_words_of

    tasks = given.get("task", ("",))
    if not tasks:
        raise InputError("--task names no task.", "`squashlens tasks` lists them.")
    labels = {name: name if len(tasks) > 1 else "" for name in tasks}
    check_outputs(verb, given, labels.values())
    refuse_words_of(given["model"], _texts(given))
    runs = given.get("runs") is not None
    arguments = _for_runs(verb, given) if runs else _arguments(verb, given, "function")
    chosen = {name: _task(name, given["joiner"]) for name in labels if name}
    _check_arguments(verb, given, arguments, [{"task": task} for task in chosen.values()] or [{}])
    loading = _arguments(verb, given, "load")
    model = sl.load(given["model"], **{name: loading[name] for name in ("device", "progress")} if runs else loading)
    if verb.name in FILES:
        FILES[verb.name](verb, model, arguments, given)
        return
    if "sequence" in arguments:
        arguments["sequence"] = _sequence(verb, model, given)
    found: dict[str, Any] = {}
    for name, label in labels.items():
        if name:
            arguments |= {"task": chosen[name]}
        if "resume" in arguments:
            arguments["resume"] = beside(given["resume"], label)
        found[name] = verb.function(given["model"] if runs else model, **arguments)
        print(show(f"{verb.name} --runs" if runs else verb.name, found[name], label), end="")
        _save(found[name], beside(given["out"], label))
    for option, figure in verb.drawn.items():
        if given[option] is not None:
            _draw(verb, "runs" if runs else figure, found, given[option], labels)


def _report(verb: Verb, model: Any, arguments: dict[str, Any], _: Any) -> None:
    print(f"report: {verb.function(model, **arguments).resolve()}")


def _paper(verb: Verb, model: Any, arguments: dict[str, Any], _: Any) -> None:
    _say_written(verb.function(model, **arguments))


def _map(verb: Verb, model: Any, arguments: dict[str, Any], given: dict[str, Any]) -> None:
    print(f"map: {verb.function(model, **arguments).save(given['out']).resolve()}")


FILES = {"report": _report, "paper": _paper, "squash_map": _map}  # verbs that print no table, but write files


def _check_arguments(
    verb: Verb, given: dict[str, Any], arguments: dict[str, Any], tasks: Iterable[dict[str, Any]]
) -> None:
    """Refuse what is wrong with any model, before the model is loaded."""
    if verb.name == "paper":
        return  # it makes its folder first, and checks all settings before it measures
    absent = ["model"]
    if "sequence" in arguments:
        maker, form = _made(verb, given)
        check(maker, form, ("model",))
        absent.append("sequence")
    for task in tasks:
        check(verb.function, arguments | task, absent)


def _for_runs(verb: Verb, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function that loads the model and captures the sequence itself, for each of several runs."""
    for name, option in options(verb).items():
        if option.owners and {*option.owners} <= {"load", "capture"} and given[name] != option.default:
            raise InputError(f"{flag(name)} has no effect with --runs.", "Leave it out.")
    return {name: given[name] for name, option in options(verb).items() if "function" in option.owners}


def beside(path: Path | None, label: str) -> Path | None:
    """The file of one of several tasks."""
    return path.with_name(f"{path.stem}.{label}{path.suffix}") if path is not None and label else path


def check_outputs(verb: Verb, given: dict[str, Any], labels: Iterable[str]) -> None:
    """Refuse files that cannot be written, and one file for two things, before anything is computed."""
    from squashlens.figures.drawing.saving import ENDINGS, require_browser
    from squashlens.saving.files import require_distinct, require_output

    endings = {"out": (".html", ".htm") if verb.name in ("report", "squash_map") else RESULTS, "resume": ()}
    if verb.name == "paper":  # a folder, which the function checks
        del endings["out"]
    endings |= dict.fromkeys(verb.drawn, ENDINGS)
    asked = [(name, beside(given[name], label)) for name in endings if given.get(name) for label in labels]
    files = {(name, path) for name, path in asked if path is not None}
    for name in verb.drawn:
        if given.get(name) is not None:
            require_browser(given[name])
    require_distinct(require_output(path, endings[name], flag(name)) for name, path in sorted(files))


def _texts(given: dict[str, Any]) -> list[str]:
    values = [given[name] for name in TEXTS if given.get(name)]
    return [
        text for value in values for text in ([value] if isinstance(value, str) else value) if isinstance(text, str)
    ]


def _arguments(verb: Verb, given: dict[str, Any], owner: str) -> dict[str, Any]:
    """The options that are passed to a function, as it takes them."""
    found = {}
    for option in options(verb).values():
        if owner in option.owners and not (owner == "function" and option.name in OF_RUNS and "runs" in given):
            value, name = given[option.name], option.name
            own = name.removeprefix("sequence_") if owner == "sequence" else name
            found[own] = _value(verb, name, value, given) if owner == "function" else value
    return found


def _value(verb: Verb, name: str, value: Any, given: dict[str, Any]) -> Any:
    if name == "prompt" and isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    if name == "answer":
        return _answer(value, given.get("token", ""))
    if name == "interventions":
        return interventions(value)
    if name == "separator" and verb.name == "tokenization":
        return dict(value)
    return value


def _answer(kind: str, counted: str) -> Callable[[tuple[str, ...]], str] | None:
    """The right answer to the texts of the content tokens."""
    rules: dict[str, Callable[[tuple[str, ...]], str]] = {
        "count": lambda content: str(content.count(counted)),
        "first": lambda content: content[0],
        "last": lambda content: content[-1],
    }
    return rules.get(kind)


def _task(name: str, joiner: str | None) -> Any:
    from squashlens.tasks import find

    task = find(name)
    try:
        return task if joiner is None else task.shown(joiner)
    except InputError as error:
        raise InputError(error.cause, "Leave out --joiner, or choose another task.") from error


def _made(verb: Verb, given: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that makes the growing sequence, and its arguments without the model."""
    import squashlens as sl

    chosen = given["sequence"]
    maker = _maker(chosen)
    function = getattr(sl.prompts, maker)
    taken = set(inspect.signature(function).parameters)
    if "form" in taken:
        taken |= set(inspect.signature(sl.prompts.build).parameters)
    taken -= set(SETS.get(maker, ()))
    if maker != "build":
        taken -= {"content"}
    values = _arguments(verb, given, "sequence")
    for name, option in options(verb).items():
        unused = "sequence" in option.owners and name.removeprefix("sequence_") not in taken and name != "seed"
        if unused and given[name] != option.default:
            raise InputError(
                f"{flag(name)} has no meaning with --sequence {chosen}.",
                "Leave it out, or choose another sequence.",
            )
    if maker == "words":
        values["alphabet"] = values["alphabet"] or ()
    elif values["alphabet"] is None:  # each function has its own
        taken -= {"alphabet"}
    return function, {name: value for name, value in values.items() if name in taken}


def _maker(chosen: str) -> str:
    return chosen[:-1] if chosen in PANELS else chosen


def _sequence(verb: Verb, model: Any, given: dict[str, Any]) -> Any:
    """The growing sequence that the options describe; captured, if the verb measures a capture."""
    import squashlens as sl

    chosen = given["sequence"]
    function, values = _made(verb, given)
    made = function(model, **values)
    sequence = made[chosen[-1]] if chosen in PANELS else made
    if not verb.captured or given.get("runs") is not None:
        return sequence
    patterns = verb.name == "mechanism" or given.get("by_head") == "value"
    keep = ("residuals", "patterns") if patterns else "residuals"
    capturing = {name: value for name, value in _arguments(verb, given, "capture").items() if value is not None}
    return sl.capture(model, sequence, keep=keep, **capturing)


def _save(result: Any, out: Path | None) -> None:
    if out is not None:
        from squashlens.records.results import save

        print(f"saved: {save(result, out).resolve()}")


def _say_written(outcomes: dict[int, Any]) -> None:
    """Print the file of each figure, or the reason why there is none; raise an error if there is such a reason."""
    for number, outcome in outcomes.items():
        print(f"figure {number}: {outcome.resolve() if isinstance(outcome, Path) else f'not measured. {outcome}'}")
    failed = [str(number) for number, outcome in outcomes.items() if not isinstance(outcome, Path)]
    if failed:
        raise InputError(
            f"{len(failed)} of {len(outcomes)} figures could not be measured on this model: {', '.join(failed)}.",
            "The reasons are above and in README.md of the folder; the other figures were written.",
        )


def _draw(verb: Verb, name: str, found: dict[str, Any], path: Path, labels: dict[str, str]) -> None:
    """Write a figure of the result, or of the results of several tasks."""
    import squashlens as sl

    figure, more = getattr(sl.figures, name), {}
    if name == "collapse_curve":
        more["trained"] = sl.zoo.trained_length(sl.results.provenance(next(iter(found.values())))["model"])
    if name == "answer_frequencies":
        found = {task: sl.results.answer_frequencies(result) for task, result in found.items()}
    if verb.name == "evaluate":
        drawn = {path: figure(found)}
    else:
        drawn = {
            beside(path, labels[task]): sl.figures.of(result) if {*EACH} & {*result.dims} else figure(result, **more)
            for task, result in found.items()
        }
    for file, one in drawn.items():
        if file is not None:
            if file.suffix in (".pdf", ".svg"):
                one = sl.figures.styled(one, theme="paper")
            print(f"figure: {sl.figures.save(one, file).resolve()}")
