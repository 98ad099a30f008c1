"""Takes the pictures of frameworks' pages that need no JupyterLab: ``python docs/make_framework_pictures.py [NAME…]``.

A small training runs in the environment of its framework (``make .venv-frameworks/.made``, ``make
.venv-verl/.made``), and the live panel is opened on what was recorded. ``probe_run`` is TRL's SFT trainer under
``probe run -- torchrun``, two processes; ``torchtitan`` a loop of our own within torchtitan's spans, since torchtitan
itself doesn't train on a CPU;
``engines`` a loop of our own with a process beside it that has vLLM's names, since vLLM needs a GPU.
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

ENGINE: Final = """
import multiprocessing, sys, time
from pathlib import Path

WORKER = '''
import time

class Worker:
    def load_model(self):
        self.weights = bytearray(b"w" * (300 << 20))

    def initialize_from_config(self, config):
        self.cache = bytearray(b"c" * (500 << 20))

    def sleep(self, level=1):
        self.weights = self.cache = None
        time.sleep(0.05)

    def wake_up(self, tags=None):
        self.load_model()
        self.initialize_from_config(None)

    def update_weights(self, info):
        self.weights = bytearray(b"v" * (300 << 20))

def run(asked):
    from probe_rl.engines import vllm
    vllm()
    worker = Worker()
    worker.load_model()
    worker.initialize_from_config(None)
    for order in iter(asked.recv, "end"):
        getattr(worker, order)(*([None] if order == "update_weights" else []))
        asked.send("done")
'''

def main():
    folder = Path(sys.argv[1]) / "packages" / "vllm" / "v1" / "worker"
    folder.mkdir(parents=True)
    for one in (folder, *folder.parents[:2]):
        (one / "__init__.py").touch()
    (folder / "gpu_worker.py").write_text(WORKER)
    sys.path.insert(0, str(folder.parents[2]))
    import torch
    import probe
    from vllm.v1.worker.gpu_worker import run

    torch.set_num_threads(1)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=run, args=(theirs,), name="VllmWorker-0", daemon=True)
    engine.start()

    def order(what):
        ours.send(what)
        return ours.recv()

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    session = probe.start("engines", run_dir=sys.argv[1] + "/engines/first", rank=0, name="trainer")
    for number in range(1, 13):
        with session.step(number):
            with probe.phase("generate", role="rollout"):
                order("wake_up") if number > 1 else None
                time.sleep(0.3)
                order("sleep")
            with probe.phase("update", role="actor"):
                for part in range(2):
                    with probe.micro_batch(part, lengths=[512 - 128 * part, 256]):
                        model(torch.randn(1024, 1024)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            with probe.phase("update_weights", role="actor"):
                order("update_weights")
    ours.send("end")
    engine.join()
    session.close()

if __name__ == "__main__":
    main()
"""


class Shot(NamedTuple):
    """A picture.

    Attributes:
        environment: The folder of the framework's own environment.
        code: What runs in it.
        launcher: What stands before the script, behind the environment's Python.
        beside: Packages of that environment that lie in a folder of their own.
        height: Pixels of the panel that are shown.
        view: The view that is shown; "" is the first.
    """

    environment: str
    code: str
    launcher: tuple[str, ...] = ()
    beside: str = ""
    height: int = 1000
    view: str = ""


TORCHRUN: Final = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SHOTS: Final = {
    "probe_run": Shot(".venv-frameworks", SFT, TORCHRUN),
    "torchtitan": Shot(".venv-verl", SPANS, (), "others"),
    "engines": Shot(".venv", ENGINE, view="memory"),
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
        if shot.view:
            page.click(f"[data-view={shot.view}]")
        page.get_by_text("Looking for what is wrong").wait_for(state="hidden", timeout=PATIENCE_MS)
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
