"""The live map in JupyterLab: a real kernel and a real front end, in one browser. `make lab` installs what it needs."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from tests.conftest import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
PROMPT = f"How many ones are in the following sequence? {'1' * 60} ="
SECONDS = 240  # until a kernel has imported PyTorch on a busy machine
CELLS = (
    "import squashlens as sl\nmodel = sl.load('tiny-gemma', device='cpu')\n"
    f"live = sl.squash_map(model, {PROMPT!r}).live()\nlive",
    "import torch\nwith torch.no_grad():\n    next(model.original_model.parameters()).mul_(1.01)\nprint('changed', 1)",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab with one notebook, which was not executed."""
    pytest.importorskip(
        "jupyterlab",
        reason="jupyterlab is not installed; `make lab` installs it and runs this file",
    )
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    folder = tmp_path_factory.mktemp("lab")
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{k}",
            "metadata": {},
            "outputs": [],
            "source": code,
        }
        for k, code in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "live.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    quiet = {
        "disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}
    }  # which asks for the network
    (folder / "config" / "labconfig").mkdir(parents=True)
    (folder / "config" / "labconfig" / "page_config.json").write_text(
        json.dumps(quiet), encoding="utf-8"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    own = {
        f"JUPYTER_{name.upper()}_DIR": str(folder / name)
        for name in ("config", "data", "runtime")
    }
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": token,
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--log-level=WARN",
    ]
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ
            | own
            | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")},
        )
    try:
        _wait(f"http://127.0.0.1:{port}/api?token={token}", server, folder / "log.txt")
        yield f"http://127.0.0.1:{port}/lab/tree/live.ipynb?token={token}"
    finally:
        server.terminate()  # and with it its kernels
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()  # noqa: S310
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(
        f"JupyterLab did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
    )


class Notebook:
    """A notebook in a browser, whose cells can be run."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.state = page.locator(".sl-live")
        self.query = page.locator(".sl-ribbon [aria-selected=true]")

    def run(self, cell: int) -> None:
        self.page.locator(".jp-CodeCell .cm-content").nth(cell).click()
        self.page.keyboard.press("Control+Enter")

    def printed(self, word: str) -> str:
        line = self.page.locator(".jp-OutputArea-output pre", has_text=word)
        line.wait_for()
        return line.inner_text()

    def choose(self, query: int) -> None:
        self.page.locator(f".sl-ribbon [data-start='{query}']").click()

    def ended(self) -> str:
        """What the map says after a measurement."""
        self.page.wait_for_function(
            "document.querySelector('.sl-live progress').hidden"
        )
        return self.state.inner_text().strip()


def test_measure_cancel_and_error(browser: Any, lab: str, tiny: Any) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    page, said = context.new_page(), []
    page.set_default_timeout(SECONDS * 1000)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "console",
        lambda message: said.append(message.text) if message.type == "error" else None,
    )
    try:
        page.goto(lab)
        page.get_by_text("| Idle").wait_for()
        notebook = Notebook(page)
        notebook.run(0)
        page.wait_for_selector(".sl-ribbon [role=option]")

        # A query that was not measured, with progress.
        page.click(".sl-more summary")
        layer = page.locator(".sl-controls label", has_text="Layer").locator("select")
        layer.select_option("1")
        notebook.choose(5)
        assert (
            "Jacobian was not measured for this query"
            in page.locator(".sl-status").inner_text()
        )
        page.evaluate(
            """() => { window.shares = []; const bar = document.querySelector('.sl-live progress');
            new MutationObserver(() => window.shares.push(bar.hidden ? 'hidden' : bar.value)).observe(bar,
            { attributes: true }); }"""
        )
        page.get_by_role("button", name="Measure it").click()
        assert notebook.ended() == ""
        shares = [
            share for share in page.evaluate("window.shares") if share != "hidden"
        ]
        assert shares == sorted(shares)
        assert len(set(shares)) >= 3
        assert shares[-1] == 1
        assert layer.input_value() == "1"  # the reader's choices stay
        layer.select_option("0")
        norms = sl.jacobian_norms(tiny, PROMPT, query=5).values
        labels = [
            page.locator(f".sl-ribbon [data-start='{at}']").get_attribute("aria-label")
            for at in range(6)
        ]
        np.testing.assert_allclose(
            [float(text.rpartition(", ")[2]) for text in labels], norms[:6], rtol=1e-3
        )

        # Keys belong to the map: JupyterLab would move to another cell, or delete this one.
        notebook.choose(5)
        for key in ("ArrowDown", "ArrowRight", "d", "d", "x", "b"):
            page.keyboard.press(key)
        assert notebook.query.get_attribute("data-start") == "7"
        assert page.locator(".jp-CodeCell").count() == len(CELLS)

        notebook.choose(60)
        page.get_by_role("button", name="Measure it").click()
        page.get_by_role("button", name="Cancel").click()
        assert notebook.ended() == "Query 60 was cancelled."
        assert (
            "Jacobian was not measured for this query"
            in page.locator(".sl-status").inner_text()
        )

        notebook.run(1)
        notebook.printed("changed 1")
        notebook.choose(61)
        page.get_by_role("button", name="Measure it").click()
        assert "The model was changed since the map was made." in notebook.ended()
        assert said == []
    finally:
        context.close()
