"""Takes the picture of the view What if: ``python docs/make_what_if_picture.py``; needs Chromium and playwright.

A made-up run that verl's rule has cut, and images/what_if.png shows what a larger cap would have come to.
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

from probe.views.server.server import PageServer  # noqa: E402
from tests.analysis.planted_batches import Planted, planted  # noqa: E402

WIDTH: Final = 1040
CAP: Final = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
ACTOR: Final = {"ppo_max_token_len_per_gpu": 8192, "use_dynamic_bsz": True, "ulysses_sequence_parallel_size": 1}
CONFIG: Final = {"actor_rollout_ref": {"actor": ACTOR}, "trainer": {"balance_batch": True}}


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
        keep(page.locator(".pp-what-if").screenshot(), "images/what_if.png")
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        planted(Path(folder) / "run", Planted(ranks=8, rows=512, config=CONFIG)).close()
        take(Path(folder) / "run")
