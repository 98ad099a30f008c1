"""The Jupyter server's side of the process that reads runs: begins it, asks it, and ends it when nobody asks any more.

Only bytes are passed on here; no answer is parsed, so that the server's event loop is never held.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from probe._io import child_environment
from probe.errors import RunError

#: Seconds without a view, or a question, after which the process ends, where this variable doesn't say otherwise.
IDLE_S: Final = 30.0
IDLE_VARIABLE: Final = "PROBE_JUPYTER_IDLE_S"

#: Seconds for the process to begin.
BEGIN_S: Final = 60.0

#: The environment of that process, and of those that it begins: nothing is recorded or kept, and memory is asked for
#: as sparingly as it can be. DuckDB takes this much for a question (and more for one that can't do with it), and the
#: allocators keep no room for each thread.
SMALL: Final = {
    "PROBE": "off",
    "PROBE_KEEP_ANSWERS": "0",
    "PROBE_SQL_MEMORY": "70MB",
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

_CHUNK: Final = 64 * 1024


class Beside:
    """The process that reads runs.

    Args:
        roots: Directories below which runs are.
        idle_s: Seconds without a question after which it ends; None asks the environment.

    Attributes:
        pid: Of the process; None while there is none.
    """

    def __init__(self, roots: Sequence[str], idle_s: float | None = None) -> None:
        self._roots = list(roots)
        self._idle_s = float(os.environ.get(IDLE_VARIABLE) or IDLE_S) if idle_s is None else idle_s
        self._token = secrets.token_urlsafe(32)
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self._open = 0
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    @contextlib.asynccontextmanager
    async def ask(self, question: Mapping[str, Any]) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Ask something.

        Args:
            question: As :mod:`probe.jupyter.reading` describes it, without the token.

        Yields:
            The status, as of HTTP, and the pieces of the answer.

        Raises:
            RunError: The process can't be begun, or ends before it answers.
        """
        self._open += 1
        self._put_off()
        writer = None
        try:
            line, head = json.dumps({**question, "token": self._token}).encode() + b"\n", b""
            while not head:
                known = self._roots
                reader, writer = await self._connected()
                head = await _answer(reader, writer, line)
                if not head and known is self._roots:
                    raise RunError("the process that reads runs has ended; try again")
                if not head:  # it was ended, since it knew other directories
                    writer.close()
            yield json.loads(head)["status"], _pieces(reader)
        except ConnectionError as error:
            raise RunError(f"the process that reads runs has ended: {error}; try again") from error
        finally:
            self._open -= 1
            self._put_off()
            if writer is not None:
                writer.close()

    def set_roots(self, roots: Sequence[str]) -> None:
        """From now on these directories; a process that knows others is ended."""
        if list(roots) != self._roots:
            self._roots = list(roots)
            self.stop()

    def stop(self) -> None:
        """End the process, if there is one. It ends by itself, too, when this one does."""
        process, self._process = self._process, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.close()

    # ------------------------------------------------------------------------------------------------- inside

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for again in (True, False):
            await self._begun()
            try:
                return await asyncio.open_connection("127.0.0.1", self._port)
            except ConnectionError:
                if not again:
                    raise
                self.stop()  # it is ending, or was killed: another one
        raise AssertionError  # not reached

    async def _begun(self) -> None:
        async with self._lock:
            if self.pid is not None:
                return
            while (process := await self._new()) is None:
                pass  # the directories changed meanwhile, and it knows others
            self._process = process

    async def _new(self) -> asyncio.subprocess.Process | None:
        """A process that knows the directories of now; None where they changed while it began."""
        roots = self._roots
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "probe.jupyter.reading",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(os.environ) | SMALL,
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise RunError("the process that reads runs has no stdin or stdout")
        told = json.dumps({"token": self._token, "roots": roots})
        process.stdin.write(told.encode() + b"\n")
        try:
            line = await asyncio.wait_for(process.stdout.readline(), BEGIN_S)
            self._port = int(json.loads(line)["port"])
        except (TimeoutError, ValueError, KeyError) as error:
            process.kill()
            raise RunError(f"the process that reads runs didn't start: {error!r}; try again") from error
        if roots is self._roots:
            return process
        process.stdin.close()
        return None

    def _put_off(self) -> None:
        """The end comes when nobody has asked for a while."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._open:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.stop)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> bytes:
    """The first line of what is answered; empty where the process has ended."""
    with contextlib.suppress(ConnectionError):
        writer.write(line)
        await writer.drain()
        return await reader.readline()
    return b""


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(_CHUNK):
        yield piece
