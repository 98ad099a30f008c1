"""Takes the picture of the view What if: ``python docs/make_what_if_picture.py``; needs Chromium and playwright.

A made-up run that verl's rule has cut and whose ranks are uneven. images/what_if.png shows what a larger cap would have
come to, and below it how far the cap can grow, the changes by gain and what came of earlier advice.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from make_pictures import keep  # noqa: E402  (found through the line above)

from probe.records import GIB  # noqa: E402
from probe.views.server.server import PageServer  # noqa: E402
from tests.analysis.planted_batches import Planted, planted  # noqa: E402

WIDTH: Final = 1040
CAP: Final = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
ACTOR: Final = {"ppo_max_token_len_per_gpu": 8192, "use_dynamic_bsz": True, "ulysses_sequence_parallel_size": 1}
CONFIG: Final = {"actor_rollout_ref": {"actor": ACTOR}, "trainer": {"balance_batch": False}}


def take(run_dir: Path) -> None:
    """Turn the cap, and keep what the view says."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with PageServer(run_dir) as server, sync_playwright() as playwright:
        server.start()
        server.follow()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=1.5)
        page.goto(server.url)
        page.locator("[data-view=what_if]").click()
        field = page.get_by_role("spinbutton", name=CAP)
        field.wait_for(timeout=120_000)
        field.fill("13312")
        field.press("Enter")
        page.locator(".pp-what-if .pp-sentence", has_text="Packed again in this page").first.wait_for()
        page.locator(".pp-setting-risk").first.wait_for(timeout=120_000)  # what memory allows takes the whole run
        page.locator(".pp-outlook").wait_for(timeout=120_000)
        page.set_viewport_size({"width": WIDTH, "height": 2400})  # so that both are on the screen
        above, below = (page.locator(one).bounding_box() for one in (".pp-what-if", ".pp-outlook"))
        height = below["y"] + below["height"] + 16 - above["y"]
        clip = {"x": above["x"], "y": above["y"], "width": above["width"], "height": height}
        keep(page.screenshot(clip=clip), "images/what_if.png")
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        planted(Path(folder) / "run", Planted(ranks=8, rows=512, balanced=False, total=60 * GIB, config=CONFIG)).close()
        take(Path(folder) / "run")
