"""What a person does in a JupyterLab with the plugin, and a training beside it that no kernel knows of."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser.jupyter import await_that

__all__ = ["PANEL", "await_that", "change_theme", "command", "layout_saved", "open_document", "pauses", "pids", "row"]
__all__ += ["show", "step_of", "step_shown", "training"]

HERE = Path(__file__).parent
PANEL = ".probe-tab .probe-panel"


def show(page: Any, url: str) -> None:
    """Open a page of JupyterLab, and wait until nothing more comes by itself: a document or, where there is none, the
    launcher, which JupyterLab opens some time after it is restored, and gives the focus.
    """
    page.goto(url)
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate("() => window.jupyterapp.restored.then(() => null)")
    page.wait_for_function("window.jupyterapp.shell.currentWidget !== null")


def command(page: Any, name: str, **given: Any) -> None:
    page.evaluate("([name, given]) => window.jupyterapp.commands.execute(name, given).then(() => null)", [name, given])


def open_document(page: Any, path: str) -> None:
    """Open a document, or go to it, and wait until commands are about it."""
    command(page, "docmanager:open", path=path)
    page.wait_for_function("(path) => window.jupyterapp.shell.currentWidget?.context?.path === path", arg=path)


def change_theme(page: Any, theme: str) -> None:
    """Choose one of JupyterLab's themes, and wait until the page is drawn in it."""
    command(page, "apputils:change-theme", theme=theme)
    page.wait_for_function("(theme) => document.body.dataset.jpThemeName === theme", arg=theme)


def layout_saved(page: Any, tab: str, without: str | None = None) -> None:
    """Until the server has a layout with ``tab``, and without another one that was closed: a page that is loaded again
    has what is in it. JupyterLab saves it a second after it has changed.
    """
    ask = """async () => {
        const { values } = await window.jupyterapp.serviceManager.workspaces.list();
        return values.map((one) => JSON.stringify(one.data["layout-restorer:data"]?.main ?? null));
    }"""

    def saved() -> bool:
        return any(tab in one and (without is None or without not in one) for one in page.evaluate(ask))

    await_that(page, saved)


def row(page: Any, name: str) -> Any:
    return page.locator(".probe-runs li", has=page.locator(".probe-run-name", has_text=re.compile(re.escape(name))))


def step_shown(page: Any) -> int:
    found = re.findall(r"step (\d+)", page.locator(f"{PANEL} .pp-facts-line").first.text_content() or "")
    return int(found[-1]) if found else -1


def step_of(page: Any) -> int:
    """As :func:`step_shown`, of the tab that can be seen."""
    told = page.locator(".probe-tab:visible .pp-facts-line").all_text_contents()
    found = re.findall(r"step (\d+)", told[0]) if told else []
    return int(found[-1]) if found else -1


def pauses(page: Any, looks: int) -> list[float]:
    """Seconds between the page's next looks at the list of runs, each from an answer to the next question. The browser
    has taken the times: what drives it doesn't count.
    """
    page.evaluate("performance.clearResourceTimings()")
    taken = """() => performance.getEntriesByType("resource")
        .filter((one) => one.name.includes("/probe/api/runs?"))
        .map((one) => [one.startTime, one.responseEnd, one.responseStatus])"""
    told = sorted(await_that(page, lambda: len(found := page.evaluate(taken)) >= looks and found))
    assert {status for _, _, status in told} == {200}
    return [(begin - end) / 1000 for (_, end, _), (begin, _, _) in itertools.pairwise(told)]


@contextlib.contextmanager
def training(run: Path, steps: int, pause_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks under torchrun, in a terminal of its own."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(HERE / "train.py"), str(run), str(steps), str(pause_s)]
    with (run.parent / f"{run.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            # Each rank leads a session of its own: torchrun ends them, unless it is killed.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pids(run: Path) -> dict[int, int]:
    """Process ids of the ranks."""
    text = (run.parent / f"{run.name}.log").read_text(errors="replace")
    return {int(rank): int(pid) for rank, pid in re.findall(r"pid (\d+) (\d+)", text)}


def holder(page: Any, name: str) -> Any:
    """The line of a notebook or run that holds memory."""
    return page.locator(".probe-holders li", has=page.locator(".probe-holder-name", has_text=name))


def plain(one: Any) -> str:
    """The text of an element, spaces that don't break as plain ones."""
    text: str = one.inner_text()
    return text.replace("\u00a0", " ")
