"""``probe tail``: the panel's numbers as lines, as JSON and as a picture, and how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import platform
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from probe.analysis import overview, steps
from probe.cli import main
from probe.dashboards import overview_tiles
from probe.dashboards.quantities import field_of
from probe.live import series
from probe.records import Incident, Memory, Row
from probe.runs.layout import Segment
from probe.runs.lines import encode
from probe.runs.reader import Run
from probe.views.terminal import lines
from probe.views.terminal.following import Ending, Following
from probe.views.terminal.view import bar, spark, view
from tests.live.live_run import append, opened, roll
from tests.sample_run import process, sample_rows, write_run
from tests.waiting import PATIENCE_S

NASTY = "\x1b[2J\x1b]0;owned\x07[red]actor[/]"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has ended."""
    return ended(tmp_path / "arithmetic" / "grpo-small", sample_rows(4, 12))


def ended(path: Path, rows: dict[int, list[Row]]) -> Path:
    """A run that ended a minute ago."""
    made = write_run(path, rows)
    roll(made)
    old = time.time() - 60
    os.utime(made / "parts", (old, old))
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run that has ended, which nobody may change, and all that is told of it as JSON."""
    path = ended(tmp_path_factory.mktemp("whole") / "arithmetic" / "grpo-small", sample_rows(4, 12))
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out):
        assert main(["tail", str(path), "--json"]) == 0
    out.seek(0)
    return path, objects(out.read().splitlines())


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["tail", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


def objects(found: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found]


def kept(rows: dict[int, list], until: int) -> dict[int, list]:
    """The rows of the first steps."""
    return {rank: [row for row in own if row.step is None or row.step < until] for rank, own in rows.items()}


def of_step(step: int, ranks: int) -> list:
    return [row for own in sample_rows(ranks, step + 1).values() for row in own if row.step == step]


# ---------------------------------------------------------------------------------------- the same numbers


def test_each_step_has_the_numbers_of_the_panel(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    run, everything = whole
    found = [one for one in everything if one["type"] == "step"]
    assert [one["step"] for one in found] == list(range(12))
    feed = opened(run)
    for tile in overview_tiles():
        if tile.get("total"):
            continue
        of_panel = dict(zip(*series.by_step(feed.tables, feed.words, tile), strict=True))
        name = tile["id"] + {"s": "_s", "bytes": "_bytes", "ratio": "_ratio", "percent": "_ratio"}.get(tile["unit"], "")
        assert {one["step"]: one[name] for one in found} == pytest.approx(of_panel, rel=1e-15)
    assert [one["alerts"] for one in found] == [0] * 4 + [3] * 3 + [20] * 5


def test_each_step_has_the_numbers_of_the_report(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    run, everything = whole
    found = {one["step"]: one for one in everything if one["type"] == "step"}
    with Run(run) as read:
        frame, phases = overview.by_step(read).set_index("step"), steps.durations(read)
    names = {tile["id"]: field_of(tile) for tile in overview_tiles() if not tile.get("total")}
    assert len(names) >= 6
    for name in names.values():
        assert [one[name] for one in found.values()] == pytest.approx(frame[name].tolist(), rel=1e-12), name
    slowest = {(row.step, row.phase): row.largest_s for row in phases.itertuples()}
    mine = {(step, one["phase"]): one["time_s"] for step, told in found.items() for one in told["phases"]}
    assert mine == pytest.approx(slowest, rel=1e-6)  # the panel's times are 64-bit seconds since the run's start


def test_over_the_run_it_says_what_the_panel_says_without_a_kernel(run: Path) -> None:
    from probe.views.panel.panel import Panel

    following = Following(str(run))
    following.look()
    with Panel(run) as panel:
        said = repr(panel)
    own = {tile["id"] for tile in overview_tiles() if tile.get("own")}
    told = [one for one in following.numbers.tiles if one.id not in own]
    assert len(told) == len(following.numbers.tiles) - len(own) > 4
    for one in told:
        assert re.search(rf"{re.escape(one.title)} +{re.escape(one.reading.text)} +{re.escape(one.reading.note)}", said)


def test_phases_are_the_longest_first(run: Path) -> None:
    following = Following(str(run))
    following.look()
    phases = following.numbers.phases(11)
    assert phases[0].name in ("rollout", "update_actor")
    assert [one.time_s for one in phases] == sorted((one.time_s for one in phases), reverse=True)
    tokens = {one.name: one.tokens for one in phases}
    assert math.isnan(tokens["rollout"])
    with Run(run) as read:
        sums = read.micro_batches.query("step == 11").groupby("phase")["tokens"].sum().to_dict()
    assert {name: value for name, value in tokens.items() if not math.isnan(value)} == sums
    assert following.numbers.phases(None) == following.numbers.phases(99) == []


# --------------------------------------------------------------------------------------------------- lines


def test_the_lines_of_a_run_that_has_ended(run: Path, capsys) -> None:
    found = told(capsys, str(run))
    assert found[0] == f"arithmetic / grpo-small  {run}"
    assert [one for one in found if one.startswith("! ")] == [
        "! step 4  rank 0  backend  mlflow: log failed: connection refused (×3)",
        "! step 7  rank 0  dropped_rows  memory: dropped 17 rows (×17)",
    ]
    assert [int(one.split()[1]) for one in found if one.startswith("step ")] == list(range(12))
    assert re.match(
        r"step 11  step time .+ s  tokens per second .+  peak memory .+ GiB .*probe's own errors 20 \(act\)$", found[-2]
    )
    assert found[-1].startswith("finished, ")
    assert found[-1].endswith("last step 11, 17 rows dropped")


def test_json_says_first_and_last_which_run_it_is(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    run, found = whole
    first, last = found[0], found[-1]
    assert first["type"] == last["type"] == "run"
    assert (last["path"], last["project"], last["experiment"]) == (str(run), "arithmetic", "grpo-small")
    assert (last["state"], last["world_size"], last["ranks"], last["last_step"]) == ("finished", 4, 4, 11)
    assert (last["dropped_rows"], last["bad_lines"]) == (17, 0)
    assert last["duration_s"] > 1
    incident = next(one for one in found if one["type"] == "incident")
    assert {**incident, "t_s": None} == {
        "type": "incident", "t_s": None, "step": 4, "rank": 0, "process": "rank-00000", "kind": "backend",
        "where": "mlflow",
        "message": "log failed: connection refused", "count": 3, "switched_off": False,
    }  # fmt: skip


def test_once_is_the_state_now(run: Path, capsys) -> None:
    found = objects(told(capsys, str(run), "--json", "--once"))
    assert [one["type"] for one in found] == ["run", "finding", "finding", "incident", "incident", "step"]
    assert {one["kind"] for one in found[1:3]} == {"alarm"}
    assert found[-1]["step"] == 11
    said = told(capsys, str(run), "--once")
    assert said[-2].startswith("step 11 ")
    live = write_run(run.parent / "live", sample_rows(2, 3))
    found = objects(told(capsys, str(live), "--json", "--once", "--new"))
    assert [one["type"] for one in found] == ["run", "step"]
    assert found[0]["state"] == "quiet"  # its rows are old, and its host is another one


def test_a_run_in_another_store_is_the_same(whole: tuple[Path, list[dict[str, Any]]], capsys) -> None:
    import fsspec

    run, here = whole
    store = fsspec.filesystem("memory")
    store.put(str(run / "run.json"), "/tail/run.json")
    store.put(str(run / "parts"), "/tail/parts", recursive=True)
    try:
        found = objects(told(capsys, "memory://tail", "--json"))
    finally:
        store.rm("/tail", recursive=True)
    assert [one for one in found if one["type"] != "run"] == [one for one in here if one["type"] != "run"]
    assert (found[0]["state"], found[0]["path"]) == ("finished", "memory:///tail")


def test_new_leaves_out_what_is_there(run: Path, capsys) -> None:
    assert [one["type"] for one in objects(told(capsys, str(run), "--json", "--new"))] == ["run", "run"]


def test_rows_of_tables_are_those_of_the_files(run: Path, capsys) -> None:
    found = objects(told(capsys, str(run), "--tables", "incidents,scalars", "--json"))
    with Run(run) as read:
        assert len(found) == len(read.incidents) + len(read.scalars)
    assert {one["table"] for one in found} == {"incidents", "scalars"}
    first = next(one for one in found if one["table"] == "incidents")
    assert (first["where"], first["message"], first["count"]) == ("mlflow", "log failed: connection refused", 3)
    words = told(capsys, str(run), "--tables", "incidents")
    assert words[0].startswith("incidents      step 4 · rank 0  kind=backend  where=mlflow  message=log failed")
    assert told(capsys, str(run), "--tables", "incidents", "--new") == []


# ------------------------------------------------------------------------------------- a run that is written


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


@contextlib.contextmanager
def tail(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "probe", "tail", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


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


# ------------------------------------------------------------------------------------------------ the picture


def drawn(following: Following, width: int = 110) -> str:
    from rich.console import Console

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  (closed below)
    console.print(view(following))
    console.file.close()
    return console.export_text()


def test_the_picture_says_it_all(run: Path) -> None:
    following = Following(str(run))
    following.look()
    said = drawn(following)
    for one in ("arithmetic / grpo-small", "finished", "4 ranks", "step 11", "17 rows dropped", "phases of step 11"):
        assert one in said
    for one in following.numbers.tiles:
        assert re.search(rf"{one.title} +\S", said)
    assert re.search(r"Peak memory .* [█▉▊▋▌▍▎▏·]{20} \d+ % of 80.0 GiB", said)
    assert said.index("dropped_rows") < said.index("connection refused")  # the newest first
    assert all(len(line) <= 110 for line in said.splitlines())
    assert all(len(line) <= 60 for line in drawn(following, 60).splitlines())


def test_names_can_not_steer_the_terminal(tmp_path: Path, capsys) -> None:
    rows = sample_rows(1, 2, actor=NASTY)
    rows[0].append(Incident(kind=NASTY, where=NASTY, message=NASTY, rank=0, step=1, time_ns=rows[0][-1].time_ns))
    for row in rows[0]:
        row.phase = row.phase and f"{row.phase}{NASTY}"
    path = write_run(tmp_path / "run", rows, project=NASTY, experiment=NASTY)
    following = Following(str(path))
    following.look()
    said = drawn(following)
    assert "[red]actor[/]" in said
    roll(path)
    os.utime(path / "parts", (1, 1))
    for more in ([], ["--tables", "incidents,memory"]):
        said += "\n".join(told(capsys, str(path), *more))
    assert not {one for one in said if not one.isprintable()} - {"\n"}


def test_without_anything_it_says_so(tmp_path: Path, capsys) -> None:
    path = write_run(tmp_path / "run", {})
    following = Following(str(path))
    following.look()
    said = drawn(following)
    assert "waiting for rows" in said
    assert "no step yet" in said
    assert drawn(following).count("nan") == 0
    found = objects(told(capsys, str(path), "--json", "--once"))
    assert (found[0]["ranks"], found[0]["last_step"], found[0]["duration_s"]) == (0, None, None)


def test_lines_of_the_past_keep_their_peaks() -> None:
    values = [1.0] * 500 + [9.0] + [1.0] * 500
    assert spark(values, 20).count("█") == 1
    assert len(spark(values, 20)) == 20
    assert spark([], 20) == ""
    assert spark([math.nan, math.inf, 1.0, 2.0]) == "  ▁█"
    assert bar(1 / 16, 2) == "▏·"


@pytest.mark.slow
def test_a_terminal_gets_a_picture_that_follows(tmp_path: Path) -> None:
    """In a real terminal: what is seen while it runs, when the run ends, and after Ctrl-C."""
    path = write_run(tmp_path / "run", sample_rows(2, 9))
    with in_terminal(str(path)) as screen:
        screen.await_text("no rows since")
        screen.await_text("Peak memory")
        append(path, of_step(9, 2))
        screen.await_text("phases of step 9")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130
        last = screen.seen
        assert "\x1b[?1049l" in last  # the screen of before
        after = last.split("\x1b[?1049l")[1]
        assert "phases of step 9" in after  # and what was seen last
        assert "\x1b[?25h" in last  # with its cursor
        assert after.rstrip().endswith("probe tail: interrupted")
    with in_terminal(str(path)) as screen:
        screen.await_text("recording|no rows since")
        roll(path)
        assert screen.wait() == 0
        assert "finished" in screen.seen
    with in_terminal(str(path), "--once") as screen:
        assert screen.wait() == 0
        assert "phases of step 9" in screen.seen


class Screen:
    """The other end of a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.seen = ""

    def read(self, timeout_s: float) -> bool:
        if not select.select([self.descriptor], [], [], timeout_s)[0]:
            return False
        try:
            got = os.read(self.descriptor, 2**16)
        except OSError:  # the other end has gone
            return False
        self.seen += got.decode(errors="replace")
        return bool(got)

    def await_text(self, pattern: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)):
            assert time.monotonic() < end, self.seen[-3000:]
            self.read(0.2)

    def wait(self) -> int:
        """Its exit code. A process whose output nobody reads doesn't end."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen[-3000:]
            self.read(0.1)
        while self.read(0.2):
            pass
        return self.process.returncode


@contextlib.contextmanager
def in_terminal(*arguments: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with tail(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, text=False, env=environment) as process:
        os.close(theirs)
        try:
            yield Screen(process, ours)
        finally:
            os.close(ours)


# ------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "arguments",
    [["--tables", "nonsense"], ["--tables", ","], ["--new", "--from-start"], ["--once", "--follow"], ["--nonsense"]],
)
def test_misuse_of_tail_ends_with_2(arguments: list[str], tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as wrong:
        main(["tail", str(tmp_path), *arguments])
    assert wrong.value.code == 2
    assert "usage: probe" in capsys.readouterr().err


def test_what_is_no_run_ends_with_2_and_a_broken_one_with_1(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["tail", str(tmp_path / "nowhere")]) == 2
    newer = tmp_path / "newer"
    shutil.copytree(run, newer)
    (newer / "run.json").write_text('{"schema_version": 99}')
    assert main(["tail", str(newer)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "install a newer probe-rl" in said.err


def test_help_of_both_commands_brings_nothing_heavy() -> None:
    for command in ("open", "tail"):
        code = (
            "import sys, contextlib, io, probe.cli\n"
            "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
            f"    probe.cli.main(['{command}', '--help'])\n"
            "print(sorted({'torch', 'pandas', 'plotly', 'duckdb', 'pyarrow', 'rich'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        assert done.stdout.strip() == "[]"


def test_every_tile_says_what_the_report_says(run: Path) -> None:
    following = Following(str(run))
    following.look()
    with Run(run) as read:
        report = overview.numbers(read).set_index("name")
    assert [one.id for one in following.numbers.tiles] == report.index.tolist()
    for one in following.numbers.tiles:
        told = report.loc[one.id]
        said = (one.reading.text, one.reading.note, one.reading.means, one.reading.status)
        assert said == (told["text"], told["note"], told["about"], told["status"]), one.id
