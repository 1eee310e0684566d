"""The package as a whole: the wheel, the scripts, the size of modules, and the code in README and docs."""

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import squashlens as sl

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((*ROOT.glob("hooks/*.py"), *ROOT.glob("analyses/*.py")))

# The gallery of the site runs all scripts with these options, which are those of the tests too.
LISTED = runpy.run_path(str(ROOT / "docs" / "_site" / "scripts.py"))["listed"]()
QUICK = ("mask_sink.py", "strongest_paths.py")  # one of each folder


def options(script: Path) -> list[str]:
    return shlex.split(LISTED[script.parent.name][script.stem].get("options", ""))


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "script",
    [
        s if s.name in QUICK else pytest.param(s, marks=pytest.mark.slow)
        for s in SCRIPTS
    ],
    ids=lambda s: f"{s.parent.name}/{s.name}",
)
def test_scripts_run(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, since importing takes most of the time. By default only two: `make docs` runs all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), *options(script)])
    monkeypatch.syspath_prepend(script.parent)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_modules_and_functions_stay_small() -> None:
    """Statements are counted, which do not depend on how lines are broken."""
    modules = [*ROOT.glob("squashlens/**/*.py")]
    assert len(modules) > 100
    for module in modules:
        text = module.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 600, module
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef):
                nodes = [isinstance(node, ast.stmt) for node in ast.walk(function)]
                where = f"{module.relative_to(ROOT)}: {function.name}"
                assert sum(nodes) <= 50, f"{where} has {sum(nodes)} statements"


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    """pip's way: a wheel that holds only the package, installed elsewhere, reporting from another folder."""
    uv = Path(sys.executable).with_name("uv")
    built = run(
        str(uv), "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT), cwd=tmp_path
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    placed = run(
        str(uv),
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(site),
        str(wheel),
        cwd=tmp_path,
    )
    assert placed.returncode == 0, placed.stderr
    probe = f"import sys; sys.path.insert(0, {str(site)!r}); from squashlens.cli import main; main(['report'])"
    done = run(sys.executable, "-c", probe, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


# Pages whose Python is run, with the small model of natural text in the place of others.
RUN = """results examples answer_lost effects families figures jacobian separation
sinks sliding_window""".split()  # noqa: SIM905
BEFORE = """
import squashlens as sl

load = sl.load
sl.load = lambda name, **options: load(
    name if name.startswith("tiny") else "tiny-prose", **options
)
model = sl.load("tiny-gemma")
prompt = "How many ones are in the following sequence? 1101 ="
"""


def python_of(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.slow
@pytest.mark.gemma
def test_the_readmes_python_runs(
    gemma: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = python_of("README.md")
    assert "sl.bound_vs_jacobian" in code
    (tmp_path / "readme.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sl, "load", {"gemma-3-270m": gemma}.__getitem__)
    runpy.run_path("readme.py", run_name="__main__")
    assert (tmp_path / "bound.nc").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # every measurement there is, on one core
@pytest.mark.parametrize("page", RUN)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    code = BEFORE + python_of(f"docs/{page}.md")
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_links_in_the_documents_lead_somewhere_and_names_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("http") or (page.parent / target).exists(), (
                page.name,
                target,
            )
        for names in re.findall(r"\bsl((?:\.\w+)+)", text):
            attrgetter(names[1:])(sl)


@pytest.mark.parametrize(
    "file", sorted(ROOT.glob("docs/notebooks/*.ipynb")), ids=lambda file: file.stem
)
def test_a_notebook_was_run_from_top_to_bottom_and_its_names_exist(file: Path) -> None:
    """`make notebooks` executes them again."""
    assert file.stat().st_size < 400_000
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    run = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in run] == [*range(1, len(run) + 1)]
    assert all(cell["outputs"] for cell in run)
    assert 'model = "gemma-3-270m"  # or "smollm2-135m"\n' in run[0]["source"]
    for output in (one for cell in run for one in cell["outputs"]):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output
        text = json.dumps(
            {**output, "data": {**output.get("data", {}), "image/png": ""}}
        )
        assert not re.search(
            r"/(home|root|tmp|usr|Users|opt|var|work)/|[A-Z]:\\\\|https?://", text
        ), text
    for names in re.findall(
        r"\bsl((?:\.\w+)+)", "\n".join("".join(cell["source"]) for cell in cells)
    ):
        attrgetter(names[1:])(sl)


@pytest.mark.parametrize(
    "name", [name for name in sl.__all__ if isinstance(getattr(sl, name), ModuleType)]
)
def test_public_modules_show_only_their_public_names(name: str) -> None:
    """Helpers and imported modules do not appear in tab completion."""
    module = getattr(sl, name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


@pytest.mark.slow
def test_import_is_light_and_complete_and_help_shows_the_models_class() -> None:
    """In a process of its own, in which nothing has imported TransformerLens."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import inspect, sys, squashlens as sl\n"
            "sl.results.open, sl.results.save, sl.results.provenance, sl.results.concat\n"
            "assert 'torch' not in sys.modules and 'plotly' not in sys.modules\n"
            "for function in (sl.path_bound, sl.capture, sl.applied, sl.report, sl.prompts.repeated):\n"
            "    print(inspect.signature(function).parameters['model'])\n"
            "print(inspect.signature(sl.load).return_annotation)\n"
            "sl.bound_vs_jacobian, sl.collapse, sl.collapse_mechanism, sl.squash_map\n"
            "assert 'scipy.stats' not in sys.modules  # takes a second to import\n"
            "assert 'transformer_lens' not in sys.modules\n"
            "assert all(getattr(sl, name) is not None for name in sl.__all__)\n"
            "assert callable(sl.report) and callable(sl.capture) and set(sl.__all__) <= set(dir(sl))\n",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = found.stdout.splitlines()
    assert len(lines) == 6
    assert all(
        "transformer_lens.model_bridge.TransformerBridge" in line for line in lines
    ), lines
