"""Has the answers of a large run worked out when its session has ended, so that who opens it first doesn't wait.

What views ask first of ten million rows takes most of a minute of a processor, and less than two seconds once it is
kept beside the rows (:mod:`probe.runs.answers`). A process of its own works it out, with the lowest priority, after the
training: nobody waits for it. It adds files to the folder of answers and changes nothing else. Where it is killed, as
in a container or a job that ends with the training, the first reader works the answers out, as ever.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from probe._check import missing_view
from probe._io import child_environment
from probe.runs.answers import KEEP_VARIABLE, LEAST_BYTES
from probe.runs.layout import PARTS_NAME

_log = logging.getLogger("probe.publishing")

#: Files of which the size is asked for: of a run of 1,024 ranks there are ten thousand.
_ASKED: Final = 64

#: A row takes so many times as many bytes in JSONL as in Parquet, or more.
_JSONL_TIMES: Final = 10

#: Those that were left alone, until they have ended.
_left: list[subprocess.Popen[bytes]] = []


def have_worked_out(directory: Path, command: Sequence[str] | None = None) -> int | None:
    """Have the answers of a run worked out in the background, where it is about as large as it must be for that.

    Args:
        directory: The run directory.
        command: The command line of the process; None for that of ``probe.cli.first_look``.

    Returns:
        The id of the process; None where nothing is to be kept: the run is small, :data:`KEEP_VARIABLE` is ``"0"``, or
        what views need isn't installed.

    Raises:
        OSError: The directory can't be read, or the process can't be started.
    """
    _left[:] = [one for one in _left if one.poll() is None]
    if os.environ.get(KEEP_VARIABLE) == "0" or missing_view() is not None or about_bytes(directory) < LEAST_BYTES:
        return None
    own = [sys.executable, "-P", "-m", "probe.cli.first_look", str(directory.absolute())]
    process = subprocess.Popen(  # this interpreter, or what the caller asks for
        own if command is None else command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=child_environment(os.environ) | {"PROBE": "off"},
        start_new_session=True,  # a terminal that is closed ends what belongs to it
    )
    _left.append(process)
    _log.info(
        "process %d works out what views of this run ask first, and goes on after this one; %s=0 leaves that to the "
        "first view",
        process.pid,
        KEEP_VARIABLE,
    )
    return process.pid


def about_bytes(directory: Path) -> float:
    """About how many bytes of Parquet a run will have when all of its processes have ended, from the sizes of a few
    files.

    Args:
        directory: The run directory.

    Raises:
        OSError: It can't be read.
    """
    parts = directory / PARTS_NAME
    parquet = _about(parts, ".parquet") if parts.is_dir() else 0.0
    return parquet + _about(directory, ".jsonl") / _JSONL_TIMES


def _about(folder: Path, suffix: str) -> float:
    names = sorted(one for one in os.listdir(folder) if one.endswith(suffix))  # noqa: PTH208  (ten thousand names)
    asked = names[:: -(-len(names) // _ASKED) or 1]
    sizes = []
    for one in asked:
        try:
            sizes.append((folder / one).stat().st_size)
        except FileNotFoundError:  # it became Parquet, or was merged, meanwhile
            continue
    return sum(sizes) / len(sizes) * len(names) if sizes else 0.0
