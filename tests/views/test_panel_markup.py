"""Markup in the texts of a run stays text everywhere in the panel, in a real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from probe.dashboards import spec as live
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_page import drawn, shown, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


def test_markup_in_names_stays_text(page: Any) -> None:
    nasty = host.NASTY
    names = dict.fromkeys(
        ["actor", "update_actor", "reward/mean", "input_ids", "old_log_probs", "memory.recorder"], nasty
    )
    run_of = {"project": nasty, "experiment": nasty, "path": nasty, "world_size": 4}
    made, run = shown(page, steps=4, names=names, plotly=True, run=run_of)
    run.tables = {name: [] for name in live.TABLES}
    run.event(4, nasty, "memory.recorder", nasty, off=1)
    host.send(page, made.delta({"events": run.tables["events"]}, errors=[{"where": nasty, "message": nasty}]))
    expect(page.locator(".pp-strip li")).to_have_count(2)
    for view in boards.VIEWS:
        to_view(page, view["id"])
        drawn(page)
    page.locator("tbody tr:visible").first.click()
    expect(page.get_by_role("complementary")).to_contain_text("<img src=x")
    assert page.locator(".probe-panel img, .probe-panel script").count() == 0
    assert page.evaluate("globalThis.__hurt") is None


#: Everything that HTML, SVG or plotly's own small markup might read as more than text.
HOSTILE = "<img src=x onerror=globalThis.__hurt=1><a href='javascript:globalThis.__hurt=2'>\"&lt;script&gt;"

#: Word columns that the panel itself gives a meaning.
OWN_WORDS = {"kind", "level", "peak_kind"}


def hostile(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The rows with markup in every text that a user, or another library, may give."""
    for name, rows in tables.items():
        words = [column for column, kind in live.TABLES[name].items() if kind == "word" and column not in OWN_WORDS]
        for row in rows:
            for column in words if name != "events" else [*words, "kind"]:
                if row.get(column):
                    row[column] = f"{HOSTILE}{row[column]}"
    return tables


def unhurt(page: Any, where: str) -> None:
    """Nothing of a text has become more than text: no element of its own, no handler, no link."""
    assert page.evaluate("globalThis.__hurt") is None, where
    assert page.locator(".probe-panel :is(img, script, iframe, object, a)").count() == 0, where
    handlers = """[...document.querySelectorAll(".probe-panel *")]
      .filter((one) => [...one.attributes].some((a) => /^on/.test(a.name))).length"""
    assert page.evaluate(handlers) == 0, where


@pytest.mark.slow
def test_every_text_of_a_run_stays_text_in_every_place(page: Any) -> None:
    """Titles, legends, ticks, tooltips, cells, menus, notices, details and what a screen reader hears."""
    made, run = host.Encoder(), host.Run()
    nasty = {name: f"{HOSTILE}{name}" for name in ("project", "experiment", "path")}
    host.opened(page, "panel", plotly=True, run={**nasty, "world_size": 4}, hint=HOSTILE)
    for step in range(1, 5):
        tables = run.step(step)
        run.event(step, "listener", "memory", "boom", off=1)
        for row in run.tables["calls"]:
            row |= {"removed": "rewards", "error": "ValueError: bad"}
        host.send(page, made.delta(hostile(tables), errors=[{"where": HOSTILE, "message": HOSTILE}]))
    expect(page.locator("h2")).to_contain_text(HOSTILE)
    expect(page.locator(".pp-strip")).to_contain_text("<img src=x")
    page.get_by_text("Filter", exact=True).click()
    for name in ("Role", "Phase"):
        options = page.get_by_label(name, exact=True).locator("option", has_text="<img src=x")
        until(options.count, lambda many: many >= 3)
    page.keyboard.press("Escape")
    seen = set()
    for view in boards.VIEWS:
        to_view(page, view["id"])
        drawn(page)
        for one in page.locator("button:visible", has_text="Numbers").all():
            one.click()
        seen |= sinks(page)
        unhurt(page, view["id"])
    assert seen >= {"tooltip", "tick", "legend of plotly", "legend", "cell", "heading", "aria-label", "title"}
    for view in ("data", "metrics", "events"):
        to_view(page, view)
        page.locator(".pp-mark-table tbody tr:visible").first.click()
        expect(page.get_by_role("complementary")).to_contain_text("<img src=x")
        unhurt(page, f"details of {view}")
        page.keyboard.press("Escape")


def sinks(page: Any) -> set[str]:
    """Where the markup can be read as text, after every chart was pointed at."""
    script = """async (parts) => {
      await pointAtAll(); // and look at once: what is pointed at goes when a chart is drawn again
      const has = (one) => one.textContent.includes("<img");
      const all = (path) => [...document.querySelectorAll(path)];
      const found = Object.entries(parts).filter(([, path]) => all(path).some(has)).map(([name]) => name);
      for (const name of ["aria-label", "title"])
        if (all(`.probe-panel [${name}]`).some((one) => one.getAttribute(name).includes("<img"))) found.push(name);
      return found;
    }"""
    parts = {
        "tooltip": ".hoverlayer text", "tick": ".xtick text, .ytick text", "legend of plotly": ".legend text",
        "legend": ".pp-legend button", "cell": ".pp-table td", "heading": ".pp-facet h4",
    }  # fmt: skip
    return set(page.evaluate(script.replace("pointAtAll", f"({_POINT_AT_ALL})"), parts))


_POINT_AT_ALL = """async () => {
  const plotly = await __probe_plotly;
  for (const one of document.querySelectorAll(".pp-plotly")) {
    if (!one.data) continue;
    const at = one.data.findIndex((trace) => trace.hovertext && trace.hoverinfo !== "skip");
    if (at >= 0) plotly.Fx.hover(one, [{ curveNumber: at, pointNumber: one.data[at].type === "heatmap" ? [0, 0] : 0 }]);
  }
}"""
