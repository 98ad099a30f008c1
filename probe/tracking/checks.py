"""What will go wrong with tracking, found before it does: for ``probe doctor`` and the start of a session.

Every function looks and returns findings; none sends, creates or changes anything.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from probe.errors import BackendError, UnknownNameError
from probe.guard import attempt
from probe.records import Incident
from probe.text import size
from probe.tracking.backends import backend_class, load_backend
from probe.tracking.backends.file import METRICS
from probe.tracking.journal import records_in, unsent
from probe.tracking.names import NameMap
from probe.tracking.reach import unwritable
from probe.tracking.stream import MANY_NAMES

#: Less room than this on the run's disk is told, bytes.
LITTLE_ROOM: Final = 256 * 2**20


@dataclass(frozen=True)
class Finding:
    """Something that's wrong.

    Attributes:
        level: "error" where values will be missing or the start fails, "warning" where they arrive but otherwise than
            one thinks.
        where: A backend's name, or "tracking".
        check: One of "backend", "reachable", "writable", "room", "unsent", "name", "names" and "step".
        message: What was found, and what helps.
    """

    level: Literal["error", "warning"]
    where: str
    check: str
    message: str


def check_tracking(
    backends: Sequence[str],
    *,
    directory: Path | None = None,
    logged: Iterable[tuple[str, int]] = (),
) -> list[Finding]:
    """All checks.

    Args:
        backends: Names, or dotted paths, as given to ``Tracking``.
        directory: The directory of the run.
        logged: Pairs of name and step of values in the order in which they are or were logged. Where none are given,
            those that tracking itself has left in ``directory`` (:func:`logged_in`).
    """
    logged = list(logged)
    findings = [] if directory is None else check_directory(directory)
    if directory is not None and not logged:
        logged = logged_in(directory)
    names = list(dict.fromkeys(name for name, _ in logged))
    for backend in backends:
        found = check_backend(backend, directory=directory)
        findings += found
        if not any(one.check == "backend" for one in found):
            findings += check_names(names, backend)
    return findings + check_count(names) + check_steps(logged)


def start_checks(backends: Sequence[str] | None, directory: Path | None) -> list[Incident]:
    """What is to be told when a run starts; asks no network, as opening a backend has shown whether it's there.

    Args:
        backends: Names that aren't opened yet; None where they are: ``Tracking`` has opened them and calls this itself.
        directory: The run directory; None where there is none.
    """
    findings = [] if directory is None else [one for one in check_directory(directory) if one.check != "unsent"]
    for name in backends or ():
        try:
            load_backend(name)
        except (UnknownNameError, BackendError) as error:
            findings.append(Finding("error", name, "backend", str(error)))
    return [Incident(kind="backend", where=one.where, message=one.message) for one in findings]


def logged_in(directory: Path) -> list[tuple[str, int]]:
    """(name, step) of values that the journal still holds, or that the backend "file" has written, in their order."""
    found = [(name, record.step) for record in records_in(directory) for name in record.values]
    return found or [(name, step) for line in _lines(directory / METRICS) for name, step in _values(line)]


def _lines(path: Path) -> Iterator[bytes]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        yield from file


def _values(line: bytes) -> list[tuple[str, int]]:
    try:
        found = json.loads(line)
        return [(str(name), int(found["step"])) for name in found["data"]]
    except (ValueError, KeyError, TypeError):  # half a line
        return []


def check_backend(name: str, *, directory: Path | None = None) -> list[Finding]:
    """Whether a backend exists, has its package, and can be reached or written."""
    try:
        backend = backend_class(name)
    except (UnknownNameError, BackendError) as error:
        return [Finding("error", name, "backend", str(error))]
    # It may refuse a setting, or be a user's own.
    check, why = attempt(lambda: backend.reach(directory), lambda error: ("backend", str(error) or repr(error)))
    return [Finding("error", name, check, why)] if why else []


def check_directory(directory: Path) -> list[Finding]:
    """Whether a run's directory can keep what waits, and whether something waits in it."""
    findings: list[Finding] = []
    why = unwritable(directory)
    if why:
        message = f"{why}; what a backend misses would wait in memory only"
        return [Finding("error", "tracking", "writable", message)]
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < LITTLE_ROOM:
        findings.append(Finding("warning", "tracking", "room", f"{there}: only {size(free)} is free"))
    for name, count in unsent(directory).items():
        message = f"{count} calls wait in {directory}; the next start there with this backend sends them"
        findings.append(Finding("warning", name, "unsent", message))
    return findings


def check_names(names: Iterable[str], backend: str) -> list[Finding]:
    """Names that a backend can't take as they are, and those that collide with others there.

    >>> for finding in check_names(["loss", "loss/actor", "clip%"], "mlflow"):
    ...     print(finding.message)
    'loss/actor' would be 'loss_2/actor' there, as 'loss/actor' collides with another name
    'clip%' would be 'clip_pct' there
    """
    there = backend_class(backend)
    collided: list[tuple[str, str]] = []
    known = NameMap(there.clean, lambda name, wanted, _: collided.append((name, wanted)), directories=there.directories)
    findings: list[Finding] = []
    for name in dict.fromkeys(names):
        mapped = known(name)
        if collided:
            message = f"{name!r} would be {mapped!r} there, as {collided.pop()[1]!r} collides with another name"
            findings.append(Finding("warning", backend, "name", message))
        elif mapped != name:
            findings.append(Finding("warning", backend, "name", f"{name!r} would be {mapped!r} there"))
    return findings


def check_count(names: Iterable[str]) -> list[Finding]:
    """Too many distinct names; the message shows the kind that there is most of."""
    distinct = set(names)
    if len(distinct) <= MANY_NAMES:
        return []
    kinds: dict[str, int] = {}
    for name in distinct:
        kind = "".join("#" if digit else "".join(part) for digit, part in itertools.groupby(name, str.isdigit))
        kinds[kind] = kinds.get(kind, 0) + 1
    kind, count = max(kinds.items(), key=lambda item: item[1])
    message = f"{len(distinct)} distinct names, {count} of them like {kind!r}; log a histogram or a table instead"
    return [Finding("warning", "tracking", "names", message)]


def check_steps(logged: Iterable[tuple[str, int]]) -> list[Finding]:
    """Metrics whose step goes back; each is told once, with the first place.

    >>> [finding.message for finding in check_steps([("a", 1), ("b", 5), ("a", 0), ("b", 5)])]
    ["'a' goes back from step 1 to 0; W&B drops that and others misdraw it"]
    """
    last: dict[str, int] = {}
    told: dict[str, Finding] = {}
    for name, step in logged:
        before = last.get(name)
        if before is not None and step < before and name not in told:
            message = f"{name!r} goes back from step {before} to {step}; W&B drops that and others misdraw it"
            told[name] = Finding("warning", "tracking", "step", message)
        last[name] = step
    return list(told.values())
