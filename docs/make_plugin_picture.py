"""Takes the picture of the plugin of JupyterLab: ``python docs/make_plugin_picture.py``; needs Chromium and playwright.

`probe demo` trains two ranks in a process that no kernel knows of; beside it lie runs with faults in them, as ``probe
demo --fault NAME`` plants them. A real JupyterLab lists them, and shows the training that goes on as a tab: kept as
images/jupyterlab_plugin.png. A directory as an argument keeps it as it is seen in dark, at a side panel's width and in
a window of 400 pixels, too, to be looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

from make_pictures import keep  # noqa: E402  (found through the line above)

from probe.demo.zoo import fault, loop  # noqa: E402
from tests.browser.jupyter import browser  # noqa: E402
from tests.jupyter import plugin  # noqa: E402
from tests.jupyter.driving import PANEL, await_that, command, row, show, step_shown  # noqa: E402

#: Faults of the runs beside: what each is called in the list, and how many hours ago it began.
BESIDE: Final = {
    "out_of_memory": ("batch 512", 2),
    "slow_rank": ("four ranks, one of them slow", 5),
    "computed_padding": ("without packing", 8),
}
PROJECT: Final = "demo"  #: as `probe demo` has it
LIVE: Final = "grpo on two ranks"

SIZE: Final = (1360, 960)
STEP: Final = 24
PATIENCE_S: Final = 600
CALM_S: Final = 120


@contextlib.contextmanager
def training(run: Path) -> Iterator[None]:
    """`probe demo`, for as long as the block lasts."""
    command = [sys.executable, "-m", "probe", "demo", "--steps", "4000", "--run-dir", str(run), "--track", ""]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(  # noqa: S603  (our own command)
        command, cwd=run.parent, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while not (run / "run.json").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("probe demo doesn't begin")
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def planted(name: str, called: str, hours: float, run: Path) -> None:
    """A run with a fault in it, as a person would have named it, that began some hours ago."""
    loop.WALL_NS = time.time_ns() - int(hours * 3600e9)
    fault(name)(1.0).run(run)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "project": PROJECT, "experiment": called}))


def looked_at(page: Any) -> None:
    """Every run of the list has its verdict, and the tab of the one that trains has come far enough."""
    command(page, "probe:runs")
    await_that(page, lambda: page.locator(".probe-runs li").count() == len(BESIDE) + 1, PATIENCE_S)
    row(page, LIVE).locator(".probe-run-name").click()
    await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) >= STEP, PATIENCE_S)
    await_that(page, lambda: "Not looked at yet" not in page.inner_text(".probe-runs"), PATIENCE_S)
    await_that(page, lambda: page.locator(f"{PANEL} .pp-verdict[data-kind]").count(), PATIENCE_S)
    page.wait_for_function(
        """() => [...document.querySelectorAll(".probe-tab figure[data-state]")].every(
            (card) => !card.checkVisibility() || card.dataset.state === "drawn")"""
    )
    page.mouse.move(SIZE[0] - 40, SIZE[1] - 60)
    page.wait_for_timeout(3000)


def calm(page: Any) -> None:
    """While a process warms up its memory grows, which looks like a leak at first: wait a while for that to pass."""
    strip = page.locator(f"{PANEL} .pp-verdict[data-kind]")
    with contextlib.suppress(AssertionError):
        await_that(page, lambda: strip.count() and strip.get_attribute("data-kind") != "alarm", CALM_S)


def more(chromium: str, url: str, place: Path, profiles: Path) -> None:
    """The same in other looks, for whoever wants to see whether they are right."""
    looks = {"dark": (SIZE, True), "narrow": ((400, 860), False), "narrow_dark": ((400, 860), True)}
    for name, (size, dark) in looks.items():
        with browser(chromium, profiles / name, size, dark=dark) as page:
            show(page, f"{url}/lab?reset")
            command(page, "apputils:change-theme", theme=f"JupyterLab {'Dark' if dark else 'Light'}")
            looked_at(page)
            page.screenshot(path=place / f"{name}.png")
            page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
            page.wait_for_timeout(3000)
            page.screenshot(path=place / f"{name}_alone.png")


def main() -> None:
    """Take it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium: there is no such program")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        root, home = place / "work", place / "jupyter"
        (root / "runs").mkdir(parents=True)
        home.mkdir()
        for name, (called, hours) in BESIDE.items():
            planted(name, called, hours, root / "runs" / called)
        with training(root / "runs" / LIVE), plugin.server(root, home) as url:
            with browser(chromium, place / "profile", SIZE) as page:
                show(page, f"{url}/lab?reset")
                looked_at(page)
                calm(page)
                keep(bytes(page.screenshot()), "images/jupyterlab_plugin.png", 256)
            for kept in sys.argv[1:2]:
                Path(kept).mkdir(parents=True, exist_ok=True)
                more(chromium, url, Path(kept), place)


if __name__ == "__main__":
    main()
