"""Who tracks: of processes that learn their ranks late, rank 0, all of it, and nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from probe import session as sessions
from probe.runs.reader import Run
from probe.session import start
from probe.tracking.held import CAPACITY, HeldTracking
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300
RANKS = 2
STEPS = 6

#: A backend that writes what it gets to a file of its own process.
BACKEND = """
    import json, os
    from pathlib import Path
    class Told:
        made = 0
        def __init__(self, setup):
            Told.made += 1
            self.path, self.seen = Path(setup.directory, f"told-{os.getpid()}.json"), []
        def log(self, values, step):
            if "x" in values:  # and not the step's own metrics
                self.seen.append([step, values["x"]])
        def close(self, exit_code): self.path.write_text(json.dumps(self.seen))
"""

TRAINING = """
    import os, sys, time
    from pathlib import Path
    import probe
    from probe import session as sessions
    from probe.testing import FakeDevice
    sessions.patience.END_S = 300.0
    STEPS, RANKS = 6, 2
    LIGHT = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch

    def train(rank, place, told_rank=None):
        if place:
            import torch.distributed as dist
        config = {"lr": 1e-6}
        opened = probe.start("p", "e", run_dir="run", track="told_backend:Told", publish=False, config=config, **LIGHT)
        opened.log({"x": 100.0 * rank}, 0)  # before anybody knows a rank
        if place:
            dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=RANKS)
        else:  # all of them are there at one time, as the steps of a job are
            Path(f"begun-{rank}").touch()
            while len(list(Path().glob("begun-*"))) < int(os.environ["SLURM_NTASKS"]):
                time.sleep(0.01)
        for step in range(1, STEPS):
            with opened.step(step):
                pass
            opened.log({"x": 100.0 * rank + step}, step)
        opened.close()
        if place:
            dist.destroy_process_group()

    if __name__ == "__main__":
        if sys.argv[1] == "spawn":
            import torch.multiprocessing
            torch.multiprocessing.spawn(train, (sys.argv[2],), nprocs=RANKS)
        else:
            train(int(os.environ["SLURM_PROCID"]), sys.argv[2])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "told_backend.py").write_text(textwrap.dedent(BACKEND))
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    return tmp_path / "train.py"


def begun(script: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    known = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    known |= {"PYTHONPATH": f"{ROOT}:{script.parent}", "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, str(script), *arguments]
    return subprocess.Popen(command, cwd=script.parent, env=known, stderr=subprocess.PIPE, text=True)


def ended(processes: list[subprocess.Popen[str]]) -> None:
    for one in processes:
        _, said = one.communicate(timeout=TIMEOUT_S)
        assert one.returncode == 0, said


def told(place: Path) -> list[list[list[float]]]:
    return [json.loads(one.read_text()) for one in sorted(place.glob("run/told-*.json"))]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("by", [pytest.param("spawn", marks=pytest.mark.thorough), "srun"])
def test_b5_rank_0_alone_tracks_and_from_the_first_metric_on(script: Path, by: str) -> None:
    place = str(script.parent / "store")
    if by == "spawn":
        ended([begun(script, "spawn", place)])
    else:
        ranks = [{"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(RANKS)} for rank in range(RANKS)]
        ended([begun(script, "srun", place, **one) for one in ranks])
    assert told(script.parent) == [[[step, float(step)] for step in range(STEPS)]]
    with Run(script.parent / "run") as run:
        assert sorted(run.processes["rank"]) == list(range(RANKS))
        assert run.incidents.empty


@pytest.mark.slow
@pytest.mark.multiprocess
def test_b5_of_processes_that_never_learn_a_rank_one_tracks(script: Path) -> None:
    """They are as one rank each of nobody's: the first to come sends, at its end at the latest."""
    ranks = [{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"} for rank in range(2)]
    ended([begun(script, "srun", "", **one) for one in ranks])
    assert len(told(script.parent)) == 1
    assert len(told(script.parent)[0]) == STEPS


# ------------------------------------------------------------------------------------------------------ in one process


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend of this test's own, in a process that doesn't know its rank."""
    (tmp_path / "who_tracks_backend.py").write_text(textwrap.dedent(BACKEND))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "who_tracks_backend", raising=False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return "who_tracks_backend:Told"


def late(monkeypatch: pytest.MonkeyPatch, rank: list[int | None]) -> None:
    """The rank that a session finds out, now and later."""
    monkeypatch.setattr(sessions.starting, "rank_and_size", lambda: (rank[0], None if rank[0] is None else 2))


@pytest.mark.parametrize("rank", [0, 1])
def test_b5_where_there_are_several_values_wait_for_the_rank(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    known: list[int | None] = [None]
    late(monkeypatch, known)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with start("p", run_dir=tmp_path / "run", track=own, publish=False) as session:
        held = session.tracking
        assert isinstance(held, HeldTracking)
        session.log({"x": 0.5}, 1)
        assert held.waits
        assert "who_tracks_backend" not in sys.modules or sys.modules["who_tracks_backend"].Told.made == 0
        known[0] = rank
        until(lambda: not held.waits)
        session.log({"x": 1.5}, 2)
    assert told(tmp_path) == ([[[1, 0.5], [2, 1.5]]] if rank == 0 else [])


def test_b5_one_that_is_alone_tracks_after_a_while(tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late(monkeypatch, [None])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sessions.sending, "ALONE_S", (0.0, 0.0))
    with start("p", run_dir=tmp_path / "run", track=own, publish=False) as session:
        session.log({"x": 0.5}, 1)
        until(lambda: not session.tracking.waits)
    assert told(tmp_path) == [[[1, 0.5]]]


def test_b5_what_was_sent_before_is_told_by_an_incident(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[int | None] = [None]
    late(monkeypatch, known)
    with start("p", run_dir=tmp_path / "run", track=own, publish=False) as session:
        assert not isinstance(session.tracking, HeldTracking)  # nothing says that there are others
        session.log({"x": 0.5}, 1)
        known[0] = 3
        until(lambda: session.tracking is None)
        session.log({"x": 1.5}, 2)  # goes nowhere, and raises nothing
        until(lambda: told(tmp_path))
    assert told(tmp_path) == [[[1, 0.5]]]
    with Run(tmp_path / "run") as run:
        (incident,) = run.incidents.itertuples()
    assert incident.kind == "tracking"
    assert "1 calls went to who_tracks_backend:Told" in incident.message
    assert "rank 3" in incident.message


@pytest.mark.usefixtures("lenient")
def test_b5_a_backend_that_can_t_be_had_later_costs_only_itself(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[int | None] = [None]
    late(monkeypatch, known)
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "who_tracks_broken.py").write_text(
        "class Broken:\n    def __init__(self, setup): raise OSError('no route')\n"
    )
    monkeypatch.setattr(sessions.sending._log, "log", lambda *_, **__: time.sleep(0.5))  # on a busy machine
    with start("p", run_dir=tmp_path / "run", track="who_tracks_broken:Broken", publish=False) as session:
        session.log({"x": 0.5}, 1)
        known[0] = 0
        until(lambda: session.tracking is None)
        session.log({"x": 1.5}, 2)
    with Run(tmp_path / "run") as run:
        assert "no route" in run.incidents["message"].item()


def test_b5_what_is_held_has_a_bound(tmp_path: Path, own: str) -> None:
    held = HeldTracking("p", "e", own, directory=tmp_path / "run", at_the_end=lambda: True)
    (tmp_path / "run").mkdir()
    for step in range(CAPACITY + 10):
        held.log({"x": 1.0}, step)
    held.finish(0)
    (seen,) = told(tmp_path)
    assert [step for step, _ in seen] == list(range(10, CAPACITY + 10))


def test_b5_a_training_thread_doesn_t_wait_while_backends_are_opened(tmp_path: Path, own: str) -> None:
    slow = """
        import threading, who_tracks_backend
        begun, go_on = threading.Event(), threading.Event()
        class Slow(who_tracks_backend.Told):
            def __init__(self, setup):
                begun.set()
                assert go_on.wait(300)
                super().__init__(setup)
    """
    (tmp_path / "who_tracks_slow.py").write_text(textwrap.dedent(slow))
    (tmp_path / "run").mkdir()
    held = HeldTracking("p", "e", "who_tracks_slow:Slow", directory=tmp_path / "run", at_the_end=lambda: True)
    module = sys.modules["who_tracks_slow"]
    held.log({"x": 1.0}, 1)
    opening = threading.Thread(target=held.begin)
    opening.start()
    assert module.begun.wait(PATIENCE_S)
    held.log({"x": 2.0}, 2)  # while the backend isn't there
    held.drop()  # and it is too late for that
    assert not held.waits
    module.go_on.set()
    held.finish(0)
    opening.join()
    assert told(tmp_path) == [[[1, 1.0], [2, 2.0]]]
