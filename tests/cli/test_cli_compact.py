"""`probe compact` merges the files and leaves the rows as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from probe.cli import main
from probe.runs.layout import Segment
from probe.runs.parts import roll_over
from probe.runs.reader import NAMES, Run
from tests.sample_run import process, sample_rows, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three ranks that have ended."""
    place = write_run(tmp_path / "run", sample_rows(ranks=3, steps=2))
    for rank in range(3):
        for _ in roll_over(place, Segment.of_rank(rank, 0)):
            pass
    return place


def tables(path: Path) -> dict[str, pd.DataFrame]:
    with Run(path) as opened:
        return {name: opened.table(name).copy() for name in NAMES}


def test_the_rows_stay_and_the_files_are_fewer(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tables(run)
    assert main(["compact", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == str(run)
    assert found["segments"] == 3
    assert found["parts_after"] < found["parts_before"]
    assert found["left"] == {}
    for name, frame in tables(run).items():
        pd.testing.assert_frame_equal(frame, before[name])
    assert main(["compact", str(run)]) == 0
    assert capsys.readouterr().out.startswith("nothing to do: ")


def test_it_is_told_in_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", str(run)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "rows of 3 segments in" in first
    assert second.startswith("files: ")
    assert third.startswith("size:  ")


def test_what_may_still_be_written_is_left_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of another machine: nobody here can know whether their process is alive."""
    rows = sample_rows(ranks=2, steps=1)
    run = write_run(tmp_path / "run", rows, processes={rank: process(rank) for rank in rows})
    before = tables(run)
    assert main(["compact", str(run)]) == 0
    heard = capsys.readouterr()
    assert "probe compact: rank-00000.jsonl was left alone:" in heard.err
    assert sorted(path.name for path in run.glob("*.jsonl")) == ["rank-00000.jsonl", "rank-00001.jsonl"]
    for name, frame in tables(run).items():
        pd.testing.assert_frame_equal(frame, before[name])
