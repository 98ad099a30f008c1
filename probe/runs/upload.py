"""The session's side of ``probe.start(upload=…)``: a process beside the training that copies the run to a store.

Nothing here waits for the store while training goes on, or raises into it. The process stays when the training is
killed, sends what is there, and ends. Of several sessions of a machine that want the same copy one starts it, and when
it has gone another.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from probe import _signals
from probe._io import child_environment, expanded
from probe.errors import InputError, InputTypeError
from probe.guard import Guard, on_error, raised_as
from probe.hooks import silenced
from probe.records import Incident
from probe.redaction import without_secrets
from probe.runs.copiers import Copiers

_log = logging.getLogger("probe.runs")

#: Where the copy is to be, for sessions whose ``upload`` nobody gives, such as those that begin automatically.
UPLOAD_VARIABLE: Final = "PROBE_UPLOAD"

#: Seconds between two looks at the run. What came since is one object in the store for each process that writes.
EVERY_S: Final = 10.0

#: How often a session looks whether the process that another one has started is gone, seconds; at its end more often.
LOOK_S: Final = 1.0
LAST_LOOK_S: Final = 0.1

#: How long the end of a session waits for the last rows to arrive, seconds. The process goes on by itself after that.
CLOSE_S: Final = 20.0


class Order(msgspec.Struct):
    """What the process is asked to do: the first line that it reads. A URL may hold a secret, and command lines are
    seen by everybody on a machine.
    """

    directory: str
    url: str
    every_s: float
    parent: int
    lock: int = -1  #: descriptor of the machine's lock, which it is handed over; -1 where descriptors can't be


class Said(msgspec.Struct):
    """One line of what the process says."""

    pid: int = 0  #: the process, which begins with that
    message: str = ""  #: what went wrong; "" where it goes well again
    complete: bool = False  #: everything has arrived, and the session needs to wait no longer
    another: bool = False  #: another process of this machine copies, and this one ends


class Upload:
    """The process that copies the run in ``directory`` to ``url``, and the thread that listens to it.

    Where another session of this machine has started one, there is none here, and the thread looks whether it is gone.

    It is nobody's child: Ray, for one, kills the children of an actor that ends, and what the actor has recorded last
    is to be sent all the same.

    Args:
        directory: The run directory.
        url: Where the copy is to be.
        report: Is told of trouble, from the listening thread too.
        every_s: Seconds between two passes.

    Attributes:
        url: Where the copy is to be.
        shown: The URL without its secrets.
        pid: The process that this session has started, 0 where there is none and before it has said so.

    Raises:
        OSError: No process can be started, or the run directory can't be written to.
    """

    def __init__(self, directory: Path, url: str, report: Callable[[Incident], None], *, every_s: float) -> None:
        self.url = url
        self.shown = str(without_secrets(url, True))
        self.pid = 0
        self._directory = directory
        self._every_s = every_s
        self._report = report
        self._pid = os.getpid()
        self._complete = self._failing = False
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._copiers = Copiers(directory, url)
        self._using = self._copiers.use()
        failed = "a message of the upload's process can't be read"
        self._guard = Guard(self.shown, failed, kind="upload", tell=self._incident, most=None, log=_log)
        with on_error(lambda _: self._using.release()):
            self._begin()
        self._thread = threading.Thread(target=self._serve, name="probe-upload", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float | None = None) -> bool:
        """Let the process send what is there; the one that this session has started ends, too.

        Args:
            timeout_s: How long this waits; None is :data:`CLOSE_S`. After it the process goes on by itself.

        Returns:
            Whether everything has arrived.
        """
        if os.getpid() != self._pid or self._ended.is_set():  # in a fork of the training the process isn't its child
            return self._complete
        self._ended.set()
        self._using.release()
        self._close_order()
        self._thread.join(CLOSE_S if timeout_s is None else timeout_s)
        if self._thread.is_alive():
            _log.warning("upload: %s doesn't have all rows yet; a process goes on to send them", self.shown)
        elif not self._complete:
            _log.warning("upload: %s doesn't have all rows; `probe sync` sends what is missing", self.shown)
        return self._complete

    def _begin(self) -> bool:
        """Start the process, unless one of this machine copies: it is handed the lock that says so."""
        lock = self._copiers.machine_lock()
        if not lock.acquire():
            return False
        handed = [] if os.name == "nt" or lock.descriptor is None else [lock.descriptor]
        order = Order(str(self._directory), self.url, self._every_s, self._pid)
        with on_error(lambda _: lock.release()), _signals.kept_back():
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "probe.runs.upload_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(os.environ),
                start_new_session=True,  # Ctrl-C is for the training
                pass_fds=handed,
            )
        if handed:
            order.lock = handed[0] or -1
            lock.forget()
        else:
            lock.release()
        self._process = process
        self._write(msgspec.json.encode(order) + b"\n")
        if self._ended.is_set():
            self._close_order()
        return True

    def _write(self, data: bytes) -> None:
        pipe = None if self._process is None else self._process.stdin
        try:
            if pipe is not None:
                pipe.write(data)
                pipe.flush()
        except OSError:  # it is dead already, which the listening thread sees
            _log.debug("the upload's process was gone before it was told what to do")

    def _close_order(self) -> None:
        """The process, where there is one, learns by it that the session has ended."""
        process = self._process
        if process is not None:
            self._close(process.stdin)

    def _close(self, pipe: Any) -> None:
        try:
            pipe.close()
        except OSError:  # what was written to a dead process can't be flushed
            _log.debug("the upload's process had ended before")

    # --------------------------------------------------------------------------------------- the listening thread

    def _serve(self) -> None:
        with silenced():
            try:
                while self._process is not None or self._wait_for_turn():
                    if not self._listen():
                        break
            except OSError as error:  # no process can be started, or the run directory is gone
                self._tell(f"the upload's process can't be started: {error}")
            finally:
                self._using.release()  # nobody here would take over

    def _wait_for_turn(self) -> bool:
        """Whether the process was started, since no other of this machine is there any more; at the session's end also
        False, as soon as another one has begun and completed a pass, which has sent our rows, too.
        """
        while not self._ended.wait(LOOK_S):
            if self._begin():
                return True
        before = self._copiers.passes().begun
        while not self._begin():
            if self._copiers.passes().completed > before:
                self._complete = True
                return False
            time.sleep(LAST_LOOK_S)
        return True

    def _listen(self) -> bool:
        """Hear the process until it has nothing more to say.

        Returns:
            Whether it has left the work to another one, so that this session waits for its turn again.
        """
        process, another = self._process, False
        if process is None:
            return True
        pipe = process.stdout
        process.wait()  # it begins the one that copies, and ends
        for line in iter(pipe.readline, b"") if pipe is not None else ():
            with self._guard:  # whatever comes, the next line is read
                said = msgspec.json.decode(line, type=Said)
                another = said.another
                self._hear(said)
        self._close(pipe)
        if another:
            self._close_order()
            self._process, self.pid = None, 0
        elif not self._ended.is_set():
            self._tell("the upload's process has ended; `probe sync` sends what is missing")
        return another

    def _hear(self, said: Said) -> None:
        if said.pid:
            self.pid = said.pid
            return
        if said.another:
            return
        self._complete = said.complete
        if said.message and not self._failing:
            self._tell(f"rows can't be sent now and will be sent later: {said.message}")
        elif not said.message and self._failing:
            _log.warning("upload: %s takes rows again", self.shown)
        self._failing = bool(said.message)

    def _incident(
        self, kind: str, where: str, message: str, error: BaseException | None, count: int, off: bool
    ) -> None:
        del error, count, off  # each is told for itself, and has been logged
        self._report(Incident(kind=kind, where=where, message=message))

    def _tell(self, message: str) -> None:
        _log.warning("upload: %s", message)
        self._report(Incident(kind="upload", where=self.shown, message=message))


def checked(url: Any) -> str | None:
    """The argument ``upload`` of ``probe.start``.

    Raises:
        InputTypeError: It is no text and no path.
        InputError: It is no place that can be opened, or the package for this kind of URL isn't installed.
    """
    if url is None:
        return None
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise InputTypeError(f"upload: got {url!r}, expected a URL such as 's3://bucket/runs/project/experiment'")
    text = os.fspath(url)
    protocol = text.partition("://")[0] if "://" in text else "file"
    import fsspec

    shown = without_secrets(text, True)
    with raised_as(lambda error: InputError(f"upload: {shown!r} can't be opened: {error}"), but=(), chained=False):
        fsspec.get_filesystem_class(protocol)  # an unknown kind, or a client that isn't installed
    return str(expanded("upload", text).absolute()) if protocol == "file" and "://" not in text else text


def from_environment() -> tuple[str | None, str]:
    """Where the environment (:data:`UPLOAD_VARIABLE`) asks for a copy. A job isn't ended for a variable that is wrong.

    Returns:
        The URL, None where there is none that can be used, and why it can't; "" otherwise.
    """
    try:
        return checked(os.environ.get(UPLOAD_VARIABLE) or None), ""
    except InputError as error:
        why = f"{UPLOAD_VARIABLE}: no copy is made of this run: {str(error).removeprefix('upload: ')}"
        _log.warning("%s", why)
        return None, why
