"""A page with the panel and a made-up run, for tests in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.waiting import until

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect

_BEHIND = """() => [...document.querySelectorAll(".pp-card[data-behind]")].filter((one) => {
    const { top, bottom } = one.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
}).map((one) => one.querySelector("h3").textContent)"""

#: A panel draws what was chosen in the frame after a timer of 0 ms, and this timer comes after that one.
_TWO_FRAMES = """() => new Promise((go) => {
    setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => go())));
})"""


def shown(page: Any, steps: int = 20, view: str | None = None, **more: Any) -> tuple[host.Encoder, host.Run]:
    """A panel that shows that many steps of the made-up run."""
    made, run = host.Encoder(), host.Run(names=more.pop("names", None))
    host.opened(page, more.pop("key", "panel"), **more)
    host.send(page, *(made.delta(tables) for tables in run.steps(1, steps)))
    if view:
        to_view(page, view)
    expect(page.locator(".pp-status").first).to_have_text("live")
    up_to_date(page)
    return made, run


def card(page: Any, id: str) -> Any:
    return page.locator(
        "figure.pp-card", has=page.locator("h3", has_text=re.compile(f"^{re.escape(boards.TITLES[id])}$"))
    ).first


def tile(page: Any, title: str) -> Any:
    return page.locator(".pp-tile", has=page.locator("h3", has_text=title))


def to_view(page: Any, id: str) -> None:
    page.click(f"[data-view={id}]")
    expect(page.locator(f"[data-view={id}]")).to_have_attribute("aria-selected", "true")


def behind(page: Any) -> list[str]:
    """The titles of cards in sight that are older than what has come: a panel draws a card when it is its turn."""
    found: list[str] = page.evaluate(_BEHIND)
    return found


def up_to_date(page: Any) -> None:
    """Every card in sight shows what has come."""
    until(lambda: behind(page), lambda titles: not titles)


def frames(page: Any) -> None:
    """Two frames have passed since what was done last: where it changes anything at once, that is drawn."""
    page.evaluate(_TWO_FRAMES)


def resized(page: Any, width: int, height: int = 1000) -> None:
    """The page has another size, and its layout is the one of that."""
    page.set_viewport_size({"width": width, "height": height})
    until(lambda: page.evaluate("[innerWidth, innerHeight]"), lambda found: found == [width, height])
    frames(page)


def box(one: Any) -> dict[str, float]:
    found: dict[str, float] = one.bounding_box()
    return found


def still(one: Any) -> dict[str, float]:
    """Where something is, once it moves no more: for a mouse that goes there."""

    def twice() -> tuple[Any, Any]:
        before = one.bounding_box()
        frames(one.page)
        return before, one.bounding_box()

    found: dict[str, float] = until(twice, lambda places: places[0] and places[0] == places[1])[1]
    return found


def drawn(page: Any) -> None:
    """Every plotly chart of the view has been in sight and is drawn."""
    expect(page.locator(".pp-card").first).to_be_visible()
    for one in page.locator(".pp-card").all():
        one.scroll_into_view_if_needed()
        expect(one).to_have_attribute("data-state", re.compile("drawn|empty"))
        _until_its_turn(one)
        if one.get_attribute("data-state") == "drawn" and one.locator(".pp-plotly").count():
            expect(one.locator(".main-svg").first).to_be_attached()


def _until_its_turn(one: Any) -> None:
    """A card shows what has come."""
    until(lambda: one.get_attribute("data-behind"), lambda behind: behind is None)


def store(page: Any, expression: str) -> Any:
    """Something of the store, which the views of a model share."""
    return page.evaluate(f"(() => {{ const store = [...__probe_panels.values()][0]; return {expression}; }})()")
