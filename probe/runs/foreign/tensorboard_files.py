"""TensorBoard's event files, by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from probe.errors import InputError
from probe.runs.foreign.rows import Read, of_step

_NAMES: Final = "events.out.tfevents.*"


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
    for key, step, wall_s, value in _scalars(found):
        steps.setdefault(step, {})[key] = value
        ends[step] = max(int(wall_s * 1e9), ends.get(step, 0))
    read = Read("TensorBoard", begun_ns=min(ends.values(), default=0))
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
