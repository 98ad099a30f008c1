"""``trainer_state.json`` of Transformers' trainer, and of what is built on it such as TRL: its ``log_history``.

The file is read entry by entry, twice: for the times, and while the rows are written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from probe.errors import InputError
from probe.records import Row, Scalar
from probe.runs.foreign import json_stream
from probe.runs.foreign.rows import (
    TORN,
    VALUES_LEFT_OUT,
    Read,
    counted_back,
    is_number,
    is_time,
    metrics,
    scope,
    step_number,
)

NAME: Final = "trainer_state.json"

KIND: Final = "Transformers' trainer_state.json"

_HISTORY: Final = "log_history"

#: What else of the state is kept, where it is a number, a boolean or a text.
_KEPT: Final = (
    "global_step",
    "max_steps",
    "epoch",
    "num_train_epochs",
    "train_batch_size",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
    "is_world_process_zero",
)

#: TRL's name of the time of a step, seconds: a mean over the steps since it was logged last.
_STEP_TIME: Final = "step_time"


def states_in(directory: Path) -> list[Path]:
    """The states of one training: that of its output directory, and those of its checkpoints.

    Args:
        directory: The ``output_dir``, or one of its checkpoints.
    """
    found = [directory / NAME, *sorted(directory.glob(f"checkpoint-*/{NAME}"))]
    return [one for one in found if one.is_file() and is_state(one)]


def is_state(path: Path) -> bool:
    """Whether a file is such a state: an object with a ``global_step`` and a list ``log_history``.

    Args:
        path: Of a file.
    """
    return _global_step(path) is not None


def read_state(paths: list[Path], root: Path) -> Read:
    """The log of the state that got farthest; of equals that which was written last.

    The file has no clock. Its last entry is taken to be written when the file last changed, and the entries before it
    so much earlier as TRL's ``step_time`` tells.

    Args:
        paths: The states of one training.
        root: What notes name them below.

    Raises:
        InputError: The state isn't what its name says.
        OSError: It can't be read.
    """
    chosen = max(paths, key=lambda one: (_is_whole(one), _global_step(one) or 0, one.stat().st_mtime_ns))
    log = _Log(chosen, remembers=len(paths) > 1)
    notes = log.notes()
    if len(paths) > 1:
        notes = [f"The log is that of {_below(chosen, root)}.", *notes]
        notes += [told for one in paths if one != chosen for told in _otherwise(one, chosen, log.seen, root)]
    settings = {"trainer_state": log.settings} if log.settings else {}
    return Read(KIND, begun_ns=log.begun_ns, notes=notes, later=log.rows(), settings=settings)


class _Log:
    """What a first pass over a state tells of its entries; a second one makes the rows."""

    def __init__(self, path: Path, *, remembers: bool) -> None:
        self._path, self._remembers = path, remembers
        self.settings: dict[str, Any] = {}
        self.seen: set[int] = set()  #: marks of the entries, where they are to be remembered
        self._singles: set[int] = set()  # entries that tell the time of one step
        self._means = self._entries_left_out = self._values_left_out = 0
        self._is_torn = False
        back = array("d")  # seconds between an entry and the one before it
        before = 0
        for step, entry in self._entries(first=True):
            took = _took(entry)
            back.append(0.0 if took is None else took * max(step - before, 0))
            if took is None:
                continue
            if step == before + 1:
                self._singles.add(len(back) - 1)
            self._means += step > before + 1
            before = max(step, before)
        self._times = counted_back(back, path.stat().st_mtime_ns)
        self.begun_ns = self._times[0]

    def _entries(self, *, first: bool = False) -> Iterator[tuple[int, json_stream.Object]]:
        """The log entries that have a step; of a file that ends in the middle those before its end."""
        try:
            for key, value in json_stream.members(self._path, _HISTORY):
                if key != _HISTORY:
                    if first and key in _KEPT and isinstance(value, bool | int | float | str):
                        self.settings[key] = value
                    continue
                step = _step(value)
                if step is not None:
                    if first:
                        self._look(value)
                    yield step, value
                elif value is not None and first:
                    self._entries_left_out += 1
        except json_stream.TornError:
            self._is_torn = True
        except json_stream.MalformedError as error:
            raise InputError(f"path: {str(self._path)!r} is no state of Transformers' trainer: {error}") from error

    def _look(self, entry: json_stream.Object) -> None:
        told = sum(value is not None for value in entry.values()) - 1  # its step is none of its values
        self._values_left_out += entry.again + told - len(_values(entry))
        if self._remembers:
            self.seen.add(_mark(entry))

    def rows(self) -> Iterator[Row]:
        """The rows of all entries. What training and evaluation have logged at one step stands side by side."""
        for number, (step, entry) in enumerate(self._entries()):
            if number + 1 >= len(self._times):
                return  # somebody has written a longer one since the first pass
            end = self._times[number + 1]
            if number in self._singles:
                begin = end - int((_took(entry) or 0.0) * 1e9)
                yield scope("step", "step", "step", step, (begin, end), number + 1)
            for key, value in _values(entry).items():
                yield Scalar(step=step, time_ns=end, key=key, value=value)

    def notes(self) -> list[str]:
        """What isn't known, and what was left out."""
        counted = " by TRL's step_time" if self._singles or self._means else ""
        told = [f"The file has no clock: times are counted back{counted} from when the file last changed."]
        if not counted:
            told = ["The file has no clock: all its entries have the time at which the file last changed."]
        if not self._singles:
            told.append("The time of a step isn't known.")
        if self._means:
            many = f"{self._means} log entries have" if self._means > 1 else "One log entry has"
            told.append(f"{many} the mean time of several steps: a step of these has no time of its own.")
        if self._is_torn:
            told.append(TORN)
        if self._entries_left_out:
            told.append(f"Log entries without a step were left out: {self._entries_left_out}.")
        if self._values_left_out:
            told.append(VALUES_LEFT_OUT.format(self._values_left_out))
        return told


def _otherwise(path: Path, chosen: Path, seen: set[int], root: Path) -> Iterator[str]:
    """What another state says that the chosen one doesn't: training was resumed from an earlier checkpoint."""
    other, of = _below(path, root), _below(chosen, root)
    try:
        unlike = sum(_mark(value) not in seen for key, value in json_stream.members(path, _HISTORY) if _is_entry(value))
    except json_stream.MalformedError:
        yield f"{other} can't be read to its end."
        return
    if unlike:
        yield f"{other} has log entries that {of} doesn't have: {unlike}. A training was resumed from an earlier one."
    if path.stat().st_mtime_ns > chosen.stat().st_mtime_ns:
        yield f"{other} was written after {of}, at an earlier step. To see its log, open it by its own path."


def _global_step(path: Path) -> int | None:
    """How far a training was; None where the file is no state."""
    step, has_log = None, False
    try:
        for key, value in json_stream.members(path, _HISTORY):
            has_log = has_log or key == _HISTORY
            if key == "global_step":
                step = step_number(value)
            if has_log and step is not None:
                return step
    except (json_stream.MalformedError, OSError):
        return None
    return None


def _is_whole(path: Path) -> bool:
    """Whether a file ends as such a state does."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_entry(value: Any) -> bool:
    return isinstance(value, json_stream.Object) and _step(value) is not None


def _step(value: Any) -> int | None:
    return step_number(value.get("step")) if isinstance(value, json_stream.Object) else None


def _took(entry: json_stream.Object) -> float | None:
    """Seconds of a step."""
    value: Any = entry.get(_STEP_TIME)
    return float(value) if is_number(value) and is_time(value) else None


def _values(entry: json_stream.Object) -> dict[str, float]:
    found = metrics(entry)
    found.pop("step", None)
    return found


def _mark(entry: Any) -> int:
    """The same of equal entries, in one process."""
    return hash(tuple(sorted((key, repr(value)) for key, value in entry.items())))
