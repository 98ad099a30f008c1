"""The page of ``probe open`` in a real Chromium: live, alone on this machine, and whole again after anything."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from probe.views.server.server import PageServer
from tests.browser.conftest import ENDLESS
from tests.browser.jupyter import another, await_that
from tests.live.live_run import append
from tests.ports import free_port
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PANEL = ".probe-panel"
NASTY = "<img src=x onerror=globalThis.__hurt=1>"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "my demo", sample_rows(2, 12), project=NASTY, experiment="grpo-small")


@pytest.fixture
def server(run: Path) -> Iterator[PageServer]:
    with PageServer(run) as made:
        made.start()
        made.follow()
        yield made


def step_shown(page) -> int:
    """The newest step that the panel's header tells of."""
    line = page.evaluate("document.querySelector('.pp-facts-line')?.textContent ?? ''")
    found = re.findall(r"step (\d+)", line)
    return int(found[-1]) if found else -1


def await_step(page, step: int) -> None:
    await_that(page, lambda: step_shown(page) >= step)


def rows_held(page, table: str) -> int:
    """Rows of a live table that the page has."""
    held = "(table) => [...globalThis.__probe_panels.values()][0].tables.get(table).next"
    return page.evaluate(held, table)


def of_step(step: int) -> list:
    return [row for rank in sample_rows(2, step + 1).values() for row in rank if row.step == step]


def cut_off(server: PageServer) -> None:
    """What a network does."""
    for connection in list(server._listener._open):
        connection.shutdown(socket.SHUT_RDWR)


def test_the_page_is_the_panel_and_heals(chrome, server: PageServer, run: Path, shots: Path) -> None:
    told: list[str] = []
    with another(chrome) as page:
        page.on("console", lambda said: said.type in ("error", "warning") and told.append(said.text))
        page.goto(server.url)
        page.locator(PANEL).wait_for()
        await_step(page, 11)
        assert "grpo-small" in page.title()
        assert page.locator(".pp-head h2").inner_text().startswith(NASTY)
        for view in ("memory", "time", "tokens", "metrics", "overview"):  # plotly's charts came over, too
            page.click(f"[data-view={view}]")
            expect(page.locator(f"[data-view={view}]")).to_have_attribute("aria-selected", "true")
            page.locator(f"{PANEL} :is(.main-svg, canvas):visible").first.wait_for()
        page.screenshot(path=shots / "open_page.png")

        append(run, of_step(12))
        await_step(page, 12)

        # A message on its way is lost with the connection: the page gets what it missed, and keeps what was chosen.
        page.click("[data-view=tokens]")
        cut_off(server)
        append(run, of_step(13))
        await_step(page, 13)
        page.locator("#notice").wait_for(state="hidden")
        await_that(page, lambda: rows_held(page, "spans") == server.panel.pump.feed.tables["spans"].next)
        assert page.locator("[data-view=tokens]").get_attribute("aria-selected") == "true"
        assert "lost on the way" not in page.locator(".pp-strip").text_content()

        page.reload()
        await_step(page, 13)
        await_that(page, lambda: rows_held(page, "micro") == server.panel.pump.feed.tables["micro"].next)
        assert told == []
        assert page.troubles == []
        assert page.outside == []
        assert page.evaluate("globalThis.__hurt") is None


def test_a_page_without_a_kernel_speaks_of_none(chrome, server: PageServer, shots: Path) -> None:
    held: list = []
    with another(chrome) as page:
        page.route("**/message", lambda route: held.append(route))  # the server doesn't answer what is asked
        page.goto(server.url)
        busy = page.locator(".pp-status", has_text="server is busy")
        busy.wait_for()
        assert busy.get_attribute("title") == "It answers as soon as it can. Everything you see here goes on."
        held.pop().continue_()
        busy.wait_for(state="hidden")

        page.evaluate(
            "(([store]) => { store.broken = true; store.tell('state'); })([...globalThis.__probe_panels.values()])"
        )
        page.get_by_role("button", name="Ask the server now").click()
        page.locator(".pp-strip", has_text="The server is busy: it answers as soon as it can.").wait_for()
        page.screenshot(path=shots / "open_busy.png")
        assert "kernel" not in page.locator(PANEL).evaluate("panel => panel.outerHTML")
        held.pop().continue_()
        page.locator(".pp-strip button").wait_for(state="detached")  # everything came again
        assert page.troubles == []


class Tunnel:
    """Another port of this machine that leads to the server, as ssh forwards one; it can break, and be made again."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = free_port()
        self.ends: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    def make(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.ends.append(listener)
        self._start(self._accept, listener)

    def _start(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, name="probe-test-tunnel", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self.to))
                self.ends += [here, there]
                self._start(self._carry, here, there)
                self._start(self._carry, there, here)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        for one, accepts in zip(self.ends[:1], self.threads[:1], strict=True):
            _end(one)
            accepts.join(60)  # from here on nobody adds to the ends
        for one in self.ends[1:]:
            _end(one)
        for thread in self.threads:
            thread.join(60)
        self.ends.clear()
        self.threads.clear()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def test_a_page_says_that_nobody_answers_and_comes_back(chrome, server: PageServer, run: Path, shots: Path) -> None:
    tunnel = Tunnel(server._listener.server_address[1])
    tunnel.make()
    try:
        with another(chrome) as page:
            page.goto(f"http://localhost:{tunnel.port}/{server.token}/")
            await_step(page, 11)
            tunnel.cut()
            page.locator("#notice", has_text="connection to probe is lost").wait_for()
            page.locator(".pp-status", has_text="closed").first.wait_for()
            page.screenshot(path=shots / "open_lost.png")
            append(run, of_step(12))
            await_that(page, lambda: server.panel.pump.feed.step == 12)
            assert step_shown(page) == 11
            tunnel.make()
            # By itself, or at once where somebody asks for it; it may have come back before that.
            page.evaluate("document.querySelector('#notice button').click()")
            page.locator("#notice").wait_for(state="hidden")
            await_step(page, 12)
            assert "lost on the way" not in page.locator(".pp-strip").text_content()
            expect(page.locator(".pp-status").first).not_to_have_text("closed")
            assert page.troubles == []
    finally:
        tunnel.cut()


def test_a_page_out_of_sight_lets_go_and_catches_up(chrome, server: PageServer, run: Path) -> None:
    """A browser has six connections to one server: pages that nobody sees must not hold them."""
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with another(chrome) as page:
        page.goto(server.url)
        await_step(page, 11)
        page.evaluate(hide, True)
        await_that(page, lambda: len(server.panel.hub) == 0)
        append(run, of_step(12))
        await_that(page, lambda: server.panel.pump.feed.step == 12)
        assert page.locator("#notice").is_hidden()
        page.evaluate(hide, False)
        await_step(page, 12)
        assert len(server.panel.hub) == 1
        expect(page.locator("#notice")).to_be_hidden()
        assert page.troubles == []


def test_a_page_of_an_earlier_server_is_told_so(chrome, run: Path) -> None:
    with another(chrome) as page:
        port = free_port()  # nobody else is given it while it is free for a moment
        with PageServer(run, port=port) as first:
            first.start()
            first.follow()
            page.goto(first.url)
            await_step(page, 11)
            first.panel.hub.end = lambda: None  # type: ignore[method-assign]  # killed: it says nothing
        with PageServer(run, port=port) as second:
            second.start()
            second.follow()
            page.locator("#notice", has_text="belongs to").wait_for()
            assert page.locator("#notice code").inner_text() == f"probe open '{run}'"
            page.goto(second.url)  # the printed one
            await_step(page, 11)


def test_another_site_gets_nothing(chrome, server: PageServer) -> None:
    """A page of another origin in the same browser, which even knows the URL."""
    site = """async (url) => {
        const asks = {
            read: () => fetch(url), stream: () => fetch(url + "stream"), blind: () => fetch(url + "stream", {mode: "no-cors"}),
            post: () => fetch(url + "message", {method: "POST", body: "{}", headers: {"Content-Type": "application/json"}}),
            form: () => fetch(url + "message", {method: "POST", body: "{}", mode: "no-cors"}),
            script: () => new Promise((done, failed) => {
                const script = Object.assign(document.createElement("script"), {src: url + "panel.js", onload: done, onerror: () => failed(new Error("refused"))});
                document.head.append(script);
            }),
            frame: () => new Promise((done) => {
                const frame = Object.assign(document.createElement("iframe"), {src: url, onload: () => done(frame.contentDocument)});
                document.body.append(frame);
            }),
        };
        const told = {};
        for (const [name, ask] of Object.entries(asks)) told[name] = await ask().then((got) => got?.type || String(got), () => "refused");
        return told;
    }"""  # noqa: E501  (a page)
    with another(chrome) as page:
        other = f"http://localhost:{server._listener.server_address[1]}/nothing"  # this server, under another origin
        page.goto(other)
        assert "403" in page.inner_text("body")
        told = page.evaluate(site, server.url)
    assert len(server.panel.hub) == 0
    assert told == dict.fromkeys(("read", "stream", "blind", "post", "form", "script"), "refused") | {"frame": "null"}


def test_a_run_of_another_process_is_live_in_several_pages(chrome, tmp_path: Path, shots: Path) -> None:
    """The command itself, as a person uses it: dark, small, two pages, Ctrl-C."""
    here = Path(__file__).parent
    run = tmp_path / "runs" / "live"
    writer = subprocess.Popen([sys.executable, str(here / "training.py"), str(run), str(ENDLESS), "0.05"], cwd=tmp_path)
    opened = None
    try:
        with another(chrome, (900, 900), dark=True) as page:
            while not (run / "run.json").exists():
                assert writer.poll() is None
                page.wait_for_timeout(100)
            command = [sys.executable, "-m", "probe", "open", str(run.parent), "--no-browser"]
            opened = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            url = opened.stdout.readline().strip()
            other = page.context.new_page()
            for one in (page, other):
                one.goto(url)
                one.locator(PANEL).wait_for()
                await_step(one, 3)
                expect(one.locator(".pp-status").first).to_have_text("live")
            seen = step_shown(page)
            await_step(page, seen + 5)
            await_step(other, seen + 5)
            page.screenshot(path=shots / "open_live_dark.png")
            writer.kill()
            opened.send_signal(2)
            assert opened.wait(300) == 130
            for one in (page, other):
                one.locator("#notice", has_text="has ended").wait_for()
            page.screenshot(path=shots / "open_ended_dark.png")
            assert page.troubles == []
    finally:
        writer.kill()
        writer.wait()
        if opened is not None:
            opened.kill()
            opened.communicate()
