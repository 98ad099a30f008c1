"""What each step of a whole run says, asked by SQL: what a page needs where the live tables had to forget rows.

A live table is bounded, so that of a long run many steps are left out of it. A chart over steps is made of all of them
all the same: a page that sees that rows were left out asks for the series of its charts, which are worked out from the
rows at rest by the very specs that it reads itself; and for the rows of a step that was chosen and isn't there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.dashboards import compile as made_sql
from probe.dashboards.columns import Table
from probe.dashboards.spec import SERIES, check_series, listed
from probe.errors import InputError
from probe.live.arrow import factorized, filled
from probe.live.tables import Words
from probe.runs import views
from probe.runs.snapshot import Snapshot
from probe.sql import literal, sql

#: The most series of a chart, as in the browser, and the most steps: a longer run keeps what the live tables have.
MOST_SERIES: Final = 24
MOST_STEPS: Final = 50_000

#: Bytes of a number as it is sent.
WIRE: Final = np.dtype("<f8")


class Wish(NamedTuple):
    """What a page asks for.

    Attributes:
        key: The page's own name for it.
        spec: A series spec over steps; None asks when each step began and ended.
        who: "rank 3", or the name of a process, whose rows alone count; "" for all.
    """

    key: str
    spec: Mapping[str, Any] | None
    who: str = ""


class History(NamedTuple):
    """The answer.

    Attributes:
        key: Of the wish.
        until: The last step that it has; newer ones are in the live tables.
        series: Of each the place of its ``y``, and the values of ``by``, words as codes.
        more: How many series were left out.
        values: Shape ``(2 + len(series), steps)``: the steps, the largest of all series, and each series; NaN where
            there is no value. Of the steps' times: the steps, and begin and end in seconds.
    """

    key: str
    until: int
    series: list[list[float]]
    more: int
    values: npt.NDArray[np.float64]

    def head(self, buffer: int) -> dict[str, Any]:
        """What stands in the message, with the number of the buffer that has :meth:`data`."""
        told = {"key": self.key, "until": self.until, "series": self.series, "more": self.more}
        return {**told, "n": self.values.shape[1], "buffer": buffer}

    def data(self) -> bytes:
        """The values, row after row."""
        return np.ascontiguousarray(self.values, dtype=WIRE).tobytes()


def wish_of(given: Any) -> Wish | None:
    """What a page says that it wants, checked: nothing of it becomes SQL that isn't a known column or a quoted text.

    Args:
        given: As it came.

    Returns:
        The wish; None where it is none.
    """
    if (
        not isinstance(given, dict)
        or not isinstance(given.get("key"), str)
        or not isinstance(given.get("who", ""), str)
    ):
        return None
    if given.get("spec") is None:
        return Wish(given["key"], None)
    try:
        return Wish(given["key"], _checked(given["spec"]), given.get("who", ""))
    except (InputError, TypeError, AttributeError, KeyError):
        return None


def _checked(spec: Any) -> dict[str, Any]:
    known = {name: value for name, value in spec.items() if name in SERIES and value is not None}
    if "divide" in known:
        known["divide"] = _checked(known["divide"])
    check_series({**known, "x": "step"}, "history")
    return known | {"x": "step"}


def missing(wish: Wish) -> History:
    """The answer where there is none, so that nobody waits for it."""
    return History(wish.key, -1, [], 0, np.empty((2, 0)))


def read(
    snapshot: Snapshot, wish: Wish, tables: Mapping[str, Table], words: Words, until: int, start_ns: int
) -> History:
    """The answer to a wish, from all rows of the run.

    Args:
        snapshot: Of the run.
        wish: What is asked for.
        tables: The live tables' declarations.
        words: The texts of the live tables, which get those that are new.
        until: The last step that counts.
        start_ns: Wall-clock time of second 0, nanoseconds since the epoch.

    Returns:
        The answer, without steps where there are too many.
    """
    if wish.spec is None:
        return _times(snapshot, wish, until, start_ns)
    who = sql("who(rank, process) = {who}", who=literal(wish.who)) if wish.who else ""
    text = sql(
        "select * from ({found}) where step is not null and step <= {until}",
        found=made_sql.series(wish.spec, who),
        until=until,
    )
    told: Any = snapshot.answer(text, None)  # no frame: the process that asks may never have loaded pandas
    values = filled(told["value"], math.nan, float)
    steps, at = np.unique(filled(told["step"], -1, np.int64), return_inverse=True)
    if len(steps) > MOST_STEPS:
        return missing(wish)
    names = [str(one) for one in listed(wish.spec.get("y"))[: 1 if wish.spec.get("reduce") == "ratio" else None]] or [
        "rows"
    ]
    ys, texts = factorized(told["y"])
    keys = [np.array([*map(names.index, texts), -1], np.float64)[ys]]
    keys += [_values(told[one], tables[str(wish.spec["table"])], one, words) for one in listed(wish.spec.get("by"))]
    series, which = np.unique(np.stack(keys), axis=1, return_inverse=True)
    which = which.reshape(-1)
    made = np.full((2 + min(series.shape[1], MOST_SERIES), len(steps)), math.nan)
    made[0] = steps
    np.fmax.at(made[1], at, values)
    here = which < MOST_SERIES
    made[2 + which[here], at[here]] = values[here]
    more = max(series.shape[1] - MOST_SERIES, 0)
    return History(wish.key, until, series.T[:MOST_SERIES].tolist(), more, made)


def _values(column: Any, table: Table, name: str, words: Words) -> npt.NDArray[np.float64]:
    """The values of a column as the live table has them: of a text its code, −1 where there is none."""
    if name not in table.words:
        return filled(column, -1.0, float)
    numbers, texts = factorized(column)
    return np.array([*words.codes(texts), -1], np.float64)[numbers]


def _times(snapshot: Snapshot, wish: Wish, until: int, start_ns: int) -> History:
    text = sql(
        "select step, begin_ns, end_ns from ({steps}) where step <= {until} order by step",
        steps=views.query("steps"),
        until=until,
    )
    told: Any = snapshot.answer(text, None)
    if len(told) > MOST_STEPS:
        return missing(wish)
    step, begin_ns, end_ns = (filled(told[one], -1, np.int64) for one in ("step", "begin_ns", "end_ns"))
    seconds = [(one - start_ns) / 1e9 for one in (begin_ns, end_ns)]
    return History(wish.key, until, [], 0, np.stack([step.astype(np.float64), *seconds]))
