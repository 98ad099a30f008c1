"""Training beside the notebook: ``probe.run(train)`` runs a function in a thread, and cells stay free meanwhile.

While a cell runs, a notebook's kernel answers nothing: no callback of a widget, and no page that is loaded again. A
training that runs in a thread leaves the kernel free for both.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import html
import inspect
import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

from probe.errors import InputTypeError

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("probe.notebook.training")


class Training(Generic[R]):
    """A function that runs in a thread of its own. Made by :func:`run`.

    Args:
        name: The function's name.
        call: The function with its arguments.

    Attributes:
        name: The function's name.
        error: What it raised, None so far.
    """

    def __init__(self, name: str, call: Callable[[], R]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._call = call
        self._result: list[R] = []
        self._began = time.monotonic()
        self._took_s: float | None = None
        # A daemon: the end of the kernel doesn't wait for a training that nobody sees any more.
        self._thread = threading.Thread(target=self._run, name=f"training {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # Ctrl-C of interrupt() too: it is kept, shown, and raised by result()
            self.error = error
            _log.error("%s failed in its thread", self.name, exc_info=error)
        finally:
            self._took_s = time.monotonic() - self._began

    @property
    def done(self) -> bool:
        """Whether it has ended, well or with an error."""
        return self._took_s is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the function's end, at most ``timeout_s`` seconds. Returns :attr:`done`."""
        self._thread.join(timeout_s)
        return self.done

    def result(self, timeout_s: float | None = None) -> R:
        """What the function returned, once it has.

        Raises:
            TimeoutError: It runs on after ``timeout_s``. What the function raised is raised here as it is.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"{self.name} is still running after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self._result[0]

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in its thread, as the stop button does in a cell; the button itself doesn't reach it.

        It arrives when the thread next runs Python, so a long call into C ends first. Returns False where the training
        has ended already.
        """
        ident = self._thread.ident
        if self.done or ident is None:
            return False
        thread, error = ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt)
        raised: int = ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
        return raised == 1

    def _state(self) -> str:
        seconds = self._took_s if self._took_s is not None else time.monotonic() - self._began
        if not self.done:
            return f"running for {seconds:.0f} s"
        if self.error is not None:
            return f"failed after {seconds:.1f} s: {type(self.error).__name__}: {self.error}"
        return f"done in {seconds:.1f} s"

    def __repr__(self) -> str:
        return f"Training({self.name}: {self._state()})"

    def _repr_html_(self) -> str:
        """The same, with the traceback folded away."""
        line = f"<b>{html.escape(self.name)}</b>: {html.escape(self._state())}"
        if self.error is None:
            return f"<div>{line}</div>"
        trace = html.escape("".join(traceback.format_exception(self.error)))
        return f"<details><summary>{line}</summary><pre>{trace}</pre></details>"


def run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Training[R]:
    """Call ``function(*args, **kwargs)`` in a thread and return at once.

    The thread is in the scope that the caller is in. Keep the rules of threads in mind: a training loop and later
    cells must not change the same things at once.

    Args:
        function: What is to run. What it returns is awaited, where that can be, in an event loop of the thread's own.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.

    Raises:
        InputTypeError: ``function`` can't be called.

    >>> run(sum, [1, 2, 3]).result()
    6
    """
    if not callable(function):
        raise InputTypeError(f"function: got {type(function).__name__}, expected a callable")
    context = contextvars.copy_context()
    name = getattr(function, "__qualname__", type(function).__name__)
    return Training(name, lambda: context.run(_called, function, args, kwargs))


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    result = function(*args, **kwargs)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[R]) -> R:
    return await result
