"""Views that are worked out once say what they say when each question works them out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from probe.analysis import steps
from probe.dashboards import compile as sql
from probe.dashboards.quantities import quantities
from probe.records import Process, Row
from probe.runs import database, kept, views
from probe.runs.compaction import compact
from probe.runs.layout import PARTS_NAME, Segment
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from probe.views.report.report import report_html
from tests.sample_run import process, sample_rows, write_run


def questions() -> list[str]:
    """Of every quantity and of every view, whole and of some steps."""
    asked = [f"select * from {name}" for name in (*kept.NAMES, "peaks_made", "steps")]
    asked += [f"select * from ({views.query(name)})" for name in (*kept.NAMES, "micro_batches_timed")]
    for spec in quantities().values():
        alone = {name: value for name, value in spec.items() if name != "divide"}
        asked += [sql.by_step(alone, rows) for rows in ("", "step = 2", "step between 1 and 3")]
    spans = sql.rows_of("spans", ["step", "begin", "end", "level", "maker", "peak"], {}, "step = 2", 5)
    return [*asked, spans]


def answers(run: Run, which: slice = slice(None)) -> list[list[str]]:
    """Rows without order, numbers to twelve digits: sums of floats depend on the order in which threads add."""

    def cell(value: object) -> str:
        return f"{value:.12g}" if isinstance(value, float) else str(value)

    found = (run.sql(one).astype(object).to_numpy().tolist() for one in questions()[which])
    return [sorted("|".join(map(cell, row)) for row in rows) for rows in found]


def written(path: Path, first: Process, rows: list[Row]) -> None:
    """The file of a process, all of whose rows are of its attempt, and say its rank if it says one."""
    for row in (first, *rows):
        row.process, row.rank, row.attempt = first.process, first.rank, first.attempt
    path.write_bytes(b"".join(map(encode, (first, *rows))))


def attempts(directory: Path, rng: random.Random) -> None:
    """A second attempt that does steps again, in files of its own."""
    write_run(directory, sample_rows(2, 5, seed=rng.randrange(99)))
    for rank, rows in sample_rows(2, 2, seed=5).items():
        first = process(rank)
        first.process, first.rank, first.attempt = f"rank-{rank:05d}.1", rank, 2
        for row in rows:
            row.step = None if row.step is None else row.step + 3
        written(directory / f"rank-{rank:05d}.1.jsonl", first, rows)


def late_rank(directory: Path, rng: random.Random) -> None:
    """A process that learnt its rank late, beside one that has none."""
    rows = sample_rows(3, 4, seed=rng.randrange(99))
    write_run(directory, {0: rows[0]})
    for rank, name in ((1, "worker"), (2, "driver")):
        first = process(rank)
        first.process, first.rank = name, None
        written(directory / f"process-{name}.jsonl", first, rows[rank])
    known = process(1)
    known.process, known.rank, known.revision = "worker", 1, 1
    with (directory / "process-worker.jsonl").open("ab") as file:
        file.write(encode(known))


def rolled(directory: Path, rng: random.Random) -> None:
    """Some ranks as Parquet, one of whose files is damaged, some compacted, one still written to."""
    write_run(directory, sample_rows(4, 4, seed=rng.randrange(99)))
    for rank in (0, 1):
        for _ in roll_over(directory, Segment.of_rank(rank)):
            pass
    part = directory / PARTS_NAME / Segment.of_rank(1).part("padding")
    part.write_bytes(part.read_bytes()[:-40] + bytes(40))


def compacted(directory: Path, rng: random.Random) -> None:
    write_run(directory, sample_rows(4, 4, seed=rng.randrange(99)))
    for rank in range(3):
        for _ in roll_over(directory, Segment.of_rank(rank)):
            pass
    compact(directory)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("make", [attempts, late_rank, rolled, compacted])
def test_e_kept_views_answer_as_the_views_do(tmp_path: Path, monkeypatch, make, seed: int) -> None:
    make(tmp_path / "run", random.Random(seed))
    with Run(tmp_path / "run") as run:
        if make is attempts:
            assert run.attempts == [1, 2]
        if make is late_rank:
            assert run.sql("select count(*) as n from memory where rank = 1 and process = 'worker'")["n"][0] > 0
        with monkeypatch.context() as large:
            large.setattr(database, "FEW_BYTES", 0)  # DuckDB reads the files with each question
            plain = answers(run)
        assert sum(map(len, plain)) > 500
        for share in (10**9, 400):
            monkeypatch.setattr(kept, "SHARE_ROWS", share)
            with run.asked_often():
                assert answers(run) == plain
        of_names = slice(len(kept.NAMES))  # the views as they are called: what was kept of them is gone
        assert answers(run, of_names) == plain[of_names]


@pytest.mark.parametrize("make", [attempts, late_rank])
def test_e_what_micro_batches_took_is_what_the_spans_say_of_them(tmp_path: Path, make) -> None:
    make(tmp_path / "run", random.Random(3))
    with Run(tmp_path / "run") as run:
        timed = run.sql("select * from micro_batches_timed order by process, scope")
        spans = run.sql("select * from spans where level = 'micro_batch' order by process, scope")
    assert len(timed) > 20
    assert timed["tokens"].notna().any()
    assert timed.equals(spans[timed.columns])


def test_e_rows_that_come_are_in_kept_views_after_a_new_look(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", sample_rows(1, 3))
    more = write_run(tmp_path / "more", sample_rows(1, 5)) / "rank-00000.jsonl"
    steps = "select distinct step from spans where step is not null order by step"
    with Run(directory) as run, run.asked_often():
        assert run.sql(steps)["step"].tolist() == [0, 1, 2]
        (directory / "rank-00000.jsonl").write_bytes(more.read_bytes())
        assert run.sql(steps)["step"].tolist() == [0, 1, 2]
        assert run.refresh().sql(steps)["step"].tolist() == [0, 1, 2, 3, 4]


def test_e_a_report_works_out_each_view_once(tmp_path: Path, monkeypatch) -> None:
    """Of a view there is one table; no question works out the spans, or counts padding, by itself."""
    made: list[str] = []
    asked: list[str] = []
    make, ask = kept._make, kept.Kept.rewritten

    def noted(cursor, name):
        made.append(name)
        make(cursor, name)

    def seen(self, text, start_ns):
        found = ask(self, text, start_ns)
        asked.append(found[0])
        return found

    monkeypatch.setattr(kept, "_make", noted)
    monkeypatch.setattr(kept.Kept, "rewritten", seen)
    directory = write_run(tmp_path / "run", sample_rows(2, 4))
    with Run(directory) as run:
        assert "<html" in report_html(run)
    assert len(made) == len(set(made)) >= 4
    assert len(asked) > 50
    of_one_rank = "from memory where rank = "  # the batch behind a peak: the rows of its rank alone are read
    for own in ("outer_calls as (", "fields as (", "odd_sizes as ("):  # of the spans' and of the ledgers' views
        assert not [text for text in asked if own in text and of_one_rank not in text]


def test_e_time_on_padding_and_the_time_around_it_are_worked_out_in_one_look(tmp_path: Path, monkeypatch) -> None:
    with Run(write_run(tmp_path / "run", sample_rows(2, 4))) as run:
        asked, ask = [], run.sql
        monkeypatch.setattr(run, "sql", lambda text, **how: (asked.append(text), ask(text, **how))[1])
        found = steps.on_padding(run)
    assert found["padding_s"].gt(0).any()
    assert len(asked) == 1
    assert asked[0].count("outer_calls as (") == 1  # the scopes are put together once


def test_e_what_a_report_keeps_is_gone_after_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with Run(write_run(tmp_path / "run", sample_rows(1, 2))) as run:
        with run.asked_often():
            run.sql("select * from spans")
            assert list((tmp_path / "tmp").glob("probe-*/kept.duckdb"))
        assert not list((tmp_path / "tmp").iterdir())
        assert len(run.sql("select * from spans"))
