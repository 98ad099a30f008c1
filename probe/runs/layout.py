"""Where a run lives on disk, and what its files are called.

::

    runs/<project>/<experiment>/
      run.json                              RunInfo; written once, by whichever rank is first
      rank-00000.jsonl                      segment 0 of rank 0: append-only, one writer
      rank-00000.1.jsonl                    its next segment: after a roll-over or a restart
      rank-00000.now                        where rank 0 is now: a page of memory, see probe.runs.now_file
      process-driver.jsonl                  segment 0 of a process without a rank, which is called "driver"
      parts/<table>-rank00000-0.parquet     what segment 0 of rank 0 held, once it has been rolled over
      parts/<table>-process-driver-0.parquet
      *.tmp                                 being written; ignored by every reader
      rank-00000.jsonl.0-52311.gz           in a copy alone: a piece of an open file, see probe.runs.pieces
      answers/                              of a large run, what views have asked: see probe.runs.answers
      sync/                                 which processes copy the run; of no meaning to readers

A segment is either a JSONL file or the parts of the same (place, segment). While both are there, the JSONL
file is the truth: deleting it is the commit of a roll-over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import time
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from fsspec.implementations.local import LocalFileSystem

from probe._check import local_directory
from probe._io import expanded, write_atomically
from probe.configuration import Plain
from probe.errors import InputError, InputTypeError, RunError, RunNotFoundError, SchemaVersionError
from probe.guard import attempt
from probe.records import SCHEMA_VERSION
from probe.redaction import Redact, redaction
from probe.runs.place import system_of

INFO_NAME: Final = "run.json"
PARTS_NAME: Final = "parts"

#: The folder of micro-batches and memory snapshots that failures have kept, where that was asked for.
FAILURES_NAME: Final = "failures"

#: Names a run directory that is used as it is, so that all ranks of a job agree on one.
RUN_DIR_VARIABLE: Final = "PROBE_RUN_DIR"

#: What an hour of one accelerator costs, in any currency; a number above 0.
GPU_HOUR_VARIABLE: Final = "PROBE_GPU_HOUR"

_PLACE: Final = r"(?:rank-?(?P<rank>\d+)|process-(?P<name>[A-Za-z0-9_-]+))"
_SEGMENT: Final = re.compile(_PLACE + r"(?:\.(?P<number>\d+))?\.jsonl")
_PART: Final = re.compile(rf"(?P<table>[a-z_]+)-{_PLACE}-(?P<number>\d+)\.parquet")
_OF_RANK: Final = re.compile(r"rank-(\d{5,})")
_PACKAGES: Final = ("torch", "tensordict", "numpy", "verl", "nemo-rl", "ray", "vllm", "transformers")
#: Also of a Path made from a URL, which has one slash less; a drive of Windows has one letter.
_LONGEST_NAME: Final = 120
_LONGEST_PLACE: Final = 60


class Segment(NamedTuple):
    """One writer's stretch of rows: the ``number``-th of a place, which is that of a rank or of a name."""

    place: str
    number: int

    @classmethod
    def of_rank(cls, rank: int, number: int = 0) -> Segment:
        """The ``number``-th segment of a rank.

        >>> Segment.of_rank(3, 2)
        Segment(place='rank-00003', number=2)
        """
        return cls(place_of_rank(rank), number)

    @property
    def rank(self) -> int | None:
        """The rank that the file's name tells, None where it is a process's name: its rows may know one."""
        found = _OF_RANK.fullmatch(self.place)
        return int(found[1]) if found else None

    @property
    def name(self) -> str:
        """File name of its JSONL form.

        >>> Segment.of_rank(0).name, Segment.of_rank(3, 2).name, Segment("driver", 1).name
        ('rank-00000.jsonl', 'rank-00003.2.jsonl', 'process-driver.1.jsonl')
        """
        stem = f"process-{self.place}" if self.rank is None else self.place
        return f"{stem}{f'.{self.number}' if self.number else ''}.jsonl"

    @property
    def now_name(self) -> str:
        """Name of the file that says where the process is now whose first segment this is.

        >>> Segment.of_rank(0).now_name, Segment("driver", 1).now_name
        ('rank-00000.now', 'process-driver.1.now')
        """
        return self.name.removesuffix("jsonl") + "now"

    def part(self, table: str) -> str:
        """File name, inside ``parts/``, of its rows of ``table``.

        >>> Segment.of_rank(0, 1).part("memory"), Segment("driver", 0).part("memory")
        ('memory-rank00000-1.parquet', 'memory-process-driver-0.parquet')
        """
        rank = self.rank
        stem = f"process-{self.place}" if rank is None else f"rank{rank:05d}"
        return f"{table}-{stem}-{self.number}.parquet"


def is_now_file(name: str) -> bool:
    """Whether a file of this name says where a process is now.

    >>> is_now_file("rank-00000.now"), is_now_file("rank-00000.jsonl"), is_now_file("notes.now")
    (True, False, False)
    """
    stem, dot, end = name.rpartition(".")
    return dot + end == ".now" and segment_of(f"{stem}.jsonl") is not None


def process_name(place: str, number: int = 0) -> str:
    """What a process is called: by its place, and by the number of its first segment unless that is the place's first.

    >>> process_name("rank-00003"), process_name("driver", 2)
    ('rank-00003', 'driver.2')
    """
    return f"{place}{f'.{number}' if number else ''}"


def place_of_rank(rank: int) -> str:
    """What the place of a rank is called.

    >>> place_of_rank(3)
    'rank-00003'
    """
    return f"rank-{rank:05d}"


def place_of_name(name: str) -> str:
    """What the place of a process without a rank is called: its name, as every file system takes it. A name that
    looks like a rank's place is changed, so that it is taken for none.

    >>> place_of_name("driver"), place_of_name("rollout worker 3"), place_of_name("rank-00003"), place_of_name("…")
    ('driver', 'rollout-worker-3', 'rank_00003', 'process')
    """
    safe = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:_LONGEST_PLACE].rstrip("-") or "process"
    return safe.replace("-", "_") if re.fullmatch(r"rank-?\d+", safe) else safe


def segment_of(name: str) -> Segment | None:
    """The segment whose JSONL file is called ``name``; None for any other file.

    >>> segment_of("rank-00003.2.jsonl"), segment_of("process-driver.jsonl"), segment_of("metrics.jsonl")
    (Segment(place='rank-00003', number=2), Segment(place='driver', number=0), None)
    """
    found = _SEGMENT.fullmatch(name)
    return _segment(found) if found else None


def part_of(name: str) -> tuple[str, Segment] | None:
    """Table and segment of a file in ``parts/`` called ``name``; None for any other file.

    >>> part_of("memory-rank00000-1.parquet"), part_of("memory-process-driver-0.parquet")
    (('memory', Segment(place='rank-00000', number=1)), ('memory', Segment(place='driver', number=0)))
    """
    found = _PART.fullmatch(name)
    return (found["table"], _segment(found)) if found else None


def _segment(found: re.Match[str]) -> Segment:
    number = int(found["number"] or 0)
    return Segment(found["name"], number) if found["rank"] is None else Segment.of_rank(int(found["rank"]), number)


class RunInfo(msgspec.Struct, kw_only=True):
    """What ``run.json`` holds: how the run came about."""

    schema_version: int = SCHEMA_VERSION
    project: str = ""  #: as it was given; the directory's name is made safe for the file system
    experiment: str | None = None
    config: Any = None
    host: str = ""
    versions: dict[str, str] = {}  #: of probe, python and the frameworks that are installed
    started_at: str = ""  #: ISO 8601 with the offset of the machine's time zone
    wall_ns: int = 0  #: the same moment as ``time.time_ns()``
    gpu_hour: float | None = None  #: the price of an hour of one accelerator, where :data:`GPU_HOUR_VARIABLE` was set


# ------------------------------------------------------------------------------------------------- making one


def create_run(
    project: str,
    experiment: str | None = None,
    *,
    root: str | os.PathLike[str] = "runs",
    run_dir: str | os.PathLike[str] | None = None,
    config: Any = None,
    redact: Redact = True,
) -> Path:
    """Make the run directory, or open the one that is there: every rank calls this, and one of them writes
    run.json.

    Args:
        project: The first part of the directory ``root/project/experiment``. What a file system can't take in a name is
            replaced, so that a name never leaves ``root``; run.json keeps the name as it was given.
        experiment: The second part, likewise. Without it the directory is named by the time and is always a new one, so
            ranks must agree on ``run_dir``.
        root: The directory that holds all runs.
        run_dir: The directory itself, instead of the above. None asks the environment variable ``PROBE_RUN_DIR``.
        config: The trainer's configuration, any shape; what JSON can't say is kept as its ``repr``.
        redact: Which texts of ``config`` are left out; see :mod:`probe.redaction`. False keeps all, in a run.json that
            its owner alone can read (mode 0600).

    Returns:
        The absolute path.

    Raises:
        InputError: A name is empty, or a directory is a URL, or in a home directory where there is none.
        InputTypeError: A name is no text, or ``redact`` is none of what it may be.
        SchemaVersionError: The run is there and was written by a newer probe.
        RunError: The directory can't be made.
    """
    rule = redaction(redact)
    _check_name("project", project)
    if experiment is not None:
        _check_name("experiment", experiment)
    given = run_dir if run_dir is not None else os.environ.get(RUN_DIR_VARIABLE) or None
    named = "run_dir" if run_dir is not None else RUN_DIR_VARIABLE
    for argument, place in ((named, given), ("root", root)):
        local_directory(argument, place, "to copy the run to a store, give its URL as upload=")
    try:
        if given is not None:
            directory = expanded(named, given).absolute()
        else:
            directory = _named(expanded("root", root).absolute() / safe_name(project), experiment)
        (directory / PARTS_NAME).mkdir(parents=True, exist_ok=True)
        if not (directory / INFO_NAME).exists():
            kept = plain(config) if rule is None else rule(plain(config))
            content = encode_info(_info(project, experiment, kept))
            write_atomically(directory / INFO_NAME, content, overwrite=False, private=rule is None)
    except OSError as error:
        raise RunError(f"run directory {str(given or root)!r} can't be made: {error}") from error
    read_info(directory)
    return directory


def complete_run(directory: Path, project: str, config: Any, *, redact: Redact = True) -> None:
    """Let run.json say what became known after another process, or an adapter, had made the run.

    A configuration that is there stays; processes that bring one at the same moment bring the same.

    Args:
        directory: The run directory.
        project: The project's name as the user gave it.
        config: As of :func:`create_run`.
        redact: As of :func:`create_run`.

    Raises:
        RunError: run.json can't be read or written.
    """
    rule = redaction(redact)
    info = read_info(directory)
    if info.config is not None:
        return
    info.project = project
    info.config = plain(config) if rule is None else rule(plain(config))
    try:
        write_atomically(directory / INFO_NAME, encode_info(info), overwrite=True, private=rule is None)
    except OSError as error:
        raise RunError(f"run {str(directory)!r}: {INFO_NAME} can't be written: {error}") from error


def safe_name(name: str) -> str:
    """``name`` as one path segment that every file system takes. Names that differ stay different.

    >>> safe_name("grpo run 1")
    'grpo run 1'
    >>> safe_name("a/../../b")
    'a_.._.._b-feddf1'
    """
    safe = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in name)
    safe = safe.rstrip(". ").lstrip(" ")
    if not safe or safe[0] in ".-":  # neither hidden nor taken for an option
        safe = f"_{safe[1:]}"
    while len(safe.encode()) > _LONGEST_NAME:
        safe = safe[:-1]
    if safe != name:  # a hash keeps "a/b" and "a_b" apart
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
        safe = f"{safe}-{digest}"
    return safe


def _check_name(argument: str, name: object) -> None:
    if not isinstance(name, str):
        raise InputTypeError(f"{argument}: got {name!r}, expected text")
    if not name.strip():
        raise InputError(f"{argument}: got {name!r}, expected a name that isn't blank")


def _named(project: Path, experiment: str | None) -> Path:
    if experiment is not None:
        return project / safe_name(experiment)
    base = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    project.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        directory = project / (f"{base}-{number}" if number else base)
        try:
            directory.mkdir()
        except FileExistsError:  # another run began in the same second
            number += 1
        else:
            return directory


def _info(project: str, experiment: str | None, config: Any) -> RunInfo:
    return RunInfo(
        project=project,
        experiment=experiment,
        config=config,
        host=platform.node(),
        versions=_versions(),
        started_at=datetime.now().astimezone().isoformat(),
        wall_ns=time.time_ns(),
        gpu_hour=gpu_hour(),
    )


def gpu_hour() -> float | None:
    """The price of an hour of one accelerator, as the environment says; one that isn't a number above 0 is none."""
    try:
        found = float(os.environ.get(GPU_HOUR_VARIABLE, ""))
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "schema": str(SCHEMA_VERSION)}
    for name, package in (("probe", "probe-rl"), *((package, package) for package in _PACKAGES)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(package)
    return versions


def encode_info(info: RunInfo) -> bytes:
    """``info`` as the bytes of run.json."""
    return msgspec.json.format(msgspec.json.encode(_clean(msgspec.to_builtins(info))), indent=2) + b"\n"


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it; what JSON can't say becomes its ``repr``.

    >>> plain({"lr": 1e-6, "betas": (0.9, 0.95), 3: {1}, "clip": float("inf")})
    {'lr': 1e-06, 'betas': [0.9, 0.95], '3': [1], 'clip': 'inf'}
    """
    return Plain(_leaf)(value)


def _leaf(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else repr(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else repr(float(value))
    if isinstance(value, set | frozenset):
        return [plain(one) for one in value]
    # A config is anybody's object; the run must start all the same.
    return attempt(
        lambda: os.fspath(value) if isinstance(value, os.PathLike) else repr(value),
        lambda error: f"<{type(value).__name__}: its repr raised {type(error).__name__}>",
    )


def _clean(value: Any) -> Any:
    """Lone surrogates, which UTF-8 can't hold, written out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------- reading it


def read_info(path: str | os.PathLike[str]) -> RunInfo:
    """What ``run.json`` of the run at ``path`` (or an ``fsspec`` URL) says.

    Raises:
        RunNotFoundError: There is no such directory.
        RunError: It isn't a run, or run.json can't be read.
        SchemaVersionError: A newer probe wrote it.
    """
    files, root = system_of(path)
    return info_at(files, root, os.fspath(path))


def info_at(files: Any, root: str, shown: str) -> RunInfo:
    """:func:`read_info` for a directory ``root`` of the ``fsspec`` file system ``files``."""
    for tried in range(10):
        try:
            if isinstance(files, LocalFileSystem):
                _check_is_file(Path(root) / INFO_NAME, shown)
            data = files.cat_file(f"{root.rstrip('/')}/{INFO_NAME}")
        except (FileNotFoundError, NotADirectoryError):
            raise _not_a_run(files, root, shown) from None
        except OSError as error:
            raise RunError(f"run {shown!r}: {INFO_NAME} can't be read: {error}") from error
        if data.endswith(b"}\n") or data.rstrip().endswith(b"}") or tried == 9:
            break
        time.sleep(0.05)  # another rank is writing it, on a file system without hard links
    return _decode_info(data, shown)


def _check_is_file(path: Path, shown: str) -> None:
    """Reading a pipe would never end."""
    if path.exists() and not path.is_file():
        raise RunError(f"run {shown!r}: {INFO_NAME} isn't a file")


def _not_a_run(files: Any, root: str, shown: str) -> RunError:
    if not files.exists(root):
        return RunNotFoundError(
            f"path: there is nothing at {shown!r}; expected a run directory such as "
            f"runs/<project>/<experiment>. Check the spelling and the directory that it is relative to"
        )
    return RunError(
        f"path: {shown!r} isn't a run: it has no {INFO_NAME}; expected a run directory such as "
        f"runs/<project>/<experiment>, not the directory above or below"
    )


class _Version(msgspec.Struct):
    schema_version: int | None = None


def _decode_info(data: bytes, shown: str) -> RunInfo:
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version is None:
            raise RunError(
                f"run {shown!r}: {INFO_NAME} wasn't written by probe: it has no schema_version. Open it as the file "
                "that it is, such as JSON"
            )
        check_version(version, shown)
        return msgspec.json.decode(data, type=RunInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(f"run {shown!r}: {INFO_NAME} isn't what probe writes: {error}") from error


def check_version(found: int, shown: str) -> None:
    """Raise :class:`SchemaVersionError` where ``found`` is newer than what this probe reads.

    Every version up to :data:`~probe.records.SCHEMA_VERSION` has to be readable, as tests/runs/golden shows of each.
    Today there is one. The place for what reads a second one differently is where the version is seen: ``_decode_info``
    here, ``Checked.check`` for parts, ``Columnar`` for lines and ``decode_manifest`` for compacted files.
    """
    if found > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"run {shown!r} has schema version {found}, and this probe reads up to version {SCHEMA_VERSION}; "
            f"install a newer probe-rl to open it"
        )


def typed_here(path: str | os.PathLike[str]) -> str:
    """A path as a person would type it: relative where it lies below the working directory; URLs as they are.

    >>> typed_here(Path.cwd() / "runs" / "first"), typed_here("s3://bucket/run")
    ('runs/first', 's3://bucket/run')
    """
    text = os.fspath(path)
    if "://" in text:
        return text
    here = Path.cwd()
    return str(Path(text).relative_to(here)) if Path(text).is_relative_to(here) else text
