"""The panel in a real JupyterLab, driven in a real Chromium: live, interactive while a cell runs, and never lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.conftest import notebooks
from tests.browser.jupyter import DARK, Lab, browser, end_kernels, jupyter, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]

START = """
import probe, training
session = probe.start("lab", run_dir="runs/{name}")
panel = session.panel()
panel
"""
PANEL = ".probe-panel"


def steps_seen(page) -> int:
    """The newest step that the panel's status tells of; -1 before the first."""
    return page.evaluate(
        """() => {
            const found = (document.querySelector(".probe-panel")?.innerText ?? "").match(/step (\\d+)/i);
            return found ? Number(found[1]) : -1;
        }"""
    )


def await_step(page, step: int) -> None:
    page.wait_for_function(
        """(step) => {
            const found = (document.querySelector(".probe-panel")?.innerText ?? "").match(/step (\\d+)/i);
            return found !== null && Number(found[1]) >= step;
        }""",
        arg=step,
    )


def tab(page, name: str):
    return page.locator(f"{PANEL} [role=tab]", has_text=name)


def test_live_and_interactive_while_a_cell_runs_then_saved_and_reopened_without_a_kernel(
    lab, chromium, tmp_path, shots
) -> None:
    import nbformat

    url, root = lab
    name = "live"
    path = write_notebook(
        root / f"{name}.ipynb",
        START.format(name=name),
        "training.train(session, 400, 0.01)",
        "session.close(); panel.close()",
    )
    with browser(chromium, tmp_path / "profile") as page:
        notebook = Lab(page, url, path.name)
        notebook.run(0)
        page.wait_for_selector(PANEL)
        notebook.run(1)
        await_step(page, 3)
        assert notebook.busy(1)
        before = steps_seen(page)
        await_step(page, before + 5)  # live in a busy cell
        for view in ("Time", "Memory", "Tokens", "Metrics", "Data", "Events"):
            tab(page, view).click()  # and it answers there, too
            page.wait_for_selector(f"{PANEL} [role=tab][aria-selected=true]:has-text('{view}')", timeout=60_000)
        tab(page, "Memory").click()
        page.wait_for_timeout(500)
        assert notebook.busy(1), "the cell was too quick for the test"
        page.screenshot(path=shots / "lab_busy.png")
        notebook.wait(1)
        notebook.run(2)
        notebook.wait(2)
        page.wait_for_selector(PANEL, state="detached")  # the view is swapped for what needs no kernel
        notebook.save()
        page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
        assert page.troubles == []
        assert page.outside == []

    bundles = [output["data"] for output in nbformat.read(path, 4).cells[0].outputs if "data" in output]
    (bundle,) = [one for one in bundles if "application/vnd.plotly.v1+json" in one]
    assert "application/vnd.jupyter.widget-view+json" not in bundle
    assert {"image/svg+xml", "text/plain"} <= bundle.keys()

    with browser(chromium, tmp_path / "fresh") as page:
        notebook = Lab(page, url, path.name, kernel=False)
        page.wait_for_selector(".js-plotly-plot, .jp-RenderedImage, .jp-RenderedSVG")
        page.wait_for_timeout(1000)
        page.screenshot(path=shots / "lab_reopened.png", full_page=True)
        assert "Loading widget" not in page.inner_text("body")


def test_a_closed_session_leaves_a_panel_that_answers_and_a_saved_notebook_that_needs_no_kernel(
    lab, chromium, tmp_path, shots
) -> None:
    import nbformat

    url, root = lab
    path = write_notebook(
        root / "finished.ipynb",
        START.format(name="finished").replace("panel = session.panel()\npanel", "session.panel()"),
        "training.train(session, 30, 0.005)",
        "session.close()",
    )
    with browser(chromium, tmp_path / "profile") as page:
        notebook = Lab(page, url, path.name)
        notebook.run_all(3)
        page.wait_for_selector(f"{PANEL} .pp-status:has-text('finished')")
        await_step(page, 29)
        assert not page.locator(".probe-copy").is_visible()  # the live panel stands above it
        tab(page, "Tokens").click()
        page.wait_for_selector(f"{PANEL} [role=tab][aria-selected=true]:has-text('Tokens')")
        notebook.save()
        page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
        page.goto(f"{url}/lab/tree/{path.name}")  # while the kernel lives, a page that opens has the live panel
        notebook.await_open()
        page.wait_for_selector(f"{PANEL} .pp-status:has-text('finished')")
        assert not page.locator(".probe-copy").is_visible()
        assert page.troubles == []

    _, copy = (output["data"] for output in nbformat.read(path, 4).cells[0].outputs)
    assert "up to step 29 · finished" in copy["text/plain"]
    end_kernels(url, "finished.ipynb")
    with browser(chromium, tmp_path / "fresh") as page:
        Lab(page, url, path.name)
        page.wait_for_selector(".probe-copy img")
        page.wait_for_timeout(500)
        page.screenshot(path=shots / "lab_saved_copy.png")
        assert page.locator(".probe-copy img").is_visible()
        assert "up to step 29 · finished" in (page.locator(".probe-copy img").get_attribute("alt") or "")
        assert page.evaluate("() => document.querySelector('.probe-copy img').naturalWidth") > 500  # it is drawn


def test_a_killed_kernel_leaves_what_was_seen_and_how_to_go_on(lab, chromium, tmp_path, shots) -> None:
    url, root = lab
    path = write_notebook(
        root / "killed.ipynb",
        START.format(name="killed"),
        "training.train(session, 20, 0.005); session.flush()",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import probe\nprobe.open('runs/killed').panel()",
    )
    with browser(chromium, tmp_path / "profile") as page:
        notebook = Lab(page, url, path.name)
        notebook.run_all(2)
        page.wait_for_timeout(1500)
        notebook.run(2)
        page.wait_for_selector(".jp-Dialog")  # the kernel appears to have died
        page.keyboard.press("Enter")
        notebook.save()
        page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    with browser(chromium, tmp_path / "fresh") as page:
        notebook = Lab(page, url, path.name)
        page.wait_for_selector(".probe-copy img")
        assert "up to step 19 · recording" in (page.locator(".probe-copy img").get_attribute("alt") or "")
        assert 'probe.open("runs/killed").panel()' in page.inner_text(".probe-copy")
        notebook.run(3)  # as it says
        page.wait_for_selector(PANEL)
        await_step(page, 19)
        page.wait_for_timeout(500)
        page.screenshot(path=shots / "lab_after_a_kill.png")
        assert page.troubles == []


INSPECT = """
import numpy as np, torch, probe, training
class Letters:
    def decode(self, ids): return "".join(chr(97 + int(one) % 26) for one in ids)
data = training.batch(3)
data.batch["responses"] = data.batch["input_ids"][:, 16:]
data.non_tensor_batch["question"] = np.array([f"<b>{row}</b>" for row in range(16)], dtype=object)
probe.inspect(data, Letters(), rows=(2, 8))
"""


def test_an_inspection_answers_and_is_there_without_a_kernel(lab, chromium, tmp_path, shots) -> None:
    url, root = lab
    path = write_notebook(root / "inspect.ipynb", INSPECT)
    with browser(chromium, tmp_path / "profile") as page:
        notebook = Lab(page, url, path.name)
        notebook.run(0)
        page.select_option("select[name=key]", "non_tensor_batch.question")
        page.click("text=Show values")
        page.wait_for_selector(".probe-answer table")
        assert "<b>2</b>" in page.inner_text(".probe-answer")
        page.screenshot(path=shots / "lab_inspection.png", full_page=True)
        notebook.save()
        page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
        assert page.troubles == []
    end_kernels(url, path.name)
    with browser(chromium, tmp_path / "fresh") as page:
        Lab(page, url, path.name)
        page.wait_for_selector(".probe-inspection")
        said = page.inner_text(".probe-inspection")
        assert "input_ids" in said
        assert "Tokens of rows 2 to 7" in said


def test_a_page_that_is_loaded_again_while_a_thread_trains_shows_everything(lab, chromium, tmp_path) -> None:
    url, root = lab
    path = write_notebook(
        root / "reload.ipynb",
        START.format(name="reload"),
        "running = probe.run(training.train, session, 2000, 0.01)",
        "running.interrupt(); running.wait(120); session.close(); panel.close()",
    )
    with browser(chromium, tmp_path / "profile") as page:
        notebook = Lab(page, url, path.name)
        notebook.run(0)
        page.wait_for_selector(PANEL)
        notebook.run(1)
        notebook.wait(1)
        await_step(page, 5)
        notebook.save()
        page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
        page.goto(f"{url}/lab/tree/{path.name}")
        notebook.await_open()
        page.wait_for_selector(PANEL)
        await_step(page, 8)
        notebook.run(2)
        notebook.wait(2)
        page.wait_for_selector(PANEL, state="detached")
        assert page.troubles == []


def turn_a_slider_while_busy(page, notebook: Lab, shots: Path) -> None:
    """What a smaller cap would have come to, of a step whose lengths are here before the cell begins."""
    tab(page, "What if").click()
    cap = page.get_by_role("slider", name="actor_rollout_ref.actor.ppo_max_token_len_per_gpu")
    cap.wait_for(timeout=120_000)
    notebook.run(1)
    page.wait_for_function("document.querySelectorAll('.jp-InputPrompt')[1].textContent.includes('*')")
    told = page.locator(".pp-lines [data-number=micro_batches] td")
    recorded = int(told.first.inner_text())
    assert int(told.last.inner_text()) == recorded
    cap.focus()
    page.keyboard.press("Home")
    page.locator(".pp-what-if .pp-sentence", has_text="Packed anew in this page").first.wait_for()
    assert int(told.last.inner_text()) > recorded
    assert "ppo_max_token_len_per_gpu: 128" in page.locator(".pp-patch del").inner_text()
    assert notebook.busy(1)
    page.screenshot(path=shots / "lab_what_if_busy.png")


BUSY = """
import pathlib, time
while not pathlib.Path("ended").exists():
    time.sleep(0.05)
"""


def test_a_run_that_another_process_writes_is_followed_and_16_2_a_slider_answers_in_a_busy_cell(
    lab, chromium, tmp_path, shots
) -> None:
    url, root = lab
    run = root / "runs" / "elsewhere"
    path = write_notebook(root / "elsewhere.ipynb", f"import probe\nrun = probe.open({str(run)!r})\nrun", BUSY)
    command = [sys.executable, str(root / "training.py"), str(run), "2000", "0.02"]
    with subprocess.Popen(command, cwd=root) as writer, browser(chromium, tmp_path / "profile") as page:
        try:
            while not (run / "run.json").exists():
                assert writer.poll() is None
                page.wait_for_timeout(100)
            notebook = Lab(page, url, path.name)
            notebook.run(0)
            page.wait_for_selector(PANEL)
            await_step(page, 2)
            await_step(page, steps_seen(page) + 5)
            turn_a_slider_while_busy(page, notebook, shots)
            (root / "ended").touch()
            writer.kill()  # a trainer that dies leaves what it has told
            assert steps_seen(page) >= 7
            assert page.troubles == []
        finally:
            writer.kill()


def test_the_panel_is_dark_where_jupyterlab_is(chromium, tmp_path, shots) -> None:
    root = notebooks(Path(tmp_path / "notebooks").absolute()) if (tmp_path / "notebooks").mkdir() is None else tmp_path
    path = write_notebook(root / "dark.ipynb", START.format(name="dark"), "training.train(session, 12, 0.02)")
    place = tmp_path / "jupyter"
    place.mkdir()
    with jupyter(root, place, settings=DARK) as url, browser(chromium, tmp_path / "profile") as page:
        notebook = Lab(page, url, path.name)
        notebook.run(0)
        page.wait_for_selector(PANEL)
        notebook.run(1)
        notebook.wait(1)
        await_step(page, 11)
        assert page.locator(PANEL).get_attribute("data-theme") == "dark"
        page.wait_for_timeout(800)
        page.screenshot(path=shots / "lab_dark.png", full_page=True)
        assert page.troubles == []
