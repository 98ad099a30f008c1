"""The report: one file, nothing from outside, all users' text escaped; and in a real browser every chart is
drawn."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from probe.dashboards import dashboards
from probe.errors import RunError
from probe.publishing import pictures
from probe.records import Call, Incident, Reduction, Row
from probe.runs.reader import Run
from probe.views.report.panels import CHOICES, TABLE_ROWS
from probe.views.report.report import report_html, write_report
from tests.once import once
from tests.sample_run import clock, open_run, process, sample_rows, write_run
from tests.waiting import until

MARKUP = '<img src=x onerror="window.hacked=1"></script><b>x</b>&quot;\''
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Page(HTMLParser):
    """The parts of a page that tests ask for, and a check that its tags are balanced."""

    EMPTY = frozenset({"meta", "link", "br", "img", "polyline", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.scripts: dict[str | None, str] = {}
        self._script: str | None = None
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self._script = dict(attributes).get("id")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def figures(self) -> dict[str, Any]:
        panels: dict[str, Any] = json.loads(self.scripts["data"])["panels"]
        return panels


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a report."""
    return once(tmp_path_factory, "report", _report) / "report.html"


@pytest.fixture(scope="module")
def html(written: Path) -> str:
    return written.read_text(encoding="utf-8")


def _report(place: Path) -> None:
    with open_run(place / "run", sample_rows(2, 5)) as run:
        (place / "report.html").write_text(report_html(run), encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_header_says_what_ran(page: Page) -> None:
    for words in (
        "arithmetic",
        "grpo-small",
        "node-0",
        "Made-up 80 GB (cuda:0)",
        "torch 2.13.0",
        "Written by 2 ranks",
        "Steps 5",
    ):
        assert words in page.words
    assert "RSS" not in page.words.split("What probe found")[0]


def test_every_panel_has_a_figure_a_name_for_readers_and_a_table(page: Page) -> None:
    panels = [panel for board in dashboards() for panel in board.panels]
    figures = page.figures()
    charts = {tag[1]["id"]: tag[1] for tag in page.tags if (tag[1].get("class") or "") == "chart"}
    assert set(figures) == set(charts) == {panel.id for panel in panels}
    assert all(one["role"] == "group" and one["aria-label"] for one in charts.values())
    assert sum(tag == "table" for tag, _ in page.tags) == len(panels) + 3  # of findings, of numbers, of the ledger
    for options in figures.values():
        assert 1 <= len(options) <= CHOICES
        assert all(one["figure"]["data"] for one in options)
        assert "template" not in options[0]["figure"]["layout"]


def test_headings_do_not_skip_a_level(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_links_lead_somewhere_in_the_page(page: Page) -> None:
    ids = {attributes["id"] for _, attributes in page.tags if attributes.get("id")}
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links
    assert {str(link)[1:] for link in links} <= ids


def test_the_page_asks_for_nothing_from_outside(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object")
        assert not attributes.get("src"), (tag, attributes)
        if tag == "link":
            assert str(attributes["href"]).startswith("data:")
    packed = page.scripts["plotly"]
    assert "plotly.js" in gzip.decompress(base64.b64decode(packed)).decode()[:200]


@pytest.mark.slow
def test_the_page_is_the_same_for_the_same_run_and_lies_in_it_unless_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", sample_rows(1, 2))
    first, second = write_report(path), write_report(path, tmp_path / "b.html")
    assert (first, second) == (path / "report.html", tmp_path / "b.html")
    assert first.read_bytes() == second.read_bytes()
    assert [one.name for one in (*path.iterdir(), *tmp_path.iterdir()) if "tmp" in one.name] == []


def evil_rows() -> dict[int, list[Row]]:
    rows = sample_rows(2, 3, actor=MARKUP)
    shared = {"time_ns": clock(0) + 1, "step": 0}
    rows[0] += [
        Incident(kind=MARKUP, where=MARKUP, message=MARKUP, **shared),
        Reduction(key=MARKUP, reducer="mean", chosen_by="name", count=2, smallest=0, largest=2, value=1, **shared),
        Call(point="scope.phase", name=MARKUP, phase=MARKUP, duration_ns=1000, **shared),
    ]
    return rows


@pytest.mark.slow
def test_e_a_large_runs_report_is_worked_out_once_and_is_the_same_page(tmp_path: Path, monkeypatch) -> None:
    from probe.analysis import kept_text
    from probe.runs import answers
    from probe.runs.layout import Segment
    from probe.runs.parts import roll_over
    from probe.views.report import panels, report

    monkeypatch.setattr(answers, "LEAST_BYTES", 1)
    directory = write_run(tmp_path / "run", sample_rows(1, 6))
    assert list(roll_over(directory, Segment.of_rank(0, 0)))
    monkeypatch.setenv(answers.KEEP_VARIABLE, "0")
    with Run(directory) as run:
        fresh = report_html(run)
    monkeypatch.delenv(answers.KEEP_VARIABLE)
    with Run(directory) as run:
        assert report_html(run) == fresh
        odd = "a name that isn't text: \udcff"
        assert kept_text.text_of(run, "odd", lambda: odd) == kept_text.text_of(run, "odd", lambda: "") == odd
    worked_out: list[str] = []
    for module, name in ((panels, "drawn_panel"), (report, "advice_section"), (report, "numbers_section")):
        monkeypatch.setattr(module, name, lambda *_, name=name: worked_out.append(name))
    with Run(directory) as run:
        assert report_html(run) == fresh
    assert not worked_out
    monkeypatch.setattr(kept_text, "code", lambda *_: "other code")  # answers nobody any more
    with Run(directory) as run, pytest.raises(TypeError):
        report_html(run)
    assert worked_out


@pytest.mark.slow
def test_users_text_is_text(tmp_path: Path) -> None:
    host = process(0, 2, "cuda:0", MARKUP)
    host.host = MARKUP
    with open_run(tmp_path, evil_rows(), project=MARKUP, experiment=MARKUP, processes={0: host}) as run:
        text = report_html(run)
    page = Page(text)  # balanced, so nothing broke out
    assert all(tag not in ("img", "b") for tag, _ in page.tags)
    assert "<img" not in text
    assert MARKUP in page.words
    assert sum(tag == "script" for tag, _ in page.tags) == 3


def test_an_empty_run_says_why_there_is_nothing(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: []}) as run:
        page = Page(report_html(run))
    assert page.figures() == {}
    assert page.words.count("No ") >= len([panel for board in dashboards() for panel in board.panels]) - 2
    assert "Nothing was recorded yet" in page.words


@pytest.mark.slow
def test_without_an_accelerator_the_header_says_rss(tmp_path: Path) -> None:
    rows = sample_rows(1, 2, accelerator=False)
    with open_run(tmp_path, rows, processes={0: process(0, 1, "cpu", "")}) as run:
        words = Page(report_html(run)).words
    assert "No accelerator was used: memory in this report means the resident set (RSS)" in words
    assert "Device CPU" in words


@pytest.mark.slow
def test_g_each_picture_and_number_of_memory_says_process_memory_where_it_is_that(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(2, 3, accelerator=False)) as run:
        text = report_html(run)
        titles = [
            title for board in pictures.charts(["probe/memory/actor/peak_rss_gib_max"]).values() for title in board
        ]
    assert all("process memory (RSS)" in title for title in titles)
    for panel in ("memory_timeline", "memory_by_phase", "memory_by_tokens"):
        part = text.partition(f'id="panel-{panel}"')[2].partition("</article>")[0]
        assert "Memory here: process memory (RSS)" in part
        assert "allocated" not in part.partition("<table>")[2]
    tile = text.partition("Peak memory")[2].partition("</li>")[0]
    assert "process memory (RSS)" in tile
    assert text.count("of process memory (RSS)") >= 2  # the axes


@pytest.mark.slow
def test_a_rank_that_wrote_nothing_is_missed(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: sample_rows(1, 1)[0]}, processes={0: process(0, world_size=4)}) as run:
        assert "Written by 1 of 4 ranks (the others wrote nothing)" in Page(report_html(run)).words


@pytest.mark.slow
def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(2, 8)) as run:
        assert f"The first {TABLE_ROWS} of" in report_html(run)


@pytest.mark.slow
def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = write_run(tmp_path, sample_rows(1, 1))
    with pytest.raises(RunError, match="path: the report can't be written to"):
        write_report(path, tmp_path / "nowhere" / "report.html")


# ------------------------------------------------------------------------------------------------- in a
# real browser


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    path = request.getfixturevalue("chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


def opened(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page that has drawn everything, and what went wrong in it."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    context.set_default_timeout(180_000)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else wrong.append(request.url),
    )
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=300_000)
    return page, wrong


def until_another(page: Any, expression: str, before: str) -> None:
    """Until the expression has another value, and while a chart is drawn again it may have none."""
    guarded = f"(() => {{ try {{ return {expression}; }} catch {{ return ''; }} }})()"
    until(lambda: page.evaluate(guarded), lambda found: found not in (before, ""))


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_report_draws_every_chart_offline(browser: Any, written: Path, width: int, scheme: str) -> None:
    page, wrong = opened(browser, written, width=width, scheme=scheme)
    assert wrong == []
    charts = page.query_selector_all(".chart")
    assert len(charts) == sum(len(board.panels) for board in dashboards())
    for chart in charts:
        assert chart.query_selector(".main-svg"), chart.get_attribute("id")
    until(lambda: [chart.bounding_box()["width"] for chart in charts], lambda wide: max(wide) <= width)
    until(lambda: page.evaluate("document.documentElement.scrollWidth"), lambda wide: wide <= width)
    ink = "getComputedStyle(document.querySelector('#own_cost .xtick text')).fill"
    bright = lambda colour: sum(map(int, re.findall(r"\d+", colour)[:3])) > 384  # noqa: E731
    until(lambda: page.evaluate(ink), lambda colour: bright(colour) is (scheme == "dark"))
    page.context.close()


@pytest.mark.browser
def test_a_choice_draws_another_batch_and_the_theme_follows(browser: Any, written: Path) -> None:
    page, wrong = opened(browser, written)
    cells = "[...document.querySelectorAll('#balance_heat .heatmap-label')].map(one => one.textContent).join()"
    before = page.evaluate(cells)
    page.select_option("select[data-for=balance_heat]", index=1)
    until_another(page, cells, before)
    ink = "getComputedStyle(document.querySelector('#own_cost .xtick text')).fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    until_another(page, ink, light)
    assert wrong == []
    page.context.close()


@pytest.mark.browser
def test_markup_in_names_runs_nothing(browser: Any, tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path, evil_rows(), project=MARKUP, experiment=MARKUP))
    page, wrong = opened(browser, path)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('.chart b, .chart img').length") == 0
    assert wrong == []
    page.context.close()
