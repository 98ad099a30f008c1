"""``PROBE=off`` makes every call of a trainer inert: nothing listens, nothing is written, no thread begins."""

from __future__ import annotations

import threading

import pytest
import torch

import probe
from probe import hooks
from probe.errors import InputError, SessionError
from probe.session import current_session, start
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
    with pytest.raises(SessionError, match="PROBE=off in the environment: nothing is recorded"):
        _ = session.run
    assert "PROBE=off" in repr(session)
    session.close()


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
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    try:
        probe.load_ipython_extension(shell)
        for session in (None, start("p")):
            with capture_output() as said:
                shell.run_cell_magic("probe", "phase=update", "x = 1")
                shell.run_cell("%probe status")
            shown = said.stdout + "".join(str(one.data) for one in said.outputs)
            assert shown.count("PROBE=off in the environment") >= 2, shown
            assert "failed" not in shown
            if session is not None:
                session.close()
    finally:
        InteractiveShell.clear_instance()
