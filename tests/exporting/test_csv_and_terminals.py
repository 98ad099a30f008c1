"""What others logged goes to a terminal without commanding it, and to a spreadsheet without being run by it."""

from __future__ import annotations

import csv
import io
import json

import pytest

from probe.cli import main
from probe.exporting.tables import export_tables
from probe.hooks import current_scope
from probe.records import Incident, Process, Scalar
from probe.runs.layout import create_run
from probe.runs.reader import Run
from probe.runs.writer import RunWriter
from probe.text import visible, visible_json
from probe.tracking.media import Table
from probe.tracking.tracking import Tracking

#: Clears a terminal, gives it a title, colours it, in 7 and in 8 bits; moves its cursor; turns the writing's direction.
STEERS = [
    "\x1b[2J", "\x1b]0;title\x07", "\x1b[31m", "\x9b2J", "\x9d0;title\x9c", "\r", "\b", "\x0e", "\u202e",
    "\u2066", "\u2028",
]  # fmt: skip

FORMULAS = ["=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0", "-", "=1\nx"]
TEXTS = ["a=b", "1-2", "me@x", "'=1", " =1", "", "nan", "ä\nb"]


def harmless(text):
    return all(one.isprintable() or one in "\n\t\u200c\u200d\u3000\xa0" for one in text)


@pytest.fixture
def directory(tmp_path):
    directory = create_run("p\x1b[2J", "e", root=tmp_path)
    now = {"time_ns": 1, "wall_ns": 1}
    writer = RunWriter(directory, rank=0, process=Process(**now, pid=1, host="h\x9b2J", world_size=1))
    for place, text in enumerate([*STEERS, *FORMULAS, *TEXTS]):
        writer.add_rows(Scalar(key=text, value=-1.5, step=place), current_scope(), 2)
        writer.add_rows(Incident(kind="listener", where=text, message=text, traceback=text), current_scope(), 3)
    writer.close()
    return directory


@pytest.mark.parametrize("arguments", [["--once"], ["--tables", "scalars,incidents,processes", "--once"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_b_tail_escapes_what_steers_a_terminal(directory, capsys, arguments, form):
    assert main(["tail", str(directory), *arguments, *form]) == 0
    told = capsys.readouterr().out
    assert harmless(told)
    assert "\t" not in told
    if form:
        lines = [json.loads(line) for line in told.splitlines()]
        assert {line.get("where") for line in lines if "where" in line} >= set(STEERS)
    else:
        assert r"\x1b[2J" in told
        assert r"\u202e" in told
        assert r"\x9b2J" in told


def test_b_the_console_escapes_what_steers_a_terminal(capsys):
    with Tracking("p", "e", "console") as tracking:
        for step, text in enumerate(STEERS):
            tracking.log({f"k{text}": 1.0, "answer": f"a{text}b\n\tc", "table": Table([text], [[text]])}, step)
        assert tracking.flush(60)
    told = capsys.readouterr().out
    assert harmless(told)
    for text in STEERS:
        assert visible(text) in told
    assert "b\n\tc" in told


def test_b_letters_of_all_languages_stay():
    for text in ("日本語　全角", "naïve café", "👩\u200d💻", "עברית", "a\xa0b", "∑ é"):
        assert visible(text) == text
    assert visible("\ud800a\x00") == "\\ud800a\\x00"
    assert json.loads(visible_json(json.dumps({"a": "\u202eb\x9b"}, ensure_ascii=False))) == {"a": "\u202eb\x9b"}


def test_b_csv_neutralises_formulas_in_texts_and_never_in_numbers(directory, tmp_path, capsys):
    export_tables(directory, tmp_path / "csv", format="csv", tables=["scalars", "incidents"])
    with (tmp_path / "csv/scalars.csv").open(newline="", encoding="utf-8") as file:
        rows = {int(row["step"]): row for row in csv.DictReader(file)}
    for place, text in enumerate([*STEERS, *FORMULAS, *TEXTS]):
        neutral = text in FORMULAS or text == "\r"
        assert rows[place]["key"] == (f"'{text}" if neutral else text)
        assert float(rows[place]["value"]) == -1.5
        assert rows[place]["value"][0] == "-"
    query = "select key as \"=key\", value from scalars where key = '=1+1'"
    assert main(["sql", str(directory), query, "--format", "csv"]) == 0
    told = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert told == [["'=key", "value"], ["'=1+1", "-1.5"]]
    with Run(directory) as run:  # what was logged stays as it was
        assert set(FORMULAS) <= set(run.scalars["key"])
    export_tables(directory, tmp_path / "parquet", tables=["scalars"])
    import pandas as pd

    assert set(FORMULAS) <= set(pd.read_parquet(tmp_path / "parquet/scalars.parquet")["key"])
