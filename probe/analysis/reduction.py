"""How each metric was reduced, and which were reduced by a word that only happens to be inside their name.

``reduce_metrics`` looks for "max", then "min", anywhere in the key. In ``timing/update`` that finds the
"min" of "timing", and the metric shows the smallest value where everybody reads a mean.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pandas as pd

if TYPE_CHECKING:
    from probe.runs.reader import Run


#: The words that stand for a reducer, as verl's rules find them in a name.
_NAMED: Final = {"min": ("min",), "max": ("max",), "sum": ("sum", "total")}


def accidental(key: str, reducer: str) -> bool:
    """Whether ``reducer`` was found inside a word of ``key`` instead of being one.

    >>> accidental("timing/update_actor", "min"), accidental("actor/grad_norm_max", "max")
    (True, False)
    >>> accidental("global_seqlen/minmax_diff", "max"), accidental("reward/summary_quality/mean", "sum")
    (True, True)
    """
    names = _NAMED.get(reducer, ())
    found = [name for name in names if name in key.lower()]
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", key)}
    whole = words & ({*names, *(f"{name}imum" for name in names)} if reducer in ("min", "max") else {*names, "totals"})
    return bool(found) and not whole


def word(key: str, reducer: str) -> str:
    """The word of ``key`` that ``reducer`` was found in.

    >>> word("timing/update_actor", "min"), word("reward/summary_quality/mean", "sum")
    ('timing', 'summary')
    """
    names = _NAMED.get(reducer, (reducer,))
    parts = re.split(r"[^A-Za-z0-9]+", key)
    return next((one for one in parts if any(name in one.lower() for name in names)), key)


def audit(run: Run) -> pd.DataFrame:
    """Every metric key with how it was reduced, the doubtful ones first.

    Returns:
        Key, reducer, chosen_by, calls, values (given to it in total), smallest, largest, nan_count, last
        (result), last_step, token_weighted and sequence_weighted (what these means would have been of it), accidental,
        inside (the word the reducer was found in, else None), differs (whether its values ever differed, so that the
        reducer mattered).
    """
    frame = run.sql(
        """
        select key, reducer, chosen_by, count(*) as calls, sum(count)::bigint as values,
               min(smallest) filter (not isnan(smallest)) as smallest,
               max(largest) filter (not isnan(largest)) as largest, sum(nan_count)::bigint as nan_count,
               arg_max(value, wall_ns) as last, arg_max(step, wall_ns) as last_step,
               arg_max(token_mean, wall_ns) as token_weighted, arg_max(sequence_mean, wall_ns) as sequence_weighted,
               coalesce(bool_or(largest > smallest), false) as differs
        from reductions group by key, reducer, chosen_by
        """
    )
    frame["accidental"] = [
        by == "name" and accidental(key, how)
        for key, how, by in zip(frame["key"], frame["reducer"], frame["chosen_by"], strict=True)
    ]
    frame["inside"] = [
        word(key, how) if wrong else None
        for key, how, wrong in zip(frame["key"], frame["reducer"], frame["accidental"], strict=True)
    ]
    order = frame.assign(doubt=frame["accidental"].astype(int) * 2 + (frame["nan_count"] > 0))
    order = order.sort_values(["doubt", "key", "reducer"], ascending=[False, True, True], kind="stable")
    return order.drop(columns="doubt").reset_index(drop=True)


def spread(run: Run, limit: int = 16) -> pd.DataFrame:
    """What went into the metrics whose reducer matters: smallest, value and largest at the last step each.

    Returns:
        Key, reducer, accidental, step, smallest, largest, value, position (where the value lies between
        smallest = 0 and largest = 1); doubtful keys first, then the widest relative spread; at most
        ``limit`` keys.
    """
    frame = run.sql(
        """
        select key, reducer, chosen_by, step, smallest, largest, value, nan_count from reductions
        where reducer <> 'sum' and count > 1 and smallest is not null and largest > smallest and not isnan(value)
        qualify row_number() over (partition by key order by wall_ns desc, rank) = 1
        """
    )
    if frame.empty:
        return frame.assign(accidental=[], position=[])
    frame["accidental"] = [
        by == "name" and accidental(key, how)
        for key, how, by in zip(frame["key"], frame["reducer"], frame["chosen_by"], strict=True)
    ]
    width = frame["largest"] - frame["smallest"]
    frame["position"] = (frame["value"] - frame["smallest"]) / width
    frame["relative"] = width / frame[["smallest", "largest"]].abs().max(axis=1)
    order = frame.sort_values(["accidental", "relative", "key"], ascending=[False, False, True], kind="stable")
    return order.drop(columns="relative").head(limit).reset_index(drop=True)
