"""What it costs a scope that where the process is gets written through to its file, and a process that its watchdog
looks after the scopes that are open.
"""

from __future__ import annotations

import inspect
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row
from probe import hooks
from probe.records import Process
from probe.runs.now_file import SLOTS_AT, STATE, NowFile
from probe.runs.watchdog import Watchdog
from probe.runs.writer import RunWriter

#: Scopes of one turn, and turns.
SCOPES = 2_000
TURNS = 200

#: Looks of the watchdog in one turn, and seconds between two of them: the writer's rounds.
LOOKS = 200
ROUND_S = inspect.signature(RunWriter).parameters["interval_s"].default

TARGET_NS = 400
#: Of a core.
WATCHDOG_RATIO = 0.0001


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """Scopes that are followed against scopes that aren't, taking turns; CPU time of the thread, which a busy machine
    doesn't lengthen much."""
    count = size.pick(1, TURNS)
    with tempfile.TemporaryDirectory() as folder:
        file = NowFile(Path(folder) / "rank-00000.now", Process(process="rank-00000"))
        ends = {"entered": file.entered, "left": file.left}
        turns: dict[str, dict[str, Any]] = {
            "nothing": {},
            "floor": {"entered": _floor(file)},
            "entering": {"entered": ends["entered"]},
            "both": ends,
        }
        taken: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(count):
            for name, followed in turns.items():
                hooks.follow(**followed)
                taken[name].append(_turn(file))
        hooks.follow()
        file.close()
    nothing, floor, entering, both = (statistics.median(taken[name]) for name in turns)
    more = f"{(entering - nothing) * 1e9:.0f} ns more per enter ({(floor - nothing) * 1e9:.0f} ns of it copy the scope "
    more += f"into the page and write one number); {(both - entering) * 1e9:.0f} ns more per leave"
    written = row(
        "scope whose ends are written to the file of `run.now()` / scope",
        both,
        nothing,
        f"{TARGET_NS} ns more per enter",
        more,
    )
    return [written, _watchdog(count)]


def _floor(file: NowFile) -> Callable[[hooks.Scope, int, int], None]:
    """The least that a slot which is written at every enter can cost here: one copy into the page, and one number that
    says that it is there."""
    copy, page, words, text = file._pack, file._page, file._words, b"phase"

    def entered(scope: hooks.Scope, thread: int, now_ns: int) -> None:
        copy(page, SLOTS_AT, now_ns, scope.id, -1, -1, text)
        words[STATE] = now_ns

    return entered


def _watchdog(turns: int) -> dict[str, Any]:
    """A look of the watchdog, in each round of the writer's thread, with as many scopes open as trainers have."""
    with tempfile.TemporaryDirectory() as folder:
        file = NowFile(Path(folder) / "rank-00000.now", Process(process="rank-00000"))
        for kind in ("step", "phase", "watch", "micro_batch"):
            scope = hooks.Scope(kind, kind, file.at, step=1)
            file.entered(scope, file.thread, time.monotonic_ns())
        watchdog, taken = Watchdog(file), []
        for _ in range(turns):
            begin = time.thread_time_ns()
            for _ in range(LOOKS):
                watchdog.look()
                file.beat()
            taken.append((time.thread_time_ns() - begin) / LOOKS / 1e9)
        file.close()
    look = statistics.median(taken)
    return row(
        "watchdog check and heartbeat / pause between two rounds of the writer",
        look,
        ROUND_S,
        f"{WATCHDOG_RATIO}",
        "4 scopes open, none overdue; CPU time of the writer's thread",
    )


def _turn(file: NowFile) -> float:
    """Seconds of a scope."""
    root, thread = file._here, file.thread
    begin = time.thread_time_ns()
    for _ in range(SCOPES):
        with hooks.scope("phase", "update", role="actor", phase="update"):
            pass
        file._here, file.thread = root, thread  # also where only the beginnings are told
    return (time.thread_time_ns() - begin) / SCOPES / 1e9
