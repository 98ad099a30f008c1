"""The snippets of docs/scale.md do what the page says, on a run that was compacted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe.runs.compaction import compact
from probe.runs.layout import Segment
from probe.runs.parts import roll_over
from tests.sample_run import sample_rows, write_run

DOCUMENT = Path(__file__).parents[2] / "docs" / "scale.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.fixture
def run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = write_run(tmp_path / "runs" / "project" / "experiment", sample_rows(4, 3))
    for rank in range(4):
        for _ in roll_over(directory, Segment.of_rank(rank, 0)):
            pass
    assert compact(directory).segments == 4
    return directory


def test_duckdb(run_directory, capsys):
    (snippet,) = (one for one in SNIPPETS if "import duckdb" in one)
    exec(snippet, {})
    assert "tokens" in capsys.readouterr().out


def test_pyarrow(run_directory):
    (snippet,) = (one for one in SNIPPETS if "pyarrow.dataset" in one)
    found = {}
    exec(snippet, found)
    assert 0 < len(found["rank_3"]) < found["memory"].count_rows()
    assert found["rank_3"].column_names == ["step", "name", "peak_allocated_bytes"]


def test_every_python_snippet_is_one_of_these():
    assert len(SNIPPETS) == 3  # the third asks Ray: tests/frameworks/test_lake.py
