"""Rows of a type that a recorder brings: written, rolled over, compacted and read, also where nobody has its class."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from typing import ClassVar

import pyarrow.parquet as pq
import pytest

import probe
from probe import hooks
from probe.errors import InputError, UnknownNameError
from probe.exporting.tables import export_tables
from probe.recorders.recorder import Recorder
from probe.records import Memory, Process, Row
from probe.runs import row_types
from probe.runs.compaction import compact
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.lines import decode, encode
from probe.runs.reader import Run


class Pause(Row, kw_only=True, tag="pauses"):
    """A time in which the trainer waited."""

    reason: str
    seconds: float
    waited_for: list[str] = []
    retries: int | None = None


class Heartbeat(Row, kw_only=True, tag="heartbeats"):
    """A sign of life."""

    sampled: ClassVar[bool] = True
    alive: bool = True


class PauseRecorder(Recorder):
    """Pauses that the test tells of, and heartbeats."""

    points: ClassVar[tuple[str, ...]] = ("session.log",)
    rows: ClassVar[tuple[type[Row], ...]] = (Pause, Heartbeat)

    def fire(self, event):
        return Pause(reason="data", seconds=event.values["metrics"]["seconds"], waited_for=["a", "b"])

    def sample(self):
        return Heartbeat()


def session_of(tmp_path, **options):
    return probe.start("p", "e", root=tmp_path, recorders=[PauseRecorder()], world_size=1, rank=0, **options)


def recorded(tmp_path, *, close=True):
    session = session_of(tmp_path)
    with session.step(3), hooks.scope("phase", "update", phase="update"):
        session.log({"seconds": 1.5}, step=3)
        session.log({"seconds": float("nan")}, step=3)
    if close:
        session.close()
    else:
        session.flush()
    return session


def check(run):
    frame = run.tables["pauses"]
    assert frame["reason"].tolist() == ["data", "data"]
    assert frame["seconds"].tolist() == [1.5, pytest.approx(float("nan"), nan_ok=True)]
    assert [list(one) for one in frame["waited_for"]] == [["a", "b"]] * 2
    assert frame["retries"].isna().all()
    assert frame[["attempt", "process", "rank", "step", "phase"]].drop_duplicates().values.tolist() == [
        [1, "rank-00000", 0, 3, "update"]
    ]
    assert run.sql("select count(*) as n, max(len(waited_for)) as m from pauses").values.tolist() == [[2, 2]]
    assert "pauses" in set(run.tables)
    assert "pauses" in run._repr_html_()


@pytest.mark.slow
def test_lines_then_parts_then_compacted_files(tmp_path):
    session = recorded(tmp_path, close=False)
    follower = Follower(RunFiles(session.directory))
    with Run(session.directory) as run:
        check(run)
    assert [row.reason for row in follower.poll() if isinstance(row, Pause)] == ["data", "data"]
    session.close()
    assert list(session.directory.glob("parts/pauses-*.parquet"))
    for _ in range(2):
        with Run(session.directory) as run:
            check(run)
        assert not any(isinstance(row, Pause) for row in follower.poll())
        assert [row.reason for row in Follower(RunFiles(session.directory)).poll() if isinstance(row, Pause)] == [
            "data"
        ] * 2
        with session_of(tmp_path):  # one more process, so that there is something to compact
            pass
        assert compact(session.directory, force=True).left == {}
    files = {file.table: file for file in export_tables(session.directory, tmp_path / "out")}
    assert files["pauses"].rows == 2
    assert pq.read_table(files["pauses"].path)["reason"].to_pylist() == ["data", "data"]


READER = """
    import json, sys
    from probe.runs.files import RunFiles
    from probe.runs.follower import Follower
    from probe.runs.reader import Run
    path = sys.argv[1]
    rows = [row for row in Follower(RunFiles(path)).poll() if type(row).__name__ == "Pauses"]
    if sys.argv[2] == "compact":
        from probe.runs.compaction import compact
        assert compact(path, force=True).left == {}, compact(path, force=True).left
    with Run(path) as run:
        print(json.dumps({
            "rows": [(row.reason, row.step, row.waited_for, row.retries) for row in rows],
            "frame": run.tables["pauses"][["reason", "step"]].values.tolist(),
            "sql": run.sql("select reason, step from pauses").values.tolist(),
            "tail": [type(row).__name__ for row in run.tail("pauses", stop=lambda: True)],
        }))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "close"),
    [("read", False), ("read", True), ("compact", True)],
    ids=["read-lines", "read-parts", "compact-parts"],
)
def test_a_process_without_the_class_reads_them(tmp_path, close, work):
    session = recorded(tmp_path)
    if not close:
        session = recorded(tmp_path, close=False)
    written = 2 if close else 4  # the second attempt has done the same step again, and hides what the first one wrote
    command = [sys.executable, "-c", textwrap.dedent(READER), str(session.directory), work]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    session.close()
    assert found == {
        "rows": [["data", 3, ["a", "b"], None]] * written,
        "frame": [["data", 3]] * 2,
        "sql": [["data", 3]] * 2,
        "tail": ["Pauses"] * 2,
    }


def test_sampled_rows_have_the_step_that_the_process_is_in(tmp_path):
    with session_of(tmp_path) as session:
        with session.step(7):
            deadline = time.monotonic() + 300
            while not (session.run.tables["heartbeats"]["step"] == 7).any() and time.monotonic() < deadline:
                time.sleep(0.05)
        frame = session.run.tables["heartbeats"]
        assert set(frame["step"].dropna()) == {7}
        assert set(frame["scope_id"]) == {0}


def test_a_run_has_only_its_own_tables(tmp_path):
    recorded(tmp_path / "one")
    with (
        probe.start("p", "other", root=tmp_path, recorders=[], rank=0, world_size=1) as session,
        pytest.raises(UnknownNameError, match="pauses"),
    ):
        session.run.table("pauses")


class Wrong(Row, kw_only=True, tag="wrongs"):
    """A field that no column holds."""

    values: dict[str, int] = {}


class Stolen(Row, kw_only=True, tag="memory"):
    """The name of one of probe's tables."""


class Numbered(Row, kw_only=True, tag="pause-2"):
    """A name that no file can have."""


@pytest.mark.parametrize(("kind", "told"), [(Wrong, "values"), (Stolen, "memory"), (Numbered, "pause-2"), (int, "int")])
def test_what_a_table_cannot_hold_is_refused_at_the_start(tmp_path, kind, told):
    class Bad(Recorder):
        rows = (kind,)

    with pytest.raises(InputError, match=told):
        probe.start("p", "e", root=tmp_path, recorders=[Bad()])
    assert probe.current_session() is None
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("lenient")
def test_an_undeclared_row_is_told_and_not_written(tmp_path):
    class Undeclared(Row, kw_only=True, tag="undeclared"):
        """No recorder names it."""

    with session_of(tmp_path) as session:
        session.recording.write_rows(Undeclared(), hooks.current_scope(), 1)
        session.flush()  # then it is told
        incidents = session.run.incidents
    assert "no recorder has" in incidents["message"].str.cat()


def test_a_description_is_the_type_again():
    told = row_types.bring([Memory, Pause, Heartbeat])
    assert row_types.learn(told) == ["pauses", "heartbeats"]
    assert row_types.row_type("pauses") is Pause  # the class itself, where the process has it
    made = row_types._made(msgspec_description(told, "pauses"))
    assert made.__struct_fields__ == Pause.__struct_fields__
    assert (made.sampled, row_types._described("pauses", made)) == (False, row_types._described("pauses", Pause))
    assert row_types.learn("no json") == row_types.learn('[{"fields": 3}]') == []


def msgspec_description(told, table):
    import msgspec

    found = msgspec.json.decode(told, type=list[row_types.Description])
    return next(one for one in found if one.table == table)


def test_a_changed_class_takes_the_place_of_the_one_before():
    class Again(Row, kw_only=True, tag="pauses"):
        reason: str
        minutes: float = 0.0

    row_types.bring([Again])
    try:
        row = decode(encode(Again(reason="r", minutes=2.0)))
        assert (type(row), row.minutes) == (Again, 2.0)
    finally:
        row_types.bring([Pause])
    assert isinstance(decode(encode(Pause(reason="r", seconds=1.0))), Pause)
    assert Process().tables == ""
