"""The command line as a user types it."""

import functools
import inspect
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tyro

import squashlens as sl
from squashlens.checks.arguments import options_of, validated
from squashlens.cli import FIRST, _options, _study, main
from squashlens.cli._options import options, parameters, values
from squashlens.cli._run import _arguments, interventions
from squashlens.cli._verbs import VERBS, Verb
from squashlens.errors import InputError
from tests import odd
from tests.captured import BOTH

PROMPT = "110 ="


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled model is opened once, unless an option such as --device or --dtype asks for another form of it."""
    monkeypatch.setattr(sl, "load", odd.loading_once(sl.load))


verbs = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def stopped(arguments: list[str]) -> int:
    """The exit code of a command that ends with one."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


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
    """Names and defaults; every difference stands in the table of exceptions."""
    known = options(verb)
    functions = {verb.name: verb.function, "load": sl.load} | ({"capture": sl.capture} if verb.said("captured") else {})
    for place, function in functions.items():
        for name, parameter in inspect.signature(function).parameters.items():
            if name in ("model", "name") or (place, name) in _options.LEFT_OUT:
                assert _options.LEFT_OUT.get((place, name), "is --model")
                continue
            if options_of(parameter.annotation):  # `test_a_group_of_options_has_an_option_for_each`
                continue
            option = known[name]
            own = place == verb.name or name not in inspect.signature(verb.function).parameters
            changed = {(verb.name, name), (place, name)} & {*_options.START_OF, *_options.INSTEAD_OF}
            if own and parameter.default is not parameter.empty and not changed and name not in _options.INSTEAD:
                default = parameter.default
                shown = option.default if isinstance(option.default, tuple) else [option.default]
                given = [default] if isinstance(default, str) or not isinstance(default, Iterable) else [*default]
                assert [str(one).removeprefix("torch.") for one in given] == [*map(str, shown)], name
            assert {*_choices(parameter.annotation)} <= {*_choices(option.kind)}, name


@dataclass(frozen=True)
class Form:
    """Options that belong together.

    Args:
        mode: a word for the form of a question, direct by default.
        steps: number of steps in each answer.
    """

    mode: Literal["direct", "steps"] = "direct"
    steps: int | None = None


@validated
def grouping(model: Any, *, form: Form = Form(steps=3)) -> Form:
    """A function with a group of options.

    Args:
        model: the model to measure.
        form: the form of the question.
    """
    return form


@pytest.mark.parametrize(
    ("words", "form"),
    [([], Form(steps=3)), (["--form.mode", "steps", "--form.steps", "None"], Form("steps")),
     (["--form.steps", "5"], Form(steps=5))],
)  # fmt: skip
def test_a_group_of_options_has_an_option_for_each(
    words: list[str], form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb = Verb("grouping", Path(__file__))
    monkeypatch.setattr(sl, "grouping", grouping, raising=False)
    assert {"form.mode", "form.steps"} <= {*options(verb)}
    assert options(verb)["form.mode"].help == "A word for the form of a question, direct by default."
    given = values(tyro.cli(parameters(verb), args=words))
    assert grouping(None, **_arguments(verb, given, "function")) == form


def _choices(kind: Any) -> tuple[Any, ...]:
    """All that the `Literal`s in an annotation allow."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for part in get_args(kind) for choice in _choices(part))


@pytest.mark.few(8)
@verbs
def test_the_help_of_every_verb_is_complete_and_spelled_as_it_is_typed(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "|".join(options(verb))
    for option in options(verb).values():
        assert len(option.help) > 10, option.name
        assert "`" not in option.help.replace("`squashlens tasks`", "")
        assert not any(f"as in {name}" in option.help for name in (*VERBS, "capture", "compare", "load")), option.help
        assert not re.search(r"\bdict\b", option.help)  # which no command line can pass
        assert not re.search(rf"(?<![\w-])({names})=", _options.as_typed(option.help, options(verb)))
    assert verb.summary == " ".join(verb.summary.split()) != ""
    assert stopped([verb.name, "--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in said for name in options(verb))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["path_bound", "--attention", "foo"], "Expected one of ('model', 'uniform', 'topological')"),
        (["path-bound", "--query", "1.5"], "Error parsing --query"),
        (["jacobian_norms", "--nrm", "spectral"], "--norm {spectral,frobenius}"),
        (["paint"], "Unrecognized options: paint"),
        (["tasks", "--n", "3"], "Unrecognized options: --n, 3"),
    ],
)
def test_what_cannot_be_read_is_refused_by_tyro(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(arguments) == 2
    said, complained = capsys.readouterr()
    assert not said
    assert complaint in re.sub(r"[\s│]+", " ", complained)


WRONG = [
    (["path_bound", "--model", "tiny-gema"], "Did you mean 'tiny-gemma' or 'tiny-prose'?"),
    (["path_bound", "--prompt", b"a\xff".decode("utf-8", "surrogateescape")], "half of a surrogate pair"),
    (["path_bound", "--prompt", PROMPT, "--query", "9"], "--query 9 is not a position"),
]
# What no model has is refused before one is loaded.
WRONG_FOR_ALL = [
    (["report", "--out", "x.nc"], "Use one of .html, .htm"),
    (["collapse", "--out", "x.nc", "--figure", "x.html", "--collapse-heatmap", "x.html"], "for two outputs"),
    (["collapse", "--p", "0.3"], "--p has no meaning with --sequence repeated."),
    (["evaluate", "--task", "count_one"], "There is no task 'count_one'."),
    (["path_bound", "--prompt", "How many onse are"], "The word 'onse' is not in this model's vocabulary."),
    (["compare", "--interventions", "sliding_window()"], "missing a required argument: 'window'."),
    (["compare", "--interventions", "sliding_window(0)"], "is not a number of tokens"),
    (["precision", "--runs", "float32", "--dtype", "float16"], "--dtype has no effect with --runs."),
]


@pytest.mark.parametrize(("arguments", "complaint"), WRONG + WRONG_FOR_ALL)
def test_wrong_arguments_end_in_one_line_and_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    @functools.wraps(sl.load)  # the options are its parameters
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    if (arguments, complaint) in WRONG_FOR_ALL:
        monkeypatch.setattr(sl, "load", load)
    monkeypatch.chdir(tmp_path)
    assert stopped(arguments) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "it/s]" not in line]
    assert said.startswith("squashlens: ")
    assert complaint in said
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("query=9 is not a position", "--query 9 is not a position"),
        ("freeze= has no effect with constants='paper'.", "--freeze has no effect with --constants paper."),
        ("Give verify=False or dtype=torch.bfloat16.", "Give --no-verify or --dtype bfloat16."),
        ("length=9, mode='cot', name='x' and every=3", "--lengths 9, --mode cot, --model x and --sequence-every 3"),
        ("The word 'query=9' of the model's prompt", "The word 'query=9' of the model's prompt"),
        ("other=3 and --query=9", "other=3 and --query=9"),
        ("Use form.template='none', not template='chat'.", "Use --form.template none, not --form.template chat."),
    ],
)
def test_python_is_spelled_as_it_is_typed(python: str, typed: str) -> None:
    known = "query freeze constants verify dtype lengths mode model sequence_every form.template"
    assert _options.as_typed(python, known.split()) == typed


@pytest.mark.slow
def test_commands_in_the_documents_are_understood() -> None:
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^ *squashlens ([a-z_]+(?: .*)?)$", text, re.M)]
    commands = [line for line in lines if line[0] in (*VERBS, "tasks") or any(w.startswith("--") for w in line)]
    assert len(commands) > 15
    for verb, *words in commands:
        if verb in ("study", "atlas"):
            words = words if words[0] in _study.ACTIONS[verb] else ["run", *words]  # a file alone
            tyro.cli(_study.parameters(verb, words[0]), args=words[1:])
        elif verb == "cache":
            assert words == ["--delete", "gemma-3-270m"]
        elif verb not in ("tasks", "families"):
            tyro.cli(parameters(VERBS[verb]), args=words)


def test_a_verb_prints_a_table_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any) -> None:
    out = tmp_path / "x.nc"
    main(["jacobian-norms", "--prompt", PROMPT, "--out", str(out), "--device", "cpu", "--quiet"])
    said, result = capsys.readouterr().out, sl.results.open(out)
    assert f"saved: {out}" in said
    assert "<bos>" in said
    assert result.name == "jacobian_norm"
    assert (result == sl.jacobian_norms(tiny, PROMPT)).all()
    assert f"{float(result.values[1]):.5g}" in said


# A verb with its words, and the same call in Python.
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "collapse": (
        "--n 6 --suffix = --baselines contrast --by-head value --norm.scale relative",
        lambda m: sl.collapse(
            m,
            sl.capture(m, sl.prompts.repeated(m, "1", 6, suffix="="), keep=BOTH, baselines=["contrast"]),
            by_head="value", norm={"scale": "relative"},
        ),
    ),
    "separator_ablation": (
        "--n 6 --kinds mask substitute --from-blocks 0 3 --substitute .",
        lambda m: sl.separator_ablation(
            m, sl.prompts.repeated(m, "1", 6, separator=","), kinds=["mask", "substitute"], from_blocks=[0, 3],
            substitute=".",
        ),
    ),
    "hops": (f"--prompt '{PROMPT}' --between.to-layer 3", lambda m: sl.paths.hops(m, PROMPT, between={"to_layer": 3})),
    "tokenization": (
        "--n 3 --separator plain '' commas ,", lambda m: sl.tokenization(m, 3, separator={"plain": "", "commas": ","})
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("verb", CALLS)
def test_a_verb_gives_what_the_function_gives(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Any
) -> None:
    words, call = CALLS[verb]
    out, figure = tmp_path / "x.nc", tmp_path / "x.html"
    main([verb, *shlex.split(words), "--out", str(out), "--figure", str(figure), "--quiet"])
    kept, expected = sl.results.open(out), call(tiny)
    assert kept.identical(expected) or kept.equals(expected)
    assert capsys.readouterr().out.startswith("# ")
    assert "Plotly.newPlot" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_complaints_and_tables_are_plain_on_every_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where standard output, as Python opens it, has no characters for ± and ‖; control characters are escaped."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, errors=errors) for errors in ("strict", "backslashreplace")]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    assert stopped(["jacobian_norms", "--help"]) == 0
    assert stopped(["path_bound", "--model", "x\x1b[2Jy"]) == 2
    for stream in streams:
        stream.flush()
    printed, complaint = (stream.buffer.getvalue().decode() for stream in streams)  # pyright: ignore
    assert ("‖" in printed) == (encoding == "utf-8")
    assert (complaint.count("\n"), "\x1b" in complaint) == (1, False)


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tasks", "--help"], ["paint"]])
def test_what_needs_no_model_is_light(arguments: list[str]) -> None:
    """It answers at once, because nothing heavy is imported."""
    probe = (
        "import sys\nfrom squashlens.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as stop: assert stop.code in (0, None, 2)\n"
        "heavy = {'torch', 'transformers', 'plotly', 'xarray', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if arguments == ["--help"]:
        assert all(f"  {name} " in done.stdout for name in (*VERBS, "tasks"))


def test_the_first_commands_are_those_of_verbs_and_can_be_read() -> None:
    for command, _ in FIRST:
        _, verb, *words = shlex.split(command)
        assert verb == "tasks" or tyro.cli(parameters(VERBS[verb]), args=words)


@pytest.mark.slow
def test_the_version_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"squashlens {sl.__version__}\n"
    for shell in ("bash", "zsh"):
        with pytest.raises(SystemExit) as stop:
            main(["--tyro-print-completion", shell])
        assert not stop.value.code
        said = capsys.readouterr().out
        assert "jacobian_norms" in said
        assert "--designs.n-placements" in said


def test_interventions_as_typed() -> None:
    hooks = sl.hooks
    typed = {
        "mask_tokens([0], blocks=(0, 2))+ freeze_norms()\n+uniform_attention": [
            hooks.mask_tokens([0], (0, 2)), hooks.freeze_norms(), hooks.uniform_attention()
        ],
        "sliding_window(4, sink=1)": [hooks.sliding_window(4, sink=1)],
        "log_scaling('log', 8)": [hooks.log_scaling("log", 8)],
        "sliding_window(3 + 5)": None,
        "sliding_window(4, window=4)": None,
        "sliding_window(**{'window': 4})": None,
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
    assert len(interventions(["freeze_norms", " freeze_norms"])) == 1


def test_squash_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["squash-map", "--prompt", "110 =", "--method", "none", "--out", str(tmp_path / "m.html"), "--quiet"])
    assert f"map: {tmp_path / 'm.html'}" in capsys.readouterr().out
    assert "sl-map" in (tmp_path / "m.html").read_text(encoding="utf-8")


def test_the_cache_is_listed_and_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from squashlens.engine.loading import cache

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
