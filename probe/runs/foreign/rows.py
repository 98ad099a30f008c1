"""What the readers make rows of."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from probe.records import Call, Row, Scalar

#: verl's names of the time of a whole step, seconds.
STEP_TIMES: Final = ("timing_s/step", "perf/time_per_step")

#: verl's name of the time of a validation, seconds: it follows the step, whose time doesn't contain it.
_VALIDATION: Final = "timing_s/testing"

#: verl's names of the phases of a step that its driver times, in their order.
PHASES: Final = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "save_checkpoint",
    "update_weights",
)

#: A duration of more seconds is none, and neither is a step of a larger number.
LONGEST_S: Final = 1e8
LAST_STEP: Final = 2**53

#: The latest wall-clock time, nanoseconds: what lies above doesn't fit into a row.
_LATEST_NS: Final = 9 * 10**18

#: Letters of a metric's name.
LONGEST_NAME: Final = 500

#: What a reader says of what it has left out.
TORN: Final = "The file ends in the middle: what stood behind is missing."
VALUES_LEFT_OUT: Final = "Logged values that are no numbers, or were logged twice, were left out: {}."

#: Seconds by which phases may be longer than their step together, as a share of it: they are measured apart.
_SLACK: Final = 0.01


class DumpedAnswer(Row, kw_only=True, tag="rollout_dumps"):
    """One answer of verl's rollout dump. Its tokens aren't known: the dump has texts."""

    row: int  #: its place in the dump of the step, from 0
    uid: str = ""  #: as verl calls it; "" where the dump doesn't say
    prompt: int  #: number of its prompt in the step, from 0: answers of one prompt share it
    reward: float | None = None
    prompt_text: str = ""
    response_text: str = ""
    ground_truth: str = ""


@dataclass
class Read:
    """What was read.

    Attributes:
        kind: Who wrote it, in words.
        rows: In the order of their time.
        begun_ns: Wall-clock time of the first.
        notes: What isn't known, in sentences.
        own: Row types that are none of probe's tables.
        later: Rows that are made while they are written, behind the others: too many to be held.
        ends: When each step was logged, wall-clock nanoseconds.
        settings: What else the files tell, as a part of the run's configuration.
    """

    kind: str
    rows: list[Row] = field(default_factory=list)
    begun_ns: int = 0
    notes: list[str] = field(default_factory=list)
    own: tuple[type[Row], ...] = ()
    later: Iterable[Row] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def of_step(step: int, values: Mapping[str, Any], logged_ns: int, number: int) -> list[Row]:
    """The rows of one logged step: its metrics, and where it tells them the times of the step and of its phases.

    When a phase began isn't logged: they stand one behind the other from the step's begin. A validation lies between
    the step's end and the time at which it was logged.

    Args:
        step: Its number.
        values: Metrics by name; see :func:`metrics`.
        logged_ns: Wall-clock time at which it was logged.
        number: Of the step among those of the run, from 0.
    """
    known = metrics(values)
    rows: list[Row] = [Scalar(step=step, time_ns=logged_ns, key=key, value=one) for key, one in known.items()]
    took = step_time(known)
    if took is None:
        return rows
    first = number * (len(PHASES) + 1) + 1
    end_ns = logged_ns - int(_validation(known) * 1e9)
    begin = end_ns - int(took * 1e9)
    phases = {name: known[key] for name in PHASES if is_time(known.get(key := f"timing_s/{name}"))}
    calls: list[Row] = []
    if sum(phases.values()) <= took * (1 + _SLACK):
        at = begin
        for place, (name, seconds) in enumerate(phases.items(), 1):
            end = min(at + int(seconds * 1e9), end_ns)
            calls.append(scope("phase", name, f"step/{name}", step, (at, end), first + place, phase=name))
            at = end
    calls.append(scope("step", "step", "step", step, (begin, end_ns), first))
    return [*calls, *rows]


def step_time(values: Mapping[str, float]) -> float | None:
    """Seconds of a step; None where they weren't logged.

    Args:
        values: Metrics by name.
    """
    return next((values[key] for key in STEP_TIMES if is_time(values.get(key))), None)


def time_between(values: Mapping[str, float]) -> float:
    """Seconds between the log of a step and that of the one before it, as far as they are told.

    Args:
        values: Metrics by name.
    """
    return (step_time(values) or 0.0) + _validation(values)


def _validation(values: Mapping[str, float]) -> float:
    return values[_VALIDATION] if is_time(values.get(_VALIDATION)) else 0.0


def scope(
    kind: str, name: str, path: str, step: int, times: tuple[int, int], number: int, phase: str | None = None
) -> Call:
    """The row of a step or phase that has ended.

    Args:
        kind: "step" or "phase".
        name: Its name.
        path: Names from the outermost scope inward.
        step: Number of its step.
        times: Wall-clock nanoseconds of its begin and end.
        number: Of the scope, unique in the run.
        phase: Where it is in one.
    """
    begin, end = times
    return Call(
        step=step,
        phase=phase,
        time_ns=end,
        begin_ns=begin,
        duration_ns=end - begin,
        point=f"scope.{kind}",
        name=name,
        scope=path,
        scope_id=number,
    )


def is_number(value: Any) -> bool:
    """Whether a value that was logged is a number; True is none.

    Args:
        value: Out of JSON.
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_time(value: float | None) -> bool:
    """Whether a number can be a duration.

    Args:
        value: Seconds.
    """
    return value is not None and 0 <= value <= LONGEST_S


def step_number(value: Any) -> int | None:
    """A value that was logged as the number of a step; None where it can't be one.

    >>> [step_number(one) for one in (3, 3.0, True, -1, 2**70, "3")]
    [3, None, None, None, None, None]
    """
    return value if is_number(value) and isinstance(value, int) and 0 <= value < LAST_STEP else None


def metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among what was logged: numbers under names of at most :data:`LONGEST_NAME` letters.

    >>> metrics({"loss": 1, "note": "x", "on": True, "n" * 501: 2.0})
    {'loss': 1.0}
    """
    return {key: float(one) for key, one in values.items() if len(key) <= LONGEST_NAME and is_number(one)}


def wall_clock(time_ns: int) -> int:
    """A wall-clock time that a row holds: none before 1970, and none after 2255.

    Args:
        time_ns: Since 1970, as a file system or a log tells it.
    """
    return min(max(0, time_ns), _LATEST_NS)


def counted_back(back: array[float], end_ns: int) -> array[int]:
    """When each entry of a log without a clock was written, wall-clock nanoseconds; before them, when the first began.

    Args:
        back: Seconds between each entry and the one before it.
        end_ns: When the last one was written.
    """
    times = array("q", [wall_clock(end_ns)])
    for seconds in reversed(back):
        times.append(max(0, times[-1] - int(seconds * 1e9)))
    times.reverse()
    return times


def numbers(values: Iterable[Any]) -> list[float | None]:
    """Values as numbers, None for what is none.

    >>> numbers([1, "x", True, 0.5])
    [1.0, None, None, 0.5]
    """
    return [float(one) if is_number(one) else None for one in values]
