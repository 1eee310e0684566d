"""What a study is described by: grids in Python and YAML, checked before anything runs."""

from pathlib import Path
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError, SquashlensError
from squashlens.study.measurements import (
    arguments_of,
    function_of,
    measurements,
    signature,
)

SQUARE = "tests.study.fakes:square"
BOUND = {
    "measurement": "path_bound",
    "arguments": {"model": "tiny-gemma", "prompt": "11 ="},
}
COUNTED = {"model": "tiny-gemma", "task": "taught_count_bernoulli", "lengths": [4]}
EVALUATED = {"measurement": "evaluate", "arguments": COUNTED}


def cells(*grids: Any, store: Path = Path("unused")) -> list[Any]:
    return sl.Study(list(grids), store=store).cells


def test_a_grid_has_all_combinations_and_labels() -> None:
    found = cells(
        {"measurement": SQUARE, "each": {"x": [1, 2, 3], "y": {"none": 0, "ten": 10}}}
    )
    assert len(found) == 6
    assert [(cell.labels["x"], cell.labels["y"]) for cell in found][:3] == [
        (1, "none"),
        (1, "ten"),
        (2, "none"),
    ]
    assert found[1].arguments == {"x": 1, "y": 10}
    assert len({cell.key for cell in found}) == 6


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
        "arguments": {"model": "tiny-gemma", "sequence": {"repeated": {"token": "1"}}},
        "each": {
            "sequence.n": range(4, 9, 4),
            "norm": ("l1", "linf"),
            "hooks": {"none": [], "window": [{"sliding_window": {"window": 2}}]},
        },
    }
    study = sl.Study(file)
    assert len(study.cells) == 8
    assert study.store.root.name == "results"
    assert [cell.key for cell in study.cells] == [cell.key for cell in cells(here)]
    assert study.cells[0].arguments["sequence"] == {"repeated": {"token": "1", "n": 4}}


def test_a_keyword_is_varied_by_its_name() -> None:
    grid = {
        "measurement": "jacobian_norms",
        "arguments": BOUND["arguments"] | {"method": "sketch"},
    }
    found = cells(grid | {"each": {"n_probes": [4, 8]}})
    assert [
        (cell.arguments["method"], cell.arguments["n_probes"]) for cell in found
    ] == [("sketch", 4), ("sketch", 8)]


def test_a_key_depends_on_what_changes_the_numbers() -> None:
    first = cells(BOUND)[0].key
    changed: list[dict[str, Any]] = [
        {"beta1": 2.0},
        {"prompt": "12 ="},
        {"dtype": "bfloat16"},
        {"query": -2},
        {"hooks": [{"sliding_window": {"window": 2}}]},
    ]
    keys = [
        cells(BOUND | {"arguments": BOUND["arguments"] | more})[0].key
        for more in changed
    ]
    assert len({first, *keys}) == 6
    same: list[dict[str, Any]] = [{"beta1": 1.0}, {"query": -1}, {"dtype": "fp32"}]
    assert {
        cells(BOUND | {"arguments": BOUND["arguments"] | more})[0].key for more in same
    } == {first}
    norms = {"measurement": "jacobian_norms", "arguments": BOUND["arguments"]}
    batches: list[Any] = [
        {},
        {"vjp_batch_size": 4},
        {"vjp_batch_size": 8},
    ]  # how the work is divided
    assert (
        len(
            {
                cells(norms | {"arguments": norms["arguments"] | one})[0].key
                for one in batches
            }
        )
        == 1
    )


def test_a_default_that_is_given_leaves_the_key() -> None:
    usual, given = (
        cells(EVALUATED)[0].key,
        COUNTED | {"mode": "answer_only", "template": "none"},
    )
    assert cells(EVALUATED | {"arguments": given})[0].key == usual
    steps = cells(EVALUATED | {"each": {"mode": ["answer_only", "cot"]}})
    assert steps[0].key == usual != steps[1].key


def text(x: int, dtype: str, given: Any) -> Any:
    return x, dtype, given


def test_arguments_of_a_function_of_ones_own_are_as_they_are_given() -> None:
    given = {"x": 1, "dtype": "bf16", "given": {"repeated": {"token": "1"}}}
    assert arguments_of(None, text, given) == given


def test_a_synthetic_stack_is_described_by_its_fields() -> None:
    grid = {
        "measurement": "synthetic.convergence",
        "arguments": {"lengths": [4, 8, 16], "stack": {"Stack": {"heads": 2}}},
    }
    stack = {"stack": sl.synthetic.Stack(heads=2)}
    assert len(cells(grid | {"arguments": grid["arguments"] | stack})) == 1
    assert len(cells(grid | {"each": {"stack.window": [4, 8]}})) == 2
    with pytest.raises(InputError, match="heads"):
        cells(
            grid
            | {"arguments": {"lengths": [4, 8, 16], "stack": {"Stack": {"heads": 3}}}}
        )


def test_a_key_depends_on_the_content_of_the_checkpoint_and_not_on_its_path(
    tmp_path: Path,
) -> None:
    import shutil

    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        shutil.copytree(sl.zoo.folder("tiny-gemma"), folder)
    grid = {"measurement": "path_bound", "arguments": {"prompt": "11 ="}}
    keys = [
        cells(grid | {"each": {"model": [str(name)]}})[0].key
        for name in ("tiny-gemma", *folders)
    ]
    assert len(set(keys)) == 1
    config = folders[1] / "config.json"
    config.write_text(config.read_text() + "\n")
    assert cells(grid | {"each": {"model": [str(folders[1])]}})[0].key != keys[0]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"measurement": "path_bund"}, "path_bound"),
        ({"measurement": "no.module:function"}, "imported"),
        ({"measurements": "path_bound"}, "Did you mean measurement="),
        (
            {"measurement": "path_bound", "arguments": {"model": "tiny-gemma"}},
            "missing a required argument: 'prompt'",
        ),
        (BOUND | {"each": {"attention": ["model", "unlike"]}}, "unlike"),
        (BOUND | {"each": {"prompt": ["a"]}}, "in `arguments` and in `each`"),
        (BOUND | {"each": {"querry": [1]}}, "Did you mean query="),
        (
            BOUND | {"each": {"hooks": [[{"sliding_window": {"windw": 2}}]]}},
            "sliding_window",
        ),
        (BOUND | {"each": {"resume": ["x"]}}, "a study resumes by itself"),
        (BOUND | {"each": {"query": [float("nan")]}}, "whole number"),
        (BOUND | {"each": {"hooks": {"own": [3]}}}, "hooks"),
        (
            BOUND | {"each": {"hooks": {"own": ("blocks.0.hook_out", object())}}},
            "Give a function",
        ),
        (BOUND | {"each": {"query": [1, 1]}}, "twice"),
        (BOUND | {"each": {"query": {1: 2, "1": 3}}}, "label twice"),
        (
            BOUND | {"each": {"dtype": ["float32", "flot32"]}},
            "dtype='flot32' is not a choice",
        ),
        (BOUND | {"each": {"dtype": ["int64"]}}, "dtype='int64' is not a choice"),
        ({"measurement": SQUARE, "each": {"x": ["one"]}}, "whole number"),
        (
            {"measurement": SQUARE, "arguments": {"x": 1}, "each": {"sequence.n": [4]}},
            "nothing to be set in",
        ),
        (
            {
                "measurement": "collapse",
                "arguments": {
                    "model": "tiny-gemma",
                    "sequence": {"repated": {"token": "1"}},
                },
            },
            "repeated",
        ),
        (
            {
                "measurement": "collapse",
                "arguments": {"model": "tiny-gemma", "sequence": {"digits": {"n": 4}}},
            },
            "seed",
        ),
        (BOUND | {"arguments": {"model": "tiny-gema", "prompt": "11 ="}}, "tiny-gemma"),
        (
            BOUND | {"measurement": "jacobian_norms", "each": {"probes": [4]}},
            "probes=.* n_probes=",
        ),
        (
            EVALUATED | {"each": {"mode": ["both"]}},
            "evaluate: mode='both' is .*answer_only",
        ),
        (
            {
                "measurement": "evaluate",
                "arguments": {"model": "tiny-gemma", "task": "cuont", "lengths": [4]},
            },
            "count",
        ),
        (
            {
                "measurement": "synthetic.convergence",
                "arguments": {"stack": {"Stack": {"dpth": 1}}, "lengths": [4]},
            },
            "dpth",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(
    grid: dict[str, Any], words: str
) -> None:
    with pytest.raises(SquashlensError, match=words):
        cells(grid)


def test_a_study_needs_a_store_and_different_names() -> None:
    with pytest.raises(InputError, match="no store"):
        sl.Study({"measurement": SQUARE, "arguments": {"x": 1}})
    one = {"measurement": SQUARE, "arguments": {"x": 1}}
    with pytest.raises(InputError, match="two with one name"):
        cells(one, one)
    assert len(cells(one, one | {"name": "again"})) == 2


def test_every_measurement_is_one_of_a_study_or_says_why_not() -> None:
    # Two write files, and one makes a page.
    registered = {
        name for name in sl.__all__ if hasattr(getattr(sl, name), "__measures__")
    }
    assert registered - {*measurements()} == {"report", "paper", "squash_map"}
    for name in measurements():
        assert callable(function_of(name))
        assert (
            "model" in signature(function_of(name)).parameters
        ) is not name.startswith("synthetic")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    with pytest.raises(
        InputError,
        match="study.yaml' cannot be read as YAML: .*No such file.* Give the name of a YAML file",
    ):
        sl.Study(file, store=tmp_path)
    file.write_text("grids: [{measurement: path_bound\n")
    with pytest.raises(InputError, match="study.yaml.*as YAML: .*line 2"):
        sl.Study(file, store=tmp_path)
    file.write_text(
        f"grids: [{{measurement: '{SQUARE}', each: {{x: {{one: 1, two: 2, one: 3}}}}}}]\n"
    )
    with pytest.raises(InputError, match="'one' stands twice in one mapping"):
        sl.Study(file, store=tmp_path)


def test_a_loaded_model_is_refused_with_what_to_give(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="TransformerBridge.*Give text or a path"):
        sl.Study(
            {
                "measurement": "path_bound",
                "arguments": {"prompt": "11 ="},
                "each": {"model": [tiny]},
            },
            store=tmp_path,
        )
