"""A recorded run with its rows written anew: other numbers for the ranks, another time. Nothing else is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: A file of a rank, and where its number stands in the name.
_RANK = re.compile(r"(?<=rank)(-?)(\d{5})")
_FRONT = 1024  # of a page that says where a process was: the words and its identity


def permuted(source: Path, target: Path, ranks: Mapping[int, int]) -> Path:
    """The run with other numbers for its ranks.

    Args:
        source: The run.
        target: A new directory.
        ranks: The new number of each rank; numbers have one digit.
    """

    def rows(table: pa.Table) -> pa.Table:
        table = _each(table, "rank", lambda one: None if one is None else ranks[one])
        return _each(table, "process", lambda one: _renamed(one, ranks))

    return _rewritten(
        source,
        target,
        rows,
        name=lambda name: _renamed(name, ranks),
        page=lambda page: _relabelled(page[:_FRONT], ranks) + page[_FRONT:],
        lines=lambda text: _relabelled(text, ranks),
    )


def shifted(source: Path, target: Path, monotonic_ns: int, wall_ns: int) -> Path:
    """The run at another time.

    Args:
        source: A run whose rows are all in Parquet.
        target: A new directory.
        monotonic_ns: How much later on the monotonic clock, on all ranks.
        wall_ns: How much later by the wall clock.
    """

    def rows(table: pa.Table) -> pa.Table:
        for name, later in (
            ("time_ns", monotonic_ns),
            ("wall_ns", wall_ns),
            ("begin_ns", monotonic_ns),
            ("end_ns", monotonic_ns),
        ):
            if name in table.column_names:
                column = table.column_names.index(name)
                table = table.set_column(column, table.schema.field(name), pc.add(table[name], later))
        return table

    assert not list(source.glob("*.jsonl"))
    return _rewritten(source, target, rows)


def _each(table: pa.Table, name: str, change: Callable[[Any], object]) -> pa.Table:
    field = table.schema.field(name)
    values = pa.array([change(one) for one in table[name].to_pylist()], type=field.type)
    return table.set_column(table.column_names.index(name), field, values)


def _renamed(name: object, ranks: Mapping[int, int]) -> str:
    return _RANK.sub(lambda found: f"{found[1]}{ranks[int(found[2])]:05d}", str(name))


def _relabelled(text: bytes, ranks: Mapping[int, int]) -> bytes:
    """Lines, or the part of a page in which a process says what it is: they stay as long as they were."""
    told = _RANK.sub(lambda found: f"{found[1]}{ranks[int(found[2])]:05d}", text.decode("latin-1"))
    told = re.sub(r'"rank":(\d)', lambda found: f'"rank":{ranks[int(found[1])]}', told)
    assert len(told) == len(text)
    return told.encode("latin-1")


def _same(told: Any) -> Any:
    return told


def _rewritten(
    source: Path,
    target: Path,
    rows: Callable[[pa.Table], pa.Table],
    name: Callable[[str], str] = _same,
    page: Callable[[bytes], bytes] = _same,
    lines: Callable[[bytes], bytes] = _same,
) -> Path:
    changes: dict[str, Callable[[bytes], bytes]] = {".now": page, ".jsonl": lines}
    for path in source.rglob("*"):
        place = target / path.relative_to(source).with_name(name(path.name))
        (place if path.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(rows(pq.read_table(path)), place)
        elif path.is_file():
            change: Callable[[bytes], bytes] = changes.get(path.suffix, _same)
            place.write_bytes(change(path.read_bytes()))
    return target
