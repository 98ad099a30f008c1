"""Attempts: a run that was launched twice is, view by view, one that was recorded once (A)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis import memory, overview, padding_tax, steps, token_balance, verdict
from probe.errors import InputError, RunError
from probe.hooks import phase
from probe.opened import Run
from probe.records import TABLES, Memory, Process
from probe.runs import attempts
from probe.runs.attempts import Identity, identity, join
from probe.runs.compaction import compact
from probe.runs.lines import encode
from probe.runs.segment_file import SegmentFile
from probe.runs.visibility import Stretch, visible
from probe.session import start
from tests.live.live_run import as_dicts, opened, roll, told
from tests.ranks import ended_ranks
from tests.runs.attempt_ranks import launched
from tests.sample_run import WALL_NS, process, sample_rows, write_run, written_by

LATER_NS = 3_600_000_000_000  # the second launch, an hour after the first


def train(directory, reward, count, first=0, rank=None):
    """A training in this process, as a cell of a notebook would run it."""
    with start("attempts", run_dir=directory, rank=rank) as session:
        for step in range(first, first + count):
            with session.step(step), phase("update"):
                pass
            session.log({"reward/mean": reward}, step)


def rewards(run):
    frame = run.sql("select step, value from scalars where key = 'reward/mean' order by step")
    return dict(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


# ------------------------------------------------------------------------------------------------ in real sessions


def test_a_cell_that_is_run_twice_shows_the_second_training(directory):
    train(directory, 0.2, 3)
    train(directory, 0.8, 3)
    with Run(directory) as run:
        assert rewards(run) == {0: 0.8, 1: 0.8, 2: 0.8}
        assert run.attempts == [1, 2]
        assert run.hidden == [(1, 0, 2)]
        assert steps.times(run)["step"].tolist() == [0, 1, 2]
        assert run.sql("select count(*) as n from spans where kind = 'step'")["n"][0] == 3
        assert rewards(run.attempt(1)) == {0: 0.2, 1: 0.2, 2: 0.2}
        assert run.attempt(2).processes["attempt"].tolist() == [2]
        with pytest.raises(InputError, match=r"attempt: got 3, expected one that the run has: 1, 2"):
            run.attempt(3)


def test_a_run_that_is_closed_says_what_it_was(directory):
    train(directory, 0.2, 1)
    run = Run(directory)
    run.close()
    assert repr(run).endswith("1 process)")
    assert run.ranks == []
    assert "1 process" in run._repr_html_()


def test_a_restart_hides_all_from_its_first_step_on_and_a_resumed_training_goes_on(directory):
    train(directory, 0.1, 6)
    train(directory, 0.2, 3)  # from 0: yesterday's 3, 4 and 5 are hidden, too
    with Run(directory) as run:
        assert rewards(run) == {0: 0.2, 1: 0.2, 2: 0.2}
    train(directory, 0.3, 2, first=2)  # resumed: 2 is done again
    with Run(directory) as run:
        assert rewards(run) == {0: 0.2, 1: 0.2, 2: 0.3, 3: 0.3}
        assert run.hidden == [(1, 0, 5), (2, 2, 2)]
        assert set(run.processes["attempt"]) == {2, 3}


def test_two_launches_of_several_ranks_agree_without_talking(directory, tmp_path):
    for reward in (0.25, 0.75):
        codes, output = ended_ranks(launched, [(directory, rank, 3, reward) for rank in range(3)], tmp_path)
        assert codes == [0, 0, 0], output
    with Run(directory) as run:
        assert run.attempts == [1, 2]
        assert run.processes.groupby("attempt").size().to_dict() == {2: 3}
        assert run.ranks == [0, 1, 2]
        assert run.attempt(1).processes["rank"].tolist() == [0, 1, 2]
        assert set(rewards(run).values()) == {0.75}


def test_the_attempt_may_be_named(directory, monkeypatch):
    for number in ("3", "3", "5"):
        monkeypatch.setenv("PROBE_ATTEMPT", number)
        train(directory, float(number), 1)
    with Run(directory) as run:
        assert run.attempts == [3, 5]
        assert rewards(run.attempt(5)) == {0: 5.0}
    for wrong in ("0", "first", "-1"):
        monkeypatch.setenv("PROBE_ATTEMPT", wrong)
        with pytest.raises(InputError, match="PROBE_ATTEMPT: got"):
            start("attempts", run_dir=directory)


def test_a_second_live_process_of_one_rank_is_told(directory):
    code = f"""if True:
        import sys
        from probe.session import start
        from probe.testing import FakeDevice  # which needn't import torch
        session = start("attempts", run_dir={str(directory)!r}, rank=0, recorders=[], device=FakeDevice())
        print("on", flush=True)
        sys.stdin.readline()
        session.close()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"on\n"
        train(directory, 0.5, 1, rank=0)
        with Run(directory) as run:
            (told_of,) = run.incidents["message"]
            assert run.attempts == [1]
        assert told_of.startswith(f"process {other.pid} on ")
        assert "records as rank 0 of this attempt, too" in told_of
        other.communicate(b"\n")
    train(directory, 0.7, 1, rank=0)  # both have ended
    with Run(directory) as run:
        assert run.attempts == [1, 2]


# --------------------------------------------------------------------------------------------------------- joining


def row(rank=0, world_size=1, **fields):
    return Process(rank=rank, world_size=world_size, pid=os.getpid(), host=fields.pop("host", "here"), **fields)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(attempts.platform, "node", lambda: "here")


def ended(joined):
    if joined.lock is not None:
        joined.lock.release()
    return joined.attempt


@pytest.mark.usefixtures("here")
def test_one_launch_is_one_attempt_however_often_a_process_of_it_begins(tmp_path):
    first, restarted = Identity("torchrun:a restart:0"), Identity("torchrun:a restart:1")
    assert [ended(join(tmp_path, row(rank), first)) for rank in (0, 1, 0)] == [1, 1, 1]
    assert [ended(join(tmp_path, row(rank), restarted)) for rank in (1, 0)] == [2, 2]
    assert ended(join(tmp_path, row(2), first)) == 1  # a straggler
    assert ended(join(tmp_path, row(0), Identity())) == 3  # by hand, into the same run


@pytest.mark.usefixtures("here")
def test_an_actor_that_ray_restarts_goes_on_and_a_new_one_does_not(tmp_path):
    def actor(name):
        return Identity("ray:head:6379 job:01", name)

    assert ended(join(tmp_path, row(), actor("a"))) == 1
    assert ended(join(tmp_path, row(), actor("a"))) == 1
    assert ended(join(tmp_path, row(), actor("b"))) == 2  # the driver's notebook made its actors anew
    assert ended(join(tmp_path, row(1), actor("c"))) == 2
    assert ended(join(tmp_path, row(), Identity())) == 3  # by hand
    assert ended(join(tmp_path, row(), actor("d"))) == 4  # the notebook again, after that
    assert ended(join(tmp_path, row(1), actor("e"))) == 4


def test_a_run_that_cannot_be_written_keeps_no_place(tmp_path, monkeypatch):
    directory = tmp_path / "run"
    train(directory, 0.5, 1)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentFile, "open", lambda _: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(RunError, match="no room"):
            start("attempts", run_dir=directory)
    train(directory, 0.5, 1)
    with Run(directory) as run:
        assert run.incidents.empty  # nobody else was taken for a rival


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("look", range(4))
@pytest.mark.parametrize("launches", [("", ""), ("torchrun:a", "torchrun:a"), ("torchrun:a", "torchrun:b")])
def test_ranks_that_begin_at_the_same_instant_are_one_launch(tmp_path, monkeypatch, look, launches):
    """The other rank joins, and writes, between any two looks that this one takes at the directory."""
    others: list[attempts.Joined] = []
    looks = iter(range(1000))
    plain = attempts._Joining
    names = ("_numbers", "_was_here_before", "_launch", "_begin")

    class Interrupted(plain):
        pass

    def interrupted(name):
        def call(self, *args):
            found = getattr(plain, name)(self, *args)
            if next(looks) == look:
                others.append(plain(tmp_path, row(1, 2), Identity(launches[1])).join(None))
                (tmp_path / "rank-00001.jsonl").write_bytes(b"{}\n")
            return found

        return call

    for name in names:
        setattr(Interrupted, name, interrupted(name))
    monkeypatch.setattr(attempts, "_Joining", Interrupted)
    mine = join(tmp_path, row(0, 2), Identity(launches[0]))
    (other,) = others
    assert (mine.attempt == other.attempt) == (launches[0] == launches[1])
    ended(mine)
    ended(other)


@pytest.mark.usefixtures("here")
def test_another_world_size_is_another_attempt(tmp_path):
    assert ended(join(tmp_path, row(world_size=2), Identity())) == 1
    assert ended(join(tmp_path, row(1, world_size=4), Identity())) == 2
    assert ended(join(tmp_path, row(3, world_size=4), Identity())) == 2


def test_a_process_of_another_host_lives_as_long_as_its_file_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts.platform, "node", lambda: "here")
    assert ended(join(tmp_path, row(host="there"), Identity())) == 1  # locks of other hosts may not be seen
    lines = tmp_path / "rank-00000.jsonl"
    lines.write_bytes(b"")
    found = join(tmp_path, row(), Identity())
    assert (found.attempt, found.rival.host, found.lock) == (1, "there", None)
    os.utime(lines, (0, 0))
    assert ended(join(tmp_path, row(), Identity())) == 2


def test_a_run_that_an_older_probe_began_has_its_first_attempt(tmp_path):
    write_run(tmp_path / "run", {0: []})
    assert ended(join(tmp_path / "run", row(), Identity())) == 2


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, ""),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}, ""),
        ({"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"}, "torchrun:x restart:2"),
        ({"SLURM_JOB_ID": "7"}, ""),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "1"}, "slurm:7.1 requeue:1"),
    ],
)
def test_what_launchers_say(environ, launch):
    assert identity(environ) == Identity(launch, "")


# ------------------------------------------------------------------------------------ recorded twice, recorded once


def second_launch(directory, rows, number=1):
    """Add a second attempt with ``rows``, an hour later, as new files."""
    for rank, own in rows.items():
        name = f"rank-{rank:05d}.{number}"
        head = process(rank, world_size=len(rows))
        head.wall_ns, head.attempt = WALL_NS + LATER_NS, 2
        told_rows = [head, *own]
        for one in own:
            one.attempt, one.process = 2, name
        head.process = name
        lines = [encode(written_by(one, name, rank)) for one in told_rows]
        (directory / f"{name}.jsonl").write_bytes(b"".join(lines))


def of_steps(rows, keep):
    return {rank: [one for one in own if one.step is not None and keep(one.step)] for rank, own in rows.items()}


def everything(run):
    """What all views say, without the names of the processes and the times of the clock."""
    dropped = ["process", "attempt", "wall_ns", "line", "begin", "end", "begin_ns", "end_ns", "happened"]
    views = ["spans", "steps", "micro_batches_counted", "padding_counted", "padding_widest", "peaks_made"]
    names = [*views, *(name for name in TABLES if name != "process")]
    frames = {name: run.sql(f"select * from {name}") for name in names}
    frames |= {f"table {name}": run.table(name) for name in TABLES if name != "process"}
    analyses = (
        overview.numbers,
        overview.by_step,
        steps.times,
        memory.peaks,
        padding_tax.by_step,
        token_balance.rounds,
    )
    frames |= {one.__qualname__ + one.__module__: one(run) for one in analyses}
    frames["findings"] = verdict.findings(run).to_frame()[["kind", "name", "where_step", "since_step"]]
    plain = {name: frame.drop(columns=[one for one in dropped if one in frame]) for name, frame in frames.items()}
    return {name: frame.astype(str).sort_values(list(frame)).to_dict("records") for name, frame in plain.items()}


FORMS = ["lines", "parts", "compacted"]


def bring(directory, form):
    """The rows of a run into one of the forms in which they may lie."""
    if form != "lines":
        roll(directory)
    if form == "compacted":
        assert compact(directory).rows > 0


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory):
    """What all views and the live tables say of one launch, whose rows are lines."""
    directory = write_run(tmp_path_factory.mktemp("once") / "run", of_steps(sample_rows(2, 6), lambda _: True))
    with Run(directory) as run:
        return everything(run), opened(directory)


#: Each form once in every run.
OFTEN = [("lines", 0), ("parts", 2), ("compacted", 0)]


@pytest.mark.parametrize(
    ("form", "resumed_at"),
    [
        pytest.param(form, first, marks=[] if (form, first) in OFTEN else pytest.mark.thorough)
        for form in FORMS
        for first in (0, 2)
    ],
)
def test_a_run_recorded_twice_is_equal_view_by_view_to_one_recorded_once(tmp_path, form, resumed_at, recorded_once):
    """The first launch died in step 4; the second does all of it anew, or goes on at step 2."""
    expected, shown = recorded_once
    twice = write_run(tmp_path / "run", of_steps(sample_rows(2, 6), lambda step: step <= 4))
    second_launch(twice, of_steps(sample_rows(2, 6), lambda step: step >= resumed_at))
    bring(twice, form)
    with Run(twice) as other:
        found = everything(other)
        assert other.hidden == [(1, resumed_at, 4)]
    for name, rows in expected.items():
        assert found[name] == rows, name
    live = opened(twice)
    for table in ("spans", "micro", "padding", "scalars", "memory"):
        assert live_rows(live, table) == live_rows(shown, table), table


def live_rows(feed, table):
    unlike = {"process", "t", "begin", "end"}
    return sorted(str({key: one[key] for key in one if key not in unlike}) for one in as_dicts(feed, table))


def test_a_panel_that_is_open_begins_anew_when_a_new_attempt_comes_to_a_step(tmp_path):
    directory = write_run(tmp_path / "run", of_steps(sample_rows(2, 6), lambda step: step < 6))
    feed = opened(directory)
    assert feed.step == 5
    second_launch(directory, of_steps(sample_rows(2, 6), lambda step: step <= 1))
    assert feed.update() == {}
    assert (feed.rebuilt, feed.step) == (1, 1)
    assert feed.repeated == "Steps 0 to 5 were recorded twice; the newest is shown."
    assert sorted(map(str, told(feed, "micro"))) == sorted(map(str, told(opened(directory), "micro")))
    assert {one["step"] for one in as_dicts(feed, "micro")} == {0, 1}
    assert {one["step"] for one in as_dicts(opened(directory, attempt=1), "micro")} == set(range(6))


def test_rows_of_an_old_attempt_that_still_come_are_not_shown(tmp_path):
    directory = write_run(tmp_path / "run", of_steps(sample_rows(1, 3), lambda step: step < 3))
    second_launch(directory, of_steps(sample_rows(1, 2), lambda step: step < 2))
    feed = opened(directory)
    late = of_steps(sample_rows(1, 4), lambda step: step == 3)[0]
    with (directory / "rank-00000.jsonl").open("ab") as file:
        file.write(b"".join(encode(written_by(one, "rank-00000", 0)) for one in late))
    assert feed.update() == {}
    assert (feed.rebuilt, feed.step) == (1, 1)  # once, as it was opened
    with Run(directory) as run:
        assert run.hidden == [(1, 0, 3)]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=20))
def test_what_is_shown_is_what_no_later_attempt_has_reached(seen):
    stretches = [Stretch(attempt, step, attempt * 1000 + step) for attempt, step in dict.fromkeys(seen)]
    parts = {one.attempt: one for one in visible({attempt for attempt, _ in seen}, stretches)}
    for attempt, step in seen:
        reached = any(later > attempt and begun <= step for later, begun in seen)
        assert parts[attempt].shows(step, 0) == (not reached)


def test_a_row_without_a_step_is_as_old_as_its_attempt_was_then(tmp_path):
    rows = {0: sample_rows(1, 4)[0]}
    begins = {one.step: one.time_ns for one in reversed(rows[0]) if one.step is not None}
    early, late = (Memory(edge="sample", rank=0, source="fake", time_ns=at) for at in (begins[2] - 1, begins[2]))
    directory = write_run(tmp_path / "run", {0: [*rows[0], early, late]})
    second_launch(directory, of_steps(sample_rows(1, 4), lambda step: step >= 2))
    with Run(directory) as run:
        shown = run.memory
    first = shown[(shown["attempt"] == 1) & shown["step"].isna()]
    assert first["time_ns"].max() < begins[2]
    assert begins[2] - 1 in set(first["time_ns"])


@pytest.mark.parametrize("kept", FORMS)
def test_a_rows_that_are_followed_leave_out_what_a_later_attempt_hides(tmp_path, kept):
    rows = {0: sample_rows(1, 4)[0]}
    begins = {one.step: one.time_ns for one in reversed(rows[0]) if one.step is not None}
    early, late = (Memory(edge="sample", rank=0, source="fake", time_ns=at) for at in (begins[2] - 1, begins[2]))
    directory = write_run(tmp_path / "run", {0: [*rows[0], early, late]})
    second_launch(directory, of_steps(sample_rows(1, 4), lambda step: step >= 2))
    bring(directory, kept)
    with Run(directory) as run:
        followed = list(run.tail("memory", stop=lambda: True))
        shown = run.memory
        first = list(Run(directory, 1).tail("memory", stop=lambda: True))
    told = [(row.attempt, row.step, row.time_ns, row.edge) for row in followed]
    table = shown[["attempt", "step", "time_ns", "edge"]].astype(object).where(lambda frame: frame.notna(), None)
    assert sorted(told, key=repr) == sorted(table.itertuples(index=False, name=None), key=repr)
    assert {one.step for one in first} == {None, 0, 1, 2, 3}


def test_a_a_row_that_comes_later_hides_from_then_on(directory):
    train(directory, 0.2, 3)
    with Run(directory) as run:
        seen, ends = [], iter([False, False, True])

        def stop():
            return next(ends)

        for row in run.tail("scalars", poll_s=0.01, stop=stop):
            if row.source == "probe":
                continue
            seen.append((row.attempt, row.step, row.value))
            if len(seen) == 3:
                train(directory, 0.8, 2)
    assert seen == [(1, step, 0.2) for step in range(3)] + [(2, step, 0.8) for step in range(2)]
    with Run(directory) as run:
        again = [(row.attempt, row.step) for row in run.tail("scalars", stop=lambda: True) if row.source != "probe"]
    assert again == [(2, 0), (2, 1)]


def test_the_sample_run_has_one_attempt_and_nothing_hidden(tmp_path):
    with Run(write_run(tmp_path / "run", sample_rows(2, 3))) as run:
        assert (run.attempts, run.hidden) == ([1], [])
