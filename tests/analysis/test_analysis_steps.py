"""Steps on one clock, cost and incidents, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe import dashboards
from probe.analysis import cost, incidents, overview, steps
from probe.figures.panel import draw
from probe.records import Call, Incident, Memory, MicroBatch, Process, Row, Scalar
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
        assert times["slowest"].tolist() == ["rank 1", "rank 0"]
        phase = steps.durations(run).iloc[0]
        assert phase["mean_s"] == pytest.approx((0.060 + 0.040) / 2)  # rank 1 ran it twice in the step
        assert (phase["largest_s"], phase["slowest"], phase["processes"]) == (pytest.approx(0.06), "rank 0", 2)


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


def inside(rows: list[Row]) -> list[Row]:
    """Calls with the ids and paths that their scopes have: each lies in those that enclose it in time."""
    for index, row in enumerate(rows):
        assert isinstance(row, Call)
        row.scope_id = index + 1
        around = [one for one in rows if one is not row and _encloses(one, row)]
        row.scope = "/".join([*(one.name for one in sorted(around, key=lambda one: one.begin_ns)), row.name])
    return rows


def _encloses(outer: Row, inner: Call) -> bool:
    assert isinstance(outer, Call)
    return outer.begin_ns <= inner.begin_ns and outer.time_ns >= inner.time_ns


def test_a_watch_outside_a_phase_is_one_and_no_time_is_in_two(tmp_path: Path) -> None:
    rows = [
        scope("step", "step", 0, 100),
        scope("watch", "generate_sequences", 5, 30, phase="generate"),
        scope("watch", "forward", 10, 20, phase="generate"),
        scope("phase", "update", 40, 90, phase="update"),
        scope("watch", "update", 41, 80, phase="update"),
        scope("phase", "backward", 50, 60, phase="backward"),
        scope("micro_batch", "0", 45, 49, phase="update"),
    ]
    with open_run(tmp_path, {0: inside(rows)}) as run:
        frame = steps.durations(run).set_index("phase")["mean_s"]
        assert frame.to_dict() == pytest.approx({"update": 0.05, "generate": 0.025})
        timeline = steps.timeline(run)
    assert timeline[["name", "phase", "depth"]].to_numpy().tolist() == [
        ["generate_sequences", "generate", 0],
        ["update", "update", 0],
        ["0", "update", 1],
    ]


def test_time_on_padding_is_the_share_of_slots(tmp_path: Path) -> None:
    def ran(rank: int, scope_id: int, index: int, begin_ms: int, end_ms: int, kind: str = "micro_batch") -> Memory:
        return Memory(
            rank=rank, time_ns=clock(rank) + end_ms * MS, host_duration_ns=(end_ms - begin_ms) * MS, edge="leave",
            kind=kind, scope_id=scope_id, parent_id=1 if scope_id > 1 else 0, phase="p", step=0,
            micro_batch=index if kind == "micro_batch" else None,
        )  # fmt: skip

    def cut(rank: int, index: int, tokens: int, width: int | None) -> MicroBatch:
        return MicroBatch(
            rank=rank, time_ns=clock(rank) + MS, scope_id=1, step=0, phase="p", micro_batch=index, batch_id=1,
            micro_batches=2, sequences=4, lengths=[tokens], tokens=tokens, width_tokens=width,
        )  # fmt: skip

    rows: dict[int, list[Row]] = {
        0: [cut(0, 0, 25, 25), cut(0, 1, 50, 25), ran(0, 2, 0, 10, 50), ran(0, 3, 1, 50, 60)],
        1: [cut(1, 0, 100, 25), cut(1, 1, 7, None), ran(1, 2, 0, 10, 20), ran(1, 3, 1, 20, 99)],
    }
    for rank, own in rows.items():
        own.append(ran(rank, 1, 0, 0, 100, "phase"))
    with open_run(tmp_path, rows) as run:
        row = steps.on_padding(run).iloc[0]
        figure = draw(dashboards.panel("padding_time"), run)
    assert row["padding_s"] == pytest.approx((0.75 * 0.04 + 0.5 * 0.01 + 0) / 2)
    assert row["time_s"] == pytest.approx((0.05 + 0.01) / 2)
    assert (row["micro_batches"], row["left_out"]) == (3, 1)
    assert row["ratio"] == pytest.approx(row["padding_s"] / row["time_s"])
    assert list(figure.data[0].y) == pytest.approx([row["padding_s"]])
    assert figure.layout.yaxis.title.text == "estimate, seconds, mean across processes"


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
        assert incidents.dropped(run).to_dict("records") == [{"where": "memory", "count": 7, "processes": 1}]
        assert incidents.over_time(run)["count"].sum() == 10


def test_cost_is_the_mean_over_ranks_and_the_worst(tmp_path: Path) -> None:
    def told(rank: int, key: str, value: float) -> Scalar:
        return Scalar(rank=rank, time_ns=clock(rank), step=0, key=key, value=value, source="probe")

    rows = {
        rank: [
            told(rank, "probe/cost/hooks_ms", 1.0 + rank),
            told(rank, "probe/cost/overhead_ms", 1.0 + rank),
            told(rank, "probe/cost/step_ms", 100.0),
            told(rank, "probe/cost/overhead_ratio", 0.01 * (rank + 1)),
        ]
        for rank in (0, 1)
    }
    with open_run(tmp_path, rows) as run:
        frame = cost.by_step(run).iloc[0]
    assert (frame["hooks_ms"], frame["hooks_ms_largest"]) == (1.5, 2.0)
    assert (frame["own_cost_ratio_mean"], frame["own_cost_ratio"]) == (pytest.approx(0.015), 0.02)


def test_overview_keeps_missing_missing(tmp_path: Path) -> None:
    with open_run(tmp_path, two_ranks()) as run:
        frame = overview.numbers(run).set_index("name")
    assert frame["value"]["step_time"] == pytest.approx((0.12 + 0.05) / 2)
    assert frame["text"]["peak_memory"] == "–"
    assert frame["value"].drop(["step_time", "alerts"]).isna().all()
