"""What `plan` says before the first cell: a guess from the shapes of the model and of its prompts."""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import squashlens as sl
from squashlens.engine import anatomy, budget
from squashlens.engine.loading.shapes import Shape, lengths_of, shape_of
from squashlens.study.cells import Cell
from squashlens.study.guess import guess

LONG = "How many ones are in the following sequence? " + 30 * "1101" + " ="
SHORTER, LONGER = 2, 15  # a cell takes at least 1/2 and at most 15 times as long as the guess


def known(name: str) -> Shape:
    found = shape_of(name)
    assert found is not None
    return found


def cells(measurement: str, each: dict[str, Any] | None = None, **arguments: Any) -> list[Cell]:
    given = {"measurement": measurement, "arguments": {"model": "tiny-gemma", **arguments}, "each": each or {}}
    return sl.Study(given, store="unused").cells


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-prose"])
def test_the_shape_is_that_of_the_loaded_model(name: str) -> None:
    model, shape = sl.load(name, progress=False, verify=False), known(name)
    assert (shape.blocks, shape.width) == (anatomy.n_blocks(model), anatomy.width(model))
    assert shape.queries + shape.keys == anatomy.projected(model)
    assert shape.weights == sum(one.numel() for one in model.original_model.parameters())
    ids = torch.arange(5, 53)[None]
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model.original_model(ids)
    assert shape.operations(48) == pytest.approx(counted.get_total_flops(), rel=0.02)
    for n in (16, 256):
        for vectors, bytes_ in ((0, budget.pass_bytes(model, 1, n)), (16, budget.products_bytes(model, 1, n, 16))):
            assert (
                bytes_ / 3 < 4 * shape.activations(n, vectors) < 3 * bytes_
            )  # rows of soft-capped attention are left out


def test_lengths_are_those_of_the_prompts(tiny: Any) -> None:
    texts = ["11 =", LONG]
    assert lengths_of("tiny-gemma", None, texts) == [sl.prompts.tokenize(tiny, one).shape[1] for one in texts]


@pytest.mark.few(2)
@pytest.mark.parametrize("measurement", ["path_bound", "jacobian_norms", "collapse"])
def test_a_guess_is_of_the_size_of_what_is_measured(measurement: str, tiny: Any) -> None:
    """The time of the processor is compared, since the machine may be busy."""
    if measurement == "collapse":
        guessed = guess(cells("collapse", sequence={"repeated": {"token": "1", "n": 48}}), 0)
        sequence = sl.prompts.repeated(tiny, "1", 48)
        measure = lambda: sl.collapse(tiny, sequence)  # noqa: E731
    else:
        guessed = guess(cells(measurement, prompt=LONG), 0)
        measure = lambda: getattr(sl, measurement)(tiny, LONG)  # noqa: E731
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measure()
    began = time.process_time()
    measure()
    took = time.process_time() - began
    torch.set_num_threads(threads)
    assert guessed is not None
    assert guessed.seconds / SHORTER < took < LONGER * guessed.seconds


def test_plan_guesses_until_a_cell_is_done(tmp_path: Path, tiny: Any) -> None:
    grid = {"measurement": "path_bound", "arguments": {"model": "tiny-gemma"}, "each": {"prompt": ["11 =", LONG]}}
    one = sl.Study(grid, store=tmp_path)
    before = one.plan()
    n = sl.prompts.tokenize(tiny, LONG).shape[1]
    assert before["seconds_from"].item() == f"guess before the first cell: a forward pass of at most {n} tokens"
    one.run(progress=False)
    after = sl.Study(grid | {"each": {"prompt": ["11 =", LONG, "12 ="]}}, store=tmp_path).plan()
    assert after["seconds_from"].item() == "mean of 2 cells"
    measured = after["peak_bytes"].item()
    assert measured / 2 < before["peak_bytes"].item() < 2 * measured


def test_a_guess_grows_with_what_is_left(tmp_path: Path) -> None:
    few, many = (guess(cells("path_bound", {"prompt": [f"{n} =" for n in range(size)]}), 0) for size in (5, 50))
    assert few is not None
    assert many is not None
    assert many.seconds == pytest.approx(10 * few.seconds, rel=0.1)
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in [*50 * ["11 ="], [2, 4, 4, 76], ""]))
    over = {"file": str(file), "shard": 10}
    scan = sl.Study({"measurement": "path_bound", "arguments": {"model": "tiny-gemma"}, "over": over}, store="unused")
    guessed = guess(scan.cells, 0)
    assert guessed is not None
    assert guessed.seconds == pytest.approx(52 / 5 * few.seconds, rel=0.2)
    assert guessed.why.endswith("a forward pass of at most 4 tokens")
    weights = guess(cells("path_bound", prompt="11 ="), 10**9)
    assert weights is not None
    assert 10**9 < weights.peak_bytes < 1.2e9 + psutil.Process().memory_info().rss
