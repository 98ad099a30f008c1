"""Whether rollout and training agree about the tokens, and why they don't."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.gathering import gathered
from probe.analysis.mismatch.missing import syncs, unrecorded
from probe.analysis.mismatch.tokens import Tokens

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
        The measures, and a judgement why they differ. Where answers were recorded without both log-probabilities, it is
        withheld and says what is missing. None where no answers were recorded, or the model that trains samples them.
    """
    found = gathered(run, first, last)
    if found is not None:
        return Mismatch(found, sync=syncs(run))
    missing = unrecorded(run, first, last)
    return None if missing is None else Mismatch(Tokens([]), missing=missing)
