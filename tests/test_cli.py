"""The command line as a user types it."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

import squashlens as sl
from squashlens import cli
from squashlens.cli import ACTIONS, COMMANDS, main
from tests import odd

ROOT = Path(__file__).parent.parent
# Commands, each beside the function that it calls.
SAME = {
    cli.report: sl.report,
    cli.lengths: sl.lengths,
    cli.paper: sl.paper,
    cli.squash_map: sl.squash_map,
    cli.Loading: sl.load,
    cli.run: sl.Study.run,
}
OWN_DEFAULTS = ("model", "prompt", "loading", "scheduler", "choices")


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled model is opened once, unless an option such as --device or --dtype asks for another form of it."""
    monkeypatch.setattr(sl, "load", odd.loading_once(sl.load))


def stopped(words: str) -> int:
    """The exit code of a command that ends with one."""
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(words))
    return int(stop.value.code or 0)


@pytest.mark.parametrize("command", SAME, ids=lambda command: command.__name__)
def test_an_option_has_the_default_of_the_parameter(command: object) -> None:
    parameters = inspect.signature(SAME[command]).parameters  # pyright: ignore
    for option in inspect.signature(command).parameters.values():  # pyright: ignore
        parameter = parameters.get(option.name)
        if parameter is None or option.name in OWN_DEFAULTS:
            continue
        shown = str(parameter.default).removeprefix("torch.")
        assert str(option.default) in (shown, str((parameter.default,)))


@pytest.mark.parametrize("words", [*COMMANDS, *(f"study {name}" for name in ACTIONS)])
def test_every_command_has_help(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped(f"{words} --help") == 0
    said = capsys.readouterr().out
    assert len(said) > 200
    assert "None" not in said


@pytest.mark.parametrize(
    "words",
    [
        "report --pompt a",
        "squash-map --query 1.5",
        "paper --dtype float3",
        "paint",
        "study plam",
        "study run",
        "report --out x.nc",
        "squash_map --out x.nc",
        "report --model tiny-gema",
        "report --model 'x\x1b[2Jy'",
        "report --prompt 'How many onse are'",
        "study run none.yaml",
        "study run none.yaml --engine ray",
    ],
)
def test_what_is_wrong_is_said_on_standard_error(
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert stopped(words) == 2
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err) > 20
    assert "\x1b" not in said.err
    assert "Traceback" not in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.few(1)
@pytest.mark.parametrize("words", ["report --out a.nc", "study run a", "families"])
def test_what_needs_no_model_is_light(words: str) -> None:
    """It answers at once, because nothing heavy is imported."""
    probe = (
        "import sys\nfrom squashlens.cli import main\n"
        f"try: main({words.split()!r})\nexcept SystemExit as stop: assert stop.code in (0, None, 2)\n"
        "heavy = {'torch', 'transformers', 'plotly', 'xarray', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def commands_in_the_documents() -> list[str]:
    """Of README, docs and the Makefile, without the name of the program."""
    code = (ROOT / "Makefile").read_text("utf-8").replace("\t$(BIN)/", "")
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        code += "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.S))
    return re.findall(r"^squashlens (.*)$", code.replace("\\\n", " "), re.M)


def test_commands_in_the_documents_are_understood() -> None:
    lines = commands_in_the_documents()
    assert len(lines) > 12
    for line in lines:
        words = shlex.split(line, comments=True)
        if words == ["--version"]:
            continue
        commands = COMMANDS
        if words[0] == "study":
            commands = ACTIONS
            words = words[1:]
        command = commands[words[0].replace("-", "_")]
        parser = tyro.extras.get_parser(command, config=cli.FORMS)
        parser.parse_args(words[1:])


def test_a_page_a_map_and_figures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "r.html"
    made = tmp_path / "m.html"
    folder = tmp_path / "paper"
    main(["report", "--prompt", "110 =", "--out", str(page)])
    main(["squash-map", "--prompt", "110 =", "--method", "none", "--out", str(made)])
    main(["paper", "--figures", "9", "--out", str(folder)])
    said = capsys.readouterr().out
    for path in (page, made, folder):
        assert str(path) in said
    assert "sl-map" in made.read_text(encoding="utf-8")
    assert (folder / "data" / "total_variation.nc").is_file()
