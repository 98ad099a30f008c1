"""``PROBE=off`` makes every call of a trainer inert: nothing listens, nothing is written, no thread begins."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import probe
from probe import hooks, nothing
from probe.errors import InputError
from probe.session import current_session, start
from probe.tracking.journal import unsent
from probe.tracking.recovery import recover
from probe.tracking.tracking import Tracking
from tests.test_session import make_batch, train


@pytest.fixture
def off(monkeypatch, tmp_path):
    monkeypatch.setenv("PROBE", "off")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_d_switched_off_nothing_is_made_and_training_is_what_it_was(off, monkeypatch):
    before = set(threading.enumerate())
    with start("p", "e", track="tensorboard,nonsense", recorders=["nonsense"], peaks="nonsense", publish=3) as session:
        assert current_session() is session
        observed, losses = train(session=session)
        assert not any(point.listeners for point in hooks.points().values())
        assert session.flush()
        assert set(threading.enumerate()) == before
    assert current_session() is None
    assert list(off.iterdir()) == []
    monkeypatch.setenv("PROBE", "on")
    weights, plain = train()
    assert losses == plain
    assert all(map(torch.equal, observed, weights))


def test_d_switched_off_callbacks_watches_and_scopes_run_as_before(off):
    session = start("p")
    session.begin_step(0)
    with probe.phase("update"), probe.watch(role="actor"):
        assert len(list(probe.micro_batches(make_batch(), max_token_len=400))) == 1
    session.end_step()
    session.end_step()  # no incident could tell of it, and nothing is raised
    session.log({"loss": 1.0}, 0)
    start("p").close()  # twice is no reason to stop a training, either
    session.close()
    assert list(off.iterdir()) == []


def test_d_switched_off_the_panel_and_the_run_say_so_in_a_sentence(off):
    session = start("p", "e")
    assert str(session.directory) == "runs/p/e"
    for told in (repr(session.panel()), session.panel()._repr_html_()):
        assert "PROBE=off in the environment: nothing is recorded" in told
    run = session.run  # a line that reads the run stops no training
    with run as opened:
        assert opened.findings().alarms.to_frame()["kind"].tolist() is opened
    assert [list(run.steps), len(run.memory), bool(run)] == [[], 0, False]
    for told in (repr(run), run._repr_html_()):
        assert "PROBE=off in the environment: nothing is recorded" in told
    assert "PROBE=off" in repr(session)
    session.close()


def test_d_switched_off_a_tracking_of_one_s_own_sends_nothing_and_says_so_once(off, caplog):
    nothing.say_so.cache_clear()
    before = set(threading.enumerate())
    with Tracking("p", "e", ["file", "nonsense"], {"lr": 1}, directory=off / "run", capacity="many") as tracking:
        tracking.log({"loss": torch.ones(())}, 0, backend="file")
        tracking.log("nonsense", -1)
        tracking.describe("words")
        tracking.tag({"a": "b"})
        tracking.layout({})
        tracking.alert("a", "b")
        tracking.logger["file"].anything(1)
        assert tracking.flush()
        assert tracking.shows("figure") == []
        assert "PROBE=off" in repr(tracking)
    tracking.finish(1)
    start("p", "e", track=tracking).close()
    assert set(threading.enumerate()) == before
    assert list(off.iterdir()) == []
    assert [one.getMessage() for one in caplog.records] == [
        "PROBE=off in the environment: nothing is recorded, and no metric goes to any backend"
    ]


def test_d_switched_off_what_a_run_has_left_is_sent_on_request(tmp_path, monkeypatch):
    script = """
        import os, sys
        from probe.tracking.backends import file
        from probe.tracking.tracking import Tracking
        def away(*_): raise ConnectionError("away")
        file.File.log = file.File.log_many = away
        tracking = Tracking("p", "e", "file", directory=sys.argv[1], announce=False)
        tracking.log({"x": 1}, 1)
        tracking.finish(timeout_s=60)  # it is tried three times
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True, timeout=300)
    assert unsent(tmp_path) == {"file": 1}
    monkeypatch.setenv("PROBE", "off")
    assert recover(tmp_path) == {}
    assert '"x": 1' in (tmp_path / "metrics.jsonl").read_text()


def test_d_switched_off_a_listener_hears_nothing_and_on_again_it_does(off, monkeypatch):
    heard = []

    class Ears(hooks.Listener):
        def leave(self, event, state):
            heard.append(event.point.name)

    with hooks.subscribe(Ears(), "scope"), probe.phase("a"):
        pass
    assert heard == []
    monkeypatch.setenv("PROBE", " ON ")
    with hooks.subscribe(Ears(), "scope"), probe.phase("a"):
        pass
    assert heard == ["scope"]


def test_d_a_switch_that_is_misspelt_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PROBE", "of")
    with pytest.raises(InputError, match="PROBE: the environment says 'of', expected 'off' or 'on'"):
        start("p", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_d_switched_off_the_magics_say_so(off):
    from IPython.utils.capture import capture_output

    from tests.shells import ipython_shell

    with ipython_shell() as made:
        probe.load_ipython_extension(made)
        for session in (None, start("p")):
            with capture_output() as said:
                made.run_cell_magic("probe", "phase=update", "x = 1")
                made.run_cell("%probe status")
            shown = said.stdout + "".join(str(one.data) for one in said.outputs)
            assert shown.count("PROBE=off in the environment") >= 2, shown
            assert "failed" not in shown
            if session is not None:
                session.close()
