"""A process that must stay small reads runs with little memory, and answers the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from probe.runs.database import SMALL
from probe.runs.layout import Segment
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from tests.sample_run import sample_rows, write_run

#: Needs more than the limit, and can't be put aside on the disk: one value that is larger.
LARGE = "select len(list(a.range * 1.0)) as n from range(4000000) a"


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rows are Parquet."""
    directory = write_run(tmp_path_factory.mktemp("runs") / "run", sample_rows(2, 6))
    for rank in (0, 1):
        for _ in roll_over(directory, Segment.of_rank(rank)):
            pass
    return directory


def test_a_small_process_asks_with_one_thread_and_little_memory(rolled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = "select current_setting('threads') as threads, current_setting('memory_limit') as memory"
    monkeypatch.setenv(SMALL, "64MB")
    with Run(rolled) as run:
        found = run.sql(settings).iloc[0]
    assert (int(found["threads"]), found["memory"]) == (1, "61.0 MiB")


def test_a_question_that_needs_more_than_the_limit_is_answered(rolled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SMALL, "20MB")
    with Run(rolled) as run:
        assert int(run.sql(LARGE)["n"].iloc[0]) == 4_000_000
        assert len(run.sql("select * from memory"))


def test_a_question_that_is_wrong_stays_wrong(rolled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.errors import InputError

    monkeypatch.setenv(SMALL, "20MB")
    with Run(rolled) as run, pytest.raises(InputError):
        run.sql("select nothing from memory")


@pytest.mark.slow
def test_a_large_run_is_opened_without_frames_and_data_sets(rolled: Path) -> None:
    code = """if True:
        import json, sys
        from probe.live.feed import Feed
        feed = Feed(sys.argv[1])
        feed.open()
        loaded = [one for one in ("pandas", "pyarrow.dataset") if one in sys.modules]
        print(json.dumps([len(feed.tables["memory"].columns()["step"]), loaded]))
    """
    done = subprocess.run([sys.executable, "-c", code, str(rolled)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, loaded = json.loads(done.stdout)
    assert rows > 10
    assert loaded == []
