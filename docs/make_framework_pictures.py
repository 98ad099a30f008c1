"""Takes the pictures of frameworks' pages that need no JupyterLab: ``python docs/make_framework_pictures.py [NAME…]``.

A small training runs in the environment of its framework (``make .venv-trl/.made``, ``make .venv-verl/.made``), and the
live panel is opened on what was recorded. ``probe_run`` is TRL's SFT trainer under ``probe run -- torchrun``, two
processes; ``torchtitan`` a loop of our own within torchtitan's spans, since torchtitan itself doesn't train on a CPU.
Needs Chromium and playwright.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

from make_pictures import keep, page_of  # noqa: E402  (found through the line above)

WIDTH: Final = 1040
PATIENCE_MS: Final = 300_000

#: Of the first view no figure is still to come.
DRAWN: Final = """() => [...document.querySelectorAll("figure[data-state]")]
    .filter(one => one.checkVisibility()).every(one => ["drawn", "empty"].includes(one.dataset.state))"""

SFT: Final = """
import sys
from pathlib import Path
from tests.frameworks import small_trl
small_trl.trainer("sft", Path(sys.argv[1]) / "out", ddp_backend="gloo", max_steps=24, num_train_epochs=99).train()
"""

SPANS: Final = """
import torch
import probe
probe.attach("torchtitan")
from torchtitan.observability.structured_logger.step_state import set_step
from torchtitan.observability.structured_logger.structured_logging import log_trace_span

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters())
for number in range(1, 25):
    set_step(number)
    with log_trace_span("step"):
        for _ in range(2):
            with log_trace_span("fetching_batch"):
                batch = torch.randn(1024, 512)
            with log_trace_span("fwd_bwd"):
                model(batch).square().mean().backward()
        with log_trace_span("optim"):
            optimizer.step()
            optimizer.zero_grad()
"""


class Shot(NamedTuple):
    """A picture.

    Attributes:
        environment: The folder of the framework's own environment.
        code: What runs in it.
        launcher: What stands before the script, behind the environment's Python.
        beside: Packages of that environment that lie in a folder of their own.
        height: Pixels of the panel that are shown.
    """

    environment: str
    code: str
    launcher: tuple[str, ...] = ()
    beside: str = ""
    height: int = 1000


TORCHRUN: Final = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SHOTS: Final = {
    "probe_run": Shot(".venv-trl", SFT, TORCHRUN),
    "torchtitan": Shot(".venv-verl", SPANS, (), "others"),
}


def recorded(name: str, place: Path) -> Path:
    """The run of the training, which has ended."""
    shot = SHOTS[name]
    program, run = str(ROOT / shot.environment / "bin" / "python"), place / name / "first"
    (place / "train.py").write_text(shot.code)
    command = [program, *shot.launcher, str(place / "train.py"), str(place)]
    if shot.launcher:
        command = [program, "-m", "probe", "run", "--run-dir", str(run), "--", *command]
    path = os.pathsep.join([str(ROOT), *([str(ROOT / shot.environment / shot.beside)] if shot.beside else [])])
    environment = {**os.environ, "PYTHONPATH": path, "PROBE_RUN_DIR": str(run), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=place, env=environment)  # noqa: S603  (our own command)
    return run


def take(name: str, chromium: str) -> None:
    """One picture."""
    from playwright.sync_api import sync_playwright

    shot = SHOTS[name]
    with (
        tempfile.TemporaryDirectory() as place,
        page_of(recorded(name, Path(place))) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": shot.height})
        page.goto(url)
        page.wait_for_selector("figure[data-state]", timeout=PATIENCE_MS)
        page.get_by_text("is being looked for").wait_for(state="hidden", timeout=PATIENCE_MS)
        page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
        page.wait_for_timeout(2000)  # for the pictures themselves
        keep(bytes(page.screenshot()), f"images/{name}.png")
        browser.close()


def main() -> None:
    """Take those that are asked for, or all."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium: there is no such program")
    for name in sys.argv[1:] or SHOTS:
        take(name, chromium)


if __name__ == "__main__":
    main()
