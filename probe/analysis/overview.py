"""The run in a handful of numbers, each with its course over the steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from probe import text as words
from probe.analysis import cost, memory, padding_tax, scopes, token_balance

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`numbers`.
NUMBERS: Final = ("name", "title", "value", "text", "note", "about", "history")

#: Columns of :func:`by_step`.
BY_STEP: Final = (
    "step",
    "step_s",
    "tokens",
    "tokens_per_second",
    "peak_bytes",
    "rank_imbalance_ratio",
    "sync_wait_ratio",
    "padding_ratio",
    "overhead_ratio",
)


def by_step(run: Run) -> pd.DataFrame:
    """Every step on one row, for charts that set the quantities side by side.

    Returns:
        Step, step_s (slowest rank), tokens (valid ones, all ranks), tokens_per_second, peak_bytes,
        rank_imbalance_ratio, sync_wait_ratio, padding_ratio, overhead_ratio; NaN where a step has no such row.
    """
    return _Look(run).by_step()


def numbers(run: Run) -> pd.DataFrame:
    """The tiles of the overview.

    Returns:
        Columns :data:`NUMBERS`, one row a tile: its name, title, value (None when nothing was recorded),
        the value as text, a short note, what it means, and its history (a list, one value a step, NaN for
        unknown).
    """
    look = _Look(run)
    frame = look.by_step()
    rows = [
        _time(frame),
        _speed(frame),
        _peak(memory.largest(run, look.scopes.height), frame),
        _balance(frame),
        _padding(padding_tax.by_cause(run, look.ledger), frame),
        _cost(frame),
    ]
    return pd.DataFrame(rows, columns=list(NUMBERS))


class _Look:
    """What each table says, asked once: a run of a thousand ranks has as many files of each.

    All at once, because much of a question to many small files is opening one after the other.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        with ThreadPoolExecutor(thread_name_prefix="probe-overview") as pool:
            scopes_told = pool.submit(_scopes, run)
            frames = [pool.submit(ask, run) for ask in (padding_tax.by_step, token_balance.by_step, cost.by_step)]
        self.scopes = scopes_told.result()
        self.ledger, self._balance, self._cost = (one.result() for one in frames)

    def by_step(self) -> pd.DataFrame:
        parts = [
            *(_known(self.scopes.by_step, name) for name in ("step_s", "peak_bytes")),
            *(_known(self._balance, name) for name in ("tokens", "rank_imbalance_ratio", "sync_wait_ratio")),
            padding_tax.ratios(self._run, self.ledger)[["step", "ratio"]].rename(columns={"ratio": "padding_ratio"}),
            self._cost[["step", "overhead_ratio"]],
        ]
        parts = [part.dropna(subset=["step"]).astype({"step": "int64"}) for part in parts]
        frame = pd.DataFrame({"step": sorted({int(step) for part in parts for step in part["step"]})})
        for part in parts:
            frame = frame.merge(part, on="step", how="left")
        frame["tokens_per_second"] = frame["tokens"] / frame["step_s"]
        return frame[list(BY_STEP)]


def _known(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The steps of which ``name`` is known, as plain numbers."""
    found = frame[["step", name]].dropna()
    kind = "int64" if pd.api.types.is_integer_dtype(found[name]) else "float64"
    return found.astype({name: kind})


class _Scopes(NamedTuple):
    """What scopes tell."""

    by_step: pd.DataFrame  #: step, step_s (as :func:`steps.times` says of the slowest rank), peak_bytes
    height: memory.Height | None  #: of the run


def _scopes(run: Run) -> _Scopes:
    frame = run.sql(
        f"""
        with told as materialized (
          select step, rank, {memory.HEIGHTS},
                 max(host_duration_ns) filter (edge = 'leave' and kind = 'step' and wall_ns is not null) as longest_ns,
                 count(*) filter (edge = 'leave' and kind = 'step' and host_duration_ns is null) as untimed
          from memory group by step, rank
        ), steps as (
          select step, max(any_peak) as any_peak, max(better_peak) as better_peak, max(longest_ns) / 1e9 as step_s
          from told group by step
        )
        select step, step_s, if(better, better_peak, any_peak) as peak_bytes, better, untimed, ranks
        from steps, (select bool_or(better) as better, sum(untimed) as untimed, count(distinct rank) as ranks from told)
        """  # noqa: S608  (our own names)
    )
    measured = int(frame["ranks"].max()) if len(frame) else 0
    highest = frame["peak_bytes"].max()
    height = None if pd.isna(highest) else memory.Height(int(highest), bool(frame["better"].any()))
    found = frame[["step", "step_s", "peak_bytes"]]
    if measured < len(run.ranks) or frame["untimed"].any():
        found = found.drop(columns="step_s").merge(_times(run), on="step", how="outer")
    return _Scopes(found, height)


def _times(run: Run) -> pd.DataFrame:
    """The longest time of each step, where not only the memory rows of steps tell it."""
    told = scopes.told(scopes.resumed(run), "kind = 'step'")
    return run.sql(
        f"""with recursive {told}
        select step, max(end_ns - begin_ns) / 1e9 as step_s from told
        where kind = 'step' and end_ns is not null and step is not null group by step"""  # noqa: S608  (our own names)
    )


def _tile(name: str, title: str, value: Any, text: str, note: str, about: str, history: pd.Series) -> tuple[Any, ...]:
    known = history.astype("Float64").to_numpy(float, na_value=float("nan")).tolist()
    return name, title, None if words.missing(value) else float(value), text, note, about, known


def _time(frame: pd.DataFrame) -> tuple[Any, ...]:
    column = frame["step_s"]
    note = f"slowest {words.seconds(column.max())}" if column.notna().any() else "no steps recorded"
    about = "Host time of one step on its slowest rank; the middle one of all steps."
    return _tile("step_time", "Step time", column.median(), words.seconds(column.median()), note, about, column)


def _speed(frame: pd.DataFrame) -> tuple[Any, ...]:
    column = frame["tokens_per_second"]
    about = "Tokens of the largest phase that cuts micro-batches, over all ranks, by the time of the step."
    note = f"{words.count(frame['tokens'].median())} tokens a step" if column.notna().any() else "no micro-batches"
    text = words.count(column.median())
    return _tile("tokens_per_second", "Tokens per second", column.median(), text, note, about, column)


def _peak(best: pd.DataFrame, frame: pd.DataFrame) -> tuple[Any, ...]:
    about = "The largest memory that any scope of any rank held."
    if best.empty:
        return _tile("peak_memory", "Peak memory", None, words.UNKNOWN, "no memory rows", about, frame["peak_bytes"])
    row = best.iloc[0].to_dict()
    if row["source"] == "process_rss":
        note, about = "process RSS", about + " Without an accelerator that is the process's own RSS."
    elif words.missing(row["headroom_ratio"]):
        note = "capacity not known"
    else:
        note = f"{words.percent(row['headroom_ratio'])} of the device left"
    value = row["peak_allocated_bytes"]
    text = words.size(value)
    return _tile("peak_memory", "Peak memory", value, text, note, about, frame["peak_bytes"])


def _balance(frame: pd.DataFrame) -> tuple[Any, ...]:
    column = frame["rank_imbalance_ratio"]
    note = f"worst {words.ratio(column.max())}" if column.notna().any() else "no micro-batches"
    about = "Tokens of the fullest rank ÷ mean of the ranks; 1 is even. The middle of all steps."
    return _tile("imbalance", "Rank imbalance", column.median(), words.ratio(column.median()), note, about, column)


def _padding(causes: pd.DataFrame, frame: pd.DataFrame) -> tuple[Any, ...]:
    column = frame["padding_ratio"]
    value = causes["ratio"].sum() if column.notna().any() else None
    note = f"mostly {causes['cause'][0].replace('_', ' ')}" if len(causes) else "no padding recorded"
    about = "Share of all token slots of the batches that hold padding."
    return _tile("padding_tax", "Padding tax", value, words.percent(value), note, about, column)


def _cost(frame: pd.DataFrame) -> tuple[Any, ...]:
    column = frame["overhead_ratio"]
    note = f"worst step {words.percent(column.max())}" if column.notna().any() else "not measured"
    about = "Time that probe's hooks took on the training thread, as a share of the step; measured by itself."
    text = words.percent(column.mean())
    return _tile("cost", "Cost of probe", column.mean(), text, note, about, column)
