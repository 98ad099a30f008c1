"""Makes docs/example_run anew, the run that the pages show; run it, then make_outputs.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = Path(__file__).resolve().with_name("example_run")
STEPS = "8"


def main() -> None:
    """A short run of the demo, without its checkpoints and tracking backends: a few hundred kilobytes."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        command = [sys.executable, "-m", "probe", "demo", "--steps", STEPS, "--run-dir", str(run), "--track", "file"]
        subprocess.run(command, check=True)  # noqa: S603  (our own command)
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir()
        shutil.copy(run / "run.json", TARGET)
        shutil.copytree(run / "parts", TARGET / "parts")


if __name__ == "__main__":
    main()
