"""Attempts: to which launch of the job a process belongs. All agree through the run directory, without a collective.

::

    attempts/<n>/launch.json        what the n-th launch is known by; written once, by whoever came first
    attempts/<n>/rank-00000.json    who took this place in it; locked for as long as that process records
    attempts/<n>/process-driver.json    likewise, a place that goes by a name

A launcher tells its launches apart: then those of one identity are one attempt. Without a launcher a new attempt begins
when a process finds its place taken by one that has ended: the training was started again, perhaps in the same kernel.

A place is that of a rank; a process without a rank takes one by its name, and by a number behind it ("rollout-2") where
one of that name is there already.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from probe._io import FileLock, holding, write_atomically
from probe.errors import InputError, RunError
from probe.guard import attempt
from probe.records import Process
from probe.runs.layout import Segment, place_of_name, place_of_rank, segment_of

ATTEMPTS_NAME: Final = "attempts"
LAUNCH_NAME: Final = "launch.json"

#: Says which attempt a process belongs to, where nothing else can: a whole number from 1.
ATTEMPT_VARIABLE: Final = "PROBE_ATTEMPT"

#: A place whose process is of another host, and whose files have not grown for so long, is free. Seconds.
QUIET_S: Final = 60.0


#: Bytes that a claim keeps on the disk: whoever finds it full at the end still can say so.
KEPT_BYTES: Final = 16 * 2**10


class Launch(msgspec.Struct, kw_only=True):
    """What an attempt is known by."""

    identity: str = ""  #: of the launch, by its launcher; "" without one
    world_size: int = 0  #: as the first of its processes said; 0 is not known: it has no rank
    wall_ns: int = 0


class Claim(msgspec.Struct, kw_only=True):
    """Who took a place in an attempt."""

    pid: int = 0
    host: str = ""
    actor: str = ""  #: Ray's id of the actor, which a restarted one keeps
    wall_ns: int = 0


class Identity(NamedTuple):
    """What the launcher says of this process."""

    launch: str = ""  #: the same for all processes of one launch, "" where nobody says
    actor: str = ""


class Joined(NamedTuple):
    """What :func:`join` found."""

    attempt: int
    place: str  #: "rank-00000", or by a name: unique among those that live
    rival: Claim | None  #: a process that lives and has the same place in the same attempt
    lock: FileLock | None  #: on the place; to be released when the process ends to record
    claim: Path | None = None  #: the file of the place, which keeps room on the disk

    def make_room(self) -> None:
        """Give the disk back what the claim has kept of it, for the last words on a disk that is full.

        Raises:
            OSError: The file can't be changed.
        """
        if self.claim is not None:
            os.truncate(self.claim, len(self.claim.read_bytes().rstrip()))

    def taken_ns(self) -> int:
        """When the place was taken, by the clock of the directory's file system: nanoseconds since the epoch, 0 where
        that can't be known.
        """
        try:
            return 0 if self.claim is None else self.claim.stat().st_mtime_ns
        except OSError:
            return 0

    def leave(self) -> None:
        """Let others have the place: for whoever takes it from now on that is another attempt. Safe to call twice."""
        if self.lock is not None:
            self.lock.release()


def identity(environ: Mapping[str, str] | None = None) -> Identity:
    """What the launcher of this process says of its launch: torchrun, Slurm, Ray.

    torchrun's run id is "none" where nobody gave it one, and says nothing then. Inside an allocation of Slurm only a
    step (``srun``) is a launch: what is typed into its shell isn't.

    >>> identity({"TORCHELASTIC_RUN_ID": "a7", "TORCHELASTIC_RESTART_COUNT": "1"}).launch
    'torchrun:a7 restart:1'
    >>> identity({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "TORCHELASTIC_RUN_ID": "none"}).launch
    'slurm:12.0 requeue:0'
    >>> identity({"SLURM_JOB_ID": "12", "RANK": "0"}).launch
    ''
    """
    environ = os.environ if environ is None else environ
    known = []
    if environ.get("TORCHELASTIC_RUN_ID", "none") not in ("", "none"):
        known.append(f"torchrun:{environ['TORCHELASTIC_RUN_ID']}")
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID"):
        step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
        known.append(f"slurm:{step} requeue:{environ.get('SLURM_RESTART_COUNT', '0')}")
    ray, actor = _of_ray()
    if ray:
        known.append(ray)
    if known and "TORCHELASTIC_RESTART_COUNT" in environ:
        known.append(f"restart:{environ['TORCHELASTIC_RESTART_COUNT']}")
    return Identity(" ".join(known), actor)


def _of_ray() -> tuple[str, str]:
    """Cluster and job, and the actor; "" outside Ray, which is never started or imported for this."""
    ray = sys.modules.get("ray")
    return ("", "") if ray is None else attempt(lambda: _as_it_says(ray), lambda _: ("", ""))


def _as_it_says(ray: Any) -> tuple[str, str]:
    """Raises whatever another version lacks: then the place in the directory tells."""
    if not ray.is_initialized():
        return "", ""
    context = ray.get_runtime_context()
    return f"ray:{context.gcs_address} job:{context.get_job_id()}", context.get_actor_id() or ""


def asked(environ: Mapping[str, str] | None = None) -> int | None:
    """The attempt that ``PROBE_ATTEMPT`` names, None where it isn't set.

    Raises:
        InputError: It is no whole number of at least 1.
    """
    text = (os.environ if environ is None else environ).get(ATTEMPT_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{ATTEMPT_VARIABLE}: got {text!r}, expected a whole number of at least 1")
    return int(text)


def join(directory: Path, process: Process, known: Identity | None = None, wanted: int | None = None) -> Joined:
    """Take a place in the attempt that this process belongs to: that of its rank, or one by its name.

    Args:
        directory: The run directory.
        process: Its row, of which rank, name, world size, id and host are needed.
        known: What the launcher says; None asks it.
        wanted: The attempt, where it was named.

    Returns:
        The attempt, and the lock on the place.

    Raises:
        OSError: The directory can't be written to.
    """
    return _Joining(directory, process, identity() if known is None else known).join(wanted)


def take_place(directory: Path, process: Process, attempt: int | None = None) -> Joined:
    """Find out to which attempt a process belongs, and take its place there; the process is told.

    Args:
        directory: The run directory.
        process: Its row, with its rank or its name; it gets its attempt.
        attempt: Which one, where that is known: a child is of its parent's.

    Returns:
        The attempt and the place, which a :class:`~probe.runs.writer.RunWriter` leaves when it is closed.

    Raises:
        RunError: The directory can't be written to.
        InputError: ``PROBE_ATTEMPT`` is no whole number of at least 1.
    """
    try:
        joined = join(directory, process, wanted=asked() if attempt is None else attempt)
    except OSError as error:
        raise RunError(f"directory: {str(directory)!r} can't be written to: {error}") from error
    process.attempt = joined.attempt
    return joined


def next_attempt(directory: Path) -> int:
    """The number of a launch that begins now, and that nobody else begins.

    Args:
        directory: The run directory.
    """
    joining = _Joining(directory, Process(), Identity())
    return joining._next(joining._numbers())


def launch_of(directory: Path, known: Identity | None = None) -> int | None:
    """The attempt that this process's launch has in a run; None where it has none.

    Args:
        directory: The run directory.
        known: What the launcher says; None asks it.

    Raises:
        InputError: ``PROBE_ATTEMPT`` is no whole number of at least 1.
    """
    known = identity() if known is None else known
    joining = _Joining(directory, Process(), known)
    return asked() or (joining._mine(joining._numbers()) if known.launch else None)


def actors(directory: Path, attempt: int) -> set[tuple[str, int]]:
    """Host and process id of those of an attempt that are actors of Ray: of a restarted one the newest process.

    Args:
        directory: The run directory.
        attempt: Its number.
    """
    claims = (_read(path, Claim) for path in (directory / ATTEMPTS_NAME / str(attempt)).glob("*.json"))
    return {(one.host, one.pid) for one in claims if one is not None and one.actor}


def others(joined: Joined) -> bool:
    """Whether another process has a place in the same attempt.

    Args:
        joined: Of this process.
    """
    return any(path != joined.claim for path in _claims(joined))


def is_first(joined: Joined) -> bool:
    """Whether this process was the first to take a place in its attempt, as far as clocks tell.

    Args:
        joined: Of this process.
    """
    known = [(claim.wall_ns, path.name, path) for path in _claims(joined) if (claim := _read(path, Claim)) is not None]
    return not known or min(known)[-1] == joined.claim


def _claims(joined: Joined) -> list[Path]:
    if joined.claim is None:
        return []
    return [path for path in joined.claim.parent.glob("*.json") if path.name != LAUNCH_NAME]


def take_rank(directory: Path, process: Process) -> Joined:
    """Take the place of a rank that became known late, beside the one that the process has by its name.

    Args:
        directory: The run directory.
        process: Its row, with attempt and rank.

    Returns:
        What :func:`join` returns; a rival where a process that lives has this rank.

    Raises:
        OSError: The directory can't be written to.
    """
    return _Joining(directory, process, identity()).take_rank()


class _Joining:
    def __init__(self, directory: Path, process: Process, known: Identity) -> None:
        self._directory = directory
        self._folder = directory / ATTEMPTS_NAME
        self._ranked = process.rank is not None
        self._place = place_of_name(process.name) if process.rank is None else place_of_rank(process.rank)
        self._process = process
        self._known = known
        #: 0 is not known: who has no rank can't say how many have one
        self._world_size = process.world_size if self._ranked else 0

    def join(self, wanted: int | None) -> Joined:
        if wanted is not None:
            self._begin(wanted)
            return self._take_any(wanted, even_ended=True) or Joined(wanted, self._place, None, None)
        while True:
            numbers = self._numbers()  # once: another that begins one between two looks would seem a launch before ours
            number = self._mine(numbers) or self._next(numbers)
            self._begin(number)
            if self._launch(number).identity != self._known.launch:
                continue  # another launch took the number at the same time
            joined = self._take_any(number, even_ended=bool(self._known.launch))
            if joined is not None:
                return joined
            self._begin(self._after(number))  # our place there was left: a new launch

    def _mine(self, numbers: list[int]) -> int | None:
        """The attempt, of those that there are, that this launch has or may join; None where it needs a new one."""
        if self._known.launch:
            same = (one for one in reversed(numbers) if self._launch(one).identity == self._known.launch)
            return next(same, None)
        if not numbers:
            return None
        newest = self._launch(numbers[-1])
        known = {newest.world_size, self._world_size} - {0}
        if newest.identity or len(known) > 1 or (self._is_of_another_kind(newest) and self._have_ended(numbers[-1])):
            return None
        return numbers[-1]

    def _is_of_another_kind(self, launch: Launch) -> bool:
        """Whether it was begun by one with a rank and we have none, or the other way round."""
        return (launch.world_size > 0) != self._ranked

    def _have_ended(self, number: int) -> bool:
        """Whether all processes of an attempt have ended, and there were any."""
        claims = [one for one in (self._folder / str(number)).glob("*.json") if one.name != LAUNCH_NAME]
        return bool(claims) and not any(map(self._lives, claims))

    def _lives(self, path: Path) -> bool:
        claim = _read(path, Claim)
        with holding(path) as free:
            return not free or (claim is not None and self._may_live_elsewhere(claim, path.stem))

    def take_rank(self) -> Joined:
        return self._take(self._process.attempt, even_ended=True) or Joined(
            self._process.attempt, self._place, None, None
        )

    def _take_any(self, number: int, *, even_ended: bool) -> Joined | None:
        """Our place; without a rank the first of our name that nobody has who lives."""
        name, others = self._place, 1
        while True:
            joined = self._take(number, even_ended=even_ended)
            if self._ranked or joined is None or joined.rival is None:
                return joined
            others += 1
            self._place = f"{name}-{others}"

    def _after(self, number: int) -> int:
        """The next attempt that is of this launch, or is still to be had: the same for all of its processes."""
        number += 1
        while (self._folder / str(number) / LAUNCH_NAME).exists():
            if self._launch(number).identity == self._known.launch:
                break
            number += 1
        return number

    def _next(self, numbers: list[int]) -> int:
        if numbers:
            return numbers[-1] + 1
        # rows without an attempt are an older probe's, unless somebody has begun one meanwhile
        return 2 if self._was_here_before() and not self._numbers() else 1

    def _was_here_before(self) -> bool:
        """Whether an older probe, which knew no attempts, recorded this run: its rows are the first one's."""
        return any(segment_of(path.name) or path.suffix == ".parquet" for path in self._files())

    def _files(self) -> list[Path]:
        return [*self._directory.glob("*.jsonl"), *(self._directory / "parts").glob("*.parquet")]

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(one.name) for one in self._folder.iterdir() if _is_attempt(one))

    def _launch(self, number: int) -> Launch:
        return _read(self._folder / str(number) / LAUNCH_NAME, Launch) or Launch()

    def _begin(self, number: int) -> None:
        """Make the attempt, where nobody has."""
        folder = self._folder / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / LAUNCH_NAME).exists():
            launch = Launch(identity=self._known.launch, world_size=self._world_size, wall_ns=time.time_ns())
            write_atomically(folder / LAUNCH_NAME, msgspec.json.encode(launch), overwrite=False)

    def _take(self, number: int, *, even_ended: bool) -> Joined | None:
        """Our place in an attempt; None where it was taken by one that has ended, and that means a new attempt."""
        path = self._folder / str(number) / f"{_stem(self._place)}.json"
        lock = FileLock(path)
        before = _read(path, Claim)
        if not lock.acquire() or (before is not None and self._may_live_elsewhere(before, path.stem)):
            lock.release()
            return Joined(number, self._place, _read(path, Claim) or Claim(), None)
        before = _read(path, Claim)
        same = before is None or before.actor == self._known.actor or not self._ranked
        if before is not None and not (even_ended and same):
            lock.release()
            return None
        content = msgspec.json.encode(self._claim())
        try:
            path.write_bytes(content.ljust(KEPT_BYTES))  # in place: its lock is on this very file
        except OSError:  # there is no room to keep
            path.write_bytes(content)
        return Joined(number, self._place, None, lock, path)

    def _claim(self) -> Claim:
        wall_ns = time.time_ns()
        return Claim(pid=self._process.pid, host=self._process.host, actor=self._known.actor, wall_ns=wall_ns)

    def _may_live_elsewhere(self, claim: Claim, stem: str) -> bool:
        """Locks of another host may not be seen here; its files are."""
        if claim.host == platform.node():
            return False
        files = [*self._directory.glob(f"{stem}.jsonl"), *self._directory.glob(f"{stem}.*.jsonl")]
        ages = [time.time() - path.stat().st_mtime for path in files]
        return min(ages, default=QUIET_S) < QUIET_S


def _stem(place: str) -> str:
    """How the names of a place's files begin."""
    return Segment(place, 0).name.removesuffix(".jsonl")


def _is_attempt(folder: Path) -> bool:
    return folder.name.isdecimal() and (folder / LAUNCH_NAME).exists()


def _read(path: Path, kind: type[Any]) -> Any:
    """What a file holds; None where it isn't there, is empty or is being written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind) if path.is_file() else None
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
