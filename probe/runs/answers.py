"""Answers that are kept beside the rows which they were worked out from, for large runs on this machine.

::

    runs/<project>/<experiment>/answers/
      9f0c1d5e…/              one state of the run's Parquet files
        51b2….arrow           one answer: a mark, a checksum, and an Arrow stream

What probe itself asks of a run when somebody opens it, looks at it in a terminal or writes its report is the same each
time, and of ten million rows takes seconds of a processor each time. A Parquet file of a run never changes, so that an
answer stays right as long as the files are the same and the question means the same. Both stand in its name: the folder
is called after the names, sizes and times of all files, the file after the question, with the text of every view and
table that it stands on (see :func:`probe.runs.database.definition`). Whatever differs has another name, and is worked
out anew: there is no answer that could be out of date.

Nobody depends on it. It is kept for a run without JSONL files alone, and of so many bytes that it's worth it; where the
folder can't be written to nothing is kept; an answer that is damaged, or can't be read, isn't there. The folder may be
deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe._io import written_aside

if TYPE_CHECKING:
    import pyarrow

#: Inside a run directory.
FOLDER: Final = "answers"

#: Bytes of Parquet files below which a run is asked faster than it's worth to keep anything: about half a million rows.
LEAST_BYTES: Final = 16 * 2**20

#: Bytes of an answer above which it isn't kept.
MOST_BYTES: Final = 64 * 2**20

#: The environment variable that is "0" in a process which must leave a run as it is.
KEEP_VARIABLE: Final = "PROBE_KEEP_ANSWERS"

#: How a file begins; the number changes with what is behind it.
_MARK: Final = b"probe answer 1\n"
_DIGEST_BYTES: Final = 16

#: Rows from which it's worth saying a text once.
_MANY_ROWS: Final = 1000


class Answers:
    """The answers that are kept for one moment of a run. Any thread may ask, and so may other processes.

    Args:
        root: The run directory.
        paths: Gives the paths of the Parquet files of that moment; asked for once.
    """

    def __init__(self, root: str, paths: Callable[[], Iterable[str]]) -> None:
        self._root = Path(root) / FOLDER
        self._paths = paths
        self._lock = threading.Lock()
        self._known = False
        self._folder: Path | None = None

    def find(self, question: str) -> pyarrow.Table | None:
        """The answer to a question.

        Args:
            question: All that it depends on, but the files.

        Returns:
            The answer; None where it isn't kept.
        """
        folder = self._place()
        if folder is None:
            return None
        name = _name(question)
        try:
            data = (folder / name).read_bytes()
        except OSError:
            return None
        return _decoded(data, name)

    def keep(self, question: str, found: pyarrow.Table) -> None:
        """Keep an answer, where that can be done.

        Args:
            question: As :meth:`find` is asked.
            found: Its answer.
        """
        folder = self._place()
        if folder is None or found.nbytes > MOST_BYTES or os.environ.get(KEEP_VARIABLE) == "0":
            return
        name = _name(question)
        with contextlib.suppress(OSError):  # a directory of somebody else's, a disk that is full: then it isn't kept
            if not folder.is_dir():
                self._begin(folder)
            rows = _encoded(found)
            # Not waited for until it is on the disk: what a power cut tears has a wrong checksum.
            with written_aside(folder / name, sync=False) as aside, aside.open("wb") as file:
                file.writelines((_MARK, _sum(name, rows), rows))

    def _begin(self, folder: Path) -> None:
        """A folder for this moment. Those of other moments answer nobody any more."""
        folder.mkdir(parents=True, exist_ok=True)
        for other in self._root.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def _place(self) -> Path | None:
        """Where the answers of this moment are; None where none are kept."""
        with self._lock:
            if not self._known:
                self._known, moment = True, _moment(self._paths())
                self._folder = None if moment is None else self._root / moment
            return self._folder


def _moment(paths: Iterable[str]) -> str | None:
    """What a state of the files is called; None where they are small together, or aren't there any more."""
    made, total = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
    for path in sorted(paths):
        try:
            told = os.stat(path)  # noqa: PTH116  (of ten thousand files: a Path each costs more than the question)
        except OSError:
            return None
        total += told.st_size
        made.update(f"{path.rpartition('/')[2]}\0{told.st_size}\0{told.st_mtime_ns}\n".encode())
    return made.hexdigest() if total >= LEAST_BYTES else None


def _name(question: str) -> str:
    told = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    return f"{told.hexdigest()}.arrow"


def _sum(name: str, rows: Any) -> bytes:
    """Over the name, too: a file that was renamed answers another question."""
    return hashlib.blake2b(rows, digest_size=_DIGEST_BYTES, key=name[:32].encode()).digest()


def _encoded(found: pyarrow.Table) -> Any:
    """An answer as the bytes of a stream, in which columns of few different texts say each text once."""
    import pyarrow as pa

    for place, column in enumerate(found.columns):
        if len(column) >= _MANY_ROWS and pa.types.is_string(column.type):
            said = column.combine_chunks().dictionary_encode()
            if len(said.dictionary) <= len(column) // 4:
                found = found.set_column(place, found.column_names[place], said)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(found)
    return sink.getvalue()


def _decoded(data: bytes, name: str) -> pyarrow.Table | None:
    import pyarrow as pa

    if not data.startswith(_MARK):
        return None
    begin = len(_MARK) + _DIGEST_BYTES
    rows = memoryview(data)[begin:]
    if data[len(_MARK) : begin] != _sum(name, rows):
        return None
    try:
        found = pa.ipc.open_stream(rows).read_all()
        plain = (
            one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in found.schema
        )
        return found.cast(pa.schema(plain))
    except pa.ArrowException:  # such as of a build without this compression
        return None
