"""Memory: what made the largest peak, how much is left, and which ranks hold unlike amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.analysis import memory
from probe.analysis.change import Change
from probe.analysis.framework_settings import number, setting
from probe.analysis.quantities import course
from probe.analysis.query import literal
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import Cost, Finding, Since, Where
from probe.dashboards.courses import over_run
from probe.dashboards.quantities import quantity
from probe.sql import sql
from probe.text import at, count, percent, place, rows, size, whole
from probe.text import memory as memory_of
from probe.text import missing as unknown

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Less of the device free than this at the largest peak is worth a change.
TIGHT_HEADROOM: Final = 0.08
#: Ranks whose peaks differ by this share of the device, or of the peak where its size isn't known, are told.
UNEQUAL: Final = 0.1


def peak(run: Run) -> list[Finding]:
    """Which scope made the largest memory peak, on which rank, and what headroom was left."""
    frame = memory.largest(run)
    if frame.empty:
        return []
    row = rows(frame)[0]
    high = over_run(quantity("peak_memory"), course(run, "peak_memory"))
    high = row["peak_allocated_bytes"] if unknown(high) else high  # there is no step yet
    text = (
        f"The largest peak of {memory_of(row['source'])} was {at(row['peak_kind'])}{size(high)}, made by {place(row)}"
    )
    batch = _batch_of(run, row)
    text += f" ({_said(batch)})." if batch else "."
    where, since = Where.of(row), Since(whole(row["step"]), whole(row["wall_ns"]))
    here = facts.at(where, "step", "process", "phase", "micro_batch")
    evidence = sql(
        """select * from memory where edge = 'leave' and {here}
        and peak_allocated_bytes >= {peak_allocated_bytes}""",
        here=here,
        peak_allocated_bytes=int(row["peak_allocated_bytes"]),
    )
    if row["source"] == "process_rss" or unknown(row["headroom_ratio"]):
        why = "The device's capacity isn't known."
        if row["source"] == "process_rss":
            why = "No accelerator was used: this is the process's resident set, not the memory of a device."
        cost = Cost(bytes=whole(high))
        return [
            Finding(
                "fine", "memory_peak", text, "memory", where, since, cost, why=why, evidence_sql=evidence, weight=40
            )
        ]
    left = float(row["headroom_ratio"])
    device = f"the device's {size(row['device_total_bytes'])}"
    if left >= 0:
        text += f" {percent(left)} of {device} was left."
    else:  # peaks of several moments
        text += f" With what else was in use, each at its largest, that is {percent(-left)} more than {device}."
    tight = left < TIGHT_HEADROOM
    return [
        Finding(
            "tuning" if tight else "fine",
            "tight_memory" if tight else "memory_peak",
            text,
            topic="memory",
            where=where,
            since=since,
            cost=Cost(bytes=whole(high), share=1 - left),
            evidence_sql=sql(
                "{evidence} and peak_reserved_bytes > {most} * device_total_bytes",
                evidence=evidence,
                most=1 - TIGHT_HEADROOM,
            )
            if tight
            else evidence,
            change=_smaller(run, batch) if tight else None,
            weight=80,
        )
    ]


def _smaller(run: Run, batch: dict[str, int]) -> Change:
    """What takes a peak down: a lower cap, or shorter sequences where one fills its micro-batch alone."""
    if batch and batch["sequences"] == 1:  # a lower cap would refuse it
        return Change(
            "Shorten the longest sequences: this one is a micro-batch by itself, which no lower cap makes smaller."
        )
    name, now = setting(run, "micro_batch_tokens")
    cap = number(now)
    value = None if cap is None else max(batch.get("longest", 0), int(cap * 0.75))
    return Change("Lower the number of tokens that a micro-batch may have.", name, value, cap)


def unequal(run: Run) -> list[Finding]:
    """Whether ranks peak at clearly unlike heights in one phase."""
    frame = memory.by_phase(run)
    frame = frame[(frame["ranks"] > 1) & (frame["source"] != "process_rss")]
    if frame.empty:
        return []
    gap = frame["peak_allocated_bytes"] - frame["least_rank_bytes"]
    row = rows(frame[gap == gap.max()])[0]
    difference = int(row["peak_allocated_bytes"] - row["least_rank_bytes"])
    of = row["peak_allocated_bytes"] if unknown(row["device_total_bytes"]) else row["device_total_bytes"]
    share = difference / of
    if share < UNEQUAL:
        return []
    where = place({"role": row["role"], "phase": row["phase"], "name": row["name"]})
    text = (
        f"Ranks peak unequally in {where}: {size(row['peak_allocated_bytes'])} on rank {row['rank']},"
        f" {size(row['least_rank_bytes'])} on the lowest."
    )
    return [
        Finding(
            "tuning",
            "unequal_memory",
            text,
            topic="memory",
            where=Where.of(row),
            cost=Cost(bytes=difference, share=share),
            change=Change("Balance tokens across ranks, or look at what only that rank holds."),
            evidence_sql=sql(
                """select * from memory where edge = 'leave' and rank = {rank}
                and phase is not distinct from {phase}
                and peak_allocated_bytes > {least_rank_bytes}""",
                rank=whole(row["rank"]),
                phase=literal(None if unknown(row["phase"]) else row["phase"]),
                least_rank_bytes=int(row["least_rank_bytes"] + UNEQUAL * of),
            ),
            weight=30 * share,
        )
    ]


def _batch_of(run: Run, row: dict[str, Any]) -> dict[str, int]:
    """Tokens, sequences and longest of the micro-batch that made a peak; empty where they aren't known."""
    if unknown(row["micro_batch"]):
        return {}
    frame = memory.by_tokens(run, rank=row["rank"])
    here = frame[(frame["rank"] == row["rank"]) & (frame["peak_allocated_bytes"] == row["peak_allocated_bytes"])]
    if here.empty:
        return {}
    one = here.iloc[0]
    return {key: int(one[key]) for key in ("tokens", "sequences", "longest")}


def _said(batch: dict[str, int]) -> str:
    many = "s" if batch["sequences"] != 1 else ""
    tokens, sequences, longest = (count(batch[key]) for key in ("tokens", "sequences", "longest"))
    return f"{tokens} tokens in {sequences} sequence{many}, longest {longest}"
