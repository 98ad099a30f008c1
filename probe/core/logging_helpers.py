"""A line in the log with the time and the place it comes from."""

from __future__ import annotations

import logging
import sys
from datetime import datetime

_log = logging.getLogger(__name__)


def log_print(message: object) -> None:
    """Log ``[2026-01-31-23:59:00-actor.py:12:update]: <message>``, with the caller's file, line and function.

    It goes through :mod:`logging` at INFO, with the caller as its origin. Where nobody has set logging up, which
    would swallow the line, it goes to stderr; never to stdout, which may carry a program's result. What can't be
    written is dropped: a log line never stops a training.

    Args:
        message: Anything; it is shown by ``str``.
    """
    configured = _log.hasHandlers()
    if configured and not _log.isEnabledFor(logging.INFO):
        return
    caller = sys._getframe(1)
    file, line, function = caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name
    now = datetime.now().astimezone().strftime("%Y-%m-%d-%H:%M:%S")
    name = file.replace("\\", "/").rpartition("/")[2]
    text = f"[{now}-{name}:{line}:{function}]: {message}"
    if configured:
        _log.info("%s", text, stacklevel=2)
        return
    try:
        sys.stderr.write(f"{text}\n")
    except (AttributeError, OSError, ValueError):  # no stderr, a broken pipe, or a closed file
        return
