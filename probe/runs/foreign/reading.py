"""What others wrote as a run directory, made once for each state of their files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Final

from probe.records import Process
from probe.runs import row_types
from probe.runs.foreign import tensorboard_files, verl_files
from probe.runs.foreign.rows import Read
from probe.runs.layout import RunInfo, encode_info, plain
from probe.runs.lines import encode_all

#: The process that the rows are told to be of.
_PROCESS: Final = "driver"

#: Entries of a directory that are looked into.
_MOST: Final = 1000


def read(path: Path, rollouts: Path | None = None) -> Path | None:
    """The run directory that is made of what others wrote: the files of one training, as they are now.

    Args:
        path: A log of verl's ``file`` logger, a directory with one, TensorBoard's directory, or verl's rollout dumps.
        rollouts: verl's ``trainer.rollout_data_dir``; None looks for dumps in ``path`` and one level below.

    Returns:
        A directory in the machine's folder for temporary files, which only this user reads; None where nothing is
        known of the files.

    Raises:
        InputError: TensorBoard isn't installed.
        OSError: They can't be read.
    """
    log, events, dumps = _found(path, rollouts)
    if log is None and events is None and not dumps:
        return None
    target = _place(path, [*([log] if log else []), *(sorted(events.iterdir()) if events else []), *dumps])
    if (target / "run.json").exists():
        return target
    if log is not None:
        told = verl_files.read_log(log)
    elif events is not None:
        told = tensorboard_files.read_events(events)
    else:
        told = Read("verl's rollout dumps", begun_ns=min(one.stat().st_mtime_ns for one in dumps))
    if dumps:
        verl_files.read_dumps(dumps, told)
    _write(target, path, told)
    return target


def readable_below(directory: Path) -> list[Path]:
    """What :func:`read` knows in a directory: its entries, or the directory itself.

    Args:
        directory: That is looked into, one level deep.
    """
    if _is_readable(directory):
        return [directory]
    entries = sorted(one for one in directory.iterdir() if not one.name.startswith("."))[:_MOST]
    return [one for one in entries if _is_readable(one)]


def _is_readable(path: Path) -> bool:
    log, events, dumps = _found(path, None)
    return log is not None or events is not None or bool(dumps)


def _found(path: Path, rollouts: Path | None) -> tuple[Path | None, Path | None, list[Path]]:
    """The log, the directory with event files and the dumps that a path means."""
    if path.is_file():
        log = path if path.suffix == ".jsonl" and verl_files.is_log(path) else None
        return log, None, verl_files.dumps_in(rollouts) if log and rollouts else []
    if not path.is_dir():
        return None, None, []
    logs = [one for one in path.glob("*.jsonl") if not one.stem.isdigit() and verl_files.is_log(one)]
    log = logs[0] if len(logs) == 1 else None  # of several each is a run
    events = path if log is None and tensorboard_files.has_events(path) else None
    if rollouts is not None:
        return log, events, verl_files.dumps_in(rollouts)
    if len(logs) > 1:
        return None, events, []
    below = sorted(one for one in path.iterdir() if one.is_dir())[:_MOST] if log or events else []
    dumps = next((found for one in (path, *below) if (found := verl_files.dumps_in(one))), [])
    return log, events, dumps


def _place(path: Path, sources: list[Path]) -> Path:
    """Where the run of these files stands, by what they are now."""
    state = [str(path.resolve())]
    for one in sources:
        about = one.stat()
        state.append(f"{one.resolve()} {about.st_size} {about.st_mtime_ns}")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    root = Path(tempfile.gettempdir()) / f"probe-read-{user}"
    root.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and root.stat().st_uid != os.getuid():
        root = Path(tempfile.mkdtemp(prefix="probe-read-"))  # somebody else's: nothing of it is believed
    digest = hashlib.sha256("\n".join(state).encode()).hexdigest()[:16]
    return root / digest / (path.stem if path.is_file() else path.name)


def _write(target: Path, path: Path, told: Read) -> None:
    """Aside, and then in one step in its place: who looks meanwhile sees all of it or nothing."""
    begun = min([told.begun_ns, *(row.time_ns for row in told.rows)]) if told.rows else told.begun_ns
    own = row_types.bring(told.own)
    first = Process(time_ns=begun, wall_ns=begun, name=_PROCESS, process=_PROCESS, adapters=told.kind, tables=own)
    for row in told.rows:
        row.process = _PROCESS
    info = RunInfo(
        project=path.resolve().parent.name,
        experiment=path.stem if path.is_file() else path.name,
        config=plain({"read_from": str(path.resolve()), "written_by": told.kind, "notes": told.notes}),
        started_at=datetime.fromtimestamp(begun / 1e9).astimezone().isoformat(timespec="seconds"),
        wall_ns=begun,
    )
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = Path(tempfile.mkdtemp(prefix=".being-made-", dir=target.parent))
    try:
        (aside / f"process-{_PROCESS}.jsonl").write_bytes(encode_all([first, *told.rows]))
        (aside / "run.json").write_bytes(encode_info(info))
        try:
            aside.rename(target)
        except OSError:
            if not (target / "run.json").exists():  # else somebody made it meanwhile
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
