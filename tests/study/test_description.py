"""What a study is described by: grids in Python and YAML, checked before anything runs."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError, SquashlensError
from squashlens.study.measurements import measurements, signature

SQUARE = "tests.study.fakes:square"
ONE = {"measurement": SQUARE, "arguments": {"x": 1}}
MODEL = {"model": "tiny-gemma"}
PROMPTED = MODEL | {"prompt": "11 ="}
BOUND = {"measurement": "path_bound", "arguments": PROMPTED}
COUNTED = MODEL | {"task": "taught_count_bernoulli", "lengths": [4]}
EVALUATED = {"measurement": "evaluate_task", "arguments": COUNTED}
WINDOW = [{"sliding_window": {"window": 2}}]


def cells(*grids: Any) -> list[Any]:
    return sl.Study(list(grids), store="unused").cells


def keys(*grids: Any) -> list[str]:
    return [cell.key for cell in cells(*grids)]


def key_with(grid: dict[str, Any], **arguments: Any) -> str:
    """The key of a grid's only cell, with other arguments."""
    (key,) = keys(grid | {"arguments": grid["arguments"] | arguments})
    return key


def test_a_grid_has_all_combinations_and_labels() -> None:
    each = {"x": [1, 2, 3], "y": {"none": 0, "ten": 10}}
    made = cells({"measurement": SQUARE, "each": each})
    labels = [tuple(cell.labels.values()) for cell in made]
    assert labels[:3] == [(1, "none"), (1, "ten"), (2, "none")]
    assert made[1].arguments == {"x": 1, "y": 10}
    assert len({cell.key for cell in made}) == 6


def test_yaml_and_python_describe_the_same_cells(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "store: results\ngrids:\n"
        "- measurement: collapse\n"
        "  arguments: {model: tiny-gemma, sequence: {repeated: {token: '1'}}}\n"
        "  each: {sequence.n: [4, 8], norm: [l1, linf], hooks: {none: [], window: [{sliding_window: {window: 2}}]}}\n"
    )
    here = {
        "measurement": "collapse",
        "arguments": MODEL | {"sequence": {"repeated": {"token": "1"}}},
        "each": {
            "sequence.n": range(4, 9, 4),
            "norm": ("l1", "linf"),
            "hooks": {"none": [], "window": WINDOW},
        },
    }
    study = sl.Study(file)
    assert study.store.root.name == "results"
    assert len(study.cells) == 8
    assert [cell.key for cell in study.cells] == keys(here)
    assert study.cells[0].arguments["sequence"] == {"repeated": {"token": "1", "n": 4}}


def test_a_key_depends_on_what_changes_the_numbers() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"beta1": 2.0},
        {"prompt": "12 ="},
        {"dtype": "bfloat16"},
        {"query": -2},
        {"hooks": WINDOW},
    ]
    assert len({key_with(BOUND, **change) for change in changes}) == len(changes)


@pytest.mark.parametrize(
    ("grid", "same"),
    [
        (BOUND, {"beta1": 1.0}),
        (BOUND, {"query": -1}),
        (BOUND, {"dtype": "fp32"}),
        (EVALUATED, {"mode": "answer_only", "template": "none"}),
        # How the work is divided.
        (BOUND | {"measurement": "jacobian_norms"}, {"vjp_batch_size": 4}),
    ],
)
def test_a_default_that_is_given_leaves_the_key(grid: Any, same: Any) -> None:
    assert key_with(grid, **same) == key_with(grid)


def test_a_synthetic_stack_is_described_by_its_fields() -> None:
    lengths = {"lengths": [4, 8, 16]}
    grid = {"measurement": "synthetic.convergence", "arguments": lengths}
    one, other = (key_with(grid, stack=sl.synthetic.Stack(heads=n)) for n in (2, 4))
    assert one != other
    arguments = lengths | {"stack": {"Stack": {"heads": 2}}}
    each = {"stack.window": [4, 8]}
    assert len(set(keys(grid | {"arguments": arguments, "each": each}))) == 2


def test_a_key_depends_on_the_content_of_the_checkpoint_and_not_on_its_path(
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(sl.example_models.folder("tiny-gemma"), tmp_path / "model")
    usual = key_with(BOUND)
    assert key_with(BOUND, model=str(folder)) == usual
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert key_with(BOUND, model=str(folder)) != usual


REFUSED: dict[str, dict[str, Any]] = {
    "an unknown measurement": {"measurement": "path_bund"},
    "no module": {"measurement": "no.module:function"},
    "an unknown field": {"measurements": "path_bound"},
    "a missing argument": {"measurement": "path_bound", "arguments": MODEL},
    "an unknown choice": BOUND | {"each": {"attention": ["model", "unlike"]}},
    "an argument twice": BOUND | {"each": {"prompt": ["a"]}},
    "an unknown argument": BOUND | {"each": {"querry": [1]}},
    "resume": BOUND | {"each": {"resume": ["x"]}},
    "another kind": BOUND | {"each": {"query": [float("nan")]}},
    "another kind of one's own": {"measurement": SQUARE, "each": {"x": ["one"]}},
    "a value twice": BOUND | {"each": {"query": [1, 1]}},
    "a label twice": BOUND | {"each": {"query": {1: 2, "1": 3}}},
    "an unknown dtype": BOUND | {"each": {"dtype": ["float32", "flot32"]}},
    "a dtype of integers": BOUND | {"each": {"dtype": ["int64"]}},
    "an unknown model": BOUND | {"arguments": PROMPTED | {"model": "tiny-gema"}},
    "an unknown task": EVALUATED | {"arguments": COUNTED | {"task": "cuont"}},
    "an unknown mode": EVALUATED | {"each": {"mode": ["both"]}},
    "nothing to set in": ONE | {"each": {"sequence.n": [4]}},
    "no hook": BOUND | {"each": {"hooks": {"own": [3]}}},
    "an unknown argument of a hook": BOUND
    | {"each": {"hooks": [[{"sliding_window": {"windw": 2}}]]}},
    "a hook that is no function": BOUND
    | {"each": {"hooks": {"own": ("blocks.0.hook_out", object())}}},
    "an unknown sequence": {
        "measurement": "collapse",
        "arguments": MODEL | {"sequence": {"repated": {"token": "1"}}},
    },
    "a missing argument of a sequence": {
        "measurement": "collapse",
        "arguments": MODEL | {"sequence": {"digits": {"n": 4}}},
    },
    "an impossible stack": {
        "measurement": "synthetic.convergence",
        "arguments": {"lengths": [4, 8, 16], "stack": {"Stack": {"heads": 3}}},
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_before_anything_runs(case: str) -> None:
    with pytest.raises(SquashlensError):
        cells(REFUSED[case])


def test_a_loaded_model_is_refused(tiny: Any) -> None:
    with pytest.raises(InputError):
        cells(BOUND | {"arguments": PROMPTED | {"model": tiny}})


def test_a_study_needs_a_store_and_different_names() -> None:
    with pytest.raises(InputError):
        sl.Study(ONE)
    with pytest.raises(InputError):
        cells(ONE, ONE)
    assert len(cells(ONE, ONE | {"name": "again"})) == 2


def test_every_measurement_is_one_of_a_study_or_says_why_not() -> None:
    # Three write files, one makes a page, and three take two models.
    registered = {n for n in sl.__all__ if hasattr(getattr(sl, n), "__measures__")}
    of_two = {"compare_models", "damage_by_block", "blocks_to_keep"}
    others = registered - {*measurements()}
    pages = {"report", "compare_report", "lengths", "paper", "squash_map"}
    assert others == pages | of_two
    for name, function in measurements().items():
        takes_model = "model" in signature(function).parameters
        assert takes_model is not name.startswith("synthetic")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "grids: [{measurement: path_bound\n",
    ],
    ids=["no file", "no YAML"],
)
def test_a_file_that_cannot_be_read_is_refused(
    text: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "study.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError):
        sl.Study(file, store=tmp_path)
