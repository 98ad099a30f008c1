"""4: what is called a hang, and what is only slow."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import probe
from probe import hooks
from probe.analysis.verdict import ended, hanging, verdict
from probe.cli import main
from probe.opened import Run
from probe.records import Process
from probe.runs.now_file import NowFile, copied

MINUTES = 60 * 1_000_000_000


@pytest.mark.parametrize("before", [0, 2, 5])
def test_4_a_phase_that_is_open_for_long_hangs_only_where_its_like_are_known(tmp_path: Path, before: int) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(before):
            with session.step(step), probe.phase("generate"):
                pass
        with session.step(before), probe.phase("generate"):
            session.flush()
            run, now = session.run.refresh(), time.time_ns()
            assert hanging.hang(run, now) == []
            assert hanging.hang(run, now + MINUTES // 2) == []  # it may only be slow
            found = hanging.hang(run, now + 5 * MINUTES)
    # A first step is slow by itself: compiling, loading, caches.
    assert [one.name for one in found] == ([] if before < hanging.KNOWN else ["hang"])
    for one in found:
        assert (one.where.step, one.where.phase, one.where.rank) == (before, "generate", 0)
        assert one.confidence == "medium"


@pytest.mark.usefixtures("lenient")
def test_2_one_look_that_fails_leaves_what_the_others_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: object) -> list[object]:
        raise ZeroDivisionError

    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        with session.step(0):
            pass
        session.flush()
        monkeypatch.setattr(verdict, "LOOKS", (fails, *verdict.LOOKS))
        assert len(session.run.findings()) > 0


def elsewhere(run: Path, rank: int, *, ahead_s: float, open_s: float, host: str = "elsewhere") -> NowFile:
    """The page of a rank of another machine, whose clock is ahead: for so long it is in a micro-batch of step 3."""
    now, process = time.monotonic_ns(), f"rank-{rank:05d}"
    wall = time.time_ns() + int(ahead_s * 1e9)
    made = Process(process=process, rank=rank, host=host, pid=os.getpid(), world_size=2, time_ns=now, wall_ns=wall)
    page = NowFile(run / f"{process}.now", made)
    begun = now - int(open_s * 1e9)
    for kind, name in (("step", "step"), ("phase", "update"), ("micro_batch", "1")):
        inner = {"phase": "update"} if kind != "step" else {}
        number = {"micro_batch": 1} if kind == "micro_batch" else {}
        page.entered(hooks.Scope(kind, name, page.at, step=3, **inner, **number), threading.get_ident(), begun)
    page.beat()
    return page


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A run of two ranks that have cut step 3: rank 1 has two micro-batches, and rank 0 one."""
    for rank in range(2):
        with probe.start("p", run_dir=tmp_path / "run", rank=rank, world_size=2) as session:
            for step in range(4):
                with session.step(step), probe.phase("update"):
                    for index in range(1 + rank):
                        with probe.micro_batch(index, lengths=[4]):
                            pass
    return tmp_path / "run"


@pytest.mark.parametrize("ahead_s", [-60, 0, 60])
def test_4_a_machine_s_clock_that_is_a_minute_off_makes_no_hang(two: Path, ahead_s: float) -> None:
    page = elsewhere(two, 1, ahead_s=ahead_s, open_s=0.1)
    with Run(two) as run:
        assert hanging.hang(run) == []
    page.close()


@pytest.mark.parametrize("ahead_s", [-60, 0, 60])
def test_4_a_hang_where_the_clock_is_a_minute_off_is_found_with_its_own_time(two: Path, ahead_s: float) -> None:
    page = elsewhere(two, 1, ahead_s=ahead_s, open_s=20)
    with Run(two) as run:
        (found,) = hanging.hang(run)
        told, rows = run.post_mortem(), run.sql(found.evidence_sql)
        waits = run.sql(found.folded[0].evidence_sql)
    page.close()
    assert (told.state, [one.how for one in told.events]) == ("hangs", ["awaited", "hang"])
    # 2: the place is the culprit's, and the rows are of it alone; who waits is below it
    assert (found.where.rank, found.where.step, found.where.phase) == (0, 3, "update")
    assert (set(rows["rank"]), set(rows["step"]), set(rows["phase"])) == ({0}, {3}, {"update"})
    assert [(one.name, one.where.rank, one.where.micro_batch) for one in found.folded] == [("waits", 1, 1)]
    assert waits["rank"].tolist() == [1]
    assert found.sentence.startswith(
        "Rank 0 has 1 micro-batch in update · step 3 where rank 1 has 2, and rank 1 has waited for it for 20."
    )
    assert found.cost.seconds == pytest.approx(20, abs=1)


def test_4_what_a_copy_that_is_old_says_is_no_hang(two: Path) -> None:
    """Nobody brings it up to date: that is no sign of its processes."""
    page = elsewhere(two, 1, ahead_s=0, open_s=0.1)
    path = two / "rank-00001.now"
    path.write_bytes(copied(path.read_bytes(), time.time_ns()))
    with Run(two) as run:
        assert hanging.hang(run, time.time_ns() + 60 * MINUTES) == []
    page.close()


def test_4_a_machine_on_which_nothing_runs_any_more_is_told_after_what_clocks_may_differ_by(two: Path) -> None:
    page = elsewhere(two, 1, ahead_s=0, open_s=0.1)
    with Run(two) as run:
        assert hanging.hang(run, time.time_ns() + MINUTES) == []
        (found,) = hanging.hang(run, time.time_ns() + 4 * MINUTES)
    page.close()
    assert "The interpreter of rank 1 is blocked" in found.why


def failing(run: Path, rank: int, *, count: int, phase: str, error: Exception) -> None:
    """A rank that raises in step 3 after so many micro-batches of update, as one of a process of its own."""
    with (
        pytest.raises(type(error)),
        probe.start("p", run_dir=run, rank=rank, world_size=2) as session,
        session.step(3),
    ):
        _raise(count, phase, error)


def _raise(count: int, phase: str, error: Exception) -> None:
    with probe.phase("update"):
        for index in range(count):
            with probe.micro_batch(index, lengths=[4]):
                if phase == "update" and index == count - 1:
                    raise error
    with probe.phase(phase):
        raise error


def waits_in_update(run: Path, *, micro_batches: int, open_s: float, host: str = "elsewhere") -> NowFile:
    """Rank 1 has so many micro-batches of step 3, and stands in the last one."""
    with probe.start("p", run_dir=run, rank=1, world_size=2) as session:
        for step in range(3):
            with session.step(step), probe.phase("update"):
                for index in range(2):
                    with probe.micro_batch(index, lengths=[4]):
                        pass
        with session.step(3), probe.phase("update"):
            for index in range(micro_batches):
                with probe.micro_batch(index, lengths=[4]):
                    pass
    return elsewhere(run, 1, ahead_s=0, open_s=open_s, host=host)


def test_2_who_waits_for_a_rank_that_has_failed_is_told_below_it(tmp_path: Path) -> None:
    """NCCL's ranks don't notice that another one has gone: the exception is the cause, not the waiting."""
    failing(tmp_path / "run", 0, count=1, phase="update", error=ValueError("bad label"))
    page = waits_in_update(tmp_path / "run", micro_batches=2, open_s=20)
    with Run(tmp_path / "run") as run:
        assert [one.name for one in hanging.hang(run)] == ["hang"]
        (found,) = ended.stopped(run)
        assert run.findings()[0].sentence == found.sentence == run.post_mortem().sentence
    page.close()
    assert found.sentence.startswith("Rank 0 raised ValueError in update · micro-batch 0 · step 3: bad label.")
    assert [one.name for one in found.folded] == ["hang"]


def test_4_a_rank_that_has_not_come_to_a_micro_batch_yet_has_no_fewer_of_them(tmp_path: Path) -> None:
    """Its own loop doesn't say how many there will be: it is late, and goes on."""
    page = waits_in_update(tmp_path / "run", micro_batches=2, open_s=20, host=platform.node())
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=2) as session:
        with session.step(3), probe.phase("update"), probe.micro_batch(0, lengths=[4]):
            session.flush()
            run, now = session.run.refresh(), time.time_ns()
            assert hanging.hang(run, now) == []
            (found,) = hanging.hang(run, now + 5 * MINUTES)
        assert found.sentence.startswith("Rank 0 is still in update · micro-batch 0 · step 3, and rank 1 has waited")
        assert (found.where.rank, found.where.micro_batch) == (0, 0)
        assert "fewer micro-batches" not in found.why
    page.close()


@pytest.mark.parametrize(
    ("group", "theirs", "number", "apart"),
    [
        ("default_pg", "nccl:all_gather", 12, True),
        ("default_pg", "nccl:all_reduce", 12, False),
        ("default_pg", "nccl:all_gather", 11, False),
        ("mesh_dp", "nccl:all_gather", 12, False),  # each row of a mesh may have a group of this description
    ],
)
def test_13_ranks_that_call_different_collectives_are_told_so(
    two: Path, monkeypatch: pytest.MonkeyPatch, group: str, theirs: str, number: int, *, apart: bool
) -> None:
    """What the flight recorder of each rank says is beside its line of code."""

    def seen(_: Run, one: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {
            "innermost": f"train.py:{7 + one['rank']} update",
            "stack": "",
            "collective_group": group,
            "collective_sizes": "4096",
        }
        of_rank = {0: (theirs, number), 1: ("nccl:all_reduce", 12)}[one["rank"]]
        return told | dict(zip(("collective", "collective_number"), of_rank, strict=True))

    monkeypatch.setattr(hanging, "_seen", seen)
    page = elsewhere(two, 1, ahead_s=0, open_s=20)
    with Run(two) as run:
        (found,) = hanging.hang(run)
    page.close()
    assert f"Rank 1 is at train.py:8 update, in nccl:all_reduce, collective 12 of {group} (4096)." in found.why
    assert f"Rank 0 is at train.py:7 update, in {theirs}, collective {number} of {group} (4096)." in found.why
    assert ("They call different collectives there" in found.why) is apart


@pytest.mark.parametrize("minutes", [2, 20])
def test_4_a_first_checkpoint_takes_its_time(tmp_path: Path, minutes: int) -> None:
    page = waits_in_update(tmp_path / "run", micro_batches=2, open_s=0.1)
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=2) as session:
        with session.step(3), probe.phase("update"):
            for index in range(2):
                with probe.micro_batch(index, lengths=[4]):
                    pass
        with session.step(4), probe.phase("save_checkpoint"):
            session.flush()
            found = hanging.hang(session.run.refresh(), time.time_ns() + minutes * MINUTES)
    assert [one.name for one in found] == ([] if minutes == 2 else ["hang"])
    page.close()


def test_4_a_collective_that_has_timed_out_names_the_rank_with_fewer_micro_batches(tmp_path: Path) -> None:
    late = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv")
    failing(tmp_path / "run", 0, count=2, phase="update", error=late)
    failing(tmp_path / "run", 1, count=1, phase="sync", error=late)
    with Run(tmp_path / "run") as run:
        (found,) = ended.ended(run)
        rows = run.sql(found.evidence_sql)
    assert found.sentence == (
        "Rank 1 has 1 micro-batch in update · step 3 where rank 0 has 2, which waited for it in micro-batch 1 until it "
        "was ended."
    )
    assert [one.name for one in found.folded] == ["failed", "failed"]
    assert (found.where.rank, rows["rank"].tolist(), rows["micro_batch"].tolist()) == (1, [1], [0])
    assert found.cost.seconds is not None  # 2: what is lost since the last step that ended


def test_4_a_collective_that_has_timed_out_with_even_counts_is_told_as_it_is(tmp_path: Path) -> None:
    late = RuntimeError("Timed out waiting 12000ms for recv")
    failing(tmp_path / "run", 0, count=2, phase="update", error=late)
    failing(tmp_path / "run", 1, count=2, phase="sync", error=late)
    with Run(tmp_path / "run") as run:
        (found,) = ended.ended(run)
    assert found.name == "failed"


def test_3_doctor_says_a_hang_once(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = elsewhere(two, 1, ahead_s=0, open_s=20)
    assert main(["doctor", str(two), "--json"]) == 1
    page.close()
    told = [one["message"] for one in json.loads(capsys.readouterr().out)["checks"]]
    assert sum("has waited for it" in one for one in told) == 1
    assert any(one.startswith("hangs") for one in told)
