"""3: lines of many segments that are read together are the columns that each has by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest

from probe.records import GIB, Memory, Process, Scalar
from probe.runs import tail
from probe.runs.columnar import Columnar, add_lines_of
from probe.runs.layout import Segment
from probe.runs.lines import encode
from tests.sample_run import open_run, sample_rows

RANKS = 5


def lines(rank: int, begin: int = 0) -> bytes:
    """The begin of a segment, or two more steps of it."""
    told: list[object] = []
    if not begin:
        told.append(Process(rank=rank, process=f"p{rank}", time_ns=7, wall_ns=10**18 + rank, world_size=RANKS))
    for step in range(begin, begin + 1 + rank % 2):
        stamp: dict[str, Any] = {"rank": rank, "process": f"p{rank}", "step": step, "time_ns": 10 * step}
        told.append(Memory(**stamp, edge="sample", allocated_bytes=rank * GIB))
        told.append(Scalar(**stamp, key="a", value=0.5, source="user"))
    told.append(Scalar(rank=rank, process=f"p{rank}", time_ns=99, key="nowhere", value=float("inf"), source="user"))
    return b"".join(encode(one) for one in told)  # type: ignore[arg-type]


@pytest.mark.parametrize("begins", [True, False])
def test_3_lines_of_several_segments_together_are_those_of_each(*, begins: bool) -> None:
    together, alone = ([Columnar() for _ in range(RANKS)] for _ in range(2))
    at = 0
    if not begins:
        for rank in range(RANKS):
            for one in (together[rank], alone[rank]):
                one.add_lines(lines(rank))
        at = 4
    data = [lines(rank, at) for rank in range(RANKS)]
    found = add_lines_of(list(zip(together, data, strict=True)))
    expected = [one.add_lines(each) for one, each in zip(alone, data, strict=True)]
    assert found.each == expected
    assert "memory" in found.whole
    assert found.whole["memory"].num_rows == sum(one["memory"].num_rows for one in expected)


def test_3_a_process_that_has_not_said_when_it_began_is_read_by_itself() -> None:
    rows = Memory(rank=1, process="p1", step=3, time_ns=5, edge="sample")
    many = [(Columnar(), encode(rows)), (Columnar(), lines(0))]
    found = add_lines_of(many)
    assert found.each[0]["memory"]["wall_ns"].to_pylist() == [None]
    assert found.each[1]["memory"]["wall_ns"].to_pylist() == [10**18 - 7]


@pytest.mark.parametrize("files", [1, 128])
def test_3_the_newest_rows_are_the_same_however_many_files_are_read_together(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "FILES", files)
    rows = sample_rows(3, 6)
    told = {rank: [one for one in own if one.step is None or one.step < 3] for rank, own in rows.items()}
    with open_run(tmp_path, told) as run:
        run.refresh()
        for step in (3, 4, 5):
            for rank, own in rows.items():
                with (tmp_path / Segment.of_rank(rank).name).open("ab") as file:
                    file.writelines(encode(one) for one in own if one.step == step)
            run.refresh()
            for since in (step, step - 1):
                newest = run.newest(since)
                assert newest is not None
                for table in ("memory", "micro_batches", "reductions"):
                    whole = run._look().table(table)
                    told_of = newest.rows[table].select(whole.column_names)
                    assert of_steps(told_of, since) == of_steps(whole, since) != []


def of_steps(found: pyarrow.Table, since: int) -> list[dict[str, Any]]:
    return [one for one in found.to_pylist() if one["step"] is not None and one["step"] >= since]
