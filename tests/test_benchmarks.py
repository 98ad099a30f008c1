"""Each benchmark runs, in its smallest form: what is tested is that it runs, and not its figures."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import verl_cost
from benchmarks.__main__ import NAMES, TITLES, table
from benchmarks.fast_steps import turn_alone
from benchmarks.measure import Size

ROOT = Path(__file__).parent.parent

IN_BROWSER = ("jupyter_lab", "panel_browser", "samples_browser")
#: What these measure is in an environment of its own: their tests are in tests/frameworks.
OF_FRAMEWORKS = ("lightning_cost", "trl_cost", "verl_cost")
#: They fork, or call what stays in a process: each is given one of its own.
APART = ("fast_steps", "jupyter_server", "large_run", "perfetto", "tracking_log")
#: A browser, servers, or seconds of steps even in their smallest form: what is broken in these is a benchmark alone.
DEAR = ("functional", "jupyter_server", "large_run", "last_edition", "own_cost", "tracking_log", *IN_BROWSER)
#: Has no row where verl isn't installed.
OF_VERL = "balance"

NEEDED = {"name", "ours_s", "theirs_s", "ratio"}
ALLOWED = NEEDED | {"target", "note", "unit"}

RUN = """
import json, sys
from importlib import import_module
from benchmarks.measure import Size
print(json.dumps(import_module(f"benchmarks.{sys.argv[1]}").rows(Size.SMALL)))
"""


def of_own_process(name: str) -> list[dict[str, Any]]:
    call = [sys.executable, "-c", RUN, name]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(name: str, rows: list[dict[str, Any]]) -> None:
    """The rows have what a table is made of, and are lines of it."""
    for one in rows:
        assert set(one) >= NEEDED
        assert set(one) <= ALLOWED
        assert all(one[side] is None or math.isfinite(one[side]) for side in ("ours_s", "theirs_s")), one
        assert math.isfinite(one["ratio"]) or one["theirs_s"] == 0, one
    title, *rest = table(name, rows).splitlines()
    head, _, *lines = [line for line in rest if line.startswith("|")]
    assert title == f"## {TITLES[name]}"
    assert [line.split(" | ")[0] for line in lines] == [f"| {one['name']}" for one in rows]
    assert {line.count(" |") for line in lines} <= {head.count(" |")}


def told_apart(names: Iterable[str]) -> list[Any]:
    """The cases; what costs most is left to the thorough."""
    return [pytest.param(name, marks=[pytest.mark.thorough] * (name in DEAR)) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", told_apart(NAMES))
def test_each_runs(name):
    rows = of_own_process(name) if name in APART else import_module(f"benchmarks.{name}").rows(Size.SMALL)
    assert rows or name == OF_VERL
    check(name, rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", told_apart(IN_BROWSER))
def test_each_runs_in_a_browser(name, chromium):
    pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    rows = of_own_process(name)
    assert rows
    check(name, rows)


@pytest.mark.slow
def test_a_turn_in_a_process_of_its_own_has_its_steps():
    turn = turn_alone("plain", 3)
    assert len(turn.times) == len(turn.cpu) == 3
    assert all(time > 0 for time in turn.times)


def test_what_verls_workers_write_gives_a_row(tmp_path):
    """The training itself takes minutes, in verl's environment: here two workers count steps in which nothing runs."""
    code = "from benchmarks.verl_turns import _TURNS\nfor step in range(9): _TURNS.next(step)"
    for _ in range(2):
        call = [sys.executable, "-c", code]
        subprocess.run(call, check=True, cwd=ROOT, env={**os.environ, "COUNTER_DIR": str(tmp_path)}, timeout=600)
    ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in tmp_path.glob("turns-*.jsonl")]
    assert [[(line["step"], line["on"]) for line in lines] for lines in ranks] == [
        [(step, step % 2 == 0) for step in range(8)]
    ] * 2
    row = verl_cost.compared(ranks, [2.0, 3.0, 4.0], [100.0] * 3)
    assert row["note"].startswith("4 steps with probe on 2 ranks, compared with their neighbours")
    assert "the run reports 3 ms, 3.00% of steps of 100 ms" in row["note"]
    check("verl_cost", [row])


def test_each_module_with_rows_is_one_of_the_command():
    trees = {path.stem: ast.parse(path.read_text()) for path in Path(command.__file__).parent.glob("*.py")}
    with_rows = {
        name
        for name, tree in trees.items()
        if any(isinstance(one, ast.FunctionDef) and one.name == "rows" for one in tree.body)
    }
    assert set(TITLES) == with_rows
    assert sorted([*NAMES, *IN_BROWSER, *OF_FRAMEWORKS]) == sorted(with_rows)


def test_the_command_runs_those_that_are_named_in_their_smallest_form(capsys):
    command.main(["--small", "partition"])
    told = capsys.readouterr().out
    assert told.startswith(f"## {TITLES['partition']}\n")
    assert "partition time, 64 lognormal into 4" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such"], "no benchmark no_such: choose from "),
        (["--small", "--write", "now"], "--small gives no figures that could be written"),
        (["--small", "--full", "now"], "not allowed with argument"),
    ],
)
def test_the_command_refuses(arguments, said, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "DOCUMENT", tmp_path / "benchmarks.md")
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out
    assert not list(tmp_path.iterdir())
