"""Steps on one clock, cost and incidents, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.analysis import cost, incidents, overview, steps
from probe.records import Call, Incident, Memory, Process, Row, Scalar
from tests.sample_run import MS, WALL_NS, clock, open_run


def scope(
    kind: str,
    name: str,
    begin_ms: int,
    end_ms: int,
    *,
    rank: int = 0,
    step: int = 0,
    phase: str | None = None,
) -> Call:
    begin, end = clock(rank) + begin_ms * MS, clock(rank) + end_ms * MS
    return Call(
        rank=rank,
        time_ns=end,
        step=step,
        phase=phase,
        point=f"scope.{kind}",
        name=name,
        begin_ns=begin,
        duration_ns=end - begin,
    )


def two_ranks() -> dict[int, list[Row]]:
    return {
        0: [
            scope("step", "step", 0, 100),
            scope("phase", "rollout", 0, 60, phase="rollout"),
            scope("step", "step", 100, 150, step=1),
        ],
        1: [
            scope("step", "step", 20, 140, rank=1),
            scope("phase", "rollout", 20, 50, rank=1, phase="rollout"),
            scope("phase", "rollout", 60, 70, rank=1, phase="rollout"),
            scope("micro_batch", "micro_batch 0", 25, 30, rank=1, phase="rollout"),
        ],
    }


def test_times_and_durations(tmp_path: Path) -> None:
    with open_run(tmp_path, two_ranks()) as run:
        times = steps.times(run)
        assert times["largest_s"].tolist() == pytest.approx([0.12, 0.05])
        assert times["mean_s"].tolist() == pytest.approx([0.11, 0.05])
        assert times["slowest"].tolist() == [1, 0]
        phase = steps.durations(run).iloc[0]
        assert phase["mean_s"] == pytest.approx((0.060 + 0.040) / 2)  # rank 1 ran it twice in the step
        assert (phase["largest_s"], phase["slowest"], phase["ranks"]) == (pytest.approx(0.06), 0, 2)


def test_timeline_sets_ranks_on_one_clock(tmp_path: Path) -> None:
    late = Process(rank=1, time_ns=clock(1), wall_ns=WALL_NS + 500 * MS, host="b", world_size=2)
    with open_run(tmp_path, two_ranks(), processes={1: late}) as run:
        frame = steps.timeline(run)
    assert frame["step"].unique().tolist() == [0]  # the slowest
    assert frame[frame["rank"] == 0]["begin_s"].tolist() == pytest.approx([0])
    assert frame[(frame["rank"] == 1) & (frame["depth"] == 0)]["begin_s"].tolist() == pytest.approx([0.52, 0.56])
    assert frame[frame["depth"] == 1]["name"].tolist() == ["micro_batch 0"]


def test_choices_start_with_the_slowest_step(tmp_path: Path) -> None:
    with open_run(tmp_path, two_ranks()) as run:
        assert steps.choices(run)["label"].tolist() == ["step 0 · 0.12 s (slowest)", "step 1 · 0.05 s"]


def test_memory_rows_tell_the_time_where_calls_are_not_recorded(tmp_path: Path) -> None:
    row = Memory(
        time_ns=clock(0) + 30 * MS,
        edge="leave",
        kind="phase",
        name="p",
        phase="p",
        step=4,
        host_duration_ns=20 * MS,
    )
    step = Memory(time_ns=clock(0) + 40 * MS, edge="leave", kind="step", name="step", step=4, host_duration_ns=40 * MS)
    with open_run(tmp_path, {0: [row, step]}) as run:
        assert steps.durations(run)["mean_s"].tolist() == pytest.approx([0.02])
        assert steps.timeline(run)["begin_s"].tolist() == pytest.approx([0.01])


def test_incidents_are_folded_and_listeners_count_once_each(tmp_path: Path) -> None:
    shared = {"kind": "listener", "where": "p", "message": "boom"}
    rows: list[Row] = [
        Incident(time_ns=clock(0) + i, step=i, count=i + 1, switched_off=i == 2, **shared) for i in range(3)
    ]
    rows += [Incident(time_ns=clock(0), kind="dropped_rows", where="memory", message="m", count=7)]
    with open_run(tmp_path, {0: rows}) as run:
        frame = incidents.table(run).set_index("kind")
        assert frame["count"].to_dict() == {"dropped_rows": 7, "listener": 3}
        assert bool(frame["switched_off"]["listener"])
        assert (frame["first_step"]["listener"], frame["last_step"]["listener"]) == (0, 2)
        assert incidents.dropped(run).to_dict("records") == [{"where": "memory", "count": 7, "ranks": 1}]
        assert incidents.over_time(run)["count"].sum() == 10


def test_cost_is_the_mean_over_ranks_and_the_worst(tmp_path: Path) -> None:
    def told(rank: int, key: str, value: float) -> Scalar:
        return Scalar(rank=rank, time_ns=clock(rank), step=0, key=key, value=value, source="probe")

    rows = {
        rank: [
            told(rank, "probe/cost/hooks_ms", 1.0 + rank),
            told(rank, "probe/cost/overhead_ratio", 0.01 * (rank + 1)),
        ]
        for rank in (0, 1)
    }
    with open_run(tmp_path, rows) as run:
        frame = cost.by_step(run).iloc[0]
    assert (frame["hooks_ms"], frame["hooks_ms_largest"]) == (1.5, 2.0)
    assert (frame["overhead_ratio"], frame["overhead_ratio_largest"]) == (pytest.approx(0.015), 0.02)


def test_overview_keeps_missing_missing(tmp_path: Path) -> None:
    with open_run(tmp_path, two_ranks()) as run:
        frame = overview.numbers(run).set_index("name")
    assert frame["value"]["step_time"] == pytest.approx((0.12 + 0.05) / 2)
    assert frame["text"]["peak_memory"] == "—"
    assert frame["value"].drop("step_time").isna().all()
