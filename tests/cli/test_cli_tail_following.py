"""`probe tail` on a run that is written: steps as they end, ranks that are silent, and when it stops following."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from probe.cli import main
from probe.live import series
from probe.records import Incident, Memory, Row
from probe.runs.layout import Segment
from probe.runs.lines import encode
from probe.views.terminal import lines
from probe.views.terminal.following import Ending, Following
from tests.cli.tailing import drawn, ended, kept, objects, of_step, tail, told
from tests.live.live_run import append, roll
from tests.sample_run import process, sample_rows, write_run
from tests.waiting import PATIENCE_S


def test_a_step_is_told_once_it_is_over_on_every_rank(tmp_path: Path) -> None:
    rows = sample_rows(2, 9)
    path = write_run(tmp_path / "run", {0: [], 1: []}, processes={0: process(0), 1: process(1)})
    following = Following(str(path))
    assert following.look().steps == []
    first = {rank: [row for row in own if row.step == 0] for rank, own in rows.items()}
    ends = (
        at for at, row in enumerate(first[1]) if isinstance(row, Memory) and (row.kind, row.edge) == ("step", "leave")
    )
    end = next(ends)
    append(path, first[0])
    append(path, first[1][:end])  # its step goes on
    assert following.look().steps == []
    assert following.look().steps == []
    append(path, first[1][end:])
    assert following.look().steps == []  # something came just now: more may come
    assert following.look().steps == [0]
    assert following.look().steps == []
    append(path, [row for own in rows.values() for row in own if row.step in (1, 2)])
    following.look()
    assert following.look().steps == [1, 2]
    assert not following.over
    roll(path)
    os.utime(path / "parts", (1, 1))
    assert following.look().steps == []
    assert following.over


def begun(rows: list[Row], step: int) -> list[Row]:
    """The first rows of a step."""
    own = [row for row in rows if row.step == step]
    return own[: len(own) // 3]


def test_a_step_that_a_killed_rank_never_ended_is_told_once_it_is_not_waited_for(tmp_path: Path) -> None:
    rows = sample_rows(2, 3)
    path = write_run(tmp_path / "run", {**kept({0: rows[0]}, 1), 1: begun(rows[1], 0)})
    following = Following(str(path))
    following.look()
    assert following.look().steps == []
    append(path, [row for row in rows[0] if row.step == 1])  # now, and the other one's rows are old
    assert [*following.look().steps, *following.look().steps] == [0, 1]
    assert [one["name"] for one in following.feed.missing()] == ["rank 1"]
    assert "rank 1 is silent since" in drawn(following)
    assert lines.run_object(following)["not_waited_for"] == ["rank 1"]


def test_numbers_of_many_rows_in_one_look_are_exact(tmp_path: Path) -> None:
    """The panel thins what is more than it can send; sums over a step wouldn't hold."""
    path = write_run(tmp_path / "run", {0: [], 1: []}, processes={0: process(0), 1: process(1)})
    following = Following(str(path), rows=200_000)
    following.look()
    rows = sample_rows(2, 60)
    append(path, [row for own in rows.values() for row in own])
    following.look()
    assert following.feed.coalesced == following.left_out == 0
    tokens = dict.fromkeys(range(60), 0)
    for row in (row for own in rows.values() for row in own):
        if type(row).__name__ == "MicroBatch" and row.phase == "update_actor":
            tokens[row.step] += row.tokens
    for step, expected in tokens.items():
        of_phase = next(one for one in following.numbers.phases(step) if one.name == "update_actor")
        assert of_phase.tokens == expected


class Clock:
    """Stands where ``time`` is."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()


def test_rates_and_ranks(tmp_path: Path, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr("probe.views.terminal.following.time", clock)
    path = write_run(tmp_path / "run", sample_rows(2, 9), processes={0: process(0, 4), 1: process(1, 4)})
    following = Following(str(path))
    following.look()
    assert math.isnan(following.rows_per_second)
    assert (following.ranks, following.feed.world_size) == (2, 4)
    begun = sorted(series.by_step(following.feed.tables, following.feed.words, BEGIN)[1])
    assert following.numbers.steps_per_second == pytest.approx(8 / (begun[-1] - begun[0]))
    more = of_step(9, 2)
    append(path, more)
    clock.now += 2.0
    following.look()
    assert following.feed.rows_read == len(more) + sum(len(own) + 1 for own in sample_rows(2, 9).values())
    assert following.rows_per_second == len(more) / 2.0


def append_rankless(path: Path, rows: list[Row]) -> None:
    """What a process without a rank, such as one that serves a model, adds to the run."""
    written = [encode(msgspec.structs.replace(row, process="server", rank=None)) for row in rows]
    (path / Segment.of_rank(0, 9).name).write_bytes(b"".join(written))


def test_a_process_without_a_rank_is_no_rank(tmp_path: Path) -> None:
    rows = sample_rows(2, 3)
    path = write_run(tmp_path / "run", {**kept({0: rows[0]}, 1), 1: begun(rows[1], 0)})
    append_rankless(path, [process(7, 2), *(row for row in rows[1] if row.step == 0)])
    following = Following(str(path))
    following.look()
    assert -1 in following.feed.tables["spans"].columns()["rank"]
    assert following.ranks == 2
    assert [*following.look().steps, *following.look().steps] == []  # rank 1 hasn't ended the step


def test_what_all_ranks_tell_alike_is_one_line_and_what_one_tells_twice_is_two() -> None:
    about = {"kind": "backend", "where": "mlflow", "message": "refused", "count": 3, "off": False, "process": ""}
    ranks = [{**about, "step": 4, "rank": rank} for rank in range(1024)]
    assert lines.incident_lines(ranks) == ["! step 4  rank 0 and 1,023 others  backend  mlflow: refused (×3)"]
    other = [*ranks[:2], ranks[0], {**ranks[0], "step": 5}, {**ranks[0], "count": 1}]
    assert lines.incident_lines(other) == [
        "! step 4  rank 0 and 1 other  backend  mlflow: refused (×3)",
        "! step 4  rank 0  backend  mlflow: refused (×3)",
        "! step 5  rank 0  backend  mlflow: refused (×3)",
        "! step 4  rank 0  backend  mlflow: refused",
    ]


def test_e_the_lines_of_a_large_run_that_has_ended_are_worked_out_once(tmp_path: Path, capsys, monkeypatch) -> None:
    from probe.cli import tail
    from probe.runs import answers
    from probe.runs.layout import Segment
    from probe.runs.parts import roll_over

    path = write_run(tmp_path / "run", kept(sample_rows(2, 6), 6))
    monkeypatch.setattr(answers, "LEAST_BYTES", 1)
    before = told(capsys, str(path), "--once")
    for rank in (0, 1):
        assert list(roll_over(path, Segment.of_rank(rank, 0)))
    first = told(capsys, str(path), "--once")
    with_json = told(capsys, str(path), "--once", "--json")
    monkeypatch.setattr(tail, "_Lines", None)  # nobody works them out again
    assert told(capsys, str(path), "--once") == first
    assert told(capsys, str(path), "--once", "--json") == with_json
    assert first[1:-1] == before[1:-1]
    monkeypatch.setattr("probe.dashboards.digest", lambda: "other panels")
    with pytest.raises(TypeError):
        told(capsys, str(path), "--once")


def test_what_a_process_without_a_rank_tells_is_shown_under_its_name(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", {}, processes={})
    append_rankless(path, [process(7, 2), Incident(kind="value", where="kv", message="full", time_ns=8 * 10**12)])
    following = Following(str(path))
    (incident,) = following.look().incidents
    assert (incident["rank"], incident["process"]) == (None, "server")
    assert lines.incident_line(incident) == "! server  value  kv: full"
    assert lines.incident_object(incident)["rank"] is None
    assert (following.ranks, following.has_rows) == (0, True)
    said = drawn(following)
    assert "recording" in said or "no rows since" in said
    assert re.search(r"– +server +value +kv +full", said)


BEGIN = {"table": "spans", "where": {"kind": "step"}, "y": "begin", "reduce": "min"}


@pytest.mark.slow
def test_a_pipe_gets_each_step_as_it_ends(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", sample_rows(2, 9))
    with tail(str(path), "--json", "--new") as process:
        assert json.loads(process.stdout.readline())["type"] == "run"
        append(path, of_step(9, 2))
        found = json.loads(process.stdout.readline())
        assert (found["type"], found["step"]) == ("step", 9)
        append(path, [Incident(kind="listener", where="x", message="late", rank=1, time_ns=1, step=9)])
        assert json.loads(process.stdout.readline())["message"] == "late"
        roll(path)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["finished"]
    assert (process.returncode, err) == (0, "")


def killed(path: Path, rows: dict[int, list]) -> Path:
    """A run whose process isn't there any more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    first = process(0, 1)
    first.host, first.pid = platform.node(), child.pid
    return write_run(path, rows, processes={0: first})


@pytest.mark.parametrize("more", [[], ["--json"], ["--tables", "scalars"]])
def test_c_tail_of_a_killed_run_ends_and_says_so(more: list[str], tmp_path: Path, capsys) -> None:
    path = killed(tmp_path / "run", sample_rows(1, 3))
    assert main(["tail", str(path), *more]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    last = said.out.splitlines()[-1]
    if more == []:
        assert last.startswith("its process is gone, last row at 2026-09-21 ")
    elif more == ["--json"]:
        assert json.loads(last)["state"] == "gone"
    else:
        assert last.startswith("scalars ")


def test_c_a_killed_process_of_another_host_is_not_known_to_be_gone(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", sample_rows(1, 3))
    following = Following(str(path))
    following.look()
    following.look()
    assert not following.gone
    assert not Ending(following.feed).gone()
    assert lines.silence(following).startswith("no rows since ")


def test_c_a_finished_run_that_was_copied_just_now_is_finished(tmp_path: Path, capsys) -> None:
    path = killed(tmp_path / "run", sample_rows(1, 3))
    roll(path)
    shutil.copytree(path, tmp_path / "copy", copy_function=shutil.copy)
    found = objects(told(capsys, str(tmp_path / "copy"), "--json", "--once"))
    assert found[0]["state"] == "finished"


@pytest.mark.slow
def test_follow_stays_for_a_run_that_is_resumed_until_ctrl_c(tmp_path: Path) -> None:
    run = ended(tmp_path / "run", sample_rows(2, 8))
    with tail(str(run), "--json", "--follow", "--new") as process:
        assert json.loads(process.stdout.readline())["state"] == "finished"
        append(run, [process_again(0), *of_step(8, 1)], segment=1)
        append(run, [process_again(1)], segment=1)
        append(run, [process_again(0), *of_step(9, 1)], segment=1)
        assert json.loads(process.stdout.readline())["step"] == 8
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == "probe tail: interrupted\n"


def process_again(rank: int) -> Any:
    made = process(rank, 2)
    made.pid, made.time_ns = 999, made.time_ns + 10**11
    return made


@pytest.mark.slow
def test_a_reader_that_has_had_enough_is_no_error(run: Path) -> None:
    with tail(str(run), "--tables", "memory") as process:
        assert process.stdout.readline().startswith("memory")
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert "Traceback" not in process.stderr.read()
