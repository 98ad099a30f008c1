"""The last edition of a run, made after its session has ended.

It takes some seconds of a processor, which the end of a training doesn't wait for: the publisher goes on alone, opens
the backends again when the session has let go of them, and gives them what is missing. From the moment that the session
ends until it is done the run directory says that it is due; where the publisher is killed before (a container or a job
that ends with the training takes all its processes along), ``probe doctor RUN --recover`` makes it. Where it is
likely to be killed the end of the session waits for it, but no longer than for all else at its end, unless the user
asks for that.

Nothing here loads pandas or plotly before an edition is made.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.errors import RunError
from probe.publishing.messages import Done, Message, Trouble
from probe.tracking.backends import backend_class
from probe.tracking.state import State, home_of, homes

if TYPE_CHECKING:
    from probe.publishing.editions import Editions

#: Under this name the run directory remembers what has been published.
STATE: Final = "publishing"

#: Under this name the folder of an attempt remembers that its last edition is due.
DUE: Final = "last_edition"

#: How long the end of the session's own tracking is waited for, seconds: a backend that hangs may hold it.
HELD_S: Final = 120.0

#: Seconds after which backends that don't answer are given up.
SEND_S: Final = 60.0

#: How long the last rows of other ranks are waited for, seconds.
SETTLE_S: Final = 2.0

#: Says whether the end of a session waits for the last edition: "wait" or "leave".
VARIABLE: Final = "PROBE_LAST_EDITION"

#: First processes of a system that goes on when a training has ended.
_SYSTEMS: Final = frozenset({"systemd", "init", "launchd"})


def waits(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the end of a session waits for the last edition, because what a process leaves behind may be killed here:
    it is in a container, which ends with its first process, or in a batch job of Slurm. :data:`VARIABLE` overrules it.

    >>> waits({"PROBE_LAST_EDITION": "wait"}), waits({"SLURM_JOB_ID": "1"}), waits({"PROBE_LAST_EDITION": "leave"})
    (True, True, False)
    """
    known = os.environ if environment is None else environment
    told = _told(known)
    if told in ("wait", "leave"):
        return told == "wait"
    return "SLURM_JOB_ID" in known or _first_process() not in _SYSTEMS


def has_to_be_there() -> bool:
    """Whether the user asks to wait as long as the last edition takes, and not only as long as the end may take."""
    return _told(os.environ) == "wait"


def _told(environment: Mapping[str, str]) -> str:
    return environment.get(VARIABLE, "").strip().lower()


def _first_process() -> str:
    try:
        return Path("/proc/1/comm").read_text().strip()
    except OSError:
        return "init"


def able(directory: Path, tracking: Any) -> bool:
    """Whether another process can open the backends of ``tracking`` again and add to the same run: their state stands
    in ``directory``, none is a class of the user's, which may be importable in the training's process alone, and none
    begins a new place for what comes later, as W&B's offline runs do.
    """
    home, attempt = getattr(tracking, "home", None), getattr(tracking, "attempt", 1)
    if home is None or Path(home) != home_of(directory.absolute(), attempt):
        return False
    return not any(re.search(r"[:.]", name) for name in tracking.logger) and all(
        backend_class(name).reopens for name in tracking.logger
    )


def announce(directory: Path, told: Mapping[str, Any], *, attempt: int, pid: int) -> bool:
    """Note that the last edition of an attempt is due.

    Args:
        directory: Of the run.
        told: What was published before: "steps" as [first, last] pairs and the "names" of their numbers, and "numbers"
            and "lengths" of other steps. "tracks" is the id of the process that did.
        attempt: Its number.
        pid: Of the process that makes it.

    Returns:
        False where the directory can't be written.
    """
    about = {"attempt": attempt, "pid": pid, "host": platform.node(), "since": time.time()}
    return State(home_of(directory, attempt), DUE).write({**told, **about})


def due(directory: Path) -> list[dict[str, Any]]:
    """What the run directory says of last editions that aren't made: what :func:`announce` noted of each attempt."""
    found = (State(home, DUE).read() for home in homes(directory).values())
    return [one for one in found if "attempt" in one]


def under_way(last: Mapping[str, Any]) -> bool:
    """Whether the process that one of :func:`due` names is there, as far as it can be seen from this host."""
    if last.get("host") != platform.node():
        return False
    try:
        command = Path(f"/proc/{int(last['pid'])}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError):
        return False
    return b"probe.publishing" in command


def make(directory: Path, *, timeout_s: float = SEND_S, held_s: float = HELD_S) -> list[str]:
    """Make the last editions that are due, and give them to the backends.

    Args:
        directory: Of the run.
        timeout_s: Seconds after which backends that don't answer are given up; what they lack stays in the directory.
        held_s: Seconds that are waited for a session that still has the backends.

    Returns:
        What couldn't be made, in words.

    Raises:
        RunError: The session still has the backends after ``held_s``.
        BackendError: A backend can't be used, other than that it isn't reachable.
    """
    directory = directory.absolute()
    return [trouble for one in due(directory) for trouble in _make(directory, one, timeout_s, held_s)]


def _make(directory: Path, told: Mapping[str, Any], timeout_s: float, held_s: float) -> list[str]:
    attempt = int(told["attempt"])
    home = home_of(directory, attempt)
    _wait_for(home, held_s)
    known = State(home, "run").read()
    messages = _edition(directory, told)
    done = [one for one in messages if isinstance(one, Done)]
    steps = done[-1].steps if done else []
    _deliver(directory, known, attempt, messages, steps[-1][1] if steps else 0, timeout_s)
    if attempt == max(homes(directory), default=1):
        names = {name for one in done for name in one.names}
        State(directory, STATE).write({"steps": steps, "names": sorted(names)})
    State(home, DUE).write({})
    return [f"{one.what} can't be made: {one.message}" for one in messages if isinstance(one, Trouble)]


def _deliver(
    directory: Path,
    known: Mapping[str, Any],
    attempt: int,
    messages: Sequence[Message],
    newest: int,
    timeout_s: float,
) -> None:
    """Give the backends of an attempt what was said, and its status anew; what they can't take now is kept."""
    from probe.publishing.delivery import hand_on
    from probe.tracking.tracking import Leftovers

    backends, code = known.get("backends"), known.get("exit_code")
    if not backends:
        return
    named: dict[str, Any] = {"directory": directory, "announce": False, "attempt": attempt}
    tracking = Leftovers(known["project"], known["experiment"], backends, **named)
    for message in messages:
        hand_on(tracking, message, newest)
    tracking.finish(1 if code is None else code, timeout_s=timeout_s)


def _wait_for(home: Path, held_s: float) -> None:
    from probe.tracking.journal import in_use

    patience = time.monotonic() + held_s
    while in_use(home):
        if time.monotonic() > patience:
            raise RunError(f"run {str(home)!r}: its session still uses the backends after {held_s:g} s")
        time.sleep(0.1)


def _edition(directory: Path, told: Mapping[str, Any]) -> list[Message]:
    messages: list[Message] = []
    later = max(homes(directory), default=1) > told["attempt"]
    partly = (told.get("numbers", ()), told.get("lengths", ()))
    options: dict[str, Any] = {"pid": told.get("tracks"), "attempt": told["attempt"] if later else None}
    editions = opened(directory, messages.append, said=told, partly=partly, **options)
    patience = time.monotonic() + SETTLE_S
    while not editions.settled() and time.monotonic() < patience:
        time.sleep(0.1)
    editions.numbers(final=True)
    editions.pictures(final=True)
    return messages


def opened(
    directory: Path,
    say: Callable[[Message], None],
    *,
    pid: int | None,
    said: Mapping[str, Any] | None = None,
    partly: tuple[Iterable[int], Iterable[Sequence[Any]]] = ((), ()),
    attempt: int | None = None,
) -> Editions:
    """The editions of the run in ``directory``.

    Args:
        directory: Of the run.
        say: Is called with each message.
        pid: Of the process that tracks, on this host.
        said: "steps" and "names", as :class:`~probe.publishing.editions.Editions` takes them; None where the run
            directory says it.
        partly: As there.
        attempt: The one that is shown; None is what the newest has not hidden of each.
    """
    from probe.publishing.editions import Editions  # pandas and plotly
    from probe.runs.reader import Run

    known = State(directory, STATE).read() if said is None else said
    told: dict[str, Any] = {"pid": pid, "host": platform.node(), "folder": Path.cwd()}
    told |= {"said": known.get("steps", ()), "names": known.get("names", ())}
    return Editions(Run(directory, attempt), say, partly=partly, **told)
