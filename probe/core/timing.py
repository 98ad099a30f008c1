"""Seconds that the parts of a step take: measured on this rank, and put together over all ranks.

A timer is also a scope of kind ``phase``, so that everything recorded inside says where it belongs. Times are the
host's: what a device still has to do when a block ends isn't in them. Nothing waits for a device but the collectives
of a group that talks over one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from probe.errors import InputError, InputTypeError, UnknownNameError
from probe.hooks import in_graph, observed, scope

if TYPE_CHECKING:
    from torch.distributed import ReduceOp


@contextmanager
def simple_timer(name: str, timing_raw: MutableMapping[str, float]) -> Iterator[scope]:
    """Add the seconds that the block takes to ``timing_raw[name]``, also when it raises.

    What listeners of the scope take isn't in the time. Inside a graph of ``torch.compile`` nothing is timed.

    Args:
        name: What the time and the phase are called.
        timing_raw: Name to seconds; written to when the block ends.

    Yields:
        The scope, whose ``values`` may be added to.

    Raises:
        InputTypeError: It is not a name, not a mutable mapping, or there is something under the name that isn't a
            number. Raised before the block runs.

    >>> seconds = {}
    >>> for _ in range(2):
    ...     with simple_timer("update", seconds):
    ...         pass
    >>> list(seconds), seconds["update"] > 0
    (['update'], True)
    """
    with _timed(name, timing_raw, {}) as opened:
        yield opened


@contextmanager
def marked_timer(
    name: str,
    timing_raw: MutableMapping[str, float],
    color: str | None = None,
    domain: str | None = None,
    category: str | None = None,
) -> Iterator[scope]:
    """:func:`simple_timer` with marks for a timeline, which listeners find in the scope's ``values``.

    Where a CUDA context exists the block is an NVTX range called ``name`` as well, which Nsight Systems shows.

    Args:
        name: As in :func:`simple_timer`.
        timing_raw: As in :func:`simple_timer`.
        color: Color of the range, for listeners; None is left out.
        domain: Domain of the range, for listeners; None is left out.
        category: Category of the range, for listeners; None is left out.

    >>> seconds = {}
    >>> with marked_timer("gen", seconds, color="red") as opened:
    ...     print(opened.scope.path, opened.values)
    gen {'color': 'red'}
    """
    given = {"color": color, "domain": domain, "category": category}
    marks = {key: value for key, value in given.items() if value is not None}
    with _timed(name, timing_raw, marks) as opened, _range(name):
        yield opened


@contextmanager
def _timed(name: str, timing_raw: MutableMapping[str, float], marks: Mapping[str, Any]) -> Iterator[scope]:
    if in_graph():  # there is no time in a graph
        yield scope("phase", name, phase=name)
        return
    if not isinstance(name, str):
        raise InputTypeError(f"name: got {type(name).__name__}, expected a string")
    if not isinstance(timing_raw, MutableMapping):
        raise InputTypeError(f"timing_raw: got {type(timing_raw).__name__}, expected a dict")
    _seconds(f"timing_raw[{name!r}]", timing_raw.get(name, 0.0))
    with scope("phase", name, phase=name, **marks) as opened:
        begin = time.perf_counter()
        try:
            yield opened
        finally:
            elapsed = time.perf_counter() - begin
            timing_raw[name] = timing_raw.get(name, 0.0) + elapsed


@contextmanager
def _range(name: str) -> Iterator[None]:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)  # importing torch would be part of the time
    if cuda is None or in_graph() or not cuda.is_initialized():
        yield
        return
    cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        cuda.nvtx.range_pop()


# ------------------------------------------------------------------------------------------------------- over all ranks


@observed("timing.gather_timing", "every rank's seconds are gathered; argument timing_raw, result name to list")
def gather_timing(timing_raw: Mapping[str, float], group: Any = None) -> dict[str, list[float]]:
    """The seconds of all ranks under each name, in the order of ranks. A collective.

    Args:
        timing_raw: Name to seconds; the ranks may have different names.
        group: The process group; None means all ranks.

    Returns:
        Name to one number for each rank, NaN for a rank without the name; names sorted, the same on every rank.
        Without a process group each list has one number.

    Raises:
        InputTypeError: It is not a dict of numbers.

    >>> gather_timing({"update": 2.5, "gen": 4})
    {'gen': [4.0], 'update': [2.5]}
    """
    names, told = _all_times(timing_raw, group)
    return {name: [one.get(name, math.nan) for one in told] for name in names}


@observed("timing.reduce_timing", "seconds are reduced over all ranks; arguments timing_raw, reduce_op")
def reduce_timing(
    timing_raw: Mapping[str, float], reduce_op: ReduceOp.RedOpType | str | None = None, group: Any = None
) -> dict[str, float]:
    """The seconds of all ranks as one number for each name. A collective.

    Names are told, not counted on: a rank that lacks one is left out of that one's number, and never shifts another's.

    Args:
        timing_raw: Name to seconds; stays as it is.
        reduce_op: One of ``ReduceOp.AVG``, ``SUM``, ``MIN`` and ``MAX``, or their names as strings. None is the
            average.
        group: The process group; None means all ranks.

    Returns:
        Name to seconds, names sorted, the same on every rank. NaN where any rank's is.

    Raises:
        InputTypeError: It is not a dict of numbers.
        UnknownNameError: There is no such operation.

    >>> reduce_timing({"update": 2.5, "gen": 4}, "MAX")
    {'gen': 4.0, 'update': 2.5}
    """
    reduce = _reducer(reduce_op)
    names, told = _all_times(timing_raw, group)
    return {name: reduce([one[name] for one in told if name in one]) for name in names}


@observed(
    "timing.topk_reduce_ratio_min_max",
    "the share of slow ranks, and the shortest and longest time; arguments timing, k",
)
def topk_reduce_ratio_min_max(timing: float, k: float = 10, group: Any = None) -> tuple[float, float, float]:
    """Part of the ranks that take longer than the ``(100 − k)``-th percentile, and the shortest and longest time.

    The percentile is interpolated between ranks, as by ``torch.quantile``. Times that are alike give a ratio of 0:
    nobody is slow.

    Args:
        timing: Seconds of this rank.
        k: A percentage from 0 to 100.
        group: The process group; None means all ranks.

    Returns:
        Ratio, min, max, the same on every rank; NaN, all three, where a rank's time is. A process without a group is
        alone: ``(0.0, timing, timing)``.

    Raises:
        InputTypeError: It is not a number.
        InputError: ``k`` is outside 0 to 100.

    >>> topk_reduce_ratio_min_max(1.5)
    (0.0, 1.5, 1.5)
    """
    if not 0 <= _seconds("k", k) <= 100:
        raise InputError(f"k: got {k}, expected a percentage from 0 to 100")
    times = sorted(_told_by_all(_seconds("timing", timing), group))
    if any(math.isnan(one) for one in times):
        return math.nan, math.nan, math.nan
    place = (len(times) - 1) * (100 - k) / 100
    below, part = int(place), place - int(place)
    limit = times[below] if not part else times[below] + part * (times[below + 1] - times[below])
    return sum(one > limit for one in times) / len(times), times[0], times[-1]


def _all_times(timing_raw: Mapping[str, float], group: Any) -> tuple[list[str], list[dict[str, float]]]:
    """All names, sorted, and the seconds of every rank."""
    if not isinstance(timing_raw, Mapping):
        raise InputTypeError(f"timing_raw: got {type(timing_raw).__name__}, expected a dict")
    mine = {str(name): _seconds(f"timing_raw[{name!r}]", value) for name, value in timing_raw.items()}
    told = _told_by_all(mine, group)
    return sorted({name for one in told for name in one}), told


def _told_by_all(mine: Any, group: Any) -> list[Any]:
    from probe.core.distributed.process_group import told_by_all  # a timer alone needs no torch

    return told_by_all(mine, group)


def _seconds(argument: str, value: Any) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):  # told below
        pass
    raise InputTypeError(f"{argument}: got {value!r}, expected a number")


def _extreme(values: list[float], highest: bool) -> float:
    if any(math.isnan(value) for value in values):  # max() and min() would depend on the order
        return math.nan
    return max(values) if highest else min(values)


_REDUCERS: Final[dict[str, Callable[[list[float]], float]]] = {
    "AVG": lambda values: sum(values) / len(values),
    "MAX": lambda values: _extreme(values, True),
    "MIN": lambda values: _extreme(values, False),
    "SUM": sum,
}


def _reducer(reduce_op: Any) -> Callable[[list[float]], float]:
    operation = getattr(reduce_op, "op", reduce_op)  # torch has an enum, and a class that holds one of it
    name = "AVG" if operation is None else str(operation).rpartition(".")[2].upper()
    if name not in _REDUCERS:
        raise UnknownNameError.of("reduce_op", reduce_op, _REDUCERS)
    return _REDUCERS[name]
