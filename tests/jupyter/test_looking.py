"""What the list is told of a run's alarms, each as what it is: in a job that was started again one happens again."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from probe.jupyter.looking import Looking

SCRIPT = textwrap.dedent("""
    import os, signal, sys
    import probe
    from probe.testing import FakeDevice  # which needn't import torch
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=1, recorders=["memory"], device=FakeDevice())
    with session.step(1), probe.phase("update"):
        session.flush()
        os.kill(os.getpid(), signal.SIGKILL)
""")


@pytest.mark.slow
def test_2_a_rank_that_is_killed_again_is_another_alarm(tmp_path: Path) -> None:
    run, told = tmp_path / "run", list[dict[str, Any]]()
    for _ in range(2):
        subprocess.run([sys.executable, "-c", SCRIPT, str(run)], capture_output=True, check=False)
        found = Looking().ended(str(run))["found"]
        assert found["failed"] is None
        told += [one for one in found["all_alarms"] if one["name"] == "killed"]
    assert [(one["attempt"], one["rank"]) for one in told] == [(1, 1), (2, 1)]
