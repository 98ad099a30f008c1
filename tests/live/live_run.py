"""Runs for the tests of the live panel, and live tables as plain rows to compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.dashboards.spec import TABLES
from probe.live.feed import Feed
from probe.records import Process, Row
from probe.runs.layout import segment_of
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.version_1 import process_name
from tests.sample_run import written_by

Told = list[tuple[Any, ...]]


def told(feed: Feed, table: str) -> Told:
    """The rows of a live table in their order, words as texts, missing numbers as None."""
    columns = feed.tables[table].columns()
    rows = zip(*(columns[name].tolist() for name in TABLES[table]), strict=True)
    kinds = list(TABLES[table].values())
    return [tuple(_plain(feed, kind, value) for kind, value in zip(kinds, row, strict=True)) for row in rows]


def _plain(feed: Feed, kind: str, value: Any) -> Any:
    if kind == "word":
        return None if value < 0 else feed.words.texts[value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    return value


def as_dicts(feed: Feed, table: str) -> list[dict[str, Any]]:
    """:func:`told` with names."""
    return [dict(zip(TABLES[table], row, strict=True)) for row in told(feed, table)]


def opened(path: Path | str, **options: Any) -> Feed:
    """A feed that has read what is there."""
    feed = Feed(path, **options)
    feed.open()
    return feed


def append(directory: Path, rows: Iterable[Row], segment: int | None = None) -> None:
    """Add rows to the files of their ranks, as their writers would."""
    by_rank: dict[int, list[Row]] = {}
    for row in rows:
        by_rank.setdefault(row.rank or 0, []).append(row)
    for rank, own in by_rank.items():
        number = (segment or 0) if any(isinstance(row, Process) for row in own) else 0
        lines = [encode(written_by(row, process_name(rank, number), rank)) for row in own]
        name = f"rank-{rank:05d}.jsonl" if segment is None else f"rank-{rank:05d}.{segment}.jsonl"
        with (directory / name).open("ab") as file:
            file.write(b"".join(lines))


def await_true(condition: Callable[[], bool], seen: Callable[[], Any]) -> None:
    """Wait for what a thread or another process does; where it never comes, say what was ``seen`` instead."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"it never came: {seen()}"
        time.sleep(0.02)


def roll(directory: Path) -> None:
    """Roll every file over, as writers do when they close."""
    for path in sorted(directory.glob("rank-*.jsonl")):
        segment = segment_of(path.name)
        assert segment is not None
        for _ in roll_over(directory, segment):
            pass


def in_order(rows: Mapping[int, list[Row]]) -> list[Row]:
    """The rows of all ranks by the time since each clock's start: one order in which they may have been written."""
    from tests.sample_run import clock

    return sorted((row for own in rows.values() for row in own), key=lambda row: row.time_ns - clock(row.rank or 0))
