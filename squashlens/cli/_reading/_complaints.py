"""What is wrong with a command line, in one sentence, from the events that tyro reports."""

import difflib
from collections.abc import Sequence
from typing import Any

from squashlens._typing import short_repr
from squashlens.errors import InputError


def complaint(event: Any, given: list[str], prog: str, flags: Sequence[str] = ()) -> InputError:
    """The error for an event of tyro's parser; `flags` are the options that there are."""
    see = f"See {prog} --help."
    kind = type(event).__name__
    if kind == "UnrecognizedArgs":
        word = event.tokens[0]
        if not word.startswith("-"):
            return InputError(f"{short_repr(word)} belongs to no option of {prog}.", see)
        near = difflib.get_close_matches(word.partition("=")[0].replace("_", "-"), flags, n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]}?" if near else see
        return InputError(f"{prog} has no option {short_repr(word)}.", hint)
    argument = getattr(event, "argument", None)
    if argument is None:
        return InputError(f"The arguments cannot be read: {getattr(event, 'message', kind)}.", see)
    name = argument.lowered.name_or_flags[-1]
    if kind == "InvalidChoice":
        choices = [str(choice) for choice in event.choices]
        near = difflib.get_close_matches(event.value, choices, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else see
        return InputError(f"{name} cannot be {short_repr(event.value)}. Choices: {', '.join(choices)}.", hint)
    wanted = argument.lowered.metavar or "no value"
    values = _values(given, argument.lowered.name_or_flags)
    if not values:
        return InputError(f"{name} needs a value: {wanted}.", see)
    return InputError(f"{name} cannot be {short_repr(' '.join(values))}. It takes {wanted}.", see)


def _values(given: list[str], flags: tuple[str, ...]) -> list[str]:
    """The words after an option, as they were typed."""
    names = {flag.replace("_", "-") for flag in flags}
    found: list[str] = []
    inside = False
    for word in given:
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            inside = option.replace("_", "-") in names
            found = [value] if inside and equals else [] if inside else found
        elif inside:
            found.append(word)
    return found
