"""The plugin where it is put to the test: many tabs at once, a server that is started again, and hostile words."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import another
from tests.jupyter import plugin
from tests.jupyter.driving import PANEL, await_that, command, layout_saved, row, show, step_of
from tests.ports import free_port
from tests.sample_run import clock, process, sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Open a run, and put its tab beside the one before.
BESIDE = """(run) => {
    const { shell, commands } = window.jupyterapp;
    const beside = () => shell.add(shell.currentWidget, "main", { mode: "split-right" });
    return commands.execute("probe:open", { run }).then(beside);
}"""

#: Whether JupyterLab itself, and the list of runs, are answered within ten seconds.
ANSWERED = """() => {
    const { contents } = window.jupyterapp.serviceManager;
    const asked = Promise.all([contents.get(""), fetch("/probe/api/runs")]).then(() => true);
    return Promise.race([asked, new Promise((done) => setTimeout(() => done(false), 10000))]);
}"""


def test_2_seven_tabs_that_are_seen_at_once_leave_jupyterlab_its_connections(
    chrome: Any, tmp_path: Path, shots: Path
) -> None:
    root, place = tmp_path / "home", tmp_path / "jupyter"
    place.mkdir()
    for name in range(7):
        write_run(root / f"run{name}", sample_rows(1, 3), project=f"p{name}")
    with another(chrome, (1700, 1000)) as page, plugin.server(root, place) as url:
        show(page, f"{url}/lab?reset")
        for name in range(7):
            page.evaluate(BESIDE, f"run{name}")
        panels = page.locator(f"{PANEL}:visible")
        await_that(page, lambda: panels.count() == 7)
        assert page.evaluate(ANSWERED)
        expect(page.locator(".probe-notice:visible")).to_have_count(0)
        page.screenshot(path=shots / "lab_plugin_seven_tabs.png")


def test_2_a_server_that_is_started_again_has_the_runs_and_tabs_of_the_settings(chrome: Any, tmp_path: Path) -> None:
    root, elsewhere, place, port = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "jupyter", free_port()
    write_run(root / "near", sample_rows(2, 4), project="near")
    far = write_run(elsewhere / "far", sample_rows(2, 6), project="far")
    place.mkdir()
    told = {"probe-lab/plugin": {"roots": [str(elsewhere)], "refresh": 1}}
    with another(chrome) as page:
        notice = page.locator(".probe-notice:visible")
        with plugin.server(root, place, settings=told, port=port) as url:
            show(page, f"{url}/lab?reset")
            command(page, "probe:runs")
            await_that(page, lambda: row(page, "far").count() and row(page, "near").count())
            command(page, "probe:open", run=str(far))
            await_that(page, lambda: step_of(page) == 5)
            layout_saved(page, "far")
            page.evaluate("globalThis.__same = true")
        await_that(page, lambda: notice.count() and "Trying again" in notice.inner_text())
        with plugin.server(root, place, settings=told, port=port):
            await_that(page, lambda: not notice.count() and row(page, "far").count())
            await_that(page, lambda: step_of(page) == 5)
            # The same when it is put back while nobody presses anything.
            far.rename(tmp_path / "away")
            await_that(page, lambda: notice.count() and "it was deleted or moved" in notice.inner_text())
            (tmp_path / "away").rename(far)
            await_that(page, lambda: not notice.count())
            assert page.evaluate("globalThis.__same")  # nobody has loaded the page again meanwhile


def test_2_the_settings_are_changed_in_their_editor_and_a_wrong_one_is_refused(chrome: Any, tmp_path: Path) -> None:
    root, place, far = tmp_path / "home", tmp_path / "jupyter", tmp_path / "elsewhere" / "far"
    for one in (root, place):
        one.mkdir()
    write_run(far, sample_rows(1, 3), project="far")
    saved = place / "settings" / "probe-lab" / "plugin.jupyterlab-settings"
    posted: list[Any] = []
    with another(chrome) as page, plugin.server(root, place) as url:
        page.on("request", lambda asked: posted.append(asked.post_data_json) if "/api/roots" in asked.url else None)
        show(page, f"{url}/lab?reset")
        command(page, "probe:runs")
        command(page, "settingeditor:open", query="probe")
        form = page.locator(".jp-SettingsPanel")
        form.get_by_title("Add item").click()
        directory = form.locator('input[label="Directory"]')
        expect(directory).to_have_value("")
        expect(form.get_by_text("Errors")).to_have_count(0)  # it isn't wrong because nothing was written yet
        directory.fill("../elsewhere")
        await_that(page, lambda: row(page, "far").count())
        assert posted == [{"roots": ["../elsewhere"]}]
        refresh = form.locator('input[label="Refresh of the list"]')
        refresh.fill("0")
        expect(form.locator(".jp-SettingsForm")).to_contain_text("must be >= 1")
        refresh.fill("7")
        expect(form.get_by_text("Errors")).to_have_count(0)
        await_that(page, lambda: json.loads(saved.read_text())["refresh"] == 7)
        assert json.loads(saved.read_text())["roots"] == ["../elsewhere"]
        assert page.troubles == []


def test_2_a_run_json_of_another_tool_is_said_to_be_no_run(chrome: Any, tmp_path: Path) -> None:
    root, place = tmp_path / "home", tmp_path / "jupyter"
    for one in (root / "other", place):
        one.mkdir(parents=True)
    (root / "other" / "run.json").write_text('{"name": "of another tool", "steps": 3}')
    with another(chrome) as page, plugin.server(root, place) as url:
        show(page, f"{url}/lab?reset")
        command(page, "docmanager:open", path="other/run.json")
        expect(page.locator(".probe-notice:visible")).to_contain_text("isn't from a probe run", timeout=60_000)
        expect(page.locator(f"{PANEL}:visible, .probe-waiting:visible")).to_have_count(0)


HOSTILE = "<img src=x onerror=globalThis.__hurt=1> **bold** $x^2$"

#: A panel asks for a notebook at a finding.
ASK = """([run, sentence, why]) => {
    const where = { step: 5, role: null, phase: null, micro_batch: null, rank: 0, process: null };
    const told = { kind: "alarm", name: "failed", topic: "overview", sentence, why, where, since: null, change: null };
    const detail = { run, finding: { ...told, sql: "select 1" } };
    document.dispatchEvent(new CustomEvent("probe:open-notebook", { detail }));
}"""


def test_5_hostile_words_stay_text_in_a_notification_and_in_a_notebook(chrome: Any, tmp_path: Path) -> None:
    root, place = tmp_path / "home", tmp_path / "jupyter"
    for one in (root, place):
        one.mkdir()
    rows = sample_rows(2, 6)
    processes = {rank: process(rank, world_size=2) for rank in rows}
    with another(chrome) as page, plugin.server(root, place) as url:
        show(page, f"{url}/lab?reset")
        for rank, one in processes.items():  # it was written a moment ago
            one.wall_ns = time.time_ns() - max(told.time_ns - clock(rank) for told in rows[rank])
        write_run(root / "run", rows, processes=processes, project=HOSTILE)
        toast = page.locator(".jp-toast-message", has_text="NaN")
        await_that(page, toast.count)
        expect(toast.first).to_contain_text(HOSTILE)
        expect(toast.locator("img, strong, mjx-container")).to_have_count(0)
        why = f"1. {HOSTILE} \\(y\\) \\begin{{equation}}z\\end{{equation}}\n# no title"
        page.evaluate(ASK, ["run", f"{HOSTILE}\n\n- no list", why])
        page.wait_for_selector(".jp-Notebook .jp-MarkdownOutput h2")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:render-all-markdown')")
        written = page.locator(".jp-MarkdownOutput").first
        expect(written).to_contain_text(f"{HOSTILE} - no list")
        expect(written).to_contain_text(f"{' '.join(why.split())}")
        page.wait_for_timeout(3000)  # MathJax comes later, where it finds anything
        expect(written.locator("mjx-container, img, strong, li, h1")).to_have_count(0)
        assert page.evaluate("globalThis.__hurt") is None
