"""``--attempt``: every command that shows a run can show one launch of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probe.cli import main
from tests.runs.test_attempts import train


@pytest.fixture
def directory(tmp_path):
    train(tmp_path / "run", 0.25, 3)
    train(tmp_path / "run", 0.75, 2)
    return tmp_path / "run"


QUERY = "select step, value from scalars where key = 'reward/mean' order by step"
SECOND, FIRST = [[0, 0.75], [1, 0.75]], [[0, 0.25], [1, 0.25], [2, 0.25]]


def asked(capsys, *arguments):
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("chosen", "expected"), [((), SECOND), (("--attempt", 1), FIRST), (("--attempt", 2), SECOND)])
def test_sql_and_exports(directory, capsys, tmp_path, chosen, expected):
    rows = json.loads(asked(capsys, "sql", directory, QUERY, "--json", *chosen))
    assert [[row["step"], row["value"]] for row in rows] == expected
    asked(capsys, "export", directory, "--format", "csv", "-o", tmp_path / "out", "--tables", "scalars", *chosen)
    lines = (tmp_path / "out" / "scalars.csv").read_text().splitlines()
    assert sum("reward/mean" in line for line in lines) == len(expected)
    trace = asked(capsys, "export", directory, "--format", "perfetto", "-o", tmp_path / "trace", "--json", *chosen)
    assert json.loads(trace)["slices"] >= 2 * len(expected)


@pytest.mark.parametrize(("chosen", "newest"), [((), 1), (("--attempt", 1), 2)])
def test_tail(directory, capsys, chosen, newest):
    steps = [json.loads(line).get("step") for line in asked(capsys, "tail", directory, "--json", *chosen).splitlines()]
    assert max(step for step in steps if step is not None) == newest
    rows = asked(capsys, "tail", directory, "--once", "--tables", "scalars", "--json", *chosen).splitlines()
    found = {json.loads(row)["value"] for row in rows if json.loads(row)["key"] == "reward/mean"}
    assert 0.25 in found if chosen else found


def test_a_report_says_what_was_recorded_twice(directory, capsys, tmp_path):
    asked(capsys, "report", directory, "-o", tmp_path / "both.html")
    asked(capsys, "report", directory, "-o", tmp_path / "first.html", "--attempt", 1)
    both, first = ((tmp_path / name).read_text() for name in ("both.html", "first.html"))
    assert "Steps 0 to 2 were recorded twice; the newest is shown." in both
    assert "recorded twice" not in first
    assert "Attempt 1 of 2" in first


@pytest.mark.parametrize("command", ["sql", "tail", "report", "export"])
def test_an_attempt_that_is_not_there(directory, capsys, command, tmp_path):
    more = {"sql": ["select 1"], "export": ["--format", "csv", "-o", str(tmp_path / "o")], "tail": ["--once", "--json"]}
    assert main([command, str(directory), *more.get(command, []), "--attempt", "7"]) == 2
    assert "attempt: got 7, expected one that the run has: 1, 2" in capsys.readouterr().err
    assert Path(directory).exists()
