"""Memory in the log: ``GPUMemoryLogger`` and ``log_gpu_memory_usage``, with the documented lines.

Built on :class:`probe.hooks.watch`, so that a decorated function also is a scope with a role, and a session
records it. Without an accelerator the lines tell the process's resident set, and say so.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from types import TracebackType
from typing import Any, Final

from probe.devices import Counters, Device, detect
from probe.guard import attempt
from probe.hooks import scope, watch

_log = logging.getLogger(__name__)

_GB: Final = 1024**3


class GPUMemoryLogger(watch):
    """Log the memory before and after each call: ``"Before <name>, memory allocated (GB): …"``.

    Works on functions, methods, coroutines and generators, and as a context manager. When the function
    raises, the line after it is logged all the same. Unless ``logger`` is enabled for ``level`` nothing is
    read.

    Args:
        role: Who works, such as ``"actor"``: it stands before each line, and is the role of the scope.
        logger: None is the logger ``"probe.core.memory_logger"``.
        level: Level of the lines, DEBUG by default.
        log_only_rank_0: Other ranks stay silent; the rank is asked for at each call, so that decorating before
            ``init_process_group`` is fine.

    >>> @GPUMemoryLogger(role="actor")
    ... def update_actor(batch): return len(batch)
    >>> update_actor([1, 2]), update_actor.__name__
    (2, 'update_actor')
    """

    def __init__(
        self,
        role: str | None = None,
        logger: logging.Logger | None = None,
        level: int = logging.DEBUG,
        log_only_rank_0: bool = True,
    ) -> None:
        super().__init__(role)
        self.logger = _log if logger is None else logger
        self.level = level
        self.log_only_rank_0 = log_only_rank_0

    def _scope(self, name: str) -> scope:
        return _LoggedScope(super()._scope(name), self)

    def _tell(self, head: str) -> None:
        if not self.logger.isEnabledFor(self.level) or (self.log_only_rank_0 and _rank() != 0):
            return
        prefix = f"[{self.role}] " if self.role else ""
        _write(self.logger, self.level, f"{prefix}{head}")


class _LoggedScope(scope):
    """A scope that has a line logged before and after it."""

    __slots__ = ("_memory_logger",)

    def __init__(self, like: scope, memory_logger: GPUMemoryLogger) -> None:
        step, role, phase, micro_batch = like._changes
        super().__init__(
            like.kind, like.name, step=step, role=role, phase=phase, micro_batch=micro_batch, **like.values
        )
        self._memory_logger = memory_logger

    def __enter__(self) -> scope:
        self._memory_logger._tell(f"Before {self.name}")
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._memory_logger._tell(f"After {self.name}")


def log_gpu_memory_usage(
    head: str, logger: logging.Logger | None = None, level: int = logging.DEBUG, rank: int | None = 0
) -> None:
    """Log one line: ``"<head>, memory allocated (GB): …"``.

    Args:
        head: What the line begins with.
        logger: None is the logger ``"probe.core.memory_logger"``.
        level: Level of the line, as in ``logging``.
        rank: Which rank writes it; None is all of them.
    """
    logger = _log if logger is None else logger
    if logger.isEnabledFor(level) and (rank is None or _rank() == rank):
        _write(logger, level, head)


def _write(logger: logging.Logger, level: int, head: str) -> None:
    def unknown(error: Exception) -> None:
        """A device in an error state must not hide the trainer's own exception."""
        logger.log(level, "%s, memory unknown", head, exc_info=error)

    text = attempt(lambda: _text(_device()), unknown)
    if text is not None:
        logger.log(level, "%s, %s", head, text)


def _text(device: Device) -> str:
    device.bind()
    counters = device.read(whole=True)
    if device.source == "process_rss":
        return _text_of_process(counters)
    return (
        f"memory allocated (GB): {_gb(counters.allocated_bytes)}, "
        f"memory reserved (GB): {_gb(counters.reserved_bytes)}, "
        f"device memory used/total (GB): {_gb(counters.used_bytes)}/{_gb(counters.total_bytes)}, "
        f"peak memory allocated (GB): {_gb(counters.peak_allocated_bytes)}"
    )


def _text_of_process(counters: Counters) -> str:
    return (
        f"process RSS (GB): {_gb(counters.allocated_bytes)}, "
        f"machine memory used/total (GB): {_gb(counters.used_bytes)}/{_gb(counters.total_bytes)}, "
        f"peak RSS (GB): {_gb(counters.peak_allocated_bytes)}"
    )


def _gb(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / _GB:.2f}"


@functools.cache
def _device() -> Device:
    return detect()


def _rank() -> int:
    """Of this process: torch.distributed's, else the environment's, else 0."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() else 0
