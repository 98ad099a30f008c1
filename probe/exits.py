"""How a process ends, and what is done before it has: for ``with``, ``close()``, the interpreter's end and signals.

The interpreter tells nobody with which code it ends. What can be known is put together here, and in no other place: the
exception that is on its way, what ``sys.exit`` was told, what nobody caught.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

#: What a shell says of a process that Ctrl-C has ended.
CTRL_C: Final = 130

_said: int | None = None  # by sys.exit in the main thread, unless the process went on
_watched: tuple[Callable[..., Any], Callable[..., Any]] | None = None  # sys.exit as we have made it, and as it was
_watching: set[int] = set()  # who wants to know


def code_of(error: BaseException | None) -> int:
    """What a process that ends with ``error`` ends with: Ctrl-C is 130, as for a shell.

    >>> [code_of(one) for one in (None, ValueError(), KeyboardInterrupt(), SystemExit(), SystemExit(3))]
    [0, 1, 130, 0, 3]
    """
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return CTRL_C
    return 0 if error is None else 1


def code() -> int:
    """What this process ends with if it ends now, as far as that can be known; 0 where nothing is wrong.

    In this order: the exception that :func:`on_its_way` knows of, and what ``sys.exit`` was told.
    """
    error = on_its_way()
    if error is not None:
        return code_of(error)
    return 0 if _said is None or _interactive() else _said


def on_its_way() -> BaseException | None:
    """The exception that ends this process, as far as that can be known.

    It is one that is being handled (``close()`` in a ``finally``, the end of a child of multiprocessing; nothing tells
    whether an ``except`` around it goes on), or one that nobody caught.
    """
    error = sys.exc_info()[1]
    if error is None and not _interactive():
        error = getattr(sys, "last_value", None)
    return error


def went_on() -> None:
    """Something was observed: whatever ``sys.exit`` was told before, somebody caught it."""
    global _said
    _said = None


def at_end(function: Callable[[], Any]) -> Callable[[], None]:
    """Call ``function`` when this process ends, also one of multiprocessing's that is forked and ends without atexit.

    The latest is called first. What ``sys.exit`` is told is known from now on.

    Args:
        function: Without arguments; called at least once, and perhaps twice.

    Returns:
        Takes it back.
    """
    atexit.register(function)
    finalizer = _of_child(function)
    who = id(finalizer) if finalizer is not None else id(function)
    _watch(who)

    def forget() -> None:
        atexit.unregister(function)
        if finalizer is not None:
            finalizer.cancel()
        _leave(who)

    return forget


def _of_child(function: Callable[[], Any]) -> Any:
    """multiprocessing's own way, in a process that it has begun; None elsewhere. What ``datasets`` takes is a copy."""
    for name in ("multiprocessing", "multiprocess"):
        processes: Any = sys.modules.get(f"{name}.process")
        if processes is not None and processes.parent_process() is not None:
            return importlib.import_module(f"{name}.util").Finalize(None, function, exitpriority=0)
    return None


def _interactive() -> bool:
    """Whether what nobody caught was of a cell or a line, after which the next one comes."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")


def _watch(who: int) -> None:
    global _watched
    _watching.add(who)
    if _watched is not None:
        return
    before = sys.exit

    @functools.wraps(before)
    def exit(status: Any = None, /) -> Any:
        global _said
        if threading.current_thread() is threading.main_thread():
            _said = code_of(SystemExit(status))
        return before(status)

    _watched = exit, before
    sys.exit = exit


def _leave(who: int) -> None:
    global _watched
    _watching.discard(who)
    if _watched is not None and not _watching:
        ours, before = _watched
        _watched = None
        if sys.exit is ours:  # else somebody has come after us, and calls us
            sys.exit = before


def _stay_interrupted() -> None:
    """After a Ctrl-C that nobody caught the interpreter ends by that signal, which shells and launchers go by, unless
    code was run from text meanwhile: each import of a dataclass or named tuple does that. It is told again.
    """
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not _interactive():
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102  (a constant)


# It was registered first, and is called after what comes with trackers that are imported later.
atexit.register(_stay_interrupted)
