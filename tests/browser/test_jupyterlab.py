"""The panel in a real JupyterLab, driven in a real Chromium: live, interactive while a cell runs, and never lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ENDLESS
from tests.browser.jupyter import Lab, another, await_that, end_kernels, write_notebook
from tests.jupyter.driving import change_theme

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
    await_that(page, lambda: steps_seen(page) >= step)


def tab(page, name: str):
    return page.locator(f"{PANEL} [role=tab]", has_text=name)


def choose(page, name: str) -> None:
    """Choose a tab, and wait until it is the one that is shown."""
    tab(page, name).click()
    expect(tab(page, name)).to_have_attribute("aria-selected", "true")


def await_copy(page, words: str) -> None:
    """Until the copy that is saved with the notebook says ``words``; it may be hidden below its live panel."""
    expect(page.locator(".probe-copy img")).to_have_attribute("alt", re.compile(re.escape(words)))


def test_reloaded_while_a_thread_trains_then_live_in_a_busy_cell_then_saved_and_reopened_without_a_kernel(
    lab, chrome, shots
) -> None:
    import nbformat

    url, root = lab
    name = "live"
    path = write_notebook(
        root / f"{name}.ipynb",
        START.format(name="reload"),
        f"running = probe.run(training.train, session, {ENDLESS}, 0.05)",
        "running.interrupt(); running.wait(); session.close(); panel.close()",
        START.format(name=name),
        "training.train_until(session, 'live.ended', 0.05)",
        "session.close(); panel.close()",
    )
    with another(chrome) as page:
        notebook = Lab(page, url, path.name)
        notebook.run(0)
        page.wait_for_selector(PANEL)
        notebook.run(1)
        notebook.wait(1)
        await_step(page, 5)
        notebook.save()
        page.goto(f"{url}/lab/tree/{path.name}")
        notebook.await_open()
        page.wait_for_selector(PANEL)
        await_step(page, 8)
        notebook.run(2)
        notebook.wait(2)
        page.wait_for_selector(PANEL, state="detached")

        notebook.run(3)
        page.wait_for_selector(PANEL)
        notebook.run(4)
        await_step(page, 3)
        assert notebook.busy(4)
        before = steps_seen(page)
        await_step(page, before + 5)  # live in a busy cell
        for view in ("Time", "Memory", "Tokens", "Metrics", "Data", "Events"):
            choose(page, view)  # and it answers there, too
        choose(page, "Memory")
        page.wait_for_timeout(500)
        assert notebook.busy(4)
        page.screenshot(path=shots / "lab_busy.png")
        (root / "live.ended").touch()
        notebook.wait(4)
        notebook.run(5)
        notebook.wait(5)
        page.wait_for_selector(PANEL, state="detached")  # the view is swapped for what needs no kernel
        notebook.save()
        assert page.troubles == []
        assert page.outside == []

    bundles = [output["data"] for output in nbformat.read(path, 4).cells[3].outputs if "data" in output]
    (bundle,) = [one for one in bundles if "application/vnd.plotly.v1+json" in one]
    assert "application/vnd.jupyter.widget-view+json" not in bundle
    assert {"image/svg+xml", "text/plain"} <= bundle.keys()

    with another(chrome) as page:
        notebook = Lab(page, url, path.name, kernel=False)
        page.locator(".jp-Cell").nth(3).locator(".js-plotly-plot, .jp-RenderedImage, .jp-RenderedSVG").first.wait_for()
        page.wait_for_timeout(1000)
        page.screenshot(path=shots / "lab_reopened.png", full_page=True)
        expect(page.locator(".jp-Cell").nth(3)).not_to_contain_text("Loading widget")


INSPECT = """
import numpy as np, torch, probe, training
class Letters:
    def decode(self, ids): return "".join(chr(97 + int(one) % 26) for one in ids)
data = training.batch(3)
data.batch["responses"] = data.batch["input_ids"][:, 16:]
data.non_tensor_batch["question"] = np.array([f"<b>{row}</b>" for row in range(16)], dtype=object)
probe.inspect(data, Letters(), rows=(2, 8))
"""


def test_a_closed_session_leaves_a_panel_dark_as_jupyterlab_is_and_its_copy_and_an_inspection_need_no_kernel(
    lab, chrome, shots
) -> None:
    import nbformat

    url, root = lab
    path = write_notebook(
        root / "finished.ipynb",
        START.format(name="finished").replace("panel = session.panel()\npanel", "session.panel()"),
        "training.train(session, 30, 0.005)",
        "session.close()",
        INSPECT,
    )
    with another(chrome) as page:
        notebook = Lab(page, url, path.name)
        notebook.run_all(4)
        page.wait_for_selector(f"{PANEL} .pp-status:has-text('finished')")
        await_step(page, 29)
        expect(page.locator(".probe-copy")).to_be_hidden()  # the live panel stands above it
        choose(page, "Tokens")
        await_copy(page, "up to step 29 · finished")
        page.select_option("select[name=key]", "non_tensor_batch.question")
        page.click("text=Show values")
        page.wait_for_selector(".probe-answer table")
        expect(page.locator(".probe-answer")).to_contain_text("<b>2</b>")
        page.screenshot(path=shots / "lab_inspection.png", full_page=True)
        notebook.save()
        # It is as dark as JupyterLab, whether that becomes so or is so from its start.
        expect(page.locator(PANEL)).to_have_attribute("data-theme", "light")
        change_theme(page, "JupyterLab Dark")
        expect(page.locator(PANEL)).to_have_attribute("data-theme", "dark")
        page.goto(f"{url}/lab/tree/{path.name}")  # while the kernel lives, a page that opens has the live panel
        notebook.await_open()
        page.wait_for_selector(f"{PANEL} .pp-status:has-text('finished')")
        expect(page.locator(".probe-copy")).to_be_hidden()
        expect(page.locator(PANEL)).to_have_attribute("data-theme", "dark")
        page.wait_for_timeout(800)
        page.screenshot(path=shots / "lab_dark.png", full_page=True)
        change_theme(page, "JupyterLab Light")
        assert page.troubles == []

    _, copy = (output["data"] for output in nbformat.read(path, 4).cells[0].outputs)
    assert "up to step 29 · finished" in copy["text/plain"]
    end_kernels(url, "finished.ipynb")
    with another(chrome) as page:
        Lab(page, url, path.name)
        image = page.locator(".probe-copy img")
        expect(image).to_be_visible()
        await_copy(page, "up to step 29 · finished")
        await_that(page, lambda: image.evaluate("(one) => one.naturalWidth") > 500)  # it is drawn
        page.screenshot(path=shots / "lab_saved_copy.png")
        said = page.locator(".probe-inspection")
        expect(said).to_contain_text("input_ids")
        expect(said).to_contain_text("Tokens of rows 2 to 7")


def test_a_killed_kernel_leaves_what_was_seen_and_how_to_go_on(lab, chrome, shots) -> None:
    url, root = lab
    path = write_notebook(
        root / "killed.ipynb",
        START.format(name="killed"),
        "training.train(session, 20, 0.005); session.flush()",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import probe\nprobe.open('runs/killed').panel()",
    )
    with another(chrome) as page:
        notebook = Lab(page, url, path.name)
        notebook.run_all(2)
        await_copy(page, "up to step 19 · recording")
        notebook.run(2)
        page.wait_for_selector(".jp-Dialog")  # the kernel appears to have died
        page.keyboard.press("Enter")
        notebook.save()
    with another(chrome) as page:
        notebook = Lab(page, url, path.name)
        page.wait_for_selector(".probe-copy img")
        await_copy(page, "up to step 19 · recording")
        expect(page.locator(".probe-copy")).to_contain_text('probe.open("runs/killed").panel()')
        notebook.run(3)  # as it says
        page.wait_for_selector(PANEL)
        await_step(page, 19)
        page.wait_for_timeout(500)
        page.screenshot(path=shots / "lab_after_a_kill.png")
        assert page.troubles == []


def more_micro_batches(page) -> int | None:
    """By how many more micro-batches the settings would have come to; None while that isn't told. Both numbers are read
    at one moment, as a newer step may take the place of the one that is shown.
    """
    told = page.locator(".pp-lines [data-number=micro_batches] td").all_inner_texts()
    return int(told[-1]) - int(told[0]) if told and told[0].isdigit() and told[-1].isdigit() else None


def turn_a_slider_while_busy(page, notebook: Lab, shots: Path) -> None:
    """What a smaller cap would have come to, of a step whose lengths are here before the cell begins."""
    tab(page, "What if").click()
    cap = page.get_by_role("slider", name="actor_rollout_ref.actor.ppo_max_token_len_per_gpu")
    cap.wait_for()
    notebook.run(1)
    await_that(page, lambda: notebook.busy(1))
    await_that(page, lambda: more_micro_batches(page) == 0, seen=lambda: more_micro_batches(page))
    cap.focus()
    page.keyboard.press("Home")
    page.locator(".pp-what-if .pp-sentence", has_text="Packed again in this page").first.wait_for()
    await_that(page, lambda: (more_micro_batches(page) or 0) > 0, seen=lambda: more_micro_batches(page))
    expect(page.locator(".pp-patch del")).to_contain_text("ppo_max_token_len_per_gpu: 128")
    assert notebook.busy(1)
    page.screenshot(path=shots / "lab_what_if_busy.png")


BUSY = """
import pathlib, time
while not pathlib.Path("elsewhere.ended").exists():
    time.sleep(0.05)
"""


def test_a_run_that_another_process_writes_is_followed_and_16_2_a_slider_answers_in_a_busy_cell(
    lab, chrome, shots
) -> None:
    url, root = lab
    run = root / "runs" / "elsewhere"
    path = write_notebook(root / "elsewhere.ipynb", f"import probe\nrun = probe.open({str(run)!r})\nrun", BUSY)
    command = [sys.executable, str(root / "training.py"), str(run), str(ENDLESS), "0.05"]
    with subprocess.Popen(command, cwd=root) as writer, another(chrome) as page:
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
            (root / "elsewhere.ended").touch()
            writer.kill()  # a trainer that dies leaves what it has told
            assert steps_seen(page) >= 7
            assert page.troubles == []
        finally:
            writer.kill()
