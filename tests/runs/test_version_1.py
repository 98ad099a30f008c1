"""Rows of version 1 read as those of today: by every way of reading, also beside rows of a newer process."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from probe.hooks import Scope
from probe.records import SCHEMA_VERSION, TABLES, Memory, Padding, Process, Scalar
from probe.runs import version_1
from probe.runs.columnar import Columnar
from probe.runs.columns import LINE, WALL, either_schema
from probe.runs.compaction import compact
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.layout import Segment
from probe.runs.lines import encode, table_of
from probe.runs.reader import Run
from probe.runs.writer import RunWriter

ROOT = Scope("process", "process")
KEYS = {
    "probe/over_ranks/imbalance_ratio": "probe/across_ranks/rank_imbalance_ratio",
    "probe/over_ranks/lockstep_ratio": "probe/across_ranks/sync_wait_ratio",
    "probe/over_ranks/step_time_s_mean": "probe/across_ranks/step_time_s_mean",
    "probe/over_ranks/memory/not_torch_gib_mean": "probe/across_ranks/memory/non_torch_gib_mean",
    "probe/memory/not_torch_gib_max": "probe/memory/non_torch_gib_max",
    "probe/padding_tax/imposed_width/padding_tokens": "probe/padding_tax/fixed_width/padding_tokens",
    "probe/over_ranks/padding_tax/padding_rows/padding_tokens_max": (
        "probe/across_ranks/padding_tax/filler_rows/padding_tokens_max"
    ),
    "probe/over_ranks/padding_ratio": "probe/across_ranks/padding_tax_ratio",
    "probe/token_balance/imbalance_ratio_max": "probe/token_balance/micro_batch_imbalance_ratio_max",
    "probe/token_balance/workload_imbalance_ratio_max": "probe/token_balance/micro_batch_workload_imbalance_ratio_max",
    "probe/over_ranks/token_balance/imbalance_ratio_mean": (
        "probe/across_ranks/token_balance/micro_batch_imbalance_ratio_mean"
    ),
    "probe/token_balance/tokens": "probe/token_balance/rank_tokens",
    "probe/over_ranks/token_balance/tokens_mean": "probe/across_ranks/token_balance/rank_tokens_mean",
    "probe/padding_tax/ratio": "probe/padding_tax/rank_ratio",
    "probe/over_ranks/padding_tax/ratio_min": "probe/across_ranks/padding_tax/rank_ratio_min",
    "probe/padding_tax/padding_rows/padding_tokens": "probe/padding_tax/filler_rows/padding_tokens",
    "loss/padding_tax/ratio": "loss/padding_tax/ratio",
    "loss/over_ranks/not_torch_gib": "loss/over_ranks/not_torch_gib",
}
CAUSES = {"imposed_width": "fixed_width", "padding_rows": "filler_rows", "longest_row": "longest_row"}


def old_line(row):
    """``row`` as version 1 wrote it."""
    fields = json.loads(encode(row))
    fields.pop("attempt")
    fields.pop("process")
    if "non_torch_bytes" in fields:
        fields["not_torch_bytes"] = fields.pop("non_torch_bytes")
    if "schema_version" in fields:
        fields["schema_version"] = 1
        for name in ("name", "node", "local_rank"):
            fields.pop(name)
    return json.dumps(fields).encode() + b"\n"


def old_rows(rank, pid, begin_ns, infinite):
    """What one process of version 1 wrote; with a number that JSON can't say it is read row by row."""
    yield Process(rank=rank, pid=pid, time_ns=begin_ns, wall_ns=10**18 + begin_ns, world_size=2)
    yield Memory(edge="sample", non_torch_bytes=7, rank=rank, time_ns=begin_ns + 1)
    for cause in CAUSES:
        yield Padding(
            batch_id=1, source="s", field="f", cause=cause, tokens=1, bytes=1, rectangle_tokens=2, valid_tokens=1,
            reason=f"{cause}; pad_to", rank=rank, time_ns=begin_ns + 2,
        )  # fmt: skip
    for key in KEYS:
        yield Scalar(key=key, value=float("inf") if infinite else 1.0, rank=rank, time_ns=begin_ns + 3)


def old_parts(directory, segment, lines):
    """The parts that version 1 made of a segment."""
    columnar = Columnar()
    for table, found in columnar.add_lines(b"".join(lines)).items():
        names = {new: old for old, new in version_1.old_columns(table).items()}
        left_out = {*version_1.ADDED, *(("name", "node", "local_rank") if table == "process" else ())}
        found = found.select([name for name in found.column_names if name not in left_out])
        found = found.rename_columns([names.get(name, name) for name in found.column_names])
        found = unmapped(table, found, lines)
        pq.write_table(found.replace_schema_metadata({"probe_schema_version": "1"}), directory / segment.part(table))


def unmapped(table, found, lines):
    """With the values that stand in the lines."""
    told = [fields for fields in map(json.loads, lines) if fields["table"] == table]
    for name in version_1.VALUES.get(table, {}):
        values = pa.array([fields[name] for fields in told])
        found = found.set_column(found.column_names.index(name), name, values)
    return found


@pytest.fixture(params=[False, True], ids=["fast", "row by row"])
def old_run(request, tmp_path):
    """Two processes of rank 0, one after the other, the second with two files, and one of rank 1; some are Parquet."""
    directory = tmp_path / "run"
    (directory / "parts").mkdir(parents=True)
    (directory / "run.json").write_text('{"schema_version": 1, "project": "p", "experiment": "e"}\n')
    first = list(map(old_line, old_rows(0, 11, 1_000, request.param)))
    second = list(map(old_line, old_rows(0, 12, 50_000, request.param)))
    other = list(map(old_line, old_rows(1, 13, 1_000, request.param)))
    old_parts(directory / "parts", Segment.of_rank(0, 0), first)
    (directory / Segment.of_rank(0, 1).name).write_bytes(b"".join(second))
    (directory / Segment.of_rank(0, 2).name).write_bytes(b"".join([second[0], *second[-2:]]))
    (directory / Segment.of_rank(1, 0).name).write_bytes(b"".join(other))
    for path in directory.glob("*.jsonl"):
        os.utime(path, (0, 0))  # nobody writes to it any more
    return directory


def check_names(run):
    """That all tables say today's names, in pandas and in SQL."""
    padding = run.padding[["cause", "reason"]].drop_duplicates().values.tolist()
    assert sorted(padding) == sorted(
        [new, f"{new if old == 'imposed_width' else old}; pad_to"] for old, new in CAUSES.items()
    )
    assert run.sql("select distinct cause from padding order by 1")["cause"].tolist() == sorted(CAUSES.values())
    assert set(run.scalars["key"]) == set(KEYS.values())
    assert set(run.sql("select key from scalars")["key"]) == set(KEYS.values())
    assert run.memory["non_torch_bytes"].dropna().tolist() == [7, 7, 7]
    assert run.sql("select sum(non_torch_bytes) as n from memory")["n"][0] == 21


OLD = {("rank-00000", 0, 11), ("rank-00000.1", 0, 12), ("rank-00001", 1, 13)}


def check_writers(run, expected=OLD, attempts=()):
    """``attempts``: of processes that are not of the first."""
    frame = run.processes
    assert set(zip(frame["process"], frame["rank"], frame["pid"], strict=True)) == expected
    later = dict(attempts)
    assert frame["attempt"].tolist() == [later.get(process, 1) for process in frame["process"]]
    for table in ("memory", "scalars", "processes"):
        by_frame = run.table(table).groupby("process").size().to_dict()
        by_query = run.sql(f"select process, count(*) as n from {table} where attempt in (1, 2) group by process")
        assert by_frame == dict(zip(by_query["process"], by_query["n"], strict=True))
        assert set(by_frame) == {process for process, *_ in expected}
    assert run.scalars.groupby("process").size()["rank-00000.1"] == len(KEYS) + 2


@pytest.mark.parametrize("rule", version_1.KEYS, ids=lambda rule: rule[0])
def test_each_rule_for_keys_is_needed(rule):
    """Every line of KEYS changes what one of the old keys becomes, so that all of them are read back above."""
    assert {old: version_1.renamed(old, version_1.KEYS) for old in KEYS} == KEYS
    others = [one for one in version_1.KEYS if one != rule]
    assert any(version_1.renamed(old, others) != new for old, new in KEYS.items())


@pytest.mark.parametrize("times", [0, 1, 2], ids=["as written", "compacted", "compacted twice"])
def test_names_and_writers_of_version_1(old_run, times):
    for _ in range(times):
        assert compact(old_run, force=True).left == {}
    with Run(old_run) as run:
        assert run.bad_lines == 0
        check_names(run)
        check_writers(run)


def test_a_follower_gives_the_same_rows(old_run):
    rows = Follower(RunFiles(old_run)).poll()
    assert {(row.process, row.rank, row.pid) for row in rows if isinstance(row, Process)} == OLD
    assert {row.cause for row in rows if isinstance(row, Padding)} == set(CAUSES.values())
    assert {row.key for row in rows if isinstance(row, Scalar)} == set(KEYS.values())
    with Run(old_run) as run:
        for table in set(TABLES) - {"process"}:
            frame = run.table(table)
            told = [(row.process, row.time_ns) for row in rows if table_of(row) == table]
            assert sorted(told) == sorted(zip(frame["process"], frame["time_ns"], strict=True))


def test_a_newer_process_goes_on_in_an_old_run(old_run):
    writer = RunWriter(old_run, rank=0, process=Process(pid=14, time_ns=90_000, wall_ns=10**18 + 90_000, world_size=2))
    rows = [Scalar(key="probe/over_ranks/tokens", value=1.0), Memory(edge="sample", non_torch_bytes=7)]
    writer.add_rows(rows, ROOT, 90_001)
    assert writer.flush()
    follower = Follower(RunFiles(old_run))
    for step in range(3):  # its lines, its parts, and all of it compacted
        with Run(old_run) as run:
            check_writers(run, OLD | {("rank-00000.3", 0, 14)}, {"rank-00000.3": 2})
            assert run.memory["non_torch_bytes"].sum() == 28
            newest = run.sql("select key, process from scalars where key like '%tokens' and process = 'rank-00000.3'")
            assert newest.values.tolist() == [["probe/over_ranks/tokens", "rank-00000.3"]]  # what it wrote isn't mapped
            assert run.processes["schema_version"].max() == SCHEMA_VERSION
        names = [row.process for row in follower.poll() if isinstance(row, Process)]
        assert names == (["rank-00000", "rank-00000.1", "rank-00000.3", "rank-00001"] if step == 0 else [])
        writer.close()
        if step:
            assert compact(old_run, force=True).left == {}


def test_either_schema_has_old_names_beside_todays():
    names = either_schema("memory").names
    assert {"not_torch_bytes", "non_torch_bytes", WALL, LINE} <= set(names)
    assert either_schema("calls").names.count("point") == 1
