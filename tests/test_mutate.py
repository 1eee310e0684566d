"""What `python -m tests.mutate` puts into the code are programs, each with one change."""

import ast
from pathlib import Path

import pytest

from tests.mutate import ROOT, files_for, mutations


@pytest.mark.parametrize("module", ["theory/norms.py", "measure/collapse/mechanism.py"])
def test_a_mutation_is_one_change_of_what_is_computed(module: str) -> None:
    path = ROOT / "squashlens" / module
    before, found = (
        ast.unparse(ast.parse(path.read_text(encoding="utf-8"))).splitlines(),
        [*mutations(path)],
    )
    assert len(found) > 10
    for mutation in found[::5]:
        after = mutation.text().splitlines()
        changed = [
            one for one, other in zip(before, after, strict=True) if one != other
        ]
        assert len(changed) == 1, mutation
        assert not changed[0].lstrip().startswith(("import", "from"))


def test_the_files_for_a_module_are_there_and_those_that_name_it_are_first() -> None:
    found = files_for("squashlens/measure/collapse/mechanism.py")
    assert all((ROOT / path).exists() for path in found)
    assert "collapse_mechanism" in Path(found[1]).read_text(encoding="utf-8")
