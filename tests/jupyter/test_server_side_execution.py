"""JupyterLab whose server executes the cells (``jupyter-server-nbmodel``): the page may come and go while they run.

What it needs lies beside the environment (``make`` puts it there) and is found by this file's server alone, so that
every other JupyterLab executes its cells as before.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import notebooks
from tests.browser.jupyter import Lab, another, await_that, end_kernels, write_notebook
from tests.jupyter import plugin
from tests.jupyter.driving import PANEL as TAB
from tests.jupyter.driving import change_theme, command, open_document, row, step_shown
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BESIDE = Path(sys.prefix) / "server-side"

LIVE = ".jp-OutputArea .probe-panel"
WHY = ".jp-OutputArea .probe-copy-why"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """URL and directory of a JupyterLab whose server executes the cells."""
    if not (BESIDE / "jupyter_server_nbmodel").is_dir():
        reason = "jupyter-server-nbmodel isn't there: `make environments` installs it"
        if os.environ.get("PROBE_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    place = tmp_path / "jupyter"
    shutil.copytree(BESIDE / "share" / "jupyter", place / "data")
    shutil.copytree(BESIDE / "etc" / "jupyter", place / "config")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(BESIDE), os.environ.get("PYTHONPATH")])))
    (tmp_path / "home").mkdir()
    root = notebooks(tmp_path / "home")
    write_run(root / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    with plugin.server(root, place) as url:
        yield url, root


def open_tab(page: Any, step: int) -> None:
    """By the button beside the copy: the tab has the run at ``step``, or later. It is closed again."""
    page.locator(WHY).get_by_role("button", name="Open in a tab").click()
    await_that(page, lambda: page.locator(TAB).count() and step_shown(page) >= step)
    page.evaluate("[...window.jupyterapp.shell.widgets('main')].forEach((one) => one.content?.run && one.dispose())")
    expect(page.locator(TAB)).to_have_count(0)
    open_document(page, "own.ipynb")


def test_2_and_3_the_panel_of_a_cell_is_live_or_says_why_not_and_tabs_work_whatever_executes_the_cells(
    lab: tuple[str, Path], chrome: Any, shots: Path
):
    url, root = lab
    write_notebook(
        root / "own.ipynb",
        "import probe, training\nsession = probe.start('own', run_dir='runs/own')\nsession.panel()",
        "training.train_until(session, 'own.ended', 0.05)",
        "session.close()",
        "import probe\nprobe.open('runs/first').panel(where='tab')",
    )
    executed: list[str] = []
    with another(chrome) as page:
        page.on("request", lambda one: executed.append(one.url) if one.method == "POST" else None)

        # A notebook from elsewhere: its outputs aren't trusted, also where they are the server's own.
        notebook = Lab(page, url, "own.ipynb")
        notebook.run(0)
        notebook.wait(0)
        assert any("/execute" in one for one in executed)  # by the server, not through the page
        expect(page.locator(WHY)).to_be_visible()
        expect(page.locator(WHY)).to_contain_text("run the command Trust Notebook")
        page.screenshot(path=shots / "lab_server_side_untrusted.png")
        open_tab(page, -1)
        page.evaluate("() => void window.jupyterapp.commands.execute('notebook:trust')")
        page.locator(".jp-Dialog .jp-mod-accept").click()
        page.locator(LIVE).wait_for()
        expect(page.locator(WHY)).to_be_hidden()

        # The page goes while a cell runs, and comes again: the widget waits for the kernel, the tab doesn't.
        notebook.run(1)
        await_that(page, lambda: notebook.busy(1))
        page.locator(LIVE, has_text="step 3").wait_for()
        notebook.save()
        page.goto(f"{url}/lab/tree/own.ipynb")
        notebook.await_open(kernel=False)
        expect(page.locator(WHY)).to_be_visible()
        expect(page.locator(WHY)).to_contain_text("waits for the kernel")
        expect(page.locator(WHY)).to_contain_text("Now: Live")
        expect(page.locator(".probe-copy img")).to_be_visible()
        assert "Loading widget" in notebook.text(0)
        page.screenshot(path=shots / "lab_server_side_busy.png")
        command(page, "probe:runs")
        await_that(page, lambda: "Live" in row(page, "own / own").inner_text())
        await_that(page, lambda: "step" in (page.locator(".probe-status").text_content() or ""))
        open_tab(page, 8)
        assert notebook.busy(1)
        (root / "own.ended").touch()
        page.locator(LIVE).wait_for()
        expect(page.locator(WHY)).to_be_hidden()

        notebook.run(2)
        notebook.wait(2)
        page.locator(LIVE, has_text="finished").wait_for()
        notebook.save()

        # Opened later, when the kernel has gone.
        end_kernels(url, "own.ipynb")
        page.goto(f"{url}/lab/tree/own.ipynb?reset")
        notebook.await_open(kernel=False)
        expect(page.locator(WHY)).to_be_visible()
        expect(page.locator(WHY)).to_contain_text("The kernel has no live panel for this cell any more")
        expect(page.locator(WHY)).to_contain_text("Now: Finished")
        page.screenshot(path=shots / "lab_server_side_reopened.png")
        change_theme(page, "JupyterLab Dark")
        page.set_viewport_size({"width": 400, "height": 800})
        page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        page.wait_for_timeout(300)
        page.screenshot(path=shots / "lab_server_side_narrow_dark.png")
        assert page.locator(WHY).evaluate("(one) => one.scrollWidth - one.clientWidth") <= 1
        page.set_viewport_size({"width": 1300, "height": 1000})
        change_theme(page, "JupyterLab Light")
        open_tab(page, 8)
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel?.status === 'idle'"
        )
        notebook.run(3)
        await_that(page, lambda: page.locator(TAB).count() and step_shown(page) == 5)

        # A document is shared through the server there; run.json is opened all the same.
        command(page, "docmanager:open", path="runs/first/run.json")
        expect(page.locator(TAB)).to_have_count(2)
        page.troubles[:] = [
            one for one in page.troubles if one != "Kernel is dead"
        ]  # JupyterLab's own, of the ended one
        assert page.troubles == []
    outputs = json.loads((root / "own.ipynb").read_text())["cells"][0]["outputs"]
    told = {name for one in outputs for name in one["data"]}
    assert {"application/vnd.probe.copy+json", "image/svg+xml", "text/html", "text/plain"} <= told
