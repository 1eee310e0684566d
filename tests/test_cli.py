"""The command line as a user types it."""

import functools
import inspect
import io
import json
import re
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tyro

import squashlens as sl
from squashlens.cli import _run, _study, main
from squashlens.cli._printing import _labels
from squashlens.cli._reading import _complaints, _exceptions, _spelling
from squashlens.cli._reading._interventions import interventions
from squashlens.cli._reading._options import Option, options, parameters
from squashlens.cli._verbs import VERBS, Verb
from squashlens.errors import InputError
from tests import odd, odd_cli

PROMPT = "110 ="


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled model is opened once, unless an option such as --device or --dtype asks for another form of it."""
    monkeypatch.setattr(sl, "load", odd_cli.loading_once(sl.load))


verbs = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def test_every_measurement_is_a_verb_or_says_why_not() -> None:
    public = {name: getattr(sl, name) for name in sl.__all__} | {n: getattr(sl.paths, n) for n in sl.paths.__all__}
    measuring = {
        name
        for name, value in public.items()
        if inspect.isfunction(value) and value.__module__.split(".")[1] in ("measure", "reporting", "maps")
    }
    python_only = {"accuracy", "needle"}  # which take sequences, and places in many prompts
    assert measuring == {*VERBS} | python_only
    assert all(verb.function is public[name] and verb.name == name for name, verb in VERBS.items())
    assert {figure for verb in VERBS.values() for figure in verb.figures} <= {*sl.figures.__all__}


@verbs
def test_options_are_the_parameters_of_the_functions(verb: Verb) -> None:
    """Names, defaults and choices; every difference stands in the table of exceptions."""
    known = options(verb)
    seen = {"model", "out", "joiner", *verb.drawn}
    functions: list[tuple[str, Any]] = [(verb.name, verb.function)]
    if "sequence" in known:
        functions += [(maker, getattr(sl.prompts, maker)) for maker in (*_exceptions.MAKERS, "figure5")]
    if verb.captured:
        functions += [("capture", sl.capture)]
    for place, function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            if name in ("model", "form"):
                continue
            spelled = f"sequence_{name}" if f"sequence_{name}" in known and function is not verb.function else name
            own = verb.name if function is verb.function else ""
            left = {(place, name), (verb.name, name if own else f"sequence_{name}")} & {*_exceptions.LEFT_OUT}
            if left and not (place == "capture" and name == "bos"):
                assert all(_exceptions.LEFT_OUT[which] for which in left)
                continue
            seen.add(spelled)
            if left:  # the sequence's own
                continue
            _same(known[spelled], parameter, verb, function is verb.function)
    load = inspect.signature(sl.load).parameters
    loaded = [name for name in load if name in known and "load" in known[name].owners]
    assert loaded == [name for name in load if name != "name"]
    for name in loaded:
        if name not in seen:
            _same(known[name], load[name], verb, True)
    assert {*known} <= seen | {*loaded}


def _same(option: Option, parameter: inspect.Parameter, verb: Verb, own: bool) -> None:
    name, default = parameter.name, parameter.default
    start = _exceptions.START_OF.get((verb.name, name))
    if option.owners == ("load",):
        start = _exceptions.START_OF.get(("load", name))
    if start is not None:
        assert (option.default, option.help) == start
    elif (verb.name, name) in _exceptions.INSTEAD_OF:
        assert option.default == tuple(default.items())
        return
    elif name in _exceptions.INSTEAD and not isinstance(default, str):
        assert option.default == _exceptions.INSTEAD[name][1]
        return
    elif default is parameter.empty:
        starts = _exceptions.START.get(name)
        assert option.default == starts or not own
    elif own or option.name not in inspect.signature(verb.function).parameters:
        plain = str(default).removeprefix("torch.") if type(default).__name__ == "dtype" else default
        plain = [plain] if isinstance(plain, str) and isinstance(option.default, tuple) else plain
        assert option.default == (tuple(plain) if isinstance(plain, list | tuple) else plain) or str(
            option.default
        ) == str(plain)
    assert set(_choices(parameter.annotation)) <= set(_choices(option.kind)), name


def _choices(kind: Any) -> tuple[Any, ...]:
    """All that the `Literal`s in an annotation allow."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for part in get_args(kind) for choice in _choices(part))


@verbs
def test_every_option_has_a_help_that_is_no_riddle(verb: Verb) -> None:
    for option in options(verb).values():
        assert len(option.help) > 10, option.name
        assert "`" not in option.help.replace("`squashlens tasks`", "")
        assert "s in load" not in option.help
        assert not any(f"as in {name}" in option.help for name in (*VERBS, "capture", "compare")), option.help
    assert verb.summary == " ".join(verb.summary.split()) != ""
    assert parameters(verb).__doc__


def test_a_new_parameter_is_an_option_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def measurement(model: Any, prompt: str | list[str], *, shape: Literal["round", "square"] = "round") -> None:
        """Measure.

        Args:
            shape: what it looks like.
        """

    monkeypatch.setattr(sl, "measurement", measurement, raising=False)
    option = options(Verb("measurement", Path(__file__)))["shape"]
    assert (option.kind, option.default, option.help) == (
        Literal["round", "square"],
        "round",
        "What it looks like.",
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["path_bound", "--attention", "foo"], "--attention cannot be 'foo'. Choices: model, uniform, topological."),
        (["path-bound", "--attention", "modle"], "Did you mean 'model'?"),
        (["path_bound", "--query", "x"], "--query cannot be 'x'. It takes INT."),
        (
            ["jacobian_norms", "--nrm", "spectral"],
            "squashlens jacobian_norms has no option '--nrm'. Did you mean --norm?",
        ),
        (["path_bound", "--freeze", "norms", "atention"], "Did you mean 'attention'?"),
        (["path_bound", "--no-progres"], "Did you mean --no-progress?"),
        (["jacobian_norms", "spectral"], "'spectral' belongs to no option of squashlens jacobian_norms."),
        (["path_bound", "--model"], "--model needs a value: STR."),
        ([], "No verb is given. See squashlens --help."),
        (["paint"], "There is no verb 'paint'."),
        (["path_bond"], "Similar names: path_bound"),
        (["tasks", "--n", "3"], "squashlens tasks has no option '--n'."),
        (["path_bound", "--model", "~"], "has no config.json"),
        (["path_bound", "--model", ""], "is empty"),
        (["evaluate", "--task", "count_ones", "--lengths", "5", "--seeds", "0"], "seeds"),
        (["evaluate", "--task", "count_ones", "--lengths", "5", "--seeds", "-1"], "seeds"),
        (["audit", "--positions", "-1", "99", "--estimates", "rollout"], "positions"),
        (["path_bound", "--freeze", "norms"], "--freeze has no effect with --constants paper. Leave --freeze out."),
        (["path_bound", "--out", "x.txt"], "Use one of .nc, .json, .csv"),
        (["sensitivity", "--figure", "x.gif"], "Use one of .pdf"),
        (["sensitivity", "--out", "missing/x.nc"], "There is no folder"),
        (["report", "--out", "missing/x.html"], "There is no folder"),
        (["report", "--out", "x.nc"], "Use one of .html, .htm"),
        (["collapse", "--out", "x.nc", "--figure", "x.html", "--collapse-heatmap", "x.html"], "for two outputs"),
        (["path_bound", "--prompt", "How many elephants?"], "'elephants' is not in this model's vocabulary"),
        (["path_bound", "--model", "tiny-gema"], "Did you mean 'tiny-gemma' or 'tiny-prose'?"),
        (["path_bound", "--prompt", ""], "empty"),
        (["path_bound", "--prompt", PROMPT, "--query", "9"], "--query 9 is not a position"),
        (["report", "--n", "1"], "--n 1"),
        (["collapse", "--n", "0"], "--n 0 is not a number of content tokens"),
        (["collapse", "--token", "1 1"], "is 2 tokens"),
        (["collapse", "--sequence", "words"], "here are no words to draw from"),
        (["collapse", "--p", "0.3"], "--p has no meaning with --sequence repeated."),
        (["collapse", "--sequence", "figure5d", "--separator", ","], "--separator has no meaning with --sequence"),
        (["collapse", "--n", "3000"], "context"),
        (["collapse", "--n", "8", "--lengths", "9"], "--lengths 9 is not a length of this sequence"),
        (["separator_ablation", "--from-block-map", "x.gif"], "Use one of .pdf"),
        (["separator_ablation", "--sequence", "figure5a"], "no separators to ablate"),
        (["separator_ablation", "--from-blocks", "7"], "Use blocks 0 to 5"),
        (["search_separators", "--n", "8", "--every", "9"], "shorter period"),
        (["search_separators", "--separator"], "--separator or --every is empty"),
        (["evaluate", "--task", "count_one"], "There is no task 'count_one'. Similar names: count_ones"),
        (["evaluate", "--task"], "--task names no task."),
        (["evaluate", "--task", "taught_count_repeated", "--lengths", "3", "3"], "not different values"),
        (["evaluate", "--task", "copy_last", "--template", "chat"], "no chat template"),
        (["collapse_vs_readout", "--task", "taught_copy_bernoulli", "--lengths", "3"], "not numbers"),
        (["probe", "--lengths", "4", "--seeds", "3", "--n-train", "1"], "--n-train 1: a probe cannot be fitted"),
        (
            ["collapse_vs_readout", "--lengths", "4", "--seeds", "3", "--n-random-models", "-1"],
            "--n-random-models -1 is not a number of models",
        ),
        (["evaluate", "--task", "count_numbered", "--joiner", " "], "Leave out --joiner, or choose another task."),
        (["search_separators", "--n", "8", "--n-placements", "3"], "--n-placements 3 are too few for an interval"),
        (["compare", "--interventions", "sliding_window(0)"], "window=0 is not a number of tokens"),
        (["compare", "--interventions", "sliding_window(4"], "'sliding_window(4' is not a hook with its arguments."),
        (["compare", "--interventions", "sliding_windows(4)"], "There is no hook 'sliding_windows'."),
        (["compare", "--interventions", "sliding_window(4, sinks=1)"], "Did you mean 'sink'? Correct its arguments."),
        (["compare", "--interventions", "zero_values(1, positions=[1])"], "is not a hook with its arguments."),
        (["compare", "--interventions", "mask_tokens(open('x'))"], "is not a hook with its arguments."),
        (["compare", "--interventions", "freeze_norms", "freeze_norms"], "--interventions has 'freeze_norms' twice."),
    ],
)
def test_wrong_arguments_end_in_one_line_and_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "it/s]" not in line]
    assert len(said) == 1
    assert complaint in said[0]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["path_bound", "--freeze", "norms"], "--freeze has no effect with --constants paper."),
        (["jacobian_norms", "--n-probes", "0"], "--n-probes 0 is not"),
        (["evaluate", "--temperature", "nan"], "--temperature nan is not a finite number."),
        (["report", "--n", "1"], "--n 1 is too small"),
        (["collapse", "--n", "0"], "--n 0 is not a number of content tokens."),
        (["collapse", "--p", "0.3"], "--p has no meaning with --sequence repeated."),
        (["collapse", "--sequence", "words"], "there are no words to draw from"),
        (["evaluate", "--task", "count_one"], "There is no task 'count_one'."),
        (["evaluate", "--lengths", "3", "3"], "--lengths 3 3 are not different values."),
        (["evaluate", "--seeds", "0"], "--seeds 0 is not a number of samples."),
        (["evaluate", "--task", "count_numbered", "--joiner", " "], "Leave out --joiner"),
        (["probe", "--n-train", "1"], "--n-train 1: a probe cannot be fitted"),
        (["search_separators", "--n-placements", "3"], "--n-placements 3 are too few"),
        (["compare", "--interventions", "sliding_window()"], "missing a required argument: 'window'."),
        (["precision", "--runs"], "--runs is empty"),
        (["precision", "--runs", "float32", "--round-to", "float16"], "--round-to has no effect with --runs."),
        (["precision", "--runs", "float32", "--dtype", "float16"], "--dtype has no effect with --runs."),
        (["precision", "--runs", "float32", "--baselines", "contrast"], "--baselines has no effect with --runs."),
    ],
)
def test_what_is_wrong_with_any_model_is_refused_before_one_is_loaded(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(sl.load)  # the options are its parameters
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(sl, "load", load)
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("query=9 is not a position", "--query 9 is not a position"),
        ("freeze= has no effect with constants='paper'.", "--freeze has no effect with --constants paper."),
        ("Choose a from_layer below to_layer.", "Choose a --from-layer below --to-layer."),
        ("a dimension to_layer, and the coordinate from_layer", "a dimension to_layer, and the coordinate from_layer"),
        ("Use separator=[',', '?'] or rtol=0.5.", "Use --separator , '?' or --rtol 0.5."),
        ("Give progress=False or dtype=torch.bfloat16.", "Give --no-progress or --dtype bfloat16."),
        ("length=9, mode='cot', name='x' and every=3", "--lengths 9, --mode cot, --model x and --sequence-every 3"),
        ("Use `jacobian_norms` or `sl.paths.hops(model)`.", "Use `squashlens jacobian_norms` or `squashlens hops`."),
        ("The word 'query=9' of the model's prompt", "The word 'query=9' of the model's prompt"),
        ("other=3, `other_name` and --query=9", "other=3, `other_name` and --query=9"),
    ],
)
def test_python_is_spelled_as_it_is_typed(python: str, typed: str) -> None:
    known = "query freeze constants from_layer to_layer separator rtol progress dtype lengths mode model sequence_every"
    assert _spelling.as_typed(python, known.split()) == typed


@verbs
def test_the_help_is_spelled_as_it_is_typed(verb: Verb) -> None:
    described = " ".join(
        [parameters(verb).__doc__ or "", *(_spelling.as_typed(o.help, options(verb)) for o in options(verb).values())]
    )
    names = "|".join(options(verb))
    assert not re.search(rf"(?<![\w-])({names})=", described)
    assert not re.search(r"\bdict\b|(dimension|coordinate) --", described)  # what no command line can pass, or has


def test_the_page_says_which_functions_the_commands_are() -> None:
    page = (Path(__file__).parent.parent / "docs" / "command_line.md").read_text(encoding="utf-8")

    def named(end: str) -> set[str]:
        """The names in front of some words, back to the last full stop or colon."""
        return set(re.findall(r"`(\w+)`", re.split(r"[.:;] ", " ".join(page.split()).partition(end)[0])[-1]))

    assert named(" are functions of `squashlens.paths`") == {v.name for v in VERBS.values() if v.where == "paths"}
    assert named(" also have options of `capture`") == {v.name for v in VERBS.values() if v.captured}
    for name, verb in VERBS.items():
        assert verb.function is getattr(sl.paths if verb.where else sl, name)
        for option in options(verb).values():
            places = {"function", "load", "capture", "sequence"} & {*option.owners}
            assert places or option.name in ("model", "joiner", "out", *verb.drawn), (name, option.name)
            assert ("capture" in places) <= verb.captured


def test_what_else_tyro_complains_about_is_one_sentence() -> None:
    event = type("Surprise", (), {"message": "it is late"})()
    assert str(_complaints.complaint(event, [], "squashlens x")) == (
        "The arguments cannot be read: it is late. See squashlens x --help."
    )


def test_the_words_after_an_option() -> None:
    words = ["--a", "1", "--to_layer", "x", "y", "--b=2", "z"]
    assert _complaints._values(words, ("--to-layer",)) == ["x", "y"]
    assert _complaints._values(words, ("--b",)) == ["2", "z"]


def test_the_right_answers() -> None:
    rules = {kind: _run._answer(kind, "1") for kind in ("none", "count", "first", "last")}
    assert rules.pop("none") is None
    assert [rule(("1", "0", "1", "7")) for rule in rules.values() if rule] == ["2", "1", "7"]


def test_commands_in_the_documents_are_understood() -> None:
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^ *squashlens ([a-z_]+(?: .*)?)$", text, re.M)]
    commands = [line for line in lines if line[0] in (*VERBS, "tasks") or any(w.startswith("--") for w in line)]
    assert len(commands) > 15
    for verb, *words in commands:
        if verb == "study":
            tyro.cli(_study.parameters(words[0]), args=words[1:])
        elif verb == "cache":
            assert words == ["--delete", "gemma-3-270m"]
        elif verb != "tasks":
            tyro.cli(parameters(VERBS[verb]), args=words)


@pytest.mark.parametrize(
    ("verb", "name", "ending"),
    [("path_bound", "path_bound", "nc"), ("jacobian-norms", "jacobian_norm", "json"), ("path_bound", "", "csv")],
)
def test_a_verb_prints_a_table_and_saves(
    verb: str, name: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any
) -> None:
    out = tmp_path / f"x.{ending}"
    main([verb, "--prompt", PROMPT, "--out", str(out), "--device", "cpu", "--no-progress"])
    said = capsys.readouterr().out
    assert f"saved: {out}" in said
    assert "<bos>" in said
    if ending != "csv":
        result = sl.results.open(out)
        expected = getattr(sl, verb.replace("-", "_"))(tiny, PROMPT, progress=False)
        assert result.name == name
        assert (result == expected).all()
        assert f"{float(result.values[1]):.5g}" in said


@cache
def _calls() -> dict[str, tuple[list[str], Any]]:
    """A command line and the same call in Python, for verbs that no other test runs."""
    model = sl.load("tiny-gemma", progress=False)
    ones, two = (sl.prompts.repeated(model, "1", n) for n in (6, 2))
    quiet = {"progress": False}
    return {
        "sensitivity": (["--prompt", PROMPT], lambda: sl.sensitivity(model, PROMPT, **quiet)),
        "substitution_effect": (
            ["--prompt", PROMPT, "--positions", "1", "2"],
            lambda: sl.substitution_effect(model, PROMPT, positions=[1, 2], **quiet),
        ),
        "profile": (
            ["--prompt", PROMPT, "--queries", "3", "4", "--norm", "frobenius", "--n-random-models", "0"],
            lambda: sl.profile(model, PROMPT, queries=[3, 4], norm="frobenius", n_random_models=0, **quiet),
        ),
        "jacobian": (
            ["--prompt", PROMPT, "--positions", "3", "--k", "2"],
            lambda: sl.jacobian(model, PROMPT, positions=[3], k=2, **quiet),
        ),
        "composition": (["--prompt", PROMPT], lambda: sl.paths.composition(model, PROMPT)),
        "hops": (["--prompt", PROMPT, "--to-layer", "3"], lambda: sl.paths.hops(model, PROMPT, to_layer=3)),
        "strongest_paths": (
            ["--prompt", PROMPT, "--k", "2"], lambda: sl.paths.strongest_paths(model, PROMPT, k=2),
        ),
        "depth_limit": (["--prompt", PROMPT, "--depth", "8"], lambda: sl.paths.depth_limit(model, PROMPT, depth=8)),
        "top_tokens": (["--prompt", PROMPT], lambda: sl.top_tokens(model, PROMPT)),
        "mechanism": (["--n", "6"], lambda: sl.mechanism(model, ones)),
        "precision": (
            ["--n", "2", "--blocks", "all"], lambda: sl.precision(model, two, blocks="all", **quiet),
        ),
        "precision --lengths": (
            ["--n", "6", "--lengths", "2", "6", "--noise-lengths", "2"],
            lambda: sl.precision(
                model, sl.capture(model, ones, keep="residuals", lengths=[2, 6], noise_lengths=2, **quiet)
            ),
        ),
        "precision --runs": (
            ["--n", "2", "--runs", "float32", "--lengths", "2"],
            lambda: sl.precision("tiny-gemma", two, runs=["float32"], lengths=[2], **quiet),
        ),
        "tokenization": (
            ["--n", "3", "--separator", "plain", "", "commas", ","],
            lambda: sl.tokenization(model, 3, separator={"plain": "", "commas": ","}, **quiet),
        ),
        "probe": (
            ["--lengths", "24", "--n-random-models", "0", "--n-train", "8", "--seeds", "30"],
            lambda: sl.probe(
                model, sl.tasks.find("taught_count_bernoulli"), lengths=[24], n_random_models=0, n_train=8, seeds=30,
                **quiet,
            ),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("verb", [
    "sensitivity", "substitution_effect", "profile", "jacobian", "composition", "hops", "strongest_paths",
    "depth_limit", "top_tokens", "mechanism", "precision", "precision --lengths",
    "precision --runs", "tokenization", "probe",
])  # fmt: skip
def test_a_verb_gives_what_the_function_gives(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, call = _calls()[verb]
    verb, out, figure = verb.split()[0], tmp_path / "x.nc", tmp_path / "x.html"
    drawn = ["--figure", str(figure)] if VERBS[verb].figures else []
    main([verb, *words, "--out", str(out), *drawn, "--no-progress"])
    said = capsys.readouterr().out
    kept, expected = sl.results.open(out), call()
    assert kept.identical(expected) or kept.equals(expected)
    assert said.startswith("# ")
    if drawn:
        assert "Plotly.newPlot" in figure.read_text(encoding="utf-8")


def test_several_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["sensitivity", "--prompt", PROMPT, "0110 =", "--no-progress"])
    said = capsys.readouterr().out
    first, second = said.split("prompt 1:")
    assert first.startswith("prompt 0:\n")
    assert "\n       4  " in first
    assert "\n       5  " not in first  # padding is no token
    assert "\n       5  " in second


@pytest.mark.parametrize("verb", ["path_bound", "jacobian_norms", "sensitivity"])
def test_a_figure_of_several_prompts_has_a_panel_for_each(verb: str, tmp_path: Path) -> None:
    page = tmp_path / "x.json"
    main([verb, "--prompt", PROMPT, "0110 =", "--no-progress", "--figure", str(page)])
    notes = json.loads(page.read_text(encoding="utf-8"))["layout"]["annotations"]
    assert [note["text"] for note in notes if note["text"].startswith("prompt ")] == ["prompt 0", "prompt 1"]


def test_odd_values_on_the_command_line() -> None:
    assert odd.walked("tests.odd_cli", "--sample", "90", seconds=600) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_odd_value_of_every_option() -> None:
    assert odd.walked("tests.odd_cli", seconds=7000) == []


BYTES = b"a\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["path_bound", "--prompt", BYTES], r"'a\udcff' has bytes that are not UTF-8. Correct it."),
        (["evaluate", "--model", "1" * 500], "is too long for a file name."),
        (["path_bound", "--model", "~no-such-user/x"], "'~no-such-user/x' cannot be opened as a folder"),
        (["path_bound", "--query", "1.5"], "--query cannot be '1.5'. It takes INT."),
        (["path_bound", "--query", "1" * 5000], "It takes INT."),
        (["evaluate", "--temperature", "x"], "--temperature cannot be 'x'. It takes FLOAT."),
        (["audit", "--positions=x"], "--positions cannot be 'x'. It takes"),
        (["x\x1b[2J\ny"], r"There is no verb 'x\x1b[2J\ny'."),
        (["separator_ablation", "--n", "4", "--from-blocks", "1", "1", "--no-progress"], "names a block twice."),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_complaints_are_plain_on_every_terminal(
    arguments: list[str], said: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Python opens them: what standard error cannot write it escapes, and standard output raises.
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, errors=errors) for errors in ("strict", "backslashreplace")]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    with pytest.raises(SystemExit):
        main(arguments)
    for stream in streams:
        stream.flush()
    printed, complaint = (stream.buffer.getvalue().decode() for stream in streams)  # pyright: ignore
    assert said in complaint
    assert (complaint.count("\n"), printed) == (1, "")


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        main(["path_bound", "--model", "x\x1b[2Jy"])
    assert "\x1b" not in capsys.readouterr().err

    def fail(*_: Any) -> None:
        raise InputError("The file clears the screen: \x1b[2J.", "Rename it.")

    monkeypatch.setattr(_run, "run", fail)
    with pytest.raises(SystemExit):
        main(["path_bound"])
    assert capsys.readouterr().err == "squashlens: The file clears the screen: \\x1b[2J. Rename it.\n"


def test_results_are_printed_on_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict")  # as Python opens it
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit) as stop:
        main(["jacobian_norms", "--help"])  # which names ± and ‖
    assert not stop.value.code
    terminal.flush()
    assert rb"\u2016" in terminal.buffer.getvalue()  # pyright: ignore


def test_remarks_are_one_line_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from squashlens.remarks import remark

    monkeypatch.setattr(_run, "run", lambda *_: remark("Mind\nthe gap."))
    main(["path_bound"])
    assert capsys.readouterr().err == "squashlens: Mind the gap.\n"


def test_interrupted_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "run", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["path_bound"])
    assert stop.value.code == 130


def test_a_sketch_says_how_far_it_got(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "sketch.nc"
    arguments = ["--method", "sketch", "--norm", "frobenius", "--rtol", "0.4", "--vjp-batch-size", "16"]
    main(["jacobian_norms", "--prompt", PROMPT, *arguments, "--no-progress", "--out", str(out)])
    assert "sketched frobenius norm" in capsys.readouterr().out
    found = sl.results.open(out)
    assert sl.results.provenance(found)["sketch"]["reached"] <= 0.4
    assert (found["low"] < found["high"]).all()


def test_a_certified_bound(capsys: pytest.CaptureFixture[str]) -> None:
    main(["path_bound", "--prompt", PROMPT, "--constants", "measured", "--edges", "exact", "--n-composed", "6",
          "--freeze", "attention", "norms", "--no-progress"])  # fmt: skip
    bound = capsys.readouterr().out
    main(["jacobian_norms", "--prompt", PROMPT, "--freeze", "attention", "norms", "--no-progress"])
    jacobian = capsys.readouterr().out
    assert "certified path bound, exact edges of 6 composed blocks, attention and norms frozen" in bound
    found, truth = (float(text.splitlines()[3].split()[1]) for text in (bound, jacobian))
    assert found == pytest.approx(truth, rel=2e-5)


def test_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "a.nc", tmp_path / "a.html"
    main(["audit", "--prompt", "110 = 2", "011 = 2", "--positions", "1", "2", "3", "--estimates", "exact", "sketch",
          "--n-probes", "4", "--out", str(out), "--figure", str(figure), "--no-progress"])  # fmt: skip
    said, found = capsys.readouterr().out, sl.results.open(out)
    assert found["content"].values.nonzero()[0].tolist() == [1, 2, 3]
    table = sl.results.table(found)
    row = next(line for line in said.splitlines() if "sketch of 4, certified" in line)
    assert f"{table.loc['sketch of 4, certified', 'least']:.5g}" in row
    assert set(table) == set(_labels.AUDIT)
    assert not any(name in said for name in ("over_jacobian", "over_null"))
    assert "Plotly.newPlot" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize("sequence", ["repeated", "alternating", "bernoulli", "digits", "words", "build"])
def test_collapse_of_every_sequence(sequence: str, tmp_path: Path) -> None:
    out = tmp_path / "c.nc"
    own = {"words": ["--alphabet", "car", "tree"], "build": ["--content", *"110" * 3]}.get(sequence, [])
    count = [] if sequence == "build" else ["--n", "9"]
    main(["collapse", "--sequence", sequence, *own, *count, "--suffix", "=", "--separator", ",", "--every", "4",
          "--lengths", "9", "--noise-lengths", "0", "--out", str(out), "--no-progress"])  # fmt: skip
    result = sl.results.open(out)
    assert result["distance"].sizes == {"layer": 7, "length": 1}
    assert result["tokens"].item() == 1 + 9 + 2 + 1  # start, content, separators, suffix


def test_collapse(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any) -> None:
    out, figure, heatmap = tmp_path / "c.nc", tmp_path / "c.html", tmp_path / "h.html"
    main(["collapse", "--sequence", "figure5d", "--n", "30", "--suffix", "=", "--baselines", "contrast", "unrelated",
          "--by-head", "value", "--scale", "relative", "--out", str(out), "--figure", str(figure),
          "--collapse-heatmap", str(heatmap), "--no-progress"])  # fmt: skip
    said = capsys.readouterr().out
    result = sl.results.open(out)
    assert result["distance"].sizes == {"layer": 7, "length": 30}
    assert {"contrast", "unrelated", "noise_floor", "head_distance"} <= set(result.data_vars)
    assert f"{float(result['distance'].values[-1, -1]):.5g}" in said
    assert "(24 of 30 rows; --out saves all)" in said
    assert all("Plotly.newPlot" in file.read_text(encoding="utf-8") for file in (figure, heatmap))
    expected = sl.prompts.figure5(tiny, 30, suffix="=")["d"]
    pairs = sl.capture(tiny, expected, baselines=["contrast"], progress=False)
    assert (sl.collapse(tiny, pairs, scale="relative")["distance"] == result["distance"]).all()


def test_separator_ablation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "a.html", "m.html")]
    main(["separator_ablation", "--n", "9", "--kinds", "mask", "substitute", "--from-blocks", "0", "3", "--substitute",
          ".", "--out", str(files[0]), "--figure", str(files[1]), "--from-block-map", str(files[2]),
          "--no-progress"])  # fmt: skip
    said, result = capsys.readouterr().out, sl.results.open(files[0])
    assert result["edit"].values.tolist() == ["none", "separators", "substitute"]
    assert result["from_block"].values.tolist() == [0, 3]
    assert sl.results.provenance(result)["substitute"] == "."
    assert "separators masked" in said
    assert "from block 0" in said
    assert "(model units)" in said
    assert "mask@0" not in said
    assert f"{float(result['distance_from'].values[0, 0, -1, -1]):.5g}" in said
    assert all("Plotly.newPlot" in f.read_text(encoding="utf-8") for f in files[1:])


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the function what was typed, and says where the page is; the page itself has tests of its own."""

    @functools.wraps(sl.report)
    def written(model: Any, **options: Any) -> Path:
        assert (options["prompt"], options["n"], options["progress"]) == (PROMPT, 6, False)
        return options["out"]

    monkeypatch.setattr(sl, "report", written)
    main(["report", "--prompt", PROMPT, "--n", "6", "--out", str(tmp_path / "r.html"), "--no-progress"])
    assert f"report: {tmp_path / 'r.html'}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tasks", "--help"], ["paint"]])
def test_what_needs_no_model_is_light(arguments: list[str]) -> None:
    """Quick because nothing heavy is imported; the time itself is measured by hand, not asserted."""
    probe = (
        "import sys\nfrom squashlens.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as stop: assert stop.code in (0, None, 2)\n"
        "heavy = {'torch', 'transformers', 'plotly', 'xarray', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    print(f"{time.perf_counter() - start:.2f} s")
    assert done.returncode == 0, done.stderr
    if arguments == ["--help"]:
        assert all(name in done.stdout for name in (*VERBS, "tasks"))


@verbs
def test_help_of_every_verb(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb.name, "--help"])
    assert not stop.value.code
    said = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in said for name in options(verb))


def test_a_slip_in_a_prompt_is_told_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is tokenized is what each verb would tokenize."""
    monkeypatch.setattr(sl, "load", odd_cli.functools.wraps(sl.load)(lambda *_, **__: pytest.fail("loaded")))
    lines = [
        ["path_bound", "--prompt", "How many onse are"], ["jacobian_norms", "--prompt", "How many onse are"],
        ["report", "--prompt", "onse", "--out", "x.html"], ["audit", "--prompt", "110 =", "onse"],
        ["collapse", "--token", "onse"], ["separator_ablation", "--separator", "onse"], ["compare", "--prefix", "onse"],
        ["search_separators", "--separator", "onse"], ["precision", "--suffix", "onse"],
        ["collapse", "--sequence", "words", "--alphabet", "1", "onse"], ["tokenization", "--prefix", "onse"],
    ]  # fmt: skip
    for line in lines:
        with pytest.raises(SystemExit) as stop:
            main(line)
        assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("The word 'onse' is not in this model's vocabulary. Similar words: ones") == len(lines)


def test_the_version_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"squashlens {sl.__version__}\n"
    for shell in ("bash", "zsh"):
        with pytest.raises(SystemExit) as stop:
            main(["--tyro-print-completion", shell])
        assert not stop.value.code
        said = capsys.readouterr().out
        assert "jacobian_norms" in said
        assert "--n-placements" in said


def test_verbs_on_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any) -> None:
    """Each says what the library says, saves it and draws it."""
    form = {"prefix": "How many ones are in the following sequence?", "suffix": "="}
    ones = sl.prompts.repeated(tiny, "1", 8, **form)

    def said(verb: str, *arguments: str) -> str:
        main([verb, "--n", "8", "--prefix", form["prefix"], "--suffix", form["suffix"], "--no-progress", *arguments])
        return capsys.readouterr().out

    asked = ("--answer", "count", "--n-samples", "3", "--lengths", "4", "8")
    files = {name: tmp_path / f"{name}.html" for name in ("search_separators", "compare")}
    printed = said(
        "search_separators", *asked, "--separator", ",", "--every", "2", "3", "--n-placements", "5", "--resume",
        str(tmp_path / "j.json"), "--out", str(tmp_path / "p.nc"), "--figure", str(files["search_separators"]),
    )  # fmt: skip
    options: Any = {
        "answer": lambda digits: str(digits.count("1")), "n_samples": 3, "lengths": [4, 8], "progress": False,
    }  # fmt: skip
    expected = sl.search_separators(tiny, ones, separator=[","], every=[2, 3], n_placements=5, **options)
    assert (sl.results.open(tmp_path / "p.nc")["separation"] == expected["separation"]).all()
    assert f"best: ',' after every {int(expected['best_every'])} content tokens" in printed
    assert set(sl.results.table(expected)) == set(_labels.SEARCH)
    assert "separation ÷ that" in printed
    typed = ["sliding_window(4, sink=1)", "sliding_window(8) + mask_tokens([0], (0, 2))", "freeze_norms"]
    printed = said(
        "compare", *asked, "--interventions", *typed, "--out", str(tmp_path / "w.nc"), "--figure", str(files["compare"])
    )
    window, mask = sl.hooks.sliding_window, sl.hooks.mask_tokens
    hooks = [window(4, sink=1), [window(8), mask([0], (0, 2))], sl.hooks.freeze_norms()]
    expected = sl.compare(tiny, ones, dict(zip(typed, hooks, strict=True)), **options)
    assert (sl.results.open(tmp_path / "w.nc")["accuracy"] == expected["accuracy"]).all()
    assert all(f"{name}  " in printed for name in typed)
    assert all(path.stat().st_size > 1e6 for path in files.values())


def test_interventions_as_typed() -> None:
    hooks = sl.hooks
    typed = {
        "mask_tokens([0], blocks=(0, 2))+ freeze_norms()\n+uniform_attention": [
            hooks.mask_tokens([0], (0, 2)), hooks.freeze_norms(), hooks.uniform_attention()
        ],
        "sliding_window(4, sink=1)": [hooks.sliding_window(4, sink=1)],
        "log_scaling('log', 8)": [hooks.log_scaling("log", 8)],
        "attention_temperature(temperature=-1e-1 + 1)": None,
        "sliding_window(3 + 5)": None,
        "mask_tokens(list(range(2)))": None,
        "sliding_window(4, window=4)": None,
        "sliding_window(*[4])": None,
        "sliding_window(**{'window': 4})": None,
        "sl.hooks.freeze_norms": None,
        "Hook('x', 'y', 1)": None,
        "": None,
        "(" * 5000: None,
    }  # fmt: skip
    for text, expected in typed.items():
        if expected is None:
            with pytest.raises(InputError):
                interventions([text])
        else:
            ((name, found),) = interventions([text]).items()
            assert name == " ".join(text.split())
            assert list(map(repr, found)) == list(map(repr, expected))
    with pytest.raises(InputError, match="twice"):
        interventions(["freeze_norms", " freeze_norms"])


def test_verbs_on_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any) -> None:
    names = ("taught_count_bernoulli", "taught_last_alternating")
    files = {name: tmp_path / f"{name}.html" for name in ("figure", "error-by-length", "answer-frequencies")}
    drawn = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    main([
        "evaluate", "--task", *names, "--lengths", "4", "60", "--seeds", "3", "--no-progress", *drawn,
        "--out", str(tmp_path / "a.nc"), "--resume", str(tmp_path / "j.json"),
    ])  # fmt: skip
    printed = capsys.readouterr().out
    for name in names:
        task = sl.tasks.find(name)
        expected = sl.evaluate(tiny, task, lengths=[4, 60], seeds=3, progress=False)
        kept = sl.results.open(tmp_path / f"a.{name}.nc")
        assert (kept["answer"] == expected["answer"]).all()
        assert (tmp_path / f"j.{name}.json").exists()
        assert f"== {name}\n" in printed
    assert "3 answers at each length, to fewer different prompts: 2 at 4, 2 at 60\n" in printed
    assert all(path.stat().st_size > 1e6 for path in files.values())
    main(["tasks"])
    listed = capsys.readouterr().out
    assert all(f"{name} (" in listed for name in sl.tasks.names())


def test_collapse_vs_readout_in_any_order_of_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any
) -> None:
    files = {name: tmp_path / name for name in ("r.nc", "r.html", "probe.html")}
    main([
        "collapse_vs_readout", "--lengths", "24", "12", "--seeds", "24", "--n-train", "6", "--n-random-models", "0",
        "--no-progress", "--out", str(files["r.nc"]), "--figure", str(files["r.html"]), "--probe",
        str(files["probe.html"]),
    ])  # fmt: skip
    assert all(path.exists() for path in files.values())
    kept = sl.results.open(files["r.nc"])
    task = sl.tasks.find("taught_count_bernoulli")
    expected = sl.collapse_vs_readout(
        tiny, task, lengths=[12, 24], seeds=24, n_train=6, n_random_models=0, progress=False
    )
    assert kept["length"].values.tolist() == [12, 24]
    assert (kept["r2_y"] == expected["r2_y"]).all()
    said = capsys.readouterr().out
    assert said.index("12 items: ") < said.index("24 items: ")
    assert "read out" in said


def test_answers_that_are_as_many_as_prompts_need_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", "--task", "taught_count_repeated", "--lengths", "4", "--no-progress"])
    assert "different prompts" not in capsys.readouterr().out


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = f"{sys.executable} -m squashlens.cli tasks 2>{said} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("copy_last")
    assert not said.read_text()


def test_squash_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["squash-map", "--prompt", "110 =", "--method", "none", "--out", str(tmp_path / "m.html"), "--no-progress"])
    assert f"map: {tmp_path / 'm.html'}" in capsys.readouterr().out
    assert "sl-map" in (tmp_path / "m.html").read_text(encoding="utf-8")


def test_the_cache_is_listed_and_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from squashlens.engine.loading.converting import cache

    monkeypatch.setenv("SQUASHLENS_CACHE", str(tmp_path / "cache"))
    main(["cache"])
    assert capsys.readouterr().out == f"0 models, 0 B, in {tmp_path / 'cache'}. SQUASHLENS_CACHE sets another folder.\n"
    cache.kept("model", "0" * 32, lambda folder: (folder / "weights").write_bytes(bytes(3_000_000)))
    main(["cache"])
    assert f"3 MB  model-{'0' * 32}" in capsys.readouterr().out
    main(["cache", "--delete", "model"])
    assert "Deleted model-" in capsys.readouterr().out
    assert cache.entries() == []
    with pytest.raises(SystemExit):
        main(["cache", "--delete", "model"])
    assert "'model' names 0 folders of the cache" in capsys.readouterr().err
