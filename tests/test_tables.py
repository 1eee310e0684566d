"""Tables of results: the right one for each measurement, and a refusal for all others."""

import pytest

import squashlens as sl
from squashlens.errors import InputError
from tests import odd


def test_an_audit_has_a_row_for_each_method() -> None:
    audit = sl.audit(odd.model(), "11010 = 2", estimates=["rollout", "substitution"], n_replacements=2, progress=False)
    table = sl.table(audit)
    assert table.index.tolist() == audit["estimate"].values.tolist()
    assert table["raw"].equals(sl.table(audit, reference="Jacobian")["raw"])
    swapped = sl.table(audit, reference="substitution effect")
    expected = audit["agreement"].sel(reference="substitution effect", way="raw").values
    assert swapped["raw"].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


def test_a_search_has_a_row_for_each_design_and_one_for_none() -> None:
    found = odd.result("search_separators")
    table = sl.table(found)
    assert len(table) == found["separation"].size + 1
    assert table.loc[("none", 0), "separation"] == float(found["separation_none"])


def test_other_results_are_refused() -> None:
    with pytest.raises(InputError, match=r"Results of 'composition' have no table.*to_dataframe"):
        sl.table(odd.result("composition").to_dataset(promote_attrs=True))
    with pytest.raises(InputError, match="reference= is only for results of audit"):
        sl.table(odd.result("search_separators"), reference="Jacobian")
