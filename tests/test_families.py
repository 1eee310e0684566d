"""The table of families is what the tests find, and the command prints it."""

import csv
from pathlib import Path

import pytest

from squashlens.cli import main
from tests import families

ROWS = {
    row["type"]: row for row in csv.DictReader(families.FILE.read_text().splitlines())
}
# One for each way beside attention alone: live attention, a hybrid, latent attention, an unknown bridge, a tower.
DAILY = ("opt", "lfm2", "deepseek_v2", "minimax", "gemma4")
RUN = [kind for kind, row in ROWS.items() if not row["why not"].startswith("not tried")]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in DAILY else pytest.mark.slow) for k in RUN]
)
def test_a_type_does_what_the_table_says(kind: str, tmp_path: Path) -> None:
    assert families.row(kind, tmp_path) == ROWS[kind]


def test_every_type_is_in_the_table() -> None:
    assert {kind: row["class"] for kind, row in ROWS.items()} == families.classes()


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["families"])
    said = capsys.readouterr().out
    assert said.count("works:") == len(ROWS)
    assert (
        "lfm2 (Lfm2ForCausalLM)\n    works: certified, jacobian_norms, collapse" in said
    )
    assert "Block # of Lfm2ForCausalLM has no attention pattern" in said
