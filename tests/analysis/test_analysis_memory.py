"""Memory: who made a peak, what a phase needs, what a token costs. Numbers are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from probe.analysis import memory
from probe.figures.marks.fit import least_squares
from probe.records import GIB, Memory, MicroBatch, Row
from tests.sample_run import MS, WALL_NS, clock, open_run


def ends(
    scope: int,
    parent: int | None,
    begin_ms: int,
    end_ms: int,
    peak_gib: float,
    *,
    rank: int = 0,
    **stamp: object,
) -> list[Row]:
    """Both ends of one scope; allocated is 1 GiB throughout."""
    stamp = {"kind": "phase", "name": f"s{scope}", **stamp}
    shared = {"rank": rank, "scope_id": scope, "parent_id": parent, "source": "fake", **stamp}
    return [
        Memory(edge="enter", time_ns=clock(rank) + begin_ms * MS, allocated_bytes=GIB, **shared),
        Memory(
            edge="leave",
            time_ns=clock(rank) + end_ms * MS,
            allocated_bytes=GIB,
            peak_allocated_bytes=int(peak_gib * GIB),
            peak_kind="exact",
            host_duration_ns=(end_ms - begin_ms) * MS,
            device_total_bytes=16 * GIB,
            **shared,
        ),
    ]


@pytest.fixture
def run(tmp_path: Path):
    """A step of rank 0 whose second micro-batch makes the peak, and whose "adv" peaks outside its child;
    rank 1 peaks lower."""
    rows = {
        0: [
            *ends(1, None, 0, 100, 8, kind="step", name="step", step=0),
            *ends(2, 1, 1, 50, 8, role="actor", phase="update", step=0),
            *ends(3, 2, 2, 20, 6, role="actor", phase="update", step=0, micro_batch=0, kind="micro_batch"),
            *ends(4, 2, 21, 40, 8, role="actor", phase="update", step=0, micro_batch=1, kind="micro_batch"),
            *ends(5, 1, 51, 90, 5, phase="adv", step=0),
            *ends(6, 5, 52, 60, 3, phase="adv", step=0, kind="watch"),
        ],
        1: ends(1, None, 0, 90, 7, role="actor", phase="update", step=0, rank=1),
    }
    with open_run(tmp_path, rows) as opened:
        yield opened


def test_a_peak_belongs_to_the_innermost_scope_that_has_it(run) -> None:
    frame = memory.peaks(run)
    assert frame["peak_allocated_bytes"].tolist() == [8 * GIB, 5 * GIB]
    top = frame.iloc[0]
    assert (top["role"], top["phase"], top["micro_batch"], top["rank"], top["name"]) == (
        "actor",
        "update",
        1,
        0,
        "s4",
    )
    assert top["headroom_ratio"] == 0.5
    assert pd.isna(frame.iloc[1]["role"])
    assert frame.iloc[1]["name"] == "s5"  # its child peaked lower


def test_an_older_peak_is_nobody_s(tmp_path: Path) -> None:
    """With ``peaks="observe"`` a scope that did not raise the counter only knows "at most"."""
    rows = [*ends(1, None, 0, 10, 7, role="a", step=0), *ends(2, None, 20, 30, 7, role="b", step=1)]
    rows[3].peak_kind = "at_most"  # type: ignore[attr-defined]
    with open_run(tmp_path, {0: rows}) as run:
        assert memory.peaks(run)["role"].tolist() == ["a"]
    rows[1].peak_kind = "at_most"  # type: ignore[attr-defined]
    with open_run(tmp_path / "only", {0: rows}) as run:
        assert memory.peaks(run)["role"].tolist() == ["a", "b"]  # nothing better is known


def test_capacity_and_what_is_non_torchs_come_from_the_samples(tmp_path: Path) -> None:
    rows = ends(1, None, 0, 10, 8, role="a")
    rows[1].device_total_bytes = None  # type: ignore[attr-defined]
    rows[1].peak_reserved_bytes = 10 * GIB  # type: ignore[attr-defined]
    seen = Memory(
        edge="sample",
        time_ns=clock(0),
        source="fake",
        device_total_bytes=20 * GIB,
        device_used_bytes=3 * GIB,
        non_torch_bytes=2 * GIB,
    )
    with open_run(tmp_path, {0: [*rows, seen]}) as run:
        assert memory.peaks(run)["headroom_ratio"].tolist() == [pytest.approx(1 - 12 / 20)]
        frame = memory.timeline(run)
    assert frame[frame["series"] == "device_used"]["value_bytes"].tolist() == [3 * GIB]


def test_by_phase_tells_the_lowest_rank_too(run) -> None:
    frame = memory.by_phase(run)
    update = frame[frame["phase"] == "update"].iloc[0]
    assert (update["peak_allocated_bytes"], update["least_rank_bytes"], update["ranks"]) == (
        8 * GIB,
        7 * GIB,
        2,
    )
    assert update["rank"] == 0


def test_timeline_shows_the_rank_with_the_peak_in_seconds_of_the_run(run) -> None:
    frame = memory.timeline(run)
    assert set(frame["rank"]) == {0}
    top = frame[(frame["series"] == "peak") & (frame["name"] == "s4")].iloc[0]
    assert (top["begin_s"], top["end_s"]) == (0.021, 0.040)  # to the last digit: a second has 1e9 nanoseconds
    assert bool(top["top"])
    assert set(frame["series"]) == {"peak", "allocated"}  # nothing was reserved, and no such line is invented
    assert set(memory.timeline(run, rank=1)["rank"]) == {1}


def test_scopes_that_own_no_peak_are_not_drawn(run) -> None:
    frame = memory.timeline(run)
    assert sorted(frame[frame["series"] == "peak"]["name"]) == ["s3", "s4", "s5", "s6"]


def test_the_largest_of_each_role_is_marked_and_of_what_is_outside_any(tmp_path: Path) -> None:
    rows = [
        row
        for scope, (role, peak) in enumerate([(None, 2), (None, 5), ("a", 3), ("a", 4)])
        for row in ends(scope + 1, None, scope * 10, scope * 10 + 9, peak, role=role)
    ]
    with open_run(tmp_path, {0: rows}) as run:
        frame = memory.timeline(run)
    scopes = frame[frame["series"] == "peak"]
    assert dict(zip(scopes["name"], scopes["top"], strict=True)) == {"s1": False, "s2": True, "s3": False, "s4": True}


def test_a_thinned_timeline_keeps_the_peak(tmp_path: Path) -> None:
    rows = [row for i in range(500) for row in ends(i + 1, None, i * 10, i * 10 + 9, 2 + (i == 321), role="a", step=i)]
    with open_run(tmp_path, {0: rows}) as run:
        frame = memory.timeline(run, points=50)
    scopes = frame[frame["series"] == "peak"]
    assert len(scopes) <= 50
    assert scopes["value_bytes"].max() == 3 * GIB
    assert scopes.loc[scopes["value_bytes"].idxmax(), "step"] == 321
    assert (frame["series"] == "allocated").sum() <= 52


def test_scope_ids_that_a_resumed_run_uses_again_do_not_hide_a_peak(tmp_path: Path) -> None:
    """Scope 2 of the second process is a child of *its* scope 1, not of the first process's."""
    first = ends(1, None, 0, 10, 4, role="a", phase="p", step=0)
    second = [
        *ends(1, None, 1000, 1100, 9, role="a", phase="p", step=1),
        *ends(2, 1, 1010, 1020, 9, role="a", phase="p", step=1),
    ]
    for row in second:
        row.process = "rank-00000.1"
    with open_run(tmp_path, {0: [*first, *second]}) as run:
        frame = run.sql("select step, name, peak from peaks_made order by step")
    assert frame["peak"].tolist() == [4 * GIB, 9 * GIB]
    assert frame["name"].tolist() == ["s1", "s2"]


def formed(index: int, tokens: int, time_ms: int) -> MicroBatch:
    return MicroBatch(
        batch_id=1,
        micro_batches=3,
        sequences=1,
        lengths=[tokens],
        tokens=tokens,
        micro_batch=index,
        step=0,
        phase="p",
        time_ns=clock(0) + time_ms * MS,
    )


def test_peak_over_tokens_and_its_slope(tmp_path: Path) -> None:
    rows: list[Row] = [formed(i, (i + 1) * 100, 0) for i in range(3)]
    for i in range(3):
        stamp = {"role": "a", "phase": "p", "step": 0, "micro_batch": i, "kind": "micro_batch"}
        rows += ends(i + 1, None, 10 + 10 * i, 19 + 10 * i, 2 + (i + 1) * 0.5, **stamp)
    with open_run(tmp_path, {0: rows}) as run:
        frame = memory.by_tokens(run)
    assert frame["tokens"].tolist() == [300, 200, 100]
    assert frame["peak_allocated_bytes"].tolist() == [3.5 * GIB, 3 * GIB, 2.5 * GIB]
    line = least_squares(frame["tokens"].to_numpy(float), frame["peak_allocated_bytes"].to_numpy(float))
    assert line is not None
    assert line == pytest.approx((0.005 * GIB, 2 * GIB, 1))


def test_micro_batches_that_do_not_pair_up_are_left_out(tmp_path: Path) -> None:
    rows = [
        formed(0, 10, 0),
        formed(0, 20, 1),
        *ends(1, None, 2, 3, 2, phase="p", step=0, micro_batch=0, kind="micro_batch"),
    ]
    with open_run(tmp_path, {0: rows}) as run:
        assert memory.by_tokens(run).empty


def test_batches_cut_one_after_the_other_in_a_phase_are_told_apart(tmp_path: Path) -> None:
    """The first is run before the second is cut; micro-batch 2 is in the second alone."""
    rows: list[Row] = []
    for batch, tokens in enumerate(((10, 20), (30, 40, 50))):
        begin = 100 * batch
        for index, one in enumerate(tokens):
            rows.append(formed(index, one, begin))
            rows[-1].scope_id, rows[-1].batch_id = 1, batch  # type: ignore[attr-defined]
        for index, one in enumerate(tokens):
            at = {"phase": "p", "step": 0, "micro_batch": index, "kind": "micro_batch"}
            rows += ends(10 * batch + index + 2, 1, begin + 10 * index + 1, begin + 10 * index + 9, one, **at)
    rows += ends(1, None, 0, 300, 50, phase="p", step=0)
    with open_run(tmp_path, {0: rows}) as run:
        frame = memory.by_tokens(run)
    assert frame["tokens"].tolist() == [50, 40, 30, 20, 10]
    assert (frame["peak_allocated_bytes"] == frame["tokens"] * GIB).all()


def test_ranks_lists_the_highest_first(run) -> None:
    frame = memory.ranks(run)
    assert frame["rank"].tolist() == [0, 1]
    assert frame["label"].tolist() == ["rank 0 (largest peak)", "rank 1"]


def test_nothing_recorded_gives_empty_frames(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: []}) as run:
        for look in (
            memory.peaks,
            memory.by_phase,
            memory.by_tokens,
            memory.timeline,
            memory.ranks,
        ):
            assert look(run).empty
        assert list(memory.timeline(run).columns) == list(memory.TIMELINE)


def test_times_are_wall_clock(run) -> None:
    assert memory.peaks(run).iloc[0]["wall_ns"] == WALL_NS + 40 * MS


def test_of_many_micro_batches_the_largest_peaks_stay_and_the_others_evenly(tmp_path: Path) -> None:
    rows: list[Row] = []
    for index in range(60):
        stamp = {"role": "a", "phase": "p", "step": 0, "micro_batch": index, "kind": "micro_batch"}
        cut = formed(index, index + 1, 10 * index)
        cut.scope_id = 1
        rows += [cut, *ends(index + 2, 1, 10 * index + 1, 10 * index + 9, index, **stamp)]
    rows += ends(1, None, 0, 1000, 60, role="a", phase="p", step=0)
    with open_run(tmp_path, {0: rows}) as run:
        everything, thinned = memory.by_tokens(run), memory.by_tokens(run, points=16)
    assert len(everything) == 60
    assert thinned["tokens"].tolist()[:4] == [60, 59, 58, 57]
    assert thinned["tokens"].tolist()[-1] == 1
    assert len(thinned) <= 16
