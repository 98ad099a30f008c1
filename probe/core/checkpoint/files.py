"""A checkpoint as a directory: written aside, listed in a manifest, put in place when complete, checked when read.

::

    global_step_7/
      manifest.json               written last: every other file with its bytes and SHA-256
      shards/                     tensors, from all ranks, and structure.json
      extra/                      lr_scheduler.safetensors, rng_rank_00000.safetensors …
      huggingface/                config, tokenizer, optionally the full model
    global_step_8.incomplete/     being written, or what a crash has left
    global_step_7.replaced/       while the same step is written again
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from probe._io import sync_directory, write_durably
from probe.errors import InputError, SerializationError

MANIFEST: Final = "manifest.json"
INCOMPLETE: Final = ".incomplete"
REPLACED: Final = ".replaced"
SHARDS: Final = "shards"
EXTRA: Final = "extra"
HUGGINGFACE: Final = "huggingface"
_FORMAT: Final = "probe-checkpoint"
_VERSION: Final = 1
_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint holds.

    Attributes:
        files: The files by their path relative to the checkpoint, with forward slashes.
        contents: Those of ``model``, ``optimizer``, ``extra``, ``hf_model`` that are in it.
        failed: Optional parts that couldn't be written, with the error of each.
        saved_at_ns: Wall-clock time of the save, nanoseconds since the epoch; where the clock has gone back since the
            save before, right after that, since checkpoints are ordered by it.
    """

    global_step: int
    world_size: int
    contents: list[str]
    files: dict[str, FileEntry]
    failed: dict[str, str] = field(default_factory=dict)
    saved_at_ns: int = field(default_factory=time.time_ns)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(entry.bytes for entry in self.files.values())

    def write(self, directory: Path) -> None:
        """Write it into ``directory``, to the disk itself."""
        content = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1)
        write_durably(directory / MANIFEST, content.encode())

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """The manifest in ``directory``.

        Raises:
            FileNotFoundError: There is none.
            SerializationError: It isn't one, or a newer probe wrote it.
        """
        path = directory / MANIFEST
        try:
            told = json.loads(path.read_bytes())
            if told.pop("format") != _FORMAT or told.pop("version") > _VERSION:
                raise SerializationError(f"{path}: not a checkpoint manifest of probe, or written by a newer probe")
            files = {_inside(name): FileEntry(**entry) for name, entry in told.pop("files").items()}
            return cls(files=files, **told)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, SerializationError):
                raise
            raise SerializationError(f"{path}: not a checkpoint manifest of probe: {error!r}") from error


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SerializationError(f"manifest: the file {name!r} is outside the checkpoint")
    return name


# ------------------------------------------------------------------------------------------------------------- writing


def staging_of(target: Path) -> Path:
    """Where ``target`` is written before it is complete."""
    return target.with_name(target.name + INCOMPLETE)


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, a link that leads nowhere among it."""
    return os.path.lexists(path)


def discard(path: Path) -> None:
    """Remove a directory, or a link to one: what that leads to is somebody else's and stays.

    Raises:
        OSError: It can't be removed.
    """
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def settle(target: Path) -> None:
    """Finish what a crash has interrupted: an older ``target`` that had been moved away comes back, or is removed."""
    older = target.with_name(target.name + REPLACED)
    if not is_there(older):
        return
    if is_there(target):
        discard(older)
    else:
        with suppress(FileNotFoundError):  # another process has just done it
            older.rename(target)


def holds_others(target: Path) -> bool:
    """Whether ``target`` has files and none of probe's manifests, so that nobody may replace it."""
    return target.exists() and not (target / MANIFEST).exists() and (target.is_file() or any(target.iterdir()))


def begin(target: Path) -> Path:
    """An empty directory beside ``target`` to write into.

    Raises:
        InputError: ``target`` holds what probe hasn't written.
        OSError: It can't be made.
    """
    settle(target)
    if holds_others(target):
        raise InputError(
            f"local_path: {target} holds files but no {MANIFEST} of probe, expected a checkpoint of probe or nothing"
        )
    staging = staging_of(target)
    if is_there(staging):
        discard(staging)
    staging.mkdir(parents=True)
    return staging


def put_in_place(staging: Path, target: Path) -> None:
    """Give ``staging`` its name. An older ``target`` is removed only when the new one stands; what others put into
    it is kept.

    Raises:
        OSError: It couldn't be renamed; the older one is back then.
    """
    for name in foreign_files(target):
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(target / name, staging / name)
    for inner in [staging, *(path for path in staging.rglob("*") if path.is_dir())]:
        sync_directory(inner)
    older = target.with_name(target.name + REPLACED)
    for attempt in range(_ATTEMPTS):
        if is_there(target):
            target.rename(older)
        try:
            staging.rename(target)
            break
        except OSError:
            settle(target)
            if attempt == _ATTEMPTS - 1 or not is_there(target):
                raise
    sync_directory(target.parent)
    if is_there(older):
        discard(older)


def files_of(directory: Path) -> list[str]:
    """Relative paths of all files under ``directory`` but the manifest, sorted."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in paths if path != directory / MANIFEST)


def foreign_files(directory: Path) -> list[str]:
    """Files in a checkpoint that its manifest doesn't list: a trainer's own, such as the place in its data."""
    if not (directory / MANIFEST).exists():
        return []
    try:
        listed = Manifest.read(directory).files
    except SerializationError:  # then nothing says which files are whose
        return files_of(directory)
    return [name for name in files_of(directory) if name not in listed]


def entries(directory: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """Bytes and SHA-256 of files, read back from the disk they have been synced to."""
    return {name: _entry(directory / name) for name in names}


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(os.fstat(file.fileno()).st_size, digest)


# ------------------------------------------------------------------------------------------------------------ checking


def problems(directory: Path, files: Mapping[str, FileEntry], *, checksums: bool) -> list[str]:
    """What is wrong with ``files`` of a checkpoint, a line for each; ``checksums``: also read their bytes."""
    return [line for name, entry in files.items() if (line := _problem(directory, name, entry, checksums))]


def _problem(directory: Path, name: str, entry: FileEntry, checksums: bool) -> str | None:
    path = directory / name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return f"{name} is missing"
    if size != entry.bytes:
        return f"{name} has {size} bytes, expected {entry.bytes}"
    if checksums and _entry(path).sha256 != entry.sha256:
        return f"{name} is corrupted: its SHA-256 is not the one it was written with"
    return None


def is_complete(directory: Path) -> bool:
    """Whether all that the manifest of ``directory`` lists is there with the right size.

    A directory without a manifest of its own is complete when the directories in it that have one are (``actor``,
    ``critic``), there is at least one of them, and none is being written.
    """
    if not directory.is_dir() or directory.name.endswith((INCOMPLETE, REPLACED)):
        return False
    if (directory / MANIFEST).exists():
        return _is_whole(directory)
    inner = [path for path in directory.iterdir() if path.is_dir()]
    if any(path.name.endswith((INCOMPLETE, REPLACED)) for path in inner):
        return False
    ours = [path for path in inner if (path / MANIFEST).exists()]
    return bool(ours) and all(_is_whole(path) for path in ours)


def _is_whole(directory: Path) -> bool:
    try:
        return not problems(directory, Manifest.read(directory).files, checksums=False)
    except (OSError, SerializationError):
        return False


def check_listed(directory: Path, manifest: Manifest, found: list[str]) -> None:
    """Raise where lines of ``found`` say that ``directory`` isn't what its manifest lists.

    Raises:
        InputError: There are problems; the message names each, what was expected and what is there.
    """
    if not found:
        return
    there = ", ".join(files_of(directory)) or "nothing"
    raise InputError(
        f"checkpoint {directory}: {'; '.join(found)}. Expected {', '.join(sorted(manifest.files))}; found {there}"
    )


def describe_missing(directory: Path) -> str:
    """Why ``directory`` can't be loaded when it has no manifest."""
    if not directory.is_dir():
        aside = staging_of(directory)
        hint = f"; {aside} is what an interrupted save has left" if aside.is_dir() else ""
        return f"checkpoint {directory}: no such directory{hint}"
    there = ", ".join(files_of(directory)[:20]) or "nothing"
    return f"checkpoint {directory}: no {MANIFEST}, so it isn't a complete checkpoint of probe; found {there}"


def to_json(value: Any) -> bytes:
    """``value`` as JSON bytes; NaN and infinities as Python writes them."""
    return json.dumps(value).encode()
