"""verl's ``file`` logger, ``{"step": n, "data": {…}}`` a line, and its rollout dumps, ``<step>.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from probe.records import Row
from probe.runs.foreign.rows import DumpedAnswer, Read, numbers, of_step, time_between

#: Texts of dumps are kept up to so many bytes together; answers behind that have none.
TEXTS: Final = 64 * 1024**2

_FIRST: Final = 1 << 20


def is_log(path: Path) -> bool:
    """Whether a file is one of verl's ``file`` logger.

    Args:
        path: Of a file.
    """
    told = _first(path)
    return told is not None and isinstance(told.get("step"), int) and isinstance(told.get("data"), dict)


def dumps_in(directory: Path) -> list[Path]:
    """The rollout dumps in a directory, by step; none where its first isn't one.

    Args:
        directory: Such as verl's ``trainer.rollout_data_dir``.
    """
    found = [one for one in directory.glob("*.jsonl") if one.stem.isdigit() and one.is_file()]
    found.sort(key=lambda one: int(one.stem))
    told = _first(found[0]) if found else None
    return found if told is not None and {"input", "output", "score"} <= told.keys() else []


def read_log(path: Path) -> Read:
    """The metrics of a log, and the steps where it tells their time.

    The log has no clock. Its last line is taken to be written when the file last changed, and the lines before it so
    much earlier as the steps between took.

    Args:
        path: Of the file.
    """
    lines = [(int(one["step"]), one["data"]) for one in _lines(path) if _is_line(one)]
    end = path.stat().st_mtime_ns
    ends: list[int] = []
    for _, values in reversed(lines):
        ends.append(end)
        took = time_between({str(key): float(one) for key, one in values.items() if isinstance(one, int | float)})
        end -= int(took * 1e9)
    rows: list[Row] = []
    for number, ((step, values), at) in enumerate(zip(lines, reversed(ends), strict=True)):
        rows += of_step(step, values, at, number)
    notes = ["The log has no clock: times are counted back from when the file last changed."]
    return Read("verl's file logger", rows, end, notes)


def read_dumps(paths: list[Path], read: Read) -> None:
    """Add the answers of rollout dumps, with the time of their step where it is known.

    Args:
        paths: Of :func:`dumps_in`.
        read: That gets them.
    """
    ends: dict[int, int] = {}
    for row in read.rows:
        if row.step is not None:
            ends[row.step] = max(row.time_ns, ends.get(row.step, 0))
    size = 0
    for path in paths:
        step = int(path.stem)
        at = ends.get(step) or path.stat().st_mtime_ns
        prompts: dict[str, int] = {}
        for number, one in enumerate(_lines(path)):
            text, answer = str(one.get("input", "")), str(one.get("output", ""))
            size += len(text) + len(answer)
            kept = size <= TEXTS
            truth = one.get("gts")
            read.rows.append(
                DumpedAnswer(
                    step=step,
                    time_ns=at,
                    row=number,
                    uid=str(one.get("uid") or ""),
                    prompt=prompts.setdefault(text, len(prompts)),
                    reward=numbers([one.get("score")])[0],
                    prompt_text=text if kept else "",
                    response_text=answer if kept else "",
                    ground_truth="" if truth is None else str(truth),
                )
            )
    read.own = (DumpedAnswer,)
    if size > TEXTS:
        read.notes.append(f"Texts of the dumps are kept up to {TEXTS // 1024**2} MiB; answers behind that have none.")
    read.rows.sort(key=lambda row: row.time_ns)


def _is_line(told: dict[str, Any]) -> bool:
    return isinstance(told.get("step"), int) and isinstance(told.get("data"), dict)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line; a torn last line, and what is none, is passed over."""
    with path.open("rb") as file:
        for line in file:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict):
                yield told


def _first(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            told = json.loads(file.readline(_FIRST))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None
