"""Compile LaTeX: `pdf` gives the PDF of a document, and `text_of` what is written in it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def required(program: str) -> None:
    """Skip the test if a program is not installed, or fail where it must be."""
    if shutil.which(program) is None:
        if os.environ.get("SQUASHLENS_REQUIRE_LATEX"):
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed, so no LaTeX was compiled")


def pdf(folder: Path, body: str, *, preamble: str = "", options: str = "") -> Path:
    """The PDF of an article with this body, in which all characters and figures were found and fit."""
    required("pdflatex")
    source = f"\\documentclass{options}{{article}}\n{preamble}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "main.tex").write_text(source, encoding="utf-8")
    command = [
        "pdflatex",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "main.tex",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Missing character" not in (folder / "main.log").read_text(errors="replace")
    return folder / "main.pdf"


def text_of(path: Path) -> str:
    """The text of a PDF."""
    required("pdftotext")
    command = ["pdftotext", "-layout", path, "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def fonts_of(path: Path) -> dict[str, bool]:
    """The fonts of a PDF, and whether they are in the file."""
    required("pdffonts")
    listed = subprocess.run(
        ["pdffonts", path], capture_output=True, text=True, check=True
    ).stdout
    return {
        line.split()[0]: line.split()[-5] == "yes" for line in listed.splitlines()[2:]
    }
