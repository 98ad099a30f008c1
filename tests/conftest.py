"""What every test shares: a test leaves the world as it found it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time

import pytest

from probe import hooks


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    """Fail a test that leaves a hook, a session, a thread or a child process behind."""
    hooks_before = list(hooks._subscriptions)
    threads_before = set(threading.enumerate())
    scope_before = hooks.current_scope()
    yield
    assert hooks._subscriptions == hooks_before, "the test left hooks behind"
    assert hooks.current_scope() is scope_before, "the test left a scope open"
    assert not multiprocessing.active_children(), "the test left a child process behind"
    deadline = time.monotonic() + 3
    while left := [one for one in threading.enumerate() if _is_ours(one) and one not in threads_before]:
        assert time.monotonic() < deadline, f"the test left threads behind: {left}"
        time.sleep(0.01)


def _is_ours(thread: threading.Thread) -> bool:
    return thread.is_alive() and thread.name.startswith("probe")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a real Chromium. Missing: a skip on a person's machine, a failure in CI."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "no chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("PROBE_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
