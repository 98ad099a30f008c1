"""The ``parts`` folder as compaction changes it, on this machine and on an object store."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from probe._io import AsideFile, holding, sync_directory, write_atomically
from probe.errors import RunError
from probe.runs.files import RunFiles
from probe.runs.layout import part_of, segment_of
from probe.runs.manifest import Manifest, bundle_of, encode_manifest, manifest_name, manifest_number
from probe.runs.parts import sweep
from probe.runs.pieces import piece_of


class Folder(Protocol):
    """Where compacted files come to."""

    def create(self, name: str) -> Any:
        """A new file to write to; ``close`` makes it appear, ``abandon`` forgets it."""
        ...

    def publish(self, manifest: Manifest) -> None:
        """Make ``manifest`` the truth, at once or not at all.

        Raises:
            RunError: Somebody else has published one of its number.
        """
        ...

    def clean(self, manifest: Manifest, before: Manifest) -> None:
        """Delete what ``manifest`` has replaced."""
        ...


@contextlib.contextmanager
def open_folder(files: RunFiles) -> Iterator[Folder]:
    """The folder of a run, for one compaction at a time.

    Raises:
        RunError: Somebody else compacts the run, or it can't be written to.
    """
    if not files.local:
        yield RemoteFolder(files)
        return
    directory = Path(files.folder)
    try:
        directory.mkdir(exist_ok=True)
        with holding(directory) as ours:
            if not ours:
                raise RunError(f"run {files.shown!r}: another process is compacting it")
            yield LocalFolder(files)
    except OSError as error:
        raise RunError(f"run {files.shown!r} can't be compacted: {error}") from error


def _leftovers(root: list[str], parts: list[str], manifest: Manifest, before: Manifest) -> tuple[list[str], list[str]]:
    """Names of what doesn't count any more, among those in the run's directory and in ``parts``.

    The manifest before is kept: it tells a reader that saw it last that there is a newer one.
    """
    gone, names = manifest.segments(), set(manifest.names())
    lines = [name for name in root if segment_of(name) in gone or getattr(piece_of(name), "segment", None) in gone]
    old: list[str] = []
    for name in parts:
        part, number = part_of(name), manifest_number(name)
        replaced = part is not None and part[1] in gone
        unnamed = bundle_of(name) is not None and name not in names
        if replaced or unnamed or (number is not None and number < min(manifest.number, before.number)):
            old.append(name)
    return lines, old


class LocalFolder:
    """On this machine: files are written aside, synced and renamed."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._directory = Path(files.folder)

    def create(self, name: str) -> Aside:
        return Aside(self._directory / name)

    def publish(self, manifest: Manifest) -> None:
        sync_directory(self._directory)
        path = self._directory / manifest_name(manifest.number)
        write_atomically(path, encode_manifest(manifest), sync_folder=True)

    def clean(self, manifest: Manifest, before: Manifest) -> None:
        root = Path(self._files.root)
        sweep(root)
        names = [path.name for path in self._directory.iterdir()]
        lines, old = _leftovers([path.name for path in root.iterdir()], names, manifest, before)
        for path in (*(root / name for name in lines), *(self._directory / name for name in old)):
            path.unlink(missing_ok=True)


class Aside:
    """A file that appears under its name when it is complete and on the disk."""

    def __init__(self, path: Path) -> None:
        self._aside = AsideFile(path)
        self._file = self._aside.path.open("wb")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            self._aside.commit()

    def abandon(self) -> None:
        self._file.close()
        self._aside.discard()


class RemoteFolder:
    """On an object store, where an object appears when it is complete, and there are no locks.

    Two compactions at a time: the manifest is written only where there is none of its number, which stores decide that
    know conditional writes. The files of the one that lost stay behind, and don't count.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files

    def create(self, name: str) -> Any:
        with self._files.asking():
            return Upload(self._files.system.open(f"{self._files.folder}/{name}", "wb"))

    def publish(self, manifest: Manifest) -> None:
        path = f"{self._files.folder}/{manifest_name(manifest.number)}"
        with self._files.asking():
            self._files.system.invalidate_cache(self._files.folder)
            if self._files.system.exists(path):
                raise RunError(f"run {self._files.shown!r}: another process compacted it meanwhile")
            self._files.system.pipe_file(path, encode_manifest(manifest), mode="create")

    def clean(self, manifest: Manifest, before: Manifest) -> None:
        replaced = {bundle.id for bundle in before.bundles} - {bundle.id for bundle in manifest.bundles}
        lines, old = _leftovers(self._names(self._files.root), self._names(self._files.folder), manifest, before)
        # Files of bundles that no manifest named may be another compaction's.
        old = [name for name in old if bundle_of(name) is None or bundle_of(name) in replaced]
        paths = [*(f"{self._files.root}/{name}" for name in lines), *(f"{self._files.folder}/{name}" for name in old)]
        if paths:
            with self._files.asking():
                self._files.system.rm(paths)

    def _names(self, folder: str) -> list[str]:
        with self._files.asking(), contextlib.suppress(FileNotFoundError):
            self._files.system.invalidate_cache(folder)
            return [posixpath.basename(path.rstrip("/")) for path in self._files.system.ls(folder, detail=False)]
        return []


class Upload:
    """An object that appears when it is closed."""

    def __init__(self, file: Any) -> None:
        self._file = file

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def write(self, data: Any) -> int:
        return int(self._file.write(bytes(data)))

    def flush(self) -> None:
        """What is buffered goes with the next block: a store takes none that are small."""

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.discard()
