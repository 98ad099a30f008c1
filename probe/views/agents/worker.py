"""The process that works answers out: it is ended where one takes too long, and a new one takes its place."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.errors import InputError, ProbeError, RunNotFoundError
from probe.guard import Guard
from probe.views.agents.bounds import bounded
from probe.views.agents.marking import CAUTION, Foreign, marked

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

_log = logging.getLogger("probe.views.agents")

#: What every answer begins with.
HEAD: Final = {"caution": CAUTION}

#: Seconds until the process must have loaded what answers need.
_STARTS: Final = 120.0


class TimeLimitError(ProbeError):
    """An answer took longer than it may."""


class RefusedError(ProbeError):
    """A tool refused, or failed. Its text is the answer, see :func:`refusal`."""


def refusal(why: str, most_bytes: int) -> str:
    """An answer that says under ``error`` what is wrong, as JSON.

    Args:
        why: In words; one that is :class:`~probe.views.agents.marking.Foreign` may quote what a training wrote.
        most_bytes: That it may have.
    """
    return bounded(marked({"error": why}, own={"error"}), most_bytes, HEAD)


class Worker:
    """Answers one question after the other. It is safe to ask from several threads.

    Args:
        root: Below which runs are.
        seconds: That an answer may take.
        most_bytes: That it may have.
    """

    def __init__(self, root: str, *, seconds: float, most_bytes: int) -> None:
        self.root, self.seconds, self.most_bytes = root, seconds, most_bytes
        self._lock = threading.Lock()
        self._process: SpawnProcess | None = None
        self._here: Connection | None = None

    def ask(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The answer as JSON.

        Args:
            tool: Of :data:`probe.views.agents.answers.TOOLS`.
            arguments: Its own, without the root.

        Raises:
            TimeLimitError: It took too long.
            RefusedError: What the tool refuses, as JSON.
            ProbeError: The process ended, or didn't start.
        """
        with self._lock:
            try:
                here = self._started()
                here.send((tool, dict(arguments)))
                if not here.poll(self.seconds):
                    self.close()
                    raise TimeLimitError(f"{tool}: took longer than {self.seconds:g} s; ask for less")
                kind, told = here.recv()
            except (EOFError, OSError) as error:
                self.close()
                raise ProbeError(
                    f"{tool}: the process that answers has ended, perhaps because memory ran out"
                ) from error
        if kind == "answer":
            return str(told)
        raise RefusedError(told)

    def _started(self) -> Connection:
        if self._here is not None and self._process is not None and self._process.is_alive():
            return self._here
        self.close()
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(there, self.root, self.most_bytes), name="probe-mcp-worker", daemon=True
        )
        self._process.start()
        there.close()
        self._here = here
        if not here.poll(_STARTS):
            self.close()
            raise ProbeError(f"probe mcp: the process that answers didn't start within {_STARTS:g} s")
        here.recv()
        return here

    def close(self) -> None:
        """End the process. Safe to call twice."""
        process, here = self._process, self._here
        self._process = self._here = None
        if here is not None:
            here.close()
        if process is not None:
            process.kill()
            process.join()


def _end_with_the_server() -> None:
    """A question that takes for ever doesn't outlive a server that was killed."""
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(1)


def _serve(pipe: Connection, root: str, most_bytes: int) -> None:
    """Answer until the other end is closed. What is printed goes to standard error: the protocol has the output."""
    os.dup2(2, 1)
    threading.Thread(target=_end_with_the_server, name="probe-mcp-watch", daemon=True).start()
    for needed in ("duckdb", "pandas"):  # what answers need is loaded before time counts
        importlib.import_module(needed)
    from probe.views.agents.answers import TOOLS

    pipe.send("ready")
    while True:
        try:
            tool, arguments = pipe.recv()
        except EOFError:
            return
        reply(pipe, tool, TOOLS[tool], root, arguments, most_bytes)


def reply(
    pipe: Connection, tool: str, work: Callable[..., Any], root: str, arguments: Mapping[str, Any], most_bytes: int
) -> None:
    """Work out an answer and send it. An agent is told of a fault, too, and the next question is answered.

    Args:
        pipe: Takes ``("answer", JSON)`` or ``("error", JSON)``, which has what is wrong under ``error``.
        tool: Its name.
        work: What it does.
        root: Below which runs are.
        arguments: The tool's own.
        most_bytes: That the answer may have.
    """

    def answer() -> tuple[str, str]:
        try:
            return "answer", bounded(work(root, **arguments), most_bytes, HEAD)
        except (InputError, RunNotFoundError) as error:
            return "error", refusal(error.args[0] if error.args else "", most_bytes)
        except ProbeError as error:
            return "error", refusal(Foreign(error), most_bytes)

    def tell(_kind: str, _where: str, _message: str, error: BaseException | None, *_: object) -> None:
        pipe.send(("error", refusal(Foreign(f"{tool}: {type(error).__name__}: {error}"), most_bytes)))

    guard = Guard(tool, f"{tool} failed", kind="agents", tell=tell, most=None, log=_log, level=logging.DEBUG)
    told = guard.call(answer)
    if told is not None:
        pipe.send(told)
