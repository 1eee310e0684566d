"""The package as a whole: the wheel, the scripts, the size of modules, and the code in README and docs."""

import importlib
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import squashlens as sl

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((*ROOT.glob("hooks/*.py"), *ROOT.glob("analyses/*.py")))


# The scripts that take minutes run on a sample here.
SAMPLES = {
    "fig5_collapse.py": ["--n", "64"],
    "theorem51_audit.py": ["--prompts", "1", "--n", "4"],
    "u_shape.py": ["--prompts", "2", "--n", "5"],
    "copying_sensitivity.py": ["--lengths", "4", "12"],
    "separators_by_layer.py": ["--n", "12"],
    "separator_search.py": ["--n", "8", "--separators", ",", ".", "--every", "2", "3", "--n-placements", "5"],
    "sliding_window.py": ["--n", "12", "--windows", "4", "--n-samples", "3"],
    "sinks.py": ["--n", "12", "--window", "4", "--n-samples", "3"],
    "precision.py": ["--n", "12", "--runs", "float32", "bfloat16", "--window", "4"],
    "tokenization.py": ["--n", "8"],
    "encodings_and_depth.py": ["--encodings", "none", "rope", "--depth", "1", "--longest", "400"],
    "fig8_synthetic_convergence.py": ["--longest", "2000"],
    "fig2_copying.py": ["--lengths", "4", "100", "--resume"],
    "fig3_counting.py": ["--lengths", "4", "60", "--seeds", "2"],
    "fig4_answer_frequencies.py": ["--longest", "6", "--seeds", "1"],
    "collapse_vs_readout.py": ["--lengths", "4", "60", "--seeds", "24", "--n-train", "8", "--n-random-models", "2"],
}


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: f"{s.parent.name}/{s.name}")
def test_scripts_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: importing what they use would take most of the time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), *SAMPLES.get(script.name, [])])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60
    imported = re.findall(r"^(?:import|from) (\w+)", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(imported) <= {"squashlens", "argparse", "pathlib"}


@pytest.mark.parametrize(
    "script", [SCRIPTS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS[1:])], ids=lambda s: s.name
)
def test_scripts_run_as_a_user_would(script: Path, tmp_path: Path) -> None:
    done = run(sys.executable, str(script), *SAMPLES.get(script.name, []), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_modules_stay_small() -> None:
    for module in (ROOT / "squashlens").rglob("*.py"):
        assert len(module.read_text(encoding="utf-8").splitlines()) <= 400, module


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    """pip's way: a wheel that holds only the package, installed elsewhere, reporting from another folder."""
    uv = Path(sys.executable).with_name("uv")
    built = run(str(uv), "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT), cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names} == {"squashlens", "squashlens-0.1.0.dist-info"}
    wanted = ("reporting/template.html.jinja", "zoo/tiny-gemma/model.safetensors", "zoo/tiny-gemma/README.md")
    assert {f"squashlens/{n}" for n in wanted} <= set(names)
    site = tmp_path / "site"
    placed = run(str(uv), "pip", "install", "--no-deps", "--target", str(site), str(wheel), cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    probe = f"import sys; sys.path.insert(0, {str(site)!r}); from squashlens.cli import main; main(['report'])"
    done = run(sys.executable, "-c", probe, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


def python_of(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    code = python_of("README.md")
    assert "sl.sensitivity" in code
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sensitivity.nc").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # every measurement there is, on one core
def test_the_examples_run(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", python_of("docs/examples.md"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), (page.name, target)


def test_the_site_has_every_public_name_and_every_script() -> None:
    """What `make docs` would miss only after minutes."""
    reference = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.rst"))
    sl = importlib.import_module("squashlens")
    for name in sl.__all__:
        assert re.search(
            rf"^\.\. (autofunction|autoclass|automodule):: (squashlens\.)?{name}$", reference, re.MULTILINE
        ), name
    listed = tomllib.loads((ROOT / "docs" / "_site" / "scripts.toml").read_text(encoding="utf-8"))
    assert {(folder, name) for folder, group in listed.items() for name in group} == {
        (script.parent.name, script.stem) for script in SCRIPTS
    }


def test_constraints_pin_everything_exactly() -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [line for line in lines if line]
    assert "torch==2.13.0" in pins
    assert all("==" in pin for pin in pins if pin != "torchvision<0")


@pytest.mark.parametrize(
    "name", ["errors", "export", "figures", "hooks", "paths", "prompts", "statements", "synthetic", "tasks", "zoo"]
)
def test_public_modules_show_only_their_public_names(name: str) -> None:
    """Helpers and imported modules do not appear in tab completion."""
    module = getattr(importlib.import_module("squashlens"), name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


def test_help_shows_the_models_class_and_does_not_import_it() -> None:
    """In a process of its own, in which nothing has imported TransformerLens."""
    found = subprocess.run(
        [
            sys.executable, "-c",
            "import inspect, sys, squashlens as sl\n"
            "for function in (sl.path_bound, sl.capture, sl.applied, sl.report, sl.prompts.repeated):\n"
            "    print(inspect.signature(function).parameters['model'])\n"
            "print(inspect.signature(sl.load).return_annotation)\n"
            "assert 'transformer_lens' not in sys.modules\n",
        ],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = found.stdout.splitlines()
    assert len(lines) == 6
    assert all("transformer_lens.model_bridge.TransformerBridge" in line for line in lines), lines


def test_the_version_is_said_once_and_repeated_alike() -> None:
    """In pyproject.toml; what must repeat it, the citation and the changelog, agrees."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
    assert sl.__version__ == version
