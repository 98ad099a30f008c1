"""Takes the pictures of the runbooks: ``python docs/make_runbook_pictures.py``; needs Chromium and playwright.

Each fault is planted as ``probe demo --fault NAME`` does, and the live panel is opened on what was recorded: kept as
images/runbook_<page>.png is what stands on top, the finding and the first figures of a view. A hang is shown while it
lasts. Names of pages as arguments take these alone.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from make_pictures import keep, page_of  # noqa: E402  (found through the line above)

from probe.analysis.verdict import Findings  # noqa: E402
from probe.demo.zoo import fault, hang  # noqa: E402

WIDTH: Final = 1040
#: Chromium waits so many ms for what shall be seen: it may share its cores with a training.
PATIENCE_MS: Final = 120_000


class Shot(NamedTuple):
    """A picture.

    Attributes:
        fault: What is planted.
        view: The tab that is chosen.
        height: Pixels of the panel that are shown.
        goes: Whether the finding's button is pressed before, which moves all charts to its place.
    """

    fault: str
    view: str
    height: int
    goes: bool = True


SHOTS: Final = {
    "out_of_memory": Shot("out_of_memory", "Overview", 760),
    "hang": Shot("hang", "Overview", 760, goes=False),
    "leak": Shot("device_leak", "Memory", 640, goes=False),
    "slow_rank": Shot("slow_rank", "Time", 960, goes=False),
    "padding": Shot("computed_padding", "Tokens", 570, goes=False),
    "wrong_metric": Shot("unequal_means", "Metrics", 825),
    "nan": Shot("nan", "Metrics", 725),
}


#: How the panel begins its first sentence, where that isn't "Alarm".
SAYS: Final = {"out_of_memory": "Failed", "computed_padding": "Worth a change"}


class Lasting(hang.Fault):
    """A hang that isn't ended when it is found."""

    patience_s = PATIENCE_MS / 1000
    waits_s = 2 * patience_s

    def is_named_by(self, found: Findings) -> bool:  # noqa: ARG002  (whatever is found, it lasts)
        return False


@contextmanager
def planted(name: str, directory: Path) -> Iterator[Path]:
    """A run with a fault in it, while it lasts."""
    if name != "hang":
        yield fault(name)(1.0).run(directory)
        return
    directory.parent.mkdir()
    training = threading.Thread(target=Lasting(1.0).found, args=(directory,))
    training.start()
    while not (directory / "run.json").exists():
        training.join(0.5)
        if not training.is_alive():
            raise RuntimeError("the hang ended before it began")
    try:
        yield directory
    finally:
        training.join()


def take(page: Any, shot: Shot) -> bytes:
    """A PNG of the top of the panel, once it says what was found."""
    alarm = page.locator(".pp-found-first h3")
    alarm.filter(has_text="Looking").wait_for(state="hidden", timeout=PATIENCE_MS)
    alarm.filter(has_text=SAYS.get(shot.fault, "Alarm")).wait_for(timeout=PATIENCE_MS)
    if shot.goes:
        page.locator(".pp-acts .pp-filled").click()
    page.get_by_role("tab", name=shot.view).click()
    page.wait_for_timeout(4000)  # for the pictures themselves
    return bytes(page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": shot.height}, full_page=True))


def main() -> None:
    """Take them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    for name in sys.argv[1:] or SHOTS:
        shot = SHOTS[name]
        with (
            tempfile.TemporaryDirectory() as place,
            planted(shot.fault, Path(place) / "runs" / shot.fault) as run,
            page_of(run) as url,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": 900})
            page.goto(url)
            keep(take(page, shot), f"images/runbook_{name}.png")
            browser.close()


if __name__ == "__main__":
    main()
