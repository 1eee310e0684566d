"""Results as tables: pandas DataFrames of the measurements that compare estimates or separators."""

import pandas as pd
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.measure.remedies.search import separator_table
from squashlens.measure.squashing.audit import audit_table
from squashlens.results import provenance


@validated
def table(result: xr.Dataset, *, reference: str | None = None) -> pd.DataFrame:
    """A result of `audit` or `search_separators` as a table, with a row for each estimate, or each separator and
    period.

    Args:
        result: result of `audit` or `search_separators`, also as read by `open_result`.
        reference: estimate with which the estimates of an audit are compared: ``"Jacobian"`` (the default) or
            ``"substitution effect"``.

    Returns:
        DataFrame. For an audit, with the columns `tightness` and `over_jacobian` (medians over the content positions),
        `least` (the smallest tightness; at least 1 for a bound that holds), `raw`, `partial` and `over_null` (rank
        correlations with `reference`), and `cost` (time divided by that of the exact Jacobian). For a search, with
        `separation`, `gain`, `cost`, and `accuracy` if it was measured.

    Raises:
        InputError: a result of another measurement, or `reference` for a search.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> found = sl.audit(model, "110 = 2", estimates=["rollout"], progress=False)
    >>> sl.table(found).index.tolist()
    ['null', 'rollout', 'Jacobian']
    """
    measured = provenance(result).get("call", {}).get("function")
    if reference is not None and measured != "audit":
        raise InputError(
            f"reference= is only for results of audit, and this is a result of {measured}.", "Leave reference= out."
        )
    if measured == "audit":
        return audit_table(result) if reference is None else audit_table(result, reference)
    if measured == "search_separators":
        return separator_table(result)
    raise InputError(
        f"Results of {measured!r} have no table.", "Use result.to_dataframe(), which has all of the result's numbers."
    )
