"""Which rows a metric must have to be wrong: where none of the new ones is such a row, nothing is asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from probe.analysis.by_step import Needs

if TYPE_CHECKING:
    import pyarrow


def _has_names(reductions: pyarrow.Table) -> bool:
    """Whether any row was reduced by its name, by a reducer that may be there by accident."""
    import pyarrow.compute as pc

    how = pc.unique(pc.filter(reductions["reducer"], pc.equal(reductions["chosen_by"], "name")))
    return not {"min", "max", "sum"}.isdisjoint(how.to_pylist())


def _has_unlike_counts(reductions: pyarrow.Table) -> bool:
    """Whether any key was reduced from unlike many values."""
    counts = reductions.select(["key", "count"]).group_by("key").aggregate([("count", "min"), ("count", "max")])
    return not counts["count_min"].equals(counts["count_max"])


def _has_nan(reductions: pyarrow.Table) -> bool:
    """Whether any reduction was given NaN."""
    import pyarrow.compute as pc

    return bool((pc.max(reductions["nan_count"]).as_py() or 0) > 0)


def _has_logged_nan(scalars: pyarrow.Table) -> bool:
    """Whether NaN was logged."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.is_nan(scalars["value"])).as_py())


#: Of metrics that are reduced by a substring of their names.
NAMES: Final = Needs("reductions", _has_names)
#: Of means of unequal means.
UNLIKE_COUNTS: Final = Needs("reductions", _has_unlike_counts)
#: Of metrics that were given NaN.
NAN: Final = Needs("reductions", _has_nan)
#: Of metrics that were logged as NaN.
LOGGED_NAN: Final = Needs("scalars", _has_logged_nan)
