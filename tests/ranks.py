"""Ranks of a test: processes that begin with torch imported.

Importing torch and tensordict is most of what a rank costs here. So ranks are forked from a server that has imported
them once; it is a process without threads, as it only imports.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.multiprocessing.spawn import start_processes

PATIENCE_S = 300

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["hypothesis", "numpy", "pytest", "tensordict", "torch.distributed.fsdp"])


def run_ranks(function: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """Call ``function(rank, *arguments)`` in a process for each rank; one that fails ends them all, with its error."""
    start_processes(function, arguments, nprocs=ranks, start_method="forkserver")


def ended_ranks(function: Callable[..., None], calls: Sequence[tuple[Any, ...]], folder: Path) -> tuple[list[int], str]:
    """Make each call in a process of its own, and let each end as it does.

    Args:
        function: What each process calls.
        calls: Its arguments, for each process.
        folder: Where the processes' output is kept until they have ended.

    Returns:
        The exit code of each process, and what all of them wrote.
    """
    logs = [folder / f"{function.__name__}_{index}.log" for index in range(len(calls))]
    ranks = [SERVER.Process(target=_logged, args=(log, function, call)) for log, call in zip(logs, calls, strict=True)]
    for rank in ranks:
        rank.start()
    try:
        for rank in ranks:
            rank.join(PATIENCE_S)
        codes = [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    output = "\n".join(log.read_text() for log in logs if log.exists())
    assert None not in codes, f"a rank went on for more than {PATIENCE_S} s\n{output}"
    return [code for code in codes if code is not None], output


def _logged(log: Path, function: Callable[..., None], call: tuple[Any, ...]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.__stdout__.fileno())  # type: ignore[union-attr]
    os.dup2(descriptor, sys.__stderr__.fileno())  # type: ignore[union-attr]
    function(*call)
