"""The run in a handful of numbers, each with its course over the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe.analysis import cost, memory, padding_tax, steps, token_balance, words

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`numbers`.
NUMBERS: Final = ("name", "title", "value", "text", "note", "about", "history")


def by_step(run: Run) -> pd.DataFrame:
    """Every step on one row, for charts that set the quantities side by side.

    Returns:
        step, step_s (slowest rank), tokens (valid ones, all ranks), tokens_per_second, peak_bytes,
        over_ranks_ratio, lockstep_ratio, padding_ratio, overhead_ratio; NaN where a step has no such row.
    """
    parts = [
        steps.times(run)[["step", "largest_s"]].rename(columns={"largest_s": "step_s"}),
        _tokens(run),
        memory.by_step(run)[["step", "peak_allocated_bytes"]].rename(columns={"peak_allocated_bytes": "peak_bytes"}),
        token_balance.imbalance(run)[["step", "over_ranks_ratio", "lockstep_ratio"]],
        padding_tax.ratios(run)[["step", "ratio"]].rename(columns={"ratio": "padding_ratio"}),
        cost.by_step(run)[["step", "overhead_ratio"]],
    ]
    frame = pd.DataFrame({"step": sorted({int(step) for part in parts for step in part["step"].dropna()})})
    for part in parts:
        frame = frame.merge(part.dropna(subset=["step"]).astype({"step": "int64"}), on="step", how="left")
    frame.insert(3, "tokens_per_second", frame["tokens"] / frame["step_s"])
    return frame


def numbers(run: Run) -> pd.DataFrame:
    """The tiles of the overview.

    Returns:
        Columns :data:`NUMBERS`, one row a tile: its name, title, value (None when nothing was recorded),
        the value as text, a short note, what it means, and its history (a list, one value a step, NaN for
        unknown).
    """
    frame = by_step(run)
    rows = [
        _time(frame),
        _speed(frame),
        _peak(run, frame),
        _balance(frame),
        _padding(run, frame),
        _cost(frame),
    ]
    return pd.DataFrame(rows, columns=list(NUMBERS))


def _tokens(run: Run) -> pd.DataFrame:
    # A step cuts the same sequences several times (log-probs, then updates): the largest phase counts them
    # once.
    return run.sql(
        """select step, max(tokens) as tokens from (
          select step, phase, sum(tokens)::double as tokens from micro_batches group by all)
        where step is not null group by step"""
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


def _peak(run: Run, frame: pd.DataFrame) -> tuple[Any, ...]:
    best = memory.peaks(run).head(1)
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
    column = frame["over_ranks_ratio"]
    note = f"worst {words.ratio(column.max())}" if column.notna().any() else "no micro-batches"
    about = "Tokens of the fullest rank ÷ mean of the ranks; 1 is even. The middle of all steps."
    return _tile("imbalance", "Rank imbalance", column.median(), words.ratio(column.median()), note, about, column)


def _padding(run: Run, frame: pd.DataFrame) -> tuple[Any, ...]:
    causes, column = padding_tax.by_cause(run), frame["padding_ratio"]
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
