"""What is said of probe itself: rows that are missing, listeners that failed, and what the observing costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from probe.analysis import cost as own_cost
from probe.analysis import incidents
from probe.analysis.change import Change
from probe.analysis.quantities import course
from probe.analysis.verdict.finding import Cost, Finding
from probe.dashboards.courses import over_run
from probe.dashboards.quantities import field_of, quantity
from probe.dashboards.standing import status_of
from probe.sql import sql
from probe.text import count, percent, rows, seconds, short
from probe.text import missing as unknown

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: probe's own cost, as a share of the step, that it aims to stay under.
COST_TARGET: Final = 0.005


def missing_rows(run: Run) -> list[Finding]:
    """Whether rows were dropped, and of which table."""
    frame = incidents.dropped(run)
    if frame.empty:
        return []
    total = int(frame["count"].sum())
    tables = ", ".join(f"{count(row['count'])} of {row['where']}" for row in rows(frame))
    many = "s were" if total > 1 else " was"
    return [
        Finding(
            "tuning",
            "dropped_rows",
            f"{count(total)} row{many} dropped because the queue was full ({tables}), so sums are too low.",
            change=Change("Record fewer points, or make the queue larger."),
            evidence_sql="select * from incidents where kind = 'dropped_rows'",
            weight=90,
        )
    ]


def trouble(run: Run) -> list[Finding]:
    """Incidents other than dropped rows."""
    frame = incidents.table(run)
    frame = frame[~frame["kind"].isin(["dropped_rows", "budget"])]
    if frame.empty:
        return []
    worst = frame.iloc[0]
    total, off = int(frame["count"].sum()), bool(frame["switched_off"].any())
    text = f"{count(total)} incident{'s' if total > 1 else ''}, most often {worst['kind']} at {worst['where']}: "
    text += short(worst["message"]) + "." + (" A listener was switched off: its rows end there." if off else "")
    return [
        Finding(
            "tuning",
            "incidents",
            text,
            change=Change("See the incidents."),
            evidence_sql="select * from incidents where kind not in ('dropped_rows', 'budget')",
            weight=50 + 30 * off,
        )
    ]


def cost(run: Run) -> list[Finding]:
    """What probe itself took."""
    found = course(run, "own_cost")
    usual = over_run(quantity("own_cost"), found)
    if unknown(usual):
        return []
    frame, worst = own_cost.by_step(run), max(one for one in found.values if not unknown(one))
    frame, first = frame[frame[field_of(quantity("own_cost"))].notna()], own_cost.first_step_ms(run)
    text = f"probe took {percent(usual)} of step time on the training thread of the worst rank"
    hooks, writer = (seconds(frame[key].mean() / 1e3) for key in ("hooks_ms", "writer_cpu_ms"))
    text += (
        f" ({percent(worst)} in the worst step). The mean rank spends {hooks} a step, and its writer thread {writer}."
    )
    text += "" if unknown(first) else f" The first step isn't counted: probe took {seconds(first / 1e3)} of it."
    spec = quantity("own_cost")
    dear = status_of(spec, usual) != "good"  # as its tile judges it
    why = f"The target is {percent(COST_TARGET)}; from {percent(spec['warn'])} on it is worth a change."
    return [
        Finding(
            "tuning" if dear else "fine",
            "own_cost",
            text,
            cost=Cost(share=float(usual)),
            why=why,
            change=Change("Turn off recorders you don't need: probe.start(recorders=['memory']).") if dear else None,
            evidence_sql=sql(
                "select * from scalars where key = 'probe/cost/overhead_ratio' and value >= {warn}",
                warn=spec["warn"],
            ),
            weight=1,
        )
    ]


def left_out(run: Run) -> list[Finding]:
    """What the budget of ``probe.start`` left out, and what remains."""
    frame = incidents.table(run)
    frame = frame[frame["kind"] == "budget"].sort_values("count", ascending=False)
    if frame.empty:
        return []
    points = ", ".join(f"{count(row['count'])} at {row['where']}" for row in rows(frame.head(3)))
    more = f" and {count(len(frame) - 3)} other points" if len(frame) > 3 else ""
    text = f"{count(frame['count'].sum())} rows of inner points were left out to keep the budget: {points}{more}"
    usual = over_run(quantity("own_cost"), course(run, "own_cost"))
    text += "." if unknown(usual) else f"; probe took {percent(usual)} of the time of the steps all the same."
    why = "Counts and times of these points are too low; all else is complete."
    sql = "select * from incidents where kind = 'budget'"
    return [Finding("tuning", "left_out", text, why=why, evidence_sql=sql, weight=6)]
