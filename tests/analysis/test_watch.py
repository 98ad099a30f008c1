"""3: a run is watched while it is written: what is found is that of the whole run, and old steps aren't read again."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from probe.analysis.verdict import Finding, Findings, facts, findings, waits
from probe.analysis.verdict import watch as watch_module
from probe.analysis.verdict.verdict import LOOKS, OFTEN
from probe.analysis.verdict.watch import Watch
from probe.records import TABLES
from probe.runs.columns import rows_of
from probe.runs.layout import PARTS_NAME, Segment
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from tests.zoo.planting import planted

STAGES = 4


class Replayed:
    """A finished run, written again row by row.

    Args:
        source: The run that is there.
        directory: Of the one that is written.
    """

    def __init__(self, source: Path, directory: Path) -> None:
        directory.mkdir()
        (directory / "run.json").write_bytes((source / "run.json").read_bytes())
        self.directory = directory
        told: list[tuple[int, Segment, int, bytes]] = []
        for path in (source / PARTS_NAME).glob("process-*.parquet"):
            segment = next(
                one
                for one in (Segment.of_rank(rank, number) for rank in range(8) for number in range(3))
                if one.part("process") == path.name
            )
            anchor = pq.read_table(path).to_pylist()[0]
            for table in TABLES:
                part = source / PARTS_NAME / segment.part(table)
                if part.exists():
                    for line, row in rows_of(table, pq.read_table(part)):
                        wall = row.time_ns + anchor["wall_ns"] - anchor["time_ns"]
                        told.append((wall, segment, line, encode(row)))
        self._lines = [(segment, line) for _, segment, _, line in self._ordered(told)]
        self._at = 0

    @staticmethod
    def _ordered(told: list[tuple[int, Segment, int, bytes]]) -> list[tuple[int, Segment, int, bytes]]:
        """By time, and those of a segment in their order."""
        latest: dict[Segment, int] = {}
        moved = []
        for wall, segment, line, data in sorted(told, key=lambda one: (one[1], one[2])):
            latest[segment] = max(wall, latest.get(segment, wall))
            moved.append((latest[segment], segment, line, data))
        return sorted(moved, key=lambda one: one[0])

    def write(self, share: float) -> None:
        """Write on, until a share of all rows is there."""
        until = round(share * len(self._lines))
        for segment, line in self._lines[self._at : until]:
            with (self.directory / segment.name).open("ab") as file:
                file.write(line)
        self._at = until

    def rest(self) -> list[bytes]:
        """The rows that aren't written yet."""
        return [line for _, line in self._lines[self._at :]]

    def roll_over(self, segment: Segment) -> None:
        """Make Parquet of the rows of a segment that has ended."""
        assert segment not in {one for one, _ in self._lines[self._at :]}
        for _ in roll_over(self.directory, segment):
            pass


class Counted(Run):
    """A run that tells what it was asked."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[tuple[str, int | None]] = []
        self.newest_of: list[int] = []  # steps from which on rows were given to queries that are prepared

    def newest(self, since: int) -> Any:
        self.newest_of.append(since)
        return super().newest(since)

    def sql(self, query_text: str, parameters: object = None, *, keep: bool = False, since: int | None = None) -> Any:
        self.asked.append((query_text, since))
        return super().sql(query_text, parameters, keep=keep, since=since)


def shape(text: str) -> str:
    """A query without the steps that it is asked about."""
    return re.sub(r"between -?\d+ and \d+", "between", text)


def anew(directory: Path) -> Findings:
    """What alarms come of, of all rows, read for each look by itself."""
    with Run(directory) as run:
        return Findings(one for look in OFTEN for one in facts.placed(run, look(run)))


def plain(found: Findings) -> str:
    return json.dumps([one.to_dict() for one in found], default=str, indent=1)


PLANTED = (
    "device_leak", "slow_rank", "starved_rank", "nan", "unequal_means", "last_one_wins", "gradient_spike",
    "accidental_reducer", "fragmentation", "equal_rewards",
)  # fmt: skip
SOUND = ("resumed", "slow first step", "growing curriculum", "without an accelerator")
#: Those of each run of CI: memory that grows, ranks that wait, a value of one row, and two healthy ones: one of two
#: attempts, and one without a device.
OFTEN_TRIED = ("device_leak", "starved_rank", "nan", "resumed", "without an accelerator")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The finished run with that fault, or of that healthy training; each is made once."""

    return functools.cache(lambda name: planted(tmp_path_factory, name, tmp_path_factory.mktemp("zoo") / "run"))


@pytest.fixture
def leaking(source: Callable[[str], Path]) -> Path:
    return source("device_leak")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.thorough] * (one not in OFTEN_TRIED)) for one in [*PLANTED, *SOUND]],
)
def test_3_at_each_stage_of_a_run_the_watch_finds_what_the_whole_run_says(
    name: str, source: Callable[[str], Path], tmp_path: Path
) -> None:
    replayed = Replayed(source(name), tmp_path / "run")
    replayed.write(0.1)
    with Run(tmp_path / "run") as run:
        watch = Watch(run, looks=OFTEN)
        for stage in range(1, STAGES + 1):
            replayed.write(stage / STAGES)
            found = watch.look(whole=True)
            assert not watch.failed
            assert plain(found) == plain(anew(tmp_path / "run"))
        replayed.roll_over(Segment.of_rank(0))  # not a row is new
        assert plain(watch.look(whole=True)) == plain(found)
    with Run(tmp_path / "run") as run:
        assert plain(Watch(run).look()) == plain(findings(run))


def test_3_old_steps_are_not_read_again(leaking: Path, tmp_path: Path) -> None:
    replayed = Replayed(leaking, tmp_path / "run")
    replayed.write(0.9)
    with Counted(tmp_path / "run") as run:
        watch = Watch(run, looks=OFTEN)
        before = watch.look(whole=True)
        assert before.named("device_leak") is not None
        known = {shape(text) for text, _ in run.asked}
        run.asked.clear()
        assert plain(watch.look(whole=True)) == plain(before)
        assert run.asked == run.newest_of == []  # nothing is new
        # What probe itself cost is told some steps later, on a busy machine many.
        oldest = min(int(found[1]) for line in replayed.rest() if (found := re.search(rb'"step":(\d+)', line)))
        assert oldest > 0
        replayed.write(1.0)
        after = watch.look(whole=True)
        # What is found now may ask what nobody had asked before.
        again = [(text, since) for text, since in run.asked if shape(text) in known]
        assert run.newest_of
        assert min(run.newest_of) >= oldest
        assert [(text, since) for text, since in again if since is None or since < oldest] == []
        assert plain(after) == plain(anew(tmp_path / "run"))


def test_3_rows_that_come_late_change_what_was_kept_of_their_step(leaking: Path, tmp_path: Path) -> None:
    replayed = Replayed(leaking, tmp_path / "run")
    late = [one for one in replayed._lines if b'"step":25' in one[1] and one[0].rank == 1]
    replayed._lines = [one for one in replayed._lines if one not in late]
    replayed.write(1.0)
    with Counted(tmp_path / "run") as run:
        watch = Watch(run, looks=OFTEN)
        watch.look(whole=True)
        before = {shape(text) for text, _ in run.asked}
        run.asked.clear()
        run.newest_of.clear()
        with (tmp_path / "run" / Segment.of_rank(1).name).open("ab") as file:
            file.writelines(line for _, line in late)
        after = watch.look(whole=True)
        assert plain(after) == plain(anew(tmp_path / "run"))
        # What is found now may ask what nobody had asked before.
        assert {since for text, since in run.asked if shape(text) in before} <= {25}
        assert set(run.newest_of) == {25}


def test_3_rows_that_came_and_were_rolled_over_between_two_looks_are_seen(leaking: Path, tmp_path: Path) -> None:
    replayed = Replayed(leaking, tmp_path / "run")
    replayed.write(0.5)
    with Counted(tmp_path / "run") as run:
        watch = Watch(run, looks=OFTEN)
        watch.look(whole=True)
        run.asked.clear()
        replayed.write(1.0)
        for rank in (0, 1):
            replayed.roll_over(Segment.of_rank(rank))
        found = watch.look(whole=True)
        assert plain(found) == plain(anew(tmp_path / "run"))
        # What phases keep, and whose they are, is asked for the first time, since there was no leak to tell of before.
        assert all(since is not None or "kept" in text or "roles" in text for text, since in run.asked)
        assert found.named("device_leak") is not None


@pytest.mark.usefixtures("lenient")
def test_what_could_not_be_looked_for_is_told_until_it_can_be(leaking: Path) -> None:
    broken = [True]

    def fails(run: Run) -> list[Finding]:
        if broken:
            raise KeyError("column")
        return [Finding("alarm", "late", "It is late.")]

    def works(run: Run) -> list[Finding]:
        return [Finding("alarm", "works", "It works.")]

    with Run(leaking) as run:
        watch = Watch(run, looks=(fails, works), often=(fails, works))
        assert [one.name for one in watch.look()] == ["works"]
        (failed,) = watch.failed
        assert "fails: KeyError: 'column'" in failed
        broken.clear()
        assert [one.name for one in watch.look(whole=False)] == ["late", "works"]
        assert watch.failed == []
        assert [one.name for one in watch.new_alarms()] == ["late", "works"]
        assert watch.new_alarms() == []
        assert 0 <= watch.pause_s <= 10


def test_what_may_be_an_alarm_is_looked_for_often(leaking: Path) -> None:
    with Run(leaking) as run:
        assert not {one.kind for look in set(LOOKS) - set(OFTEN) for one in look(run)} & {"alarm"}


def test_3_what_is_costly_waits_and_what_is_urgent_does_not(leaking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu, asked = [1000.0], [0.0], []
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(watch_module.time, "process_time", lambda: cpu[0])

    def urgent(run: Run) -> list[Finding]:
        asked.append("urgent")
        return []

    def alarm(run: Run) -> list[Finding]:
        asked.append("alarm")
        cpu[0] += 0.2
        return []

    def tuning(run: Run) -> list[Finding]:
        asked.append("tuning")
        cpu[0] += 5
        return []

    monkeypatch.setattr(watch_module, "URGENT", (urgent,))
    with Run(leaking) as run:
        watch = Watch(run, 0.005, looks=(urgent, alarm, tuning), often=(urgent, alarm))
        told: dict[str, list[float]] = {"urgent": [], "alarm": [], "tuning": []}
        while clock[0] < 2200:
            asked.clear()
            watch.look()
            for one in asked:
                told[one].append(clock[0] - 1000)
            assert 0 < watch.pause_s <= 9
            clock[0] += watch.pause_s
    gaps = {name: [after - before for before, after in itertools.pairwise(times)] for name, times in told.items()}
    assert max(gaps["urgent"]) <= 9
    assert told["alarm"][:3] == [0, 4.5, 44.5]  # the first reads all there is, and is no measure
    assert max(gaps["alarm"]) <= 40
    assert min(gaps["tuning"]) >= 1000
    assert cpu[0] / 1200 < 0.015


@pytest.mark.slow
def test_3_a_cause_that_shows_in_two_phases_is_one_alarm_whichever_of_them_is_the_worse(
    source: Callable[[str], Path],
) -> None:
    with Run(source("slow_rank")) as run:
        (slow,) = waits.ranks(run)
        elsewhere = slow.moved(where=replace(slow.where, phase="elsewhere"), weight=slow.weight / 2)
        (folded,) = waits.by_cause([elsewhere, slow])
        assert (folded, folded.folded) == (slow.moved(folded=(elsewhere,)), (elsewhere,))
        (other_rank,) = waits.by_cause([slow.moved(where=replace(slow.where, rank=7))])
        (turned,) = waits.by_cause([slow, elsewhere.moved(weight=2 * slow.weight)])
        stages = iter([[slow], [folded], [turned], [turned, other_rank]])

        def looks(_: Run) -> list[Finding]:
            return next(stages)

        watch, told = Watch(run, looks=(looks,), often=(looks,)), []
        for _ in range(4):
            watch.look(whole=True)
            told.append([one.where.rank for one in watch.new_alarms()])
    assert told == [[slow.where.rank], [], [], [7]]
