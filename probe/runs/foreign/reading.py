"""What others wrote as a run directory, made once for each state of their files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from probe.errors import RunNotFoundError
from probe.records import Process, Row
from probe.runs import row_types
from probe.runs.foreign import tensorboard_files, trainer_state, verl_files
from probe.runs.foreign.origin import NOTES, PLACE, WRITER
from probe.runs.foreign.rows import Read, wall_clock
from probe.runs.layout import RunInfo, encode_info, plain
from probe.runs.lines import encode_all

#: The process that the rows are told to be of.
_PROCESS: Final = "driver"

#: Grows when the readers make other rows of the same files: what an older probe has made isn't taken for theirs.
_READERS: Final = 2

#: Entries of a directory that are looked into, and of all directories below one.
_MOST: Final = 1000
_LOOKED: Final = 50_000

#: Rows that are written at once.
_TOGETHER: Final = 10_000


class Found(NamedTuple):
    """What a path means: the files of one training."""

    log: Path | None = None
    states: tuple[Path, ...] = ()
    events: Path | None = None
    dumps: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        """All that the run depends on."""
        events = sorted(self.events.iterdir()) if self.events else []
        return [*([self.log] if self.log else []), *self.states, *events, *self.dumps]


def read(path: Path, rollouts: Path | None = None) -> Path | None:
    """The run directory that is made of what others wrote: the files of one training, as they are now.

    Args:
        path: A log of verl's ``file`` logger, or a directory with one; a ``trainer_state.json``, a checkpoint with one
            or the directory of such checkpoints; TensorBoard's directory; or verl's rollout dumps.
        rollouts: verl's ``trainer.rollout_data_dir``; None looks for dumps in ``path`` and one level below.

    Returns:
        A directory in the machine's folder for temporary files, which only this user reads; None where nothing is
        known of the files.

    Raises:
        InputError: TensorBoard isn't installed, or a file isn't what its name says.
        OSError: They can't be read.
    """
    found = _found(path, rollouts)
    if not found.files:
        return None
    target = _place(path, found.files)
    if (target / "run.json").exists():
        return target
    told = _told(path, found)
    if found.dumps:
        verl_files.read_dumps(list(found.dumps), told)
    _write(target, path, told)
    return target


def _told(path: Path, found: Found) -> Read:
    if found.log is not None:
        return verl_files.read_log(found.log)
    if found.states:
        return trainer_state.read_state(list(found.states), path if path.is_dir() else path.parent)
    if found.events is not None:
        return tensorboard_files.read_events(found.events)
    return Read("verl's rollout dumps", begun_ns=wall_clock(min(one.stat().st_mtime_ns for one in found.dumps)))


def readable_below(directory: Path, deepest: int) -> list[Path]:
    """What :func:`read` knows at a directory or below it, the upper ones first.

    Names that begin with a dot are passed over, and so is what is below something readable.

    Args:
        directory: That is looked into.
        deepest: How many directories down.

    Raises:
        RunNotFoundError: It holds too much to look through.
    """
    found: list[Path] = []
    level, seen, looked = [directory], set[Path](), 0
    for depth in range(deepest + 1):
        deeper: list[Path] = []
        for place in level:
            if place.resolve() in seen:
                continue  # a link to one of the others
            seen.add(place.resolve())
            if _is_readable(place):
                found.append(place)
                continue
            entries = _entries(place)
            looked += len(entries)
            if looked > _LOOKED:
                raise RunNotFoundError(
                    f"path: {str(directory)!r} holds more than {_LOOKED:,} files and directories, "
                    "expected a directory nearer the log"
                )
            found += [one for one in entries if one.is_file() and _is_readable(one)]
            deeper += [one for one in entries if depth < deepest and one.is_dir()]
        level = deeper
    return found


def _entries(directory: Path) -> list[Path]:
    """What is in a directory, sorted; nothing of somebody else's."""
    try:
        return sorted(one for one in directory.iterdir() if not one.name.startswith("."))[:_MOST]
    except PermissionError:
        return []


def _is_readable(path: Path) -> bool:
    return any(_found(path, None))


def _found(path: Path, rollouts: Path | None) -> Found:
    """What a path means; nothing where nothing is known of it."""
    if path.is_file():
        return _file(path, rollouts)
    if not path.is_dir():
        return Found()
    logs = [one for one in path.glob("*.jsonl") if not one.stem.isdigit() and verl_files.is_log(one)]
    log = logs[0] if len(logs) == 1 else None  # of several each is a run
    states = () if log else tuple(trainer_state.states_in(path))
    events = path if not log and not states and tensorboard_files.has_events(path) else None
    if states:
        return Found(states=states)
    if rollouts is not None:
        return Found(log, (), events, tuple(verl_files.dumps_in(rollouts)))
    if len(logs) > 1:
        return Found(events=events)
    below = sorted(one for one in path.iterdir() if one.is_dir())[:_MOST] if log or events else []
    dumps = next((found for one in (path, *below) if (found := verl_files.dumps_in(one))), [])
    return Found(log, (), events, tuple(dumps))


def _file(path: Path, rollouts: Path | None) -> Found:
    if path.suffix == ".jsonl" and verl_files.is_log(path):
        return Found(path, dumps=tuple(verl_files.dumps_in(rollouts)) if rollouts else ())
    if path.name == trainer_state.NAME or (path.suffix == ".json" and trainer_state.is_state(path)):
        return Found(states=(path,))
    return Found()


def _named(path: Path) -> tuple[str, str]:
    """What the project and the experiment are called."""
    place = path.resolve()
    if place.name == trainer_state.NAME:
        place = place.parent
    return place.parent.name, place.stem if place.is_file() else place.name


def _place(path: Path, sources: list[Path]) -> Path:
    """Where the run of these files stands, by what they are now."""
    state = [str(_READERS), str(path.resolve())]
    for one in sources:
        about = one.stat()
        state.append(f"{one.resolve()} {about.st_size} {about.st_mtime_ns}")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    root = Path(tempfile.gettempdir()) / f"probe-read-{user}"
    root.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and root.stat().st_uid != os.getuid():
        root = Path(tempfile.mkdtemp(prefix="probe-read-"))  # somebody else's: nothing of it is believed
    digest = hashlib.sha256("\n".join(state).encode()).hexdigest()[:16]
    return root / digest / (_named(path)[1] or "run")


def _write(target: Path, path: Path, told: Read) -> None:
    """Aside, and then in one step in its place: who looks meanwhile sees all of it or nothing."""
    begun = min([told.begun_ns, *(row.time_ns for row in told.rows)]) if told.rows else told.begun_ns
    own = row_types.bring(told.own)
    first = Process(time_ns=begun, wall_ns=begun, name=_PROCESS, process=_PROCESS, adapters=told.kind, tables=own)
    project, experiment = _named(path)
    about = {PLACE: str(path.resolve()), WRITER: told.kind, NOTES: told.notes}
    info = RunInfo(
        project=project,
        experiment=experiment,
        config=plain({**told.settings, **about}),
        started_at=datetime.fromtimestamp(begun / 1e9).astimezone().isoformat(timespec="seconds"),
        wall_ns=begun,
    )
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = Path(tempfile.mkdtemp(prefix=".being-made-", dir=target.parent))
    try:
        with (aside / f"process-{_PROCESS}.jsonl").open("wb") as file:
            for rows in _batches(chain([first], told.rows, told.later)):
                file.write(encode_all(rows))
        (aside / "run.json").write_bytes(encode_info(info))
        try:
            aside.rename(target)
        except OSError:
            if not (target / "run.json").exists():  # else somebody made it meanwhile
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """All rows, so many at once that they fit into memory, each told of its process."""
    left = iter(rows)
    while batch := list(islice(left, _TOGETHER)):
        for row in batch:
            row.process = _PROCESS
        yield batch
