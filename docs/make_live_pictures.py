"""Takes the pictures of trainings that run at that moment: ``python docs/make_live_pictures.py``.

verl's GRPO trainer, one of TRL's, or Lightning's, runs in its own environment (``make .venv-verl/.made``, ``make
.venv-frameworks/.made``) with a run directory in its environment and nothing else. A notebook in another process opens
that directory, in a real JupyterLab; its panel is kept as images/verl_live.png, trl_live.png and lightning_live.png.
Names as arguments take these alone.
Needs Chromium and playwright.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

from make_pictures import keep  # noqa: E402  (found through the line above)

from tests.browser.jupyter import Lab, browser, jupyter, write_notebook  # noqa: E402

VERL: Final = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that it ends what it has begun
sys.path.insert(0, "{root}/tests/frameworks/verl_cpu")
import recipes, tiny
place = Path("{place}")
tiny.make(place / "tiny")
steps = ["trainer.total_training_steps=12", "trainer.total_epochs=2", "trainer.save_freq=-1"]
done = recipes.grpo(place / "training", place / "tiny", *steps, PROBE_RUN_DIR="{run}")
print(done.output[-3000:])
sys.exit(done.code)
"""

TRL: Final = """
from pathlib import Path
import probe
probe.attach("trl")
from tests.frameworks import small_trl
small_trl.trainer("grpo", Path("{place}"), max_steps=400).train()
"""

LIGHTNING: Final = """
import lightning, torch
import probe
probe.attach("lightning")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256)
        layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def training_step(self, batch, index):
        hidden = self.body(self.embedding(batch["input_ids"]), src_key_padding_mask=batch["attention_mask"] == 0)
        loss = torch.nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), batch["labels"].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def batch():
    lengths = torch.randint(16, 200, (8, 1))
    mask = torch.arange(int(lengths.max())) < lengths
    ids = torch.randint(97, 123, mask.shape)
    return dict(input_ids=ids, attention_mask=mask.long(), labels=ids.masked_fill(~mask, -100))


torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.DataLoader([batch() for _ in range(1600)], batch_size=None)
lightning.Trainer(max_epochs=1, accelerator="cpu", accumulate_grad_batches=4, logger=False, enable_progress_bar=False,
                  enable_checkpointing=False, default_root_dir="{place}").fit(Model(), data)
"""

CELL: Final = """import probe
probe.open("{run}").panel()"""


class Training(NamedTuple):
    """A training whose picture is taken.

    Attributes:
        environment: The folder of its own environment.
        code: What that runs.
        step: The step after whose end the picture is taken.
    """

    environment: str
    code: str
    step: int


TRAININGS: Final = {
    "verl": Training(".venv-verl", VERL, 6),
    "trl": Training(".venv-frameworks", TRL, 150),
    "lightning": Training(".venv-frameworks", LIGHTNING, 12),
}

PANEL: Final = ".probe-panel"
WIDTH: Final = 1040
PATIENCE_S: Final = 900


@contextlib.contextmanager
def training(name: str, place: Path) -> Iterator[Path]:
    """The run directory of a training that runs for as long as the block does, or to its end."""
    one, run = TRAININGS[name], place / "sums" / name
    script = place / "train.py"
    script.write_text(one.code.format(root=ROOT, place=place / "work", run=run))
    known = {key: value for key, value in os.environ.items() if not key.startswith("PROBE")}
    more = {"PYTHONPATH": str(ROOT), "PROBE_RUN_DIR": str(run), "HF_HUB_OFFLINE": "1"}
    python = ROOT / one.environment / "bin" / "python"
    log = place / "training.log"
    with log.open("w") as out:
        command = [str(python), "-W", "ignore", str(script)]
        options: dict[str, Any] = {"cwd": place, "stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, env={**known, **more}, **options)  # noqa: S603  (our own command)
        try:
            until = time.monotonic() + PATIENCE_S
            while not (run / "run.json").exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(log.read_text()[-5000:])
                time.sleep(0.2)
            yield run
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def live(page: Any, url: str, notebook: Path, step: int) -> bytes:
    """A PNG of the panel in the notebook, as soon as it shows that step."""
    opened = Lab(page, url, notebook.name)
    page.evaluate(
        """() => { const commands = window.jupyterapp.commands;
        if (window.jupyterapp.shell.leftCollapsed === false) commands.execute('application:toggle-left-area'); }"""
    )
    opened.run(0)
    page.wait_for_selector(PANEL)
    page.wait_for_function(
        """(step) => {
            const found = (document.querySelector(".probe-panel")?.innerText ?? "").match(/step (\\d+)/i);
            return found !== null && Number(found[1]) >= step;
        }""",
        arg=step,
        timeout=PATIENCE_S * 1000,
    )
    page.wait_for_selector(f"{PANEL} .pp-verdict[data-kind]")  # what was found
    page.wait_for_timeout(3500)  # what is drawn for that step
    return bytes(page.locator(PANEL).screenshot())


def take(name: str, chromium: str) -> None:
    """One picture."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        notebooks = place / "notebooks"
        notebooks.mkdir()
        with training(name, place) as run, jupyter(notebooks, place) as url:
            notebook = write_notebook(notebooks / f"{name}.ipynb", CELL.format(run=run))
            with browser(chromium, place / "profile", (WIDTH + 150, 1900)) as page:
                keep(live(page, url, notebook, TRAININGS[name].step), f"images/{name}_live.png")


def main() -> None:
    """Take those that are asked for, or all."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium: there is no such program")
    for name in sys.argv[1:] or TRAININGS:
        take(name, chromium)


if __name__ == "__main__":
    main()
