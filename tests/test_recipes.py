"""Recipes of CONTRIBUTING.md, done literally in a copy of the tree: nothing else needs to be touched.

Each adds what its recipe says and nothing more, all of them to one copy, as copying and importing are what costs. Then
each does there what it is for, and the tests of the structure, the contracts, the schema, the dashboards and the docs'
tables are green.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOWHERE = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", ".hypothesis", "node_modules")
#: Not of the tree, where they stand beside it.
BESIDE = {".git", "runs", "multiruns", "outputs", "site", "build", "dist", "shared", "test-artifacts"}

#: What is green after the recipes; docs are here without the tests that run their code.
CHECKS = (
    "tests/test_structure.py",
    "tests/runs/test_schema_stability.py",
    "tests/dashboards/test_dashboards.py",
    "tests/tracking/test_tracking_base.py",
    "tests/tracking/test_tracking_docs.py",
    "tests/tracking/test_tracking_backends.py",
    "tests/tracking/test_tracking_mlflow.py",
    "tests/tracking/test_tracking_services.py",
    "tests/tracking/test_tracking_checks.py",
    "tests/test_cli.py",
    "tests/publishing/test_editions.py::test_every_panel_is_a_figure_and_a_table",
    "tests/views/test_report.py::test_every_panel_has_a_figure_a_name_for_readers_and_a_table",
    "tests/test_docs.py",
)
#: The first two ask for what isn't in the tree; nothing that is added can turn the others red, which take longest.
LEFT_OUT = (
    *("runs_and_prints", "every_panel_draws", "every_export", "strict_type_checkers"),
    *("golden_run_reads", "code_on_a_panel", "before_a_kill"),
)

RECORDER = '''
"""The pauses of training: how long each logging of metrics waited."""

from __future__ import annotations

from typing import ClassVar

from probe.hooks import Event
from probe.recorders.recorder import Recorder, Rows
from probe.records import Row


class Pause(Row, kw_only=True, tag="pauses"):
    """One wait of the trainer."""

    seconds: float
    reason: str = ""


class PausesRecorder(Recorder):
    """A row for each time that the trainer has logged."""

    points: ClassVar[tuple[str, ...]] = ("session.log",)
    rows: ClassVar[tuple[type[Row], ...]] = (Pause,)

    def fire(self, event: Event) -> Rows:
        """The wait that the trainer tells of."""
        return Pause(seconds=0.5, reason="data")
'''

READ = """
import probe
from probe.live.feed import Feed
from probe.runs.reader import Run

with probe.start("p", "e", root="recipe_runs", rank=0, world_size=1) as session:
    with session.step(1):
        session.log({"loss": 1.0}, step=1)
    session.flush()
    live = Feed(session.directory)  # the live panel's, on rows that it doesn't know
    live.open()
    with session.step(2):
        session.log({"loss": 2.0}, step=2)
    session.flush()
    live.update()
    assert live.rows_read > 0
with Run(session.directory) as run:
    assert run.tables["pauses"][["step", "reason", "seconds"]].values.tolist() == [[1, "data", 0.5], [2, "data", 0.5]]
    assert run.sql("select sum(seconds) as s from pauses")["s"].tolist() == [1.0]
feed = Feed(session.directory)
feed.open()
feed.update()
assert feed.tables["scalars"].columns()["rank"].tolist()
print("read")
"""

BACKEND = '''
"""Lantern: one line of JSON a call, flashed into a file of the run's directory."""

from __future__ import annotations

import json
from pathlib import Path

from probe.tracking.backends.base import Backend, Setup


class Lantern(Backend):
    """Flashes the numbers into ``lantern.jsonl`` of the run's directory."""

    def __init__(self, setup: Setup) -> None:
        self.path = (setup.directory or Path.cwd()) / "lantern.jsonl"
        self.location = str(self.path)

    def log(self, values: dict[str, float], step: int) -> None:
        """One line for the numbers of one step."""
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values}) + "\\n")

    def close(self, exit_code: int) -> None:
        """Nothing is open."""
'''

LOG = """
import json, os, pathlib
import probe

with probe.start("p", "e", root="recipe_runs", rank=0, world_size=1, track=["lantern"], publish=False) as session:
    session.log({"loss": 1.0}, step=1)
lines = (pathlib.Path(session.directory) / "lantern.jsonl").read_text().splitlines()
found = [line for line in map(json.loads, lines) if "loss" in line]
assert [(line["step"], line["loss"]) for line in found] == [(1, 1.0)], lines
print("flashed")
"""

COMMAND = '''
"""Say how many rows of metrics a run holds.

It is there to show how a command is added.
"""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.runs import add_run, find_run

ABOUT: Final = "count the metrics of a run"

EXAMPLE: Final = "probe count runs/arithmetic/grpo-small"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe count``."""
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Count and print."""
    from probe.runs.reader import Run

    with Run(find_run(arguments.run_path)) as found:
        print(f"{len(found.tables['scalars']):,} metrics")
    return 0
'''


PANEL = """
  - id: sequences_of_phases
    title: Sequences of each phase
    about:
      shows: How many sequences each phase cuts into micro-batches, step by step, over all ranks.
      read: A phase that falls got fewer prompts, or filters more of them.
      do: Look at what is filtered before the phase.
    missing: Nothing was cut.
    tables: [micro_batches]
    columns: [step, phase, value]
    view: tokens
    live:
      mark: stack
      table: micro
      x: step
      y: sequences
      by: phase
      reduce: sum
      unit: count
"""

SHOWN = """
import pathlib
from probe import dashboards
from probe.publishing import pictures
from probe.runs.reader import Run
from probe.views.report.report import write_report

(view,) = [view for view in dashboards.views() if view.id == "tokens"]
assert view.panels[-1].id == "sequences_of_phases"
(name, panel), = [one for one in pictures.panels() if one[1].id == "sequences_of_phases"]
with Run("docs/example_run") as run:
    made = pictures.draw(name, panel, run)
    sequences = run.sql("select sum(sequences) as n from micro_batches where step is not null")["n"][0]
    assert panel.frame(run).dropna(subset=["step"])["value"].sum() == sequences > 0
    write_report(run, "recipe.html")
assert set(made) == {"probe/token_balance/sequences_of_phases", "probe/token_balance/sequences_of_phases_table"}
text = pathlib.Path("recipe.html").read_text()
assert "Sequences of each phase" in text and '"sequences_of_phases":' in text
print("shown")
"""


def left_out(folder, names):
    """What isn't of the tree, among the names in a folder of it."""
    if Path(folder) != ROOT:
        return NOWHERE(folder, names)
    return NOWHERE(folder, names) | {name for name in names if name in BESIDE or name.startswith(".venv")}


def insert(path, before, line):
    """Add ``line`` in front of the only line that begins with ``before``."""
    text = path.read_text()
    assert text.count(f"\n{before}") == 1, f"{path}: {before!r}"
    path.write_text(text.replace(f"\n{before}", f"\n{line}\n{before}"))


def add_a_tracking_backend(tree):
    (tree / "probe/tracking/backends/lantern.py").write_text(BACKEND.lstrip())
    line = '    "lantern": "probe.tracking.backends.lantern:Lantern",'
    insert(tree / "probe/tracking/backends/__init__.py", '    "mlflow": ', line)
    insert(tree / "pyproject.toml", "mlflow = ", 'lantern = ["requests>=2"]')


def add_a_command(tree):
    (tree / "probe/cli/count.py").write_text(COMMAND.lstrip())
    insert(tree / "probe/cli/__init__.py", '    "doctor": ', '    "count": "probe.cli.count",')


def add_a_panel(tree):
    file = tree / "dashboards/token_balance.yaml"
    file.write_text(file.read_text().rstrip("\n") + PANEL)


def add_a_recorder(tree):
    (tree / "probe/recorders/pauses.py").write_text(RECORDER.lstrip())
    line = '    "pauses": "probe.recorders.pauses:PausesRecorder",'
    insert(tree / "probe/recorders/__init__.py", '    "calls": ', line)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    copy = tmp_path_factory.mktemp("recipes") / "tree"
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    for add in (add_a_tracking_backend, add_a_command, add_a_panel, add_a_recorder):
        add(copy)
    return copy


def ran(tree, *command):
    """The output of a command in the tree, which it ends well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment | {"PYTHONPATH": str(tree)}, capture_output=True,
        text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
def test_a_tracking_backend(tree):
    assert ran(tree, "-c", textwrap.dedent(LOG)).endswith("flashed\n")
    shutil.rmtree(tree / "recipe_runs")
    page = ran(tree, "-c", "import sys; sys.path.insert(0, 'docs'); from pages.inserts import filled\n"
               "print(filled(open('docs/backends.md', encoding='utf-8').read()))")  # fmt: skip
    assert "## lantern\n\n`pip install 'probe-rl[lantern]'`.\n\nFlashes the numbers into" in page


@pytest.mark.slow
def test_a_command(tree):
    metrics = int(ran(tree, "-m", "probe", "count", "docs/example_run").split()[0].replace(",", ""))
    assert metrics > 0
    assert "count the metrics of a run" in ran(tree, "-m", "probe", "--help")


@pytest.mark.slow
def test_a_panel(tree):
    assert ran(tree, "-c", textwrap.dedent(SHOWN)) == "shown\n"
    (tree / "recipe.html").unlink()


@pytest.mark.slow
def test_a_recorder(tree):
    assert ran(tree, "-c", textwrap.dedent(READ)) == "read\n"
    shutil.rmtree(tree / "recipe_runs")


@pytest.mark.slow
def test_imports_are_as_the_contracts_say(tree):
    # import-linter reads the packages where it is run
    ran(tree, "-c", "import sys; from importlinter.cli import lint_imports_command as lint; lint()")


@pytest.mark.slow
def test_what_was_green_is_green(tree):
    marks = "not browser and not multiprocess and not slow"
    names = " and ".join(f"not {name}" for name in LEFT_OUT)
    ran(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks, "-k", names, *CHECKS)
