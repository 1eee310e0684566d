"""The command line as a user types it."""

import inspect
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tyro

import squashlens as sl
from squashlens import cli
from squashlens.cli import ACTIONS, COMMANDS, main
from tests import odd

ROOT = Path(__file__).parent.parent
SAME = {
    "report": sl.report,
    "paper": sl.paper,
    "squash_map": sl.squash_map,
    "Loading": sl.load,
} | {name: getattr(sl.Study, name) for name in ACTIONS}


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled model is opened once, unless an option such as --device or --dtype asks for another form of it."""
    monkeypatch.setattr(sl, "load", odd.loading_once(sl.load))


def stopped(words: list[str]) -> int:
    """The exit code of a command that ends with one."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", SAME)
def test_an_option_has_the_default_of_the_parameter(name: str) -> None:
    """Texts and numbers in which "", 0 and none stand for Python's None."""
    options = inspect.signature(
        cli.Loading if name == "Loading" else (COMMANDS | ACTIONS)[name]
    ).parameters
    parameters = inspect.signature(SAME[name]).parameters
    for option in options.values():
        parameter = parameters.get(option.name)
        needed = parameter is None or parameter.default is parameter.empty
        if (
            needed
            or option.name == "model"
            or (name, option.name) == ("squash_map", "prompt")
        ):
            continue
        default = str(parameter.default).removeprefix("torch.")
        stands_for = {
            str(option.default),
            "None" if option.default in ("", 0, "none", "{}", ("", "")) else "",
        }
        assert {default, f"('{default}',)"} & stands_for, option


@pytest.mark.parametrize(
    "words",
    [[name] for name in COMMANDS] + [["study", name] for name in ACTIONS],
    ids=" ".join,
)
def test_help_says_in_words_what_an_option_takes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped([*words, "--help"]) == 0
    said = capsys.readouterr().out
    assert len(said) > 200
    assert not re.search(r"None|\bSTR\b|\bINT\b|\[\{", said)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("report --pompt a", "--prompt TEXT"),
        ("squash-map --query 1.5", "Error parsing --query"),
        ("paper --dtype float3", "Expected one of ('float64'"),
        ("paint", "Available subcommands: report, paper"),
        ("study plam", "Available subcommands: run, status"),
        ("study run", "YAML file"),
        ("report --out x.nc", "Use one of .html, .htm"),
        ("squash_map --out x.nc", "Use one of .html, .htm"),
        ("report --model tiny-gema", "Did you mean 'tiny-gemma' or 'tiny-prose'?"),
        ("report --model 'x\x1b[2Jy'", "x\\x1b[2Jy"),
        (
            "report --prompt 'How many onse are'",
            "The word 'onse' is not in this model's vocabulary.",
        ),
        ("study run none.yaml", "There is no file"),
        ("study run none.yaml --engine ray", "--engine"),
    ],
)
def test_what_is_wrong_is_said_on_standard_error(
    words: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert stopped(shlex.split(words)) == 2
    said, complained = capsys.readouterr()
    assert not said
    assert complaint in re.sub(r"[\s│]+", " ", complained)
    assert "\x1b" not in complained
    assert not [*tmp_path.iterdir()]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words", [["report", "--out", "a.nc"], ["study", "run", "a"], ["families"]]
)
def test_what_needs_no_model_is_light(words: list[str]) -> None:
    """It answers at once, because nothing heavy is imported."""
    probe = (
        "import sys\nfrom squashlens.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit as stop: assert stop.code in (0, None, 2)\n"
        "heavy = {'torch', 'transformers', 'plotly', 'xarray', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "squashlens", "--version"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("squashlens "), done.stderr


def test_commands_in_the_documents_are_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(
        tyro, "cli", lambda command, args, **form: read.append((command, args, form))
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = [
        block
        for page in pages
        for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    code.append((ROOT / "Makefile").read_text("utf-8").replace("\t$(BIN)/", ""))
    lines = re.findall(r"^squashlens (.*)$", "\n".join(code).replace("\\\n", " "), re.M)
    for line in lines:
        main(shlex.split(line, comments=True))
    monkeypatch.undo()
    for command, words, form in read:
        tyro.extras.get_parser(command, **form).parse_args(words)
    assert len(read) == len(lines) > 12


def test_a_page_a_map_and_figures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, made, folder = tmp_path / "r.html", tmp_path / "m.html", tmp_path / "paper"
    main(["report", "--prompt", "110 =", "--out", str(page)])
    main(["squash-map", "--prompt", "110 =", "--method", "none", "--out", str(made)])
    main(["paper", "--figures", "9", "--out", str(folder)])
    said = capsys.readouterr().out
    assert f"report: {page}" in said
    assert f"map: {made}" in said
    assert f"figure 9: {folder}" in said
    assert "sl-map" in made.read_text(encoding="utf-8")
    assert (folder / "data" / "total_variation.nc").is_file()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_without_a_character_gets_an_escape(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    assert stopped(["report", "--help"]) == 0
    stream.flush()
    assert ("╭" in stream.buffer.getvalue().decode()) == (encoding == "utf-8")  # pyright: ignore[reportAttributeAccessIssue]
