"""What came of the advice for earlier runs of a project, in the run that carries it out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from probe.analysis.advice.promises import carried_out, judged
from probe.analysis.difference import difference
from probe.errors import ProbeError
from probe.runs.layout import INFO_NAME, RunInfo, read_info
from probe.runs.links import all_within
from probe.runs.reader import Run

#: Earlier runs that are asked, the newest first: each is replayed, which takes as long as advice for it.
MOST: Final = 3
#: Directories beside a run that are looked at.
_LISTED: Final = 500


@dataclass(frozen=True)
class Earlier:
    """What came of the advice for one earlier run.

    Attributes:
        name: Of its directory.
        promises: A frame, see :func:`probe.analysis.advice.promises.promises`; at least one row.
    """

    name: str
    promises: pd.DataFrame


def earlier(run: Run, most: int = MOST) -> list[Earlier]:
    """What came of the advice for earlier runs that this one carries out.

    Earlier runs are those in the same directory, of the same project, with another configuration. One that is a link,
    or has one that leads out of that directory, isn't read: who may read a run may not be meant to read elsewhere.

    Args:
        run: The run.
        most: How many earlier ones are asked, the newest first.

    Returns:
        The newest first; one whose advice isn't carried out, or that can't be read, isn't among them.
    """
    found = []
    for path in itertools.islice(before(run), most):
        try:
            with Run(path) as one, one.asked_often():
                done = carried_out(one, run)
                told = judged(done, run, difference(one, run)) if done else pd.DataFrame()
        except (ProbeError, OSError):  # of another version, or just being deleted
            continue
        if len(told):
            found.append(Earlier(path.name, told))
    return found


def before(run: Run) -> Iterator[Path]:
    """The earlier runs that may be read, the newest first; see :func:`earlier`.

    Args:
        run: The run.
    """
    if "://" in str(run.path) or not run.info.config:  # a store lists slowly
        return
    here = Path(os.path.realpath(run.path))
    try:
        beside = sorted(one for one in here.parent.iterdir() if one != here and _is_run(one))
    except OSError:
        return
    found = []
    for one in beside[:_LISTED]:
        try:
            info = read_info(one)
        except (ProbeError, OSError):
            continue
        if _precedes(info, run.info):
            found.append((info.wall_ns, one))
    for _, one in sorted(found, reverse=True):
        try:
            if all_within(one, [here.parent]):
                yield one
        except OSError:  # just being deleted
            continue


def _is_run(path: Path) -> bool:
    """Whether it may be a run, and no link to one."""
    info = path / INFO_NAME
    return not path.is_symlink() and not info.is_symlink() and info.is_file()


def _precedes(info: RunInfo, now: RunInfo) -> bool:
    other = bool(info.config) and info.config != now.config
    return other and info.project == now.project and info.wall_ns < now.wall_ns
