"""What a copy says while it works: to the logger, and on standard error where its caller asked to see it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from probe.core.fs.store import Inventory

#: Where there is no terminal, as in a job's log, a line is written for each such part of the bytes.
_LINES: Final = 10

_log = logging.getLogger("probe.core.fs")


@dataclass(frozen=True)
class Teller:
    """Tells what happens to a copy.

    Args:
        verbose: Whether to show it on standard error, and to log it at INFO rather than at DEBUG.
    """

    verbose: bool = False

    def say(self, text: str, *values: object) -> None:
        """Log a message, as the logging module takes it."""
        _log.log(logging.INFO if self.verbose else logging.DEBUG, text, *values)

    def show(self, text: str) -> None:
        """Write a line to standard error, where that was asked for; it goes to the logger in any case."""
        self.say("%s", text)
        if self.verbose:
            _console().print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, found: Inventory) -> Iterator[Callable[[str, int], None]]:
        """While the block runs, a bar of the bytes that have come; in a file a line for every tenth of them.

        Args:
            found: What is copied.

        Yields:
            A function that is told a file's name and how many of its bytes have come; any thread may call it.
        """
        if not self.verbose:
            yield _nothing
            return
        from rich import progress

        shown = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=_console(),
            disable=not _console().is_terminal,
        )
        self.show(f"copying {found.shown}: {_files(len(found.files))}, {_amount(found.size_bytes)}")
        with shown:
            yield _Meter(shown, found).at


class _Meter:
    """Adds up what has come of all files, and moves the bar; without a terminal it writes lines."""

    def __init__(self, shown: Any, found: Inventory) -> None:
        self._shown, self._total = shown, found.size_bytes
        self._task = shown.add_task("", total=found.size_bytes or None)
        self._come: dict[str, int] = {}
        self._lines = 0
        self._lock = threading.Lock()

    def at(self, name: str, come_bytes: int) -> None:
        with self._lock:
            self._come[name] = max(come_bytes, self._come.get(name, 0))
            come = sum(self._come.values())
            self._shown.update(self._task, completed=come)
            tenth = come * _LINES // self._total if self._total else 0
            if not self._shown.disable or tenth <= self._lines:
                return
            self._lines = tenth
            text = f"{_amount(come)} of {_amount(self._total)} copied ({come / self._total:.0%})"
            _console().print(text, markup=False, highlight=False)


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _amount(number_of_bytes: int) -> str:
    from probe.text import size

    return size(number_of_bytes)


def _nothing(_name: str, _come_bytes: int) -> None:
    pass
