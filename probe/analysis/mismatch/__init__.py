"""Whether rollout and training agree about the tokens, and why they don't."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.gathering import gathered

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["Mismatch", "mismatch"]


def mismatch(run: Run, *, first: int | None = None, last: int | None = None) -> Mismatch | None:
    """Compare the log-probabilities of rollout and training of the tokens that a run keeps.

    Args:
        run: The run.
        first: The first step; None begins with the run's.
        last: The last step; None ends with the run's.

    Returns:
        The measures, and a judgement why they differ; None where no answer has both log-probabilities.
    """
    found = gathered(run, first, last)
    return None if found is None else Mismatch(found)
