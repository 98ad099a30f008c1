"""The run that a user gets: the reader's, and what answers about it, loaded when it is asked."""

from __future__ import annotations

import subprocess
import sys

import probe
from tests.sample_run import sample_rows, write_run


def test_one_attempt_of_it_answers_too(tmp_path):
    write_run(tmp_path / "run", sample_rows(1, 2))
    with probe.open(tmp_path / "run") as run, run.attempt(1) as alone:
        assert type(run) is type(alone) is probe.Run
        assert len(alone.findings()) == len(run.findings())


def test_opening_it_loads_nothing_that_answers(tmp_path):
    write_run(tmp_path / "run", sample_rows(1, 2))
    code = (
        "import sys, probe\n"
        "with probe.open(sys.argv[1]) as run:\n"
        "    heavy = ('pandas', 'duckdb', 'plotly', 'torch', 'probe.analysis', 'probe.views', 'probe.figures')\n"
        "    print(run.ranks, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[0] []"
