"""What a person does in a JupyterLab with the plugin, and a training beside it that no kernel knows of."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PANEL = ".probe-tab .probe-panel"


def show(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate("() => window.jupyterapp.restored.then(() => null)")


def command(page: Any, name: str, **given: Any) -> None:
    page.evaluate("([name, given]) => window.jupyterapp.commands.execute(name, given).then(() => null)", [name, given])


def await_that(page: Any, holds: Callable[[], Any], seconds: float = 180.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, page.inner_text("body")[:3000]
        page.wait_for_timeout(100)
    return found


def row(page: Any, name: str) -> Any:
    return page.locator(".probe-runs li", has=page.locator(".probe-run-name", has_text=re.compile(re.escape(name))))


def step_shown(page: Any) -> int:
    found = re.findall(r"step (\d+)", page.locator(f"{PANEL} .pp-facts-line").first.text_content() or "")
    return int(found[-1]) if found else -1


@contextlib.contextmanager
def training(run: Path, steps: int, pause_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks under torchrun, in a terminal of its own."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(HERE / "train.py"), str(run), str(steps), str(pause_s)]
    with (run.parent / f"{run.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pids(run: Path) -> dict[int, int]:
    """Process ids of the ranks."""
    text = (run.parent / f"{run.name}.log").read_text(errors="replace")
    return {int(rank): int(pid) for rank, pid in re.findall(r"pid (\d+) (\d+)", text)}
