"""Rows to put into a writer, what its run has then, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from probe.records import Scalar
from probe.runs.reader import Run


def scalars(count: int, key: str = "k") -> list[Scalar]:
    return [Scalar(key=key, value=float(value)) for value in range(count)]


def incidents(directory: Path, kind: str | None = None) -> pd.DataFrame:
    with Run(directory) as run:
        found = run.incidents
        return found if kind is None else found[found["kind"] == kind]


def keys(directory: Path) -> list[str]:
    with Run(directory) as run:
        found: list[str] = run.scalars["key"].tolist()
        return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
