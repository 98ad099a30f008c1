"""How soon JupyterLab names a training that goes on, and the death of one of its ranks, as a person sees both.

A real JupyterLab and a real Chromium; two ranks under torchrun in a process that no kernel knows of. What counts is the
slowest of some rounds, beside what is allowed: without the plugin there is nothing to time. Needs an idle machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row
from tests.browser.jupyter import another, browser
from tests.jupyter import plugin
from tests.jupyter.driving import command, pids, show, training

ROUNDS = 4

#: What the issue allows, seconds.
LIVE_S, ALARM_S = 5.0, 10.0

PATIENCE_MS = 120_000

LISTED = """(name) => [...document.querySelectorAll(".probe-runs li")].some(
    (one) => one.textContent.includes(name) && one.querySelector(".probe-state").textContent === "Live")"""
ALARMED = """(name) => [...document.querySelectorAll(".probe-runs li[data-kind=alarm]")].some(
    (one) => one.textContent.includes(name))"""
TOLD = """(name) => [...document.querySelectorAll(".jp-toast-message")].some(
    (one) => one.textContent.includes(name))"""

#: What the list and the notifications say.
SHOWN = """() => [...document.querySelectorAll(".probe-runs li, .jp-toast-message")].map((one) => one.textContent)"""


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium: there is no such program")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        root, home = place / "work", place / "jupyter"
        (root / "runs").mkdir(parents=True)
        home.mkdir()
        with plugin.server(root, home) as url, browser(chromium, place / "profile") as kept:
            found = list(zip(*_rounds(kept, url, root / "runs", size.pick(1, ROUNDS)), strict=True))
    # The first page that is opened begins the process that reads; each later one finds it there.
    opened, begun, listed, notified = (list(map(float, one)) for one in found)
    return [
        _told("a newly opened page shows a running training as live", opened, LIVE_S),
        _told("an open page shows a new training as live, after its run.json", begun, LIVE_S),
        _told("a rank is killed: the list shows the alarm", listed, ALARM_S),
        _told("a rank is killed: the notification appears", notified, ALARM_S),
    ]


def _told(name: str, seconds: list[float], allowed_s: float) -> dict[str, Any]:
    note = f"the slowest of {len(seconds)}: " + ", ".join(f"{one:.1f}" for one in seconds) + " s"
    return row(name, max(seconds), allowed_s, f"{allowed_s:g} s", note)


def _rounds(kept: Any, url: str, runs: Path, rounds: int) -> Iterator[tuple[float, float, float, float]]:
    """Seconds of each round, as :func:`rows` has them."""
    for number in range(rounds):
        before, after = f"before-{number}", f"after-{number}"
        with training(runs / before, 4000, 0.05), another(kept) as page:
            _trains(page, runs / before)
            show(page, f"{url}/lab?reset")
            began = time.monotonic()
            command(page, "probe:runs")
            opened = _seconds(page, LISTED, before, began)
            with training(runs / after, 4000, 0.05):
                while not (runs / after / "run.json").is_file():
                    page.wait_for_timeout(20)
                begun = _seconds(page, LISTED, after, time.monotonic())
                _trains(page, runs / after)
                page.wait_for_timeout(3000 + 700 * number)  # another moment between two looks
                os.kill(pids(runs / after)[1], signal.SIGKILL)
                killed = time.monotonic()
                listed = _seconds(page, ALARMED, after, killed)
                notified = _seconds(page, TOLD, f"{after}: Rank 1", killed)
        yield opened, begun, listed, notified


def _trains(page: Any, run: Path) -> None:
    """Wait until both ranks are in their steps."""
    log = run.parent / f"{run.name}.log"
    end = time.monotonic() + PATIENCE_MS / 1000
    while not log.exists() or len(pids(run)) < 2:
        if time.monotonic() > end:
            raise RuntimeError(f"the training doesn't begin: {log.read_text() if log.exists() else 'no log'}")
        page.wait_for_timeout(50)


def _seconds(page: Any, holds: str, name: str, since: float) -> float:
    try:
        page.wait_for_function(holds, arg=name, timeout=PATIENCE_MS)
    except Exception as error:  # playwright's own, which says nothing of the page
        shown = page.evaluate(SHOWN)
        raise RuntimeError(f"{name!r} isn't there after {PATIENCE_MS / 1000:g} s; the page shows {shown}") from error
    return time.monotonic() - since
