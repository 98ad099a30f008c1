"""The overview's numbers are those of the analyses that they stand for."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis import memory, overview, padding_tax, steps, token_balance
from probe.records import Call, Incident, Memory
from probe.runs.compaction import compact
from probe.runs.reader import Run
from tests.live.live_run import roll
from tests.sample_run import MS, clock, open_run, sample_rows


@pytest.mark.parametrize("measured", [True, False])
def test_step_times_are_those_of_the_steps(tmp_path, measured):
    rows = sample_rows(3, 5)
    if not measured:  # then calls tell of scopes
        rows = {rank: [row for row in own if not isinstance(row, Memory)] for rank, own in rows.items()}
    with open_run(tmp_path, rows) as run:
        frame, times = overview.by_step(run), steps.times(run)
        assert len(frame) == 5
        assert frame["step_time_s"].tolist() == times["largest_s"].tolist()


@pytest.mark.parametrize("files", ["lines", "parts", "compacted"])
def test_a_rank_whose_memory_is_not_recorded_is_timed_by_its_calls(tmp_path, files):
    """Files say it where they can, and the rows where one file is of several ranks."""
    rows = sample_rows(3, 4)
    slow = [row for row in rows[2] if not isinstance(row, Memory)]
    for row in slow:
        if isinstance(row, Call) and row.point == "scope.step":
            row.duration_ns *= 5  # its steps are the longest
    with open_run(tmp_path, {**rows, 2: slow}) as run:
        expected = steps.times(run)["largest_s"].tolist()
        assert run.sql("select distinct process from scope_calls")["process"].tolist() == ["rank-00002"]
    directory = Path(run.path)
    if files != "lines":
        roll(directory)
    if files == "compacted":
        assert compact(directory).rows > 0
    with Run(directory) as run:
        assert overview.by_step(run)["step_time_s"].tolist() == expected
        assert min(expected) > overview.by_step(run, "rank < 2")["step_time_s"].max()
        assert run.sql("select count(*) n from scopes where rank = 2")["n"][0] > 0


def test_each_column_is_that_of_its_analysis(tmp_path):
    with open_run(tmp_path, sample_rows(3, 4)) as run:
        frame = overview.by_step(run)
        made = run.sql("select step, max(peak) as peak from spans where maker = 1 group by step order by step")
        assert frame["peak_memory_bytes"].tolist() == made["peak"].tolist()
        uneven = token_balance.imbalance(run)
        worst = token_balance.rounds(run).groupby("step").max(numeric_only=True)
        for name in ("rank_imbalance_ratio", "sync_wait_ratio", "micro_batch_imbalance_ratio"):
            assert frame[name].tolist() == uneven[name].tolist() == worst[name].tolist()
        ledger = padding_tax.by_step(run).groupby("step").agg({"tokens": "sum", "rectangle_tokens": "first"})
        assert frame["padding_tax_ratio"].tolist() == (ledger["tokens"] / ledger["rectangle_tokens"]).tolist()
        rounds = token_balance.rounds(run).groupby(["step", "phase"])["tokens"].sum()
        assert frame["tokens"].tolist() == rounds.groupby("step").max().tolist()


def test_where_nothing_was_recorded_nothing_is_a_zero(tmp_path):
    with open_run(tmp_path, {0: []}) as run:
        frame = overview.numbers(run)
    assert frame["value"].isna().all()
    assert set(frame["status"]) == {"none"}


def test_an_alert_before_the_first_step_is_counted(tmp_path):
    alert = Incident(kind="backend", where="mlflow", message="no answer", count=3, rank=0, time_ns=clock(0))
    with open_run(tmp_path, {0: [alert]}) as run:
        values = overview.numbers(run).set_index("name")["value"]
    assert values["alerts"] == 3
    assert values.drop("alerts").isna().all()


scopes = st.builds(
    dict,
    parent_id=st.none() | st.integers(0, 5),
    role=st.sampled_from((None, "a", "b")),
    peak_allocated_bytes=st.none() | st.sampled_from((1, 2, 3)),
    peak_kind=st.sampled_from((None, "exact", "at_most", "at_least")),
    host_duration_ns=st.none() | st.integers(0, 4).map(lambda one: one * MS),
    device_total_bytes=st.none() | st.integers(4, 5),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), scopes), max_size=8))
def test_the_largest_peak_is_the_first_of_all(tmp_path_factory, found):
    rows = {0: [], 1: []}
    for index, (rank, fields) in enumerate(found):
        time_ns = clock(rank) + index * MS
        row = Memory(rank=rank, time_ns=time_ns, edge="leave", name="x", source="fake", scope_id=index + 1, **fields)
        rows[rank].append(row)
    with open_run(tmp_path_factory.mktemp("run"), rows) as run:
        largest = memory.largest(run)
        first = memory.peaks(run).head(1)
        names = sorted(first.columns)
        assert sorted(largest.columns) == names
        pd.testing.assert_frame_equal(largest[names], first[names], check_dtype=False)


@pytest.mark.parametrize("accelerator", [True, False])
def test_the_note_of_peak_memory_says_first_what_memory_is(tmp_path: Path, accelerator: bool) -> None:
    with open_run(tmp_path, sample_rows(2, 3, accelerator=accelerator)) as run:
        note = overview.numbers(run).set_index("name").loc["peak_memory"]["note"]
    assert note.startswith("This is process memory (RSS).") != accelerator
    assert ";" not in note
    assert all(one[0].isupper() or one[0].isdigit() for one in note.removesuffix(".").split(". ")), note
