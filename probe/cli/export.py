"""Write a run in a format that other tools read.

parquet and csv: a directory with one file a table. In CSV a list is JSON in quotes, a missing value is nothing between
the commas, and NaN and the infinities are nan, inf and -inf.

perfetto: one trace file for https://ui.perfetto.dev: steps, phases, micro-batches and calls as slices by rank, memory
and tokens as counters, incidents as instants. With the ending .gz it is compressed.

A file of the same name is replaced once the new one is complete.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Final

from probe.cli.output import add_json, print_json, remark
from probe.cli.runs import add_attempt, add_run, find_run
from probe.errors import InputError
from probe.text import size, visible

ABOUT: Final = "write a run as Parquet, CSV or a Perfetto trace"

EXAMPLE: Final = """\
probe export runs/arithmetic/grpo-small --format perfetto -o trace.pftrace
probe export runs/arithmetic/grpo-small --format csv -o tables --tables memory,calls"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe export``."""
    add_run(parser)
    add_attempt(parser)
    add = parser.add_argument
    add("--format", choices=("parquet", "csv", "perfetto"), required=True, help="what to write")
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="PATH",
        help="the trace file, or the directory of the tables",
    )
    add("--tables", metavar="NAMES", help="tables joined by commas, as in `probe sql` (all); for parquet and csv")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write, and say what was written."""
    if arguments.format == "perfetto" and arguments.tables is not None:
        raise InputError("--tables: got it with --format perfetto, expected it with parquet or csv only")
    place = find_run(arguments.run_path)
    return _trace(place, arguments) if arguments.format == "perfetto" else _tables(place, arguments)


def _tables(place: str, arguments: argparse.Namespace) -> int:
    from probe.exporting.tables import export_tables

    names = None if arguments.tables is None else [name.strip() for name in arguments.tables.split(",") if name.strip()]
    chosen = {"format": arguments.format, "tables": names, "attempt": arguments.attempt}
    files = export_tables(place, arguments.output, **chosen)
    if arguments.json:
        told = {"run": place, "format": arguments.format, "path": str(arguments.output.expanduser().absolute())}
        print_json({**told, "files": [asdict(file) for file in files]})
        return 0
    for file in files:
        print(visible(f"{file.rows:>12,} rows  {size(file.bytes):>10}  {file.path}"))
    return 0


def _trace(place: str, arguments: argparse.Namespace) -> int:
    from probe.exporting.perfetto import export_perfetto

    trace = export_perfetto(place, arguments.output, arguments.attempt)
    if trace.unplaced:
        remark("export", f"{trace.unplaced:,} rows are left out: their process never recorded the wall-clock time")
    if arguments.json:
        print_json({"run": place, "format": "perfetto", **asdict(trace)})
        return 0
    counts = f"{trace.ranks:,} ranks, {trace.slices:,} slices, {trace.counters:,} counter values"
    print(visible(f"{trace.path} ({size(trace.bytes)}): {counts}, {trace.instants:,} incidents"))
    print("Open it at https://ui.perfetto.dev: the page reads it in the browser and sends it nowhere.")
    return 0
