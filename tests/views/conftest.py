"""Fixtures of the tests that show the panel in a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.views import stub_host as host


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, headless=True, args=host.FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails its test on any script error, console error or request to anywhere."""
    context = browser.new_context(viewport={"width": 1240, "height": 1000}, color_scheme="light")
    made = context.new_page()
    made.set_default_timeout(180_000)  # ten seconds prove nothing on a loaded machine
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    made.on("console", lambda told: told.type == "error" and wrong.append(f"console: {told.text}"))
    made.on(
        "request", lambda one: one.url.startswith(("file:", "blob:", "data:")) or wrong.append(f"request: {one.url}")
    )
    made.goto(host.PAGE.as_uri())
    yield made
    context.close()
    assert not wrong


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """A directory for screenshots: ``PROBE_SCREENSHOTS``, or one that goes with the test."""
    place = Path(os.environ.get("PROBE_SCREENSHOTS") or tmp_path / "screenshots")
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def encoder() -> host.Encoder:
    return host.Encoder()
