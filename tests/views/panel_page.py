"""A page with the panel and a made-up run, for tests in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.views import stub_host as host

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


def shown(page: Any, steps: int = 20, view: str | None = None, **more: Any) -> tuple[host.Encoder, host.Run]:
    """A panel with that many steps of the made-up run."""
    made, run = host.Encoder(), host.Run(names=more.pop("names", None))
    host.opened(page, more.pop("key", "panel"), **more)
    host.send(page, *(made.delta(tables) for tables in run.steps(1, steps)))
    if view:
        to_view(page, view)
    expect(page.locator(".pp-status").first).to_have_text("live")
    return made, run


def card(page: Any, id: str) -> Any:
    return page.locator(
        "figure.pp-card", has=page.locator("h3", has_text=re.compile(f"^{re.escape(host.TITLES[id])}$"))
    ).first


def tile(page: Any, title: str) -> Any:
    return page.locator(".pp-tile", has=page.locator("h3", has_text=title))


def to_view(page: Any, id: str) -> None:
    page.click(f"[data-view={id}]")
    expect(page.locator(f"[data-view={id}]")).to_have_attribute("aria-selected", "true")


def drawn(page: Any) -> None:
    """Every plotly chart of the view has been in sight and is drawn."""
    expect(page.locator(".pp-card").first).to_be_visible()
    for one in page.locator(".pp-card").all():
        one.scroll_into_view_if_needed()
        expect(one).to_have_attribute("data-state", re.compile("drawn|empty"))
        if one.get_attribute("data-state") == "drawn" and one.locator(".pp-plotly").count():
            expect(one.locator(".main-svg").first).to_be_attached(timeout=60_000)


def store(page: Any, expression: str) -> Any:
    """Something of the store, which the views of a model share."""
    return page.evaluate(f"(() => {{ const store = [...__probe_panels.values()][0]; return {expression}; }})()")
