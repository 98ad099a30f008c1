"""What the live panel costs the browser: its share of the page's main thread while rows come in four times a second.

A real Chromium runs the panel's real code with a stub model; rows are made up. The share is the page's task time as
Chromium counts it (``Performance.getMetrics``), so garbage collection, layout and painting are in it. The alternative
gives four plotly charts their whole traces four times a second, as ``FigureWidget.batch_update`` does.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Size
from tests.views import stub_host as host

#: Messages a second, and new points of each of the four series in one.
RATE = 4
NEW = 10
SERIES = 4

_CHARTS = ("memory_timeline", "memory_parts", "memory_over_steps", "balance_over_steps")

_PLOTLY = """(number) => {
  const names = ["allocated", "reserved", "non_torch", "used"];
  globalThis.__charts = Array.from({ length: 4 }, () => document.body.appendChild(document.createElement("div")));
  globalThis.__traces = names.map((name) => ({ type: "scatter", mode: "lines", name, x: [], y: [] }));
  globalThis.__grow = (more) => {
    for (const [at, trace] of __traces.entries()) {
      const from = trace.x.length;
      trace.x = trace.x.concat(Array.from({ length: more }, (_, index) => (from + index) * 0.1));
      trace.y = trace.y.concat(Array.from({ length: more }, (_, index) => at + Math.sin((from + index) / 9)));
    }
    for (const chart of __charts) Plotly.react(chart, __traces, { width: 560, height: 240 });
  };
  __grow(number);
}"""


class Page:
    """A page of Chromium, and how busy its main thread is."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.goto(host.PAGE.as_uri())
        self.metrics = context.new_cdp_session(self.page)
        self.metrics.send("Performance.enable")

    def task_seconds(self) -> float:
        found = self.metrics.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))

    def share(self, update: Callable[[], Any], seconds: float) -> float:
        """Share of the main thread in percent, while ``update`` is called ``RATE`` times a second."""
        for _ in range(round(min(seconds, 2) * RATE)):  # what is made once, such as canvases, isn't part of an update
            update()
            time.sleep(1 / RATE)
        begin, busy = time.perf_counter(), self.task_seconds()
        for number in range(round(seconds * RATE)):
            update()
            time.sleep(max(begin + (number + 1) / RATE - time.perf_counter(), 0))
        return 100 * (self.task_seconds() - busy) / (time.perf_counter() - begin)


class Rows:
    """Rows of memory, scopes and micro-batches, as many as asked for."""

    def __init__(self) -> None:
        self.encoder = host.Encoder()
        self.at = 0

    def message(self, points: int) -> dict[str, Any]:
        """So many new points of each series of the charts over time, and the steps that they make up."""
        memory, spans, micro = [], [], []
        for _ in range(points):
            self.at += 1
            step = self.at // 20
            level = (5 + math.sin(self.at / 9)) * host.GIB
            place = {"rank": 0, "role": ("actor", "critic")[self.at % 2], "phase": "update_actor", "step": step}
            row = {"t": self.at * 0.1, "allocated": level, "reserved": level * 1.1, "non_torch": host.GIB}
            memory.append(place | row | {"used": level * 1.1 + host.GIB, "total": 16 * host.GIB})
            if self.at % 20 == 0:
                span = place | {"kind": "phase", "level": "phase", "name": "update_actor", "scope": self.at}
                spans.append(span | {"peak": level, "maker": 1, "begin": self.at * 0.1 - 2, "end": self.at * 0.1})
                micro += [
                    place | {"rank": rank, "batch": step, "micro_batch": 0, "tokens": 1000 + rank} for rank in (0, 1)
                ]
        return self.encoder.delta({"memory": memory, "spans": spans, "micro": micro})


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """Shares at several lengths of history; a full one measures longer."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise FileNotFoundError("this benchmark needs a Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    seconds = size.pick(0.5, 6.0, 15.0)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, headless=True, args=host.FLAGS)
        made = []
        for history in size.pick((1_000,), (1_000, 20_000, 100_000)):
            ours, message_bytes = _panel(browser, history, seconds)
            theirs = _plotly(browser, history, seconds)
            made.append(
                _row(
                    f"four line charts, {history:,} points / plotly with whole traces",
                    ours,
                    theirs,
                    f"{message_bytes:,.0f} B per message",
                )
            )
        made.append(
            _row(
                "Overview with tiles and two plotly charts / the same without new data",
                *_overview(browser, seconds),
                "60 steps, one more every 2 s",
            )
        )
        browser.close()
    return made


def _row(name: str, ours: float, theirs: float, note: str) -> dict[str, Any]:
    """Shares are percent of the main thread."""
    made = {"name": name, "ours_s": round(ours, 2), "theirs_s": round(theirs, 2), "ratio": ours / theirs, "unit": "%"}
    return made | {"target": "10 % of the main thread", "note": note}


def _panel(browser: Any, history: int, seconds: float) -> tuple[float, float]:
    context = browser.new_context(viewport={"width": 1240, "height": 1000})
    page, made = Page(context), Rows()
    views = [{"id": "bench", "title": "Bench", "panels": list(_CHARTS)}]
    host.opened(page.page, "bench", views=views)
    for begin in range(0, history // SERIES, 2_500):
        host.send(page.page, made.message(min(2_500, history // SERIES - begin)))
    sizes: list[int] = []

    def update() -> None:
        message = made.message(NEW)
        sizes.append(sum(len(one) * 3 // 4 for one in message["buffers"]))
        host.send(page.page, message)

    share = page.share(update, seconds)
    if page.page.locator(".u-over").count() != len(_CHARTS):
        raise RuntimeError("not all charts were drawn")
    context.close()
    return share, sum(sizes) / len(sizes)


def _plotly(browser: Any, history: int, seconds: float) -> float:
    from plotly.offline import get_plotlyjs

    context = browser.new_context(viewport={"width": 1240, "height": 1000})
    page = Page(context)
    page.page.add_script_tag(content=get_plotlyjs())
    page.page.evaluate(_PLOTLY, history // SERIES)
    share = page.share(lambda: page.page.evaluate("(more) => __grow(more)", NEW), seconds)
    context.close()
    return share


def _overview(browser: Any, seconds: float) -> tuple[float, float]:
    """While steps come in, and with messages that bring nothing new."""
    context = browser.new_context(viewport={"width": 1240, "height": 1400})
    page, encoder, run = Page(context), host.Encoder(), host.Run()
    host.opened(page.page, "bench", plotly=True)
    host.send(page.page, *(encoder.delta(tables) for tables in run.steps(1, 60)))
    page.page.locator(".main-svg").first.wait_for(state="attached")
    ticks = iter(range(61, 10_000_000))

    def update() -> None:
        tick = next(ticks)
        host.send(page.page, encoder.delta(run.step(tick // 8 + 60)) if tick % 8 == 0 else encoder.state())

    share = page.share(update, seconds)
    rest = page.share(lambda: host.send(page.page, encoder.state()), seconds)
    context.close()
    return share, rest


if __name__ == "__main__":
    for one in rows():
        print(one)
