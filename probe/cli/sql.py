"""Ask a run in SQL (DuckDB's). The tables: memory, micro_batches, padding, calls, reductions, scalars, incidents and
processes; "describe memory" shows the columns of one.

A query reads the run's tables and nothing else. Values after the query take the place of its question marks: numbers,
true, false and null as such, anything else as text.

On a terminal the result is a table, else CSV (as `probe export` writes it). JSON is a list of objects.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from probe.cli.runs import add_attempt, add_run, find_run
from probe.errors import InputError
from probe.text import plain, visible

if TYPE_CHECKING:
    import pandas as pd

ABOUT: Final = "query a run in SQL"

EXAMPLE: Final = """\
probe sql runs/arithmetic/grpo-small "select phase, max(peak_allocated_bytes) from memory group by phase"
probe sql runs/arithmetic/grpo-small "select * from scalars where key = ? and step < ?" reward/mean 10 --json"""

#: Rows that a table on a terminal shows unless asked for more.
SHOWN: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe sql``."""
    add_run(parser)
    add_attempt(parser)
    add = parser.add_argument
    add("query", metavar="QUERY", help="one statement; - reads it from standard input")
    add("parameters", metavar="VALUE", nargs="*", help="for the question marks in the query, in order")
    add("--format", choices=("table", "csv", "json"), help="how to print the result (table on a terminal, else csv)")
    add("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    add("--rows", type=int, default=SHOWN, metavar="N", help=f"rows of a table to show at most; 0 shows all ({SHOWN})")


def run(arguments: argparse.Namespace) -> int:
    """Ask, and print the answer."""
    if arguments.rows < 0:
        raise InputError(f"--rows: got {arguments.rows}, expected 0 or more")
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    place = find_run(arguments.run_path)
    from probe.runs.reader import Run

    with Run(place, arguments.attempt) as opened:
        frame = opened.sql(query, [_value(text) for text in arguments.parameters] or None)
    form = arguments.format or ("table" if sys.stdout.isatty() else "csv")
    if form == "table":
        _print_table(frame, arguments.rows)
    else:
        for line in _csv(frame) if form == "csv" else _json(frame):
            print(visible(line) if sys.stdout.isatty() else line)
    return 0


def _value(text: str) -> Any:
    """A parameter: what JSON calls a number, true, false or null; else the text itself."""
    try:
        found = json.loads(text, parse_constant=float)
    except ValueError:
        return text
    return text if isinstance(found, str | list | dict) else found


def _rows(frame: pd.DataFrame) -> Iterator[list[Any]]:
    """Plain values; a missing one is None, and NaN is NaN."""
    import pandas as pd

    for row in frame.itertuples(index=False, name=None):
        yield [None if value is pd.NA or value is pd.NaT else _unwrapped(value) for value in row]


def _unwrapped(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    return value


def _csv(frame: pd.DataFrame) -> Iterator[str]:
    yield ",".join(_quoted(_harmless(str(name))) for name in frame.columns)
    for row in _rows(frame):
        yield ",".join(map(_cell, row))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | dict | tuple):
        return _quoted(json.dumps(plain(value), ensure_ascii=False))
    return _quoted(_harmless(str(value)))


def _harmless(text: str) -> str:
    """A text that a spreadsheet takes for no formula, as `probe export` writes it."""
    from probe.exporting.tables import FORMULA

    return f"'{text}" if re.match(FORMULA, text) else text


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _json(frame: pd.DataFrame) -> Iterator[str]:
    names = [str(name) for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"query: more than one column is called {twice[0]!r}; give each a name of its own with AS")
    lines = [json.dumps(plain(dict(zip(names, row, strict=True))), allow_nan=False) for row in _rows(frame)]
    yield "[" + ",\n ".join(lines) + "]"


def _print_table(frame: pd.DataFrame, most: int) -> None:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in frame.columns:
        is_number = pd.api.types.is_numeric_dtype(frame[name]) if list(frame.columns).count(name) == 1 else False
        table.add_column(Text(visible(str(name))), justify="right" if is_number else "left", overflow="fold")
    shown = frame.head(most) if most else frame
    for row in _rows(shown):
        table.add_row(*(Text("–", style="dim") if value is None else Text(_shown(value)) for value in row))
    console = Console(highlight=False)
    console.print(table)
    more = len(frame) - len(shown)
    console.print(Text(f"{len(frame):,} rows{f', {more:,} of them not shown (--rows 0)' if more else ''}", style="dim"))


def _shown(value: Any) -> str:
    return visible(value if isinstance(value, str) else str(plain(value)))
