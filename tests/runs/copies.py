"""Copies of a run in stores of several kinds: what they hold, and how they are made by processes that are killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fsspec
import pandas as pd
import pytest

from probe.opened import Run
from probe.records import Scalar
from probe.runs.layout import is_now_file
from probe.runs.reader import NAMES
from probe.runs.sync import Sync
from probe.runs.writer import RunWriter

#: A store is one to this module like any other: each test has one of them in every run.
FILE = pytest.param("file", marks=pytest.mark.thorough)
S3 = pytest.param("s3", marks=pytest.mark.slow)
S3_TOO = pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.thorough])


def numbers(writer: RunWriter, put: Callable[..., None], begin: int, end: int) -> None:
    put(writer, *(Scalar(key="number", value=float(one), step=one) for one in range(begin, end)))
    assert writer.flush()


def assert_equal(directory: Path, url: str) -> None:
    with Run(directory) as here, Run(url) as there:
        assert there.info == here.info
        assert there.ranks == here.ranks
        assert there.bad_lines == here.bad_lines == 0
        for name in NAMES:
            pd.testing.assert_frame_equal(there.table(name), here.table(name))
        assert list(map(repr, there.new_rows())) == list(map(repr, here.new_rows()))


def values(run: Run) -> list[float]:
    return [row.value for row in run.new_rows() if isinstance(row, Scalar)]


def names(url: str) -> list[str]:
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    found = [name.removeprefix(root).removeprefix("/") for name in files.find(root)]
    return [name for name in found if not is_now_file(name)]  # which says where a process is, and holds no rows


def again(directory: Path, url: str, error: type[BaseException]) -> None:
    """Copy in process after process, each of which is killed, until one has nothing left to do."""
    while True:
        try:
            Sync(directory, url).once()
            return
        except error:
            with Run(url) as run:
                found = run.scalars["value"].tolist()
                assert found == list(range(len(found)))
