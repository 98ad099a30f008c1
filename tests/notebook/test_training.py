"""A training in a thread: it goes on by itself, in the caller's scope, and tells of its end."""

from __future__ import annotations

import re
import threading
import time

import pytest

from probe import hooks
from probe.errors import InputTypeError
from probe.notebook.training import run


def test_it_runs_beside_the_caller_and_returns_its_result():
    go = threading.Event()

    def train(steps, *, scale):
        go.wait(300)
        return steps * scale

    training = run(train, 3, scale=2)
    assert not training.done
    assert re.search(r"train: running for \d+ s", repr(training))
    with pytest.raises(TimeoutError, match=r"train is still running after 0\.01 s"):
        training.result(0.01)
    go.set()
    assert training.result(300) == 6
    assert training.done
    assert "done in" in repr(training)


def test_it_is_in_the_scope_of_the_caller():
    with hooks.scope("phase", "outer", role="actor"):
        training = run(lambda: hooks.current_scope())
    found = training.result(300)
    assert (found.name, found.role) == ("outer", "actor")
    assert hooks.current_scope().role is None


def test_an_error_is_kept_logged_and_raised(caplog):
    def train():
        raise ValueError("<b>loss</b> is NaN")

    training = run(train)
    assert training.wait(300)
    with pytest.raises(ValueError, match="loss"):
        training.result()
    assert "failed after" in repr(training)
    assert "train failed in its thread" in caplog.text
    shown = training._repr_html_()
    assert "<b>loss" not in shown
    assert "&lt;b&gt;loss" in shown
    assert "Traceback" in shown


def test_it_can_be_interrupted():
    began = threading.Event()

    def train():
        began.set()
        while True:
            time.sleep(0.01)

    training = run(train)
    assert began.wait(300)
    assert training.interrupt()
    assert training.wait(300)
    assert isinstance(training.error, KeyboardInterrupt)
    assert not training.interrupt()


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InputTypeError, match="function: got int"):
        run(3)
