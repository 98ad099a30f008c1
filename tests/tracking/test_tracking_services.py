"""W&B, SwanLab and trackio: media, parameters, ends, and nothing lost to a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probe.tracking.tracking import Tracking
from tests.tracking.rich_values import rich_values
from tests.tracking.tracking_readers import swanlab_records, wandb_records, wandb_rows
from tests.waiting import until

#: What the clients of W&B, SwanLab and Trackio warn of or leave open is theirs to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.slow
def test_wandb_keeps_media_parameters_and_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = {"lr": 1e-6, "trainer": {"wandb_proxy": "http://127.0.0.1:9"}}
    with Tracking("p", "e", "wandb", config, directory=tmp_path) as tracking:
        tracking.log(rich_values(), 4)
        first = tracking.logger["wandb"]
    records = wandb_records(tracking.locations["wandb"])
    ((step, row),) = wandb_rows(tracking.locations["wandb"])
    assert step == 4
    assert row["lengths"] == {"_type": "histogram", "values": [3, 1], "bins": [1.0, 3.0, 5.0]}
    assert [row[name]["_type"] for name in ("samples", "curve", "picture", "note")] == [
        "table-file",
        "plotly-file",
        "image-file",
        "html-file",
    ]
    configs = [record.config for record in records if record.WhichOneof("record_type") == "config"]
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    updates = {
        u.key or "/".join(u.nested_key): u.value_json
        for one in (*configs, *(r.config for r in runs))
        for u in one.update
    }
    assert float(updates["lr"]) == 1e-6
    assert (runs[0].project, runs[0].display_name) == ("p", "e")
    assert first._run.settings.https_proxy == "http://127.0.0.1:9"
    with Tracking("p", "e", "wandb", directory=tmp_path) as tracking:
        assert tracking.logger["wandb"].run_id == first.run_id


@pytest.mark.slow
@pytest.mark.parametrize("exit_code", [0, 7])
def test_wandb_is_finished_with_the_exit_code_and_leaves_the_users_run_alone(exit_code, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    own = wandb.init(project="own", dir=tmp_path, settings=wandb.Settings(silent=True, console="off"))
    try:
        tracking = Tracking("p", "e", "wandb", directory=tmp_path)
        tracking.log({"x": 1}, 5)
        tracking.log({"x": 1}, 3)
        tracking.finish(exit_code)
        own.log({"mine": 1})
    finally:
        own.finish()
    records = wandb_records(tracking.locations["wandb"])
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == exit_code
    assert [step for step, _ in wandb_rows(tracking.locations["wandb"])] == [5]


@pytest.mark.slow
def test_wandb_loses_nothing_to_a_kill(tmp_path, monkeypatch):
    """What its own process had not written is sent again; W&B keeps one row a step of those that overlap."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    script = """
        import os, signal, sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", "wandb", directory=sys.argv[1])
        for step in range(20):
            tracking.log({"x": float(step)}, step)
        assert tracking.flush(300)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(command, env=environment, timeout=300, check=False).returncode == -signal.SIGKILL
    (killed,) = (tmp_path / "wandb").glob("offline-run-*")
    with Tracking("p", "e", "wandb", directory=tmp_path) as tracking:
        tracking.log({"x": 20.0}, 20)
    after = list(wandb_rows(tracking.locations["wandb"]))

    def both():  # the process of W&B may outlive ours and go on writing
        return {step: row["x"] for step, row in (*wandb_rows(killed, complete=False), *after)}

    until(both, lambda rows: rows == {step: float(step) for step in range(21)})
    assert len(after) == len({step for step, _ in after})


def test_swanlab_finishes_with_a_state_and_keeps_parameters(tmp_path, monkeypatch):
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    hook = sys.excepthook
    for exit_code, state in ((0, 1), (3, 2), (130, 3)):
        tracking = Tracking("p", f"e{exit_code}", "swanlab", {"a": {"lr": 0.5}}, directory=tmp_path)
        tracking.log({"x": 1.0, "note": "good"}, 1)
        assert sys.excepthook is hook
        tracking.finish(exit_code)
        place = Path(tracking.locations["swanlab"])
        assert "lr" in (place / "files/config.yaml").read_text()
        records = swanlab_records(place)
        (end,) = [record.finish for record in records if record.WhichOneof("record_type") == "finish"]
        assert end.state == state, end
        assert [path.read_text() for path in (place / "media/text").iterdir()] == ["good"]


def kill_after_flush(backend, directory):
    """A process that has logged and flushed 20 steps, and is killed."""
    script = """
        import os, signal, sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", sys.argv[1], {"lr": 0.5}, directory=sys.argv[2])
        for step in range(20):
            tracking.log({"x": float(step)}, step)
        if sys.argv[3] == "flushed":
            assert tracking.flush(300)
        while tracking._stream._journal.last < 20:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), backend, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for flushed in ("flushed", "at once"):
        killed = subprocess.run([*command, flushed], env=environment, timeout=300, check=False)
        assert killed.returncode == -signal.SIGKILL
        yield flushed


def test_swanlab_loses_nothing_to_a_kill_and_writes_nothing_twice(tmp_path, monkeypatch):
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    for flushed in kill_after_flush("swanlab", tmp_path):
        (killed,) = (tmp_path / "swanlog").glob("run-*")
        before = swanlab_steps(killed)
        assert len(before) == 20 or flushed == "at once"
        with Tracking("p", "e", "swanlab", directory=tmp_path) as tracking:
            tracking.log({"x": 20.0}, 20)
        assert [*before, *swanlab_steps(Path(tracking.locations["swanlab"]))] == list(range(21))
        shutil.rmtree(tmp_path / "swanlog")
        shutil.rmtree(tmp_path / "tracking")


def swanlab_steps(directory):
    if not next(directory.glob("run-*.swanlab")).stat().st_size:  # killed before its own thread wrote anything
        return []
    records = swanlab_records(directory)
    return [record.scalar.step for record in records if record.WhichOneof("record_type") == "scalar"]


def test_trackio_loses_nothing_to_a_kill_and_writes_nothing_twice(tmp_path, monkeypatch, trackio_directory):
    trackio = pytest.importorskip("trackio", reason="trackio lives in an environment of its own")
    monkeypatch.setenv("TRACKIO_DIR", trackio_directory)
    for flushed in kill_after_flush("trackio", tmp_path / "first"):
        with Tracking("p", "e", "trackio", directory=tmp_path / "first") as tracking:
            tracking.log({"x": 20.0}, 20)
        run_id = tracking.logger["trackio"].run_id
        rows = trackio.SQLiteStorage.get_logs("p", run_id=run_id)
        assert [(row["step"], row["x"]) for row in rows] == [(step, float(step)) for step in range(21)], flushed
        shutil.rmtree(tmp_path / "first")


def test_trackio_keeps_parameters_and_its_run(tmp_path, monkeypatch, trackio_directory):
    trackio = pytest.importorskip("trackio", reason="trackio lives in an environment of its own")
    monkeypatch.setenv("TRACKIO_DIR", trackio_directory)
    for step in (1, 2):
        with Tracking("own", "e", "trackio", {"a": {"lr": 0.5}}, directory=tmp_path) as tracking:
            tracking.log({"x": float(step)}, step)
    run_id = tracking.logger["trackio"].run_id
    assert [(row["step"], row["x"]) for row in trackio.SQLiteStorage.get_logs("own", run_id=run_id)] == [
        (1, 1.0),
        (2, 2.0),
    ]
    assert trackio.SQLiteStorage.get_run_config("own", "e")["a/lr"] == 0.5
