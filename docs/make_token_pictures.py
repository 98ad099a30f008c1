"""Takes the pictures of what happened to the tokens: ``python docs/make_token_pictures.py [NAME …]``; needs Chromium
and playwright. Without names it takes all; each trains what it shows.

* ledger: what ``run.ledger()`` is in a notebook, of a few steps of the demo.
* samples: the panel's view Samples of ``probe demo --fault mismatch_temperature``; in a run whose rollout and training
  agree no token has a colour.
* audit: what ``run.audit()`` is, of ``probe demo --fault accidental_reducer``.
* mismatch: what ``run.mismatch()`` is, of ``probe demo --fault mismatch_unsynced``.
* long_tail: what ``run.long_tail()`` is, of ``probe demo --fault long_tail``.
* idle: what ``run.idle()`` is, of ``probe demo --fault idle_trainer``.
* lanes: what the panel's view Tokens shows of that training's last step.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from make_pictures import keep  # noqa: E402  (found through the line above)

from probe.demo.data import read_problems, write_problems  # noqa: E402
from probe.demo.settings import Settings  # noqa: E402
from probe.demo.trainer import Trainer  # noqa: E402
from probe.demo.zoo import fault  # noqa: E402
from probe.opened import Run  # noqa: E402
from probe.session import start  # noqa: E402
from probe.views.server.server import PageServer  # noqa: E402

WIDTH: Final = 1040
STEPS: Final = 6
GPU_HOUR: Final = 2.5


def train(directory: Path) -> Path:
    """A short run of the demo."""
    settings = replace(Settings(), steps=STEPS)
    problems = read_problems(write_problems(directory / "problems.parquet", rows=settings.problems, seed=0), settings)
    with start("arithmetic", run_dir=directory / "run", rank=0, world_size=1) as session:
        for _ in Trainer(settings, problems, session).train():
            pass
    return directory / "run"


def take(cell: str, of: str, name: str) -> None:
    """Draw what a notebook's cell shows.

    Args:
        cell: Its HTML.
        of: The selector of what is drawn.
        name: Of the picture.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 800}, device_scale_factor=1.5)
        page.set_default_timeout(120_000)
        page.set_content(f"<body style='font:14px/1.5 system-ui,sans-serif;margin:20px'>{cell}</body>")
        keep(page.locator(of).first.screenshot(), f"images/{name}.png")
        browser.close()


def take_ledger(place: Path) -> None:
    """The funnel of a run."""
    with Run(train(place)) as run:
        found = run.ledger(gpu_hour=GPU_HOUR)
    if found is None:
        raise SystemExit("the demo told of no samples")
    take(found._repr_html_(), ".probe-ledger", "ledger")


def take_audit(place: Path) -> None:
    """The numbers of a run."""
    with Run(fault("accidental_reducer")().run(place / "run")) as run:
        cell = run.audit()._repr_html_()
    style = "#cell{font:13px/1.5 Arial,sans-serif;padding:8px} #cell :is(td,th){padding:3px 10px;vertical-align:top}"
    take(f"<style>{style}</style><div id='cell'>{cell}</div>", "#cell", "audit")


def take_mismatch(place: Path) -> None:
    """Whether rollout and training agree, and why they don't."""
    with Run(fault("mismatch_unsynced")(1.0, 0).run(place / "run")) as run:
        found = run.mismatch()
    if found is None:
        raise SystemExit("the training told of no log-probabilities")
    take(found._repr_html_(), ".probe-mismatch", "mismatch")


def take_long_tail(place: Path) -> None:
    """Lanes by replica beside the trainer's phases."""
    with Run(fault("long_tail")(1.0, 0).run(place / "run")) as run:
        found = run.long_tail()
    if found is None:
        raise SystemExit("the training told of no rollouts")
    take(found._repr_html_(), ".probe-long-tail", "long_tail")


def take_idle(place: Path) -> None:
    """What the time of both sides went for."""
    with Run(fault("idle_trainer")(1.0, 0).run(place / "run")) as run:
        found = run.idle()
    if found is None:
        raise SystemExit("the training told of no rollouts")
    take(found._repr_html_(), ".probe-idle", "idle")


def take_samples(place: Path) -> None:
    """The view Samples of its last step, with the tokens of an answer of two turns."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    run_dir = fault("mismatch_temperature")().run(place / "run")
    with PageServer(run_dir) as server, sync_playwright() as playwright:
        server.start()
        server.follow()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=1.5)
        page.set_default_timeout(120_000)
        page.goto(server.url)
        page.click("[data-view=samples]")
        page.locator(".pp-tokens:visible").wait_for()
        # Of two turns, so that what a tool said stands between what was sampled.
        page.locator(".pp-sample-line:visible", has_text="▪").nth(1).click()
        page.locator(".pp-tokens h4", has_text=re.compile(r"of (?!20$)")).wait_for()
        page.locator(".pp-samples:not([data-loading])").wait_for()
        keep(page.locator(".pp-samples").screenshot(), "images/samples.png")
        browser.close()


def take_lanes(place: Path) -> None:
    """The replicas of its last step in the page of ``probe open``."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with PageServer(fault("long_tail")(1.0, 0).run(place / "run")) as server, sync_playwright() as playwright:
        server.start()
        server.follow()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=1.5)
        page.set_default_timeout(120_000)
        page.goto(server.url)
        page.click("[data-view=tokens]")
        page.locator(".pp-lanes[data-found] .pp-busy").first.wait_for()
        keep(page.locator(".pp-lanes").screenshot(), "images/lanes.png")
        browser.close()


PICTURES: Final = {
    "ledger": take_ledger,
    "samples": take_samples,
    "audit": take_audit,
    "mismatch": take_mismatch,
    "long_tail": take_long_tail,
    "lanes": take_lanes,
    "idle": take_idle,
}


if __name__ == "__main__":
    for picture in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[picture](Path(folder))
