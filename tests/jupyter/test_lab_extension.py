"""The plugin in a real JupyterLab and a real Chromium, beside trainings that no kernel knows of."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import probe
from probe.runs.files import RunFiles
from probe.runs.now import now
from tests.browser.conftest import ENDLESS
from tests.browser.jupyter import another, end_kernels, write_notebook
from tests.jupyter import plugin, serving
from tests.jupyter.driving import (
    PANEL,
    await_that,
    change_theme,
    command,
    holder,
    layout_saved,
    open_document,
    pauses,
    pids,
    plain,
    row,
    show,
    step_of,
    step_shown,
    training,
)
from tests.ports import free_port
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TOAST = ".jp-toast-message"
IDLE = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"

NASTY = "<img src=x onerror=globalThis.__hurt=1>"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL and directory of a JupyterLab with the plugin."""
    root = tmp_path_factory.mktemp("home")
    write_run(root / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    write_run(root / "runs" / "second", sample_rows(2, 8), project=NASTY, experiment="second")
    with plugin.server(root, tmp_path_factory.mktemp("jupyter")) as url:
        yield url, root


@pytest.fixture
def page(lab: tuple[str, Path], chrome: Any) -> Iterator[Any]:
    with another(chrome) as made:
        show(made, f"{lab[0]}/lab?reset")
        yield made
        assert made.troubles == []
        assert made.outside == []
        assert made.evaluate("globalThis.__hurt") is None


@pytest.fixture
def torchrun(lab: tuple[str, Path]) -> Iterator[contextlib.ExitStack]:
    """A training in which both ranks record already. Leaving it ends them. The run goes with the test, which becomes a
    process of it in the end: another test asks who holds memory.
    """
    run = lab[1] / "runs" / "torchrun"
    with contextlib.ExitStack() as going_on:
        going_on.enter_context(training(run, ENDLESS, 0.25))
        serving.await_that(
            lambda: len(pids(run)) == 2 and all(one.scopes for one in now(RunFiles(run))),
            (run.parent / "torchrun.log").read_text,
        )
        yield going_on
    shutil.rmtree(run)


def test_2_a_training_that_began_before_lab_was_opened_is_listed_live_and_its_tab_follows(
    torchrun: contextlib.ExitStack, page: Any, lab: tuple[str, Path], shots: Path, monkeypatch: pytest.MonkeyPatch
):
    """The page is opened after the training has begun: fixtures are made in the order of the arguments. Of those that
    begin later the tests of other hosts have one.
    """
    run = lab[1] / "runs" / "torchrun"
    command(page, "probe:runs")
    with torchrun:
        await_that(page, lambda: row(page, "torchrun").count() and "Live" in row(page, "torchrun").inner_text())
        expect(row(page, "torchrun")).to_have_attribute("data-state", "live")
        expect(row(page, "torchrun")).to_contain_text("began ")
        row(page, "torchrun").locator(".probe-run-name").click()
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) >= 3)
        seen = step_shown(page)
        await_that(page, lambda: step_shown(page) > seen + 3)
        assert "step" in await_that(page, lambda: page.locator(".probe-status").text_content())
        page.screenshot(path=shots / "lab_plugin_live.png")

        # Dragged beside the launcher it is the same tab, and goes on.
        page.evaluate(
            """() => {
                const { shell } = window.jupyterapp;
                shell.add(shell.currentWidget, "main", { mode: "split-right" });
            }"""
        )
        seen = step_shown(page)
        await_that(page, lambda: step_shown(page) > seen)
        expect(page.locator(PANEL)).to_have_count(1)

        # A notebook's kernel is killed, and the notebook closed: the tab goes on.
        write_notebook(lab[1] / "beside.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        open_document(page, "beside.ipynb")
        page.wait_for_function(IDLE)
        command(page, "notebook:run-cell")
        page.wait_for_selector(".jp-Dialog")  # the kernel appears to have died
        page.keyboard.press("Enter")
        close(page, "beside.ipynb")
        seen = step_shown(page)
        await_that(page, lambda: step_shown(page) > seen)

        # The page is loaded again: the tab comes back by itself, and goes on.
        layout_saved(page, "runs/torchrun", without="beside.ipynb")
        show(page, f"{lab[0]}/lab")
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) > seen)
        # JupyterLab's own, of the killed kernel.
        page.troubles[:] = [one for one in page.troubles if not re.search("Kernel|Canceled future", one)]

        # A rank is killed: the alarm is there within seconds, in the list and as a notification.
        os.kill(pids(run)[1], signal.SIGKILL)
        await_that(page, lambda: row(page, "torchrun").get_attribute("data-kind") == "alarm")
        project = json.loads((run / "run.json").read_text())["project"]
        page.wait_for_selector(f"{TOAST} >> text=/{re.escape(project)} .* Rank 1 was killed/")
        # The list and the panel name the same.
        strip = page.locator(f"{PANEL} .pp-verdict h3").first
        said = row(page, "torchrun").locator(".probe-verdict")
        await_that(page, lambda: (said.inner_text().replace("\u00a0", " ") or "?") in strip.inner_text())
        page.screenshot(path=shots / "lab_plugin_alarm.png")

    # The job is started again: what ended it before is found no longer, which its notification says.
    monkeypatch.setenv("PROBE_ATTEMPT", "2")
    with contextlib.suppress(RuntimeError), probe.start(project, run.name, run_dir=run) as session:
        with session.step(0), probe.phase("update", role="actor"):
            session.flush()
        page.wait_for_selector(f"{TOAST} >> text=/Found no longer in .* Rank 1 was killed/")
        raise RuntimeError("no more data")
    # From the next alarm one goes there.
    page.evaluate("[...window.jupyterapp.shell.widgets('main')].forEach((one) => one.content?.run && one.dispose())")
    expect(page.locator(PANEL)).to_have_count(0)
    told = page.locator(".Toastify__toast", has_text="no more data")
    told.get_by_role("button", name="Go there").click()
    await_that(page, lambda: page.locator(f"{PANEL} .pp-verdict[data-kind]").count())


def close(page: Any, label: str) -> None:
    """Close the notebook of that name."""
    page.evaluate(
        "(label) => [...window.jupyterapp.shell.widgets('main')].find((one) => one.title.label === label).dispose()",
        label,
    )
    expect(page.locator(".jp-NotebookPanel")).to_have_count(0)


def test_2_run_json_opens_as_a_panel_by_a_double_click_that_follows_the_theme_and_fits_a_narrow_window(
    page: Any, lab: tuple[str, Path], shots: Path
):
    before = sorted(one.name for one in (lab[1] / "runs" / "first").iterdir())
    command(page, "filebrowser:open-path", path="runs/first")
    page.locator('.jp-DirListing-item[title^="Name: run.json"]').dblclick()
    await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
    after = sorted(one.name for one in (lab[1] / "runs" / "first").iterdir() if not one.name.startswith("."))
    assert after == before
    page.set_viewport_size({"width": 800, "height": 900})
    command(page, "probe:runs")
    for theme in ("dark", "light"):
        change_theme(page, f"JupyterLab {theme.title()}")
        await_that(page, lambda theme=theme: page.locator(PANEL).first.get_attribute("data-theme") == theme)
        page.wait_for_timeout(1000)  # for what is too wide only later, and the picture
        page.screenshot(path=shots / f"lab_plugin_{theme}.png")
        await_that(page, lambda: [max(one, 1) for one in too_wide(page)] == [1, 1], seen=lambda: too_wide(page))


def too_wide(page: Any) -> list[int]:
    """By how much the tab's and the list's contents are wider than they."""
    wide: list[int] = page.evaluate(
        "(place) => [...document.querySelectorAll(place)].map((one) => one.scrollWidth - one.clientWidth)",
        ".probe-tab, .probe-side",
    )
    return wide


def test_2_the_list_is_filtered_sorted_and_compared_by_keyboard_and_3_leads_from_a_finding_to_a_notebook(
    page: Any, lab: tuple[str, Path], shots: Path
):
    command(page, "probe:runs")
    await_that(page, lambda: row(page, "shop / first").count() and row(page, "second").count())
    page.get_by_label("Filter runs").fill("second")
    await_that(page, lambda: page.locator(".probe-runs li").count() == 1)
    assert NASTY in (page.locator(".probe-runs li").text_content() or "")
    page.get_by_label("Filter runs").fill("no such run")
    await_that(page, lambda: "No run fits the filter" in page.inner_text(".probe-note"))
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Order").select_option("name")
    names = page.locator(".probe-run-name")
    await_that(page, lambda: len(told := names.all_inner_texts()) > 1 and told == sorted(told))
    page.get_by_label("Order").select_option("newest")
    compare = page.get_by_role("button", name="Compare", exact=True)
    expect(compare).to_be_disabled()
    names.first.focus()
    page.keyboard.press("ArrowDown")
    expect(names.nth(1)).to_be_focused()
    for name in ("shop / first", "second"):
        row(page, name).get_by_role("checkbox").check()
    compare.click()
    await_that(page, lambda: page.locator(".probe-compare table").count())
    expect(page.locator(".probe-compare")).to_contain_text("Configuration")
    peak = page.locator(".probe-metrics tr", has_text="peak_memory").locator("td")
    expect(peak).to_have_text(["peak_memory", *[re.compile(r"^[\d.]+ [KMG]iB$")] * 2, re.compile(r"^[+−][\d.]+ %$")])
    page.screenshot(path=shots / "lab_plugin_compare.png")
    # The page is loaded again: the comparison comes back, and whoever asks for it again gets the same tab.
    layout_saved(page, "probe-lab-compare")
    show(page, f"{lab[0]}/lab")
    await_that(page, lambda: page.locator(".probe-compare table").count())
    expect(page.locator(".probe-compare h1")).to_have_text("runs/first and runs/second")
    command(page, "probe:compare", a="runs/first", b="runs/second")
    expect(page.locator(".probe-compare")).to_have_count(1)
    command(page, "probe:runs")
    # To the rows behind a finding: `test_3_open_notebook_at_this_step` runs such a one.
    row(page, "shop / first").get_by_role("button", name="Open notebook at step").click()
    page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
    _, opens, _, rows, *_ = sources(page)
    assert 'probe.open("runs/first")' in opens
    assert "select" in rows


def test_3_a_cell_asks_for_a_tab_and_a_saved_notebook_doesn_t(page: Any, lab: tuple[str, Path]):
    url, root = lab
    code = "import probe\nprobe.open('runs/first').panel(where='tab')"
    write_notebook(root / "asks.ipynb", code, "probe.open('runs/second').panel()")
    show(page, f"{url}/lab/tree/asks.ipynb?reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    page.wait_for_function(IDLE)
    command(page, "notebook:run-all-cells")
    await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
    expect(page.locator(".probe-tab-output button")).to_have_count(1)
    # The cell's own panel has a button for it.
    open_document(page, "asks.ipynb")
    page.get_by_role("button", name="Open in a tab").first.click()
    await_that(page, lambda: page.locator(PANEL).count() == 2)
    # By its whole path, and by its name, it is the same tab.
    for name in (str(root / "runs" / "first"), "runs/first"):
        command(page, "probe:open", run=name)
    expect(page.locator(PANEL)).to_have_count(2)
    # The tabs need neither the kernel nor the notebook.
    open_document(page, "asks.ipynb")
    command(page, "docmanager:save")
    end_kernels(url, "asks.ipynb")
    close(page, "asks.ipynb")
    expect(page.locator(PANEL)).to_have_count(2)
    # Whoever reads the notebook later gets a button, and no tab.
    saved = json.loads((root / "asks.ipynb").read_text())
    (told,) = [one["data"] for one in saved["cells"][0]["outputs"] if "application/vnd.probe.tab+json" in one["data"]]
    told["application/vnd.probe.tab+json"]["asked_s"] -= 3600
    (root / "asks.ipynb").write_text(json.dumps(saved))
    show(page, f"{url}/lab/tree/asks.ipynb?reset")
    await_that(page, lambda: page.locator(".probe-tab-output button").count())
    page.wait_for_timeout(1000)
    assert page.locator(PANEL).count() == 0
    page.troubles[:] = [one for one in page.troubles if one != "Kernel is dead"]  # JupyterLab's own, of the ended one


def test_3_open_notebook_at_this_step_from_the_verdict_of_the_panel_in_a_tab(page: Any, shots: Path):
    command(page, "probe:open", run="runs/first")
    strip = page.locator(f"{PANEL} .pp-verdict")
    button = strip.get_by_role("button", name="Open notebook at step 5")
    await_that(page, lambda: button.count() and button.is_visible())
    sentence = strip.locator("h3").inner_text()
    strip.get_by_role("button", name="Rows behind this").click()
    query = strip.locator("pre code").inner_text()
    page.screenshot(path=shots / "lab_plugin_verdict.png")
    button.focus()
    page.keyboard.press("Enter")
    cells = ran(page)
    title, opens, _, rows, *_ = sources(page)
    assert sentence.split(" ", 1)[1][:40] in title.replace("\\", "")
    assert 'probe.open("runs/first")' in opens
    assert query.strip() in rows
    notebook = page.evaluate(NOTEBOOK)
    assert notebook["metadata"]["kernelspec"]["language"] == "python"  # nobody is asked for a kernel
    assert cells == 3


NOTEBOOK = "window.jupyterapp.shell.currentWidget.content.model.toJSON()"


def sources(page: Any) -> list[str]:
    """What stands in the cells of the notebook that is shown."""
    page.wait_for_function("window.jupyterapp.shell.currentWidget?.content?.model?.cells?.length > 3")
    return [one["source"] for one in page.evaluate(NOTEBOOK)["cells"]]


def ran(page: Any) -> int:
    """Run the notebook that has opened in its own kernel: its last two cells give rows. Gives how many have code."""
    page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
    page.wait_for_function(IDLE)
    command(page, "notebook:run-all-cells")
    cells = page.locator(".jp-NotebookPanel .jp-CodeCell")
    for at in (1, 2):
        await_that(page, lambda at=at: cells.nth(at).locator(".jp-OutputArea table tbody tr").count())
    assert not page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]').count()
    return cells.count()


#: A kernel whose child process holds memory, and one that was left idle.
WORKS = """import subprocess, sys
hold = "held = bytearray(200 * 2**20); print('holds', flush=True); import time; time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
child.stdout.readline()
import os; print(os.getpid(), child.pid)"""


def test_2_memory_is_told_by_kernel_with_its_children_and_an_idle_one_is_shut_down(
    page: Any, lab: tuple[str, Path], shots: Path
):
    url, root = lab
    page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    (root / "deep").mkdir()
    write_notebook(root / "deep" / "works.ipynb", WORKS)
    write_notebook(root / f"{NASTY.replace('/', '-')}.ipynb", "held = bytearray(2**20)")
    told = []
    for name in ("deep/works.ipynb", f"{NASTY}.ipynb"):
        open_document(page, name)
        page.wait_for_function(IDLE)
        command(page, "notebook:run-all-cells")
        cell = page.locator(".jp-NotebookPanel:visible .jp-InputPrompt").first
        await_that(page, lambda cell=cell: "1" in (cell.text_content() or ""))
        told += page.locator(".jp-NotebookPanel:visible .jp-OutputArea-output").all_inner_texts()
    kernel, child = map(int, told[0].split())
    command(page, "probe:runs")
    held, idle = holder(page, "deep/works.ipynb"), holder(page, NASTY)
    await_that(page, lambda: held.count() and f"pid {child}" in plain(held) and "Idle for" in plain(idle))
    expect(page.locator(".probe-memory-title")).to_have_text("Process memory (RSS)")
    assert f"pid {kernel}: " in plain(held)
    sizes = [float(one) for one in re.findall(r"pid \d+(?: \([^)]*\))?: ([\d.]+) MiB", plain(held))]
    total = float(held.locator(".probe-bytes").inner_text().split()[0])
    assert max(sizes) >= 200
    assert total == pytest.approx(sum(sizes), abs=2)
    status = page.locator(".probe-memory-status")
    assert re.fullmatch(r"2 kernels: [\d.]+ MiB RSS", status.inner_text().replace("\u00a0", " "))
    assert "deep/works.ipynb" in (status.get_attribute("title") or "")
    page.add_style_tag(content=".Toastify { display: none }")
    for theme in ("dark", "light"):
        change_theme(page, f"JupyterLab {theme.title()}")
        expect(page.locator("#jupyterlab-splash")).to_have_count(0)
        page.screenshot(path=shots / f"lab_memory_{theme}.png")

    # By keyboard: folded and unfolded, which the next page knows; then to a notebook by its name.
    summary, names = page.locator(".probe-memory summary"), page.locator(".probe-holder-name")
    summary.focus()
    page.keyboard.press("Enter")
    expect(names.first).to_be_hidden()
    status.click()
    expect(names.first).to_be_visible()
    expect(summary).to_be_focused()
    names.first.focus()
    page.keyboard.press("ArrowDown")
    expect(names.nth(1)).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_function("window.jupyterapp.shell.currentWidget?.context?.path === 'deep/works.ipynb'")

    # A kernel is shut down once that is confirmed.
    for answer in ("Cancel", "Shut Down"):
        idle.get_by_role("button", name="Shut down kernel").click()
        expect(page.locator(".jp-Dialog")).to_contain_text(NASTY)
        page.locator(".jp-Dialog").get_by_role("button", name=answer).click()
        expect(page.locator(".jp-Dialog")).to_have_count(0)
        assert answer != "Cancel" or idle.count()
    expect(idle).to_have_count(0)
    expect(held).to_have_count(1)
    page.set_viewport_size({"width": 400, "height": 800})
    page.screenshot(path=shots / "lab_memory_narrow.png")
    # Whoever switches it off asks for it no more.
    page.evaluate(SET, {"memory": False})
    show(page, f"{url}/lab?reset")
    command(page, "probe:runs")
    await_that(page, lambda: row(page, "shop / first").count())
    expect(page.locator(".probe-memory, .probe-memory-status")).to_have_count(2)
    expect(page.locator(".probe-memory:visible, .probe-memory-status:visible")).to_have_count(0)
    asked = "performance.getEntriesByType('resource').some((one) => one.name.includes('/probe/api/memory'))"
    assert not page.evaluate(asked)
    page.evaluate(SET, {})
    page.troubles[:] = [one for one in page.troubles if not re.search("Kernel|Canceled future", one)]


#: The plugin's settings from the next page on.
SET = """(settings) => window.jupyterapp.serviceManager.settings.save("probe-lab:plugin", JSON.stringify(settings))"""


def test_2_what_is_missing_broken_or_gone_is_said_and_a_server_that_is_started_again_brings_the_tab_back(
    chrome: Any, tmp_path: Path, shots: Path
):
    root, elsewhere, place, port = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "jupyter", free_port()
    for one in (root, elsewhere, place):
        one.mkdir()
    told = {"roots": [str(elsewhere), str(tmp_path / "nowhere")], "refresh": 1, "alarms": False}
    with another(chrome) as page:
        note, notice = page.locator(".probe-note"), page.locator(".probe-notice:visible")
        with plugin.server(root, place, settings={"probe-lab/plugin": told}, port=port) as url:
            show(page, f"{url}/lab?reset")
            command(page, "probe:runs")
            await_that(page, lambda: "There is no run below" in note.inner_text())
            await_that(page, lambda: f"There is no directory {tmp_path / 'nowhere'}" in note.inner_text())
            page.screenshot(path=shots / "lab_plugin_no_runs.png")
            # A directory that the settings name is looked through, and no alarm of its runs is a notification.
            write_run(elsewhere / "far", sample_rows(1, 3), project="far")
            (root / "begun").mkdir()
            shutil.copy(elsewhere / "far" / "run.json", root / "begun" / "run.json")
            (root / "broken").mkdir()
            (root / "broken" / "run.json").write_text('{"not')
            await_that(page, lambda: row(page, "far").count() and row(page, "broken").count())
            await_that(page, lambda: page.locator(".probe-runs li[data-kind=alarm]").count() == 2)
            expect(row(page, "broken")).to_contain_text("If this is a run of probe, put the file back")
            await_that(page, lambda: "No rows yet" in unjudged(page))
            # A part that can't be read is left out of what was found, which says so.
            hurt = write_run(tmp_path / "hurt", sample_rows(1, 3), project="hurt")
            (hurt / "parts").mkdir()
            (hurt / "parts" / "memory-rank00007-0.parquet").write_bytes(b"PAR1 torn")
            hurt.rename(elsewhere / "hurt")
            await_that(
                page, lambda: row(page, "hurt").count() and "1 damaged file left out" in row(page, "hurt").inner_text()
            )
            assert not page.locator(".jp-toast-message, .Toastify__toast").count()
            page.screenshot(path=shots / "lab_plugin_states.png")
            # The list is looked at as often as the setting says: between two looks are three seconds without it.
            assert min(pauses(page, looks=3)) < 2.5
            # Tabs of what can't be read, and isn't there, say so; "Try now" finds a run that has come back,
            # also where the list passes it over.
            command(page, "probe:open", run="broken")
            await_that(page, lambda: notice.count() and "run.json isn't what probe writes" in notice.inner_text())
            command(page, "probe:open", run=".run")
            await_that(page, lambda: notice.count() and "it was deleted or moved" in notice.inner_text())
            expect(page.locator(".probe-tab:visible")).not_to_contain_text("Reading the run", use_inner_text=True)
            page.screenshot(path=shots / "lab_plugin_gone.png")
            kept = write_run(root / ".run", sample_rows(2, 6), project="again")
            notice.get_by_role("button", name="Try now").click()
            await_that(page, lambda: step_of(page) == 5)
            # It is deleted while its tab is open: what was read stays, and isn't called live.
            shutil.rmtree(kept)
            await_that(page, lambda: notice.count() and "it was deleted or moved" in notice.inner_text())
            assert step_of(page) == 5
            page.screenshot(path=shots / "lab_plugin_deleted.png")
            write_run(root / ".run", sample_rows(2, 6), project="again")
            notice.get_by_role("button", name="Try now").click()
            await_that(page, lambda: not notice.count())
        await_that(page, lambda: notice.count() and "Trying again" in notice.inner_text())
        await_that(page, lambda: "the Jupyter server can't be reached" in note.inner_text())
        page.screenshot(path=shots / "lab_plugin_server_gone.png")
        without_widgets(place)
        with plugin.server(root, place, port=port) as url:
            # The page tells it the directories of the settings again.
            await_that(page, lambda: not notice.count() and "There is no directory" in note.inner_text())
            await_that(page, lambda: step_of(page) == 5)
            # Where Jupyter has no widgets a cell says what it needs, above its copy; the tab needs neither of them.
            write_notebook(root / "cell.ipynb", "import probe\nprobe.open('.run').panel()")
            show(page, f"{url}/lab/tree/cell.ipynb?reset")
            page.wait_for_function(IDLE)
            command(page, "notebook:run-all-cells")
            output = page.locator(".jp-OutputArea").first
            await_that(page, lambda: "pip install 'probe-rl[notebook]'" in output.inner_text())
            await_that(page, page.locator(".probe-copy img").is_visible)
            expect(page.locator(".probe-copy-why")).to_contain_text("JupyterLab has no widgets here")
            page.screenshot(path=shots / "lab_plugin_no_widgets.png")
            command(page, "probe:open", run=".run")
            await_that(page, lambda: step_of(page) == 5)


def without_widgets(place: Path) -> None:
    """The next server that is started in ``place`` is as one without ipywidgets and anywidget."""
    told = place / "config" / "labconfig" / "page_config.json"
    told.parent.mkdir(parents=True)
    told.write_text(
        json.dumps({"disabledExtensions": {"@jupyter-widgets/jupyterlab-manager": True, "anywidget": True}})
    )


def unjudged(page: Any) -> str:
    """What is said of the run without rows, once it was looked at."""
    return next(
        (one for one in page.locator(".probe-runs li[data-kind=unknown]").all_inner_texts() if "recorded" in one), ""
    )
