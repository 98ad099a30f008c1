"""A finished segment becomes Parquet parts, one a table.

pyarrow is imported when it's first needed, which in a training worker is in the writer thread at the first
roll-over.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from probe._io import ASIDE, sync_directory, written_aside
from probe.runs.columnar import CHUNK_BYTES, Columnar
from probe.runs.columns import schema
from probe.runs.layout import PARTS_NAME, Segment

if TYPE_CHECKING:
    import pyarrow

#: An aside file this old belongs to nobody any more.
STALE_S: Final = 600

#: Libraries of pyarrow that a roll-over doesn't need.
_NEVER_LOADED: Final = re.compile("flight|substrait|gandiva|encryption|orc|gcsfs|s3fs|azurefs|hdfs|tests")

#: Key of a part's metadata: how many lines of the segment were unreadable.
BAD_LINES: Final = b"probe_bad_lines"


def can_roll_over() -> bool:
    """Whether lines can become Parquet here. Where pyarrow isn't installed they stay lines, which readers read as well,
    and ``probe compact`` makes Parquet of them where it is.
    """
    return importlib.util.find_spec("pyarrow") is not None


def warm_up() -> None:
    """Read pyarrow's libraries, so that its import finds them in memory. Reading lets other threads run; loading a
    library doesn't, and from a slow disk keeps all of the process waiting, training and the writer's thread included.
    """
    found = None if "pyarrow" in sys.modules else importlib.util.find_spec("pyarrow")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for path in sorted(Path(folder).glob("*.so*")):
            if path.is_symlink() or _NEVER_LOADED.search(path.name):
                continue
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                while file.read(CHUNK_BYTES):
                    pass


def roll_over(directory: Path, segment: Segment) -> Generator[None, None, None]:
    """Turn a finished JSONL segment into Parquet parts. A generator, so that the caller can do its other
    work in
    between: it yields every few dozen milliseconds, and has done nothing that counts until it ends.

    The parts are written aside, synced and renamed; then the JSONL file is deleted, which is the commit.
    Killed at any moment it leaves either the JSONL file, which wins over parts of its segment, or all of the
    parts.

    Raises:
        OSError: A file can't be read or written; the JSONL file is as it was.
    """
    source = directory / segment.name
    chunks: dict[str, list[pyarrow.Table]] = {}
    columnar = Columnar()
    for data in _chunks(source):
        for table, found in columnar.add_lines(data).items():
            chunks.setdefault(table, []).append(found)
        yield
    parts = directory / PARTS_NAME
    parts.mkdir(exist_ok=True)
    for table, found in chunks.items():
        _write(parts / segment.part(table), table, found, columnar.bad)
        yield
    sync_directory(parts)
    source.unlink()
    sync_directory(directory)


def _chunks(source: Path) -> Iterator[bytes]:
    """The file in pieces that end with a line; a torn last line is left out."""
    with source.open("rb") as file:
        rest = b""
        while data := file.read(CHUNK_BYTES):
            data = rest + data
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            yield data[:end]


def _write(path: Path, table: str, chunks: Iterable[pyarrow.Table], bad: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {**schema(table).metadata, BAD_LINES: str(bad)}
    whole = pa.concat_tables(chunks).cast(schema(table)).replace_schema_metadata(metadata)
    with written_aside(path) as aside, aside.open("wb") as file:
        pq.write_table(whole, file, compression="zstd")


def sweep(directory: Path) -> None:
    """Delete aside files that a killed process left behind."""
    for folder in (directory, directory / PARTS_NAME):
        for path in folder.glob(f"*{ASIDE}"):
            with contextlib.suppress(OSError):  # somebody else sweeps too
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
