"""Files of a dataset as one Hugging Face table, each row of which can be traced back to its file."""

from __future__ import annotations

import bisect
import glob
import itertools
import json
import os
import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from probe.core.dataset.config import DatasetConfig
from probe.core.dataset.json_rows import arrow_of_json
from probe.errors import InputError, InputTypeError, MissingDependencyError, MissingKeyError, UnknownNameError
from probe.guard import attempt, raised_as
from probe.hooks import observed

_SUFFIXES: Final = (".parquet", ".json", ".jsonl")


def file_list(data_files: Any) -> list[str]:
    """One path or URL, or several, as a list of strings.

    Raises:
        InputTypeError: It is something else.
        InputError: There is no file.
        UnknownNameError: A file is of another kind.

    >>> file_list("train.parquet")
    ['train.parquet']
    """
    single = isinstance(data_files, str | os.PathLike)
    if not single and not isinstance(data_files, Sequence):
        raise InputTypeError(f"data_files: got {type(data_files).__name__}, expected a path or a list of paths")
    names = [data_files] if single else list(data_files)  # OmegaConf's ListConfig is a Sequence
    if not names:
        raise InputError("data_files: got no files, expected at least one")
    for name in names:
        if not isinstance(name, str | os.PathLike):
            raise InputTypeError(f"data_files: got {name!r}, expected a path")
        if _suffix(os.fspath(name)) not in _SUFFIXES:
            raise UnknownNameError.of(f"data_files: the suffix of {os.fspath(name)!r}", _suffix(name), _SUFFIXES)
    return [os.fspath(name) for name in names]


def _suffix(name: str | os.PathLike[str]) -> str:
    return posixpath.splitext(os.fspath(name))[1].lower()  # no Path, which a URL isn't


class Files:
    """The rows of several files, one after the other.

    Attributes:
        table: A ``datasets.Dataset``.
        names: The files, as they were given.
        counts: The number of rows of each.
        texts: Columns that hold JSON text, because the values in a JSON file have no type in common.
    """

    def __init__(self, table: Any, names: list[str], counts: list[int], texts: frozenset[str] = frozenset()) -> None:
        self.table = table
        self.names = names
        self.counts = counts
        self.texts = texts
        self._ends = list(itertools.accumulate(counts))

    def origin(self, row: int) -> str:
        """Where a row of the table comes from, in words."""
        place = bisect.bisect_right(self._ends, row)
        return f"row {row - (self._ends[place] - self.counts[place])} of {self.names[place]}"

    def plain(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the table with JSON text turned into what it stands for."""
        found = {name: json.loads(row[name]) for name in self.texts & row.keys() if row[name] is not None}
        return row | found


@observed("rl_dataset.load", "files of prompts are copied here and read; result has table, names, counts of rows")
def read_files(names: list[str], config: DatasetConfig) -> Files:
    """Read the files into one table, memory-mapped from ``config.cache_dir``.

    A column that only some files have is None in the rows of the others. What :mod:`probe.core.dataset.json_rows`
    can't give a type is JSON text in the table, see :meth:`Files.plain`.

    Raises:
        MissingKeyError: A file without ``config.prompt_key``; lists its columns.
        InputError: A file that can't be read, or whose columns have other types than those before it.
        MissingDependencyError: ``datasets`` is missing.
    """
    from probe.core.fs import copy_to_local

    datasets = _datasets()
    tables, texts = [], []
    with progress_bars(datasets):
        for name in names:
            local = copy_to_local(name, cache_dir=config.cache_dir, use_shm=config.use_shm)
            table, of_json = _read(datasets, name, local, config)
            if config.prompt_key not in table.column_names:
                raise MissingKeyError(
                    f"config.prompt_key: {name} has no column {config.prompt_key!r}, "
                    f"it has {', '.join(table.column_names) or 'none'}"
                )
            tables.append(table)
            texts.append(of_json)
    _check_texts(tables, texts, names)
    counts = [len(table) for table in tables]
    return Files(_joined(datasets, tables, names), names, counts, frozenset().union(*texts))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError.of("RLHFDataset", "datasets", "data") from error
    return datasets


@contextmanager
def progress_bars(datasets: Any) -> Iterator[None]:
    """The bars of ``datasets`` are shown inside the block where a person watches, and as the user left them after."""
    quiet = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()
    if quiet:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if quiet:
            datasets.enable_progress_bars()


def _read(datasets: Any, name: str, local: str, config: DatasetConfig) -> tuple[Any, frozenset[str]]:
    """The table of one file, and which of its columns hold JSON text."""
    read = _read_parquet if _suffix(name) == ".parquet" else _read_json
    with raised_as(lambda error: _unreadable(name, error), but=()):
        return read(datasets, local, config)


def _unreadable(name: str, error: Exception) -> InputError:
    """A broken file shows itself as one of many exceptions of pyarrow and datasets."""
    cause = error.__cause__ or error
    text = str(error) if isinstance(error, InputError) else f"{type(cause).__name__}: {cause}"
    return InputError(f"data_files: {name} can't be read: {text}")


def _read_parquet(datasets: Any, local: str, config: DatasetConfig) -> tuple[Any, frozenset[str]]:
    import pyarrow.parquet as pq

    if not pq.read_metadata(local).num_rows:  # the reader of `datasets` takes no empty file
        return datasets.Dataset(pq.read_table(local)), frozenset()
    # It takes names for patterns, so that a "*" in one would bring in the rows of other files.
    return datasets.Dataset.from_parquet(glob.escape(local), cache_dir=config.cache_dir), frozenset()


def _read_json(datasets: Any, local: str, config: DatasetConfig) -> tuple[Any, frozenset[str]]:
    from datasets.utils import tqdm

    stream, texts = arrow_of_json(local, config.cache_dir, lambda rows: tqdm(rows, desc="Reading JSON", unit=" rows"))
    table = datasets.Dataset.from_file(stream)
    if not table.column_names:  # no rows, so no columns
        table = datasets.Dataset.from_dict({config.prompt_key: []})
    return table, texts


def _check_texts(tables: list[Any], texts: list[frozenset[str]], names: list[str]) -> None:
    """One file's JSON text must not meet another's plain text: both are strings in the table."""
    for column in sorted(frozenset().union(*texts)):
        for table, own, name in zip(tables, texts, names, strict=True):
            if len(table) and column in table.column_names and column not in own:
                mixed = next(one for one, found in zip(names, texts, strict=True) if column in found)
                raise InputError(
                    f"data_files: the column {column!r} has values of one type in {name}, but of several in {mixed}; "
                    "put the rows into one file, or give the values one type"
                )


def _joined(datasets: Any, tables: list[Any], names: list[str]) -> Any:
    if len(tables) == 1:
        return tables[0]
    try:
        return datasets.concatenate_datasets(tables)
    except ValueError as error:
        columns = "; ".join(f"{name}: {dict(table.features)}" for name, table in zip(names, tables, strict=True))
        raise InputError(f"data_files: the columns have different types in different files. {columns}") from error


def why_not_sent(values: Any) -> str:
    """Why :func:`measured` can't send what its function needs to other processes; "" where it can."""
    import dill  # as `datasets` does, which needs it

    def pickled() -> str:
        dill.dumps(values)
        return ""

    # An object's own way to be pickled may raise anything.
    return attempt(pickled, lambda error: f"can't be pickled ({type(error).__name__}: {error})")


def measured(table: Any, measure: Callable[[list[dict[str, Any]], list[int]], list[int]], workers: int) -> list[int]:
    """A number for each row, found in batches, in several processes, under a progress bar.

    Args:
        table: The table that is read.
        measure: Takes rows and their numbers and gives a number for each; what it raises is raised.
        workers: How many processes count; 1 is this one.
    """

    def of_batch(batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, list[int]]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        return {"value": measure(rows, numbers)}

    with progress_bars(_datasets()):
        values = table.map(
            of_batch,
            with_indices=True,
            batched=True,
            batch_size=256,
            num_proc=workers if workers > 1 else None,
            remove_columns=table.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
            new_fingerprint=f"{table._fingerprint}-measured",  # a hash of the tokenizer would take long
            desc="Measuring prompts",
        )["value"]
    return list(values)
