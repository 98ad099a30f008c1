"""``probe.compare``: what differs between two batches, or between two runs."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, overload

from probe.errors import InputTypeError

if TYPE_CHECKING:
    from probe.analysis.run_comparison import RunComparison
    from probe.inspection.comparison import Comparison
    from probe.runs.reader import Run


@overload
def compare(a: Run, b: Run) -> RunComparison: ...
@overload
def compare(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> RunComparison: ...
@overload
def compare(a: Any, b: Any) -> Comparison: ...
def compare(a: Any, b: Any) -> Comparison | RunComparison:
    """What differs between two runs, two batches (DataProto, TensorDict, BatchedDataDict, a dict) or any two values.

    Args:
        a: A run, as ``probe.open`` gives it or by what that takes, such as its directory; a batch, or any other value.
        b: What it is compared with. Two texts are two runs.

    Returns:
        Of two runs numbers, configurations and findings: :class:`~probe.analysis.run_comparison.RunComparison`. Of
        anything else see :func:`probe.inspection.comparison.compare`.

    Raises:
        InputTypeError: Only one of them is a run.
        RunNotFoundError: A text or a path names no run. Two texts as values are compared by
            :func:`probe.inspection.comparison.compare`.

    >>> compare({"reward": [0.0, 1.0]}, {"reward": [0.0, 1.5]})
    dict, 2 rows: 1 of 1 keys differ
      reward: values: 1 of 2 differ; first at [1]: 1.0 and 1.5
    """
    reader = sys.modules.get("probe.runs.reader")  # who has a run has loaded it
    runs = [reader is not None and isinstance(one, reader.Run) for one in (a, b)]
    named = [isinstance(one, str | os.PathLike) for one in (a, b)]
    if any(named) and all(run or name for run, name in zip(runs, named, strict=True)):
        return _opened(a, b, named)
    if all(runs):
        from probe.analysis.run_comparison import compare_runs

        return compare_runs(a, b)
    if any(runs) or any(named):
        kinds = " and ".join("a run" if run else type(one).__name__ for run, one in zip(runs, (a, b), strict=True))
        raise InputTypeError(f"compare: got {kinds}, expected two runs, or two batches")
    from probe.inspection.comparison import compare as compare_values

    return compare_values(a, b)


def _opened(a: Any, b: Any, named: list[bool]) -> RunComparison:
    """Two runs, of which those that are named are opened, and closed again."""
    from probe.analysis.run_comparison import compare_runs
    from probe.opened import open_run

    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(open_run(one)) if name else one for one, name in zip((a, b), named, strict=True)
        )
        return compare_runs(first, second)
