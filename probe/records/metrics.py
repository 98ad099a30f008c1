"""Rows of metrics: how they were reduced, and as they were logged."""

from __future__ import annotations

from probe.records.row import Row


class Reduction(Row, kw_only=True, tag="reductions"):
    """How one metric of one ``reduce_metrics`` call was reduced, and from what."""

    key: str
    reducer: str  #: "mean", "max", "min", "sum", "weighted_mean"
    chosen_by: str  #: "name" (the documented substring rule), "type" (a Metric) or "weights" (they were given)
    count: int
    smallest: float | None = None
    largest: float | None = None
    nan_count: int = 0
    value: float | None = None  #: None where it isn't a number; NaN is a number
    nan_at: int | None = None  #: place of the first NaN among the values, from 0; None without one, or without order
    outlier_at: int | None = None  #: place of the value with the largest magnitude, where there are at least three
    outlier_share_ratio: float | None = None  #: that magnitude ÷ the sum of all magnitudes
    total: float | None = None  #: sum of the values that aren't NaN
    last: float | None = None  #: the last of the values; None without order
    #: What the values that aren't NaN stand for, and their means by it; None where it isn't known of each of them.
    tokens: float | None = None
    token_mean: float | None = None
    sequences: float | None = None
    sequence_mean: float | None = None
    weights_from: str | None = None  #: "scope" (the micro-batch that they were collected in) or "given" (with them)


class Scalar(Row, kw_only=True, tag="scalars"):
    """One value of one metric, as it was logged."""

    key: str
    value: float  #: NaN and infinities included
    source: str = "user"  #: "user" (through Tracking) or "probe" (the session's own)
