"""TensorBoard's event files, by TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from probe.errors import InputError
from probe.runs.foreign.rows import Read, metrics, of_step, step_number, wall_clock

_NAMES: Final = "events.out.tfevents.*"

#: Wall-clock seconds of the year 2286, behind the last that a row holds.
_LAST_S: Final = 1e10


def has_events(directory: Path) -> bool:
    """Whether a directory has event files.

    Args:
        directory: That is looked into, without those below.
    """
    return next(directory.glob(_NAMES), None) is not None


def read_events(directory: Path) -> Read:
    """The scalars of a directory. Of a step that was logged twice, as after a restart, the last counts.

    Args:
        directory: With event files.

    Raises:
        InputError: TensorBoard isn't installed.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError as error:
        raise InputError(
            "path: TensorBoard's files need the package 'tensorboard'; "
            "install it with: pip install 'probe-rl[tensorboard]'"
        ) from error
    found = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    steps: dict[int, dict[str, float]] = {}
    ends: dict[int, int] = {}
    left_out = 0
    for key, step, wall_s, value in _scalars(found):
        if step_number(step) is None or not math.isfinite(wall_s) or not metrics({key: value}):
            left_out += 1
            continue
        steps.setdefault(step, {})[key] = value
        ends[step] = max(wall_clock(int(min(max(0.0, wall_s), _LAST_S) * 1e9)), ends.get(step, 0))
    read = Read("TensorBoard", begun_ns=min(ends.values(), default=0), ends=ends)
    if left_out:
        read.notes.append(f"Values with a step, time or name that can't be one were left out: {left_out}.")
    for number, step in enumerate(sorted(steps)):
        read.rows += of_step(step, steps[step], ends[step], number)
    read.rows.sort(key=lambda row: row.time_ns)
    return read


def _scalars(found: Any) -> Any:
    """Key, step, wall-clock seconds and value of each point, in the order in which they were written."""
    from tensorboard.util import tensor_util

    tags = found.Tags()
    for key in tags["scalars"]:
        for one in found.Scalars(key):
            yield str(key), int(one.step), float(one.wall_time), float(one.value)
    for key in tags["tensors"]:
        plugin = found.SummaryMetadata(key).plugin_data.plugin_name
        for one in found.Tensors(key) if plugin == "scalars" else ():
            yield str(key), int(one.step), float(one.wall_time), float(tensor_util.make_ndarray(one.tensor_proto))
