"""verl's ``file`` logger, ``{"step": n, "data": {…}}`` a line, and its rollout dumps, ``<step>.jsonl``."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from probe.records import Row
from probe.runs.foreign.json_stream import LARGEST, Object, lines
from probe.runs.foreign.rows import (
    LONGEST_NAME,
    TORN,
    VALUES_LEFT_OUT,
    DumpedAnswer,
    Read,
    counted_back,
    metrics,
    numbers,
    of_step,
    step_number,
    time_between,
    wall_clock,
)

#: Texts of dumps are kept up to so many bytes together; answers behind that have none.
TEXTS: Final = 64 * 1024**2

#: Bytes of a line that is looked at: of a log, and of a dump, which has a prompt and its answer.
_LOGGED: Final = LARGEST
_DUMPED: Final = 16 * LARGEST


def is_log(path: Path) -> bool:
    """Whether a file is one of verl's ``file`` logger.

    Args:
        path: Of a file.
    """
    told = _first(path, _LOGGED)
    return told is not None and _step_of(told) is not None


def dumps_in(directory: Path) -> list[Path]:
    """The rollout dumps in a directory, by step; none where its first isn't one.

    Args:
        directory: Such as verl's ``trainer.rollout_data_dir``.
    """
    found = [one for one in directory.glob("*.jsonl") if _step_dumped(one) is not None and one.is_file()]
    found.sort(key=lambda one: _step_dumped(one) or 0)
    told = _first(found[0], _DUMPED) if found else None
    return found if told is not None and {"input", "output", "score"} <= told.keys() else []


def read_log(path: Path) -> Read:
    """The metrics of a log, and the steps where it tells their time.

    The log has no clock. Its last line is taken to be written when the file last changed, and the lines before it so
    much earlier as the steps between took.

    Args:
        path: Of the file.
    """
    log = _Log(path)
    return Read("verl's file logger", begun_ns=log.begun_ns, notes=log.notes(), later=log.rows(), ends=log.ends)


class _Log:
    """What a first pass over a log tells of its lines; a second one makes the rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ends: dict[int, int] = {}  #: when each step was logged
        self._lines_left_out = self._values_left_out = 0
        self._is_torn = False
        back, steps = array("d"), array("q")
        for step, told in self._lines(first=True):
            back.append(time_between(metrics(told)))
            steps.append(step)
        self._times = counted_back(back, path.stat().st_mtime_ns)
        self.begun_ns = self._times[0]
        for step, at in zip(steps, self._times[1:], strict=True):
            self.ends[step] = max(at, self.ends.get(step, 0))

    def _lines(self, *, first: bool = False) -> Iterator[tuple[int, Object]]:
        """Step and metrics of each line that has them."""
        is_last_known = True
        for told in lines(self._path, _LOGGED):
            step = None if told is None else _step_of(told)
            is_last_known = told is not None
            if told is not None and step is not None:
                data: Object = told["data"]
                if first:
                    self._values_left_out += data.again + sum(value is not None for value in data.values())
                    self._values_left_out -= len(metrics(data))
                yield step, data
            elif first:
                self._lines_left_out += 1
        if first and not is_last_known and not _ends_a_line(self._path):
            self._is_torn = True
            self._lines_left_out -= 1

    def rows(self) -> Iterator[Row]:
        """The rows of all lines."""
        for number, (step, told) in enumerate(self._lines()):
            if number + 1 >= len(self._times):
                return  # the training has gone on since the first pass
            yield from of_step(step, told, self._times[number + 1], number)

    def notes(self) -> list[str]:
        """What isn't known, and what was left out."""
        told = ["The log has no clock: times are counted back from when the file last changed."]
        if self._is_torn:
            told.append(TORN)
        if self._lines_left_out:
            told.append(f"Lines without a step and its metrics were left out: {self._lines_left_out}.")
        if self._values_left_out:
            told.append(VALUES_LEFT_OUT.format(self._values_left_out))
        return told


def read_dumps(paths: list[Path], read: Read) -> None:
    """Add the answers of rollout dumps, with the time of their step where it is known.

    Args:
        paths: Of :func:`dumps_in`.
        read: That gets them.
    """
    size = left_out = 0
    for path in paths:
        step = _step_dumped(path)
        at = read.ends.get(step or 0) or wall_clock(path.stat().st_mtime_ns)
        prompts: dict[bytes, int] = {}
        for number, told in enumerate(lines(path, _DUMPED)):
            try:
                texts = [_text(told, key) for key in ("input", "output", "gts")] if told is not None else None
            except RecursionError:
                texts = None
            if told is None or texts is None:
                left_out += 1
                continue
            size += sum(map(len, texts))
            prompt, answer, truth = texts if size <= TEXTS else ("", "", "")
            read.rows.append(
                DumpedAnswer(
                    step=step,
                    time_ns=at,
                    row=number,
                    uid=_uid(told),
                    prompt=prompts.setdefault(_mark(texts[0]), len(prompts)),
                    reward=numbers([told.get("score")])[0],
                    prompt_text=prompt,
                    response_text=answer,
                    ground_truth=truth,
                )
            )
    if left_out:
        read.notes.append(f"Lines of the dumps that hold no answer were left out: {left_out}.")
    read.own = (DumpedAnswer,)
    if size > TEXTS:
        read.notes.append(f"Texts of the dumps are kept up to {TEXTS // 1024**2} MiB; answers behind that have none.")
    read.rows.sort(key=lambda row: row.time_ns)


def _step_of(told: Mapping[str, Any]) -> int | None:
    """The step of a line of a log; None where it has none, or no metrics."""
    return step_number(told.get("step")) if isinstance(told.get("data"), Object) else None


def _step_dumped(path: Path) -> int | None:
    """The step of a dump, by its name; None of another file."""
    name = path.stem
    return step_number(int(name)) if name.isascii() and name.isdigit() else None


def _text(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    return "" if value is None else str(value)


def _uid(told: Mapping[str, Any]) -> str:
    value = told.get("uid")
    return value[:LONGEST_NAME] if isinstance(value, str) else str(value) if isinstance(value, int) else ""


def _mark(text: str) -> bytes:
    """The same of equal texts."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _first(path: Path, longest: int) -> Object | None:
    try:
        return next(lines(path, longest), None)
    except OSError:
        return None
