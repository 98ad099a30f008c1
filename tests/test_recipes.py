"""A recipe of CONTRIBUTING.md, done literally in a copy of the tree: nothing else needs to be touched.

It adds what the recipe says and nothing more; then the tests of the structure, the contracts, the schema, the
dashboards and the docs' tables are green there.
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
BESIDE = {".git", ".venv", "runs", "multiruns", "outputs", "site", "build", "dist", "shared"}

#: What is green after each recipe; docs are here without the tests that run their code.
CHECKS = (
    "tests/test_structure.py",
    "tests/test_dotted_names.py",
    "tests/test_docstrings.py",
    "tests/runs/test_schema_stability.py",
    "tests/dashboards/test_dashboards.py",
    "tests/dashboards/test_quantities.py",
    "tests/tracking/test_tracking_docs.py",
    "tests/tracking/test_tracking_backends.py",
    "tests/test_docs.py",
)
NOT_THERE = "not runs_and_prints and not every_panel_draws"

RECORDER = '''
"""The pauses of training: how long each logging of metrics waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from probe.core.metric import Metric
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
    keys: ClassVar[tuple[str, ...]] = ("probe/pauses/seconds",)

    def fire(self, event: Event) -> Rows:
        """The wait that the trainer tells of."""
        return Pause(seconds=0.5, reason="data")

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Their sum in the step."""
        pauses = [row.seconds for row in rows if isinstance(row, Pause)]
        return {"probe/pauses/seconds": Metric("sum", pauses)} if pauses else {}
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
    assert run.sql("select value from scalars where key = 'probe/pauses/seconds'")["value"].tolist() == [0.5, 0.5]
feed = Feed(session.directory)
feed.open()
feed.update()
assert feed.tables["scalars"].columns()["rank"].tolist()
print("read")
"""


def left_out(folder, names):
    """What isn't of the tree, among the names in a folder of it."""
    beside = BESIDE.intersection(names) if Path(folder) == ROOT else set()
    return NOWHERE(folder, names) | beside


@pytest.fixture
def tree(tmp_path):
    copy = tmp_path / "tree"
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    return copy


def ran(tree, *command):
    """The output of a command in the tree, which it ends well."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def checked(tree, *more):
    """That the tests of :data:`CHECKS` are green there."""
    ran(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not browser and not slow", "-k", NOT_THERE,
        *(path for path in (*CHECKS, *more) if (tree / path).exists()))  # fmt: skip


def insert(path, before, line):
    """Add ``line`` in front of the only line that begins with ``before``."""
    text = path.read_text()
    assert text.count(f"\n{before}") == 1, f"{path}: {before!r}"
    path.write_text(text.replace(f"\n{before}", f"\n{line}\n{before}"))


@pytest.mark.slow
def test_a_recorder(tree):
    (tree / "probe/recorders/pauses.py").write_text(RECORDER.lstrip())
    insert(
        tree / "probe/recorders/__init__.py", '    "calls": ', '    "pauses": "probe.recorders.pauses:PausesRecorder",'
    )
    assert ran(tree, "-c", textwrap.dedent(READ)) == "read\n"
    shutil.rmtree(tree / "recipe_runs")
    checked(tree)
