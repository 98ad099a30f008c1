"""The marks of the live panel in a real Chromium: ticks, scales, colours and names, as the design asks for them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.figures import colours
from probe.views.panel import assets, board
from tests.sample_run import open_run, sample_rows
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_page import resized, up_to_date
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


def phases(steps: list[float], names: tuple[str, ...] = ("generate", "update_actor")) -> list[dict[str, Any]]:
    """Spans of one rank: so many seconds a step, half of them in each phase."""
    rows, now = [], 0.0
    for step, seconds in enumerate(steps):
        begin = now
        for name in names:
            part = {"step": step, "rank": 0, "kind": "phase", "level": "phase", "name": name, "phase": name}
            rows.append({**part, "scope": len(rows), "begin": now, "end": now + seconds / len(names)})
            now += seconds / len(names)
        whole = {"step": step, "rank": 0, "kind": "step", "level": "step", "name": "step", "scope": len(rows)}
        rows.append({**whole, "begin": begin, "end": now})
    return rows


def figure(page: Any, id: str, spans: list[dict[str, Any]], view: str = "overview", **state: Any) -> Any:
    """The plotly figure of a panel, once it is drawn."""
    encoder = host.Encoder()
    host.opened(page, "panel", plotly=True)
    told = {"complete_step": max(row["step"] for row in spans), **state}
    host.send(page, encoder.delta({"spans": spans}, **told))
    page.click(f"[data-view={view}]")
    found = page.locator("figure.pp-card", has=page.locator("h3", has_text=boards.TITLES[id])).first
    found.scroll_into_view_if_needed()
    drawn = found.locator(".pp-plotly")
    expect(drawn.locator(".xtick text").first).to_be_visible()
    up_to_date(page)
    return drawn


def annotations(drawn: Any, met: Callable[[list[str]], object]) -> None:
    """The texts beside the marks of a figure come to be those that are waited for."""
    until(drawn.locator(".annotation").all_text_contents, met)


def test_g_under_bars_0_1_2_stand_0_1_2(page: Any) -> None:
    drawn = figure(page, "phase_durations", phases([1.0, 1.1, 1.2]))
    expect(drawn.locator(".xtick text")).to_have_text(["0", "1", "2"])


def test_g_one_slow_first_step_is_cut_and_said(page: Any) -> None:
    drawn = figure(page, "phase_durations", phases([90.0] + [3.0, 3.1, 3.2] * 8))
    until(lambda: drawn.evaluate("(one) => one.layout.yaxis.range[1]"), lambda most: most < 4)
    annotations(drawn, lambda texts: "90 s: step 0" in texts)


def test_g_a_timeline_of_one_step_starts_at_the_step(page: Any) -> None:
    drawn = figure(page, "step_timeline", phases([50.0, 2.0]))
    spans = lambda: drawn.evaluate("(one) => one.layout.xaxis.range")  # noqa: E731
    until(spans, lambda found: found == [0, pytest.approx(2.0)])
    annotations(drawn, lambda texts: texts == ["generate", "update_actor"])


def test_g_2000_steps_share_bars_of_their_median(page: Any) -> None:
    drawn = figure(page, "phase_durations", phases([1.0] * 1999 + [1.1]))
    found = drawn.evaluate("(one) => one.data.map(({ name, x, y, base }) => ({ name, x, y: [...y], base }))")
    assert {one["name"] for one in found} == {"generate", "update_actor", "range of its steps"}
    assert all(len(one["x"]) <= 300 for one in found)
    (spread,) = (one for one in found if one["name"] == "range of its steps")
    assert max(low + high for low, high in zip(spread["base"], spread["y"], strict=True)) == pytest.approx(1.1)


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_g_a_phase_has_its_colour_in_each_chart_and_run(page: Any, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    drawn = figure(page, "phase_durations", phases([1.0, 2.0], ("update_actor", "gen")))
    found = drawn.evaluate("(one) => one.data.map(({ name, marker }) => [name, marker.color])")
    assert dict(found) == {name: colours.style(["phase"], name, theme).colour for name in ("update_actor", "gen")}


def test_g_names_stand_at_the_last_values_and_below_640_in_a_legend(page: Any) -> None:
    drawn = figure(page, "phase_durations", phases([1.0, 2.0]))
    names = ["generate 1 s", "update_actor 1 s", "total 2 s"]  # so that a reader can check the sum
    annotations(drawn, lambda texts: [" ".join(text.split()) for text in texts] == names)
    expect(drawn.locator(".legend")).to_have_count(0)
    resized(page, 420, 900)
    expect(drawn.locator(".legend")).to_have_count(1)
    expect(drawn.locator(".annotation")).to_have_count(0)


def test_g_the_names_stand_at_the_last_step_that_has_ended_not_at_one_that_goes_on(page: Any) -> None:
    drawn = figure(page, "phase_durations", phases([1.0, 2.0, 0.5]), complete_step=1)
    annotations(drawn, lambda texts: [" ".join(text.split()[1:]) for text in texts] == ["1 s", "1 s", "2 s"])


def test_g_an_axis_says_process_memory_where_memory_is_that(page: Any) -> None:
    spans = [{**row, "maker": 1, "peak": 2.0 * host.GIB, "role": "actor"} for row in phases([1.0, 2.0])]
    drawn = figure(page, "memory_by_phase", spans, view="memory", memory="process memory (RSS)")
    titles = "(one) => one.layout.xaxis.title.text + one.layout.yaxis.title.text"
    until(lambda: drawn.evaluate(titles), lambda text: "GiB of process memory (RSS)" in text)
    lines = page.locator("figure.pp-card", has=page.locator("h3", has_text=boards.TITLES["memory_over_steps"])).first
    expect(lines).to_contain_text("process memory (RSS)")


OVERLAPS = """
(all) => {
  const boxes = (selector) => [...document.querySelectorAll(selector)].map((one) => one.getBoundingClientRect());
  const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const legends = boxes(".infolayer > [class^='legend']");
  return boxes(".annotation-text-g text, .gtitle").filter((one) => legends.some((other) => touch(one, other))).length;
}
"""


@pytest.mark.parametrize("width", [400, pytest.param(1000, marks=pytest.mark.thorough)])
def test_g_a_closed_panel_has_no_title_over_a_legend_and_no_text_below_11_px(
    page: Any, tmp_path: Path, width: int
) -> None:
    with open_run(tmp_path / "run", sample_rows(2, 5)) as run:
        closed = board.figure(run, "arithmetic / grpo-small")
    resized(page, width, 1400)
    page.set_content('<div id="closed"></div>')
    page.evaluate(gzip.decompress(assets.plotly_packed()).decode())
    page.evaluate(f"Plotly.newPlot('closed', {json.dumps(closed)})")
    expect(page.locator(".infolayer > [class^=legend]")).to_have_count(len(board.PANELS))
    until(lambda: page.evaluate(OVERLAPS), lambda many: many == 0)
    sizes = "(all) => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    until(lambda: page.locator("svg text").evaluate_all(sizes), lambda found: min(found) >= 11)
