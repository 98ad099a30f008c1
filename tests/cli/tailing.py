"""`probe tail` in this process and in one beside it, on runs that have ended and runs that are written."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.cli import main
from probe.records import Row
from probe.views.terminal.following import Following
from probe.views.terminal.view import view
from tests.live.live_run import roll
from tests.sample_run import sample_rows, write_run


def ended(path: Path, rows: dict[int, list[Row]]) -> Path:
    """A run that ended a minute ago."""
    made = write_run(path, rows)
    roll(made)
    old = time.time() - 60
    os.utime(made / "parts", (old, old))
    return made


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["tail", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


def objects(found: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found]


def kept(rows: dict[int, list[Row]], until: int) -> dict[int, list[Row]]:
    """The rows of the first steps."""
    return {rank: [row for row in own if row.step is None or row.step < until] for rank, own in rows.items()}


def of_step(step: int, ranks: int) -> list[Row]:
    return [row for own in sample_rows(ranks, step + 1).values() for row in own if row.step == step]


@contextlib.contextmanager
def tail(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "probe", "tail", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def drawn(following: Following, width: int = 110) -> str:
    from rich.console import Console

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  (closed below)
    console.print(view(following))
    console.file.close()
    return console.export_text()
