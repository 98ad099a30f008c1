"""Fixtures of the tests of pages and panels."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.views.panel import panel as panels
from tests.sample_run import sample_rows, write_run
from tests.views import stub_host as host
from tests.waiting import until

VIEWPORT = {"width": 1240, "height": 1000}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, headless=True, args=host.FLAGS)
        yield running
        running.close()


class Stub:
    """A page for the stub host, in a context of its own."""

    def __init__(self, browser: Any) -> None:
        context = browser.new_context(viewport=VIEWPORT, color_scheme="light")
        self.page = context.new_page()
        self.page.set_default_timeout(180_000)  # ten seconds prove nothing on a loaded machine
        self.wrong: list[str] = []
        self.times = 0
        wrong = self.wrong
        self.page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        self.page.on("console", lambda told: told.type == "error" and wrong.append(f"console: {told.text}"))
        self.page.on(
            "request",
            lambda one: one.url.startswith(("file:", "blob:", "data:")) or wrong.append(f"request: {one.url}"),
        )

    def anew(self) -> Any:
        """The page with the stub host and nothing else, as one that nobody has used."""
        self.page.context.clear_permissions()
        self.page.set_viewport_size(VIEWPORT)
        self.page.emulate_media(color_scheme="light", reduced_motion="no-preference", media="screen")
        self.page.mouse.move(0, 0)
        self.times += 1  # another address: a page that is loaded again keeps where it was scrolled to
        self.page.goto(f"{host.PAGE.as_uri()}?{self.times}")
        self.wrong.clear()
        return self.page


@pytest.fixture(scope="module")
def stubs(browser: Any) -> Iterator[list[Stub]]:
    """The page of :func:`page`, once somebody has asked for it."""
    made: list[Stub] = []
    yield made
    for one in made:
        one.page.context.close()


@pytest.fixture
def page(browser: Any, stubs: list[Stub]) -> Iterator[Any]:
    """A page that fails its test on any script error, console error or request to anywhere.

    The tests of a file share it, each with a document of its own: a browser that has compiled the panel's code needs a
    third less for the next test. What ``page.clock`` does stays in a page, so such a test asks for ``own_page``.
    """
    if not stubs or stubs[-1].page.is_closed():
        stubs.append(Stub(browser))
    yield stubs[-1].anew()
    assert not stubs[-1].wrong


@pytest.fixture
def own_page(browser: Any) -> Iterator[Any]:
    """As :func:`page`, one that no other test gets."""
    made = Stub(browser)
    yield made.anew()
    made.page.context.close()
    assert not made.wrong


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """A directory for screenshots: ``PROBE_SCREENSHOTS``, or one that goes with the test."""
    place = Path(os.environ.get("PROBE_SCREENSHOTS") or tmp_path / "screenshots")
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def encoder() -> host.Encoder:
    return host.Encoder()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", sample_rows(2, 4))


@pytest.fixture
def no_panel_is_left_open() -> Iterator[None]:
    yield
    left = list(panels._open.values())
    for one in left:  # the test after this one finds none
        one.close()
    assert not left
    until(lambda: [one for one in threading.enumerate() if one.name == "probe-panel"], lambda threads: not threads)
