"""What recording a step of about 5 ms costs under probe, and what it costs at the least: CPU time, taking turns.

What is recorded is counted in a run of probe itself: the rows of one step, and how often the kernel is asked for the
resident set and for its high-water mark. The least that any tool does which records the same, in the same loop: it asks
the kernel as often, makes one object for each row, appends it to a queue, and a thread encodes what waits with one call
and writes it to a file with another. It knows no scopes and compares nothing: the values of its rows are those of the
step that was counted.

The training thread's CPU time is read at the ends of each step, that of all other threads over a turn, with the rows of
its last step on the disk. Wall-clock time is in ``benchmarks.fast_steps``.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from benchmarks.fast_steps import Loop, Recorder, _plain, _probe
from benchmarks.measure import Size, duration, row, seconds
from probe.devices import cpu
from probe.hooks import current_scope, phase
from probe.recorders import resident
from probe.recorders.padding_rows import rows_of_causes
from probe.records import Padding, Row, stamp_all
from probe.runs.lines import encode_all
from probe.runs.reader import Run
from probe.session import start

ROUNDS = 12
STEPS = 60

#: Seconds between two rounds of a thread that writes, as of probe's.
INTERVAL_S = 0.35

#: Ends of scopes in a step of the loop: two phases and the step.
ENDS = 3

Maker = Callable[[Path], AbstractContextManager[Recorder]]


class Recorded(NamedTuple):
    """What probe records of a step."""

    rows: list[tuple[type[Row], dict[str, Any]]]
    resident: float  #: readings of ``/proc/self/statm``
    marks: float  #: of ``getrusage``


def recorded(steps: int) -> Recorded:
    """Of the middle step of some; the readings are the mean of all."""
    told = {"pread": 0, "getrusage": 0}
    places = [(module, name, getattr(module, name)) for name in told for module in (cpu, resident)]

    def counted(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def read(*given: Any) -> Any:
            told[name] += 1
            return plain(*given)

        return read

    for module, name, plain in places:
        setattr(module, name, counted(name, plain))
    try:
        with tempfile.TemporaryDirectory() as folder:
            loop = Loop()
            with start("benchmark", run_dir=Path(folder) / "run") as session:
                for number in range(steps):
                    with session.step(number):
                        loop.step(number, phase, session.log)
            with Run(Path(folder) / "run") as run:
                rows = [one for one in run.new_rows() if one.step == steps // 2]
    finally:
        for module, name, plain in places:
            setattr(module, name, plain)
    values = [(type(one), {name: getattr(one, name) for name in one.__struct_fields__}) for one in rows]
    return Recorded(values, told["pread"] / steps, told["getrusage"] / steps)


class Least:
    """The least tool.

    Args:
        path: The file that it writes.
        what: It records at each step.
    """

    def __init__(self, path: Path, what: Recorded) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._resident, self._marks = round(what.resident / ENDS), round(what.marks / ENDS)
        self._shares = [what.rows[index::ENDS] for index in range(ENDS)]
        self._queue: deque[Row] = deque()
        self._ends = 0
        self._stop = threading.Event()
        self._file = path.open("wb", buffering=0)
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def __enter__(self) -> None:
        """A scope begins."""

    def __exit__(self, *error: object) -> None:
        """A scope ends: the kernel is asked, and its share of the step's rows is made."""
        for _ in range(self._resident):
            os.pread(self._statm, 128, 0)
        for _ in range(self._marks):
            resource.getrusage(resource.RUSAGE_SELF)
        append = self._queue.append
        for kind, values in self._shares[self._ends % ENDS]:
            append(kind(**values))
        self._ends += 1

    def scope(self, _: Any) -> AbstractContextManager[Any]:
        return self

    def _write(self) -> None:
        encoder = msgspec.json.Encoder()
        stopped = False
        while not stopped:
            stopped = self._stop.wait(INTERVAL_S)
            rows = [self._queue.popleft() for _ in range(len(self._queue))]
            self._file.write(encoder.encode_lines(rows))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._file.close()
        os.close(self._statm)


class Spent(NamedTuple):
    """CPU seconds of a step in one turn."""

    training: list[float]  #: of the thread that trains, each step
    others: float  #: of all other threads, the mean
    collections: int  #: that began in these steps


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The table; a full one measures longer."""
    what = recorded(size.pick(2, 20))

    @contextmanager
    def least(folder: Path) -> Iterator[Recorder]:
        tool = Least(folder / "rows.jsonl", what)
        yield tool.scope, tool.scope, lambda *_: None
        tool.close()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        makers: dict[str, Maker] = {"plain": _plain, "least": least, "probe": _probe}
        pause_s = size.pick(0.0, 2 * INTERVAL_S)
        turns = take_turns(makers, size.pick(2, ROUNDS, 3 * ROUNDS), size.pick(2, STEPS), pause_s)
    finally:
        torch.set_num_threads(threads)
    load = os.getloadavg()[0]
    note = (
        f"{len(what.rows)} rows and {what.resident + what.marks:.0f} system calls per step; a plain step takes "
        f"{duration(_training(turns['plain']))}; load {load:.1f}"
    )
    parts = {"training thread": _training, "writer's thread": _others, "both": _both}
    found = [_compared(name, part, turns, note if name == "both" else "") for name, part in parts.items()]
    tail = _compared("training thread, 99th percentile", _tail, turns, _caused(turns))
    found.append({**tail, "name": tail["name"].replace("CPU time of", "Added by")})
    return [*found, _goal(turns), _padding(what, size.pick(1, 400))]


def _goal(turns: dict[str, list[Spent]]) -> dict[str, Any]:
    """What a step takes that is recorded by the least tool, beside a plain one and the goal."""
    plain, added = _training(turns["plain"]), _both(turns["least"]) - _both(turns["plain"])
    note = "no tool that records the same can take less; probe's own time is in the rows above"
    return row("CPU time of a step with the minimum recorder / plain", plain + added, plain, "1.02", note)


def _padding(what: Recorded, repeats: int) -> dict[str, Any]:
    """Rows of padding in a step beside its fields of batches, and what the thread that writes takes for those of a
    second cause: a row has one.
    """
    rows = [values for kind, values in what.rows if kind is Padding]
    fields = {(one["batch_id"], one["field"]) for one in rows}

    def made(causes: dict[str, int]) -> Callable[[], Any]:
        def work() -> None:
            built = rows_of_causes([("ids", 8), ("mask", 8)], causes, 5, 300, 64, batch_id=1, source="benchmark")
            stamp_all(built, current_scope(), rank=0, time_ns=1, process="rank-00000")
            encode_all(built)

        return work

    two, one = seconds(
        made({"longest_row": 5, "fixed_width": 15}), made({"longest_row": 20}), repeats=repeats, number=10
    )
    note = f"{len(rows) - len(fields)} have a second cause; one costs the writer's thread {duration((two - one) / 2)}"
    found = row("padding rows of a step / its fields of batches", len(rows), len(fields), "1", note)
    return found | {"unit": "rows"}


def _tail(turns: list[Spent]) -> float:
    """The 99th percentile of all steps: what a collection, or a writer that holds the interpreter, shows in."""
    return statistics.quantiles((one for turn in turns for one in turn.training), n=100)[-1]


def _caused(turns: dict[str, list[Spent]]) -> str:
    """The collections that began in the steps of each."""
    steps = sum(len(one.training) for one in turns["plain"])
    counts = {name: sum(one.collections for one in its) for name, its in turns.items()}
    said = ", ".join(f"{'minimum' if name == 'least' else name} {count}" for name, count in counts.items())
    return f"garbage collections in {steps} steps: {said}"


def _training(turns: list[Spent]) -> float:
    """The first decile of all steps: what others do on the machine can only be added to what a step takes."""
    return statistics.quantiles((one for turn in turns for one in turn.training), n=10)[0]


def _others(turns: list[Spent]) -> float:
    return statistics.quantiles((one.others for one in turns), n=10)[0]


def _both(turns: list[Spent]) -> float:
    return _training(turns) + _others(turns)


def _compared(
    name: str, part: Callable[[list[Spent]], float], turns: dict[str, list[Spent]], note: str
) -> dict[str, Any]:
    """What each adds to a plain step."""
    ours, theirs = (part(turns[who]) - part(turns["plain"]) for who in ("probe", "least"))
    told = "; ".join(filter(None, (f"{duration(ours - theirs)} more", note)))
    return row(f"CPU time of recording a step, {name} / minimum", ours, theirs, "", told)


def take_turns(makers: dict[str, Maker], rounds: int, steps: int, pause_s: float) -> dict[str, list[Spent]]:
    loop = Loop()
    found: dict[str, list[Spent]] = {name: [] for name in makers}
    for index in range(rounds + 1):  # the first imports, fills caches and warms up
        for name, make in list(makers.items())[:: 1 if index % 2 else -1]:
            spent = _turn(loop, make, steps, pause_s)
            if index:
                found[name].append(spent)
    return found


def _turn(loop: Loop, make: Maker, steps: int, pause_s: float) -> Spent:
    times = []
    with tempfile.TemporaryDirectory() as folder, make(Path(folder)) as (step, phase, log):
        for number in range(5):
            with step(number):
                loop.step(number, phase, log)
        time.sleep(pause_s)  # what the first steps left is written
        gc.collect()
        begun = _collections()
        all_before, own_before = time.process_time(), time.thread_time()
        for number in range(5, steps + 5):
            before = time.thread_time_ns()
            with step(number):
                loop.step(number, phase, log)
            times.append((time.thread_time_ns() - before) / 1e9)
        collections = _collections() - begun
        time.sleep(pause_s)
        others = (time.process_time() - all_before) - (time.thread_time() - own_before)
    return Spent(times, others / steps, collections)


def _collections() -> int:
    return sum(one["collections"] for one in gc.get_stats())


if __name__ == "__main__":
    for one in rows():
        print(one["name"], f"{one['ratio']:.2f}", one["target"], one["note"])
