"""Takes the pictures of panels that only a browser draws: ``python docs/make_pictures.py``; needs Chromium, playwright.

The live panel is opened on docs/example_run by ``probe open``, and each panel that no dashboard has is kept as
images/live_<id>.png, in few colours.
"""

from __future__ import annotations

import io
import json
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

WIDTH = 780  # one column of panels
COLOURS = 128


@contextmanager
def page_of(run: Path) -> Iterator[str]:
    """The URL of the live panel of ``run``."""
    command = [sys.executable, "-m", "probe", "open", str(run), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603  (our own command)
        try:
            yield json.loads((server.stdout or io.StringIO()).readline())["url"]
        finally:
            server.terminate()


def take(page: Any, view: str, title: str) -> bytes:
    """A PNG of the panel with this title, in its view, once there is something to see."""
    page.get_by_role("tab", name=view, exact=True).click()
    card = page.locator("figure", has=page.get_by_text(title, exact=True)).first
    card.scroll_into_view_if_needed()
    page.wait_for_function("card => card.dataset.state === 'drawn'", arg=card.element_handle())
    page.wait_for_timeout(1000)  # for the picture itself
    return bytes(card.screenshot())


def main() -> None:
    """Take them all."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        run = Path(shutil.copytree(DOCS / "example_run", Path(place) / "first"))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with page_of(run) as url:
            page = browser.new_page(viewport={"width": WIDTH, "height": 1400}, device_scale_factor=1.5)
            page.goto(url)
            for view, panel in panels.live_only():
                picture = Image.open(io.BytesIO(take(page, view.title, panel.title))).convert("RGB")
                target = DOCS / f"{panels.PICTURES}_{panel.id}.png"
                picture.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
