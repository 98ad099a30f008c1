"""``probe.replay(failure, function)``: the micro-batch in which an exception came, given to a function again."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from probe.core.protocol import DataProto
from probe.errors import InputError

R = TypeVar("R")


def replay(failure: Any, function: Callable[[DataProto], R]) -> R:
    """Call a function with the micro-batch that a failure has kept: see ``save_failed_batch`` of :func:`probe.start`.

    Args:
        failure: A row of ``run.failures()``, or the path or URL of such a file.
        function: Is called with a DataProto on the CPU, whatever class the micro-batch had: a dict's tensors are its
            ``batch``, everything else its ``non_tensor_batch``.

    Returns:
        What the function returns; what it raises is raised.

    Raises:
        InputError: The failure has kept no micro-batch.
        FileNotFoundError: Its file isn't there any more.
        SerializationError: The file is damaged.
    """
    path = os.fspath(failure if isinstance(failure, str | os.PathLike) else _path_of(failure))
    with _on_this_machine(path) as here:
        data = DataProto.load_from_disk(here)
    return function(data)


@contextlib.contextmanager
def _on_this_machine(path: str) -> Iterator[str]:
    """The file itself, or a copy of one that is in a store, for as long as it is read."""
    if "://" not in path:
        yield path
        return
    import fsspec

    with tempfile.TemporaryDirectory() as folder:
        system, there = fsspec.core.url_to_fs(path)
        system.get_file(there, f"{folder}/batch")
        yield f"{folder}/batch"


def _path_of(failure: Any) -> str:
    try:
        path = str(failure["batch_path"])
    except (KeyError, TypeError, IndexError):
        path = str(getattr(failure, "batch_path", ""))
    if not path:
        raise InputError(
            "failure: no micro-batch was kept for it; expected a row of run.failures() whose batch_path isn't empty. "
            "probe.start(save_failed_batch=True) keeps the micro-batch in which an exception is raised"
        )
    return path
