"""What one update of the live panel costs the kernel: bytes on the wire and CPU time, at histories of unlike length.

Each update brings 10 new points for each of 4 charts. The alternative is plotly's ``FigureWidget`` with the same 4
lines of numpy arrays, each grown by 10 points in one ``batch_update``.

A full one tells also how long the first paint of a run of 1,000,000 rows takes, beside reading its tables as frames.

python -m benchmarks.panel
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measure import Size, duration
from probe.live.feed import Feed
from probe.live.protocol import size_of
from probe.live.pump import Pump
from probe.records import GIB, Memory, MicroBatch, Process, Row, Scalar
from probe.runs.layout import Segment, create_run
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from probe.views.panel.panel import Panel
from probe.views.panel.widget import packed

UPDATES = 60
NEW = 10
HISTORIES = (1_000, 10_000, 100_000)
TARGET_BYTES, TARGET_S = 4096, 1e-3
MS = 1_000_000

#: The place of who writes, which a session stamps on its rows.
WRITER: Final[dict[str, Any]] = {"rank": 0, "process": "rank-00000"}


class Trainer:
    """Writes rows as a rank would: for each of 4 charts one point an instant."""

    def __init__(self, folder: Path) -> None:
        self.directory = create_run("benchmark", "panel", root=folder)
        self._file = (self.directory / "rank-00000.jsonl").open("ab")
        self._count = 0
        self._write([Process(time_ns=1, wall_ns=time.time_ns(), world_size=1, **WRITER)])

    def write(self, points: int) -> None:
        rows: list[Row] = []
        for _ in range(points):
            rows.extend(self._instant())
            self._count += 1
        self._write(rows)

    def close(self) -> None:
        self._file.close()

    def _write(self, rows: list[Row]) -> None:
        self._file.write(b"".join(map(encode, rows)))
        self._file.flush()

    def _instant(self) -> list[Row]:
        index = self._count
        at: dict[str, Any] = {"time_ns": 2 + index * 10 * MS, "step": index // 10, "phase": "update", "role": "actor"}
        at |= WRITER
        used = int((20 + np.sin(index / 50)) * GIB)
        scope: dict[str, Any] = {"kind": "micro_batch", "name": "micro_batch", "scope_id": index + 1}
        scope["micro_batch"] = index % 10
        return [
            Memory(edge="sample", allocated_bytes=used, reserved_bytes=used, device_total_bytes=80 * GIB, **at),
            Memory(edge="leave", peak_allocated_bytes=used, peak_kind="exact", host_duration_ns=5 * MS, **scope, **at),
            MicroBatch(batch_id=index // 10, micro_batches=10, sequences=8, lengths=[500] * 8, tokens=4000, **at),
            Scalar(key="actor/pg_loss", value=1 / (1 + index), **at),
        ]


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    painted = size.pick(4_000, 0, 1_000_000)
    made = [_first_paint(painted)] if painted else []
    histories = HISTORIES[: size.pick(1, len(HISTORIES))]
    for history in histories:
        seconds, sizes = _ours(history, size.pick(8, UPDATES))
        theirs_s, theirs_bytes = _figure_widget(history, size.pick(1, 20))
        what = f"{history // 1000},000 points of history"
        made.append(_row(f"CPU time of one update, {what}", statistics.median(seconds), theirs_s, "at most 1 ms"))
        ours_bytes = statistics.median(sizes)
        one = _row(f"bytes of one update, {what}", ours_bytes, theirs_bytes, "at most 4096 bytes")
        made.append({**one, "unit": "bytes", "note": f"largest {max(sizes):g}; without keyframes"})
    return [*made, _reload(histories[-1])]


def _reload(history: int) -> dict[str, Any]:
    """What a page that opens is sent, beside the same columns as they are."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Path(folder))
        trainer.write(history)
        trainer.close()
        pump = Pump(Feed(trainer.directory), None, 0.25)
        pump.open()
        head, body = pump.snapshot()
        begin = time.thread_time()
        _, sent = packed(head, body)
        took = time.thread_time() - begin
    made = _row(f"bytes sent to a page that opens, {history // 1000},000 points of history", len(sent), len(body), "")
    return {**made, "unit": "bytes", "note": f"packed in {took * 1e3:.0f} ms in the kernel; without plotly.js"}


def _first_paint(count: int) -> dict[str, Any]:
    """Opening the run, the static bundle and the whole state of the widget: all that a page waits for."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Path(folder))
        for written in range(0, count // 4, 10_000):
            trainer.write(min(10_000, count // 4 - written))
        trainer.close()
        for _ in roll_over(trainer.directory, Segment.of_rank(0)):
            pass
        begin = time.perf_counter()
        with Panel(trainer.directory) as panel:
            panel._repr_mimebundle_()
            panel.widget.get_state()
            ours = time.perf_counter() - begin
        begin = time.perf_counter()
        with Run(trainer.directory) as run:
            for name in ("memory", "micro_batches", "scalars"):
                run.table(name)
            theirs = time.perf_counter() - begin
    note = "in a process that has imported all of it; the alternative reads the same tables as frames and draws nothing"
    return {**_row(f"first paint of {count:,} rows", ours, theirs, "at most 2 s"), "note": note}


def _row(name: str, ours: float, theirs: float, target: str) -> dict[str, Any]:
    note = "including reading the run's new rows; the alternative is FigureWidget.batch_update"
    return {"name": name, "ours_s": ours, "theirs_s": theirs, "ratio": ours / theirs, "target": target, "note": note}


def _ours(history: int, updates: int) -> tuple[list[float], list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Path(folder))
        trainer.write(history)
        sent: list[Any] = []
        feed = Feed(trainer.directory)
        pump = Pump(feed, lambda head, buffers: sent.append((head, buffers)), 0.25)
        pump.open()
        seconds = []
        for _ in range(updates):
            trainer.write(NEW)
            time.sleep(0.01)  # a training goes on meanwhile: caches are cold
            begin = time.thread_time()
            pump.round()
            if sent[-1][0]["t"] == "d":
                seconds.append(time.thread_time() - begin)
        trainer.close()
        return seconds, [size_of(message) for message in sent if message[0]["t"] == "d"]


def _figure_widget(history: int, updates: int) -> tuple[float, float]:
    import plotly.graph_objects as go

    figure = go.FigureWidget([go.Scatter(x=np.arange(history), y=np.zeros(history)) for _ in range(4)])
    sizes: list[int] = []
    figure.send = lambda content, buffers=None: None
    sent = figure._send

    def send(message: Any, buffers: Any = None) -> None:
        sizes[-1] += sum(memoryview(one).nbytes for one in buffers or ())
        sent(message, buffers)

    figure._send = send
    seconds = []
    for update in range(1, updates + 1):
        count = history + update * NEW
        x, y = np.arange(count), np.random.default_rng(0).normal(size=count)
        sizes.append(0)
        begin = time.thread_time()
        with figure.batch_update():
            for trace in figure.data:
                trace.x, trace.y = x, y
        seconds.append(time.thread_time() - begin)
    return statistics.median(seconds), statistics.median(sizes)


if __name__ == "__main__":
    for one in rows():
        unit = one.get("unit")
        ours, theirs = (f"{one[key]:g} {unit}" if unit else duration(one[key]) for key in ("ours_s", "theirs_s"))
        print(f"{one['name']:48} {ours:>12} {theirs:>14}  {one['ratio']:.4f}  {one['target']}")
