"""``probe.compare``: what differs between two batches, or between two runs."""

from __future__ import annotations

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
def compare(a: Any, b: Any) -> Comparison: ...
def compare(a: Any, b: Any) -> Comparison | RunComparison:
    """What differs between two runs, two batches (DataProto, TensorDict, BatchedDataDict, a dict) or any two values.

    Args:
        a: A run, as ``probe.open`` gives it, a batch, or any other value.
        b: What it is compared with.

    Returns:
        Of two runs numbers, configurations and findings: :class:`~probe.analysis.run_comparison.RunComparison`. Of
        anything else see :func:`probe.inspection.comparison.compare`.

    Raises:
        InputTypeError: Only one of them is a run.

    >>> compare({"reward": [0.0, 1.0]}, {"reward": [0.0, 1.5]})
    dict, 2 rows: 1 of 1 keys differ
      reward: values: 1 of 2 differ; first at [1]: 1.0 and 1.5
    """
    reader = sys.modules.get("probe.runs.reader")  # who has a run has loaded it
    runs = [reader is not None and isinstance(one, reader.Run) for one in (a, b)]
    if all(runs):
        from probe.analysis.run_comparison import compare_runs

        return compare_runs(a, b)
    if any(runs):
        other = b if runs[0] else a
        raise InputTypeError(f"compare: got a run and {type(other).__name__}, expected two runs, or two batches")
    from probe.inspection.comparison import compare as compare_values

    return compare_values(a, b)
