"""The end of a launch, told to a worker of Ray in a file of the run. A real cluster: tests/frameworks/test_ray.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import probe
from probe.hooks import phase
from probe.live.feed import Feed
from probe.runs import rolling
from probe.runs.ending import end, told_ns
from tests.waiting import until


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is what an actor of Ray is to itself."""
    context = SimpleNamespace(
        gcs_address="127.0.0.1:6379", get_job_id=lambda: "01", get_actor_id=lambda: "a1", get_actor_name=lambda: "actor"
    )
    module = SimpleNamespace(
        SCRIPT_MODE=0, WORKER_MODE=1, is_initialized=lambda: True, get_runtime_context=lambda: context,
        _private=SimpleNamespace(worker=SimpleNamespace(global_worker=SimpleNamespace(mode=1, actors={"a1": None}))),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", module)


@pytest.mark.parametrize("later_s", [0, 1])
def test_rows_become_parquet_however_soon_the_driver_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, later_s: int
) -> None:
    """Before the worker's first look for an end, and after it; and while pyarrow is still being imported there."""
    monkeypatch.setattr(rolling, "warm_up", lambda: time.sleep(1))
    with probe.start("ended", run_dir=tmp_path / "run", recorders=["memory"]):
        with phase("update"):
            pass
        time.sleep(later_s)
        end(tmp_path / "run", 1)  # which waits for this worker
        assert Feed(tmp_path / "run").finished()


def test_a_worker_that_begins_after_an_end_goes_on_writing(tmp_path: Path) -> None:
    """A driver that has closed its session may give work to new actors; its next end tells them."""
    with probe.start("ended", run_dir=tmp_path / "run", recorders=["memory"]), phase("update"):
        pass
    end(tmp_path / "run", 1)
    first = told_ns(tmp_path / "run", 1)
    time.sleep(0.05)  # a file system's clock may tick a hundred times a second
    with probe.start("ended", run_dir=tmp_path / "run", recorders=["memory"]) as session:
        assert session.process.attempt == 1
        with phase("update"):
            pass
        rounds = time.monotonic() + 1.5  # some of them
        while time.monotonic() < rounds:
            assert not Feed(tmp_path / "run").finished()
            time.sleep(0.1)
        end(tmp_path / "run", 1)
        assert told_ns(tmp_path / "run", 1) > first
        until(lambda: Feed(tmp_path / "run").finished())
