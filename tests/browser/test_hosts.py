"""The panel in other hosts than JupyterLab: Notebook 7, marimo and voila."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from playwright.sync_api import expect

from probe.runs.files import RunFiles
from probe.runs.now import now
from tests.browser.conftest import ENDLESS, notebooks
from tests.browser.jupyter import PATIENCE_MS, Lab, another, await_that, served, write_notebook
from tests.jupyter import plugin
from tests.jupyter.driving import PANEL as TAB
from tests.jupyter.driving import show, step_shown
from tests.ports import free_port
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PANEL = ".probe-panel"

#: Notebook stumbles once over settings of JupyterLab's that it hasn't, whenever it comes to them.
ITS_OWN = "Cannot read properties of undefined (reading 'schema')"


def await_text(page, text: str | re.Pattern[str]) -> None:
    """Until the panel, which may stand in a shadow tree, says ``text``."""
    page.locator(PANEL, has_text=text).first.wait_for()


def test_notebook_7_and_4_its_plugin_opens_run_json_in_the_panel(chrome, tmp_path: Path, shots: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "place").mkdir()
    root = notebooks(tmp_path / "root")
    write_run(root / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    start = (
        "import probe, training\nsession = probe.start('seven', run_dir='runs/seven')\npanel = session.panel()\npanel"
    )
    write_notebook(root / "seven.ipynb", start, "training.train_until(session, 'seven.ended', 0.05)")
    with (
        plugin.server(root, tmp_path / "place", app="notebook") as url,
        another(chrome) as page,
    ):
        notebook = Lab(page, url, "seven.ipynb", at="notebooks")
        notebook.run(0)
        page.wait_for_selector(PANEL)
        notebook.run(1)
        await_text(page, re.compile(r"step [1-9]"))  # it may show every tenth only
        assert notebook.busy(1)
        page.locator(f"{PANEL} [role=tab]", has_text="Tokens").click()
        await_text(page, "Tokens by rank and micro-batch")
        assert notebook.busy(1)
        page.locator(f"{PANEL} .main-svg").first.wait_for()
        page.screenshot(path=shots / "notebook_7.png")
        assert page.troubles in ([], [ITS_OWN])
        show(page, f"{url}/edit/runs/first/run.json?factory=Run%20panel")
        await_that(page, lambda: page.locator(TAB).count() and step_shown(page) == 5)
        page.screenshot(path=shots / "lab_plugin_notebook_7.png")
        # The kernel is killed in the cell that trains: of two pages with files one tells it, and leads there.
        with another(chrome) as beside:
            trees = (page, beside)
            for one in trees:
                show(one, f"{url}/tree")
                looked(one)
            # A run of elsewhere can't be opened as a file: it is said, and no page comes.
            page.evaluate(ASKS_FOR, "/elsewhere/far")
            page.locator(".Toastify__toast", has_text="isn't below this server's directory").wait_for()
            (writer,) = now(RunFiles(root / "runs" / "seven"))
            os.kill(writer.pid, signal.SIGKILL)
            toasts = [one.locator(".Toastify__toast", has_text="was killed") for one in trees]
            await_that(page, lambda: any(one.count() for one in toasts))
            for one in trees:
                looked(one)
            assert sorted(one.count() for one in toasts) == [0, 1]
            told = next(one for one in toasts if one.count())
            told.page.screenshot(path=shots / "lab_plugin_notebook_7_alarm.png")
            with page.context.expect_page() as shown:
                told.get_by_role("button", name="Go there").click()
            there = shown.value
            there.locator(TAB).wait_for(timeout=PATIENCE_MS)
            assert there.url.startswith(f"{url}/edit/runs/seven/run.json")
            there.close()


def looked(page) -> None:
    """Until a page has asked for the runs, and heard of them, after this moment."""
    for _ in range(2):  # it may have asked before
        page.wait_for_event("response", lambda one: "/probe/api/runs?" in one.url).finished()


#: A cell's panel asks for a tab.
ASKS_FOR = """(run) => {
    document.dispatchEvent(new CustomEvent("probe:open-tab", { detail: { run } }));
}"""

MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo
    import probe

    panel = probe.open({run!r}).panel()
    shown = mo.ui.anywidget(panel.widget)
    shown
    return


if __name__ == "__main__":
    app.run()
"""


def test_marimo(chrome, tmp_path: Path, shots: Path) -> None:
    root = notebooks(tmp_path)
    run = root / "runs" / "marimo"
    (root / "app.py").write_text(textwrap.dedent(MARIMO.format(run=str(run))))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "marimo", "run", "app.py", "--headless", "--no-token", "--port", str(port)]
    writer = subprocess.Popen([sys.executable, str(root / "training.py"), str(run), str(ENDLESS), "0.05"], cwd=root)
    try:
        with served(command, f"{url}/health", root), another(chrome) as page:
            while not (run / "run.json").exists():
                assert writer.poll() is None
                page.wait_for_timeout(100)
            page.goto(url)
            page.locator(PANEL).first.wait_for()
            await_text(page, "live")
            page.locator(f"{PANEL} [role=tab]", has_text="Tokens").first.click()
            await_text(page, "Tokens by rank and micro-batch")
            page.locator(f"{PANEL} .main-svg").first.wait_for()  # plotly.js came over, too
            page.wait_for_timeout(500)
            page.screenshot(path=shots / "marimo.png")
            assert page.troubles == []
    finally:
        writer.kill()
        writer.wait()


def voila() -> str:
    """The voila beside this Python or on the path; it needs no torch, so it may have an environment of its own."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("voila", path=beside)
    if found is None:
        pytest.skip("no voila on the path (pip install voila anywidget)")
    return found


def test_voila(chrome, tmp_path: Path, shots: Path) -> None:
    command = voila()
    root = notebooks(tmp_path)
    start = "import probe, training\nsession = probe.start('voila', run_dir='runs/voila')\nsession.panel()"
    write_notebook(root / "page.ipynb", start, f"running = probe.run(training.train, session, {ENDLESS}, 0.05)")
    kernel = tmp_path / "kernels" / "kernels" / "python3"  # this Python, wherever voila lives
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    own = {
        "JUPYTER_PATH": str(tmp_path / "kernels"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    options = ["--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1", "page.ipynb"]
    with (
        served([command, *options], f"{url}/voila/static/voila.js", root, **own),
        another(chrome) as page,
    ):
        page.goto(url)
        page.locator(PANEL).first.wait_for()
        await_text(page, re.compile(r"step ([5-9]|\d\d)"))
        page.locator(f"{PANEL} [role=tab]", has_text="Tokens").first.click()
        await_text(page, "Tokens by rank and micro-batch")
        page.locator(f"{PANEL} .main-svg").first.wait_for()
        expect(page.locator(".probe-copy")).to_be_hidden()
        page.screenshot(path=shots / "voila.png")
        assert page.troubles == []
