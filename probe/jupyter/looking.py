"""The process that looks at runs for the list, and answers what is asked once: ``python -m probe.jupyter.looking``.

It is beside :mod:`probe.jupyter.reading`, which stays small by it: what looking at a large run takes is given back when
this process ends. Each line of its input is a JSON object with one of these, and each answer is a line:

============ ================================== =============================================================
question     takes                              answer
============ ================================== =============================================================
``follow``   runs that are live: by directory,  ``found``, by directory, as :func:`verdict_of` gives it; ``pause_s``
             how many processes have ended      until the next look is due
``ended``    a directory                        ``found``, as :func:`verdict_of`; ``cpu_s`` that it took
``findings`` a directory                        ``answer``: as ``probe findings --json`` prints it
``compare``  two directories                    ``answer``: as ``probe compare --json`` prints it
``sql``      a directory, with ``query``        ``answer``: ``columns``, ``rows`` (at most :data:`MOST_ROWS`), ``cut``
============ ================================== =============================================================

What is asked once and can't be answered has ``refused``, the reason, in the place of ``answer``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from probe.analysis.verdict.finding import FAILURES, Findings
from probe.analysis.verdict.watch import Watch
from probe.errors import ProbeError
from probe.guard import Guard
from probe.jupyter.judging import MOST_ALARMS, NOTHING, unknown
from probe.opened import Run
from probe.text import missing, plain, rows
from probe.views.panel.looking import told

_log = logging.getLogger("probe.jupyter")

#: Rows that a query gives at most.
MOST_ROWS: Final = 10_000

#: What asking for the memory of a live run may take of the time.
NUMBERS_SHARE: Final = 0.02


class Followed:
    """A run that is live."""

    def __init__(self, path: str) -> None:
        self._run = Run(path)
        self._watch = Watch(self._run)
        self._ended: int | None = None
        self._numbers: dict[str, int | None] = dict(NOTHING)
        self._numbers_due = 0.0

    def look(self, ended: int) -> dict[str, Any]:
        """What is known of it now.

        Args:
            ended: How many of its processes have ended; where that is new it is looked at once.

        Raises:
            ProbeError: It can't be read.
        """
        known, self._ended = self._ended, ended
        found = self._watch.look(whole=None if known is None or ended <= known else False)
        if time.monotonic() >= self._numbers_due:
            begin = time.thread_time()
            self._numbers = numbers(self._run)
            took_s = time.thread_time() - begin
            self._numbers_due = time.monotonic() + max(took_s / NUMBERS_SHARE, 1.0)
        return verdict_of(found, self._numbers, whole=not self._watch.failed)

    @property
    def pause_s(self) -> float:
        """Seconds until the next look is due."""
        return self._watch.pause_s

    def close(self) -> None:
        """End it."""
        self._run.close()


class Looking:
    """Answers the questions."""

    def __init__(self) -> None:
        self._followed: dict[str, Followed] = {}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one question; see the module."""
        if "follow" in asked:
            return self.follow(asked["follow"])
        if "ended" in asked:
            return self.ended(asked["ended"])
        try:
            return {"answer": plain(_once(asked))}
        except ProbeError as error:
            return {"refused": str(error)}

    def follow(self, live: Mapping[str, int]) -> dict[str, Any]:
        """Look at runs that are live, as far as it is due; others are let go."""
        for path in self._followed.keys() - live.keys():
            self._followed.pop(path).close()
        found, pauses = {}, [30.0]
        for path, ended in live.items():
            found[path] = _known(path, partial(self._look, path, ended, pauses))
        return {"found": found, "pause_s": min(pauses)}

    def _look(self, path: str, ended: int, pauses: list[float]) -> dict[str, Any]:
        if path not in self._followed:
            self._followed[path] = Followed(path)
        found = self._followed[path].look(ended)
        pauses.append(self._followed[path].pause_s)
        return found

    def ended(self, path: str) -> dict[str, Any]:
        """Look at a run that has ended."""
        begin = time.process_time()
        found = _known(path, partial(_found, path))
        return {"found": found, "cpu_s": time.process_time() - begin}


def _found(path: str) -> dict[str, Any]:
    with Run(path) as run:
        return verdict_of(run.findings(), numbers(run))


def _known(path: str, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a look says of a run. That it can't be looked at is an answer too, and leaves the others."""
    failed: dict[str, Any] = {}

    def tell(_kind: str, _where: str, _message: str, error: BaseException | None, *_: object) -> None:
        failed.update(unknown(error))

    def looked() -> dict[str, Any]:
        try:
            return look()
        except ProbeError as error:
            return _failed(path, error)

    guard = Guard(
        path, f"{path} can't be looked at", kind="findings", tell=tell, most=None, log=_log, level=logging.DEBUG
    )
    return guard.call(looked, otherwise=failed)


def _once(asked: Mapping[str, Any]) -> Any:
    """What is asked once.

    Raises:
        ProbeError: It can't be answered.
    """
    if "compare" in asked:
        from probe.analysis.run_comparison import compare_runs

        a_path, b_path = asked["compare"]
        with Run(a_path) as a, Run(b_path) as b:
            made = compare_runs(a, b, causes=False)
        frames = {"metrics": made.metrics, "config": made.config, "findings": made.findings}
        return {"a": made.a, "b": made.b, **{name: rows(frame) for name, frame in frames.items()}}
    if "sql" in asked:
        with Run(asked["sql"]) as run:
            frame = run.sql(asked["query"])
        return {"columns": list(frame.columns), "rows": rows(frame.head(MOST_ROWS)), "cut": len(frame) > MOST_ROWS}
    with Run(asked["findings"]) as run:
        return [one.to_dict() for one in run.findings().everything]


def verdict_of(found: Findings, known: Mapping[str, int | None], *, whole: bool = True) -> dict[str, Any]:
    """What the list says of a run.

    Args:
        found: All that was found in it.
        known: As :func:`numbers` gives it.
        whole: Whether everything could be looked for.

    Returns:
        ``worst``, as :func:`probe.views.panel.looking.told` gives it, None where nothing was found; ``alarms``, how
        many; ``all_alarms``, of each of the worst of them ``name``, ``attempt`` (in which it happened; None of what
        goes on from one attempt to the next), ``rank``, ``process`` and ``sentence``; ``whole``, whether there is
        nothing beside what is told; ``failed``, why nobody could look, else None; and ``known``.
    """
    said = told(found)
    alarms = [
        {
            **{name: shown["where"][name] for name in ("rank", "process")},
            "name": one.name,
            "attempt": one.where.attempt if one.name in FAILURES or one.where.step is not None else None,
            "sentence": shown["sentence"],
        }
        for one, shown in zip(found.alarms[:MOST_ALARMS], said, strict=False)  # alarms are told first
    ]
    return {
        "worst": said[0] if said else None,
        "alarms": len(found.alarms),
        "all_alarms": alarms,
        "whole": whole and len(alarms) == len(found.alarms),
        "failed": None,
        **NOTHING,
        **known,
    }


def _failed(path: str, error: Exception) -> dict[str, Any]:
    _log.debug("%s can't be looked at", path, exc_info=error)
    return unknown(error)


def numbers(run: Run) -> dict[str, int | None]:
    """The last step of a run, and its memory.

    Returns:
        ``last_step``; ``peak_bytes``, the largest of any rank in it; ``device_bytes``, how large that device is. None
        where it isn't known. And ``damaged``, how many files are left out because they can't be read.
    """
    row = run.sql(
        "select step as last_step, max(peak_allocated_bytes) as peak_bytes, max(device_total_bytes) as device_bytes "
        "from memory where step = (select max(step) from memory) group by step"
    )
    if row.empty:
        return {**NOTHING, "damaged": len(run.damaged)}
    known = {str(name): None if missing(value) else int(value) for name, value in row.iloc[0].items()}
    return known | {"damaged": len(run.damaged)}


def serve(looking: Looking, lines: Any, write: Callable[[str], object]) -> None:
    """Answer each of ``lines``."""
    for line in lines:
        write(json.dumps(looking.answer(json.loads(line)), default=str, allow_nan=False) + "\n")


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the Jupyter server
    if hasattr(os, "nice"):
        os.nice(5)
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as answers:
        os.dup2(2, 1)  # what anybody prints is no answer
        try:
            serve(Looking(), sys.stdin, answers.write)
        except BrokenPipeError:
            os._exit(0)  # nobody reads any more, and flushing what is left would fail again


if __name__ == "__main__":
    main()
