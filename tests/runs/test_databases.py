"""A forked child frees none of its parent's databases: DuckDB would take it down."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import probe


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_that_frees_a_run_lives_on(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(0):
        probe.samples([3, 4], advantages=[1.0, 0.0])
    run = probe.open(tmp_path / "run")
    assert len(run.samples) == 2
    assert run.findings() is not None
    child = os.fork()
    if child == 0:
        del run
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(run.samples) == 2
    run.close()
