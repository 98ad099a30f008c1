"""The command as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def probe(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probe", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **variables},
    )
