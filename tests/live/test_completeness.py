"""The step that views follow: it has ended on every process that is alive in it, whoever is silent, gone or ahead."""

from __future__ import annotations

import itertools
import math
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.live import completeness, opening, series
from probe.live import feed as feed_module
from probe.live.completeness import GRACE_S, Completeness, Missing, Progress, standing_of
from probe.live.feed import Feed
from probe.live.pump import Pump
from probe.records import Process, Row
from probe.views.panel import static_bundle
from probe.views.terminal.following import Following
from tests.live.live_run import append, await_true, opened, roll
from tests.sample_run import clock, sample_rows, write_run

STEPS = st.integers(-1, 6)


@st.composite
def processes(draw: st.DrawFn) -> list[Progress]:
    found = []
    for rank in range(draw(st.integers(1, 5))):
        begun = draw(STEPS)
        at = draw(st.floats(0, 100))
        found.append(
            Progress(
                f"rank-{rank:05d}",
                draw(st.sampled_from([rank, None])),
                begun=begun,
                ended=draw(st.integers(-1, begun)),
                longest_s=draw(st.floats(0, 20)),
                heard_s=at,
                stepped_s=draw(st.floats(0, at)),
                replaced=draw(st.booleans()),
            )
        )
    return found


NAMES = [f"rank-{rank:05d}" for rank in range(5)]
OVER = {"gone", "ended"}
STATES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*sorted(OVER), "running", "unknown"]))


@given(processes(), st.floats(100, 140), STATES)
def test_c_nobody_who_is_waited_for_has_yet_to_end_the_step_and_everybody_else_is_named(known, now_s, states) -> None:
    found = standing_of(known, now_s, states)
    over = {name: state for name, state in states.items() if state in OVER}
    goes_on = [one for one in known if not (one.replaced or one.name in over or one.is_silent(now_s))]
    counted = [one for one in goes_on if one.begun >= 0 or one.rank is not None]
    if any(one.begun >= 0 for one in counted):
        assert all(one.ended >= (-1 if found.step is None else found.step) for one in counted)
        assert any(one.ended == (-1 if found.step is None else found.step) for one in counted)
        left = {one.name for one in known if one.begun >= 0 and not one.replaced} - {one.name for one in counted}
        assert {one.process for one in found.missing} == left
        assert all(one.why == over.get(one.process, "silent") for one in found.missing)
    else:
        assert found.missing == ()
    assert found.step is None or any(found.step == one.ended for one in known)


@given(processes(), st.floats(100, 140), STATES)
def test_c_of_a_finished_run_each_step_that_has_ended_is_complete(known, now_s, states) -> None:
    found = standing_of(known, now_s, states, finished=True)
    assert (found.step if found.step is not None else -1) == max(
        (one.ended for one in known if one.begun >= 0), default=-1
    )


@given(st.permutations(range(12)), st.integers(1, 3))
def test_c_the_order_in_which_ranks_are_read_changes_nothing(order: list[int], ranks: int) -> None:
    told = [(rank, step) for step, rank in itertools.product(range(12 // ranks), range(ranks))]
    in_order, shuffled = Completeness(), Completeness()
    for done, those in ((in_order, range(len(told))), (shuffled, [one for one in order if one < len(told)])):
        for rank in range(ranks):
            done.begin(f"rank-{rank:05d}", rank, 0.0)
        for at in those:
            rank, step = told[at]
            done.note_step(f"rank-{rank:05d}", step, step, step + 0.5)
            done.hear(f"rank-{rank:05d}", step + 0.5, step)
    assert standing_of(in_order, 5.0, {}) == standing_of(shuffled, 5.0, {})


def two(slow_heard_s: float, slow_begun: int = 3) -> list[Progress]:
    fast = Progress("rank-00000", 0, begun=7, ended=6, longest_s=2.0, heard_s=100.0, stepped_s=100.0)
    slow = Progress("rank-00001", 1, begun=slow_begun, ended=2, longest_s=30.0, heard_s=slow_heard_s, stepped_s=20.0)
    return [fast, slow]


def test_c_who_is_silent_for_longer_than_its_longest_step_and_ten_seconds_is_not_waited_for_and_is_named() -> None:
    assert standing_of(two(100 - 30 - GRACE_S), 100.0, {}) == (2, ())
    since = 100 - 30 - GRACE_S - 0.1
    assert standing_of(two(since), 100.0, {}) == (6, (Missing("rank-00001", 1, since, "silent"),))


def test_c_between_steps_a_row_of_no_step_is_no_sign_of_the_next_one() -> None:
    """Memory is sampled for as long as a process lives, also after its last step."""
    assert standing_of(two(100.0, slow_begun=2), 100.0, {}).step == 6


def test_c_who_is_gone_is_not_waited_for_at_once() -> None:
    assert standing_of(two(99.9), 100.0, {"rank-00001": "gone"}) == (6, (Missing("rank-00001", 1, 99.9, "gone"),))


def test_c_of_a_run_of_which_nobody_is_left_the_last_moment_counts() -> None:
    states = dict.fromkeys(("rank-00000", "rank-00001"), "gone")
    assert standing_of(two(99.9), 1e6, states).step == standing_of(two(99.9), 1e6, {}).step == 2
    assert standing_of(two(10.0), 1e6, {}).step == 6


def test_c_a_rank_that_has_just_begun_will_take_part_and_one_that_never_does_is_not_waited_for_long() -> None:
    done = Completeness()
    done.begin("rank-00000", 0, 0.0)
    done.begin("rank-00001", 1, 0.0)
    done.begin("server", None, 0.0)
    done.note_step("rank-00000", 0, 1.0, 2.0)
    done.hear("rank-00000", 2.0, 0)
    assert standing_of(done, 2.0, {}).step is None
    for now_s in (5.0, 10.5):
        done.hear("rank-00000", now_s, 0)
        done.hear("rank-00001", now_s)
    assert standing_of(done, 10.5, {}) == (0, ())


def test_c_who_takes_the_place_of_another_stands_for_it() -> None:
    done = Completeness()
    for process, step in (("rank-00000", 9), ("rank-00000.1", 3)):
        done.begin(process, 0, 0.0)
        done.note_step(process, step, 0.0, 1.0)
        done.hear(process, 1.0, step)
    assert standing_of(done, 1.0, {}) == (3, ())


# ------------------------------------------------------------------------------------------------------ in a run


def alone(rank: int, world_size: int = 2, pid: int = 0) -> Process:
    """A process whose rows of nine steps end a moment ago; without a pid nobody can say whether it lives."""
    past_ns = max(row.time_ns for row in sample_rows(2, 9)[0]) - clock(0) + 10**9
    told = {"wall_ns": time.time_ns() - past_ns, "pid": pid, "host": platform.node()}
    return Process(rank=rank, time_ns=clock(rank), world_size=world_size, **told)


def behind(ranks: int = 2, steps: int = 9) -> dict[int, list[Row]]:
    """All ranks but the first are in the middle of the last step."""
    rows = sample_rows(ranks, steps)
    for rank in range(1, ranks):
        last = [row for row in rows[rank] if row.step == steps - 1]
        rows[rank] = [row for row in rows[rank] if row.step != steps - 1] + last[: len(last) // 3]
    return rows


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody in it counts as silent, however long a test takes to read it."""
    monkeypatch.setattr(completeness, "GRACE_S", 1e6)
    return write_run(tmp_path / "run", behind(), processes={rank: alone(rank) for rank in range(2)})


@pytest.mark.parametrize("large", [False, True])
def test_c_a_step_that_one_rank_has_ended_is_not_the_complete_one(run: Path, large: bool, monkeypatch) -> None:
    if large:
        monkeypatch.setattr(opening, "LARGE_BYTES", -1)
    feed = opened(run)
    assert (feed.step, feed.complete_step) == (8, 7)
    assert feed.missing() == []
    rest = [row for row in sample_rows(2, 9)[1] if row.step == 8]
    append(run, rest[len(rest) // 3 :])
    feed.update()
    assert feed.complete_step == 8


def test_c_the_panel_the_saved_copy_and_tail_all_show_the_complete_step(run: Path) -> None:
    """Imbalance isn't 1.0 at the live end."""
    imbalance = {"id": "x", "title": "x", "table": "micro", "y": "tokens", "each": "rank", "reduce": "imbalance"}
    feed = opened(run)
    steps, values = series.by_step(feed.tables, feed.words, imbalance)
    assert steps == list(range(9))
    (reading,) = static_bundle.readings(feed.tables, feed.words, [imbalance], feed.complete_step)
    assert reading.steps == list(range(8))
    assert reading.values == values[:8]
    pump = Pump(feed, None, 1.0)
    assert (pump.state()["step"], pump.state()["complete_step"]) == (8, 7)
    following = Following(str(run))
    assert [*following.look().steps, *following.look().steps] == list(range(8))
    assert following.step == 7


def test_c_a_killed_rank_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(feed_module, "ASK_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    path = write_run(tmp_path / "run", behind(), processes={0: alone(0), 1: alone(1, pid=child.pid)})
    monkeypatch.setattr(completeness, "GRACE_S", 1e6)
    feed = opened(path)
    assert feed.complete_step == 8
    (missing,) = feed.missing()
    assert (missing["name"], missing["why"]) == ("rank 1", "gone")
    assert missing["since"] == pytest.approx(time.time(), abs=60)
    assert Pump(feed, None, 1.0).state()["missing"] == [missing]


def test_c_a_rank_that_has_closed_its_files_is_named_as_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(feed_module, "ASK_S", 0.0)
    monkeypatch.setattr(completeness, "GRACE_S", 1e6)
    rows = sample_rows(2, 9)
    rows[1] = [row for row in rows[1] if (row.step or 0) < 3]
    path = write_run(tmp_path / "run", {1: rows[1]}, processes={1: alone(1)})
    roll(path)
    write_run(path, {0: rows[0]}, processes={0: alone(0)})
    feed = opened(path)
    assert feed.complete_step == 8
    assert [(one["name"], one["why"]) for one in feed.missing()] == [("rank 1", "ended")]


def test_c_a_run_without_scopes_of_steps_is_followed_to_its_newest_step(tmp_path: Path) -> None:
    rows = {0: [row for row in sample_rows(1, 4)[0] if type(row).__name__ == "Reduction"]}
    feed = Feed(write_run(tmp_path / "run", rows))
    assert feed.complete_step is None
    feed.open()
    assert feed.complete_step == feed.step == 3
    assert not math.isnan(feed.standing.step or 0)


TRAINING = """
import sys, time, probe
with probe.start("p", "e", run_dir=sys.argv[1], rank=0) as session:
    for step in range(10**6):
        with session.step(step):
            time.sleep(0.02)
"""


def test_c_the_panel_of_a_training_that_is_killed_says_so_and_shows_its_last_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "QUIET_S", 1e6)  # a training that the machine holds up isn't called quiet
    states: list[dict[str, Any]] = []
    path = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", TRAINING, str(path)]) as training:
        try:
            await_true(lambda: any(path.glob("*.jsonl")), lambda: [*path.parent.rglob("*")])
            pump = Pump(Feed(path), lambda head, _: states.append(head["state"]), 0.05)
            pump.open()
            pump.start()
            await_true(lambda: (pump.read(lambda feed: feed.complete_step) or 0) > 3, pump.state)
            assert {one.get("writers", "") for one in states} <= {""}
        finally:
            training.kill()
    await_true(lambda: any(one.get("writers") == "gone" for one in states), pump.state)
    pump.stop()
    feed = opened(path)
    assert feed.activity()["writers"] == "gone"
    newest = feed.activity()["newest_at"]
    told = next(one["updated_at"] for one in states if one.get("writers") == "gone")
    assert newest <= told
    assert feed.complete_step in (feed.step, feed.step - 1)
    assert not feed.finished()
