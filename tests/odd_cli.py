"""Every verb and option of the command line, and about twenty bad values: one case is one line as a user types it.

Verbs and options are those of the command line itself, so that a new one is walked over too. Each line must end in
exit code 0, or in exit code 1 or 2 with one line on standard error and nothing written. The model is opened once.
"""

import contextlib
import functools
import io
import math
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import torch

import squashlens as sl
from squashlens import cli
from squashlens.cli._reading import _options
from squashlens.cli._verbs import VERBS
from tests.odd import TookTooLong, innermost, limited, run, sampled

ODD: dict[str, list[str]] = {
    "nothing": [],
    "''": [""],
    "' '": [" "],
    "nonsense": ["nonsense"],
    "None": ["None"],
    "True": ["True"],
    "0": ["0"],
    "-1": ["-1"],
    "1.5": ["1.5"],
    "nan": ["nan"],
    "inf": ["inf"],
    "-inf": ["-inf"],
    "1e-320": ["1e-320"],
    "1e400": ["1e400"],
    "10**9": ["1" + "0" * 9],
    "2**63": [str(2**63)],
    "5000 digits": ["1" * 5000],
    "1 1": ["1", "1"],
    "1,2": ["1,2"],
    "not UTF-8": [os.fsdecode(b"a\xff")],
    "control characters": ["a\x1b[2J\nb"],
    "a long name.nc": ["x" * 300 + ".nc"],
    "folder": ["/"],
    "no folder.nc": ["/nonexistent/below/it.nc"],
    "no folder.html": ["/nonexistent/below/it.html"],
    "wrong ending": ["x.txt"],
    "-": ["-"],
    "--": ["--"],
    "=": ["="],
}
# What makes a line small; given unless it is the option at hand.
PROMPT: dict[str, list[str]] = {"prompt": ["110 ="]}
PAIRS: dict[str, list[str]] = {"n": ["4"], "noise_lengths": ["0"]}
ITEMS: dict[str, list[str]] = {"lengths": ["2", "3"], "seeds": ["1"]}
PROBED = ITEMS | {"n_train": ["4"], "n_random_models": ["1"]}
SMALL: dict[str, dict[str, list[str]]] = {
    "audit": PROMPT | {"estimates": ["Jacobian"], "n_probes": ["1"], "n_replacements": ["1"]},
    "report": PROMPT | {"n": ["8"]},
    "paper": {"figures": ["9"]},
    **dict.fromkeys(("path_bound", "jacobian_norms", "sensitivity", "top_tokens", "composition"), PROMPT),
    **dict.fromkeys(("hops", "strongest_paths", "depth_limit"), PROMPT),
    "profile": PROMPT | {"queries": ["3"], "layers": ["4"], "method": ["none"], "n_random_models": ["0"]},
    "squash_map": PROMPT | {"method": ["none"]},
    "jacobian": PROMPT | {"positions": ["3"]},
    "substitution_effect": PROMPT | {"n_replacements": ["1"]},
    "evaluate": ITEMS | {"max_new_tokens": ["2"]},
    "probe": PROBED,
    "collapse_vs_readout": PROBED,
    **dict.fromkeys(("collapse", "mechanism", "precision"), PAIRS),
    "tokenization": {"n": ["3"]},
    "separator_ablation": PAIRS | {"kinds": ["mask"]},
    "search_separators": {
        "n": ["8"], "n_samples": ["1"], "n_placements": ["5"], "lengths": ["4", "8"], "separator": [","],
        "every": ["2"],
    },
    "compare": {"n": ["8"], "interventions": ["sliding_window(4)"], "n_samples": ["1"], "lengths": ["4"]},
}  # fmt: skip
HEAVY = {"report", "paper", "audit", "probe", "collapse_vs_readout"}


@dataclass(frozen=True)
class Line:
    verb: str
    option: str
    odd: str


@cache
def options() -> dict[str, dict[str, Any]]:
    """The options of every verb, with the type of each."""
    found = {name: {o.name: o.kind for o in _options.options(verb).values()} for name, verb in VERBS.items()}
    return found | {"tasks": {}}


def lines() -> list[Line]:
    verbs = [Line(verb, "", odd) for verb in ("", *options()) for odd in ODD]
    return verbs + [Line(verb, option, odd) for verb, known in options().items() for option in known for odd in ODD]


def typed(line: Line) -> list[str]:
    """The words of a line."""
    if not line.verb:
        return ODD[line.odd]
    given: dict[str, list[str]] = dict(SMALL.get(line.verb, {}))
    if "out" in options()[line.verb]:
        given["out"] = ["kept.html" if line.verb in ("report", "squash_map") else "kept.json"]
    if not line.option:
        return [line.verb, *ODD[line.odd], *_words(given, line.verb)]
    given[line.option] = ODD[line.odd]
    return [line.verb, *_words(given, line.verb)]


def _words(given: dict[str, list[str]], verb: str) -> list[str]:
    quiet = ["--no-progress"] if "progress" in options()[verb] and "progress" not in given else []
    return [*quiet, *(word for name, words in given.items() for word in (f"--{name.replace('_', '-')}", *words))]


def loading_once(load: Any) -> Any:
    """`sl.load`, which opens a bundled model in float32 once."""

    @functools.wraps(load)
    def loaded(name: str, *, progress: bool = True, **form: Any) -> Any:
        usual = {"dtype": "float32", "verify": True}
        plain = name == "tiny-gemma" and all(value == usual.get(key) for key, value in form.items())
        return _bundled(load) if plain else load(name, progress=progress, **form)

    return loaded


@cache
def _bundled(load: Any) -> Any:
    return load("tiny-gemma", device="cpu", progress=False)


def outcome(line: Line) -> str:
    """ "refused", "accepted", or what is wrong."""
    folder = tempfile.mkdtemp(prefix="odd-cli-")
    printed, complaint = io.StringIO(), io.StringIO()
    try:
        with limited(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            cli.main(typed(line))
        code: Any = 0
    except SystemExit as stop:
        code = stop.code or 0
    except TookTooLong:
        return "LATE"
    except BaseException as error:
        return f"RAW {innermost(error)}"
    finally:
        written = sorted(path.name for path in Path(folder).rglob("*"))
        shutil.rmtree(folder, ignore_errors=True)
    said = [one for one in complaint.getvalue().splitlines() if one.strip()]
    if code == 0:
        if said:
            return f"RAW warning: {said[-1][:200]}"
        return "WRONGLY accepted" if _is_no_number(line) else "accepted"
    if code not in (1, 2) or len(said) != 1 or not said[0].startswith("squashlens: ") or len(said[0]) > 2000:
        return f"RAW exit {code} with {len(said)} lines: {said[-1][:200] if said else ''}"
    if not said[0].isprintable():
        return f"RAW control characters: {said[0]!r}"
    python = _python_in(said[0], line)
    if python:
        return f"RAW Python {python!r}: {said[0][:300]}"
    if written:
        return f"RAW refused, and wrote {written}: {said[0][:200]}"
    return "refused" if not printed.getvalue() else f"RAW refused after printing: {said[0][:200]}"


def _python_in(complaint: str, line: Line) -> str:
    """What a complaint has of Python outside of quoted words: a parameter with a value, or a name of the package."""
    names = "|".join(options().get(line.verb, {})) or "sl"
    found = re.search(rf"(?<![\w-])({names})=|`(sl|squashlens)\.|torch\.", re.sub(r"'.*'", "", complaint))
    return found[0] if found else ""


def _is_no_number(line: Line) -> bool:
    """Whether an option for a number was given one that is not finite."""
    hint = options().get(line.verb, {}).get(line.option)
    return _has(hint, float) and any(not _finite(word) for word in ODD[line.odd])


def _has(hint: Any, kind: type) -> bool:
    return hint is kind or (get_origin(hint) is not None and any(_has(part, kind) for part in get_args(hint)))


def _finite(word: str) -> bool:
    try:
        return math.isfinite(float(word)) and not 0 < abs(float(word)) < sys.float_info.min
    except ValueError:
        return True


def main(arguments: list[str]) -> None:
    """Run all lines, those whose names begin as given, or a fixed sample; one line each, `verb|option|value|…`."""
    torch.set_num_threads(1)
    load = sl.load
    setattr(sl, "load", loading_once(load))  # noqa: B010
    _bundled(load)
    chosen = lines()
    if arguments[:1] == ["--sample"]:
        quick = (line for line in chosen if line.verb not in HEAVY)
        chosen = sampled(quick, int(arguments[1]), lambda line: (line.verb, line.option))
    elif arguments:
        chosen = [line for line in chosen if f"{line.verb}.{line.option}".startswith(tuple(arguments))]
    for line, said in run(chosen, outcome):
        print(line.verb, line.option, line.odd, said, sep="|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
