"""``probe tail``: the panel's numbers as lines, as JSON and as a picture, and how it ends."""

from __future__ import annotations

import contextlib
import io
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.analysis import overview, steps
from probe.cli import main
from probe.dashboards import overview_tiles
from probe.dashboards.quantities import field_of
from probe.live import series
from probe.runs.reader import Run
from probe.views.terminal.following import Following
from tests.cli.tailing import ended, objects, told
from tests.live.live_run import opened
from tests.sample_run import sample_rows, write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run that has ended, which nobody may change, and all that is told of it as JSON."""
    path = ended(tmp_path_factory.mktemp("whole") / "arithmetic" / "grpo-small", sample_rows(4, 12))
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out):
        assert main(["tail", str(path), "--json"]) == 0
    out.seek(0)
    return path, objects(out.read().splitlines())


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
