"""5: MLflow's own status of a run that an exception has ended, on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.tracking.tracking_readers import mlflow_client

SCRIPT = """
    import sys
    import probe
    from probe import session as sessions
    from probe.testing import FakeDevice
    light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
    sessions.patience.END_S = 300.0  # what MLflow is sent at the end takes its time on a loaded machine
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, track="mlflow", publish=False, **light)
    session.log({"reward/mean": 0.5}, 1)
    print(session.tracking.logger["mlflow"].run_id, flush=True)
    with session.step(1), probe.phase("update"):
        if sys.argv[2] == "raises":
            raise ValueError("in a phase")
        if sys.argv[2] == "interrupted":
            raise KeyboardInterrupt
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("raises", "FAILED"),
        # tests/test_exits.py has these two endings, in a database.
        pytest.param("interrupted", "KILLED", marks=pytest.mark.thorough),
        pytest.param("well", "FINISHED", marks=pytest.mark.thorough),
    ],
)
def test_5_mlflow_s_status_is_failed_where_an_exception_ended_the_run(
    mlflow_server: str, tmp_path: Path, how: str, expected: str
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "run"), how]
    environment = os.environ | {"MLFLOW_TRACKING_URI": mlflow_server}
    done = subprocess.run(command, env=environment, timeout=300, check=False, capture_output=True, text=True)
    run = mlflow_client(mlflow_server).get_run(done.stdout.split()[0])
    assert run.data.metrics["reward/mean"] == 0.5
    assert run.info.status == expected, done.stderr
