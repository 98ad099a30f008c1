"""Answers that are kept beside the rows: found by the next reader, and never one that is out of date."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from probe.analysis import overview
from probe.cli import main
from probe.live.feed import Feed
from probe.live.tables import LiveTable
from probe.opened import Run
from probe.runs import answers, database, views
from probe.runs.compaction import compact
from probe.runs.layout import PARTS_NAME, Segment
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.views.report.report import report_html
from tests.sample_run import process, sample_rows, write_run, written_by

PEAKS = "select step, max(peak_allocated_bytes) as peak from memory where step is not null group by step order by step"


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few thousand rows count as large."""
    monkeypatch.setattr(answers, "LEAST_BYTES", 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What DuckDB is asked."""
    found: list[str] = []
    select = database.select

    def noted(*given: Any, **told: Any) -> Any:
        found.append(given[3])
        return select(*given, **told)

    monkeypatch.setattr(database, "select", noted)
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_run(tmp_path_factory.mktemp("template") / "run", sample_rows(3, 4))
    return rolled(directory, range(3))


@pytest.fixture(scope="module")
def plain(template: Path) -> tuple[list[Any], dict[str, list[Any]]]:
    """What a reader finds who keeps nothing."""
    return look(template, keep=False)


@pytest.fixture
def directory(template: Path, tmp_path: Path) -> Path:
    """A run all of whose processes have ended."""
    return shutil.copytree(template, tmp_path / "run")


def rolled(directory: Path, ranks: Any, number: int = 0) -> Path:
    for rank in ranks:
        for _ in roll_over(directory, Segment.of_rank(rank, number)):
            pass
    return directory


def look(directory: Path, *, keep: bool = True) -> tuple[list[Any], dict[str, list[Any]]]:
    """The overview and the live tables, as a new reader finds them."""
    root = answers.FOLDER if keep else "elsewhere"
    with pytest.MonkeyPatch.context() as patch:
        if not keep:
            patch.setattr(answers, "LEAST_BYTES", 2**62)
        patch.setattr(answers, "FOLDER", root)
        feed = Feed(directory, sketched=False)
        feed.open()
        feed.update()
        with Run(directory) as run:
            tiles = overview.numbers(run).astype(object).to_numpy().tolist()
            peaks = run.sql(PEAKS, keep=True).to_numpy().tolist()
    tables = {name: told(feed, table) for name, table in feed.tables.items()}
    return json.loads(json.dumps([tiles, peaks, feed.repeated])), tables


def told(feed: Feed, table: LiveTable) -> list[str]:
    """The rows of a live table, with texts for their numbers: these go by the order in which the texts came."""
    columns = table.columns()
    texts = {name: [*feed.words.texts, None] for name in table.declared.words}
    values = [
        [texts[name][code] for code in column.tolist()] if name in texts else column.tolist()
        for name, column in columns.items()
    ]
    return sorted(map(repr, zip(*values, strict=True)))


def kept(directory: Path) -> list[Path]:
    return sorted((directory / answers.FOLDER).rglob("*.arrow"))


def test_e_what_one_reader_has_worked_out_the_next_one_finds(directory: Path, asked: list[str]) -> None:
    plain = look(directory, keep=False)
    assert not (directory / answers.FOLDER).exists()
    assert look(directory) == plain
    asked.clear()
    assert look(directory) == plain
    assert asked == []
    assert len(kept(directory)) > 10


def test_e_a_report_of_kept_answers_is_the_same_page(directory: Path, asked: list[str]) -> None:
    pages = []
    for _ in range(2):
        asked.clear()
        with Run(directory) as run:
            pages.append(report_html(run))
    assert pages[0] == pages[1]
    assert asked == []


def test_e_a_part_that_came_is_in_the_next_answer(directory: Path) -> None:
    before = look(directory)
    more = sample_rows(4, 6, seed=3)[3]
    first = process(3, world_size=4)
    lines = [encode(written_by(row, "rank-00003", 3)) for row in (first, *more)]
    (directory / "rank-00003.jsonl").write_bytes(b"".join(lines))
    rolled(directory, [3])
    after = look(directory)
    assert after == look(directory, keep=False)
    assert after != before
    folders = [path for path in (directory / answers.FOLDER).iterdir() if path.is_dir()]
    assert len(folders) == 1, "answers of what the run was before are of no use"


def test_e_a_part_that_went_isn_t_in_the_next_answer(directory: Path) -> None:
    look(directory)
    (directory / PARTS_NAME / Segment.of_rank(1).part("memory")).unlink()
    assert look(directory) == look(directory, keep=False)


def test_e_a_part_of_the_same_size_that_was_put_back_is_asked_anew(directory: Path, asked: list[str]) -> None:
    look(directory)
    part = directory / PARTS_NAME / Segment.of_rank(1).part("memory")
    told = part.stat()
    os.utime(part, ns=(told.st_atime_ns, told.st_mtime_ns + 1))
    asked.clear()
    look(directory)
    assert asked


@pytest.mark.parametrize("compacted", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_e_steps_that_a_later_attempt_hides_are_hidden(tmp_path: Path, compacted: bool) -> None:
    directory = rolled(write_run(tmp_path / "run", sample_rows(2, 5)), range(2))
    before = look(directory)
    for rank, rows in sample_rows(2, 2, seed=5).items():
        first = process(rank)
        first.attempt = 2
        for row in rows:
            row.step = None if row.step is None else row.step + 3
            row.attempt = 2
        lines = [encode(written_by(row, f"rank-{rank:05d}.1", rank)) for row in (first, *rows)]
        (directory / f"rank-{rank:05d}.1.jsonl").write_bytes(b"".join(lines))
    rolled(directory, range(2), 1)
    if compacted:
        compact(directory)
    after = look(directory)
    assert after == look(directory) == look(directory, keep=False)
    assert after != before
    with Run(directory, attempt=1) as first_attempt, Run(directory) as both:
        assert not first_attempt.sql(PEAKS, keep=True).equals(both.sql(PEAKS, keep=True))
        assert first_attempt.sql(PEAKS, keep=True).equals(first_attempt.sql(PEAKS))


def test_e_another_definition_is_another_question(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "select step, ranks from steps order by step"
    with Run(directory) as run:
        before = run.sql(question, keep=True)
    changed = dict(views.texts()) | {"steps": views.texts()["steps"].replace("count(distinct rank)", "7 *  count(*)")}
    monkeypatch.setattr(views, "texts", lambda: changed)
    monkeypatch.setattr(views, "_whole", views._whole.__wrapped__)  # it remembers what it made of the texts
    with Run(directory) as run:
        after = run.sql(question, keep=True)
        assert after.equals(run.sql(question))
    assert not after.equals(before)


def _cut(data: bytes) -> bytes:
    return data[:-7]


def _flipped(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


OTHER_HARM = [lambda _: b"", lambda data: data[:20], lambda data: data[::-1]]


@pytest.mark.parametrize(
    "harm", [_cut, _flipped, *(pytest.param(one, marks=pytest.mark.thorough) for one in OTHER_HARM)]
)
def test_e_a_damaged_answer_is_ignored_counted_nowhere_and_written_anew(directory: Path, plain: Any, harm: Any) -> None:
    assert look(directory) == plain
    whole = {path: path.read_bytes() for path in kept(directory)}
    for path, data in whole.items():
        path.write_bytes(harm(data))
    assert look(directory) == plain
    with Run(directory) as run:
        run.sql(PEAKS, keep=True)
        assert run.damaged == []
        assert run.bad_lines == 0
    assert {path: path.read_bytes()[:31] for path in kept(directory)}.keys() == whole.keys()
    assert look(directory) == plain


def test_e_an_answer_under_another_name_answers_nothing_else(directory: Path, plain: Any) -> None:
    assert look(directory) == plain
    paths = kept(directory)
    whole = [path.read_bytes() for path in paths]
    for path, data in zip(paths, whole[1:] + whole[:1], strict=True):
        path.write_bytes(data)
    assert look(directory) == plain


def test_e_where_nothing_can_be_written_a_reader_reads(directory: Path, plain: Any, asked: list[str]) -> None:
    (directory / answers.FOLDER).write_text("no folder")
    assert look(directory) == plain
    (directory / answers.FOLDER).unlink()
    look(directory)
    for path in [*kept(directory), *(path.parent for path in kept(directory))]:
        path.chmod(0o500)
    directory.chmod(0o500)
    try:
        asked.clear()
        assert look(directory) == plain
        assert asked == [], "who may not write may read"
    finally:
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o700)


def test_e_many_readers_at_once_find_the_same(directory: Path, plain: Any, asked: list[str]) -> None:

    def numbers(_: int) -> Any:
        with Run(directory) as run:
            return json.loads(json.dumps(overview.numbers(run).astype(object).to_numpy().tolist()))

    with ThreadPoolExecutor(6) as pool:
        assert all(found == plain[0][0] for found in pool.map(numbers, range(6)))
    asked.clear()
    assert numbers(0) == plain[0][0]
    assert asked == []
    assert [path for path in (directory / answers.FOLDER).rglob("*") if path.suffix not in (".arrow", "")] == []


def test_e_two_processes_at_once_find_the_same(directory: Path, plain: Any) -> None:
    code = (
        "import sys, json; from probe.runs import answers; answers.LEAST_BYTES = 1\n"
        "from probe.opened import Run; from probe.analysis import overview\n"
        "with Run(sys.argv[1]) as run: print(json.dumps(overview.numbers(run).astype(object).to_numpy().tolist()))"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = [json.loads(one.communicate(timeout=300)[0]) for one in begun]
    assert found[0] == found[1] == plain[0][0]


def test_e_of_a_run_that_is_written_or_small_nothing_is_kept(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = write_run(tmp_path / "live", sample_rows(2, 3))
    rolled(live, [0])
    look(live)
    assert not (live / answers.FOLDER).exists()
    monkeypatch.setattr(answers, "LEAST_BYTES", 16 * 2**20)
    look(directory)
    assert not (directory / answers.FOLDER).exists()


def test_e_a_person_s_own_question_is_not_kept(directory: Path) -> None:
    with Run(directory) as run:
        run.sql("select count(*) from memory")
        run.sql("select ? as asked", [1], keep=True)
    assert not (directory / answers.FOLDER).exists()


def test_e_compacting_works_out_what_is_asked_first(directory: Path, asked: list[str], capsys: Any) -> None:
    assert main(["compact", str(directory)]) == 0
    capsys.readouterr()
    asked.clear()
    Feed(directory, sketched=False).open()
    with Run(directory) as run:
        overview.numbers(run)
    assert asked == []


def test_e_the_first_picture_loads_no_package_that_only_questions_need(directory: Path) -> None:
    compact(directory)
    code = (
        "import sys, io, json; from probe.runs import answers; answers.LEAST_BYTES = 1\n"
        "from probe.cli import main\n"
        "class Terminal(io.StringIO):\n"
        "    encoding = 'utf-8'\n"
        "    def isatty(self): return True\n"
        "told, sys.stdout = sys.stdout, Terminal()\n"
        "code = main(['tail', sys.argv[1], '--once'])\n"
        "picture, sys.stdout = sys.stdout.getvalue(), told\n"
        "print(json.dumps([code, picture, [one for one in sys.modules if '.' not in one]]))"
    )
    command = [sys.executable, "-c", code, str(directory)]
    first, second = (
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(2)
    )
    assert first[:2] == second[:2]
    assert first[0] == 0
    assert "Padding tax" in first[1]
    assert "duckdb" in first[2]
    assert not {"duckdb", "pandas", "plotly"} & set(second[2])


def test_who_must_leave_a_run_as_it_is_keeps_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LEAST_BYTES", 1)
    for keeps in ("0", ""):
        monkeypatch.setenv(answers.KEEP_VARIABLE, keeps)
        with Run(directory) as run:
            run.sql("select count(*) as n from memory", keep=True)
            run.findings()
        assert (directory / answers.FOLDER).exists() is (keeps != "0")
