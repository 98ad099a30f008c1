"""``PROBE_UPLOAD``: recordings that nobody begins by hand are copied to a store, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import probe
from probe.adapters import automatic
from probe.runs.reader import Run
from probe.session import start_automatically
from tests.adapters.start_file import ROOT, TIMER, package

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning")

JOB = """
import os
from nemo_rl.utils.timer import Timer

for label in ("generation", "policy_training"):
    with Timer().time(f"{label} of {os.environ['RANK']}"):
        pass
"""


def phases(run):
    return run.sql("select rank, phase from memory where kind = 'phase' and edge = 'leave' order by all").to_dict(
        "split"
    )["data"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_7_probe_run_of_a_torchrun_job_uploads_where_the_variable_says(tmp_path, server):
    path = package(tmp_path / "packages", "nemo_rl", **{"utils.timer": TIMER})
    job = tmp_path / "job.py"
    job.write_text(JOB)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(job)]
    done = subprocess.run(
        [sys.executable, "-m", "probe", "run", "--run-dir", str(tmp_path / "run"), "--", *launch],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), ROOT]), "PROBE_UPLOAD": server.url},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Run(tmp_path / "run") as here, Run(server.url) as there:
        assert phases(there) == [
            [0, "generation of 0"],
            [0, "policy_training of 0"],
            [1, "generation of 1"],
            [1, "policy_training of 1"],
        ]
        pd.testing.assert_frame_equal(there.memory, here.memory)


def test_7_a_variable_that_cannot_be_used_is_a_warning_and_an_incident_and_no_exception(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PROBE_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PROBE_UPLOAD", "no-such-store://user:password@host/run")
    monkeypatch.setattr(automatic, "_tried", set())
    assert automatic.is_recording(begin=True)
    with probe.current_session() as session:
        assert session.upload is None
        (told,) = session.run.incidents.to_dict("records")
    assert (told["kind"], told["where"]) == ("upload", "PROBE_UPLOAD")
    assert told["message"].startswith("PROBE_UPLOAD: no copy is made of this run: ")
    assert "no-such-store" in told["message"]
    assert "password" not in told["message"]
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == [told["message"]]


@pytest.mark.parametrize("given", [None, "theirs"])
def test_7_a_url_that_the_program_gives_is_taken_before_that_of_the_variable(tmp_path, monkeypatch, given):
    monkeypatch.setenv("PROBE_UPLOAD", str(tmp_path / "variable"))
    with start_automatically(tmp_path / "run"):
        url = None if given is None else tmp_path / given
        session = probe.start("p", run_dir=tmp_path / "run", upload=url)  # takes it over
        assert session.upload.url == str(tmp_path / (given or "variable"))
        with session.step(1):
            pass
    with Run(tmp_path / (given or "variable")) as copy:
        assert copy.memory["step"].dropna().tolist()


def test_7_an_empty_variable_asks_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_UPLOAD", "")
    with probe.start("p", run_dir=Path(tmp_path / "run")) as session:
        assert session.upload is None
        assert session.run.incidents.empty
