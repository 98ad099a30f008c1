"""What it costs to look for findings while a run is written, of 64 ranks with a long history.

A history is written as Parquet files, as ranks leave them, and then steps come: each rank writes its rows of a step as
lines, and one looks again. The alternative is a look by somebody who opens the run at that moment and reads all of it.
Times are of the process's CPU. The share of a core is that of looks as often as they are due, at one step between two.

python -m benchmarks.watching
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measure import Size, row
from probe.analysis.verdict.verdict import OFTEN, URGENT, Look
from probe.analysis.verdict.watch import SHARE, URGENT_MOST_S, URGENT_S, Watch
from probe.records import GIB, Memory, MicroBatch, Process, Reduction, Row, Scalar
from probe.runs.columns import LINE, schema
from probe.runs.layout import PARTS_NAME, Segment, create_run
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import Run

RANKS: Final = 64
#: Steps of the history.
HISTORIES: Final = (1_000, 10_000)
#: Looks that are measured, a step before each.
LOOKS: Final = 8
#: Steps that are written row by row; all others are these, moved.
STRETCH: Final = 50
SECOND: Final = 10**9
STEP_NS: Final = 9 * SECOND


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The rows of the table; a full one takes 10,000 steps as well (a few minutes, and a few GB of disk)."""
    ranks, looks = size.pick((2, 3), (RANKS, LOOKS))
    with tempfile.TemporaryDirectory() as folder:
        histories = size.pick((STRETCH + 1,), HISTORIES[:1], HISTORIES)
        return [one for steps in histories for one in measured(History(Path(folder), ranks, steps), steps, looks)]


def measured(history: History, steps: int, looks: int) -> list[dict[str, Any]]:
    """The rows of one history."""
    alarms, all_urgent = _costs(history, OFTEN, looks), _costs(history, URGENT, looks)
    about = f"{history.ranks} ranks × {steps:,} steps ({history.count / 1e6:.1f} M rows)"
    found = []
    for name, (first, later, refresh) in (("alarms", alarms), ("urgent findings", all_urgent)):
        pause_s = min(URGENT_MOST_S, max(URGENT_S, later / SHARE))
        note = (
            f"{100 * later / pause_s:.2f} % of a core every {pause_s:.1f} s; "
            f"{refresh * 1e3:.0f} ms of it read {history.of_step} new rows"
        )
        found.append(row(f"{about}: search for {name} after one more step / a full search", later, first, "1 %", note))
    return found


def _costs(history: History, looks: tuple[Look, ...], count: int) -> tuple[float, float, float]:
    """CPU seconds of the first look, of a later one, and of it for reading what was added."""
    with Run(history.directory) as run:
        begin = time.process_time()
        watch = Watch(run, looks=looks, often=looks)
        watch.look(whole=True)
        first = time.process_time() - begin
        if watch.failed:
            raise RuntimeError("; ".join(watch.failed))
        later, refresh = [], []
        read = run.refresh

        def refreshed() -> Run:
            begin = time.process_time()
            read()
            refresh.append(time.process_time() - begin)
            return run

        run.refresh = refreshed  # type: ignore[method-assign]  # which each look calls once
        for _ in range(count):
            history.step()
            begin = time.process_time()
            watch.look(whole=True)
            later.append(time.process_time() - begin)
    return first, statistics.median(later[2:]), statistics.median(refresh[2:])


class History:
    """A run that is written step by step.

    Args:
        folder: Where it is made.
        ranks: How many write it.
        steps: How many it has at first.
    """

    def __init__(self, folder: Path, ranks: int, steps: int) -> None:
        self.directory = create_run("watched", f"steps-{steps}", root=folder)
        self.ranks, self.count = ranks, 0
        for rank in range(ranks):
            self._write(rank, steps)
        self._steps = steps
        self.of_step = sum(1 for _ in _step(0, 0)) * ranks
        for rank in range(ranks):
            self._append(rank, [_process(rank, ranks)])

    def step(self) -> None:
        """One more step on each rank."""
        for rank in range(self.ranks):
            self._append(rank, _step(rank, self._steps))
        self._steps += 1

    def _append(self, rank: int, told: Any) -> None:
        with (self.directory / Segment.of_rank(rank, 1).name).open("ab") as file:
            file.writelines(map(encode, told))

    def _write(self, rank: int, steps: int) -> None:
        """The history of a rank: a stretch of steps by the writer's own encoder, and the same moved."""
        segment = Segment.of_rank(rank)
        told = [_process(rank, self.ranks), *(one for step in range(STRETCH) for one in _step(rank, step))]
        (self.directory / segment.name).write_bytes(b"".join(map(encode, told)))
        for _ in roll_over(self.directory, segment):
            pass
        for path in (self.directory / PARTS_NAME).glob(f"*-rank{rank:05d}-0.parquet"):
            found = pq.read_table(path)
            if not path.name.startswith("process"):
                table = pq.read_metadata(path).metadata[b"probe_table"].decode()
                pieces = [_moved(found, index) for index in range(-(-steps // STRETCH))]
                found = pa.concat_tables(pieces).cast(schema(table)).replace_schema_metadata(found.schema.metadata)
                found = found.filter(pc.less(found["step"], steps))
                pq.write_table(found, path, compression="zstd")
            self.count += len(found)


def _moved(found: pa.Table, index: int) -> pa.Table:
    by = {"step": STRETCH, "time_ns": STRETCH * STEP_NS, "wall_ns": STRETCH * STEP_NS, "scope_id": 1000}
    by |= {"parent_id": 1000, "batch_id": 1000, LINE: 10_000}
    for name, each in by.items():
        if name in found.column_names:
            place = found.column_names.index(name)
            found = found.set_column(place, found.schema.field(name), pc.add(found[name], each * index))
    return found


def _process(rank: int, ranks: int) -> Process:
    wall = 1_790_000_000 * SECOND
    told: dict[str, Any] = {"host": f"node-{rank // 8}", "pid": 100 + rank, "world_size": ranks}
    return Process(rank=rank, process=_name(rank), time_ns=0, wall_ns=wall, device="cuda:0", **told)


def _name(rank: int) -> str:
    return f"rank-{rank:05d}.1"


def _step(rank: int, step: int) -> Iterator[Row]:
    """What a rank writes in a step: three phases, of which the last has four micro-batches."""
    begin, scope = step * STEP_NS, step % STRETCH * 10 + 1000 * (step // STRETCH) + 1
    stamp: dict[str, Any] = {"rank": rank, "process": _name(rank), "step": step}
    noise = (rank * 7919 + step * 104729) % 1000 / 1000
    allocated = 20 * GIB + int(noise * 64) * 1024**2
    yield _edge("enter", "step", "step", scope, begin, 0, allocated, stamp)
    at = begin
    for place, (phase, seconds) in enumerate((("rollout", 4), ("old_log_prob", 1), ("update", 3)), 1):
        here = {**stamp, "phase": phase, "role": "actor"}
        yield _edge("enter", "phase", phase, scope + place, at, 0, allocated, here, parent_id=scope)
        if phase == "update":
            yield from _batches(scope, at, noise, allocated, here)
        at += seconds * SECOND
        length = seconds * SECOND
        yield _edge("leave", "phase", phase, scope + place, at, length, allocated, here, parent_id=scope)
    yield _edge("leave", "step", "step", scope, at, at - begin, allocated, stamp)
    for key, value in (("actor/loss", 0.5 - noise / 10), ("actor/grad_norm", 1 + noise / 5)):
        told: dict[str, Any] = {"count": 4, "smallest": value - 0.1, "largest": value + 0.1, "value": value}
        yield Reduction(**stamp, time_ns=at, key=key, reducer="mean", chosen_by="name", **told)
        if rank == 0:
            yield Scalar(**stamp, time_ns=at, key=key, value=value, source="user")


def _batches(scope: int, at: int, noise: float, allocated: int, stamp: dict[str, Any]) -> Iterator[Row]:
    tokens = [3000 + int(900 * noise) - 200 * index for index in range(4)]
    for index, one in enumerate(tokens):
        here = {**stamp, "micro_batch": index, "time_ns": at}
        lengths = [one // 4] * 4
        yield MicroBatch(
            **here, batch_id=scope, micro_batches=4, sequences=4, lengths=lengths, tokens=sum(lengths), cap_tokens=4096
        )
    for index, one in enumerate(tokens):
        length = int(one * (0.15 + noise / 100) * 10**6)
        here = {**stamp, "micro_batch": index}
        name = f"micro_batch {index}"
        edge = {"parent_id": scope + 3}
        yield _edge("enter", "micro_batch", name, scope + 4 + index, at, 0, allocated, here, **edge)
        at += length
        yield _edge("leave", "micro_batch", name, scope + 4 + index, at, length, allocated, here, **edge)


def _edge(
    edge: str, kind: str, name: str, scope: int, at: int, length: int, now: int, stamp: dict[str, Any], **more: Any
) -> Memory:
    told: dict[str, Any] = {}
    if edge == "leave":
        peak = now + 10 * GIB
        told = {"peak_allocated_bytes": peak, "peak_reserved_bytes": peak + GIB, "peak_kind": "exact"}
        told["host_duration_ns"] = length
    return Memory(
        **stamp,
        time_ns=at,
        scope_id=scope,
        edge=edge,
        kind=kind,
        name=name,
        device="cuda:0",
        source="cuda",
        allocated_bytes=now,
        reserved_bytes=now + GIB,
        device_total_bytes=80 * GIB,
        **told,
        **more,
    )


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table("watching", rows(Size.asked(sys.argv))))
