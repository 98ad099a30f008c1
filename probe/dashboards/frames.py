"""The numbers of a series spec, asked of a run, as frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probe.dashboards import compile as sql

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run


def series(run: Run, spec: Mapping[str, Any], rows: str = "") -> pd.DataFrame:
    """All series of ``spec``, as :func:`probe.dashboards.compile.series` says.

    Args:
        run: The run.
        spec: A series spec.
        rows: An SQL condition on the rows that are looked at, such as ``step between 3 and 7``.

    Returns:
        Columns of ``x`` and ``by`` under their names, y and value (NaN where there is none).
    """
    frame = run.sql(sql.series(spec, rows))
    frame["value"] = frame["value"].astype("Float64").to_numpy(float, na_value=math.nan)
    return frame


def numbers(run: Run, spec: Mapping[str, Any]) -> pd.DataFrame:
    """What a picture of ``spec`` shows.

    Args:
        run: The run.
        spec: A ``live:`` block whose numbers are series.

    Returns:
        The columns of :func:`series`, in order of the axis and of ``by``; with ``share`` also whole, the sum of that
        column at the same place.
    """
    frame = series(run, spec)
    if "share" in spec:
        under = {**spec, "y": spec["share"], "by": None, "reduce": "sum"}
        at = [name for name in series_keys(spec) if name in frame]
        whole = series(run, under).drop(columns="y").rename(columns={"value": "whole"})
        frame = frame.merge(whole, on=at, how="left")
    names = [name for name in frame if name not in ("y", "value", "whole")]
    return frame.sort_values([*names, "y"], kind="stable", ignore_index=True)


def series_keys(spec: Mapping[str, Any]) -> list[str]:
    """The columns of a spec's axis.

    Args:
        spec: A series spec.

    Returns:
        Their names.

    >>> series_keys({"x": "step"}), series_keys({"x": ["role", "phase"]})
    (['step'], ['role', 'phase'])
    """
    x = spec.get("x") or "step"
    return [x] if isinstance(x, str) else list(x)
