"""What interventions change, below the map: numbers of a result of `compare`, and of no other model or prompt."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.maps.given import Interventions, _number

NAME = "=</td><b>\u202esharper"  # of an intervention, which is any text
CHANGES = {"window of 3": sl.hooks.sliding_window(3), NAME: sl.hooks.log_scaling("log", 4)}
PREFIX = "How many ones"


def same(text: str, value: float) -> bool:
    """Whether the page shows this number."""
    return (text == "not measured") if np.isnan(value) else float(text) == float(f"{value:.4g}")


@pytest.fixture(scope="module")
def one(tiny: Any) -> Any:
    sequence = sl.prompts.repeated(tiny, "1", 3, prefix=PREFIX, suffix="=")
    return sl.compare(tiny, sequence, CHANGES, lengths=[2, 3], noise_lengths=2)


@pytest.fixture(scope="module")
def found(tiny: Any) -> Any:
    return sl.squash_map(tiny, f"{PREFIX} 111 =", method="none").result


def rows_of(page: Any, number: int = 0) -> list[list[str]]:
    return (
        page.locator(".sl-changes")
        .nth(number)
        .evaluate(
            "one => [...one.querySelectorAll('tbody tr')].map(row => [...row.children].map(cell => cell.textContent))"
        )
    )


def copied(page: Any) -> list[list[str]]:
    page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    page.get_by_role("button", name="Copy the interventions as CSV").click()
    return list(csv.reader(io.StringIO(page.evaluate("window.copied"))))


@pytest.mark.browser
def test_the_numbers_of_one_sequence(watched: Any, found: Any, one: Any, tmp_path: Path) -> None:
    here = watched()
    page = here.open(sl.squash_map(found, interventions=one).save(tmp_path / "map.html"))
    at = one.sel(length=3)
    expected = [
        at["distance"].sel(layer=6), one["noise_floor"].sel(layer=6, replayed=3), at["distance_y"],
        at["total_variation"] / 2, one["bound"].sel(content=1),
    ]  # fmt: skip
    rows = rows_of(page)
    assert [row[0] for row in rows] == ["as it is", "window of 3", "=</td><b>\\u{202e}sharper"]
    for k, row in enumerate(rows):
        assert len(row) == 1 + len(expected)
        for text, values in zip(row[1:], expected, strict=True):
            assert same(text, float(values[k])), (text, float(values[k]))
    head, *lines = copied(page)
    assert head == ["length", "change", "quantity", "unit", "value", "low", "high"]
    assert len(lines) == 3 * len(expected)
    for k, line in enumerate(lines):
        values = expected[k % len(expected)]
        assert line[1] == ["as it is", "window of 3", f"'{NAME}"][k // len(expected)]
        assert line[3] == values.attrs.get("units", "1")  # of the probability that moves
        assert float(line[4]) == float(values[k // len(expected)])  # in full, and not as it is shown
        assert line[5:] == ["", ""]
    assert here.said == []
    assert page.locator(".sl-map b").count() == 0


def test_a_map_of_a_model_checks_before_it_measures(tiny: Any, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = sl.squash_map(tiny, f"{PREFIX} 11 =", method="none", interventions=one)
    (table,) = shown._data()["changes"]
    assert table["length"] == 2
    assert "path bound of the first content token" not in [column["label"] for column in table["columns"]]
    assert "# interventions= was a result of sl.compare with 'as it is', 'window of 3'" in shown._data()["code"]
    monkeypatch.setattr("squashlens.measure.squashing.map_cells.influence", None)
    with pytest.raises(InputError, match="other prompts"):
        sl.squash_map(tiny, f"{PREFIX} 110 =", interventions=one)


def test_another_model_is_refused(tiny: Any, bridge_of: Any, found: Any, one: Any) -> None:
    ids = [min(int(token), 50) for token in found["token_id"].values]
    other = sl.squash_map(bridge_of("llama"), ids, method="none").result
    with pytest.raises(InputError, match="another model than the map: its fingerprint is"):
        sl.squash_map(other, interventions=one)
    with sl.applied(tiny, sl.hooks.mask_tokens([0])):
        masked = sl.squash_map(tiny, f"{PREFIX} 111 =", method="none").result
    with pytest.raises(InputError, match="its ambient hooks is"):
        sl.squash_map(masked, interventions=one)


def test_other_results_are_refused(found: Any, one: Any) -> None:
    for wrong in (
        found, one.sel(change=["window of 3"]), one.isel(change=0), one[["bound"]],
        one.drop_attrs(deep=True), sl.results.concat({"a": one, "b": one}, "model"),
    ):  # fmt: skip
        with pytest.raises(InputError):
            sl.squash_map(found, interventions=wrong)
    chosen = sl.squash_map(found, interventions=one.sel(change=["as it is", NAME], length=[3]))
    assert [table["changes"] for table in chosen._data()["changes"]] == [["as it is", NAME]]


def test_a_saved_result_and_one_without_prompts(found: Any, one: Any, tmp_path: Path) -> None:
    again = sl.results.open(sl.results.save(one, tmp_path / "one.nc"))
    assert sl.squash_map(found, interventions=again).page() == sl.squash_map(found, interventions=one).page()
    text = one.attrs["provenance"]
    for old, new in (('"form"', '"farm"'), ('"prefix"', '"prifex"'), ('"suffix":[', '"suffix":[null,')):
        damaged = one.copy().assign_attrs(provenance=text.replace(old, new))
        for values in damaged.data_vars.values():
            values.attrs["provenance"] = text.replace(old, new)
        with pytest.raises(InputError):
            Interventions.of(damaged)


def test_what_is_not_finite_is_said() -> None:
    assert [_number(value) for value in (1.5, np.nan, np.inf, -np.inf)] == [1.5, None, "Infinity", "-Infinity"]


@pytest.mark.few(1)
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_table_can_be_read_by_everyone(watched: Any, found: Any, one: Any, scheme: str, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = watched(color_scheme=scheme).open(sl.squash_map(found, interventions=one).save(tmp_path / "map.html"))
    violations = axe.Axe().run(page).response["violations"]
    assert not violations, json.dumps(violations, indent=1)[:3000]
