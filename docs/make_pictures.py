"""Takes the pictures that only a browser draws: ``python docs/make_pictures.py``; needs Chromium and playwright.

The live panel is opened on docs/example_run by ``probe open``. Each panel that no dashboard has is kept as
images/live_<id>.png, the panel's first view as images/panel.png, the run's report as images/report.png, and the crash
record of a run that failed as images/post_mortem.png, in few colours.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from pages import panels  # noqa: E402  (found through the line above)

from probe.opened import Run  # noqa: E402

WIDTH = 780  # one column of panels
WIDE = 1068  # the panel as a notebook shows it, and the report
REPORT_HEIGHT = 2150  # of the report, its first screens
COLOURS = 128

#: Whether all panels that are seen have been drawn.
_DRAWN = """() => {
  const seen = [...document.querySelectorAll('figure[data-state]')].filter(card => card.offsetParent)
  return seen.length > 0 && seen.every(card => card.dataset.state === 'drawn')
}"""


@contextmanager
def page_of(run: Path) -> Iterator[str]:
    """The URL of the live panel of ``run``."""
    command = [sys.executable, "-m", "probe", "open", str(run), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603  (our own command)
        try:
            yield json.loads((server.stdout or io.StringIO()).readline())["url"]
        finally:
            server.terminate()


def take(page: Any, view: str, title: str) -> bytes | None:
    """A PNG of the panel with this title, in its view; None where the run has nothing for it, such as the padding of
    micro-batches that are packed: the picture of an earlier run stays.
    """
    page.get_by_role("tab", name=re.compile(rf"^{re.escape(view)}")).click()  # behind it, how many findings
    card = page.locator("figure", has=page.get_by_text(title, exact=True)).first
    card.scroll_into_view_if_needed()
    page.wait_for_function("card => ['drawn', 'empty'].includes(card.dataset.state)", arg=card.element_handle())
    page.wait_for_timeout(1000)  # for the picture itself
    return None if card.get_attribute("data-state") == "empty" else bytes(card.screenshot())


def whole(page: Any, url: str) -> bytes:
    """A PNG of the panel's first view."""
    page.goto(url)
    page.wait_for_function(_DRAWN)
    page.wait_for_selector(".pp-verdict[data-kind]")  # what was found
    page.wait_for_timeout(1000)
    return bytes(page.screenshot(full_page=True))


def beginning(page: Any, run: Path) -> bytes:
    """A PNG of the first screens of the run's report."""
    from probe.views.report.report import write_report

    with Run(run) as opened:
        report = write_report(opened, run.with_name("report.html"))
    page.set_viewport_size({"width": WIDE, "height": REPORT_HEIGHT})
    page.goto(Path(report).as_uri())
    page.wait_for_timeout(5000)
    return bytes(page.screenshot())


def crash_record(browser: Any, place: Path) -> bytes:
    """A PNG of ``run.post_mortem()`` as a notebook's cell shows it, of a fault of the zoo."""
    from probe.demo.zoo import fault

    with Run(fault("out_of_memory")(1.0, 17).run(place / "out_of_memory")) as run:
        cell = run.post_mortem()._repr_html_()
    page = browser.new_page(viewport={"width": WIDE, "height": 600}, device_scale_factor=1.5)
    page.set_content(f"<body style='font:14px/1.5 system-ui,sans-serif;margin:20px;width:max-content'>{cell}</body>")
    return bytes(page.locator(".probe-post-mortem").screenshot())


def keep(picture: bytes, name: str, colours: int = COLOURS) -> None:
    """Store a picture in few colours. One with small marks in colours of their own needs more of them."""
    from PIL import Image

    opened = Image.open(io.BytesIO(picture)).convert("RGB")
    opened.quantize(colours, dither=Image.Dither.NONE).save(DOCS / name, optimize=True)


def main() -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        run = Path(shutil.copytree(DOCS / "example_run", Path(place) / "first"))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with page_of(run) as url:
            page = browser.new_page(viewport={"width": WIDTH, "height": 1400}, device_scale_factor=1.5)
            page.goto(url)
            for view, panel in panels.live_only():
                picture = take(page, view.title, panel.title)
                if picture is not None:
                    keep(picture, f"{panels.PICTURES}_{panel.id}.png")
            wide = browser.new_page(viewport={"width": WIDE, "height": 900})
            keep(whole(wide, url), "images/panel.png")
        keep(beginning(wide, run), "images/report.png")
        keep(crash_record(browser, Path(place)), "images/post_mortem.png")
        browser.close()


if __name__ == "__main__":
    main()
