"""The Perfetto trace, read back with Perfetto's own definitions, holds the run's rows where they happened."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis import memory
from probe.errors import InputError, RunError, RunNotFoundError
from probe.exporting import trace_wire as wire
from probe.exporting.perfetto import export_perfetto
from probe.records import Call, Incident, Memory, MicroBatch, Process, Row, Scalar
from probe.runs.reader import Run
from tests.exporting.trace_reader import Read, Slice, read
from tests.live.live_run import append
from tests.live.nested_run import Teller, random_rows
from tests.sample_run import MS, WALL_NS, clock, process, sample_rows, write_run

SLICES = "steps, phases and calls"


def export(rows: dict[int, list[Row]], place: Path, **told: object) -> Read:
    write_run(place / "run", rows, **told)
    export_perfetto(place / "run", place / "trace.pftrace")
    return read(place / "trace.pftrace")


def call(begin: int, duration: int, name: str = "work", point: str = "a.b", **fields: object) -> Call:
    """A call by nanoseconds since the run began, on rank 0."""
    at = clock(0) + begin
    return Call(time_ns=at + duration, point=point, name=name, begin_ns=at, duration_ns=duration, **fields)


def spans(slices: list[Slice]) -> list[tuple[str, int, int, int]]:
    """Name, begin, duration and depth, from the run's beginning."""
    return [(one.name, one.begin - WALL_NS, one.end - one.begin, one.depth) for one in slices]


# ---------------------------------------------------------------------------------------------- the whole of a run


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Read]:
    place = tmp_path_factory.mktemp("sample")
    return place / "run", export(sample_rows(ranks=3, steps=4), place)


def test_every_call_is_a_slice_at_its_time(sample: tuple[Path, Read]) -> None:
    path, trace = sample
    with Run(path) as run:
        calls = run.sql(
            "select rank, wall_ns - time_ns + begin_ns as begin, duration_ns as duration, "
            "case point when 'scope.step' then name || ' ' || step "
            "when 'scope.micro_batch' then 'micro-batch ' || micro_batch else name end as name from calls"
        )
    expected = Counter(
        (f"rank {row.rank}: node-0, cuda:0, pid {100 + row.rank}", row.name, row.begin, row.begin + row.duration)
        for row in calls.itertuples()
    )
    assert Counter((one.process, one.name, one.begin, one.end) for one in trace.slices) == expected
    assert {one.track for one in trace.slices} == {SLICES}, "everything nests"


def test_slices_nest_as_the_scopes_did(sample: tuple[Path, Read]) -> None:
    depths = {"step": 0, "phase": 1, "micro_batch": 2}
    found = {(one.category, one.depth) for one in sample[1].slices}
    assert found == set(depths.items())


def test_memory_counters_are_the_rows(sample: tuple[Path, Read]) -> None:
    path, trace = sample
    columns = {
        "allocated, cuda:0": "allocated_bytes",
        "reserved, cuda:0": "reserved_bytes",
        "device used by all processes, cuda:0": "device_used_bytes",
        "process memory (RSS)": "process_rss_bytes",
    }
    with Run(path) as run:
        for (process_name, name), values in trace.counters.items():
            if name in columns:
                column = columns[name]
                rank = int(process_name.split(":")[0].removeprefix("rank "))
                rows = run.sql(
                    f"select wall_ns, {column} as value from memory where rank = ? and {column} is not null", [rank]
                )
                assert sorted(values) == sorted(zip(rows["wall_ns"].tolist(), rows["value"].tolist(), strict=True))
    told = {name for _, name in trace.counters}
    assert told == {*columns, "tokens of the running micro-batch", "tokens of the batch that was cut"}
    assert {trace.units[name] for name in columns} == {str(wire.UNIT_BYTES)}
    assert trace.units["tokens of the running micro-batch"] == "tokens"


def test_a_micro_batch_tells_its_tokens_and_its_peak(sample: tuple[Path, Read]) -> None:
    path, trace = sample
    with Run(path) as run:
        peaks = run.sql("select peak_allocated_bytes as p from memory where edge = 'leave' and kind = 'micro_batch'")
        tokens = run.sql("select tokens from micro_batches")
    found = [one for one in trace.slices if one.category == "micro_batch"]
    assert sorted(one.arguments["tokens"] for one in found) == sorted(tokens["tokens"].tolist())
    assert sorted(one.arguments["peak_allocated_bytes"] for one in found) == sorted(peaks["p"].tolist())
    running = trace.counters[found[0].process, "tokens of the running micro-batch"]
    for one in found:
        if one.process == found[0].process:
            assert (one.begin, one.arguments["tokens"]) in running
            assert (one.end, 0) in running


def test_batches_that_were_cut_are_counted_whole(sample: tuple[Path, Read]) -> None:
    path, trace = sample
    with Run(path) as run:
        total = int(run.micro_batches["tokens"].sum())
    cut = [value for (_, name), values in trace.counters.items() if "was cut" in name for _, value in values]
    assert sum(cut) == total


def test_incidents_are_instants(sample: tuple[Path, Read]) -> None:
    first, second = sorted(sample[1].instants, key=lambda one: one.name)
    assert first.name == "backend: mlflow"
    assert first.category == "incident"
    assert first.arguments == {
        "message": "log failed: connection refused",
        "count": 3,
        "step": 4,
        "switched_off": False,
    }
    assert second.name == "dropped_rows: memory"


def test_the_clock_is_that_of_the_day(sample: tuple[Path, Read]) -> None:
    trace = sample[1]
    assert trace.clocks[wire.BOOTTIME] == trace.clocks[wire.REALTIME]
    assert all(WALL_NS < one.begin < WALL_NS + 10**11 for one in trace.slices)


def test_ranks_stand_on_one_timeline(tmp_path: Path) -> None:
    """Monotonic clocks that are hours apart; the same moment by the wall clock."""
    rows = {
        rank: [
            Call(
                rank=rank, time_ns=clock(rank) + 30, point="scope.step", name="step", step=0,
                begin_ns=clock(rank) + 10, duration_ns=20,
            )
        ]
        for rank in range(2)
    }  # fmt: skip
    assert spans(export(rows, tmp_path).slices) == [("step 0", 10, 20, 0), ("step 0", 10, 20, 0)]


# ------------------------------------------------------------------------------------------------- nesting


def test_equal_times_nest_the_outer_scope_outside(tmp_path: Path) -> None:
    """Written from the inside out, as scopes end; all begin at once and two end at once."""
    rows = [
        call(0, 10, "inner", scope_id=3),
        call(0, 20, "phase", "scope.phase", scope_id=2),
        call(0, 20, "step", "scope.step", scope_id=1),
    ]
    found = spans(export({0: rows}, tmp_path).slices)
    assert found == [("step", 0, 20, 0), ("phase", 0, 20, 1), ("inner", 0, 10, 2)]


def test_what_ends_where_the_next_begins_lies_beside_it(tmp_path: Path) -> None:
    rows = [call(0, 10, "a"), call(10, 0, "nothing"), call(10, 5, "b")]
    assert spans(export({0: rows}, tmp_path).slices) == [("a", 0, 10, 0), ("b", 10, 5, 0), ("nothing", 10, 0, 1)]


def test_threads_that_overlap_have_tracks_of_their_own(tmp_path: Path) -> None:
    trace = export({0: [call(0, 10, "a"), call(5, 10, "b"), call(6, 2, "in b or a")]}, tmp_path)
    tracks = {one.name: one.track for one in trace.slices}
    assert tracks == {"a": SLICES, "b": f"{SLICES}, overlapping (2)", "in b or a": SLICES}
    assert Counter((name, d) for name, _, d, _ in spans(trace.slices)) == {
        ("a", 10): 1,
        ("b", 10): 1,
        ("in b or a", 2): 1,
    }


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40))
@settings(deadline=None, max_examples=10)
def test_any_intervals_come_back_whole(
    tmp_path_factory: pytest.TempPathFactory, intervals: list[tuple[int, int]]
) -> None:
    rows = [call(begin, duration, f"{i}") for i, (begin, duration) in enumerate(intervals)]
    trace = export({0: list(rows)}, tmp_path_factory.mktemp("any"))
    found = sorted((int(name), begin, duration) for name, begin, duration, _ in spans(trace.slices))
    assert found == [(i, begin, duration) for i, (begin, duration) in enumerate(intervals)]


# ----------------------------------------------------------------------------------- which batch a micro-batch was of


def with_calls(rows: list[Row]) -> list[Row]:
    """What the recorder of calls tells beside that of memory: each scope that ended."""
    made: list[Row] = []
    for row in rows:
        made.append(row)
        if isinstance(row, Memory) and row.edge == "leave":
            where = {name: getattr(row, name) for name in ("rank", "step", "role", "phase", "micro_batch", "scope")}
            begin, point = row.time_ns - row.host_duration_ns, f"scope.{row.kind}"
            timed = {"time_ns": row.time_ns, "begin_ns": begin, "duration_ns": row.host_duration_ns}
            made.append(Call(point=point, name=row.name, scope_id=row.scope_id, **where, **timed))
    return made


def micro_batches(trace: Read) -> list[Slice]:
    """Those that ran, by rank and time."""
    found = [one for one in trace.slices if one.category == "micro_batch"]
    return sorted(found, key=lambda one: (one.process, one.begin))


def tokens(trace: Read) -> list[int | None]:
    return [one.arguments.get("tokens") for one in micro_batches(trace)]


def assert_as_by_tokens(path: Path, trace: Read) -> None:
    with Run(path) as run:
        frame = memory.by_tokens(run)
    names = ("step", "micro_batch", "tokens")
    expected = Counter(zip(*(frame[name].tolist() for name in ("rank", *names)), strict=True))
    found = [one for one in micro_batches(trace) if one.arguments.get("tokens", 0) > 0]
    ranks = [int(one.process.split(":")[0].removeprefix("rank ")) for one in found]
    told = [(rank, *(one.arguments[name] for name in names)) for rank, one in zip(ranks, found, strict=True)]
    assert Counter(told) == expected


def test_tokens_are_those_of_the_analysis_where_a_phase_cuts_two_batches(tmp_path: Path) -> None:
    rows: dict[int, list[Row]] = {}
    for rank in range(2):
        teller = Teller(rank)
        with teller.enter("step", "step", step=0), teller.enter("phase", "update", phase="update"):
            teller.cut_and_run(10, 20)
            teller.cut_and_run(30, 40, 50)
            with teller.enter("watch", "inner"):
                teller.cut_and_run(rank + 7)  # cut further in: that is the nearer one
                teller.run(2)  # which the nearer one doesn't have
        rows[rank] = with_calls(teller.rows)
    trace = export(rows, tmp_path)
    assert tokens(trace) == [10, 20, 30, 40, 50, 7, 50, 10, 20, 30, 40, 50, 8, 50]
    assert_as_by_tokens(tmp_path / "run", trace)


def test_calls_alone_tell_it_as_well(tmp_path: Path) -> None:
    teller = Teller(0, told_by="calls")
    with teller.enter("step", "step", step=0), teller.enter("phase", "update", phase="update"):
        teller.cut_and_run(10, 20)
        teller.cut_and_run(30)
    assert tokens(export({0: teller.rows}, tmp_path)) == [10, 20, 30]


def test_what_cannot_be_told_is_not_shown(tmp_path: Path) -> None:
    teller = Teller(0)
    with teller.enter("phase", "update", phase="update", step=0):
        teller.cut(10, 20, 5)
        teller.cut(30, 20)
        for index in (0, 1, 2, 3):
            teller.run(index)
    for row in teller.rows:
        if isinstance(row, MicroBatch):
            row.cap_tokens = 64
    trace = export({0: with_calls(teller.rows)}, tmp_path)
    columns = ("tokens", "sequences", "cap_tokens")
    told = [tuple(one.arguments.get(name) for name in columns) for one in micro_batches(trace)]
    # Both batches have 20 tokens at 1: whichever it was. At 2 only one has any, and none at 3.
    assert told == [(None,) * 3, (20, None, None), (5, 1, 64), (None,) * 3]
    assert_as_by_tokens(tmp_path / "run", trace)


def test_a_resumed_rank_begins_to_count_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: []})
    later = Process(rank=0, time_ns=clock(0), wall_ns=WALL_NS + 10_000 * MS, pid=7, world_size=1)
    for segment, (begin, batch) in enumerate((([], (10, 20)), ([later], (30, 40)))):
        teller = Teller(0)
        with teller.enter("phase", "update", phase="update", step=0):
            teller.cut_and_run(*batch)
        append(run, [*begin, *with_calls(teller.rows)], segment=segment or None)
    export_perfetto(run, tmp_path / "trace")
    trace = read(tmp_path / "trace")
    assert tokens(trace) == [10, 20, 30, 40]
    assert_as_by_tokens(run, trace)


def test_the_micro_batch_in_which_a_process_died_has_its_tokens(tmp_path: Path) -> None:
    teller = Teller(0)
    with teller.enter("phase", "update", phase="update", step=0):
        teller.cut(10, 99)
        teller.run(0)
        with teller.enter("micro_batch", "1", micro_batch=1) as last:
            last.sampled()
            (*rows,) = teller.rows
    (died,) = [one for one in micro_batches(export({0: with_calls(rows)}, tmp_path)) if "unfinished" in one.name]
    assert died.arguments["tokens"] == 99


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=4)
def test_tokens_of_any_run_are_those_of_the_analysis(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    place = tmp_path_factory.mktemp("any")
    trace = export({rank: with_calls(random_rows(rank, seed)) for rank in (0, 1)}, place)
    assert_as_by_tokens(place / "run", trace)


# --------------------------------------------------------------------------------------- what isn't as it should be


def test_a_scope_that_never_ended_is_shown_as_far_as_it_went(tmp_path: Path) -> None:
    def enter(at: int, name: str, scope_id: int, scope: str, edge: str = "enter") -> Memory:
        return Memory(time_ns=clock(0) + at, edge=edge, kind="phase", name=name, scope_id=scope_id, scope=scope, step=7)

    rows = [
        enter(0, "lost", 1, "lost"),  # its end was dropped, but the process went on elsewhere
        enter(10, "step", 2, "step"),
        enter(20, "rollout", 3, "step/rollout"),
        enter(25, "rollout", 3, "step/rollout", "leave"),
        enter(30, "update", 4, "step/update"),
        call(31, 5, scope_id=4, scope="step/update"),
    ]
    trace = export({0: rows}, tmp_path)
    found = [one for one in spans(trace.slices) if "unfinished" in one[0]]
    assert found == [("step (unfinished)", 10, 26, 0), ("update (unfinished)", 30, 6, 1)]


def test_a_process_that_never_told_the_time_is_counted_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: [call(0, 10, "known")], 1: [call(0, 1), Memory(edge="sample", rank=1)]})
    lines = (run / "rank-00001.jsonl").read_bytes().split(b"\n", 1)
    (run / "rank-00001.jsonl").write_bytes(lines[1])
    told = export_perfetto(run, tmp_path / "trace")
    assert (told.slices, told.unplaced, told.ranks) == (1, 2, 1)


def test_values_at_the_ends_of_their_range_come_back(tmp_path: Path) -> None:
    values = [0, 1, 127, 128, 2**40, 2**63 - 1, -1, -(2**63)]
    rows: list[Row] = [
        Memory(time_ns=clock(0) + i, edge="sample", device="cuda:0", source="cuda", allocated_bytes=value)
        for i, value in enumerate(values)
    ]
    rows += [call(50, 1, rows_in=value) for value in values]
    trace = export({0: rows}, tmp_path)
    ((_, found),) = trace.counters.items()
    assert found == [(WALL_NS + i, value) for i, value in enumerate(values)]
    assert [one.arguments["rows_in"] for one in trace.slices] == values


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    names = ['"; drop table calls; --', "a\nb\x00c\x1b[2J", "тест 🚀", "", "x" * 10_000]
    rows = [call(i * 10, 1, name, point="package.function") for i, name in enumerate(names)]
    trace = export({0: [*rows, Incident(kind="k", where="w'", message="<script>", time_ns=clock(0) + 5)]}, tmp_path)
    found = [one.name for one in trace.slices]
    assert found[:4] == [*names[:3], "package.function"]
    assert found[4].startswith("x" * 4096)
    assert found[4].endswith("(5904 more characters)")
    assert trace.instants[0].name == "k: w'"


def test_a_resumed_rank_keeps_one_process_and_both_its_clocks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: [call(0, 10, "first", scope_id=1)]})
    later = Process(rank=0, time_ns=50, wall_ns=WALL_NS + 1000, pid=7, host="node-9", device="cpu")
    second = Call(time_ns=70, point="a.b", name="second", begin_ns=60, duration_ns=10, scope_id=1)
    write_run(tmp_path / "other", {0: [second]}, processes={0: later})
    (tmp_path / "other" / "rank-00000.jsonl").rename(run / "rank-00000.1.jsonl")
    export_perfetto(run, tmp_path / "trace")
    trace = read(tmp_path / "trace")
    assert spans(trace.slices) == [("first", 0, 10, 0), ("second", 1010, 10, 0)]
    assert trace.processes == {1: "rank 0: node-9, cpu, pid 100, 7"}


def test_an_empty_run_is_an_empty_trace(tmp_path: Path) -> None:
    trace = export({0: [Scalar(key="a", value=1.0)]}, tmp_path)
    assert (trace.slices, trace.instants, dict(trace.counters)) == ([], [], {})
    assert list(trace.processes.values()) == ["rank 0: node-0, cuda:0, pid 100"]
    bare = write_run(tmp_path / "bare", {})
    assert export_perfetto(bare, tmp_path / "bare.pftrace").ranks == 0


def test_without_an_accelerator_memory_is_that_of_the_process(tmp_path: Path) -> None:
    rows = sample_rows(ranks=1, steps=1, accelerator=False)
    trace = export(rows, tmp_path, processes={0: process(0, 1, "cpu", "x86")})
    names = {name for _, name in trace.counters}
    assert "process memory (RSS)" in names
    assert not [name for name in names if name.startswith(("allocated", "reserved"))]


# --------------------------------------------------------------------------------------------------- the file


def test_a_name_that_ends_with_gz_is_compressed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sample_rows(ranks=1, steps=1))
    plain, packed = export_perfetto(run, tmp_path / "a.pftrace"), export_perfetto(run, tmp_path / "a.pftrace.gz")
    assert read(Path(packed.path)) == read(Path(plain.path))
    assert packed.bytes < plain.bytes / 2


def test_the_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sample_rows(ranks=1, steps=2))
    (run / "parts").mkdir()
    target = tmp_path / "trace"
    export_perfetto(run, target)
    before = target.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # full in the middle of the file
    try:
        with pytest.raises(RunError):
            export_perfetto(run, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace"]


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {})
    with pytest.raises(InputError, match="is a directory"):
        export_perfetto(run, tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="can't be written"):
        export_perfetto(run, tmp_path / "file" / "trace")
    with pytest.raises(RunNotFoundError):
        export_perfetto(tmp_path / "nowhere", tmp_path / "trace")
